package live

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
)

// next100 is a week whose slots have not begun.
var next100 = booking.Date{Year: 2126, Month: time.October, Day: 7}

// future makes n slots of ten places on each of the days from next100 on.
func (c *clinic) future(doctor booking.DoctorID, days, n int) {
	c.t.Helper()
	c.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT $1, at, at + interval '10 min', 10, now()
		  FROM generate_series(0, $2 - 1) AS day, generate_series(0, $3 - 1) AS n,
		       LATERAL (SELECT timestamptz '2126-10-07 06:00Z' + day * interval '1 day' + n * interval '10 min') AS a (at)`, doctor, days, n)
}

// board is an overview screen.
type board struct {
	c      *clinic
	q      Query
	counts *Counts

	mu       sync.Mutex
	days     map[booking.DoctorID]map[booking.Date]booking.DaySummary
	messages int
}

func (c *clinic) count(q Query) *board {
	c.t.Helper()
	counts, err := c.hub.Count(context.Background(), q)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(counts.Close)
	return &board{c: c, q: q, counts: counts, days: map[booking.DoctorID]map[booking.Date]booking.DaySummary{}}
}

// run reads until the test ends.
func (b *board) run() {
	b.c.start(func(ctx context.Context) error {
		for {
			u, err := b.counts.Next(ctx)
			switch {
			case ctx.Err() != nil || errors.Is(err, ErrClosed):
				return nil
			case err != nil:
				return err
			}
			b.apply(u)
		}
	})
}

func (b *board) next() DayCounts {
	b.c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	u, err := b.counts.Next(ctx)
	if err != nil {
		b.c.t.Fatal(err)
	}
	b.apply(u)
	return u
}

func (b *board) apply(u DayCounts) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages++
	if b.days[u.DoctorID] == nil {
		b.days[u.DoctorID] = map[booking.Date]booking.DaySummary{}
	}
	for _, day := range u.Days {
		b.days[u.DoctorID][day.Date] = day
	}
}

// diff is what the board shows wrong: it must show what the database counts.
func (b *board) diff() string {
	truth := map[booking.DoctorID]map[booking.Date]booking.DaySummary{}
	for _, doctor := range b.q.Doctors {
		truth[doctor] = map[booking.Date]booking.DaySummary{}
		for n := range b.q.Days {
			truth[doctor][b.q.From.AddDays(n)] = booking.DaySummary{Date: b.q.From.AddDays(n)}
		}
	}
	rows, err := b.c.db.Pool.Query(context.Background(), `
		SELECT doctor_id, (start_at AT TIME ZONE time_zone)::date, sum(capacity - booked_count), sum(capacity),
		       min(start_at) FILTER (WHERE booked_count < capacity)
		  FROM time_slot t JOIN doctor d ON d.id = doctor_id JOIN organization o ON o.id = organization_id
		 WHERE status = 'OPEN' AND start_at > now() AND doctor_id = ANY ($1) GROUP BY 1, 2`, b.q.Doctors)
	if err != nil {
		b.c.t.Fatal(err)
	}
	var doctor booking.DoctorID
	var day booking.DaySummary
	_, err = pgx.ForEachRow(rows, []any{&doctor, &day.Date, &day.Free, &day.Capacity, &day.FirstFree}, func() error {
		if day.FirstFree != nil {
			day.FirstFree = new(day.FirstFree.UTC())
		}
		if _, ok := truth[doctor][day.Date]; ok {
			truth[doctor][day.Date] = day
		}
		return nil
	})
	if err != nil {
		b.c.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Diff(truth, b.days)
}

func (b *board) awaitTruth() {
	b.c.t.Helper()
	if !within(patience, func() bool { return b.diff() == "" }) {
		b.c.t.Fatalf("the board differs from the database (-database +board):\n%s", b.diff())
	}
}

func TestCounts(t *testing.T) {
	t.Parallel()
	c := open(t)
	tokyo := c.newDoctor("Asia/Tokyo")
	c.future(c.doctor, 4, 5)
	c.future(tokyo, 3, 5)
	c.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id % 7 = 0`)
	b := c.count(Query{Doctors: []booking.DoctorID{c.doctor, tokyo}, From: next100, Days: 3})
	for range 2 {
		if u := b.next(); len(u.Days) != 3 || u.TimeZone != map[booking.DoctorID]string{c.doctor: "Europe/Berlin", tokyo: "Asia/Tokyo"}[u.DoctorID] {
			t.Errorf("%+v", u)
		}
	}
	if diff := b.diff(); diff != "" {
		t.Fatal(diff)
	}
	slot := query[booking.SlotID](c, `SELECT min(id) FROM time_slot WHERE doctor_id = $1 AND status = 'OPEN'`, c.doctor)[0]
	for _, change := range []struct{ name, sql string }{
		{"a booking", `UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1`},
		{"full", `UPDATE time_slot SET booked_count = capacity WHERE id = $1`},
		{"closed", `UPDATE time_slot SET status = 'CLOSED', booked_count = 0 WHERE id = $1`},
		{"reopened", `UPDATE time_slot SET status = 'OPEN', capacity = capacity + 1 WHERE id = $1`},
		{"withdrawn", `UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`},
		{"brought back, opens late", `UPDATE time_slot SET status = 'OPEN', opens_at = '2126-01-01' WHERE id = $1`},
	} {
		c.exec(change.sql, slot)
		for b.diff() != "" { // it is one message, but for what is under way
			if u := b.next(); u.DoctorID != c.doctor || len(u.Days) != 1 {
				t.Errorf("%s: %+v", change.name, u)
			}
		}
	}

	// Bursts are told in few messages, to whoever reads as well as to whoever does not.
	b.run()
	before, began := b.messages, time.Now()
	for range 300 {
		c.exec(`UPDATE time_slot SET booked_count = (booked_count + 1) % capacity WHERE id % 3 = 0`)
	}
	b.awaitTruth()
	b.mu.Lock()
	defer b.mu.Unlock()
	if n, most := b.messages-before, 2*(2+int(time.Since(began)/countPace)); n > most {
		t.Errorf("%d messages of 300 changes, at most %d in that time", n, most)
	}
}

// All who count the same share it, and when the last has gone nothing is left.
func TestSharedCounts(t *testing.T) {
	t.Parallel()
	c := open(t)
	c.future(c.doctor, 2, 3)
	week := Query{Doctors: []booking.DoctorID{c.doctor}, From: next100, Days: 7}
	var boards []*board
	for n := range 50 {
		b := c.count(week)
		b.run()
		boards = append(boards, b)
		c.exec(`UPDATE time_slot SET booked_count = $1 % capacity`, n)
	}
	other := c.count(Query{Doctors: []booking.DoctorID{c.doctor}, From: next100, Days: 6})
	for _, b := range boards {
		b.awaitTruth()
	}
	if known, views := len(c.hub.tallies.known), len(c.hub.doctors[c.doctor]); known != 2 || views != 2 {
		t.Errorf("%d tallies with %d views of one doctor", known, views)
	}
	for n, b := range boards {
		b.counts.Close()
		b.counts.Close()
		if n < len(boards)-1 {
			continue
		}
		if _, err := b.counts.Next(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
	other.counts.Close()
	if len(c.hub.tallies.known) != 0 || len(c.hub.doctors) != 0 {
		t.Errorf("left: %v, %v", c.hub.tallies.known, c.hub.doctors)
	}

	for want, q := range map[booking.Code]Query{
		booking.Invalid:  {Doctors: []booking.DoctorID{c.doctor}, From: next100, Days: 32},
		booking.NotFound: {Doctors: []booking.DoctorID{c.doctor, 1 << 40}, From: next100, Days: 1},
	} {
		if _, err := c.hub.Count(t.Context(), q); codeOf(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}

	b := c.count(week)
	b.next()
	late := c.count(week)
	c.hub.Close()
	for _, b := range []*board{b, late} {
		for {
			if _, err := b.counts.Next(t.Context()); err != nil {
				if !errors.Is(err, ErrGoingAway) {
					t.Error(err)
				}
				break
			}
		}
	}
	if _, err := c.hub.Count(t.Context(), Query{Doctors: week.Doctors, From: next100, Days: 1}); !errors.Is(err, ErrGoingAway) {
		t.Error(err)
	}
}

// A slot that begins changes no row, and is counted no more from that moment on.
func TestCountsWhenSlotsBegin(t *testing.T) {
	t.Parallel()
	begin := func(t *testing.T) (*board, time.Time) {
		c := open(t)
		start := query[time.Time](c, `
			INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			SELECT $1, at, at + interval '10 min', 1, now() FROM (SELECT clock_timestamp() + interval '2 s') AS s (at)
			RETURNING start_at`, c.doctor)[0]
		c.fence()
		b := c.count(Query{Doctors: []booking.DoctorID{c.doctor}, From: booking.DateOf(start, time.UTC).AddDays(-1), Days: 3})
		u := b.next()
		if sum := u.Days[0].Free + u.Days[1].Free + u.Days[2].Free; sum != 1 && time.Now().Before(start) {
			t.Fatalf("%+v", u)
		}
		return b, start
	}
	t.Run("told", func(t *testing.T) {
		t.Parallel()
		b, _ := begin(t)
		b.run()
		b.awaitTruth()
	})
	t.Run("with a clock that stands it would go unnoticed", func(t *testing.T) {
		t.Parallel()
		b, start := begin(t)
		b.c.hub.clock.ahead.Store(int64(-time.Hour))
		b.run()
		within(patience, func() bool { return time.Now().After(start.Add(2 * countPace)) })
		b.c.exec(`UPDATE time_slot SET booked_count = 1`) // told, and still counted
		if within(time.Second, func() bool { return b.diff() == "" }) {
			t.Error("right by itself: the test above proves nothing")
		}
	})
}

// The feed is killed again and again while slots change; the last outage covers the last changes.
func TestCountsResync(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	epoch := c.epochs()
	c.listener.settledAfter = 1
	c.start(c.listener.Run)
	c.start(c.hub.Run)
	c.await("the feed lives", c.listener.Alive)
	doctors := []booking.DoctorID{c.doctor, c.newDoctor("Asia/Tokyo"), c.newDoctor("America/New_York")}
	for _, doctor := range doctors {
		c.future(doctor, 7, 20)
	}
	var boards []*board
	for n := range rounds(200) {
		b := c.count(Query{Doctors: doctors[:1+n%3], From: next100, Days: 1 + n%7})
		b.run()
		boards = append(boards, b)
		before := epoch.Load()
		c.proxy.refuse()
		if c.kill() == 0 {
			t.Fatal("there was no feed to kill")
		}
		c.exec(`UPDATE time_slot SET booked_count = (booked_count + $1) % capacity WHERE id % 5 = $1 % 5`, n)
		c.exec(`UPDATE time_slot SET status = (ARRAY['OPEN', 'CLOSED'])[1 + (id + $1) % 2] WHERE id % 11 = $1 % 11`, n)
		c.proxy.heal()
		c.await("the feed is back", func() bool { return epoch.Load() > before })
	}
	for _, b := range boards {
		b.awaitTruth()
	}
}
