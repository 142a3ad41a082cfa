package graph

import (
	"strings"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"github.com/vektah/gqlparser/v2/ast"

	"openslot/internal/booking"
	"openslot/internal/live"
)

// shape is how updates of availability are written for one selection: as the executor would, without
// it, and once for all who selected the same and are told the same.
type shape struct {
	head  string // up to the update's value
	write writer[live.Update]
}

// What a shape can have. A field that is missing here is for the executor, and so is one that
// takes arguments, or fails, or depends on the viewer.
var updateObject = object[live.Update]{
	name: "SlotUpdate",
	scalars: map[string]writer[live.Update]{
		"kind":     plain(appendWord, func(u *live.Update) live.Kind { return u.Kind }),
		"doctorId": plain(appendID, func(u *live.Update) booking.DoctorID { return u.DoctorID }),
		"from":     scalar(MarshalDate, func(u *live.Update) booking.Date { return u.From }),
		"days":     plain(appendInt, func(u *live.Update) int { return u.Days }),
		"timeZone": scalar(MarshalString, func(u *live.Update) string { return u.TimeZone }),
		"epoch":    plain(appendInt, func(u *live.Update) int64 { return u.Epoch }),
		"asOf":     scalar(orNull(MarshalDateTime), func(u *live.Update) *time.Time { return u.AsOf }),
	},
	objects: map[string]func(*graphql.OperationContext, ast.SelectionSet) writer[live.Update]{
		"slots": many(func(u *live.Update) []booking.Slot { return u.Slots }, slotObject),
	},
}

// payload is an update as the payload of a message.
func (s *shape) payload(u *live.Update) []byte { return u.Encoded(s, s.encode) }

func (s *shape) encode(u *live.Update) []byte {
	var out output
	out.WriteString(s.head)
	s.write(&out, u)
	out.WriteString("}}")
	return out.Bytes()
}

// keptShapes is how many selections are known. Apps have a handful.
const keptShapes = 1000

// shapes are the shapes in use. The same selection has the same shape, however it was written.
type shapes struct {
	mu    sync.Mutex
	known *simplelru.LRU[string, *shape]
}

func newShapes() *shapes {
	lru, err := simplelru.NewLRU[string, *shape](keptShapes, nil)
	if err != nil {
		panic(err) // of a size below 1
	}
	return &shapes{known: lru}
}

// find returns the shape of an operation's updates; nil if there is none and the executor has to
// write them. Nil shapes have none.
func (s *shapes) find(operation *graphql.OperationContext) *shape {
	roots := rootFields(operation, "Subscription")
	if s == nil || len(roots) != 1 || roots[0].Name != "availability" {
		return nil
	}
	root := roots[0]
	var selection strings.Builder
	selection.WriteString(root.Alias)
	if !describe(&selection, operation, root.Selections, updateObject.name) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if known, ok := s.known.Get(selection.String()); ok {
		return known
	}
	write := compile(operation, root.Selections, updateObject)
	if write == nil {
		return nil
	}
	made := &shape{head: `{"data":{"` + root.Alias + `":`, write: write} // names need no escapes
	s.known.Add(selection.String(), made)
	return made
}

// describe writes a selection down with everything resolved that can be written in several ways:
// fragments, directives, variables, repetitions. It reports false where the selection alone does not
// say what is to be written.
func describe(b *strings.Builder, operation *graphql.OperationContext, set ast.SelectionSet, of string) bool {
	b.WriteByte('{')
	for _, f := range graphql.CollectFields(operation, set, []string{of}) {
		if len(f.Deferrables) > 0 || len(f.Arguments) > 0 {
			return false
		}
		b.WriteString(f.Alias + ":" + f.Name)
		if len(f.Selections) > 0 && !describe(b, operation, f.Selections, f.Definition.Type.Name()) {
			return false
		}
		b.WriteByte(' ')
	}
	b.WriteByte('}')
	return true
}
