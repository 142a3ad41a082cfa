package graph

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/executor"
	"pgregory.net/rapid"

	"openslot/internal/booking"
	"openslot/internal/live"
)

// told is a resolver whose one subscription tells one update.
type told struct {
	*resolver
	update *live.Update
}

func (r told) Subscription() SubscriptionResolver {
	return toldSubscription{&subscriptionResolver{}, r.update}
}

type toldSubscription struct {
	*subscriptionResolver
	update *live.Update
}

func (r toldSubscription) Availability(context.Context, []ID, booking.Date, *int) (<-chan *live.Update, error) {
	updates := make(chan *live.Update, 1)
	updates <- r.update
	return updates, nil
}

// executed is the payload as the executor has it, and the operation.
func executed(t rapid.TB, query string, variables map[string]any, update *live.Update) (string, *graphql.OperationContext) {
	t.Helper()
	exec := executor.New(NewExecutableSchema(Config{Resolvers: told{&resolver{}, update}}))
	ctx := graphql.StartOperationTrace(context.Background())
	operation, errs := exec.CreateOperationContext(ctx, &graphql.RawParams{Query: query, Variables: variables})
	if errs != nil {
		t.Fatalf("%s: %v", query, errs)
	}
	responses, ctx := exec.DispatchOperation(ctx, operation)
	response := responses(ctx)
	if len(response.Errors) > 0 {
		t.Fatalf("%s: %v", query, response.Errors)
	}
	return string(encode(response)), operation
}

// selector writes random selections: aliases, repetitions, fragments of both kinds within each
// other, and directives with literals and variables.
type selector struct {
	t         *rapid.T
	depth     int
	fragments []string
}

func (s *selector) selection(of string, fields []string) string {
	s.depth++
	defer func() { s.depth-- }()
	var b strings.Builder
	b.WriteString("{")
	for range rapid.IntRange(1, 6).Draw(s.t, "selections") {
		switch kind := rapid.IntRange(0, 9).Draw(s.t, "kind"); {
		case kind == 0 && s.depth < 5:
			on := rapid.SampledFrom([]string{"", "on " + of}).Draw(s.t, "on")
			fmt.Fprintf(&b, " ... %s %s %s", on, s.directives(), s.selection(of, fields))
		case kind == 1 && s.depth < 5:
			body := s.selection(of, fields)
			name := fmt.Sprintf("F%d", len(s.fragments))
			s.fragments = append(s.fragments, fmt.Sprintf(" fragment %s on %s %s", name, of, body))
			for range rapid.IntRange(1, 2).Draw(s.t, "spreads") {
				fmt.Fprintf(&b, " ...%s %s", name, s.directives())
			}
		default:
			field := rapid.SampledFrom(fields).Draw(s.t, "field")
			if rapid.IntRange(0, 3).Draw(s.t, "aliased") == 0 {
				b.WriteString(" " + field + fmt.Sprint(rapid.IntRange(0, 3).Draw(s.t, "alias")) + ":") // one alias, one field: they merge
			}
			fmt.Fprintf(&b, " %s %s", field, s.directives())
			if field == "slots" {
				b.WriteString(s.selection("Slot", keys(slotObject.scalars)))
			}
		}
	}
	return b.String() + " }"
}

func (s *selector) directives() string {
	name := rapid.SampledFrom([]string{"", "", "", "@skip", "@include"}).Draw(s.t, "directive")
	if name == "" {
		return ""
	}
	return name + "(if:" + rapid.SampledFrom([]string{"true", "false", "$yes", "$no"}).Draw(s.t, "if") + ")"
}

func keys[T any](fields map[string]T) []string {
	names := []string{"__typename"}
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names) // for rapid: the same draws, the same document
	return names
}

func anUpdate(t *rapid.T) *live.Update {
	instant := rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMicro(rapid.Int64Range(0, 4e15).Draw(t, "instant")).UTC()
	})
	slot := rapid.Custom(func(t *rapid.T) booking.Slot {
		return booking.Slot{ID: booking.SlotID(rapid.Int64().Draw(t, "id")), DoctorID: booking.DoctorID(rapid.Int64().Draw(t, "doctor")),
			StartAt: instant.Draw(t, "start"), EndAt: instant.Draw(t, "end"), OpensAt: instant.Draw(t, "opens"),
			Capacity: rapid.IntRange(1, 1e6).Draw(t, "capacity"), Booked: rapid.IntRange(0, 1e6).Draw(t, "booked"), Version: rapid.Int64Range(0, 1<<50).Draw(t, "version"),
			Status: rapid.SampledFrom([]booking.SlotStatus{booking.SlotOpen, booking.SlotClosed, booking.SlotWithdrawn}).Draw(t, "status")}
	})
	return &live.Update{Kind: rapid.SampledFrom([]live.Kind{live.Snapshot, live.Delta}).Draw(t, "kind"), DoctorID: 7,
		From: booking.Date{Year: 2030, Month: 2, Day: rapid.IntRange(1, 28).Draw(t, "day")}, Days: rapid.IntRange(1, 31).Draw(t, "days"),
		TimeZone: rapid.SampledFrom([]string{"Europe/Berlin", "Etc/GMT+5", `an "odd" <zone>`}).Draw(t, "zone"), Epoch: rapid.Int64().Draw(t, "epoch"),
		Slots: rapid.SliceOfN(slot, 0, 4).Draw(t, "slots")}
}

// Whatever is selected, and however: a shape writes what the executor writes, byte for byte.
func TestShapeIsTheExecutors(t *testing.T) {
	t.Parallel()
	known := newShapes()
	rapid.Check(t, func(t *rapid.T) {
		s := selector{t: t}
		root := rapid.SampledFrom([]string{"", "a:", "availability:", "_0:"}).Draw(t, "root")
		body := s.selection("SlotUpdate", append(keys(updateObject.scalars), "slots"))
		query := `subscription($yes:Boolean!,$no:Boolean=false){` + root + `availability(doctorIds:[7],from:"2030-02-01")` + body + `}` + strings.Join(s.fragments, "")
		variables := map[string]any{"yes": true}
		if rapid.Bool().Draw(t, "given") {
			variables["no"] = rapid.Bool().Draw(t, "no")
		}
		query = strings.Replace(query, "){", "){ ", 1)
		if !strings.Contains(body+strings.Join(s.fragments, ""), "$yes") { // a variable that nobody uses is an error
			query = strings.Replace(query, "$yes:Boolean!,", "", 1)
		}
		if !strings.Contains(body+strings.Join(s.fragments, ""), "$no") {
			query = strings.Replace(strings.Replace(query, "$no:Boolean=false", "", 1), "subscription()", "subscription", 1)
		}
		update := anUpdate(t)
		want, operation := executed(t, query, variables, update)
		p := known.find(operation)
		if p == nil {
			t.Fatalf("no shape for %s", query)
		}
		if got := string(p.payload(update)); got != want {
			t.Fatalf("%s\n  shape:    %s\n  executor: %s", query, got, want)
		}
		if known.find(operation) != p {
			t.Fatal("the same selection has two shapes")
		}
	})
}

// Shapes know every field there is; a new one would go the slow way unnoticed.
func TestShapesKnowAllFields(t *testing.T) {
	t.Parallel()
	types := NewExecutableSchema(Config{}).Schema().Types
	for _, f := range types["SlotUpdate"].Fields {
		if updateObject.scalars[f.Name] == nil && updateObject.objects[f.Name] == nil {
			t.Errorf("no shape can write SlotUpdate.%s", f.Name)
		}
	}
	for _, f := range types["Slot"].Fields {
		if slotObject.scalars[f.Name] == nil {
			t.Errorf("no shape can write Slot.%s", f.Name)
		}
	}
}

// What is the same selection shares a shape, however it is written; what isn't doesn't.
func TestShapesAreShared(t *testing.T) {
	t.Parallel()
	known := newShapes()
	shape := func(body string) *shape {
		_, operation := executed(t, "subscription S($t:Boolean=true){"+body, nil, &live.Update{})
		return known.find(operation)
	}
	const use = ` @include(if:$t)`
	first := shape(`availability(doctorIds:[1],from:"2030-01-01"){kind` + use + ` slots{id free}}}`)
	for body, same := range map[string]bool{
		`availability(doctorIds:[2],from:"2031-01-01",days:3){...F` + use + `} } fragment F on SlotUpdate{kind slots{id} slots{... on Slot{free id}} epoch @skip(if:$t)}`: true,
		`availability(doctorIds:[1],from:"2030-01-01"){kind:kind` + use + ` kind slots{id free version @skip(if:true)}}}`:                                                 true,
		`availability(doctorIds:[1],from:"2030-01-01"){slots{id free} kind` + use + `}}`:                                                                                  false,
		`availability(doctorIds:[1],from:"2030-01-01"){kind slots{id free} x:epoch` + use + `}}`:                                                                          false,
		`a:availability(doctorIds:[1],from:"2030-01-01"){kind` + use + ` slots{id free}}}`:                                                                                false,
		`availability(doctorIds:[1],from:"2030-01-01"){kind` + use + ` slots{id:free free:id}}}`:                                                                          false,
	} {
		if p := shape(body); p == nil || (p == first) != same {
			t.Errorf("%s: shares %t, want %t", body, p == first, same)
		}
	}
	if p := shape(`availability(doctorIds:[1],from:"2030-01-01"){kind` + use + ` ...@defer{epoch}}}`); p != nil {
		t.Error("a shape can't defer")
	}
}

// Both roads tell a screen the same: with a shape, and where there is none.
func TestBothRoads(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]bool{"shape": false, "executor": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			if off {
				w.handler.sockets.shapes = nil
			}
			slot := w.slot(w.northDoctor, noon(2), 9)
			variables := vars{"d": []string{id(w.northDoctor), id(w.southDoctor)}, "day": noon(2).Format(time.DateOnly)}
			c, d := w.connect(""), w.connect(w.patient("p"))
			c.subscribe("1", watching, variables)
			c.subscribe("2", "subscription($d:[ID!]!,$day:Date!){x:availability(doctorIds:$d,from:$day){kind doctorId slots{version}}}", variables)
			d.subscribe(`odd "id"`, watching, variables)
			for _, client := range []*client{c, d} {
				ids := map[string]int{}
				for range map[bool]int{true: 4, false: 2}[client == c] { // a snapshot per doctor and operation
					m, err := client.read()
					if err != nil || m.Type != "next" || !strings.Contains(string(m.Payload), "SNAPSHOT") {
						t.Fatal(m, err)
					}
					ids[m.ID]++
				}
				for id, n := range ids {
					if n != 2 {
						t.Errorf("%d snapshots for %q", n, id)
					}
				}
			}
			for n := 1; n <= 3; n++ {
				sql[int](w, `UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1 RETURNING 1`, slot)
				want := map[string]string{
					"1": fmt.Sprintf(`{"data":{"availability":{"kind":"DELTA","slots":[{"id":"%d","free":%d,"version":%d}]}}}`, slot, 9-n, n),
					"2": fmt.Sprintf(`{"data":{"x":{"kind":"DELTA","doctorId":"%d","slots":[{"version":%d}]}}}`, w.northDoctor, n),
				}
				for range 2 {
					m, err := c.read()
					if err != nil || m.Type != "next" || string(m.Payload) != want[m.ID] {
						t.Fatalf("%s %s %v, want %s", m.ID, m.Payload, err, want[m.ID])
					}
				}
				if got := string(d.expect("next", `odd "id"`)); got != want["1"] {
					t.Errorf("%s, want %s", got, want["1"])
				}
			}
		})
	}
}
