package graph

import (
	"bytes"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"
	"github.com/hashicorp/golang-lru/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/availability"
	"openslot/internal/booking"
)

// A plan is a document that was executed once, taken to pieces: what to read of the variables, what
// to call, and what to write of the result (object.go). At seven o'clock two documents make nearly
// all the load, and the executor takes several times as long over them as everything else together.
//
// There are plans for documents with one of plannedFields, no directives, and no field that needs
// another query. All others, and variables that are in any way unusual, take the executor, whose
// bytes a plan's equal. Authentication, limits of size and the log stand before both; a document
// that breaks a limit never gets a plan.
type plan struct {
	name string                 // of the operation
	root graphql.CollectedField // the one field
	call call
	size atomic.Int64 // of the last answer: the next is about as long
}

// call reads the variables, calls the core, and returns how to write its answer. Variables that it
// does not understand are no error: ok is false, and the executor says what is wrong with them.
type call func(ctx context.Context, variables map[string]any) (write func(*output), ok bool, err error)

// plannedFields are the fields that can have a plan: given what is selected, how to call them. They
// return nil for what they can't do.
var plannedFields = map[string]func(*resolver, *graphql.OperationContext, graphql.CollectedField) call{
	"bookAppointment": planBook,
	"slots":           planSlots,
}

// plans are those of documents seen before. A document that can have none has nil.
type plans struct {
	resolver *resolver
	known    *lru.Cache[string, *plan]
}

func newPlans(r *resolver) plans {
	known, err := lru.New[string, *plan](cachedDocuments)
	if err != nil {
		panic(err) // of a size below 1
	}
	return plans{r, known}
}

// find returns the plan for a request, or nil.
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
		p.known.Add(operation.RawQuery, p.make(operation))
	}
}

func (p plans) make(operation *graphql.OperationContext) *plan {
	if len(operation.Doc.Operations) != 1 || strings.Contains(operation.RawQuery, "@") {
		return nil
	}
	kind := map[ast.Operation]string{ast.Query: "Query", ast.Mutation: "Mutation"}[operation.Operation.Operation]
	roots := rootFields(operation, kind)
	if len(roots) != 1 || plannedFields[roots[0].Name] == nil {
		return nil
	}
	call := plannedFields[roots[0].Name](p.resolver, operation, roots[0])
	if call == nil {
		return nil
	}
	return &plan{name: operation.Operation.Name, root: roots[0], call: call}
}

// follow does what a plan says: it reports false if the request is one for the executor.
func (h *Handler) follow(w http.ResponseWriter, r *http.Request, q question, params *graphql.RawParams) bool {
	p := h.plans.find(params)
	if p == nil || q.method != http.MethodPost {
		return false
	}
	ctx, cancel := context.WithTimeout(r.Context(), h.plans.resolver.patience)
	defer cancel()
	ctx, trace := availability.WithTrace(ctx)
	fill, ok, err := p.call(ctx, params.Variables)
	switch {
	case !ok:
		return false
	case r.Context().Err() != nil: // the client has gone
		return true
	case err != nil:
		write(w, q.media, &graphql.Response{Data: []byte("null"), Errors: gqlerror.List{h.presentAt(ctx, r, p.root, err)}})
		return true
	}
	out := &output{Buffer: *bytes.NewBuffer(make([]byte, 0, p.size.Load()+64))}
	out.WriteString(`{"data":{"` + p.root.Alias + `":`)
	fill(out)
	out.WriteString("}}")
	p.size.Store(int64(out.Len()))
	if slices.Contains(publicFields, p.root.Name) {
		k := newKept(q, out.Bytes(), trace)
		k.ofLists(out.moments)
		h.responses.keep(k)
		k.write(w, r)
	} else {
		writeBody(w, q.media, http.StatusOK, out.Bytes())
	}
	return true
}

// presentAt words an error of a root field as the executor would.
func (h *Handler) presentAt(ctx context.Context, r *http.Request, root graphql.CollectedField, err error) *gqlerror.Error {
	ctx = graphql.WithOperationContext(ctx, &graphql.OperationContext{Headers: r.Header})
	ctx = graphql.WithFieldContext(ctx, &graphql.FieldContext{Field: root})
	return h.plans.resolver.presenter.present(ctx, graphql.ErrorOnPath(ctx, graphql.AddFieldLocationToError(ctx, err)))
}

// variables are the names of the variables that a field's arguments are, in the order in which they
// are given here: name and type. It is nil if an argument is no variable of just that type, without
// a default, or if the document has others.
func variables(operation *graphql.OperationContext, root graphql.CollectedField, arguments ...[2]string) (names []string) {
	definitions := operation.Operation.VariableDefinitions
	for _, a := range arguments {
		given := root.Arguments.ForName(a[0])
		if given == nil || given.Value.Kind != ast.Variable {
			return nil
		}
		definition := definitions.ForName(given.Value.Raw)
		if definition.Type.String() != a[1] || definition.DefaultValue != nil {
			return nil
		}
		names = append(names, given.Value.Raw)
	}
	if len(definitions) != len(names) {
		return nil
	}
	return names
}

// planBook is for one variable that has the whole input.
func planBook(r *resolver, operation *graphql.OperationContext, root graphql.CollectedField) call {
	names := variables(operation, root, [2]string{"input", "BookAppointmentInput!"})
	write := compile(operation, root.Selections, payloadObject)
	if names == nil || write == nil {
		return nil
	}
	var asked []string
	for _, f := range graphql.CollectFields(operation, root.Selections, []string{payloadObject.name}) {
		asked = append(asked, f.Name)
	}
	return func(ctx context.Context, variables map[string]any) (func(*output), bool, error) {
		input, _ := variables[names[0]].(map[string]any)
		request, ok := bookRequest(input)
		if !ok || len(variables) != 1 {
			return nil, false, nil
		}
		payload, err := r.book(ctx, request, asked)
		return func(out *output) { write(out, payload) }, true, err
	}
}

// bookRequest reads an input that has nothing unusual in it.
func bookRequest(input map[string]any) (r booking.BookRequest, ok bool) {
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
		case name == "referralId":
			r.Referral, err = UnmarshalString(text)
		case name == "overlapReason":
			r.OverlapReason, err = UnmarshalString(text)
		default:
			return r, false
		}
		if err != nil {
			return r, false
		}
	}
	return r, r.Slot != 0 && r.Key != ""
}

// planSlots is for variables with the doctor and the date; includeFull is left out or written in
// the document.
func planSlots(r *resolver, operation *graphql.OperationContext, root graphql.CollectedField) call {
	names := variables(operation, root, [2]string{"doctorId", "ID!"}, [2]string{"date", "Date!"})
	write := compile(operation, root.Selections, dayObject)
	full := false
	if given := root.Arguments.ForName("includeFull"); given != nil {
		if given.Value.Kind != ast.BooleanValue {
			return nil
		}
		full = given.Value.Raw == "true"
	}
	if names == nil || write == nil {
		return nil
	}
	return func(ctx context.Context, variables map[string]any) (func(*output), bool, error) {
		id, isID := variables[names[0]].(string)
		text, isText := variables[names[1]].(string)
		doctor, badID := UnmarshalDoctorID(id)
		date, badDate := UnmarshalDate(text)
		if !isID || !isText || badID != nil || badDate != nil || len(variables) != 2 {
			return nil, false, nil
		}
		day, err := r.day(ctx, doctor, date, full)
		return func(out *output) { write(out, day) }, true, err
	}
}
