package live

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"openslot/internal/booking"
)

// Writers change slots at random while the feed is killed again and again and screens join late.
// The last outage covers the last writes, which touch every slot: nothing later heals what was missed.
func TestResync(t *testing.T) {
	t.Parallel()
	kills := rounds(500)
	t.Run(fmt.Sprintf("%d kills", kills), func(t *testing.T) {
		t.Parallel()
		c := newClinic(t)
		for _, s := range c.campaign(kills) {
			s.awaitTruth()
		}
	})
	t.Run("without resync screens stay wrong", func(t *testing.T) {
		t.Parallel()
		c := newClinic(t)
		resync := c.listener.Consumers[0].Resync
		c.listener.Consumers[0].Resync = func(epoch int64, since time.Time) {
			if epoch == 1 {
				resync(epoch, since)
			}
		}
		wrong, all := 0, 0
		for _, s := range c.campaign(5) {
			truth := c.truth(s.doctors...)
			wrong += s.wrong(truth)
			all += len(truth)
		}
		if wrong != all {
			t.Errorf("%d of %d slots are wrong, want all: the test above proves too little", wrong, all)
		}
	})
}

// campaign returns the screens once the feed is back and has been read to its end.
func (c *clinic) campaign(kills int) (screens []*screen) {
	epoch := c.epochs()
	c.listener.settledAfter = 1
	c.start(c.listener.Run)
	c.start(c.hub.Run)
	c.await("the feed lives", c.listener.Alive)
	doctors := []booking.DoctorID{c.doctor, c.newDoctor("Asia/Tokyo"), c.newDoctor("America/New_York"), c.newDoctor("UTC")}
	for _, doctor := range doctors {
		c.slots(doctor, 20)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var writers errgroup.Group
	for range 3 {
		writers.Go(func() error { return c.write(ctx, doctors) })
	}
	// lose kills the feed and returns when it is back.
	lose := func(meanwhile func()) {
		before := epoch.Load()
		c.proxy.refuse()
		if c.kill() == 0 { // one that was killed before may still be listed
			c.t.Fatal("there was no feed to kill")
		}
		meanwhile()
		c.proxy.heal()
		c.await("the feed is back", func() bool { return epoch.Load() > before })
	}
	for n := range kills {
		if len(screens) < 40 {
			some := slices.Clone(doctors)
			rand.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
			screens = append(screens, c.watch(some[:1+n%3]...))
		}
		lose(func() {})
	}
	for _, s := range screens {
		c.await("a screen has begun", func() bool { return s.seen(Snapshot) >= len(s.doctors) })
	}
	lose(func() {
		stop()
		if err := writers.Wait(); err != nil {
			c.t.Fatal(err)
		}
		c.await("the loss is noticed", func() bool { return !c.listener.Alive() })
		for _, s := range screens { // no read may be under way that would show the last writes
			c.await("a screen has read what it asked for", s.idle)
		}
		c.exec(`UPDATE time_slot SET booked_count = (booked_count + 1) % capacity, capacity = capacity + 1`)
	})
	c.fence()
	return screens
}

// idle reports whether nothing is under way for the screen.
func (s *screen) idle() bool {
	s.sub.mu.Lock()
	defer s.sub.mu.Unlock()
	return !slices.ContainsFunc(s.sub.views, func(v view) bool { return v.stale || v.reading || v.ready != nil })
}

// write makes random changes until ctx ends.
func (c *clinic) write(ctx context.Context, doctors []booking.DoctorID) error {
	statements := []string{
		`UPDATE time_slot SET booked_count = $2 % (capacity + 1) WHERE id = (SELECT min(id) + $2 % 20 FROM time_slot WHERE doctor_id = $1)`,
		`UPDATE time_slot SET status = (ARRAY['OPEN', 'CLOSED'])[1 + $2 % 2] WHERE doctor_id = $1 AND id % 7 = $2 % 7 AND status <> 'WITHDRAWN'`,
		`UPDATE time_slot SET capacity = booked_count + 1 + $2 % 10 WHERE doctor_id = $1 AND id % 11 = $2 % 11`,
		`UPDATE time_slot SET status = 'WITHDRAWN' WHERE doctor_id = $1 AND id % 13 = $2 % 13 AND start_at >= '2026-10-06'`,
		`DELETE FROM time_slot WHERE doctor_id = $1 AND id % 17 = $2 % 17 AND start_at >= '2026-10-06'`,
		`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		 SELECT $1, at, at + interval '5 min', 3, at FROM (SELECT timestamptz '2026-10-06 06:00Z' + $2 % 50 * interval '5 min') AS a (at)
		 ON CONFLICT DO NOTHING`,
		`SELECT pg_notify('slot_change', 'd ' || $1::bigint) WHERE $2 % 3 = 0`,
	}
	for ctx.Err() == nil {
		// Rows are locked in order of scan: writers may meet in a deadlock, which has no effect.
		sql, doctor := statements[rand.IntN(len(statements))], doctors[rand.IntN(len(doctors))]
		if _, err := c.db.Pool.Exec(context.Background(), sql, doctor, rand.IntN(1000)); err != nil && sqlState(err) != "40P01" {
			return err
		}
	}
	return nil
}
