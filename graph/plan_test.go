package graph

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
)

// bookings are calls whose outcome does not depend on how often they are made before.
func bookings(w *world) map[string]struct {
	token string
	input vars
} {
	w.t.Helper()
	won, full, late := w.slot(w.northDoctor, noon(1), 9), w.slot(w.northDoctor, noon(2), 1), w.slot(w.southDoctor, noon(1), 9)
	w.slot(w.northDoctor, noon(3), 1) // an alternative
	ada, ben := w.patient("ada"), w.patient("ben")
	get[payload](w, ada, book, vars{"s": id(won), "k": "won"})
	get[payload](w, ada, book, vars{"s": id(full), "k": "full"})
	kept := w.slot(w.northDoctor, noon(4), 9)
	w.slot(w.northDoctor, noon(5), 1)
	w.slot(w.northDoctor, noon(6), 1)
	get[holdPayload](w, ben, holdSlot, vars{"s": id(kept), "k": "held", "r": "R-1"})
	gone := get[payload](w, ben, book, vars{"s": id(won), "k": "gone"})
	get[payload](w, ben, cancel, vars{"a": gone.Appointment.ID, "r": "\"no\" <time>\n"})
	moves := get[payload](w, ben, book, vars{"s": id(kept + 1), "k": "moves"})
	get[payload](w, ben, move, vars{"a": moves.Appointment.ID, "s": id(kept + 2), "k": "moved"})
	return map[string]struct {
		token string
		input vars
	}{
		"replay of what moved": {ben, vars{"slotId": id(kept + 1), "idempotencyKey": "moves"}},
		"replay of a move":     {ben, vars{"slotId": id(kept + 2), "idempotencyKey": "moved"}},
		"replay":               {ada, vars{"slotId": id(won), "idempotencyKey": "won"}},
		"replay of cancelled":  {ben, vars{"slotId": id(won), "idempotencyKey": "gone"}},
		"already held":         {ben, vars{"slotId": id(kept), "idempotencyKey": "twice", "referralId": "R-1"}},
		"referral in use":      {ada, vars{"slotId": id(kept), "idempotencyKey": "second", "referralId": " R-1 "}},
		"referral too long":    {ada, vars{"slotId": id(kept), "idempotencyKey": "second", "referralId": strings.Repeat("r", 65)}},
		"referral null":        {ada, vars{"slotId": id(won), "idempotencyKey": "won", "referralId": nil}},
		"referral blank":       {ada, vars{"slotId": id(won), "idempotencyKey": "won", "referralId": " "}},
		"overlap by a patient": {ada, vars{"slotId": id(late), "idempotencyKey": "elsewhere", "overlapReason": "please"}},
		"full":                 {ben, vars{"slotId": id(full), "idempotencyKey": "late"}},
		"already booked":       {ada, vars{"slotId": id(won), "idempotencyKey": "twice"}},
		"overlap":              {ada, vars{"slotId": id(late), "idempotencyKey": "elsewhere"}},
		"key reused":           {ada, vars{"slotId": id(full), "idempotencyKey": "won"}},
		"no such slot":         {ada, vars{"slotId": "4711", "idempotencyKey": "nowhere"}},
		"nobody":               {"", vars{"slotId": id(won), "idempotencyKey": "nobody"}},
		"staff, no patient":    {w.staff(), vars{"slotId": id(won), "idempotencyKey": "desk"}},
		"staff, wrong patient": {w.staff(), vars{"slotId": id(won), "patientId": "4711", "idempotencyKey": "desk"}},
		"key too long":         {ada, vars{"slotId": id(won), "idempotencyKey": strings.Repeat("k", 65)}},
		"key missing":          {ada, vars{"slotId": id(won)}},
		"not an id":            {ada, vars{"slotId": "01", "idempotencyKey": "k"}},
		"a number":             {ada, vars{"slotId": won, "idempotencyKey": "won"}},
		"patient null":         {ada, vars{"slotId": id(won), "patientId": nil, "idempotencyKey": "won"}},
		"more than asked for":  {ada, vars{"slotId": id(won), "idempotencyKey": "won", "slotid": "1"}},
	}
}

// planned reports whether a document has a plan.
func (w *world) planned(query string) bool {
	return w.handler.plans.find(&graphql.RawParams{Query: query}) != nil
}

// both asks without a plan and then, where there is one, with it, compares the answers, and reports
// whether there was one.
func (w *world) both(token, query string, variables vars) (planned bool) {
	w.t.Helper()
	w.handler.plans.known.Purge()
	want := w.ask(token, query, variables)
	planned = w.planned(query)
	got := w.ask(token, query, variables)
	if got.Body != want.Body || got.Status != want.Status {
		w.t.Errorf("%s %v\n%d %s, the executor\n%d %s", query, variables, got.Status, got.Body, want.Status, want.Body)
	}
	for header, values := range want.Header {
		if header != "Date" && !slices.Equal(got.Header[header], values) {
			w.t.Errorf("%s %v: %s %q, the executor %q", query, variables, header, got.Header[header], values)
		}
	}
	return planned
}

// A plan's answer has the bytes of the executor, whatever is selected and whatever the outcome is.
func TestPlanBytes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	plans := 0
	count := func(planned bool) {
		if planned {
			plans++
		}
	}
	calls := bookings(w)
	for seed := range uint64(40) {
		s := &selection{dice: rand.New(rand.NewPCG(seed, 1))}
		alias := []string{"", "alias: "}[seed%2]
		query := fmt.Sprintf("mutation Book($in: BookAppointmentInput!) { %sbookAppointment(input: $in)%s } %s",
			alias, s.of("BookAppointmentPayload"), strings.Join(s.fragments, " "))
		for _, call := range calls {
			count(w.both(call.token, query, vars{"in": call.input}))
		}

		s = &selection{dice: rand.New(rand.NewPCG(seed, 2))}
		query = fmt.Sprintf("query ($d: ID!, $on: Date!) { %sslots(date: $on, doctorId: $d%s)%s } %s",
			alias, []string{"", ", includeFull: true", ", includeFull: false"}[seed%3], s.of("DaySlots"), strings.Join(s.fragments, " "))
		day := noon(1).Format(time.DateOnly)
		for _, variables := range []vars{
			{"d": id(w.northDoctor), "on": day}, {"d": id(w.northDoctor), "on": "2026-02-30"}, {"d": "4711", "on": day},
			{"d": w.northDoctor, "on": day}, {"d": nil, "on": day}, {"d": id(w.northDoctor)}, {"d": id(w.northDoctor), "on": day, "more": 1},
		} {
			count(w.both("", query, variables))
		}
	}
	if plans < 200 {
		t.Errorf("only %d calls had a plan", plans)
	}
}

const planned = `mutation Book($in: BookAppointmentInput!) { bookAppointment(input: $in) { appointment { id } replayed errors { code } } }`

// If plans were not used, the test above would prove nothing: one that was tampered with shows.
func TestPlanIsUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot, token := w.slot(w.northDoctor, noon(1), 9), w.patient("ada")
	variables := vars{"in": vars{"slotId": id(slot), "idempotencyKey": "k"}}
	w.ask(token, planned, variables)
	known := w.handler.plans.find(&graphql.RawParams{Query: planned})
	if known == nil {
		t.Fatal("no plan")
	}
	known.call = func(context.Context, map[string]any) (func(*output), bool, error) {
		return func(out *output) { out.WriteString("1") }, true, nil
	}
	if a := w.ask(token, planned, variables); a.Body != `{"data":{"bookAppointment":1}}` {
		t.Errorf("the plan is not used: %s", a.Body)
	}
}

// Which documents have a plan, and which operation of them it is for.
func TestPlanned(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot, token := w.slot(w.northDoctor, noon(1), 9), w.patient("ada")
	variables := vars{"in": vars{"slotId": id(slot), "idempotencyKey": "k"}, "s": id(slot), "yes": true, "d": id(w.northDoctor), "on": "2026-12-24"}
	for query, want := range map[string]bool{
		planned: true,
		`mutation ($in: BookAppointmentInput!) { bookAppointment(input: $in) { __typename alternatives { id } } }`:                          true,
		`query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { asOf slots { id free } } }`:                                         true,
		`query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { asOf } doctors { nodes { id } } }`:                                  false,
		`query ($d: ID!, $on: Date!, $yes: Boolean!) { slots(doctorId: $d, date: $on, includeFull: $yes) { asOf } }`:                        false,
		`mutation ($in: BookAppointmentInput!) { bookAppointment(input: $in) { appointment { patient { id } } } }`:                          false,
		`mutation ($in: BookAppointmentInput!, $yes: Boolean!) { bookAppointment(input: $in) { replayed @include(if: $yes) } }`:             false,
		`mutation ($in: HoldSlotInput!) { holdSlot(input: $in) { appointment { id } } }`:                                                    false,
		`mutation ($s: ID!) { bookAppointment(input: {slotId: $s, idempotencyKey: "k"}) { replayed } }`:                                     false,
		`mutation ($in: BookAppointmentInput!) { __typename bookAppointment(input: $in) { replayed } }`:                                     false,
		`mutation ($in: BookAppointmentInput = {slotId: "1", idempotencyKey: "d"}) { bookAppointment(input: $in) { replayed } }`:            false,
		`mutation A($in: BookAppointmentInput!) { bookAppointment(input: $in) { replayed } } query B { doctors { nodes { id } } }`:          false,
		`mutation ($in: BookAppointmentInput!) { bookAppointment(input: $in) { appointment { createdAt } appointment { slot { free } } } }`: false,
	} {
		for range 3 {
			w.ask(token, query, variables)
		}
		if got := w.planned(query); got != want {
			t.Errorf("%s: planned is %v", query, got)
		}
	}

	body := func(name string) string {
		text, err := json.Marshal(map[string]any{"query": planned, "operationName": name, "variables": variables})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, want := range map[string]string{"Book": "", "Other": "INVALID"} {
		got := w.send(http.MethodPost, w.url, body(name), "Content-Type: application/json", "Authorization: Bearer "+token)
		if got.code() != want {
			t.Errorf("the operation %s: %s", name, got.Body)
		}
	}
}
