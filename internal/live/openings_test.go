package live

import (
	"context"
	"testing"
	"time"

	"openslot/internal/booking"
)

// opensIn changes when slots are released, to some time from now by the database's clock.
func (c *clinic) opensIn(d time.Duration, ids ...booking.SlotID) time.Time {
	c.t.Helper()
	return query[time.Time](c, `
		UPDATE time_slot SET opens_at = clock_timestamp() + $1::interval WHERE id = ANY ($2) RETURNING opens_at`, d, ids)[0]
}

// The release at seven: opens_at passes, no row changes, and yet every screen that shows the slot
// is told, by a snapshot that was read afterwards.
func TestRelease(t *testing.T) {
	t.Parallel()
	c := open(t)
	ids := c.slots(c.doctor, 3)
	later := c.slotAt("2026-10-07 08:00Z")
	opens := c.opensIn(time.Second, later)
	c.fence()
	day := func(from booking.Date, days int) *screen {
		s := c.subscribeTo(Query{Doctors: []booking.DoctorID{c.doctor}, From: from, Days: days})
		if u := s.next(); u.Kind != Snapshot || u.AsOf == nil {
			t.Fatalf("%+v", u)
		}
		return s
	}
	whole, first, last := day(monday, 3), day(monday, 1), day(monday.AddDays(2), 1)

	// released reads until the screen is told after the release; a delta may come before.
	released := func(s *screen, opens time.Time) {
		t.Helper()
		for u := s.next(); u.Kind != Snapshot; u = s.next() {
			if u.AsOf != nil {
				t.Errorf("%+v", u)
			}
		}
		if u := s.updates[len(s.updates)-1]; u.AsOf.Before(opens) || u.AsOf.After(opens.Add(patience)) {
			t.Errorf("%+v, want a snapshot soon after %s", u, opens)
		}
		if diff := s.diff(c.truth(c.doctor)); s == whole && diff != "" {
			t.Error(diff)
		}
	}
	released(whole, opens)
	released(last, opens)

	// Slots that are told one by one are looked after as well: the first one's release moves.
	opens = c.opensIn(time.Second, ids[0])
	released(whole, opens)
	released(first, opens)
	if n := first.seen(Snapshot); n != 2 {
		t.Errorf("a screen without the slot that opened first was told %d snapshots", n)
	}
	if n := last.seen(Snapshot); n != 2 || !last.idle() {
		t.Errorf("a screen without the slot that opened last was told %d snapshots", n)
	}
}

func TestReleaseUnnoticed(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	c.start(c.listener.Run)
	c.start(func(ctx context.Context) error { c.hub.reads.run(ctx); return nil }) // the hub but for its timer
	c.await("the feed lives", c.listener.Alive)
	c.opensIn(100*time.Millisecond, c.slots(c.doctor, 3)...)
	c.fence()
	s := c.watch(c.doctor)
	if within(openingSpread+2*openingStep+time.Second, func() bool { return s.seen(Snapshot) > 1 }) {
		t.Error("told without a timer: the test of the release proves nothing")
	}
}

// Whatever our clock says, a release is told by the database's.
func TestClock(t *testing.T) {
	t.Parallel()
	var c clock
	c.set(time.Now().Add(time.Hour), time.Now())
	if ahead := time.Until(c.now()); ahead < 59*time.Minute || ahead > 61*time.Minute {
		t.Errorf("ahead by %s", ahead)
	}
	k := open(t)
	k.opensIn(2*time.Second, k.slots(k.doctor, 1)...)
	k.fence()
	k.hub.clock.ahead.Store(int64(-24 * time.Hour)) // until the first read
	s := k.subscribe(k.doctor)
	opens := s.next().Slots[0].OpensAt
	k.hub.clock.ahead.Store(int64(time.Hour)) // too early by far: looked at again when it is time
	k.hub.openings.expect(k.doctor, time.Now())
	for u := s.next(); u.AsOf.Before(opens); u = s.next() {
		if u.Kind != Snapshot {
			t.Fatalf("%+v", u)
		}
	}
}

func TestOpenings(t *testing.T) {
	t.Parallel()
	o := newOpenings()
	seven := time.Date(2026, 10, 5, 5, 0, 0, 0, time.UTC)
	const doctors = 1000
	for id := range booking.DoctorID(doctors) {
		o.expect(id, seven.Add(24*time.Hour))
		o.expect(id, seven)
		o.expect(id, seven.Add(time.Hour)) // nothing earlier is forgotten for it
		o.expect(id, seven)
	}
	if due, _ := o.take(seven); len(due) != 0 {
		t.Errorf("%d doctors are due before their slots open", len(due))
	}
	most, told := 0, 0
	for now := seven; !now.After(seven.Add(openingSpread)); now = now.Add(openingStep) {
		due, _ := o.take(now)
		most, told = max(most, len(due)), told+len(due)
	}
	if told != doctors || most > doctors/5 {
		t.Errorf("%d of %d doctors were told in time, %d of them at once", told, doctors, most)
	}
	if _, next := o.take(seven); !next.IsZero() {
		t.Errorf("something is due at %s", next)
	}
}
