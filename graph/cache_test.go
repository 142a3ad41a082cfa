package graph

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/lru"
	"github.com/99designs/gqlgen/graphql/handler/transport"
	"github.com/vektah/gqlparser/v2/ast"

	"openslot/internal/availability"
	"openslot/internal/live"
)

// keeping puts a second API in front of the world, on the same parts, which keeps lists and
// answers; plain is the address of the first, which keeps nothing.
func keeping(t testing.TB) (w *world, lists *availability.Cache, plain string) {
	t.Helper()
	var parts Parts
	w = newWorld(t, func(p *Parts) { parts = *p })
	plain = w.url
	listener := &live.Listener{URL: w.db.URL, Log: parts.Log}
	lists = availability.NewCache(nil, listener.CaughtUp)
	listener.Consumers = []live.Consumer{{Resync: lists.Resync, Changed: lists.Changed, Stale: lists.Stale}}
	parts.Availability = availability.New(w.db.Pool, availability.Config{Cache: lists})
	parts.KeepResponses = true
	w.handler = New(parts)
	server := httptest.NewServer(w.handler)
	w.url = server.URL + "/graphql"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- listener.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.Close()
	})
	await(t, "the feed lives", listener.Alive)
	return w, lists, plain
}

// post sends a body to an address.
func (w *world) post(url string, body any, headers ...string) answer {
	w.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		w.t.Fatal(err)
	}
	return w.send(http.MethodPost, url, string(text), append(headers, "Content-Type: application/json")...)
}

// keeps reports whether there is an answer kept for a body.
func (w *world) keeps(body any) bool { return w.kept(body) != nil }

// kept is the answer kept for a body, or nil.
func (w *world) kept(body any) *kept {
	text, _ := json.Marshal(body)
	return w.handler.responses.find(w.handler.responses.question(http.MethodPost, mediaJSON, text))
}

// selection writes a random selection of public fields, in every form that GraphQL has for one.
type selection struct {
	dice      *rand.Rand
	fragments []string
	aliases   int
}

var selectable = map[string][]string{
	"DaySlots":         {"date", "timeZone", "slots Slot"},
	"Slot":             {"id", "doctorId", "startAt", "endAt", "opensAt", "capacity", "free", "status", "version"},
	"DaySummary":       {"date", "free", "capacity", "firstFree"},
	"Doctor":           {"id", "name", "specialty", "timeZone", "organization Organization"},
	"Organization":     {"id", "name", "timeZone"},
	"DoctorConnection": {"nodes Doctor", "edges DoctorEdge", "pageInfo PageInfo"},
	"DoctorEdge":       {"cursor", "node Doctor"},
	"PageInfo":         {"hasNextPage", "startCursor"},

	"BookAppointmentPayload": {"appointment Appointment", "replayed", "errors Refusal", "alternatives Slot"},
	"Appointment":            {"id", "status", "startAt", "endAt", "createdAt", "cancelledAt", "cancelReason", "replaces", "replacedBy", "slot Slot"},
	"Refusal":                {"code", "message", "retryAfter"},
}

func (s *selection) of(kind string) string {
	fields := slices.Clone(selectable[kind])
	s.dice.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	var parts []string
	for _, field := range fields[:1+s.dice.IntN(len(fields))] {
		name, below, _ := strings.Cut(field, " ")
		text := name
		if s.dice.IntN(6) == 0 && s.aliases < 8 {
			s.aliases++
			text = fmt.Sprintf("a%d: %s", s.dice.IntN(100), name)
		}
		if s.dice.IntN(6) == 0 {
			text += []string{" @include(if: $yes)", " @skip(if: $yes)", " @include(if: false)"}[s.dice.IntN(3)]
		}
		if below != "" {
			text += s.of(below)
		}
		switch s.dice.IntN(6) {
		case 0:
			text = "... on " + kind + " { " + text + " }"
		case 1:
			s.fragments = append(s.fragments, fmt.Sprintf("fragment f%d on %s { %s }", len(s.fragments), kind, text))
			text = fmt.Sprintf("...f%d", len(s.fragments)-1)
		}
		parts = append(parts, text)
	}
	return " { " + strings.Join(append(parts, "__typename"), " ") + " }"
}

// document asks for some public fields.
func (s *selection) document() string {
	roots := []string{
		"slots(doctorId: $doctor, date: $date, includeFull: $yes)" + s.of("DaySlots"),
		"days(doctorId: $doctor, from: $date, days: 3)" + s.of("DaySummary"),
		"doctor(id: $doctor)" + s.of("Doctor"),
		"doctors(first: 2)" + s.of("DoctorConnection"),
	}
	s.dice.Shuffle(len(roots), func(i, j int) { roots[i], roots[j] = roots[j], roots[i] })
	roots = roots[:1+s.dice.IntN(3)]
	text := " { " + strings.Join(roots, " ") + " }"
	for i, fragment := range s.fragments {
		if strings.Contains(text+strings.Join(s.fragments[i+1:], ""), fmt.Sprintf("...f%d", i)) { // else it is not used
			text += " " + fragment
		}
	}
	var variables []string
	for name, kind := range map[string]string{"$doctor": "ID!", "$date": "Date!", "$yes": "Boolean!"} {
		if strings.Contains(text, name) {
			variables = append(variables, name+": "+kind)
		}
	}
	if len(variables) > 0 {
		return "query (" + strings.Join(variables, ", ") + ")" + text
	}
	return text
}

// What is kept has the bytes of the executor, on random selections, for every caller, and comes
// without a question to the database.
func TestKeptBytes(t *testing.T) {
	t.Parallel()
	w, _, plain := keeping(t)
	for n := range 5 {
		w.slot(w.northDoctor, noon(1).Add(time.Duration(n)*time.Hour), 1+n)
	}
	token, kept := w.patient("p"), 0
	w.post(w.url, map[string]any{"query": "{ me { role } }"}, "Authorization: Bearer "+token) // makes the patient's row
	for seed := range uint64(60) {
		s := &selection{dice: rand.New(rand.NewPCG(seed, 0))}
		body := map[string]any{"query": s.document(), "variables": vars{"doctor": w.northDoctor, "date": noon(1).Format(time.DateOnly), "yes": seed%3 > 0}}
		want := w.post(plain, body)
		if len(want.Errors) > 0 { // two different fields under one name
			continue
		}
		first := w.post(w.url, body)
		w.trace.take()
		again, asPatient := w.post(w.url, body), w.post(w.url, body, "Authorization: Bearer "+token)
		if asked := w.trace.take(); len(asked) > 0 {
			t.Errorf("%s was executed again: %q", body["query"], asked)
		}
		kept++
		for what, got := range map[string]answer{"the first answer": first, "the kept one": again, "the patient's": asPatient} {
			if got.Body != want.Body || got.Status != want.Status {
				t.Errorf("%s to %s\n%s, the executor's\n%s", what, body["query"], got.Body, want.Body)
			}
			for name, values := range want.Header {
				if name != "Date" && !slices.Equal(got.Header[name], values) {
					t.Errorf("%s has %s %q, the executor's %q", what, name, got.Header[name], values)
				}
			}
		}
	}
	if kept < 40 {
		t.Errorf("only %d documents made sense", kept)
	}
}

// An answer goes when something in it changes.
func TestKeptUntilChanged(t *testing.T) {
	t.Parallel()
	w, _, plain := keeping(t)
	slot := w.slot(w.northDoctor, noon(1), 50)
	body := map[string]any{"query": fmt.Sprintf(`{ slots(doctorId: %d, date: "%s") { slots { free version } } days(doctorId: %d, from: "%s") { free } }`,
		w.northDoctor, noon(1).Format(time.DateOnly), w.northDoctor, noon(1).Format(time.DateOnly))}
	for n := range 20 {
		w.post(w.url, body)
		await(t, "the answer is kept", func() bool { w.post(w.url, body); return w.keeps(body) })
		sql[int64](w, `UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1 RETURNING version`, slot)
		want := w.post(plain, body).Body
		if !strings.Contains(want, fmt.Sprintf(`"free":%d`, 49-n)) {
			t.Fatal(want)
		}
		await(t, "the change shows", func() bool { return w.post(w.url, body).Body == want })
	}
}

// An answer whose lists were found to be as they were is not made again, and has the bytes of the
// executor all the same, with the moment of which it now is. A change makes an end of it.
func TestKeptRenewed(t *testing.T) {
	t.Parallel()
	w, _, _ := keeping(t)
	slot := w.slot(w.northDoctor, noon(1), 50)
	for n := range 4 {
		w.slot(w.northDoctor, noon(1).Add(time.Duration(1+n)*time.Hour), 1+n)
	}
	parts := w.handler.plans.resolver.Parts
	parts.KeepResponses = false
	plain := New(parts) // on the same lists
	executor := httptest.NewServer(plain)
	defer executor.Close()
	execute := func(body any) answer {
		plain.plans.known.Purge()
		return w.post(executor.URL, body)
	}
	type asked struct {
		body  any
		first *kept
	}
	var all []asked
	for seed := range uint64(60) {
		s := &selection{dice: rand.New(rand.NewPCG(seed, 3))}
		of := s.of("DaySlots")
		asOf := []string{" asOf", " then: asOf", "", " asOf slots { asOf: free }", " a: asOf b: asOf"}[seed/2%5]
		if seed%2 == 0 {
			of = " {" + asOf + strings.TrimPrefix(of, " {")
		} else {
			of = strings.TrimSuffix(of, " }") + asOf + " }"
		}
		query := "query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on, includeFull: true)" + of + " } " + strings.Join(s.fragments, " ")
		body := map[string]any{"query": query, "variables": vars{"d": id(w.northDoctor), "on": noon(1).Format(time.DateOnly)}}
		if a := w.post(w.url, body); len(a.Errors) > 0 || !w.planned(query) {
			continue
		}
		all = append(all, asked{body: body})
	}
	w.handler.responses.purge() // those were the executor's: the next are the plans'
	for i := range all {
		w.post(w.url, all[i].body)
		k := *w.kept(all[i].body)
		if at := k.asOf; at.to > 0 && i%2 == 0 { // moments are not all of the same length
			k.body = slices.Concat(k.body[:at.from], []byte("0"), k.body[at.to:])
			k.asOf.to, k.length = at.from+1, strconv.Itoa(len(k.body))
			w.handler.responses.keep(&k)
		}
		all[i].first = &k
	}
	await(t, "all are old", func() bool {
		return !slices.ContainsFunc(all, func(a asked) bool { return a.first.trace.Good() })
	})
	w.trace.take()
	renewed := 0
	for _, a := range all {
		var got, want answer
		for range 3 { // the list may be renewed in between
			if got, want = w.post(w.url, a.body), execute(a.body); got.Body == want.Body {
				break
			}
		}
		if got.Body != want.Body || got.Status != want.Status {
			t.Errorf("%s\nrenewed  %s\nexecuted %s", a.body, got.Body, want.Body)
		}
		for name, values := range want.Header {
			if name != "Date" && !slices.Equal(got.Header[name], values) {
				t.Errorf("renewed it has %s %q, the executor's %q", name, got.Header[name], values)
			}
		}
		if k := w.kept(a.body); k != nil && &k.body[0] == &a.first.body[0] {
			renewed++
		} else if a.first.renewable {
			t.Errorf("made again: %s", a.body)
		}
	}
	if queries := w.trace.take(); len(queries) > 0 {
		t.Errorf("the database was asked: %q", queries)
	}
	if renewed < 10 || renewed == len(all) {
		t.Errorf("%d of %d were renewed: this proves little", renewed, len(all))
	}
	sql[int64](w, `UPDATE time_slot SET booked_count = 41 WHERE id = $1 RETURNING version`, slot)
	await(t, "the feed tells of it", func() bool { _, _, same := all[0].first.trace.Renewed(); return !same })
	for _, a := range all {
		await(t, "the change shows", func() bool { return w.post(w.url, a.body).Body == execute(a.body).Body })
		if k := w.kept(a.body); k != nil && &k.body[0] == &a.first.body[0] {
			t.Errorf("renewed in spite of a change: %s", a.body)
		}
	}
}

// What depends on the viewer, failed, or changes something is never kept, and what is kept is only
// for those who would have got it.
func TestNotKept(t *testing.T) {
	t.Parallel()
	w, _, _ := keeping(t)
	slot := w.slot(w.northDoctor, noon(1), 50)
	token := w.patient("p")
	for name, query := range map[string]string{
		"viewer":             `{ me { role } }`,
		"viewer and public":  `{ me { role } doctors { nodes { id } } }`,
		"viewer in fragment": `{ ...f } fragment f on Query { doctors { nodes { id } } me { role } }`,
		"own":                `{ myAppointments { nodes { id } } }`,
		"one of their own":   `{ appointment(id: 1) { id } }`,
		"refused":            `{ doctors(first: 0) { nodes { id } } }`,
		"refused beside":     `{ doctor(id: 1) { id } days(doctorId: 4711, from: "2026-10-05") { free } }`,
		"malformed":          `{`,
		"unknown":            `{ nothing }`,
		"mutation":           fmt.Sprintf(`mutation { bookAppointment(input: {slotId: %d, idempotencyKey: "k"}) { replayed } }`, slot),
		"mutation's own":     `mutation { __typename }`,
		"introspection":      `{ __schema { queryType { name } } }`,
	} {
		for range 3 {
			w.ask(token, query, nil)
		}
		if w.keeps(map[string]any{"query": query, "variables": nil}) {
			t.Errorf("%s is kept", name)
		}
	}

	body := map[string]any{"query": `{ doctors { nodes { name } } }`}
	w.post(w.url, body)
	if !w.keeps(body) {
		t.Fatal("a public answer is not kept: the above proves nothing")
	}
	if a := w.post(w.url, body, "Authorization: Bearer nonsense"); a.Status != http.StatusUnauthorized {
		t.Errorf("with a bad token: %d %s", a.Status, a.Body)
	}
	if a := w.post(w.url, body, "Accept: "+mediaResponse); !strings.HasPrefix(a.Header.Get("Content-Type"), mediaResponse) {
		t.Errorf("in the other form: %s", a.Header.Get("Content-Type"))
	}
	text, _ := json.Marshal(body)
	for what, headers := range map[string][]string{"text/plain": {"Content-Type: text/plain"}, "text/html": {"Content-Type: application/json", "Accept: text/html"}} {
		if a := w.send(http.MethodPost, w.url, string(text), headers...); a.Status < 400 {
			t.Errorf("%s: %d", what, a.Status)
		}
	}
	if w.handler.responses.find(w.handler.responses.question(http.MethodGet, mediaJSON, text)) != nil {
		t.Error("the body as a URL has the answer")
	}
	get[any](w, w.staff(), `mutation { createDoctor(input: {name: "Dr. New"}) { doctor { id } } }`, nil)
	if a := w.post(w.url, body); !strings.Contains(a.Body, "Dr. New") {
		t.Errorf("whoever adds a doctor does not see them: %s", a.Body)
	}
	body = map[string]any{"query": fmt.Sprintf(`{ doctor(id: %d) { organization { bookingRules { holdMinutes } } } }`, w.northDoctor)}
	w.post(w.url, body)
	if !w.keeps(body) {
		t.Fatal("the rules of a practice are not kept: what follows proves nothing")
	}
	get[any](w, w.staff(), `mutation { updateBookingRules(input: {holdMinutes: 7}) { organization { id } } }`, nil)
	if a := w.post(w.url, body); !strings.Contains(a.Body, `"holdMinutes":7`) {
		t.Errorf("whoever changes the rules reads the old ones: %s", a.Body)
	}
}

// Without lists from a cache nothing tells when an answer has become old.
func TestNotKeptWithoutLists(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.KeepResponses = true })
	body := map[string]any{"query": fmt.Sprintf(`{ slots(doctorId: %d, date: "2026-10-05") { date } }`, w.northDoctor)}
	w.post(w.url, body)
	if w.keeps(body) {
		t.Error("it is kept")
	}
}

// Memory is bounded, and what was used last stays.
func TestKeptBounds(t *testing.T) {
	t.Parallel()
	r := newResponses()
	_, trace := availability.WithTrace(t.Context())
	add := func(n, size int) *kept {
		k := &kept{question: r.question("POST", mediaJSON, fmt.Append(nil, n)), trace: trace, body: make([]byte, size)}
		r.keep(k)
		return k
	}
	first := add(0, 100)
	for n := range 2 * keptBytesMost / keptMax {
		add(1+n, keptMax-100)
		add(1+n, keptMax-100) // again, as after a change
		if r.find(first.question) == nil {
			t.Fatalf("after %d: what is asked for all the time is gone", n)
		}
	}
	if r.bytes > keptBytesMost || r.bytes < keptBytesMost/2 {
		t.Errorf("%d bytes are kept, want up to %d", r.bytes, keptBytesMost)
	}
	if k := add(-1, keptMax); r.find(k.question) != nil {
		t.Error("a huge answer is kept")
	}
	for n := range 2 * keptMost {
		add(n, 1)
	}
	if r.kept.Len() > keptMost {
		t.Errorf("%d answers are kept", r.kept.Len())
	}
	if other := r.question("POST", mediaJSON, []byte("other")); r.find(question{other.method, other.media, other.text, first.hash}) != nil {
		t.Error("another request with the same hash gets the answer")
	}
	r.purge()
	if r.bytes != 0 || r.kept.Len() != 0 {
		t.Errorf("%d bytes after all", r.bytes)
	}
}

// GET has entity tags: the same for as long as the data are, whenever they were read.
func TestETag(t *testing.T) {
	t.Parallel()
	w, lists, _ := keeping(t)
	slot := w.slot(w.northDoctor, noon(1), 5)
	address := func(query string) string {
		return w.url + "?" + url.Values{"query": {fmt.Sprintf(query, w.northDoctor, noon(1).Format(time.DateOnly))}}.Encode()
	}
	for name, query := range map[string]string{
		"asOf":       `{ slots(doctorId: %d, date: "%s") { asOf slots { id free } } }`,
		"alias":      `{ a: slots(doctorId: %d, date: "%s") { slots { asOf: free } then: asOf } }`,
		"fragment":   `query { ...q } fragment q on Query { slots(doctorId: %d, date: "%s") { ...d slots { free } } } fragment d on DaySlots { x: asOf asOf }`,
		"misleading": `{ slots(doctorId: %d, date: "%s") { slots { asOf: free } } }`,
	} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			at := address(query)
			a := w.send(http.MethodGet, at, "")
			tag := a.Header.Get("ETag")
			if a.Status != http.StatusOK || !strings.HasPrefix(tag, `W/"`) || a.Header.Get("Cache-Control") != "no-cache" {
				t.Fatalf("%d %+v", a.Status, a.Header)
			}
			for _, header := range []string{tag, strings.TrimPrefix(tag, "W/"), `"x", ` + tag, "*"} {
				b := w.send(http.MethodGet, at, "", "If-None-Match: "+header)
				if b.Status != http.StatusNotModified || b.Body != "" || b.Header.Get("ETag") != tag || !slices.Contains(b.Header.Values("Vary"), "Authorization") {
					t.Errorf("If-None-Match: %s: %d %q %+v", header, b.Status, b.Body, b.Header)
				}
			}
			b := w.send(http.MethodGet, at, "", `If-None-Match: "x"`, "Authorization: Bearer "+w.patient("p"))
			if b.Status != http.StatusOK || b.Header.Get("ETag") != tag || b.Header.Get("Cache-Control") != "private, no-cache" {
				t.Errorf("with a token: %d %q %+v", b.Status, b.Body, b.Header)
			}
			w.handler.responses.purge()
			lists.Stale(w.northDoctor, time.Now()) // read again, it has not changed
			if c := w.send(http.MethodGet, at, ""); c.Header.Get("ETag") != tag || name == "asOf" && c.Body == a.Body {
				t.Errorf("read again: %s instead of %s for\n%s, before\n%s", c.Header.Get("ETag"), tag, c.Body, a.Body)
			}
			sql[int64](&w, `UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1 RETURNING version`, slot)
			await(t, "a change changes it", func() bool {
				return w.send(http.MethodGet, at, "", "If-None-Match: "+tag).Status == http.StatusOK
			})
		})
	}
	for _, query := range []string{`{ me { role } }`, `{ doctors(first: 0) { nodes { id } } }`} {
		a := w.send(http.MethodGet, w.url+"?"+url.Values{"query": {query}}.Encode(), "", "If-None-Match: *")
		if a.Header.Get("ETag") != "" || a.Header.Get("Cache-Control") != "no-store" || a.Status == http.StatusNotModified {
			t.Errorf("%s: %d %+v", query, a.Status, a.Header)
		}
	}
}

func TestWithout(t *testing.T) {
	t.Parallel()
	const data = `{"a":{"x":"1,}\"","y":[{"x":2}],"z":null},"b":{"x":3},"c":null,"x":4}`
	for _, tt := range []struct {
		keys map[string][]string
		same string // data from which the same remains
		want bool
	}{
		{map[string][]string{"a": {"x"}}, `{"a":{"x":"other","y":[{"x":2}],"z":null},"b":{"x":3},"c":null,"x":4}`, true},
		{map[string][]string{"a": {"x"}}, `{"a":{"x":"1,}\"","y":[{"x":5}],"z":null},"b":{"x":3},"c":null,"x":4}`, false},
		{map[string][]string{"a": {"x"}}, `{"a":{"x":"1,}\"","y":[{"x":2}],"z":null},"b":{"x":5},"c":null,"x":4}`, false},
		{map[string][]string{"a": {"x"}}, `{"a":{"x":"1,}\"","y":[{"x":2}],"z":null},"b":{"x":3},"c":null,"x":5}`, false},
		{map[string][]string{"a": {"x", "z"}, "b": {"x"}}, `{"a":{"x":0,"y":[{"x":2}],"z":0},"b":{"x":0},"c":null,"x":4}`, true},
		{map[string][]string{"c": {"x"}}, data, true},
		{nil, data, true},
		{nil, `{}`, false},
	} {
		if same := string(without([]byte(data), tt.keys)) == string(without([]byte(tt.same), tt.keys)); same != tt.want {
			t.Errorf("without %v, %s is the same: %t", tt.keys, tt.same, same)
		}
	}
}

// What a list costs, whose day is in memory: kept as bytes, written by a plan, by our executor, by
// gqlgen's own server, and by a handler that only writes the bytes.
func BenchmarkList(b *testing.B) {
	w, _, _ := keeping(b)
	for n := range 40 {
		w.slot(w.northDoctor, noon(1).Add(time.Duration(n)*5*time.Minute), 3)
	}
	body := fmt.Sprintf(`{"query":"query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { asOf slots { id startAt endAt free capacity status } } }","variables":{"d":"%d","on":"%s"}}`,
		w.northDoctor, noon(1).Format(time.DateOnly))
	answer := w.send(http.MethodPost, w.url, body, "Content-Type: application/json").Body
	bare := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.Header().Set("Content-Type", "application/json; charset=utf-8")
		_, _ = rw.Write([]byte(answer))
	})
	parts := w.handler.plans.resolver.Parts
	parts.KeepResponses = false
	gqlgen := handler.New(NewExecutableSchema(Config{Resolvers: w.handler.plans.resolver}))
	gqlgen.AddTransport(transport.POST{})
	gqlgen.SetQueryCache(lru.New[*ast.QueryDocument](cachedDocuments))
	for _, road := range []struct {
		name    string
		handler http.Handler
		body    string
	}{
		{"Bare", bare, body},
		{"Kept", w.handler, body},
		{"Planned", New(parts), body},
		{"Executed", New(parts), strings.Replace(body, "asOf", "asOf @include(if: true)", 1)}, // directives have no plan
		{"Gqlgen", gqlgen, body},
	} {
		b.Run(road.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequest(http.MethodPost, "/graphql", strings.NewReader(road.body))
				r.Header.Set("Content-Type", "application/json")
				rec := httptest.NewRecorder()
				road.handler.ServeHTTP(rec, r)
				if rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), answer[len(answer)-1000:]) {
					b.Fatal(rec.Body.String())
				}
			}
		})
	}
}
