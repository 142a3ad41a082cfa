package graph

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

// reader is a client of an event stream.
type reader struct {
	t      testing.TB
	res    *http.Response
	lines  *bufio.Reader
	cancel context.CancelFunc
}

// event is one of a stream; a sign of life has no name.
type event struct{ name, data string }

// openStream asks for events, by POST, as the holder of token; "" = nobody.
func (w *world) openStream(token, query string, variables vars) *reader {
	w.t.Helper()
	body, _ := json.Marshal(map[string]any{"query": query, "variables": variables})
	headers := []string{"Accept: text/event-stream", "Content-Type: application/json"}
	if token != "" {
		headers = append(headers, "Authorization: Bearer "+token)
	}
	return w.openStreamBy(http.MethodPost, w.url, string(body), headers...)
}

func (w *world) openStreamBy(method, url, body string, headers ...string) *reader {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	w.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { res.Body.Close() })
	return &reader{w.t, res, bufio.NewReader(res.Body), cancel}
}

// read reads an event, or a sign of life.
func (r *reader) read() (e event, err error) {
	var line string
	timer := time.AfterFunc(patience, r.cancel)
	defer timer.Stop()
	for line, err = r.lines.ReadString('\n'); err == nil; line, err = r.lines.ReadString('\n') {
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch value = strings.TrimPrefix(value, " "); {
		case line == "\n", line == ":\n":
			return e, nil
		case field == "event":
			e.name = value
		case field == "data":
			e.data += value
		default:
			return e, fmt.Errorf("line %q", line)
		}
	}
	return e, err
}

// next reads the next event, which must have that name.
func (r *reader) next(name string) string {
	r.t.Helper()
	for {
		e, err := r.read()
		if err != nil || e.name != "" && e.name != name {
			r.t.Fatalf("%q %q %v, want %s", e.name, e.data, err, name)
		}
		if e.name == name {
			return e.data
		}
	}
}

// end reads to the end of the stream, which must come next, and reports how it came: with complete
// or cut off.
func (r *reader) end() {
	r.t.Helper()
	for {
		if e, err := r.read(); err != nil || e.name != "" {
			if !errors.Is(err, io.EOF) {
				r.t.Fatalf("%q %q %v, want the end", e.name, e.data, err)
			}
			return
		}
	}
}

// fails reads how an operation failed: one answer with errors, and complete.
func (r *reader) fails(want booking.Code) {
	r.t.Helper()
	var a answer
	if data := r.next("next"); json.Unmarshal([]byte(data), &a) != nil || a.code() != string(want) || a.Data != nil {
		r.t.Errorf("%s, want %s", data, want)
	}
	if data := r.next("complete"); data != "" {
		r.t.Errorf("complete with %q", data)
	}
	r.end()
}

const counting = `subscription($d:[ID!]!,$day:Date!){dayCounts(doctorIds:$d,from:$day,days:2){doctorId timeZone days{date free capacity firstFree}}}`

// A stream carries what a socket carries, byte for byte, by POST and by GET.
func TestStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(w.northDoctor, noon(1), 3)
	variables := vars{"d": []string{id(w.northDoctor)}, "day": noon(1).Format(time.DateOnly)}
	for name, query := range map[string]string{"availability": watching, "dayCounts": counting} {
		t.Run(name, func(t *testing.T) {
			s := w.connect("")
			s.subscribe("1", query, variables)
			posted := w.openStream("", query, variables)
			text, _ := json.Marshal(variables)
			got := w.openStreamBy(http.MethodGet, w.url+"?"+url.Values{"query": {query}, "variables": {string(text)}}.Encode(), "", "Accept: text/event-stream")
			if kind := posted.res.Header.Get("Content-Type"); posted.res.StatusCode != 200 || kind != mediaEvents {
				t.Fatalf("%d %s", posted.res.StatusCode, kind)
			}
			for range 3 {
				socket := string(s.expect("next", "1"))
				if a, b := posted.next("next"), got.next("next"); a != socket || b != socket {
					t.Errorf("by POST %s\nby GET %s\nsocket %s", a, b, socket)
				}
				sql[int](w, `UPDATE time_slot SET booked_count = (booked_count + 1) % capacity WHERE id = $1 RETURNING 1`, slot)
			}
		})
	}
}

// Operations that aren't subscriptions, and what is wrong with them. Only what is no request at all
// has another status than 200: an EventSource learns nothing of those.
func TestStreamOperations(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(w.northDoctor, noon(1), 3)
	one := func(r *reader) (a answer) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.next("next")), &a); err != nil {
			t.Fatal(err)
		}
		r.next("complete")
		r.end()
		return a
	}
	if a := one(w.openStream("", `{doctor(id:1){name}}`, nil)); string(a.Data) != `{"doctor":{"name":"Ada Example"}}` {
		t.Errorf("%s", a.Data)
	}
	if a := one(w.openStream(w.patient("ada"), book, vars{"s": id(slot), "k": "k"})); outcome(t, fmt.Appendf(nil, `{"data":%s}`, a.Data)) != "data" {
		t.Errorf("%s", a.Data)
	}
	if n := sql[int](w, `SELECT count(*) FROM appointment`); n != 1 {
		t.Errorf("%d appointments", n)
	}
	w.openStream("", `{nope}`, nil).fails(booking.Invalid)
	w.openStream("", `subscription{availability(doctorIds:[4711],from:"2030-01-01"){kind}}`, nil).fails(booking.NotFound)
	w.openStream("", `subscription{dayCounts(doctorIds:[],from:"2030-01-01"){days{free}}}`, nil).fails(booking.Invalid)
	w.openStream("", `subscription{a:availability(doctorIds:[1],from:"2030-01-01"){kind} b:availability(doctorIds:[1],from:"2030-01-01"){kind}}`, nil).fails(booking.Invalid)

	const subscribe = `{"query":"subscription{availability(doctorIds:[1],from:\"2030-01-01\"){kind}}"}`
	const events, json, post = "Accept: text/event-stream", "Accept: application/json", http.MethodPost
	for name, c := range map[string]struct {
		method, query, body string
		headers             []string
		status              int
		media               string
	}{
		"no JSON":                       {post, "", `{`, []string{events}, 400, mediaJSON},
		"a mutation by GET":             {http.MethodGet, "?query=mutation{cancelAppointment(input:{appointmentId:1}){changed}}", "", []string{events}, 405, mediaJSON},
		"bad token":                     {post, "", subscribe, []string{events, "Authorization: Bearer nonsense"}, 401, mediaJSON},
		"nothing that we have":          {post, "", subscribe, []string{"Accept: text/plain"}, 406, mediaJSON},
		"no events taken":               {post, "", subscribe, []string{events + ";q=0, application/json"}, 400, mediaJSON},
		"a subscription, no events":     {post, "", subscribe, []string{json}, 400, mediaJSON},
		"a subscription, anything":      {post, "", subscribe, []string{"Accept: */*"}, 400, mediaJSON},
		"a subscription, what urql has": {post, "", subscribe, []string{"Accept: application/graphql-response+json, application/json, text/event-stream, multipart/mixed"}, 200, mediaEvents},
		"a query, what urql has":        {post, "", `{"query":"{__typename}"}`, []string{"Accept: application/graphql-response+json, application/json, text/event-stream, multipart/mixed"}, 200, mediaResponse},
		"events and a charset":          {post, "", subscribe, []string{"Accept: text/event-stream;charset=utf-8;q=0.5"}, 200, mediaEvents},
	} {
		r := w.openStreamBy(c.method, w.url+c.query, c.body, append(c.headers, "Content-Type: application/json")...)
		if kind, _, _ := strings.Cut(r.res.Header.Get("Content-Type"), ";"); r.res.StatusCode != c.status || kind != c.media {
			t.Errorf("%s: %d %s, want %d %s", name, r.res.StatusCode, kind, c.status, c.media)
		}
	}
}

func (w *world) openStreams() int {
	w.handler.streams.mu.Lock()
	defer w.handler.streams.mu.Unlock()
	return len(w.handler.streams.open)
}

// How a stream ends that would go on. Afterwards nothing of any is left.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	var signer auth.Config
	w := newWorld(t, func(p *Parts) {
		signer = auth.Config{Issuer: "https://login.example", Audience: "openslot", Secret: []byte(strings.Repeat("s", 32)), Leeway: time.Nanosecond}
		var err error
		if p.Auth, err = auth.New(t.Context(), signer, p.Patients); err != nil {
			t.Fatal(err)
		}
	})
	w.quick(func(p *pace) { p.ping = 20 * time.Millisecond })
	w.slot(w.northDoctor, noon(1), 3)
	variables := vars{"d": []string{id(w.northDoctor)}, "day": noon(1).Format(time.DateOnly)}
	begun := func(token string) *reader {
		r := w.openStream(token, watching, variables)
		r.next("next")
		return r
	}
	alive := begun("")
	for range 3 {
		if e, err := alive.read(); err != nil || e != (event{}) {
			t.Errorf("%v %v, want a sign of life", e, err)
		}
	}

	brief, err := signer.Sign(auth.Grant{Role: booking.Patient, Subject: "ben", TTL: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	begun(brief).fails(booking.Unauthenticated)

	ada := w.patient("ada")
	blocked := begun(ada)
	patient := sql[int64](w, `SELECT id FROM patient WHERE subject = 'ada'`)
	const block = `mutation($p:ID!){blockPatient(input:{patientId:$p}){changed patient{blockedAt}}}`
	if a := w.ask(w.token(booking.System, "ops", 0), block, vars{"p": id(patient)}); a.code() != "" {
		t.Fatal(a.Body)
	}
	blocked.fails(booking.Forbidden)
	if r := w.openStream(ada, watching, variables); r.res.StatusCode != 403 {
		t.Errorf("opened again: %d", r.res.StatusCode)
	}

	gone := begun("")
	gone.cancel()
	await(t, "the server notices", func() bool { return w.openStreams() == 1 })

	// SIGTERM: no complete, which would say that there is nothing more to come.
	other := begun(w.staff())
	if err := w.handler.Close(t.Context()); err != nil {
		t.Error(err)
	}
	alive.end()
	other.end()
	if r := w.openStream("", watching, variables); r.res.StatusCode != 503 || r.res.Header.Get("Retry-After") == "" {
		t.Errorf("%d %v", r.res.StatusCode, r.res.Header)
	}
	await(t, "all are gone", func() bool { return w.openStreams() == 0 })
	if n := w.handler.sockets.admission.Open(); n != 0 {
		t.Errorf("left: %d", n)
	}
}

// Streams are counted with the sockets of their caller, and those of nobody with those of their address.
func TestStreamLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.Admission = live.NewAdmission(live.Limits{PerActor: 3, PerPeer: 2}, nil) })
	variables := vars{"d": []string{id(w.northDoctor)}, "day": noon(1).Format(time.DateOnly)}
	for _, c := range []struct {
		token string
		most  int
	}{{w.staff(), 3}, {w.token(booking.Staff, "desk", w.south), 3}, {"", 2}} {
		for range c.most - 1 {
			w.openStream(c.token, watching, variables).next("next")
		}
		w.connect(c.token)
		r := w.openStream(c.token, watching, variables)
		if r.res.StatusCode != 429 || r.res.Header.Get("Retry-After") == "" {
			t.Errorf("one more than %d: %d", c.most, r.res.StatusCode)
		}
	}
}

// Whoever stops reading is cut off, and nothing but the write deadline does it.
func TestStreamUnread(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		write time.Duration
		cut   bool
	}{"cut": {500 * time.Millisecond, true}, "without a deadline": {time.Hour, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.quick(func(p *pace) { p.write = c.write })
			sql[int](w, `WITH s AS (INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
				SELECT $1, at, at + interval '1 second', now(), 1 FROM generate_series(1, 900) AS n, LATERAL (
				       SELECT $2::timestamptz + n * interval '1 second') AS a (at) RETURNING 1) SELECT count(*) FROM s`, w.northDoctor, noon(1))
			host := strings.TrimSuffix(strings.TrimPrefix(w.url, "http://"), "/graphql")
			conn, err := net.Dial("tcp", host)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { conn.Close() })
			conn.(*net.TCPConn).SetReadBuffer(4 << 10)
			body, _ := json.Marshal(map[string]any{"query": strings.Replace(watching, "slots{", "slots{startAt endAt opensAt doctorId ", 1),
				"variables": vars{"d": []string{id(w.northDoctor)}, "day": noon(1).Format(time.DateOnly)}})
			fmt.Fprintf(conn, "POST /graphql HTTP/1.1\r\nHost: %s\r\nAccept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", host, len(body), body)
			await(t, "it has begun", func() bool { return w.openStreams() == 1 })
			stuck := func() bool { // in a write that makes no progress
				w.handler.streams.mu.Lock()
				defer w.handler.streams.mu.Unlock()
				for st := range w.handler.streams.open {
					if free := st.writing.TryLock(); free {
						st.writing.Unlock()
						return false
					}
				}
				return true
			}
			// A snapshot is 150 kB; between us there is room for some megabytes at most.
			full := 0
			await(t, "nothing more goes through", func() bool {
				if _, err := w.db.Pool.Exec(t.Context(), `SELECT pg_notify('slot_change', 'd ' || $1::bigint)`, w.northDoctor); err != nil {
					t.Fatal(err)
				}
				if full++; !stuck() {
					full = 0
				}
				return w.openStreams() == 0 || full > 100 && !c.cut
			})
			if cut := w.openStreams() == 0; cut != c.cut {
				t.Errorf("cut: %t", cut)
			}
			conn.Close()
			await(t, "it is gone", func() bool { return w.openStreams() == 0 })
		})
	}
}
