package live

import (
	"context"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
)

// readByHand does what the hub's readers do, step by step. It needs a hub that doesn't run.
func (c *clinic) readByHand() (batch []request, snapshots []*snapshot) {
	c.t.Helper()
	batch = c.hub.reads.take()
	snapshots, err := c.hub.reads.read(c.t.Context(), batch)
	if err != nil {
		c.t.Fatal(err)
	}
	return batch, snapshots
}

// ask is what Next does before it waits.
func (s *screen) ask() {
	_, _, begin, _ := s.sub.step()
	s.sub.hub.reads.join(begin)
}

// drain applies what is there.
func (s *screen) drain() {
	s.c.t.Helper()
	for {
		u, ok, _, err := s.sub.step()
		if err != nil {
			s.c.t.Fatal(err)
		}
		if !ok {
			return
		}
		if err := s.apply(u); err != nil {
			s.c.t.Fatal(err)
		}
	}
}

// A change at the worst moments of a subscription's start is not lost.
func TestRegisterThenRead(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (c *clinic, change func()) {
		c = newClinic(t)
		c.start(c.listener.Run)
		c.await("the feed lives", c.listener.Alive)
		id := c.slots(c.doctor, 2)[0]
		c.fence()
		return c, func() {
			c.exec(`UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1`, id)
			c.fence() // whoever is registered has been told
		}
	}
	t.Run("changes between register, read and delivery", func(t *testing.T) {
		t.Parallel()
		c, change := begin(t)
		s := c.subscribe(c.doctor)
		change()
		s.ask()
		change()
		batch, snapshots := c.readByHand()
		change()
		deliver(batch, snapshots)
		change()
		s.drain()
		if diff := s.diff(c.truth(c.doctor)); diff != "" {
			t.Error(diff)
		}
		if s.seen(Snapshot) != 1 || s.seen(Delta) != 1 {
			t.Errorf("%+v", s.updates)
		}
	})
	t.Run("read before register misses the change", func(t *testing.T) {
		t.Parallel()
		c, change := begin(t)
		sub, err := c.hub.prepare(t.Context(), Query{[]booking.DoctorID{c.doctor}, monday, 3})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(sub.Close)
		s := &screen{c: c, sub: sub, slots: make(map[booking.SlotID]booking.Slot)}
		s.ask()
		batch, snapshots := c.readByHand()
		change()
		if err := c.hub.register(sub); err != nil {
			t.Fatal(err)
		}
		deliver(batch, snapshots)
		s.drain()
		if s.seen(Snapshot) != 1 || s.wrong(c.truth(c.doctor)) != 1 {
			t.Error("the wrong order went unnoticed: the test above proves nothing")
		}
	})
	t.Run("a read that has begun can't be joined", func(t *testing.T) {
		t.Parallel()
		c, change := begin(t)
		first := c.subscribe(c.doctor)
		first.ask()
		batch, snapshots := c.readByHand()
		change()
		second := c.subscribe(c.doctor)
		second.ask()
		deliver(batch, snapshots)
		deliver(c.readByHand())
		for _, s := range []*screen{first, second} {
			s.drain()
			if diff := s.diff(c.truth(c.doctor)); diff != "" {
				t.Error(diff)
			}
		}
		// Had it been given the first read:
		third := c.subscribe(c.doctor)
		third.ask()
		third.sub.views[0].deliver(snapshots[0])
		third.drain()
		if third.wrong(c.truth(c.doctor)) != 1 {
			t.Error("the overtaken read went unnoticed: the test above proves nothing")
		}
	})
}

// What a live view does with a change, when its snapshot has slot 1 at version 5.
func TestNews(t *testing.T) {
	t.Parallel()
	from, to := monday.In(time.UTC)
	slot := func(id booking.SlotID, version int64, status booking.SlotStatus) booking.Slot {
		return booking.Slot{ID: id, Version: version, Status: status, StartAt: from}
	}
	for name, tt := range map[string]struct {
		changes []booking.Slot
		told    int64 // version of the one slot told; -1: none
		stale   bool
	}{
		"newer":                    {[]booking.Slot{slot(1, 6, booking.SlotOpen)}, 6, false},
		"the latest wins":          {[]booking.Slot{slot(1, 6, booking.SlotOpen), slot(1, 7, booking.SlotClosed)}, 7, false},
		"the same":                 {[]booking.Slot{slot(1, 5, booking.SlotOpen)}, -1, false},
		"older":                    {[]booking.Slot{slot(1, 4, booking.SlotOpen)}, -1, false},
		"out of order":             {[]booking.Slot{slot(1, 7, booking.SlotOpen), slot(1, 6, booking.SlotOpen)}, 7, false},
		"withdrawn":                {[]booking.Slot{slot(1, 6, booking.SlotWithdrawn)}, 6, false},
		"deleted after withdrawal": {[]booking.Slot{slot(1, 6, booking.SlotWithdrawn), slot(1, 7, booking.SlotWithdrawn)}, 6, false},
		"new":                      {[]booking.Slot{slot(2, 0, booking.SlotOpen)}, 0, false},
		"new and changed":          {[]booking.Slot{slot(2, 0, booking.SlotOpen), slot(2, 1, booking.SlotOpen)}, 1, false},
		"never told, withdrawn":    {[]booking.Slot{slot(2, 9, booking.SlotWithdrawn)}, -1, false},
		// The snapshot was ahead of the feed: the slot is withdrawn there already.
		"not new, yet unknown":    {[]booking.Slot{slot(2, 8, booking.SlotOpen), slot(2, 9, booking.SlotWithdrawn)}, -1, true},
		"at the end of the range": {[]booking.Slot{{ID: 1, Version: 6, StartAt: to}}, -1, false},
		"before the range":        {[]booking.Slot{{ID: 1, Version: 6, StartAt: from.Add(-1)}}, -1, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := &Subscription{hub: NewHub(nil, nil), wake: make(chan struct{}, 1)}
			v := &view{sub: s, scope: scope{1, from, to}, base: map[booking.SlotID]int64{1: 5}}
			for _, slot := range tt.changes { // one by one; what comes together: TestShared
				if c := newBatch([]booking.Slot{slot}).within(from, to); c != nil {
					v.offer(c)
				}
			}
			u, ok := v.take()
			got := int64(-1)
			if ok {
				got = u.Slots[0].Version
			}
			if got != tt.told || v.stale != tt.stale || len(u.Slots) > 1 {
				t.Errorf("told version %d (want %d), stale %t (want %t)", got, tt.told, v.stale, tt.stale)
			}
			if woken := len(s.wake) == 1; woken != (tt.told >= 0 || tt.stale) {
				t.Errorf("woken: %t", woken)
			}
		})
	}
}

// Those who wait for the same read it once, and in bounded statements.
func TestSharedReads(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	other := c.newDoctor("Asia/Tokyo")
	c.slots(other, 3)
	var screens []*screen
	for range 100 {
		s := c.subscribe(c.doctor, other)
		s.ask()
		screens = append(screens, s)
	}
	screens[0].sub.Close()
	batch, snapshots := c.readByHand()
	if len(batch) != 2 || len(batch[0].views) != 99 {
		t.Fatalf("%d reads, the first for %d", len(batch), len(batch[0].views))
	}
	deliver(batch, snapshots)
	for _, s := range screens[1:] {
		s.drain()
		if s.seen(Snapshot) != 2 || !s.right() {
			t.Fatal("a screen is wrong")
		}
	}
	if len(screens[0].updates) != 0 {
		t.Error("a closed subscription was told")
	}

	// Two months for each of 50 doctors don't go into one statement.
	doctors := []booking.DoctorID{c.doctor}
	for len(doctors) < MaxDoctors {
		doctors = append(doctors, c.newDoctor("Europe/Berlin"))
	}
	s := c.subscribeTo(Query{Doctors: doctors, From: monday, Days: 31})
	s.ask()
	statements := 0
	for range 50 {
		batch, snapshots := c.readByHand()
		if len(batch) == 0 {
			break
		}
		statements++
		var span time.Duration
		for _, req := range batch {
			span += req.to.Sub(req.from)
		}
		if span > maxReadSpan || len(c.hub.reads.waiting) > 0 && len(c.hub.reads.wake) == 0 {
			t.Errorf("%d scopes over %s in one statement; nobody woken for the rest", len(batch), span)
		}
		deliver(batch, snapshots)
	}
	s.drain()
	if s.seen(Snapshot) != MaxDoctors || statements != 9 {
		t.Errorf("%d snapshots from %d statements", s.seen(Snapshot), statements)
	}
}

// The read goes by index whether or not the planner knows the table.
func TestReadPlan(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	c.exec(`INSERT INTO doctor (organization_id, name) SELECT organization_id, 'x' FROM doctor, generate_series(1, 30)`)
	bulk := func(days int) {
		c.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			SELECT d.id, at, at + interval '10 min', 1, at FROM doctor d, generate_series(0, 39) AS n, generate_series(0, $1) AS day,
			       LATERAL (SELECT timestamptz '2026-10-05 06:00Z' + n * interval '10 min' + day * interval '1 day') AS a (at)
			ON CONFLICT DO NOTHING`, days-1)
	}
	check := func(t *testing.T) {
		from, to := monday.In(time.UTC)
		plan := strings.Join(query[string](c, "EXPLAIN "+readSQL, []booking.DoctorID{1, 2}, []time.Time{from, from}, []time.Time{to, to}), "\n")
		if !strings.Contains(plan, "uq_doctor_start") || strings.Contains(plan, "Seq Scan on time_slot") {
			t.Error(plan)
		}
	}
	bulk(1)
	t.Run("unknown", check)
	bulk(14)
	c.exec(`ANALYZE`)
	t.Run("known", check)
}

// While the database is away screens wait, and end with the truth without asking.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	pool := c.pool(c.proxy.url)
	c.hub = NewHub(pool, c.listener.Log)
	c.listener.Consumers[0] = c.hub.Consumer()
	c.start(c.listener.Run)
	c.start(c.hub.Run)
	c.slots(c.doctor, 10)
	s := c.watch(c.doctor)
	s.awaitTruth()

	c.proxy.cut() // for the feed and for the reads
	c.exec(`UPDATE time_slot SET booked_count = 1`)
	c.hub.stale(c.doctor, time.Time{}) // have it read while nothing answers
	c.await("a read that failed waits", func() bool { return pool.Stat().TotalConns() == 0 })
	_, err := c.hub.Subscribe(context.Background(), Query{[]booking.DoctorID{c.doctor}, monday, 1})
	if code := codeOf(err); code != booking.Unavailable {
		t.Errorf("subscribing meanwhile: %v", err)
	}
	c.proxy.heal()
	s.awaitTruth()
}
