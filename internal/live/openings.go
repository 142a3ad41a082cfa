package live

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"openslot/internal/booking"
)

// That slots open changes no row, so the feed says nothing. Screens hear of it by a new SNAPSHOT,
// which comes within openingSpread: at seven o'clock nearly every doctor's slots open, and neither
// the database nor the sockets should have all of them at once.
const (
	openingSpread = 3 * time.Second
	openingStep   = 100 * time.Millisecond // doctors that are due within it are due together
)

// clock is the database's, as far as we know it: what opens and begins is decided there.
type clock struct {
	ahead atomic.Int64 // of ours, in nanoseconds
}

// set takes in that the database's clock showed a time, which it was asked for at asked. The answer
// is younger than the question, so the clock counts as a little fast: who acts on it looks again,
// while too late would be noticed by nobody.
func (c *clock) set(shown, asked time.Time) { c.ahead.Store(int64(shown.Sub(asked))) }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// openings knows for which doctors, and when, views are to look for slots that have opened.
type openings struct {
	wake chan struct{} // holds a token when something is due earlier than next

	mu   sync.Mutex
	due  map[booking.DoctorID]time.Time // by the database's clock, the spread included
	next time.Time                      // what run waits for; zero: nothing
}

func newOpenings() *openings {
	return &openings{wake: make(chan struct{}, 1), due: make(map[booking.DoctorID]time.Time)}
}

// expect says that a slot of the doctor opens at a moment.
func (o *openings) expect(doctor booking.DoctorID, at time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if due, ok := o.due[doctor]; ok && !at.Before(due.Add(-openingSpread)) {
		return // looked for soon after it, at most
	}
	due := at.Truncate(openingStep).Add(openingStep + rand.N(openingSpread/openingStep)*openingStep)
	o.due[doctor] = due
	if o.next.IsZero() || due.Before(o.next) {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
}

// take removes what is due at now; next is when more will be, zero: nothing will.
func (o *openings) take(now time.Time) (doctors []booking.DoctorID, next time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.next = time.Time{}
	for doctor, due := range o.due {
		switch {
		case !due.After(now):
			doctors = append(doctors, doctor)
			delete(o.due, doctor)
		case o.next.IsZero() || due.Before(o.next):
			o.next = due
		}
	}
	return doctors, o.next
}

// run calls opened for doctors that are due, until ctx ends.
func (o *openings) run(ctx context.Context, c *clock, opened func(booking.DoctorID, time.Time)) {
	// Somebody may set clocks, ours or the database's: no sleep is longer than this.
	const most = time.Minute
	timer := time.NewTimer(most)
	defer timer.Stop()
	for {
		now := c.now()
		doctors, next := o.take(now)
		for _, doctor := range doctors {
			opened(doctor, now)
		}
		wait := most
		if !next.IsZero() {
			wait = min(most, next.Sub(now))
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case <-timer.C:
		}
	}
}

// opened has the doctor's views read again, those in which a slot has opened by now.
func (h *Hub) opened(doctor booking.DoctorID, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.doctors[doctor] {
		v.open(now)
	}
}

func (v *view) open(now time.Time) {
	v.sub.mu.Lock()
	defer v.sub.mu.Unlock()
	switch {
	case v.opens.IsZero():
	case v.opens.After(now):
		v.sub.hub.openings.expect(v.doctor, v.opens) // for the next time
	default:
		v.opens = time.Time{}
		v.fall()
		v.sub.signal()
	}
}

// expectOpening looks at a slot that is news to the view.
func (v *view) expectOpening(slot booking.Slot) {
	if slot.Status == booking.SlotOpen && slot.OpensAt.After(v.sub.hub.clock.now()) {
		v.expect(slot.OpensAt)
	}
}

// expect notes that a slot in the view opens at a moment, unless one does before; zero: none does.
func (v *view) expect(at time.Time) {
	if at.IsZero() || !v.opens.IsZero() && !at.Before(v.opens) {
		return
	}
	v.opens = at
	v.sub.hub.openings.expect(v.doctor, at)
}
