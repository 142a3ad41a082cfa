package availability

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

// newCache is one whose feed is alive and has told of nothing, and does not say how far it has come.
func newCache(r *Redis) *Cache {
	began := time.Now()
	c := NewCache(r, func() time.Time { return began })
	c.Resync(1, time.Now())
	c.changes.all.ns.Store(0)
	return c
}

var someDay = listKey{doctor: 7, from: booking.Date{Year: 2026, Month: 10, Day: 5}, days: 1, slots: true}

// reader counts reads, and answers with the number of the read.
type reader struct {
	life   time.Duration
	during func()
	reads  atomic.Int64
}

func (r *reader) fetch(t testing.TB, c *Cache, k listKey) int64 {
	t.Helper()
	return r.fetchIn(t.Context(), t, c, k)
}

func (r *reader) fetchIn(ctx context.Context, t testing.TB, c *Cache, k listKey) int64 {
	t.Helper()
	n, err := fetch(ctx, c, k, func(context.Context) (int64, time.Duration, error) {
		n := r.reads.Add(1)
		if r.during != nil {
			r.during()
		}
		return n, r.life, nil
	})
	must(t, err)
	return n
}

// A list is kept for as long as it is good. Each row is one end of its life.
func TestCacheLife(t *testing.T) {
	t.Parallel()
	at := func(day int) []booking.Slot {
		return []booking.Slot{{DoctorID: 7, StartAt: time.Date(2026, 10, day, 12, 0, 0, 0, time.UTC)}}
	}
	const forever = time.Duration(math.MaxInt64)
	for _, tt := range []struct {
		name  string
		life  time.Duration
		after time.Duration
		event func(c *Cache)
		kept  bool
	}{
		{"Kept", forever, listLife - 1, nil, true},
		{"Old", forever, listLife, nil, false},
		{"NextBegins", time.Second, time.Second, nil, false},
		{"NextBeginsSoon", time.Second, time.Second - 1, nil, true},
		{"Changed", forever, 1, func(c *Cache) { c.Changed(at(5)) }, false},
		{"ChangedLateInTheWest", forever, 1, func(c *Cache) { c.Changed(at(6)) }, false},
		{"ChangedEarlyInTheEast", forever, 1, func(c *Cache) { c.Changed(at(4)) }, false},
		{"AnotherDayChanged", forever, 1, func(c *Cache) { c.Changed(at(7)); c.Changed(at(3)) }, true},
		{"AnotherDoctorChanged", forever, 1, func(c *Cache) {
			c.Changed([]booking.Slot{{DoctorID: 8, StartAt: time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)}})
		}, true},
		{"Stale", forever, 1, func(c *Cache) { c.Stale(7, time.Time{}) }, false},
		{"AnotherStale", forever, 1, func(c *Cache) { c.Stale(8, time.Time{}) }, true},
		{"Resync", forever, 1, func(c *Cache) { c.Resync(2, time.Now()) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, r := newCache(nil), &reader{life: tt.life}
				time.Sleep(time.Nanosecond)
				r.fetch(t, c, someDay)
				time.Sleep(tt.after)
				if tt.event != nil {
					tt.event(c)
				}
				if kept := r.fetch(t, c, someDay) == 1; kept != tt.kept {
					t.Errorf("kept: %t, want %t", kept, tt.kept)
				}
			})
		})
	}
}

// A list that is old is good again for as long as the feed has gone on and told of nothing.
func TestCacheRenewed(t *testing.T) {
	t.Parallel()
	change := []booking.Slot{{DoctorID: 7, StartAt: time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)}}
	for _, tt := range []struct {
		name  string
		life  time.Duration
		feed  func(c *Cache, begun time.Time) // after a minute; as if it had caught up with now, unless it says otherwise
		reads int64
	}{
		{"Quiet", time.Hour, func(*Cache, time.Time) {}, 1},
		{"Changed", time.Hour, func(c *Cache, _ time.Time) { c.Changed(change) }, 2},
		{"Lost", time.Hour, func(c *Cache, _ time.Time) { c.Resync(2, time.Now()) }, 2},
		{"Away", time.Hour, func(c *Cache, _ time.Time) { c.caughtUp = func() time.Time { return time.Time{} } }, 2},
		{"StuckSince", time.Hour, func(c *Cache, begun time.Time) { c.caughtUp = func() time.Time { return begun.Add(30 * time.Second) } }, 2},
		{"NextHasBegun", 30 * time.Second, func(*Cache, time.Time) {}, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, begun, reads := newCache(nil), time.Now(), int64(0)
				c.caughtUp = time.Now
				time.Sleep(time.Nanosecond)
				ask := func() (Day, *Trace) {
					ctx, trace := WithTrace(t.Context())
					day, err := fetch(ctx, c, someDay, func(context.Context) (Day, time.Duration, error) {
						reads++
						return Day{AsOf: c.clock.Load().when(time.Now())}, tt.life, nil
					})
					must(t, err)
					return day, trace
				}
				_, trace := ask()
				time.Sleep(time.Minute)
				tt.feed(c, begun)
				time.Sleep(time.Nanosecond)
				renewed, asOf, ok := trace.Renewed()
				day, _ := ask()
				if same := reads == 1; ok != same || ok && (!asOf.Equal(day.AsOf) || !renewed.Good()) {
					t.Errorf("the answer is renewed: %t, as of %s, the list of %s", ok, asOf, day.AsOf)
				}
				if _, _, ok := trace.Renewed(); ok != (reads == 1) {
					t.Errorf("renewed by a list that was read again: %t", ok)
				}
				if reads != tt.reads {
					t.Errorf("%d reads, want %d", reads, tt.reads)
				}
				if age := time.Since(day.AsOf); age < 0 || age > listLife {
					t.Errorf("as of %s ago", age)
				}
			})
		})
	}
}

// An answer is renewed only if it is known to be of lists and nothing else that has changed.
func TestTraceRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCache(nil)
		c.caughtUp = time.Now
		time.Sleep(time.Nanosecond)
		other := listKey{doctor: 8, from: someDay.from, days: 3}
		ctx, trace := WithTrace(t.Context())
		none, day := &reader{life: time.Hour}, Day{}
		_, nothing := WithTrace(t.Context())
		none.fetchIn(ctx, t, c, other)
		_, err := fetch(ctx, c, someDay, func(context.Context) (Day, time.Duration, error) { return day, time.Hour, nil })
		must(t, err)
		past, untracedToo := WithTrace(t.Context())
		none.fetchIn(past, t, c, other)
		untraced(past)
		time.Sleep(time.Minute)
		if trace.Good() {
			t.Error("a minute later it is as good as new")
		}
		if _, _, ok := nothing.Renewed(); ok {
			t.Error("an answer without lists is renewed")
		}
		if _, _, ok := untracedToo.Renewed(); ok {
			t.Error("an answer with a list past the cache is renewed")
		}
		renewed, asOf, ok := trace.Renewed()
		if age := time.Since(asOf); !ok || !renewed.Good() || age < 0 || age > listLife {
			t.Errorf("renewed: %t, as of %s ago", ok, age)
		}
		c.Changed([]booking.Slot{{DoctorID: 8, StartAt: time.Date(2026, 10, 6, 12, 0, 0, 0, time.UTC)}})
		time.Sleep(time.Nanosecond)
		if _, _, ok := renewed.Renewed(); ok || renewed.Good() {
			t.Error("one of its lists has changed, and it is good")
		}
	})
}

// A change makes nobody read again who did not ask for it, for as many doctors as a large practice has
// and as many days as are open.
func TestChangesApart(t *testing.T) {
	t.Parallel()
	c := newCache(nil)
	at := time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)
	c.Changed([]booking.Slot{{DoctorID: 7, StartAt: at}})
	changed := map[listKey]bool{}
	for doctor := range booking.DoctorID(len(c.changes.doctors)) {
		for n := range 29 {
			k := listKey{doctor: doctor, from: someDay.from.AddDays(n - 14), days: 1, slots: true}
			if c.changes.last(k).After(c.changes.began) {
				changed[k] = true
			}
		}
	}
	want := map[listKey]bool{}
	for day := 4; day <= 6; day++ { // in some zone it is on
		want[listKey{doctor: 7, from: booking.Date{Year: 2026, Month: 10, Day: day}, days: 1, slots: true}] = true
	}
	if !maps.Equal(changed, want) {
		t.Errorf("lists that are read again: %v, want %v", changed, want)
	}
}

// What a change has overtaken is not kept, and nobody who knows of the change gets it.
func TestCacheOvertaken(t *testing.T) {
	t.Parallel()
	for _, overtaken := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			c, r := newCache(nil), &reader{life: time.Hour}
			began, change := make(chan struct{}), make(chan struct{})
			r.during = func() {
				if r.reads.Load() == 1 {
					close(began)
					<-change
				}
			}
			time.Sleep(time.Nanosecond)
			first := make(chan int64)
			go func() { first <- r.fetch(t, c, someDay) }()
			<-began
			if overtaken {
				time.Sleep(time.Nanosecond)
				c.Changed([]booking.Slot{{DoctorID: 7, StartAt: time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)}})
				time.Sleep(time.Nanosecond)
				if n := r.fetch(t, c, someDay); n != 2 {
					t.Errorf("after the change read %d was joined", n)
				}
			}
			close(change)
			if n := <-first; n != 1 {
				t.Errorf("the first got read %d", n)
			}
			if n := r.fetch(t, c, someDay); overtaken != (n == 2) {
				t.Errorf("overtaken: %t, then read %d", overtaken, n)
			}
		})
	}
}

// Those who wait for a list share one read; one that gives up leaves the others theirs, and an
// error is for nobody else.
func TestCacheTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, r := newCache(nil), &reader{life: time.Hour}
		r.during = func() { time.Sleep(time.Second) }
		time.Sleep(time.Nanosecond)
		gone, cancel := context.WithCancel(t.Context())
		impatient := make(chan error)
		go func() {
			_, err := fetch(gone, c, someDay, func(ctx context.Context) (int64, time.Duration, error) {
				time.Sleep(time.Second)
				return 100, time.Hour, ctx.Err()
			})
			impatient <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-impatient; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		together(500, func(int) {
			if n := r.fetch(t, c, someDay); n != 100 {
				t.Errorf("got read %d", n)
			}
		})
		other := someDay
		other.doctor = 8
		together(500, func(int) { r.fetch(t, c, other) })
		if n := r.reads.Load(); n != 1 {
			t.Errorf("%d reads for 500 who waited together", n)
		}
		failed := errors.New("away")
		other.doctor = 9
		if _, err := fetch(t.Context(), c, other, func(context.Context) (int64, time.Duration, error) { return 0, 0, failed }); !errors.Is(err, failed) {
			t.Error(err)
		}
		if n := r.fetch(t, c, other); n != 2 {
			t.Errorf("after an error: read %d", n)
		}
	})
}

// From Redis comes what another instance has read, as old as it is, unless something speaks
// against it.
func TestCacheTiers(t *testing.T) {
	t.Parallel()
	server := devenv.NewRedis(t)
	r, client := patientRedis(t, server.URL()), clientOf(t, server)
	read := &reader{life: time.Hour}
	k := someDay
	fill := func(k listKey) (a, b *Cache) { // a has read it, b has not
		t.Helper()
		a, b = newCache(r), newCache(r)
		sleep(t.Context(), 2*listSkew)
		read.fetch(t, a, k)
		await(t, "it is in Redis", func() bool { return client.Exists(t.Context(), k.String()).Val() == 1 })
		return a, b
	}
	a, b := fill(k)
	if n := read.fetch(t, b, k); n != 1 {
		t.Fatalf("read %d: it was not taken from Redis", n)
	}
	first, _ := a.lists.Get(k)
	second, _ := b.lists.Get(k)
	if second.until.After(first.until) || second.read.After(first.read) || first.until.Sub(second.until) > time.Second {
		t.Errorf("read %s later and good %s longer than where it came from", second.read.Sub(first.read), second.until.Sub(first.until))
	}
	if ttl := client.PTTL(t.Context(), k.String()).Val(); ttl <= 0 || ttl > listLife {
		t.Errorf("it lives for %s in Redis", ttl)
	}

	for name, against := range map[string]func(c *Cache, k listKey){
		"a change heard later": func(c *Cache, k listKey) {
			c.Changed([]booking.Slot{{DoctorID: k.doctor, StartAt: time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)}})
		},
		"a feed that is away":       func(c *Cache, _ listKey) { c.caughtUp = func() time.Time { return time.Time{} } },
		"no feed yet":               func(c *Cache, _ listKey) { c.clock.Store(nil) },
		"the database's clock":      func(c *Cache, _ listKey) { c.Resync(2, time.Now().Add(time.Hour)) },
		"a life without end":        func(_ *Cache, k listKey) { client.Persist(t.Context(), k.String()) },
		"a life that is too long":   func(_ *Cache, k listKey) { client.PExpire(t.Context(), k.String(), time.Hour) },
		"another list in its place": func(_ *Cache, k listKey) { client.Copy(t.Context(), someDay.String(), k.String(), 0, true) },
		"text in its place":         func(_ *Cache, k listKey) { client.Set(t.Context(), k.String(), "1", time.Second) },
		"another type in its place": func(_ *Cache, k listKey) {
			client.Del(t.Context(), k.String())
			client.RPush(t.Context(), k.String(), "1")
		},
		"unknown words in its place": func(_ *Cache, k listKey) {
			client.Set(t.Context(), k.String(), fmt.Sprintf(`{"Of":%q,"X":1}`, k), time.Second)
		},
		"nothing": nil,
	} {
		k := someDay
		k.doctor = booking.DoctorID(100 + read.reads.Load())
		_, c := fill(k)
		if against != nil {
			against(c, k)
		}
		before := read.reads.Load()
		read.fetch(t, c, k)
		if again := read.reads.Load() > before; again != (against != nil) {
			t.Errorf("%s speaks against it: read again: %t", name, again)
		}
	}
}
