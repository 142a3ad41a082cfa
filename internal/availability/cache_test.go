package availability

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

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
	n, err := fetch(t.Context(), c, k, func(context.Context) (int64, time.Duration, error) {
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
				ask := func() Day {
					day, err := fetch(t.Context(), c, someDay, func(context.Context) (Day, time.Duration, error) {
						reads++
						return Day{AsOf: c.clock.Load().when(time.Now())}, tt.life, nil
					})
					must(t, err)
					return day
				}
				ask()
				time.Sleep(time.Minute)
				tt.feed(c, begun)
				time.Sleep(time.Nanosecond)
				day := ask()
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

// counter counts queries.
type counter struct{ n atomic.Int64 }

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}
func (*counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// counted is a pool of few connections, and how many queries came to it.
func (p *practice) counted() (*pgxpool.Pool, *counter) {
	p.t.Helper()
	config := p.pool.Config()
	queries := &counter{}
	config.ConnConfig.Tracer, config.MaxConns = queries, 2
	pool, err := pgxpool.NewWithConfig(p.t.Context(), config)
	must(p.t, err)
	p.t.Cleanup(pool.Close)
	return pool, queries
}

// B58: the cache lapses before 500 readers of 300 slots. Each list is read once, while somebody
// holds the locks of all slots.
func TestLapse(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	p.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
	        SELECT $1, at, at + interval '1 min', now(), 3
	          FROM generate_series(timestamptz '2026-10-06 06:00Z', '2026-10-06 10:59Z', '1 min') AS at`, p.doctor)
	locked, err := p.pool.Begin(t.Context())
	must(t, err)
	defer locked.Rollback(context.WithoutCancel(t.Context())) //nolint:errcheck // nothing was done
	_, err = locked.Exec(t.Context(), `SELECT FROM time_slot FOR UPDATE`)
	must(t, err)

	pool, queries := p.counted()
	c := newCache(nil)
	s := New(pool, Config{Now: func() time.Time { return now }, Cache: c})
	for round := range int64(3) {
		sleep(t.Context(), time.Millisecond)
		together(500, func(i int) {
			if i%2 == 0 {
				if d, err := s.Day(t.Context(), p.doctor, day(t, "2026-10-06")); err != nil || len(d.Slots) != 300 {
					t.Errorf("%d slots, %v", len(d.Slots), err)
				}
			} else if d, err := s.Days(t.Context(), p.doctor, day(t, "2026-10-06"), 2); err != nil || d[0].Free != 900 {
				t.Errorf("%+v, %v", d, err)
			}
		})
		if n := queries.n.Load(); n != 2*(round+1) {
			t.Errorf("after round %d: %d queries, want 2 a round", round, n)
		}
		c.lists.Purge()
	}
}

// While PostgreSQL is away lists are answered with for as long as they are good, and then refused.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	p.slot("10-06 12:00", 1, 0)
	c := newCache(nil)
	sleep(t.Context(), time.Millisecond)
	p.config.Cache = c
	want := p.day(p.Service, "2026-10-06")
	config := p.pool.Config()
	config.ConnConfig.Port = 1
	nowhere, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	defer nowhere.Close()
	s := New(nowhere, p.config)
	same(t, "what is kept", p.day(s, "2026-10-06"), want)
	c.lists.Purge()
	_, err = s.Day(t.Context(), p.doctor, day(t, "2026-10-06"))
	wantCode(t, err, booking.Unavailable)
}

// slotsNow are the slots of a day and what is left of three, without the time at which it was so.
func (p *practice) lists(s *Service) (found [2]any) {
	p.t.Helper()
	d, err := s.Day(p.t.Context(), p.doctor, day(p.t, "2026-10-06"))
	must(p.t, err)
	days, err := s.Days(p.t.Context(), p.doctor, day(p.t, "2026-10-05"), 3)
	must(p.t, err)
	return [2]any{d.Slots, days}
}

// Cache on and cache off give equal answers: after each of many random changes, as soon as the
// feed has told of it, at two instances that share Redis, and with one that lies.
func TestCacheEqualsDatabase(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"Redis", "LyingRedis", "Alone"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t, "Europe/Berlin")
			var url string
			if kind != "Alone" {
				var relay *relay
				relay, url = newRelay(t, devenv.NewRedis(t))
				if kind == "LyingRedis" {
					relay.play(newLiar(1).answer)
				}
			}
			var cached []*Service
			for range 2 {
				var r *Redis
				if url != "" {
					r = openRedis(t, url, nil)
				}
				cached = append(cached, New(p.pool, Config{Now: p.config.Now, Cache: newCache(r)}))
			}
			if differ, hits := p.changeAtRandom(cached, true); differ > 0 || hits == 0 {
				t.Errorf("%d of the answers differ, %d came from memory", differ, hits)
			}
			if kind == "Alone" {
				p := newPractice(t, "Europe/Berlin")
				cached := []*Service{New(p.pool, Config{Now: p.config.Now, Cache: newCache(nil)})}
				if differ, _ := p.changeAtRandom(cached, false); differ == 0 {
					t.Error("without the feed the answers are the same: the test proves nothing")
				}
			}
		})
	}
}

// changeAtRandom changes slots, and returns how many answers of the cached services then differ
// from the database's, and how many answers they had in memory.
func (p *practice) changeAtRandom(cached []*Service, feed bool) (differ, hits int) {
	dice := rand.New(rand.NewPCG(1, 2))
	for step := range 150 {
		slot := p.change(dice, step)
		for _, s := range cached {
			if feed && slot.ID == 0 {
				s.config.Cache.Stale(p.doctor, time.Now())
			} else if feed {
				s.config.Cache.Changed([]booking.Slot{slot})
			}
		}
		want := p.lists(p.Service)
		for range 2 {
			for _, s := range cached {
				if _, ok := s.config.Cache.lists.Get(listKey{doctor: p.doctor, from: day(p.t, "2026-10-06"), days: 1, slots: true}); ok {
					hits++
				}
				if !cmp.Equal(want, p.lists(s)) {
					differ++
				}
			}
		}
	}
	return differ, hits
}

// change changes something of one slot, and returns it as the feed does; or of many, and returns
// the zero slot.
func (p *practice) change(dice *rand.Rand, step int) (s booking.Slot) {
	p.t.Helper()
	const columns = ` RETURNING id, doctor_id, start_at, version`
	pick := `(SELECT id FROM time_slot WHERE status <> 'WITHDRAWN' ORDER BY md5(id::text || '` + fmt.Sprint(step) + `') LIMIT 1)`
	sql := []string{
		`UPDATE time_slot SET booked_count = (booked_count + 1) % (capacity + 1) WHERE id = ` + pick + columns,
		`UPDATE time_slot SET capacity = greatest(booked_count, 1) + (version % 3) WHERE id = ` + pick + columns,
		`UPDATE time_slot SET status = CASE status WHEN 'OPEN' THEN 'CLOSED' ELSE 'OPEN' END WHERE id = ` + pick + columns,
		`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = ` + pick + columns,
		`DELETE FROM time_slot WHERE id = ` + pick + columns,
	}
	switch n := dice.IntN(10); {
	case n == 9:
		p.exec(`UPDATE time_slot SET booked_count = 0`)
		return s
	case n > 5 || step < 10:
		start := time.Date(2026, 10, 5, 20, step*15, 0, 0, time.UTC)
		must(p.t, p.pool.QueryRow(p.t.Context(), `INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
			VALUES ($1, $2, $2::timestamptz + interval '15 min', '2026-01-01', 1 + $3::int % 4)`+columns, p.doctor, start, step).
			Scan(&s.ID, &s.DoctorID, &s.StartAt, &s.Version))
	default:
		must(p.t, p.pool.QueryRow(p.t.Context(), sql[dice.IntN(len(sql))]).Scan(&s.ID, &s.DoctorID, &s.StartAt, &s.Version))
	}
	return s
}

// Lists are read on through every trouble of Redis.
func TestListsInTrouble(t *testing.T) {
	t.Parallel()
	for name, trouble := range troubles {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t, "Europe/Berlin")
			p.slot("10-06 12:00", 1, 0)
			server := devenv.NewRedis(t)
			relay, url := newRelay(t, server)
			s := New(p.pool, Config{Now: p.config.Now, Cache: newCache(openRedis(t, url, nil))})
			want := p.lists(p.Service)
			end := trouble(t, relay, server)
			for range 5 {
				s.config.Cache.lists.Purge()
				same(t, "lists", p.lists(s), want)
			}
			end()
		})
	}
}

// An answer is good for as long as all lists in it are.
func TestTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, r := newCache(nil), &reader{life: 3 * time.Second}
		ctx, trace := WithTrace(t.Context())
		read := func(k listKey) {
			_, err := fetch(ctx, c, k, func(context.Context) (int, time.Duration, error) { return 1, r.life, nil })
			must(t, err)
		}
		time.Sleep(time.Nanosecond)
		other := someDay
		other.doctor = 8
		read(someDay)
		time.Sleep(2 * time.Second)
		read(other)
		read(someDay) // from memory
		if !trace.Good() {
			t.Error("nothing has changed")
		}
		time.Sleep(time.Second)
		if trace.Good() {
			t.Error("a list in it has had its time")
		}
		ctx, trace = WithTrace(t.Context())
		read(other)
		if !trace.Good() {
			t.Error("only the other list is in it")
		}
		c.Changed([]booking.Slot{{DoctorID: 8, StartAt: time.Date(2026, 10, 5, 12, 0, 0, 0, time.UTC)}})
		if trace.Good() {
			t.Error("a list in it has changed")
		}
		ctx, trace = WithTrace(t.Context())
		if untraced(ctx); trace.Good() {
			t.Error("with a list that came past the cache")
		}
		_, trace = WithTrace(t.Context())
		time.Sleep(listLife - 1)
		if !trace.Good() {
			t.Error("without lists it is good for as long as a list")
		}
		time.Sleep(time.Nanosecond)
		if trace.Good() {
			t.Error("without lists it is good for longer than a list")
		}
	})
}

func BenchmarkDay(b *testing.B) {
	p := newPractice(b, "Europe/Berlin")
	for n := range 40 {
		p.slot(fmt.Sprintf("10-06 %02d:%02d", 8+n/4, n%4*15), 3, 1)
	}
	c := newCache(nil)
	sleep(b.Context(), time.Millisecond)
	for name, s := range map[string]*Service{"Memory": New(p.pool, Config{Now: p.config.Now, Cache: c}), "PostgreSQL": p.Service} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !slices.ContainsFunc(p.day(s, "2026-10-06").Slots, func(s booking.Slot) bool { return s.Free() == 2 }) {
					b.Fatal("no slot")
				}
			}
		})
	}
}
