package graph

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

// W11: a socket lives as long as its token.
func TestTokenExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signer.Leeway = 0
	authenticator, err := auth.New(t.Context(), auth.Config{Issuer: w.signer.Issuer, Audience: w.signer.Audience, Secret: w.signer.Secret, Leeway: time.Nanosecond}, auth.NewPatients(w.db.Pool))
	if err != nil {
		t.Fatal(err)
	}
	w.handler.sockets.auth = authenticator
	token, err := w.signer.Sign(auth.Grant{Role: booking.Patient, Subject: "brief", TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := w.connect(token)
	c.subscribe("1", watching, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
	c.expect("next", "1")
	if code, reason := c.closed(); code != closeForbidden || !strings.Contains(reason, "expired") { // P2, P12: no complete before it
		t.Errorf("closed with %d %q", code, reason)
	}
}

// F29: everybody is told that this instance goes away, and nobody is left.
func TestClose(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var clients []*client
	for range 20 {
		c := w.connect("")
		c.subscribe("1", watching, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
		c.expect("next", "1")
		clients = append(clients, c)
	}
	silent := w.dial() // one that never answers: it costs the time to say goodbye
	done := make(chan error, 1)
	go func() { done <- w.handler.Close(t.Context()) }()
	for _, c := range clients {
		if code, _ := c.closed(); code != closeGoingAway {
			t.Errorf("closed with %d", code)
		}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if code, _ := silent.closed(); code != closeGoingAway {
		t.Errorf("the silent one: %d", code)
	}
	if _, res, _ := w.handshake([]string{subprotocol}); res == nil || res.StatusCode != 503 {
		t.Errorf("afterwards: %+v", res)
	}
}

// Subscriptions that the hub ends take their socket with them: a complete would tell a client that
// there is no more to come.
func TestHubGoesAway(t *testing.T) {
	t.Parallel()
	var hub *live.Hub
	w := newWorld(t, func(p *Parts) { hub = p.Hub })
	c := w.connect("")
	c.subscribe("1", watching, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
	c.expect("next", "1")
	hub.Close()
	if code, _ := c.closed(); code != closeGoingAway {
		t.Errorf("closed with %d", code)
	}
	late := w.connect("")
	late.subscribe("1", watching, vars{"d": []string{id(w.northDoctor)}, "day": "2030-01-01"})
	if got := late.expect("error", "1"); !strings.Contains(string(got), "UNAVAILABLE") {
		t.Errorf("%s", got)
	}
}

// P9: a panic costs the operation, not the socket and not the process.
func TestPanics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.Schedule, p.Hub = nil, nil })
	c := w.connect("")
	c.subscribe("1", `{doctor(id:1){id}}`, nil)
	if got := string(c.expect("next", "1")); !strings.Contains(got, "INTERNAL") || !strings.Contains(got, "requestId") {
		t.Errorf("%s", got)
	}
	c.expect("complete", "1")
	c.subscribe("2", watching, vars{"d": []string{"1"}, "day": "2030-01-01"})
	if got := string(c.expect("error", "2")); !strings.Contains(got, "INTERNAL") {
		t.Errorf("%s", got)
	}
	if a := w.ask("", `{doctor(id:1){id}}`, nil); a.Status != 200 || a.code() != "INTERNAL" || strings.Contains(a.Body, "nil pointer") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if log := w.log.String(); !strings.Contains(log, "nil pointer") || !strings.Contains(log, "schema.resolvers.go") {
		t.Errorf("logged %s", log)
	}
	// In the goroutine of a subscription: of one that is none.
	if err := pass[live.Update](t.Context(), nil, nil); !strings.Contains(fmt.Sprint(err), "panic") {
		t.Errorf("%v", err)
	}
}

func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.bye = time.Second })
	w.dial()
	await(t, "the socket is open", func() bool { return len(w.openSockets()) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w.handler.Close(ctx) == nil {
		t.Error("closed without a goodbye")
	}
}

func (w *world) openSockets() (open []*socket) {
	w.handler.sockets.mu.Lock()
	defer w.handler.sockets.mu.Unlock()
	for s := range w.handler.sockets.open {
		open = append(open, s)
	}
	return open
}

// P3: whoever stops reading is cut, and all that it had is gone; others notice nothing.
func TestSlowReaderIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init, p.write, p.bye = time.Hour, 500*time.Millisecond, 100*time.Millisecond })
	stuck := w.stall()
	await(t, "the slow reader is cut", func() bool { return stuck.isEnded() && len(w.openSockets()) == 0 })
	other := w.connect("")
	other.subscribe("1", "{__typename}", nil)
	other.expect("next", "1")
}

// The control: nothing but the write deadline cuts slow readers.
func TestSlowReaderStaysWithoutDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init, p.write, p.bye = time.Hour, time.Hour, 100*time.Millisecond })
	if stuck := w.stall(); stuck.isEnded() {
		t.Error("it was cut")
	}
}

// stall opens a socket that reads nothing, and asks for answers until nobody on the way takes more.
func (w *world) stall() *socket {
	w.t.Helper()
	before := len(w.openSockets())
	slow := w.raw()
	await(w.t, "the socket is open", func() bool { return len(w.openSockets()) == before+1 })
	open := w.openSockets()
	text := frame(`{"type":"ping","payload":{"x":"` + strings.Repeat("x", 60_000) + `"}}`)
	for range 10_000 {
		slow.SetWriteDeadline(time.Now().Add(2 * time.Second))
		if _, err := slow.Write(text); err != nil {
			break
		}
	}
	for _, s := range open {
		if s.conn.RemoteAddr().String() == slow.LocalAddr().String() {
			return s
		}
	}
	w.t.Fatal("the socket is not among the open ones")
	return nil
}

// P18: a peer that is gone without a word is noticed, though nothing is sent to it.
func TestDeadPeerIsCut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.init, p.ping, p.quiet = time.Hour, 50*time.Millisecond, 400*time.Millisecond })
	go io.Copy(io.Discard, w.raw())
	alive := w.connect("")
	received := make(chan error, 1)
	go func() { _, err := alive.read(); received <- err }()
	await(t, "the dead peer is cut", func() bool { return len(w.openSockets()) == 1 })
	// The control: one that answers pings lives on, many times longer than that.
	select {
	case err := <-received:
		t.Errorf("the living peer was cut: %v", err)
	case <-time.After(5 * w.handler.sockets.pace.quiet):
	}
	if err := alive.conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"ping"}`)); err != nil {
		t.Error(err)
	}
	if err := <-received; err != nil {
		t.Error(err)
	}
}

// P7, P10, P16: nothing is left of sockets and subscriptions that end in whatever way.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.quick(func(p *pace) { p.bye = 200 * time.Millisecond })
	for i := range 60 {
		c := w.connect("")
		for n := range 5 {
			c.subscribe(fmt.Sprint(n), watching, vars{"d": []string{id(w.northDoctor), id(w.southDoctor)}, "day": "2030-01-01"})
		}
		switch i % 3 {
		case 0:
			for n := range 5 {
				c.write(fmt.Sprintf(`{"id":"%d","type":"complete"}`, n))
			}
			c.write(`{"type":"nonsense"}`)
		case 1:
			c.write(`{`)
		}
		c.conn.Close()
	}
	await(t, "all sockets have ended", func() bool { return len(w.openSockets()) == 0 })
	// Their goroutines are counted by goleak, at the end of all tests.
}
