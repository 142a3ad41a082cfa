package graph

import (
	"bytes"
	"strconv"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"

	"openslot/internal/availability"
	"openslot/internal/booking"
)

// writer writes what is selected of a value.
type writer[T any] func(out *output, v *T)

// output is what writers write.
type output struct {
	bytes.Buffer
	moments []span // where it says how old it is
}

// span is from where to where something lies.
type span struct{ from, to int }

// object is a type of the contract as plans know it: the fields that a value answers by itself.
type object[T any] struct {
	name    string
	scalars map[string]writer[T]
	objects map[string]func(*graphql.OperationContext, ast.SelectionSet) writer[T]
}

// compile makes the writer of a selection, or nil if a field is not among those known.
func compile[T any](operation *graphql.OperationContext, set ast.SelectionSet, o object[T]) writer[T] {
	type part struct {
		key   string
		write writer[T]
	}
	var parts []part
	for i, f := range graphql.CollectFields(operation, set, []string{o.name}) {
		p := part{key: `,"` + f.Alias + `":`}
		if i == 0 {
			p.key = p.key[1:]
		}
		switch below := o.objects[f.Name]; {
		case f.Name == "__typename":
			p.write = func(out *output, _ *T) { out.WriteString(`"` + o.name + `"`) }
		case below != nil:
			p.write = below(operation, f.Selections)
		default:
			p.write = o.scalars[f.Name]
		}
		if p.write == nil {
			return nil
		}
		parts = append(parts, p)
	}
	return func(out *output, v *T) {
		out.WriteByte('{')
		for _, p := range parts {
			out.WriteString(p.key)
			p.write(out, v)
		}
		out.WriteByte('}')
	}
}

// one is a field with an object, or with null.
func one[P, T any](of func(*P) *T, o object[T]) func(*graphql.OperationContext, ast.SelectionSet) writer[P] {
	return func(operation *graphql.OperationContext, set ast.SelectionSet) writer[P] {
		write := compile(operation, set, o)
		if write == nil {
			return nil
		}
		return func(out *output, v *P) {
			if inner := of(v); inner != nil {
				write(out, inner)
			} else {
				out.WriteString("null")
			}
		}
	}
}

// many is a field with a list of objects.
func many[P, T any](of func(*P) []T, o object[T]) func(*graphql.OperationContext, ast.SelectionSet) writer[P] {
	return func(operation *graphql.OperationContext, set ast.SelectionSet) writer[P] {
		write := compile(operation, set, o)
		if write == nil {
			return nil
		}
		return func(out *output, v *P) {
			out.WriteByte('[')
			for i := range of(v) {
				if i > 0 {
					out.WriteByte(',')
				}
				write(out, &of(v)[i])
			}
			out.WriteByte(']')
		}
	}
}

// scalar is a field that the contract's own marshaler writes.
func scalar[T, V any](marshal func(V) graphql.Marshaler, of func(*T) V) writer[T] {
	return func(out *output, v *T) { marshal(of(v)).MarshalGQL(out) }
}

// plain is a field as lists have hundreds of: it is appended, without anything left behind.
func plain[T, V any](add func([]byte, V) []byte, of func(*T) V) writer[T] {
	return func(out *output, v *T) { out.Write(add(out.AvailableBuffer(), of(v))) }
}

func appendInt[V ~int | ~int64](b []byte, n V) []byte { return strconv.AppendInt(b, int64(n), 10) }

// appendWord writes a value of an enumeration.
func appendWord[V ~string](b []byte, word V) []byte {
	return append(append(append(b, '"'), word...), '"')
}

// moment is a field that says how old the rest is, which may become younger and stay the same.
func moment[T any](of func(*T) time.Time) writer[T] {
	write := plain(appendDateTime, of)
	return func(out *output, v *T) {
		from := out.Len()
		write(out, v)
		out.moments = append(out.moments, span{from, out.Len()})
	}
}

// orNull writes what may be missing.
func orNull[V any](marshal func(V) graphql.Marshaler) func(*V) graphql.Marshaler {
	return func(v *V) graphql.Marshaler {
		if v == nil {
			return graphql.Null
		}
		return marshal(*v)
	}
}

var payloadObject = object[BookAppointmentPayload]{
	name: "BookAppointmentPayload",
	scalars: map[string]writer[BookAppointmentPayload]{
		"replayed": scalar(graphql.MarshalBoolean, func(p *BookAppointmentPayload) bool { return p.Replayed }),
	},
	objects: map[string]func(*graphql.OperationContext, ast.SelectionSet) writer[BookAppointmentPayload]{
		"appointment":  one(func(p *BookAppointmentPayload) *booking.Appointment { return p.Appointment }, appointmentObject),
		"errors":       many(func(p *BookAppointmentPayload) []Refusal { return p.Errors }, refusalObject),
		"alternatives": many(func(p *BookAppointmentPayload) []booking.Slot { return p.Alternatives }, slotObject),
	},
}

var appointmentObject = object[booking.Appointment]{
	name: "Appointment",
	scalars: map[string]writer[booking.Appointment]{
		"id":            plain(appendID, func(a *booking.Appointment) booking.AppointmentID { return a.ID }),
		"status":        scalar(graphql.MarshalString, func(a *booking.Appointment) string { return string(a.Status) }),
		"startAt":       plain(appendDateTime, func(a *booking.Appointment) time.Time { return a.StartAt }),
		"endAt":         plain(appendDateTime, func(a *booking.Appointment) time.Time { return a.EndAt }),
		"referralId":    scalar(orNull(MarshalString), func(a *booking.Appointment) *string { return a.ReferralID }),
		"overlapReason": scalar(orNull(MarshalString), func(a *booking.Appointment) *string { return a.OverlapReason }),
		"createdAt":     plain(appendDateTime, func(a *booking.Appointment) time.Time { return a.CreatedAt }),
		"expiresAt":     scalar(orNull(MarshalDateTime), func(a *booking.Appointment) *time.Time { return a.ExpiresAt }),
		"cancelledAt":   scalar(orNull(MarshalDateTime), func(a *booking.Appointment) *time.Time { return a.CancelledAt }),
		"cancelReason":  scalar(orNull(MarshalString), func(a *booking.Appointment) *string { return a.CancelReason }),
		"replaces":      scalar(orNull(MarshalAppointmentID), func(a *booking.Appointment) *booking.AppointmentID { return a.Replaces }),
		"replacedBy":    scalar(orNull(MarshalAppointmentID), func(a *booking.Appointment) *booking.AppointmentID { return a.ReplacedBy }),
	},
}

var refusalObject = object[Refusal]{
	name: "Refusal",
	scalars: map[string]writer[Refusal]{
		"code":       scalar(graphql.MarshalString, func(r *Refusal) string { return string(r.Code) }),
		"message":    scalar(MarshalString, func(r *Refusal) string { return r.Message }),
		"retryAfter": scalar(orNull(MarshalInt), func(r *Refusal) *int { return r.RetryAfter }),
	},
}

var slotObject = object[booking.Slot]{
	name: "Slot",
	scalars: map[string]writer[booking.Slot]{
		"id":       plain(appendID, func(s *booking.Slot) booking.SlotID { return s.ID }),
		"doctorId": plain(appendID, func(s *booking.Slot) booking.DoctorID { return s.DoctorID }),
		"startAt":  plain(appendDateTime, func(s *booking.Slot) time.Time { return s.StartAt }),
		"endAt":    plain(appendDateTime, func(s *booking.Slot) time.Time { return s.EndAt }),
		"opensAt":  plain(appendDateTime, func(s *booking.Slot) time.Time { return s.OpensAt }),
		"capacity": plain(appendInt, func(s *booking.Slot) int { return s.Capacity }),
		"free":     plain(appendInt, func(s *booking.Slot) int { return s.Free() }),
		"status":   plain(appendWord, func(s *booking.Slot) booking.SlotStatus { return s.Status }),
		"version":  plain(appendInt, func(s *booking.Slot) int64 { return s.Version }),
	},
}

var dayObject = object[availability.Day]{
	name: "DaySlots",
	scalars: map[string]writer[availability.Day]{
		"date":     scalar(MarshalDate, func(d *availability.Day) booking.Date { return d.Date }),
		"timeZone": scalar(MarshalString, func(d *availability.Day) string { return d.TimeZone }),
		"asOf":     moment(func(d *availability.Day) time.Time { return d.AsOf }),
	},
	objects: map[string]func(*graphql.OperationContext, ast.SelectionSet) writer[availability.Day]{
		"slots": many(func(d *availability.Day) []booking.Slot { return d.Slots }, slotObject),
	},
}
