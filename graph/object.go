package graph

import (
	"bytes"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"

	"openslot/internal/availability"
	"openslot/internal/booking"
)

// writer writes what is selected of a value.
type writer[T any] func(buf *bytes.Buffer, v *T)

// object is a type of the contract as plans know it: the fields that a value answers by itself.
type object[T any] struct {
	name    string
	scalars map[string]func(*T) graphql.Marshaler
	objects map[string]func(*graphql.OperationContext, ast.SelectionSet) writer[T]
}

// compile makes the writer of a selection, or nil if a field is not among those known.
func compile[T any](operation *graphql.OperationContext, set ast.SelectionSet, o object[T]) writer[T] {
	type part struct {
		key    string
		scalar func(*T) graphql.Marshaler
		object writer[T]
	}
	var parts []part
	for i, f := range graphql.CollectFields(operation, set, []string{o.name}) {
		p := part{key: `,"` + f.Alias + `":`}
		if i == 0 {
			p.key = p.key[1:]
		}
		below := o.objects[f.Name]
		switch {
		case f.Name == "__typename":
			p.scalar = func(*T) graphql.Marshaler { return graphql.MarshalString(o.name) }
		case o.scalars[f.Name] != nil:
			p.scalar = o.scalars[f.Name]
		case below != nil:
			p.object = below(operation, f.Selections)
		}
		if p.scalar == nil && p.object == nil {
			return nil
		}
		parts = append(parts, p)
	}
	return func(buf *bytes.Buffer, v *T) {
		buf.WriteByte('{')
		for _, p := range parts {
			buf.WriteString(p.key)
			if p.scalar != nil {
				p.scalar(v).MarshalGQL(buf)
			} else {
				p.object(buf, v)
			}
		}
		buf.WriteByte('}')
	}
}

// one is a field with an object, or with null.
func one[P, T any](of func(*P) *T, o object[T]) func(*graphql.OperationContext, ast.SelectionSet) writer[P] {
	return func(operation *graphql.OperationContext, set ast.SelectionSet) writer[P] {
		write := compile(operation, set, o)
		if write == nil {
			return nil
		}
		return func(buf *bytes.Buffer, v *P) {
			if inner := of(v); inner != nil {
				write(buf, inner)
			} else {
				buf.WriteString("null")
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
		return func(buf *bytes.Buffer, v *P) {
			buf.WriteByte('[')
			for i := range of(v) {
				if i > 0 {
					buf.WriteByte(',')
				}
				write(buf, &of(v)[i])
			}
			buf.WriteByte(']')
		}
	}
}

// orNull writes what may be missing.
func orNull[T any](v *T, marshal func(T) graphql.Marshaler) graphql.Marshaler {
	if v == nil {
		return graphql.Null
	}
	return marshal(*v)
}

var payloadObject = object[BookAppointmentPayload]{
	name: "BookAppointmentPayload",
	scalars: map[string]func(*BookAppointmentPayload) graphql.Marshaler{
		"replayed": func(p *BookAppointmentPayload) graphql.Marshaler { return graphql.MarshalBoolean(p.Replayed) },
	},
	objects: map[string]func(*graphql.OperationContext, ast.SelectionSet) writer[BookAppointmentPayload]{
		"appointment":  one(func(p *BookAppointmentPayload) *booking.Appointment { return p.Appointment }, appointmentObject),
		"errors":       many(func(p *BookAppointmentPayload) []Refusal { return p.Errors }, refusalObject),
		"alternatives": many(func(p *BookAppointmentPayload) []booking.Slot { return p.Alternatives }, slotObject),
	},
}

var appointmentObject = object[booking.Appointment]{
	name: "Appointment",
	scalars: map[string]func(*booking.Appointment) graphql.Marshaler{
		"id":            func(a *booking.Appointment) graphql.Marshaler { return MarshalAppointmentID(a.ID) },
		"status":        func(a *booking.Appointment) graphql.Marshaler { return graphql.MarshalString(string(a.Status)) },
		"startAt":       func(a *booking.Appointment) graphql.Marshaler { return MarshalDateTime(a.StartAt) },
		"endAt":         func(a *booking.Appointment) graphql.Marshaler { return MarshalDateTime(a.EndAt) },
		"referralId":    func(a *booking.Appointment) graphql.Marshaler { return orNull(a.ReferralID, MarshalString) },
		"overlapReason": func(a *booking.Appointment) graphql.Marshaler { return orNull(a.OverlapReason, MarshalString) },
		"createdAt":     func(a *booking.Appointment) graphql.Marshaler { return MarshalDateTime(a.CreatedAt) },
		"expiresAt":     func(a *booking.Appointment) graphql.Marshaler { return orNull(a.ExpiresAt, MarshalDateTime) },
		"cancelledAt":   func(a *booking.Appointment) graphql.Marshaler { return orNull(a.CancelledAt, MarshalDateTime) },
		"cancelReason":  func(a *booking.Appointment) graphql.Marshaler { return orNull(a.CancelReason, MarshalString) },
		"replaces":      func(a *booking.Appointment) graphql.Marshaler { return orNull(a.Replaces, MarshalAppointmentID) },
		"replacedBy":    func(a *booking.Appointment) graphql.Marshaler { return orNull(a.ReplacedBy, MarshalAppointmentID) },
	},
}

var refusalObject = object[Refusal]{
	name: "Refusal",
	scalars: map[string]func(*Refusal) graphql.Marshaler{
		"code":       func(r *Refusal) graphql.Marshaler { return graphql.MarshalString(string(r.Code)) },
		"message":    func(r *Refusal) graphql.Marshaler { return MarshalString(r.Message) },
		"retryAfter": func(r *Refusal) graphql.Marshaler { return orNull(r.RetryAfter, MarshalInt) },
	},
}

var slotObject = object[booking.Slot]{
	name: "Slot",
	scalars: map[string]func(*booking.Slot) graphql.Marshaler{
		"id":       func(s *booking.Slot) graphql.Marshaler { return MarshalSlotID(s.ID) },
		"doctorId": func(s *booking.Slot) graphql.Marshaler { return MarshalDoctorID(s.DoctorID) },
		"startAt":  func(s *booking.Slot) graphql.Marshaler { return MarshalDateTime(s.StartAt) },
		"endAt":    func(s *booking.Slot) graphql.Marshaler { return MarshalDateTime(s.EndAt) },
		"opensAt":  func(s *booking.Slot) graphql.Marshaler { return MarshalDateTime(s.OpensAt) },
		"capacity": func(s *booking.Slot) graphql.Marshaler { return MarshalInt(s.Capacity) },
		"free":     func(s *booking.Slot) graphql.Marshaler { return MarshalInt(s.Free()) },
		"status":   func(s *booking.Slot) graphql.Marshaler { return MarshalSlotStatus(s.Status) },
		"version":  func(s *booking.Slot) graphql.Marshaler { return MarshalInt64(s.Version) },
	},
}

var dayObject = object[availability.Day]{
	name: "DaySlots",
	scalars: map[string]func(*availability.Day) graphql.Marshaler{
		"date":     func(d *availability.Day) graphql.Marshaler { return MarshalDate(d.Date) },
		"timeZone": func(d *availability.Day) graphql.Marshaler { return MarshalString(d.TimeZone) },
		"asOf":     func(d *availability.Day) graphql.Marshaler { return MarshalDateTime(d.AsOf) },
	},
	objects: map[string]func(*graphql.OperationContext, ast.SelectionSet) writer[availability.Day]{
		"slots": many(func(d *availability.Day) []booking.Slot { return d.Slots }, slotObject),
	},
}
