package live

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

func codeOf(err error) booking.Code {
	if refusal := new(booking.Error); errors.As(err, &refusal) {
		return refusal.Code
	}
	return ""
}

func (c *clinic) pool(url string) *pgxpool.Pool {
	c.t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		c.t.Fatal(err)
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(pool.Close)
	return pool
}

// epochs counts the feed's connections.
func (c *clinic) epochs() *atomic.Int64 {
	var n atomic.Int64
	c.listener.Consumers = append(c.listener.Consumers, Consumer{Resync: func(epoch int64, _ time.Time) { n.Store(epoch) }})
	return &n
}

// kill ends the feed's backend and returns how many there were.
func (c *clinic) kill() int {
	c.t.Helper()
	return len(query[bool](c, `
		SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		 WHERE application_name = 'openslot-live' AND datname = current_database()`))
}

// B61: the feed's backend is killed, a place is booked meanwhile, and the screen shows it.
func TestKilledFeed(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	epoch := c.epochs()
	c.start(c.listener.Run)
	c.start(c.hub.Run)
	c.await("the feed lives", c.listener.Alive)
	id := c.slots(c.doctor, 3)[0]
	s := c.watch(c.doctor)
	s.awaitTruth()
	c.proxy.refuse()
	if n := c.kill(); n != 1 {
		t.Fatalf("%d connections listen", n)
	}
	c.await("the loss is noticed", func() bool { return !c.listener.Alive() })
	c.exec(`UPDATE time_slot SET booked_count = 1 WHERE id = $1`, id)
	c.proxy.heal()
	began := time.Now()
	s.awaitTruth()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
	if epoch.Load() != 2 || !c.listener.Alive() {
		t.Errorf("epoch %d, alive %t", epoch.Load(), c.listener.Alive())
	}
}

// A connection that dies in silence is found by the ping.
func TestSilentDeath(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T, pingAfter time.Duration) (*clinic, *screen, *atomic.Int64) {
		c := newClinic(t)
		epoch := c.epochs()
		c.listener.PingAfter, c.listener.PingTimeout = pingAfter, 300*time.Millisecond
		c.start(c.listener.Run)
		c.start(c.hub.Run)
		c.await("the feed lives", c.listener.Alive)
		c.slots(c.doctor, 3)
		s := c.watch(c.doctor)
		s.awaitTruth()
		c.proxy.freeze()
		c.exec(`UPDATE time_slot SET booked_count = 1`)
		return c, s, epoch
	}
	t.Run("found and healed", func(t *testing.T) {
		t.Parallel()
		_, s, epoch := begin(t, 100*time.Millisecond)
		s.awaitTruth()
		if epoch.Load() < 2 {
			t.Error("the same connection?")
		}
	})
	t.Run("without ping it would go unnoticed", func(t *testing.T) {
		t.Parallel()
		_, s, epoch := begin(t, time.Hour)
		if within(time.Second, func() bool { return s.right() || epoch.Load() > 1 }) {
			t.Error("healed without ping: the test above proves nothing")
		}
	})
	t.Run("a quiet feed that lives is left alone", func(t *testing.T) {
		t.Parallel()
		c := newClinic(t)
		epoch := c.epochs()
		c.listener.PingAfter = 10 * time.Millisecond
		c.start(c.listener.Run)
		c.await("the feed lives", c.listener.Alive)
		first := *c.listener.proven.Load()
		c.await("pings prove it", func() bool { return c.listener.proven.Load().Sub(first) > 100*time.Millisecond })
		if epoch.Load() != 1 {
			t.Errorf("epoch %d", epoch.Load())
		}
	})
	if l := new(Listener); l.pingAfter()+l.pingTimeout() >= 10*time.Second {
		t.Error("by default it takes 10 s and more")
	}
}

func TestListener(t *testing.T) {
	t.Parallel()
	t.Run("waits for a database that is away", func(t *testing.T) {
		t.Parallel()
		c := newClinic(t)
		epoch := c.epochs()
		c.proxy.refuse()
		c.start(c.listener.Run)
		if c.listener.Alive() {
			t.Error("alive without a connection")
		}
		c.proxy.heal()
		c.await("it connects", c.listener.Alive)
		if epoch.Load() != 1 {
			t.Errorf("epoch %d", epoch.Load())
		}
	})
	t.Run("a URL that is none", func(t *testing.T) {
		t.Parallel()
		if err := (&Listener{URL: "postgres://%zz"}).Run(t.Context()); err == nil {
			t.Error("no error")
		}
	})
	t.Run("a URL with settings of the pool", func(t *testing.T) {
		t.Parallel()
		c := newClinic(t)
		sign := "?"
		if strings.Contains(c.listener.URL, "?") {
			sign = "&"
		}
		c.listener.URL += sign + "pool_max_conns=3"
		c.start(c.listener.Run)
		c.await("it connects", c.listener.Alive)
	})
	t.Run("a notification that makes no sense", func(t *testing.T) {
		t.Parallel()
		c := newClinic(t)
		var log strings.Builder
		c.listener.Log = slog.New(slog.NewTextHandler(&log, nil)) // written by Run's goroutine alone
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		c.start(func(context.Context) error { ended <- c.listener.Run(ctx); return nil })
		defer cancel()
		c.start(c.hub.Run)
		c.await("the feed lives", c.listener.Alive)
		other := c.newDoctor("Europe/Berlin")
		s, o := c.subscribe(c.doctor), c.subscribe(other)
		s.next()
		o.next()
		c.exec(`SELECT pg_notify('slot_change', 's ' || $1::bigint || ' 1 2 nonsense')`, c.doctor)
		if u := s.next(); u.Kind != Snapshot {
			t.Errorf("its doctor: %+v", u)
		}
		c.fence()
		if o.sub.views[0].stale {
			t.Error("another doctor has to be read again")
		}
		c.exec(`SELECT pg_notify('slot_change', E'\nx')`)
		if u := s.next(); u.Kind != Snapshot || u.Epoch != 1 {
			t.Errorf("of no doctor: %+v", u)
		}
		if u := o.next(); u.Kind != Snapshot {
			t.Errorf("of no doctor: %+v", u)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "makes no sense"); n != 2 {
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
	})
}

// How far the feed has come is never said to be further than what it has passed on, however far
// behind it is: here by five changes all the time.
func TestCaughtUp(t *testing.T) {
	t.Parallel()
	const changes, behind = 60, 5
	c := newClinic(t)
	slot := c.slots(c.doctor, 1)[0]
	c.listener.PingAfter = time.Millisecond
	var committed [changes + 1]atomic.Pointer[time.Time] // by version
	var done atomic.Int64
	early, told := atomic.Int64{}, make(chan int64, changes)
	c.listener.Consumers = append(c.listener.Consumers, Consumer{Changed: func(slots []booking.Slot) {
		v := slots[0].Version
		within(patience, func() bool { return done.Load() >= min(v+behind, changes) })
		if at := committed[v].Load(); at == nil || c.listener.CaughtUp().After(*at) {
			early.Add(1)
		}
		told <- v
	}})
	c.start(c.listener.Run)
	c.await("the feed has come somewhere", func() bool { return !c.listener.CaughtUp().IsZero() })
	for v := int64(1); v <= changes; v++ {
		c.exec(`UPDATE time_slot SET booked_count = $2 WHERE id = $1`, slot, v)
		now := time.Now()
		committed[v].Store(&now)
		done.Store(v)
	}
	for v := int64(0); v < changes; {
		v = <-told
	}
	if n := early.Load(); n > 0 {
		t.Errorf("%d times the feed said that it had passed on what it had not", n)
	}
	c.await("it catches up", func() bool { return c.listener.CaughtUp().After(*committed[changes].Load()) })
}

func TestDelay(t *testing.T) {
	t.Parallel()
	for attempt, most := range map[int]time.Duration{0: 20 * time.Millisecond, 1: 40 * time.Millisecond, 5: 640 * time.Millisecond, 6: time.Second, 1 << 40: time.Second} {
		for range 100 {
			if d := delay(attempt); d < most/2 || d > most {
				t.Fatalf("attempt %d: %s, want %s to %s", attempt, d, most/2, most)
			}
		}
	}
}

// Consumers are told by the database's clock since when nothing is missed: from when the
// connection listens, not from when somebody began to connect.
func TestSince(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	clock := func() time.Time { return query[time.Time](c, `SELECT clock_timestamp()`)[0] }
	told := make(chan time.Time, 10)
	alive := make(chan bool, 10)
	c.listener.Consumers = append(c.listener.Consumers, Consumer{
		Resync: func(_ int64, since time.Time) { alive <- c.listener.Alive(); told <- since },
		Stale:  func(_ booking.DoctorID, since time.Time) { told <- since },
	})
	before := clock()
	between := func(what string) {
		t.Helper()
		since, after := <-told, clock()
		if since.Before(before) || since.After(after) {
			t.Errorf("%s: since %s, but it was between %s and %s", what, since, before, after)
		}
		before = after
	}
	c.start(c.listener.Run)
	between("connected")
	if <-alive {
		t.Error("the feed counts as alive before its consumers know of it")
	}
	c.await("the feed lives", c.listener.Alive)
	c.exec(`SELECT pg_notify('slot_change', 'd ' || $1::bigint)`, c.doctor)
	between("doctor to be read again")
	c.exec(`SELECT pg_notify('slot_change', 'nonsense')`)
	between("nonsense")
	c.kill()
	between("connected again")
}
