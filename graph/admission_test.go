package graph

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"openslot/internal/booking"
	"openslot/internal/live"
)

// W9: how many sockets there may be. Whoever leaves makes room.
func TestSocketLimits(t *testing.T) {
	t.Parallel()
	limited := func(t *testing.T, limits live.Limits) *world {
		return newWorld(t, func(p *Parts) { p.Admission = live.NewAdmission(limits, nil) })
	}
	// refused connects in vain.
	refused := func(w *world, status int, code booking.Code, headers ...string) {
		w.t.Helper()
		conn, res, _ := w.handshake([]string{subprotocol}, headers...)
		if conn != nil {
			w.t.Fatal("there was room")
		}
		if res.StatusCode != status || res.Header.Get("Retry-After") != "10" {
			w.t.Errorf("%d %v", res.StatusCode, res.Header)
		}
		a := w.send(http.MethodGet, w.url, "", append([]string{"Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol: " + subprotocol}, headers...)...)
		if a.code() != string(code) {
			w.t.Errorf("%s, want %s", a.Body, code)
		}
	}
	bearer := func(token string) string { return "Authorization: Bearer " + token }
	t.Run("ActorAtUpgrade", func(t *testing.T) {
		t.Parallel()
		w := limited(t, live.Limits{PerActor: 2, PerPartner: 3, PerPeer: 1})
		for token, n := range map[string]int{w.patient("a"): 2, w.patient("b"): 2, w.staff(): 2, w.token(booking.Partner, "p", 0): 3} {
			first := w.dial(bearer(token))
			for range n - 1 {
				w.dial(bearer(token))
			}
			refused(w, 429, booking.RateLimited, bearer(token))
			first.conn.Close()
			await(t, "there is room again", func() bool {
				conn, _, _ := w.handshake([]string{subprotocol}, bearer(token))
				if conn != nil {
					t.Cleanup(func() { conn.Close() })
				}
				return conn != nil
			})
		}
		w.connect("") // nobody's place was taken by them
	})
	t.Run("ActorAtInit", func(t *testing.T) {
		t.Parallel()
		w := limited(t, live.Limits{PerActor: 2, PerPeer: 1})
		w.connect(w.patient("a")) // an anonymous place, given back with each init
		w.connect(w.patient("a"))
		third := w.dial()
		third.write(`{"type":"connection_init","payload":{"Authorization":"Bearer ` + w.patient("a") + `"}}`)
		if code, reason := third.closed(); code != closeTryLater || !strings.Contains(reason, "account") {
			t.Errorf("closed with %d %q", code, reason)
		}
		refused(w, 429, booking.RateLimited, bearer(w.patient("a")))
		await(t, "its anonymous place is free", func() bool {
			conn, _, _ := w.handshake([]string{subprotocol})
			if conn != nil {
				t.Cleanup(func() { conn.Close() })
			}
			return conn != nil
		})
		refused(w, 429, booking.RateLimited)
	})
	t.Run("Instance", func(t *testing.T) {
		t.Parallel()
		w := limited(t, live.Limits{Total: 2})
		w.connect("")
		last := w.connect(w.patient("a"))
		refused(w, 503, booking.Overloaded)
		last.conn.Close()
		await(t, "everything was counted out", func() bool {
			return w.handler.sockets.admission.Open() == 1
		})
	})
	t.Run("FailedUpgrade", func(t *testing.T) {
		t.Parallel()
		w := limited(t, live.Limits{Total: 1})
		for range 3 {
			if a := w.send(http.MethodGet, w.url, "", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Protocol: "+subprotocol); a.Status != 400 {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		}
		w.connect("")
	})
}

// Whoever sends too much is closed with 1008, whatever it is that is sent.
func TestMessageRate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, send := range map[string]func(*client) error{
		"messages": func(c *client) error { return c.conn.WriteMessage(websocket.TextMessage, []byte(`{"type":"pong"}`)) },
		"pings": func(c *client) error {
			return c.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(patience))
		},
		"pongs": func(c *client) error {
			return c.conn.WriteControl(websocket.PongMessage, nil, time.Now().Add(patience))
		},
	} {
		c := w.connect("")
		sent := 0
		for ; sent < 100*maxBurst && send(c) == nil; sent++ {
			if s := w.socketOf(c.conn.NetConn()); s.isEnded() {
				break
			}
		}
		if sent < maxBurst-1 {
			t.Errorf("%s: closed after %d", name, sent)
		}
		if code, reason := c.closed(); code != closePolicy || reason == "" {
			t.Errorf("%s: closed with %d %q", name, code, reason)
		}
	}
	// As much at once as a client has to say after a reconnect is fine.
	c := w.connect("")
	for range maxBurst / 2 {
		c.write(`{"type":"ping"}`)
	}
	for range maxBurst / 2 {
		c.expect("pong", "")
	}
}

// F29: sockets are ended one after the other, within the time there is.
func TestCloseIsSpread(t *testing.T) {
	t.Parallel()
	s := &sockets{pace: defaultPace, spread: 5 * time.Second}
	for _, tt := range []struct {
		sockets int
		left    time.Duration // until the end of the grace period; 0 = for ever
		want    time.Duration
	}{
		{10_000, 0, 5 * time.Second},
		{10_000, time.Minute, 5 * time.Second},
		{10_000, 10 * time.Second, 3 * time.Second}, // less what a goodbye may take
		{10_000, 5 * time.Second, 0},
		{100, 0, 500 * time.Millisecond}, // few don't keep the process
		{1, time.Minute, 0},
		{0, time.Minute, 0},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		if tt.left > 0 {
			ctx, cancel = context.WithTimeout(context.Background(), tt.left)
		}
		if got := s.spreadOver(ctx, tt.sockets); got.Round(time.Second/2) != tt.want {
			t.Errorf("%d sockets with %s left: %s, want %s", tt.sockets, tt.left, got, tt.want)
		}
		cancel()
	}

	w := newWorld(t, func(p *Parts) { p.CloseSpread = time.Hour })
	var clients []*client
	for range 40 {
		clients = append(clients, w.connect(""))
	}
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- w.handler.Close(context.Background()) }()
	for _, c := range clients {
		if code, _ := c.closed(); code != closeGoingAway {
			t.Errorf("closed with %d", code)
		}
	}
	if took := time.Since(began); took < 39*perDismissal {
		t.Errorf("all were closed within %s", took)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A booking that is being executed is answered before its socket ends.
func TestCloseAnswersFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(w.northDoctor, noon(2), 1)
	tx, err := w.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background())
	if _, err := tx.Exec(t.Context(), `SELECT FROM time_slot WHERE id = $1 FOR UPDATE`, slot); err != nil {
		t.Fatal(err)
	}
	c := w.connect(w.patient("a"))
	c.subscribe("1", `mutation($s:ID!){bookAppointment(input:{slotId:$s,idempotencyKey:"k"}){appointment{status}}}`, vars{"s": id(slot)})
	s := w.socketOf(c.conn.NetConn())
	state := func() (executing int, leaving bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.executing, s.leaving
	}
	await(t, "the booking is being executed", func() bool { n, _ := state(); return n == 1 })
	done := make(chan error, 1)
	go func() { done <- w.handler.Close(context.Background()) }()
	await(t, "the socket is to go", func() bool { _, leaving := state(); return leaving })
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := string(c.expect("next", "1")); !strings.Contains(got, "BOOKED") {
		t.Errorf("%s", got)
	}
	c.expect("complete", "1")
	if code, _ := c.closed(); code != closeGoingAway {
		t.Errorf("closed with %d", code)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// What is created over a socket is found over HTTP at once, as if it had been created there.
func TestSocketEmptiesCache(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.KeepResponses = true })
	count := func() string { return w.ask("", `{doctors(search:"Cleo"){nodes{name}}}`, nil).Body }
	if got := count(); strings.Contains(got, "Cleo") {
		t.Fatal(got)
	}
	c := w.connect(w.staff())
	c.subscribe("1", `mutation{createDoctor(input:{name:"Cleo Example",specialty:""}){doctor{name}}}`, nil)
	if got := string(c.expect("next", "1")); !strings.Contains(got, "Cleo") {
		t.Fatal(got)
	}
	if got := count(); !strings.Contains(got, "Cleo") {
		t.Errorf("afterwards: %s", got)
	}
}
