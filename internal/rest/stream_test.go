package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

// watcher reads a stream line by line.
type watcher struct {
	t     testing.TB
	lines chan string // closed at the end of the stream
}

func (w *world) watch(path, token string) *watcher {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	request.Header.Set("Accept", mediaEvents)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := w.client.Do(request)
	if err != nil {
		w.t.Fatal(err)
	}
	if kind := response.Header.Get("Content-Type"); response.StatusCode != 200 || kind != mediaEvents {
		w.t.Fatalf("%d %s", response.StatusCode, kind)
	}
	s := &watcher{w.t, make(chan string, 1000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(s.lines)
		lines := bufio.NewScanner(response.Body)
		for lines.Scan() {
			s.lines <- lines.Text()
		}
	}()
	w.t.Cleanup(func() {
		cancel()
		response.Body.Close()
		<-ended
	})
	return s
}

// next is the next line that begins like that; what comes before it is left out.
func (s *watcher) next(begin string) string {
	s.t.Helper()
	deadline := time.After(wait)
	for {
		select {
		case line, ok := <-s.lines:
			if !ok {
				s.t.Fatalf("the stream ended before %q", begin)
			}
			if strings.HasPrefix(line, begin) {
				return strings.TrimPrefix(line, begin)
			}
		case <-deadline:
			s.t.Fatalf("waited for %q", begin)
		}
	}
}

// update is the next event, as the document has it: no member more or less.
func (s *watcher) update() (u updateJSON) {
	s.t.Helper()
	text := s.next("data: ")
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&u); err != nil {
		s.t.Fatalf("%s: %v", text, err)
	}
	again, _ := json.Marshal(u)
	if string(again) != text {
		s.t.Errorf("%s\nis not the same as\n%s", text, again)
	}
	if (u.Kind == live.Snapshot) != (u.AsOf != nil) {
		s.t.Errorf("%s of %v", u.Kind, u.AsOf)
	}
	return u
}

// end waits for the stream's end.
func (s *watcher) end() {
	s.t.Helper()
	deadline := time.After(wait)
	for {
		select {
		case _, ok := <-s.lines:
			if !ok {
				return
			}
		case <-deadline:
			s.t.Fatal("the stream does not end")
		}
	}
}

// A stream starts with a snapshot, tells of changes, and has a sign of life in between.
func TestStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.pulse = 20 * time.Millisecond })
	slot := w.slot(0, 2)
	s := w.watch(fmt.Sprintf("/api/availability?doctorId=%d&from=%s", w.doctor, w.day()), "")
	if retry := s.next("retry: "); len(retry) != 4 {
		t.Errorf("retry: %s", retry)
	}
	u := s.update()
	if u.Kind != "SNAPSHOT" || u.DoctorID != w.doctor || u.From != w.day() || u.Days != 1 || u.TimeZone != "Europe/Berlin" || len(u.Slots) != 1 || u.Slots[0].Free != 2 {
		t.Errorf("first %+v", u)
	}
	s.next(":") // a sign of life
	w.book(w.token(booking.Patient, "p"), slot, "k")
	for u = s.update(); u.Kind == "SNAPSHOT" && u.Slots[0].Free == 2; u = s.update() {
	}
	if len(u.Slots) != 1 || int64(u.Slots[0].ID) != slot || u.Slots[0].Free != 1 {
		t.Errorf("then %+v", u)
	}
}

// A stream ends when its token does, and when the handler is closed; then no other begins.
func TestStreamEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) {
		exact := auth.Config{Issuer: "https://login.example", Audience: "openslot", Secret: []byte(strings.Repeat("s", 32)), Leeway: time.Millisecond}
		var err error
		if p.Auth, err = auth.New(t.Context(), exact, p.Patients); err != nil {
			t.Fatal(err)
		}
	})
	path := fmt.Sprintf("/api/availability?doctorId=%d&from=%s", w.doctor, w.day())
	token, err := w.signer.Sign(auth.Grant{Role: booking.Patient, Subject: "p", TTL: 15 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	expiring, staying := w.watch(path, token), w.watch(path, "")
	expiring.update()
	staying.update()
	expiring.end()
	w.slot(0, 3)
	if u := staying.update(); len(u.Slots) != 1 { // without a token nothing ends it
		t.Errorf("%+v", u)
	}
	w.handler.Close()
	staying.end()
	if a := w.ask(ask{method: "GET", path: path}); a.status != 503 || a.code() != "UNAVAILABLE" {
		t.Errorf("after the end: %d %s", a.status, a.body)
	}
}

// A stream ends when its patient's access is blocked; that of another goes on.
func TestStreamBlocked(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.handler.Auth.Run(ctx) }()
	defer func() { stop(); <-ended }()
	path := fmt.Sprintf("/api/availability?doctorId=%d&from=%s", w.doctor, w.day())
	blocked, other := w.watch(path, w.token(booking.Patient, "blocked")), w.watch(path, w.token(booking.Patient, "other"))
	blocked.update()
	other.update()
	if _, err := w.db.Pool.Exec(t.Context(), `UPDATE patient SET blocked_at = now(), blocked_by = 'system:test' WHERE subject = 'blocked'`); err != nil {
		t.Fatal(err)
	}
	blocked.end()
	w.slot(0, 3)
	if u := other.update(); len(u.Slots) != 1 {
		t.Errorf("%+v", u)
	}
}

// Streams are counted, with their caller's or, without a token, with their address's, and counted out.
func TestStreamLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.Admission = live.NewAdmission(live.Limits{PerActor: 2, PerPeer: 1}, nil) })
	path := fmt.Sprintf("/api/availability?doctorId=%d&from=%s", w.doctor, w.day())
	for token, most := range map[string]int{w.token(booking.Patient, "a"): 2, w.token(booking.Patient, "b"): 2, "": 1} {
		for range most {
			w.watch(path, token).update()
		}
		a := w.ask(ask{method: "GET", path: path, token: token})
		if a.status != 429 || a.code() != "RATE_LIMITED" || a.header.Get("Retry-After") != "10" {
			t.Errorf("one more than %d: %d %s", most, a.status, a.body)
		}
	}
	w.handler.Close()
	look, deadline := time.NewTicker(time.Millisecond), time.After(wait)
	defer look.Stop()
	for w.handler.Admission.Open() > 0 {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("%d are still counted", w.handler.Admission.Open())
		}
	}
}
