package availability

import (
	"context"
	"fmt"
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
