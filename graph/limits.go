package graph

import (
	"context"
	"encoding/json"
	"math"
	"strconv"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/gqlerror"
	"github.com/vektah/gqlparser/v2/parser"

	"openslot/internal/booking"
)

// What one operation may ask for. The limits leave several times what GraphiQL's introspection and
// the clients in the documentation need.
const (
	maxTokens    = 1000  // in a document; more are not even parsed
	maxFields    = 250   // in a document, as written; validation compares them with each other
	maxDepth     = 10    // fields within fields; introspection, which is data in memory, 15
	maxAliases   = 15    // in an operation
	maxSpreads   = 30    // of fragments, in an operation
	maxName      = 100   // bytes of an alias or operation's name: answers repeat them
	maxCost      = 20000 // fields in the answer, at most
	maxMutations = 1     // each is a transaction and is answered for on its own

	maxIntrospectionDepth = 15
)

// listed is how many elements a list field has at most, where no argument says so.
var listed = map[string]int{
	"DaySlots.slots":                      50,
	"SlotUpdate.slots":                    50,
	"BookAppointmentPayload.alternatives": 5,
}

// limits refuses operations that ask for too much, before anything of them is executed. It looks
// at every fragment once, however often it is spread: walking the spreads as they lie doubles the
// work with each level, so that a document of a kilobyte takes seconds.
type limits struct {
	introspection bool                              // is answered
	known         graphql.Cache[*ast.QueryDocument] // those that passed
}

var _ interface {
	graphql.HandlerExtension
	graphql.OperationParameterMutator
	graphql.OperationContextMutator
} = limits{}

// ExtensionName names the extension.
func (limits) ExtensionName() string { return "Limits" }

// Validate has nothing to check.
func (limits) Validate(graphql.ExecutableSchema) error { return nil }

// MutateOperationParameters changes nothing; it refuses with INVALID documents that would take long to
// validate: the work grows with the square of the fields. It parses what nobody has sent before,
// which the executor does once more; that is the smaller evil.
func (l limits) MutateOperationParameters(ctx context.Context, request *graphql.RawParams) *gqlerror.Error {
	if _, ok := l.known.Get(ctx, request.Query); ok {
		return nil
	}
	document, err := parser.ParseQueryWithTokenLimit(&ast.Source{Input: request.Query}, maxTokens)
	if err != nil {
		return nil // for the executor to say
	}
	fields := 0
	for _, o := range document.Operations {
		fields += countFields(o.SelectionSet)
	}
	for _, f := range document.Fragments {
		fields += countFields(f.SelectionSet)
	}
	if fields > maxFields {
		return tooMuch("A document may have %d fields.", maxFields)
	}
	return nil
}

func countFields(set ast.SelectionSet) (n int) {
	for _, selection := range set {
		switch s := selection.(type) {
		case *ast.Field:
			n += 1 + countFields(s.SelectionSet)
		case *ast.InlineFragment:
			n += 1 + countFields(s.SelectionSet)
		case *ast.FragmentSpread:
			n++
		}
	}
	return n
}

// MutateOperationContext changes nothing; it refuses with INVALID.
func (l limits) MutateOperationContext(_ context.Context, operation *graphql.OperationContext) *gqlerror.Error {
	w := walk{variables: operation.Variables, fragments: map[*ast.FragmentDefinition]extent{}}
	e := w.selections(operation.Operation.SelectionSet)
	kind := operation.Operation.Operation
	root := len(graphql.CollectFields(operation, operation.Operation.SelectionSet, []string{"Mutation", "Subscription"}))
	switch {
	case e.introspection > 0 && !l.introspection:
		return tooMuch("Introspection is off here: the contract is schema.graphqls.")
	case len(operation.Operation.Name) > maxName || w.name > maxName:
		return tooMuch("Names are limited to %d bytes.", maxName)
	case w.aliases > maxAliases:
		return tooMuch("An operation may have %d aliases.", maxAliases)
	case w.spreads > maxSpreads:
		return tooMuch("An operation may spread fragments %d times.", maxSpreads)
	case e.depth > maxDepth || e.introspection > maxIntrospectionDepth:
		return tooMuch("Fields may be nested %d deep.", maxDepth)
	case kind == ast.Subscription && root != 1:
		return tooMuch("A subscription has one field.")
	case kind == ast.Mutation && root > maxMutations:
		return tooMuch("A request may have %d mutation: each is answered for on its own.", maxMutations)
	case e.cost > maxCost:
		return tooMuch("The answer could have more than %d fields. Ask for fewer, or for smaller pages.", maxCost)
	}
	return nil
}

func tooMuch(format string, args ...any) *gqlerror.Error {
	return gqlerror.Wrap(booking.Refuse(booking.Invalid, format, args...))
}

// extent is how much a set of selections asks for.
type extent struct {
	depth, introspection int
	cost                 int
}

func (e *extent) add(f extent) {
	e.depth = max(e.depth, f.depth)
	e.introspection = max(e.introspection, f.introspection)
	e.cost = min(e.cost+f.cost, math.MaxInt32)
}

type walk struct {
	variables map[string]any
	fragments map[*ast.FragmentDefinition]extent
	aliases   int
	spreads   int
	name      int
}

func (w *walk) selections(set ast.SelectionSet) (sum extent) {
	for _, selection := range set {
		switch s := selection.(type) {
		case *ast.Field:
			sum.add(w.field(s))
		case *ast.InlineFragment:
			sum.add(w.selections(s.SelectionSet))
		case *ast.FragmentSpread:
			w.spreads++
			e, seen := w.fragments[s.Definition]
			if !seen {
				e = w.selections(s.Definition.SelectionSet)
				w.fragments[s.Definition] = e
			}
			sum.add(e)
		}
	}
	return sum
}

func (w *walk) field(f *ast.Field) extent {
	if f.Alias != f.Name {
		w.aliases++
	}
	w.name = max(w.name, len(f.Alias))
	e := w.selections(f.SelectionSet)
	switch f.Name {
	case "__schema", "__type":
		return extent{introspection: e.depth + 1, cost: 1}
	case "edges", "nodes": // as many as the connection around them was asked for
		return extent{depth: e.depth + 1, introspection: e.introspection, cost: e.cost + 1}
	}
	e.depth++
	e.cost = min(w.elements(f)*e.cost+1, math.MaxInt32)
	return e
}

// elements is how many times a field's selections may be answered.
func (w *walk) elements(f *ast.Field) int {
	for _, name := range []string{"first", "days"} {
		argument := f.Definition.Arguments.ForName(name)
		if argument == nil {
			continue
		}
		value := argument.DefaultValue
		if given := f.Arguments.ForName(name); given != nil {
			value = given.Value
		}
		if value == nil {
			return 1
		}
		n, err := value.Value(w.variables)
		if err != nil || n == nil {
			return 1
		}
		return whole32(n)
	}
	return max(1, listed[f.ObjectDefinition.Name+"."+f.Name])
}

// whole32 is a number as the parser or JSON has it. What is out of range is for the field to refuse.
func whole32(v any) int {
	var n int64
	switch v := v.(type) {
	case int64:
		n = v
	case json.Number:
		n, _ = strconv.ParseInt(v.String(), 10, 64)
	}
	return int(min(max(n, 1), 1000))
}
