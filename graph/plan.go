package graph

import (
	"bytes"
	"context"
	"net/http"
	"strings"

	"github.com/99designs/gqlgen/graphql"
	"github.com/hashicorp/golang-lru/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/auth"
	"openslot/internal/booking"
)

// A plan is a document that was executed once, taken to pieces: what to read of the variables, and
// what to write of the result. At seven o'clock one document makes nearly all the load, and the
// executor takes several times as long over it as everything else together.
//
// There are plans for documents that do nothing but book, with the input in one variable, no
// directives, and no field that needs another query. All others, and variables that are in any way
// unusual, take the executor, whose bytes a plan's equal. Authentication, limits of size and the
// log stand before both; a document that breaks a limit never gets a plan.
type plan struct {
	name     string                 // of the operation
	root     graphql.CollectedField // bookAppointment
	variable string                 // that has its input
	asked    []string               // fields of the payload
	write    writer[BookAppointmentPayload]
}

// plans are those of documents seen before. A document that can have none has nil.
type plans struct {
	known *lru.Cache[string, *plan]
}

func newPlans() plans {
	known, err := lru.New[string, *plan](cachedDocuments)
	if err != nil {
		panic(err) // of a size below 1
	}
	return plans{known}
}

// find returns the plan of a document, or nil.
func (p plans) find(params *graphql.RawParams) *plan {
	found, _ := p.known.Get(params.Query)
	if found != nil && params.OperationName != "" && params.OperationName != found.name {
		return nil
	}
	return found
}

// learn makes the plan of a document that has passed all checks.
func (p plans) learn(operation *graphql.OperationContext) {
	if !p.known.Contains(operation.RawQuery) {
		p.known.Add(operation.RawQuery, newPlan(operation))
	}
}

func newPlan(operation *graphql.OperationContext) *plan {
	definition := operation.Operation
	if len(operation.Doc.Operations) != 1 || strings.Contains(operation.RawQuery, "@") ||
		definition.Operation != ast.Mutation || len(definition.VariableDefinitions) != 1 {
		return nil
	}
	roots := rootFields(operation, "Mutation")
	if len(roots) != 1 || roots[0].Name != "bookAppointment" {
		return nil
	}
	root := roots[0]
	variable := definition.VariableDefinitions[0]
	input := root.Arguments.ForName("input")
	if input == nil || input.Value.Kind != ast.Variable || variable.Type.String() != "BookAppointmentInput!" || variable.DefaultValue != nil {
		return nil
	}
	p := &plan{name: definition.Name, root: root, variable: variable.Variable}
	for _, f := range graphql.CollectFields(operation, root.Selections, []string{payloadObject.name}) {
		p.asked = append(p.asked, f.Name)
	}
	if p.write = compile(operation, root.Selections, payloadObject); p.write == nil {
		return nil
	}
	return p
}

// input reads the variables. They are as a plan knows them, or the executor says what is wrong.
func (p *plan) input(variables map[string]any) (r booking.BookRequest, ok bool) {
	input, _ := variables[p.variable].(map[string]any)
	if len(variables) != 1 {
		return r, false
	}
	for name, value := range input {
		text, isText := value.(string)
		var err error
		switch {
		case !isText:
			return r, false
		case name == "slotId":
			r.Slot, err = UnmarshalSlotID(text)
		case name == "patientId":
			r.Patient, err = UnmarshalPatientID(text)
		case name == "idempotencyKey":
			r.Key, err = UnmarshalString(text)
		default:
			return r, false
		}
		if err != nil {
			return r, false
		}
	}
	return r, r.Slot != 0 && r.Key != ""
}

// follow does what a plan says: it reports false if the request is one for the executor.
func (h *Handler) follow(w http.ResponseWriter, r *http.Request, q question, params *graphql.RawParams) bool {
	p := h.plans.find(params)
	if p == nil || r.Method != http.MethodPost {
		return false
	}
	input, ok := p.input(params.Variables)
	if !ok {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.resolver.patience)
	defer cancel()
	payload, err := h.resolver.book(ctx, input, p.asked)
	if r.Context().Err() != nil {
		return true // the client has gone
	}
	if err != nil {
		write(w, q.media, &graphql.Response{Data: []byte("null"), Errors: gqlerror.List{h.presentAt(ctx, r, p.root, err)}})
		return true
	}
	buf := bytes.NewBuffer(make([]byte, 0, 512))
	buf.WriteString(`{"` + p.root.Alias + `":`)
	p.write(buf, payload)
	buf.WriteByte('}')
	write(w, q.media, &graphql.Response{Data: buf.Bytes()})
	return true
}

// presentAt words an error of a root field as the executor would.
func (h *Handler) presentAt(ctx context.Context, r *http.Request, root graphql.CollectedField, err error) *gqlerror.Error {
	ctx = graphql.WithOperationContext(ctx, &graphql.OperationContext{Headers: r.Header})
	ctx = graphql.WithFieldContext(ctx, &graphql.FieldContext{Field: root})
	return h.resolver.presenter.present(ctx, graphql.ErrorOnPath(ctx, graphql.AddFieldLocationToError(ctx, err)))
}

// book is the mutation bookAppointment. asked are the fields of its payload that anybody wants.
func (r *resolver) book(ctx context.Context, request booking.BookRequest, asked []string) (_ *BookAppointmentPayload, err error) {
	booked, err := r.Booking.Book(ctx, auth.ActorFrom(ctx), request)
	return r.booked(ctx, request, booked, err, asked)
}

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
		"id":           func(a *booking.Appointment) graphql.Marshaler { return MarshalAppointmentID(a.ID) },
		"status":       func(a *booking.Appointment) graphql.Marshaler { return graphql.MarshalString(string(a.Status)) },
		"startAt":      func(a *booking.Appointment) graphql.Marshaler { return MarshalDateTime(a.StartAt) },
		"endAt":        func(a *booking.Appointment) graphql.Marshaler { return MarshalDateTime(a.EndAt) },
		"createdAt":    func(a *booking.Appointment) graphql.Marshaler { return MarshalDateTime(a.CreatedAt) },
		"cancelledAt":  func(a *booking.Appointment) graphql.Marshaler { return orNull(a.CancelledAt, MarshalDateTime) },
		"cancelReason": func(a *booking.Appointment) graphql.Marshaler { return orNull(a.CancelReason, MarshalString) },
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
