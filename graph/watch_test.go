package graph

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
	"openslot/internal/live"
)

// crowd is a world with a doctor who has many slots, so that a snapshot is 60 KB, and a hub to stir.
func crowd(t *testing.T, change func(*pace)) (w *world, hub *live.Hub, variables vars) {
	t.Helper()
	w = newWorld(t, func(p *Parts) { hub = p.Hub })
	w.quick(change)
	sql[int](w, `WITH i AS (INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
		SELECT $1, at, at + interval '1 minute', now(), 5 FROM generate_series(0, 599) AS n, LATERAL (SELECT $2::timestamptz + n * interval '30 seconds') AS a (at)
		RETURNING 1) SELECT count(*) FROM i`, w.northDoctor, noon(2).Add(-6*time.Hour))
	return w, hub, vars{"d": []string{id(w.northDoctor)}, "day": noon(2).Format(time.DateOnly)}
}

const broad = `subscription($d:[ID!]!,$day:Date!){availability(doctorIds:$d,from:$day){kind slots{id free version startAt endAt opensAt}}}`

// deaf subscribes and reads nothing.
func (w *world) deaf(variables vars) *client {
	w.t.Helper()
	c := w.dial()
	c.write(`{"type":"connection_init"}`)
	c.subscribe("1", broad, variables)
	return c
}

// socketOf is our end of a connection.
func (w *world) socketOf(conn net.Conn) *socket {
	w.t.Helper()
	var found *socket
	await(w.t, "the socket is open", func() bool {
		for _, s := range w.openSockets() {
			if s.conn.RemoteAddr().String() == conn.LocalAddr().String() {
				found = s
			}
		}
		return found != nil
	})
	return found
}

func (w *wire) isBusy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy
}

// clog has snapshots sent until the way to the deaf one is full, which another reader survives.
func (w *world) clog(hub *live.Hub, stuck *socket, other *client) {
	w.t.Helper()
	full := func() bool { // for longer than one write takes
		for range 20 {
			if !stuck.wire.isBusy() {
				return false
			}
			hub.Consumer().Stale(w.northDoctor, time.Time{})
			other.expect("next", "1")
		}
		return true
	}
	for n := 0; !full(); n++ {
		if n == 2000 {
			w.t.Fatal("the way is never full")
		}
		hub.Consumer().Stale(w.northDoctor, time.Time{})
		other.expect("next", "1")
	}
}

// P3, on the road of shared updates: whoever stops reading holds up nobody. Once it reads again, what
// it is told is whole, and ends with the latest.
func TestStalledWatch(t *testing.T) {
	t.Parallel()
	w, hub, variables := crowd(t, func(p *pace) {
		p.write, p.probe, p.quiet = time.Hour, time.Hour, time.Hour
	})
	other := w.connect("")
	other.subscribe("1", broad, variables)
	other.expect("next", "1")
	deaf := w.deaf(variables)
	stuck := w.socketOf(deaf.conn.NetConn())
	await(t, "the deaf one is told", func() bool {
		stuck.mu.Lock()
		defer stuck.mu.Unlock()
		return stuck.operations["1"] != nil && stuck.operations["1"].watch != nil
	})
	w.clog(hub, stuck, other)
	slot := sql[booking.SlotID](w, `UPDATE time_slot SET booked_count = 3 WHERE id = (SELECT min(id) FROM time_slot) RETURNING id`)
	want := fmt.Sprintf(`{"id":"%d","free":2,"version":1`, slot)
	for !strings.Contains(string(other.expect("next", "1")), want) {
	}
	deaf.expect("connection_ack", "")
	for !strings.Contains(string(deaf.expect("next", "1")), want) { // the rest of what was cut, a snapshot and the change
	}
}

// The write deadline cuts a watch that is stuck; its control is the test above, without one.
func TestStalledWatchIsCut(t *testing.T) {
	t.Parallel()
	w, hub, variables := crowd(t, func(p *pace) {
		p.write, p.probe, p.quiet, p.bye = 2*time.Second, time.Hour, time.Hour, 100*time.Millisecond
	})
	other := w.connect("")
	other.subscribe("1", broad, variables)
	other.expect("next", "1")
	w.socketOf(w.deaf(variables).conn.NetConn())
	await(t, "the stuck one is gone", func() bool {
		hub.Consumer().Stale(w.northDoctor, time.Time{})
		other.expect("next", "1")
		return len(w.openSockets()) == 1
	})
}

// A peer to whom updates go, and who does not read them, is noticed long before the way is full. One
// that is told nothing has the longer time, and so has everybody where nobody probes: the control.
func TestUnreadUpdatesAreNoticed(t *testing.T) {
	t.Parallel()
	w, _, variables := crowd(t, func(p *pace) {
		p.init, p.probe, p.answer, p.bye = time.Hour, 50*time.Millisecond, 500*time.Millisecond, 100*time.Millisecond
	})
	idle := w.raw()
	reader := w.connect("")
	reader.subscribe("1", watching, variables)
	go func() { // gorilla answers pings while somebody reads
		for {
			if _, _, err := reader.conn.ReadMessage(); err != nil {
				return
			}
		}
	}()
	await(t, "both are open", func() bool { return len(w.openSockets()) == 2 })
	w.deaf(variables)
	await(t, "three are open", func() bool { return len(w.openSockets()) == 3 })
	await(t, "the deaf one is gone", func() bool { return len(w.openSockets()) == 2 })
	w.socketOf(idle)
	for range 3 { // rounds of probing
		sql[int](w, `UPDATE time_slot SET booked_count = 1 WHERE id = (SELECT min(id) FROM time_slot) RETURNING 1`)
		s := w.socketOf(reader.conn.NetConn())
		await(t, "the reader is probed", func() bool { return !s.sent.Load() })
	}
	if len(w.openSockets()) != 2 {
		t.Error("somebody who reads, or was told nothing, was cut")
	}
}

// P9: a panic while an update is written costs the operation.
func TestWatchPanics(t *testing.T) {
	t.Parallel()
	w, hub, variables := crowd(t, func(*pace) {})
	c := w.connect("")
	c.subscribe("1", broad, variables)
	c.expect("next", "1")
	s := w.socketOf(c.conn.NetConn())
	s.mu.Lock()
	o := s.operations["1"].watch
	s.mu.Unlock()
	s.wire.acquire() // nobody tells anything meanwhile
	o.shape = &shape{write: func(*output, *live.Update) { panic("boom") }}
	s.wire.release()
	hub.Consumer().Stale(w.northDoctor, time.Time{})
	if got := string(c.expect("error", "1")); !strings.Contains(got, "INTERNAL") || strings.Contains(got, "boom") {
		t.Errorf("%s", got)
	}
	c.subscribe("1", "{__typename}", nil)
	c.expect("next", "1")
	c.expect("complete", "1")
	if log := w.log.String(); !strings.Contains(log, "boom") {
		t.Errorf("logged %s", log)
	}
}

// Whoever completes an operation hears no more of it, and nothing of it is kept.
func TestWatchCompletes(t *testing.T) {
	t.Parallel()
	w, hub, variables := crowd(t, func(*pace) {})
	c := w.connect("")
	for range 50 {
		c.subscribe("1", watching, variables) // may be completed before it has begun
		c.write(`{"id":"1","type":"complete"}`)
		hub.Consumer().Stale(w.northDoctor, time.Time{})
	}
	c.subscribe("last", "{__typename}", nil)
	for {
		m, err := c.read()
		if err != nil || m.ID == "1" && m.Type != "next" {
			t.Fatal(m.Type, err)
		}
		if m.ID == "last" {
			break
		}
	}
	c.expect("complete", "last")
	await(t, "all has ended", func() bool {
		s := w.socketOf(c.conn.NetConn())
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.operations) == 0
	})
	hub.Consumer().Stale(w.northDoctor, time.Time{})
	c.write(`{"type":"ping"}`)
	c.expect("pong", "")
}
