package live

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// monday is the first day of most tests: midnight in Berlin is 22:00 UTC of the day before.
var monday = booking.Date{Year: 2026, Month: time.October, Day: 5}

// clinic is a database with a doctor, and the feed and a hub on it.
type clinic struct {
	t        testing.TB
	db       *devenv.DB
	doctor   booking.DoctorID
	hub      *Hub
	listener *Listener
	proxy    *proxy // between the listener and the database
	fences   chan booking.DoctorID
}

// newClinic starts neither feed nor hub.
func newClinic(t testing.TB) *clinic {
	t.Helper()
	c := &clinic{t: t, db: devenv.NewDB(t), fences: make(chan booking.DoctorID, 100)}
	c.doctor = c.newDoctor("Europe/Berlin")
	log := slog.New(slog.DiscardHandler)
	c.hub = NewHub(c.db.Pool, log)
	c.proxy = newProxy(t, c.db.URL)
	c.listener = &Listener{URL: c.proxy.url, Log: log, Consumers: []Consumer{
		c.hub.Consumer(),
		{Stale: func(doctor booking.DoctorID, _ time.Time) {
			if doctor >= firstFence {
				c.fences <- doctor
			}
		}},
	}}
	return c
}

// open starts feed and hub and waits until changes arrive.
func open(t testing.TB) *clinic {
	t.Helper()
	c := newClinic(t)
	c.start(c.listener.Run)
	c.start(c.hub.Run)
	c.await("the feed lives", c.listener.Alive)
	return c
}

// start runs a long-lived part until the test ends.
func (c *clinic) start(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	var group errgroup.Group
	group.Go(func() error { return run(ctx) })
	c.t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil {
			c.t.Error(err)
		}
	})
}

// await polls until cond holds.
func (c *clinic) await(what string, cond func() bool) {
	c.t.Helper()
	if !within(patience, cond) {
		c.t.Fatalf("waited in vain: %s", what)
	}
}

func within(d time.Duration, cond func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); !cond(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// Doctors from firstFence on don't exist: "re-read" of one is a mark in the feed.
const firstFence booking.DoctorID = 1 << 60

// fence returns once all consumers were told of everything that was committed before the call.
func (c *clinic) fence() {
	c.t.Helper()
	mark := firstFence + booking.DoctorID(time.Now().UnixNano()%(1<<59))
	c.exec(`SELECT pg_notify('slot_change', 'd ' || $1::bigint)`, mark)
	for timeout := time.After(patience); ; {
		select {
		case got := <-c.fences:
			if got == mark {
				return
			}
		case <-timeout:
			c.t.Fatal("the feed is stuck")
		}
	}
}

func (c *clinic) exec(sql string, args ...any) int {
	c.t.Helper()
	tag, err := c.db.Pool.Exec(context.Background(), sql, args...)
	if err != nil {
		c.t.Fatalf("%v\n%s", err, sql)
	}
	return int(tag.RowsAffected())
}

func query[T any](c *clinic, sql string, args ...any) []T {
	c.t.Helper()
	rows, err := c.db.Pool.Query(context.Background(), sql, args...)
	if err != nil {
		c.t.Fatalf("%v\n%s", err, sql)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	if err != nil {
		c.t.Fatalf("%v\n%s", err, sql)
	}
	return all
}

func (c *clinic) newDoctor(zone string) booking.DoctorID {
	c.t.Helper()
	return query[booking.DoctorID](c, `
		WITH o AS (INSERT INTO organization (name, time_zone) VALUES (gen_random_uuid()::text, $1) RETURNING id)
		INSERT INTO doctor (organization_id, name) SELECT id, 'Dr. No' FROM o RETURNING id`, zone)[0]
}

// slots makes n slots of ten minutes with 100 places, from 08:00 of monday in Berlin on.
func (c *clinic) slots(doctor booking.DoctorID, n int) []booking.SlotID {
	c.t.Helper()
	return query[booking.SlotID](c, `
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT $1, at, at + interval '10 min', 100, at - interval '14 days'
		  FROM generate_series(0, $2 - 1) AS n, LATERAL (SELECT timestamptz '2026-10-05 06:00Z' + n * interval '10 min') AS a (at)
		RETURNING id`, doctor, n)
}

func (c *clinic) slotAt(start string) booking.SlotID {
	c.t.Helper()
	return query[booking.SlotID](c, `
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		VALUES ($1, $2::timestamptz, $2::timestamptz + interval '10 min', 1, $2::timestamptz - interval '14 days')
		RETURNING id`, c.doctor, start)[0]
}

// truth is what a screen of the doctors has to show in the end: all slots that are not withdrawn.
func (c *clinic) truth(doctors ...booking.DoctorID) map[booking.SlotID]booking.Slot {
	c.t.Helper()
	rows, err := c.db.Pool.Query(context.Background(), `
		SELECT id, doctor_id, start_at, end_at, opens_at, capacity, booked_count, status, version
		  FROM time_slot WHERE doctor_id = ANY ($1) AND status <> 'WITHDRAWN'`, doctors)
	if err != nil {
		c.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[booking.Slot])
	if err != nil {
		c.t.Fatal(err)
	}
	slots := make(map[booking.SlotID]booking.Slot)
	for _, s := range all {
		s.StartAt, s.EndAt, s.OpensAt = s.StartAt.UTC(), s.EndAt.UTC(), s.OpensAt.UTC()
		slots[s.ID] = s
	}
	return slots
}

// screen is a client: it applies updates as clients are told to, and objects to a step back.
type screen struct {
	c       *clinic
	doctors []booking.DoctorID
	sub     *Subscription

	mu      sync.Mutex
	slots   map[booking.SlotID]booking.Slot
	updates []Update
}

// subscribe begins to watch three days from monday, and reads nothing yet.
func (c *clinic) subscribe(doctors ...booking.DoctorID) *screen {
	c.t.Helper()
	return c.subscribeTo(Query{Doctors: doctors, From: monday, Days: 3})
}

func (c *clinic) subscribeTo(q Query) *screen {
	c.t.Helper()
	sub, err := c.hub.Subscribe(context.Background(), q)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(sub.Close)
	return &screen{c: c, doctors: q.Doctors, sub: sub, slots: make(map[booking.SlotID]booking.Slot)}
}

// watch is a screen that reads all the time.
func (c *clinic) watch(doctors ...booking.DoctorID) *screen {
	c.t.Helper()
	s := c.subscribe(doctors...)
	s.run()
	return s
}

// run reads until the test ends.
func (s *screen) run() {
	s.c.start(func(ctx context.Context) error {
		for {
			u, err := s.sub.Next(ctx)
			switch {
			case ctx.Err() != nil || errors.Is(err, ErrClosed):
				return nil
			case err != nil:
				return err
			}
			if err := s.apply(u); err != nil {
				return err
			}
		}
	})
}

// next reads one update.
func (s *screen) next() Update {
	s.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	u, err := s.sub.Next(ctx)
	if err != nil {
		s.c.t.Fatal(err)
	}
	if err := s.apply(u); err != nil {
		s.c.t.Fatal(err)
	}
	return u
}

func (s *screen) apply(u Update) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates = append(s.updates, u)
	for i, slot := range u.Slots {
		old, held := s.slots[slot.ID]
		switch {
		case slot.DoctorID != u.DoctorID:
			return fmt.Errorf("a slot of doctor %d in an update of %d", slot.DoctorID, u.DoctorID)
		case held && (old.Version > slot.Version || u.Kind == Delta && old.Version == slot.Version):
			return fmt.Errorf("a step back: %s has version %d of slot %d after %d", u.Kind, slot.Version, slot.ID, old.Version)
		case i > 0 && slot.StartAt.Before(u.Slots[i-1].StartAt):
			return fmt.Errorf("%s is not in order of start", u.Kind)
		}
	}
	if u.Kind == Snapshot {
		maps.DeleteFunc(s.slots, func(_ booking.SlotID, slot booking.Slot) bool { return slot.DoctorID == u.DoctorID })
	}
	for _, slot := range u.Slots {
		s.slots[slot.ID] = slot
		if slot.Status == booking.SlotWithdrawn {
			delete(s.slots, slot.ID)
		}
	}
	return nil
}

// diff is what the screen shows wrong.
func (s *screen) diff(truth map[booking.SlotID]booking.Slot) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return cmp.Diff(truth, s.slots)
}

func (s *screen) right() bool { return s.diff(s.c.truth(s.doctors...)) == "" }

// wrong counts the slots that are not as they are in the database.
func (s *screen) wrong(truth map[booking.SlotID]booking.Slot) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, slot := range truth {
		if s.slots[id] != slot {
			n++
		}
	}
	return n
}

// awaitTruth waits until the screen shows what the database holds.
func (s *screen) awaitTruth() {
	s.c.t.Helper()
	if !within(patience, s.right) {
		s.c.t.Fatalf("the screen differs from the database (-database +screen):\n%s", s.diff(s.c.truth(s.doctors...)))
	}
}

// seen counts updates of a kind.
func (s *screen) seen(kind Kind) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, u := range s.updates {
		if u.Kind == kind {
			n++
		}
	}
	return n
}

// rounds is how often a campaign runs: a tenth of it unless OPENSLOT_LONG is set.
func rounds(long int) int {
	if os.Getenv("OPENSLOT_LONG") != "" {
		return long
	}
	return max(1, long/10)
}
