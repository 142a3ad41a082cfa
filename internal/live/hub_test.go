package live

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"openslot/internal/booking"
)

func TestSubscribe(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	broken := c.newDoctor("Mars/Olympus")
	many := make([]booking.DoctorID, MaxDoctors+1)
	for i := range many {
		many[i] = booking.DoctorID(i + 1)
	}
	one := []booking.DoctorID{c.doctor}
	for name, tt := range map[string]struct {
		q    Query
		code booking.Code // "": accepted
	}{
		"one day":           {Query{one, monday, 1}, ""},
		"31 days":           {Query{one, monday, 31}, ""},
		"the last day":      {Query{one, booking.Date{Year: 9999, Month: 12, Day: 31}, 31}, ""},
		"the first day":     {Query{one, booking.Date{Year: 1, Month: 1, Day: 1}, 1}, ""},
		"no doctor":         {Query{nil, monday, 1}, booking.Invalid},
		"51 doctors":        {Query{many, monday, 1}, booking.Invalid},
		"twice":             {Query{[]booking.DoctorID{c.doctor, c.doctor}, monday, 1}, booking.Invalid},
		"no day":            {Query{one, booking.Date{}, 1}, booking.Invalid},
		"0 days":            {Query{one, monday, 0}, booking.Invalid},
		"32 days":           {Query{one, monday, 32}, booking.Invalid},
		"unknown doctor":    {Query{[]booking.DoctorID{c.doctor, 1 << 40}, monday, 1}, booking.NotFound},
		"negative doctor":   {Query{[]booking.DoctorID{-1}, monday, 1}, booking.NotFound},
		"a zone of nowhere": {Query{[]booking.DoctorID{broken}, monday, 1}, booking.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			sub, err := c.hub.Subscribe(context.Background(), tt.q)
			if err == nil {
				sub.Close()
			}
			var got booking.Code
			if refusal := new(booking.Error); errors.As(err, &refusal) {
				got = refusal.Code
			} else if err != nil {
				got = booking.Internal
			}
			if got != tt.code {
				t.Errorf("%q, want %q (%v)", got, tt.code, err)
			}
		})
	}
	if len(c.hub.doctors) != 0 {
		t.Errorf("doctors are watched after all subscriptions ended: %v", c.hub.doctors)
	}
}

// What a snapshot contains, at the edges of a day of 25 hours, and with each state of a slot.
func TestSnapshot(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.slotAt("2026-10-24 21:50Z") // 23:50 of the day before
	first := c.slotAt("2026-10-24 22:00Z")
	last := c.slotAt("2026-10-25 22:50Z")
	c.slotAt("2026-10-25 23:00Z")
	full, closed, unopened, withdrawn := c.slotAt("2026-10-25 08:00Z"), c.slotAt("2026-10-25 07:00Z"), c.slotAt("2026-10-25 09:00Z"), c.slotAt("2026-10-25 10:00Z")
	c.exec(`UPDATE time_slot SET booked_count = capacity WHERE id = $1`, full)
	c.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, closed)
	c.exec(`UPDATE time_slot SET opens_at = '2100-01-01' WHERE id = $1`, unopened)
	c.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, withdrawn)
	other := c.newDoctor("Asia/Tokyo")

	day := booking.Date{Year: 2026, Month: time.October, Day: 25}
	s := c.subscribeTo(Query{Doctors: []booking.DoctorID{c.doctor, other}, From: day, Days: 1})
	got := map[booking.DoctorID]Update{}
	for range 2 {
		u := s.next()
		got[u.DoctorID] = u
	}
	u := got[c.doctor]
	var ids []booking.SlotID
	for _, slot := range u.Slots {
		ids = append(ids, slot.ID)
	}
	if want := []booking.SlotID{first, closed, full, unopened, last}; fmt.Sprint(ids) != fmt.Sprint(want) {
		t.Errorf("slots %v, want %v", ids, want)
	}
	if u.Kind != Snapshot || u.From != day || u.Days != 1 || u.TimeZone != "Europe/Berlin" || u.Epoch != 1 {
		t.Errorf("%+v", u)
	}
	if u := got[other]; u.Kind != Snapshot || u.Slots == nil || len(u.Slots) != 0 || u.TimeZone != "Asia/Tokyo" {
		t.Errorf("the doctor without slots: %+v", u)
	}
	truth := c.truth(c.doctor)
	for _, slot := range u.Slots {
		if slot != truth[slot.ID] {
			t.Errorf("%+v, want %+v", slot, truth[slot.ID])
		}
	}
}

// Everything that happens to a slot reaches the screen as a delta, whoever did it.
func TestChanges(t *testing.T) {
	t.Parallel()
	c := open(t)
	id := c.slots(c.doctor, 5)[0]
	elsewhere := c.newDoctor("Europe/Berlin")
	foreign := c.slots(elsewhere, 1)[0]
	s := c.subscribe(c.doctor)
	s.next()

	// delta makes a change and returns what is told of it.
	delta := func(t *testing.T, sql string, args ...any) booking.Slot {
		t.Helper()
		if c.exec(sql, args...) != 1 {
			t.Fatalf("changed nothing: %s", sql)
		}
		u := s.next()
		if u.Kind != Delta || len(u.Slots) != 1 {
			t.Fatalf("%+v", u)
		}
		return u.Slots[0]
	}
	t.Run("booked", func(t *testing.T) {
		if got := delta(t, `UPDATE time_slot SET booked_count = 7 WHERE id = $1`, id); got.Free() != 93 || got != c.truth(c.doctor)[id] {
			t.Errorf("%+v", got)
		}
	})
	t.Run("capacity", func(t *testing.T) {
		if got := delta(t, `UPDATE time_slot SET capacity = 8 WHERE id = $1`, id); got.Free() != 1 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("closed and reopened", func(t *testing.T) {
		if got := delta(t, `UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, id); got.Status != booking.SlotClosed {
			t.Errorf("%+v", got)
		}
		if got := delta(t, `UPDATE time_slot SET status = 'OPEN' WHERE id = $1`, id); got.Status != booking.SlotOpen {
			t.Errorf("%+v", got)
		}
	})
	t.Run("opens later", func(t *testing.T) {
		if got := delta(t, `UPDATE time_slot SET opens_at = '2026-10-04 05:00Z' WHERE id = $1`, id); got.OpensAt.Hour() != 5 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("new", func(t *testing.T) {
		before := len(s.slots)
		c.slotAt("2026-10-07 21:50Z") // the last of the three days
		if u := s.next(); u.Kind != Delta || len(s.slots) != before+1 {
			t.Errorf("%+v", u)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		gone := c.slotAt("2026-10-06 08:00Z")
		s.next()
		if got := delta(t, `DELETE FROM time_slot WHERE id = $1`, gone); got.Status != booking.SlotWithdrawn || got.Version != 1 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("withdrawn is told once", func(t *testing.T) {
		gone := c.slotAt("2026-10-06 09:00Z")
		s.next()
		if got := delta(t, `UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, gone); got.Status != booking.SlotWithdrawn {
			t.Errorf("%+v", got)
		}
		c.exec(`UPDATE time_slot SET capacity = 5 WHERE id = $1`, gone)
		c.exec(`DELETE FROM time_slot WHERE id = $1`, gone)
		if got := delta(t, `UPDATE time_slot SET booked_count = 1 WHERE id = $1`, id); got.ID != id {
			t.Errorf("told again: %+v", got)
		}
	})
	t.Run("withdrawn and brought back", func(t *testing.T) {
		back := c.slotAt("2026-10-06 10:00Z")
		s.next()
		delta(t, `UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, back)
		if got := delta(t, `UPDATE time_slot SET status = 'OPEN' WHERE id = $1`, back); got.ID != back || got.Status != booking.SlotOpen {
			t.Errorf("%+v", got)
		}
	})
	t.Run("not what is outside", func(t *testing.T) {
		early := c.slotAt("2026-10-04 21:50Z")
		late := c.slotAt("2026-10-07 22:00Z")
		c.exec(`UPDATE time_slot SET booked_count = 1 WHERE id IN ($1, $2, $3)`, early, late, foreign)
		c.fence()
		if got := delta(t, `UPDATE time_slot SET booked_count = 2 WHERE id = $1`, id); got.ID != id {
			t.Errorf("told of %+v", got)
		}
		c.exec(`DELETE FROM time_slot WHERE id IN ($1, $2)`, early, late)
	})
	t.Run("several in one statement come together", func(t *testing.T) {
		n := c.exec(`UPDATE time_slot SET booked_count = 1 WHERE doctor_id = $1 AND id <> $2 AND booked_count = 0`, c.doctor, id)
		c.fence()
		if u := s.next(); u.Kind != Delta || len(u.Slots) != n {
			t.Errorf("%d slots, want %d: %+v", len(u.Slots), n, u)
		}
	})
	s.awaitTruth()
}

func TestManyChanges(t *testing.T) {
	t.Parallel()
	t.Run("over 1,000 slots in one statement lead to a snapshot", func(t *testing.T) {
		t.Parallel()
		c := open(t)
		s := c.subscribeTo(Query{Doctors: []booking.DoctorID{c.doctor}, From: monday, Days: 31})
		s.next()
		c.slots(c.doctor, 1200) // made in bulk
		if u := s.next(); u.Kind != Snapshot || len(u.Slots) != 1200 {
			t.Fatalf("%s of %d slots", u.Kind, len(u.Slots))
		}
		c.exec(`UPDATE time_slot SET booked_count = 1`)
		if u := s.next(); u.Kind != Snapshot || len(u.Slots) != 1200 || u.Slots[1199].Booked != 1 {
			t.Fatalf("%s of %d slots", u.Kind, len(u.Slots))
		}
		s.run()
		s.awaitTruth()
	})
	t.Run("B60: 500 slots closed in one transaction", func(t *testing.T) {
		t.Parallel()
		c := open(t)
		c.slots(c.doctor, 250)
		other := c.newDoctor("America/New_York")
		c.slots(other, 250)
		s := c.watch(c.doctor, other)
		s.awaitTruth()
		tx, err := c.db.Pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tx.Rollback(context.Background()) }()
		for _, sql := range []string{ // in one statement, and one by one
			`UPDATE time_slot SET status = 'CLOSED'`,
			`DO $$ DECLARE r bigint; BEGIN FOR r IN SELECT id FROM time_slot ORDER BY id LOOP
				UPDATE time_slot SET booked_count = 1 WHERE id = r; END LOOP; END $$`,
		} {
			if _, err := tx.Exec(t.Context(), sql); err != nil {
				t.Fatal(err)
			}
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal("the transaction must commit:", err)
		}
		s.awaitTruth()
		c.exec(`UPDATE time_slot SET status = 'OPEN' WHERE id % 2 = 0`)
		s.awaitTruth()
	})
}

// B62: two tabs of one patient, one of them reloaded, each see everything.
func TestTwoTabs(t *testing.T) {
	t.Parallel()
	c := open(t)
	id := c.slots(c.doctor, 3)[0]
	first, second := c.watch(c.doctor), c.watch(c.doctor)
	for n := range 10 {
		c.exec(`UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1`, id)
		if n == 4 {
			second.sub.Close()
			second = c.watch(c.doctor)
		}
	}
	for _, tab := range []*screen{first, second} {
		tab.awaitTruth()
		if got := tab.slots[id].Booked; got != 10 {
			t.Errorf("booked %d, want 10", got)
		}
	}
}

// A reader that stalls takes bounded memory, holds up nobody, and ends with the truth.
func TestStalledReader(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.slots(c.doctor, 400)
	week := Query{[]booking.DoctorID{c.doctor}, monday, 7}
	stalled, reader := c.subscribeTo(week), c.subscribeTo(week)
	stalled.next()
	reader.run()
	for range 20 {
		c.exec(`UPDATE time_slot SET booked_count = booked_count + 1`)
	}
	c.fence()
	if got := len(stalled.sub.views[0].pending); got != 400 {
		t.Errorf("%d values kept after 8,000 changes of 400 slots", got)
	}
	reader.awaitTruth()

	// As many new slots as it takes to overflow, in statements small enough to be told one by one.
	for range 4 {
		c.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			SELECT $1, at, at + interval '1 min', 1, at - interval '14 days'
			  FROM generate_series(1, 300) AS n, LATERAL (
			       SELECT timestamptz '2026-10-05 06:00:00.5Z' + ((SELECT count(*) FROM time_slot) + n) * interval '1 second') AS a (at)`, c.doctor)
	}
	c.fence()
	if v := &stalled.sub.views[0]; len(v.pending) > maxKept || len(v.later) > maxKept+1 || !v.stale {
		t.Errorf("%d values kept, stale: %t", len(v.pending), v.stale)
	}
	reader.awaitTruth()
	if u := stalled.next(); u.Kind != Snapshot {
		t.Errorf("after an overflow: %s", u.Kind)
	}
	if diff := stalled.diff(c.truth(c.doctor)); diff != "" {
		t.Error(diff)
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	// waiting starts a Next that has nothing to tell.
	waiting := func(c *clinic) (*screen, <-chan error) {
		s := c.subscribe(c.doctor)
		s.next()
		end := make(chan error, 1)
		c.start(func(ctx context.Context) error {
			_, err := s.sub.Next(ctx)
			end <- err
			return nil
		})
		return s, end
	}
	t.Run("the hub closes", func(t *testing.T) {
		t.Parallel()
		c := open(t)
		s, end := waiting(c)
		c.hub.Close()
		if err := <-end; !errors.Is(err, ErrGoingAway) {
			t.Error(err)
		}
		if _, err := s.sub.Next(t.Context()); !errors.Is(err, ErrGoingAway) {
			t.Error("again:", err)
		}
		if _, err := c.hub.Subscribe(t.Context(), Query{[]booking.DoctorID{c.doctor}, monday, 1}); !errors.Is(err, ErrGoingAway) {
			t.Error("a new one:", err)
		}
	})
	t.Run("the hub's context ends", func(t *testing.T) {
		t.Parallel()
		c := newClinic(t)
		ctx, cancel := context.WithCancel(t.Context())
		c.start(func(context.Context) error { return c.hub.Run(ctx) })
		_, end := waiting(c)
		cancel()
		if err := <-end; !errors.Is(err, ErrGoingAway) {
			t.Error(err)
		}
	})
	t.Run("the subscription closes", func(t *testing.T) {
		t.Parallel()
		c := open(t)
		s, end := waiting(c)
		s.sub.Close()
		s.sub.Close()
		if err := <-end; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		c.exec(`UPDATE time_slot SET booked_count = 1`)
		c.fence()
		if len(c.hub.doctors) != 0 || len(c.hub.reads.waiting) != 0 {
			t.Error("the hub still knows it")
		}
	})
	t.Run("the call's context ends", func(t *testing.T) {
		t.Parallel()
		c := open(t)
		s := c.subscribe(c.doctor)
		s.next()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.sub.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		c.slots(c.doctor, 1)
		if u := s.next(); u.Kind != Delta {
			t.Errorf("the next call: %+v", u)
		}
	})
}

// A time of flexible hours that is booked is one new slot to those who watch, and no reason to read all
// of it again: its row is made and taken in one transaction, as the function claim_time does.
func TestFlexibleSlotIsADelta(t *testing.T) {
	t.Parallel()
	for name, control := range map[string]bool{"ByDelta": false, "Control": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t)
			if control {
				c.exec(`ALTER TABLE time_slot DISABLE TRIGGER slot_flexible_made`)
			}
			c.slots(c.doctor, 3)
			s := c.watch(c.doctor)
			s.awaitTruth()
			c.fence()
			before := s.seen(Snapshot)
			c.exec(`DO $$ DECLARE slot bigint; BEGIN
				INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, kind, opens_at)
				SELECT id, '2026-10-06 06:00Z', '2026-10-06 06:45Z', 1, 'FLEXIBLE', '2026-01-01' FROM doctor
				RETURNING id INTO slot;
				UPDATE time_slot SET booked_count = 1 WHERE id = slot;
			END $$`)
			c.fence()
			s.awaitTruth()
			c.exec(`UPDATE time_slot SET booked_count = 0 WHERE kind = 'FLEXIBLE'`)
			c.fence()
			s.awaitTruth()
			if again := s.seen(Snapshot) > before; again != control {
				t.Errorf("read again: %v", again)
			}
		})
	}
}
