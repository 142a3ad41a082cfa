package availability

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

// now is a Monday, 11:30 in Berlin and 18:30 in Tokyo.
var now = time.Date(2026, 10, 5, 9, 30, 0, 0, time.UTC)

// practice is a database with one doctor, and a clock that stands at now.
type practice struct {
	*Service
	t      testing.TB
	doctor booking.DoctorID
	loc    *time.Location
}

func newPractice(t testing.TB, zone string) *practice {
	t.Helper()
	p := &practice{t: t, Service: at(devenv.NewDB(t).Pool, now)}
	var err error
	if p.loc, err = booking.LoadZone(zone); err != nil {
		t.Fatal(err)
	}
	p.doctor = p.newDoctor(zone)
	return p
}

// at is a service whose clock stands.
func at(pool *pgxpool.Pool, now time.Time) *Service {
	return New(pool, Config{Now: func() time.Time { return now }})
}

func (p *practice) newDoctor(zone string) booking.DoctorID {
	p.t.Helper()
	return one[booking.DoctorID](p, `
		WITH o AS (INSERT INTO organization (name, time_zone) VALUES (gen_random_uuid(), $1) RETURNING id)
		INSERT INTO doctor (organization_id, name) SELECT id, 'Dr.' FROM o RETURNING id`, zone)
}

// slot makes an open slot of half an hour with capacity places, of which booked are taken, that
// starts when clocks in the doctor's zone show start, such as "10-05 11:30".
func (p *practice) slot(start string, capacity, booked int) booking.SlotID {
	p.t.Helper()
	at, err := time.ParseInLocation("2006-01-02 15:04", "2026-"+start, p.loc)
	if err != nil {
		p.t.Fatal(err)
	}
	return one[booking.SlotID](p, `
		INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity, booked_count)
		VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', '2026-01-01', $3, $4) RETURNING id`,
		p.doctor, at, capacity, booked)
}

func (p *practice) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

func one[T any](p *practice, sql string, args ...any) T {
	p.t.Helper()
	var v T
	if err := p.pool.QueryRow(p.t.Context(), sql, args...).Scan(&v); err != nil {
		p.t.Fatal(err)
	}
	return v
}

// clocks are the starts of slots as clocks in the doctor's zone show them.
func (p *practice) clocks(slots []booking.Slot) []string {
	shown := []string{}
	for _, s := range slots {
		shown = append(shown, s.StartAt.In(p.loc).Format("01-02 15:04"))
	}
	return shown
}

func (p *practice) day(s *Service, date string) Day {
	p.t.Helper()
	d, err := s.Day(p.t.Context(), p.doctor, day(p.t, date))
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func day(t testing.TB, s string) booking.Date {
	t.Helper()
	d, err := booking.ParseDate(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func wantCode(t testing.TB, err error, want booking.Code) {
	t.Helper()
	var refused *booking.Error
	if !errors.As(err, &refused) || refused.Code != want {
		t.Fatalf("got %v, want %s", err, want)
	}
}

func same(t testing.TB, what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s: want (-), got (+): %s", what, diff)
	}
}

func TestDay(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	p.slot("10-06 12:00", 1, 1)
	free := p.slot("10-06 09:00", 5, 2)
	p.slot("10-06 10:00", 3, 0)
	p.slot("10-06 11:00", 3, 0)
	p.slot("10-06 13:00", 3, 0)
	p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE start_at = '2026-10-06 08:00Z'`)
	p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE start_at = '2026-10-06 09:00Z'`)
	p.exec(`UPDATE time_slot SET opens_at = '2026-10-06 05:00Z' WHERE start_at = '2026-10-06 11:00Z'`)
	other := p.newDoctor("Europe/Berlin")
	p.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
		VALUES ($1, '2026-10-06 08:30Z', '2026-10-06 09:00Z', now(), 1)`, other)

	got := p.day(p.Service, "2026-10-06")
	same(t, "all", p.clocks(got.Slots), []string{"10-06 09:00", "10-06 10:00", "10-06 12:00", "10-06 13:00"})
	same(t, "free", p.clocks(got.Free()), []string{"10-06 09:00", "10-06 13:00"})
	same(t, "first", got.Slots[0], booking.Slot{ID: free, DoctorID: p.doctor, Capacity: 5, Booked: 2, Status: booking.SlotOpen,
		StartAt: time.Date(2026, 10, 6, 7, 0, 0, 0, time.UTC), EndAt: time.Date(2026, 10, 6, 7, 30, 0, 0, time.UTC),
		OpensAt: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)})
	same(t, "head", Day{Date: got.Date, TimeZone: got.TimeZone, AsOf: got.AsOf},
		Day{Date: day(t, "2026-10-06"), TimeZone: "Europe/Berlin", AsOf: now})

	for _, date := range []string{"2026-10-07", "0001-01-01", "9999-12-31"} {
		if empty := p.day(p.Service, date); empty.Slots == nil || len(empty.Slots) != 0 || empty.TimeZone != "Europe/Berlin" || empty.AsOf != now {
			t.Errorf("a day without slots: %+v", empty)
		}
	}
	_, err := p.Day(t.Context(), -1, day(t, "2026-10-06"))
	wantCode(t, err, booking.NotFound)
}

// Without a clock of its own a service answers for the database's.
func TestDatabaseClock(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "UTC")
	p.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
		SELECT $1, now() + n * interval '1 day', now() + n * interval '1 day' + interval '1 min', now(), 1 FROM generate_series(-1, 1) AS n`, p.doctor)
	service := New(p.pool, Config{})
	before := one[time.Time](p, `SELECT clock_timestamp()`)
	var slots []booking.Slot
	for n := range 3 {
		d := p.day(service, booking.DateOf(before, time.UTC).AddDays(n-1).String())
		if d.AsOf.Before(before) || d.AsOf.After(one[time.Time](p, `SELECT clock_timestamp()`)) {
			t.Errorf("as of %s, asked after %s", d.AsOf, before)
		}
		slots = append(slots, d.Slots...)
	}
	if len(slots) != 1 || slots[0].StartAt.Before(before) {
		t.Errorf("slots that have not begun: %v", p.clocks(slots))
	}
}

func TestB56NoPastSlots(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	for _, start := range []string{"10-05 11:00", "10-05 11:30", "10-05 12:00"} {
		p.slot(start, 2, 1)
	}
	check := func() {
		t.Helper()
		got := p.day(p.Service, "2026-10-05")
		same(t, "at 11:30", p.clocks(got.Slots), []string{"10-05 12:00"})
		days, err := p.Days(t.Context(), p.doctor, day(t, "2026-10-05"), 1)
		if err != nil || days[0].Free != 1 || days[0].Capacity != 2 || !days[0].FirstFree.Equal(got.Slots[0].StartAt) {
			t.Errorf("%+v, %v", days, err)
		}
	}
	check()
	// A cancel of the 11:00 visit brings back nothing that could be booked.
	p.exec(`UPDATE time_slot SET booked_count = 0 WHERE start_at = '2026-10-05 09:00Z'`)
	check()
	same(t, "a minute earlier", p.clocks(p.day(at(p.pool, now.Add(-time.Minute)), "2026-10-05").Slots),
		[]string{"10-05 11:30", "10-05 12:00"})
}

func TestB48DaysOfTheDoctorsZone(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Asia/Tokyo")
	for _, start := range []string{"10-05 23:30", "10-06 00:00", "10-06 00:30", "10-06 23:59", "10-07 00:00"} {
		p.slot(start, 1, 0)
	}
	got := p.day(p.Service, "2026-10-06")
	same(t, "slots", p.clocks(got.Slots), []string{"10-06 00:00", "10-06 00:30", "10-06 23:59"})
	same(t, "zone", got.TimeZone, "Asia/Tokyo")
	same(t, "the day before", p.clocks(p.day(p.Service, "2026-10-05").Slots), []string{"10-05 23:30"})
}

// Every slot is on exactly one day, the one that clocks there show, where they change at midnight too.
func TestDayAcrossClockChanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ zone, first string }{
		{"America/Havana", "2026-10-31"}, // 00:00 twice on 1 November
		{"America/Havana", "2027-03-13"}, // no 00:00 on the 14th
		{"Europe/Berlin", "2026-10-24"},
		{"Atlantic/Azores", "2027-03-27"},
		{"Antarctica/Troll", "2027-03-27"}, // two hours
	} {
		t.Run(tt.zone+" "+tt.first, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t, tt.zone)
			first := day(t, tt.first)
			from, to := first.At(0, p.loc), first.AddDays(3).At(0, p.loc)
			p.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
				SELECT $1, at, at + interval '1 hour', '2026-01-01', 1
				  FROM generate_series($2::timestamptz, $3::timestamptz - interval '1 min', interval '30 min') AS at`, p.doctor, from, to)
			days, err := p.Days(t.Context(), p.doctor, first, 3)
			if err != nil {
				t.Fatal(err)
			}
			total := 0
			for i, summary := range days {
				date := first.AddDays(i)
				slots := p.day(p.Service, date.String()).Slots
				for _, s := range slots {
					if got := booking.DateOf(s.StartAt, p.loc); got != date {
						t.Errorf("%s has a slot of %s", date, got)
					}
				}
				if summary.Date != date || summary.Free != len(slots) || !summary.FirstFree.Equal(slots[0].StartAt) {
					t.Errorf("%s has %d slots from %s, summed up as %+v", date, len(slots), slots[0].StartAt, summary)
				}
				total += len(slots)
			}
			if want := int(to.Sub(from) / (30 * time.Minute)); total != want {
				t.Errorf("%d slots on three days, want %d", total, want)
			}
		})
	}
}

func TestDays(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	p.slot("10-05 09:00", 9, 0) // begun
	p.slot("10-05 12:00", 3, 3)
	p.slot("10-05 13:00", 3, 1)
	p.slot("10-05 14:00", 4, 0)
	p.slot("10-07 09:00", 2, 2)
	p.slot("10-08 09:00", 7, 0)
	p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE start_at = '2026-10-08 07:00Z'`)
	p.slot("10-08 10:00", 1, 0)
	p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE start_at = '2026-10-08 08:00Z'`)
	p.slot("10-09 09:00", 5, 1)
	p.exec(`UPDATE time_slot SET opens_at = '2026-10-06' WHERE start_at = '2026-10-09 07:00Z'`)
	p.slot("10-10 00:00", 6, 0) // past the end

	got, err := p.Days(t.Context(), p.doctor, day(t, "2026-10-05"), 5)
	if err != nil {
		t.Fatal(err)
	}
	first := func(d, h int) *time.Time { at := time.Date(2026, 10, d, h, 0, 0, 0, time.UTC); return &at }
	same(t, "days", got, []booking.DaySummary{
		{Date: day(t, "2026-10-05"), Free: 6, Capacity: 10, FirstFree: first(5, 11)},
		{Date: day(t, "2026-10-06")},
		{Date: day(t, "2026-10-07"), Capacity: 2},
		{Date: day(t, "2026-10-08")},
		{Date: day(t, "2026-10-09"), Free: 4, Capacity: 5, FirstFree: first(9, 7)},
	})

	if got, err := p.Days(t.Context(), p.doctor, day(t, "9999-12-01"), MaxDays); err != nil || len(got) != MaxDays || got[30].Date.String() != "9999-12-31" {
		t.Errorf("the last days: %v, %v", got, err)
	}
	for _, n := range []int{-1, 0, MaxDays + 1} {
		_, err := p.Days(t.Context(), p.doctor, day(t, "2026-10-05"), n)
		wantCode(t, err, booking.Invalid)
	}
	_, err = p.Days(t.Context(), p.doctor, day(t, "9999-12-31"), 2)
	wantCode(t, err, booking.Invalid)
	_, err = p.Days(t.Context(), 0, day(t, "2026-10-05"), 1)
	wantCode(t, err, booking.NotFound)
}

func TestNext(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	p.slot("10-05 11:00", 1, 0) // begun
	soon := p.slot("10-05 12:00", 1, 0)
	p.slot("10-06 09:30", 1, 0)
	p.slot("10-06 09:45", 1, 1) // full
	wanted := p.slot("10-06 10:00", 1, 1)
	p.slot("10-06 10:30", 1, 0)
	p.slot("10-06 10:40", 1, 0)
	p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE start_at = '2026-10-06 08:40Z'`)
	p.slot("10-06 10:45", 1, 0)
	p.exec(`UPDATE time_slot SET opens_at = $1 WHERE start_at = '2026-10-06 08:45Z'`, now.Add(time.Microsecond))
	p.slot("10-06 10:50", 1, 0)
	p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE start_at = '2026-10-06 08:50Z'`)
	p.slot("10-06 12:00", 2, 1)
	p.exec(`UPDATE time_slot SET opens_at = $1 WHERE start_at = '2026-10-06 10:00Z'`, now)

	all := []string{"10-06 10:30", "10-06 09:30", "10-06 12:00", "10-05 12:00"}
	for limit := 1; limit <= 5; limit++ {
		got, err := p.Next(t.Context(), wanted, limit)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint("limit ", limit), p.clocks(got), all[:min(limit, len(all))])
	}
	if got, err := p.Next(t.Context(), soon, 1); err != nil || p.clocks(got)[0] != "10-06 09:30" {
		t.Errorf("beside a free slot: %v, %v, want another than itself", got, err)
	}
	if got, err := p.Next(t.Context(), 0, 3); err != nil || len(got) != 0 {
		t.Errorf("an unknown slot: %v, %v", got, err)
	}
	for _, limit := range []int{-1, 0, 101} {
		_, err := p.Next(t.Context(), wanted, limit)
		wantCode(t, err, booking.Invalid)
	}
}

func TestSlotsByID(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	a, b := p.slot("10-06 09:00", 5, 2), p.slot("01-06 09:00", 1, 0)
	p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, b)
	got, err := p.SlotsByID(t.Context(), []booking.SlotID{b, a, a, 999})
	if err != nil || len(got) != 2 || got[a].ID != a || got[a].Free() != 3 || got[b].Status != booking.SlotWithdrawn || got[b].Version != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	slot, err := p.Slot(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	same(t, "one", slot, got[a])
	_, err = p.Slot(t.Context(), 999)
	wantCode(t, err, booking.NotFound)
}

// Each question reads the index range that it is about, whatever plan the database keeps for it.
// Without the range in the query, this notices.
func TestPlans(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	p.exec(`ALTER TABLE time_slot DISABLE TRIGGER ALL`) // loads quickly
	p.exec(`INSERT INTO doctor (organization_id, name) SELECT organization_id, 'Dr.' FROM doctor, generate_series(1, 29)`)
	for nth := range 30 { // each within the time that a statement may take
		p.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
			SELECT id, at, at + interval '10 min', '2026-01-01', 10
			  FROM (SELECT id FROM doctor ORDER BY id OFFSET $1 LIMIT 1) AS one,
			       generate_series(0, 99) AS d, generate_series(0, 39) AS n,
			       LATERAL (SELECT '2026-10-05 06:00Z'::timestamptz + d * interval '1 day' + n * interval '15 min') AS a (at)
			 ORDER BY at`, nth)
	}
	// A quarter of each doctor's first slots have a place taken; a few of those are held.
	p.exec(`ALTER TABLE appointment DISABLE TRIGGER ALL`)
	for nth := range 30 {
		p.exec(`WITH s AS (UPDATE time_slot SET booked_count = 1 WHERE id % 4 = 0 AND id BETWEEN 4000 * $1 + 1 AND 4000 * $1 + 1000 RETURNING *)
			INSERT INTO appointment (slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, root_id, during, expires_at)
			SELECT id, id, 1, CASE WHEN id % 100 = 0 THEN 'HELD' ELSE 'BOOKED' END, id, 'test', '', id, tstzrange(start_at, end_at), '2026-10-04'
			  FROM s`, nth)
	}
	p.exec(`VACUUM ANALYZE`)

	rangeless := func(sql string) string {
		lines := slices.DeleteFunc(strings.Split(sql, "\n"), func(line string) bool { return strings.Contains(line, "interval '3 hours'") })
		return strings.Join(lines, "\n")
	}
	for _, tt := range []struct {
		name, sql, types, args string
		pages                  int // that may be read
		over                   bool
	}{
		{"Day", daySQL, "bigint, timestamptz, date, date", "15, '2026-10-05', '2026-10-20', '2026-10-20'", 50, false},
		{"Days", daysSQL, "bigint, timestamptz, date, date", "15, '2026-10-05', '2026-10-10', '2026-10-23'", 400, false},
		{"Next", nextSQL, "bigint, timestamptz, int", "50500, '2026-10-05', 5", 30, false},
		{"SlotsByID", slotsSQL, "bigint[], timestamptz", "'{1000,50000,110000}', '2026-10-05'", 40, false},
		{"Day without its range", rangeless(daySQL), "bigint, timestamptz, date, date", "15, '2026-10-05', '2026-10-20', '2026-10-20'", 50, true},
	} {
		for _, mode := range []string{"force_generic_plan", "force_custom_plan"} {
			plan, pages := p.explain(mode, tt.types, tt.sql, tt.args)
			t.Logf("%s, %s: %d pages", tt.name, mode, pages)
			if over := pages > tt.pages || strings.Contains(plan, "Seq Scan on time_slot") || strings.Contains(plan, "Seq Scan on appointment"); over != tt.over {
				t.Errorf("%s, %s: %d pages, at most %d allowed\n%s", tt.name, mode, pages, tt.pages, plan)
			}
		}
	}
}

// explain runs a query and tells its plan and how many pages it touched.
func (p *practice) explain(mode, types, sql, args string) (plan string, pages int) {
	p.t.Helper()
	conn, err := p.pool.Acquire(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Release()
	for _, sql := range []string{"SET plan_cache_mode = " + mode, "PREPARE q (" + types + ") AS " + sql} {
		if _, err := conn.Exec(p.t.Context(), sql); err != nil {
			p.t.Fatal(err)
		}
	}
	defer conn.Exec(p.t.Context(), "DEALLOCATE q")
	rows, err := conn.Query(p.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) EXECUTE q ("+args+")")
	if err != nil {
		p.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			p.t.Fatal(err)
		}
		plan += line + "\n"
		// The first line about buffers is that of the whole query.
		if _, buffers, ok := strings.Cut(line, "Buffers: shared "); ok && pages == 0 {
			for _, word := range strings.Fields(buffers) {
				var n int
				if _, err := fmt.Sscanf(word[strings.IndexByte(word, '=')+1:], "%d", &n); err == nil {
					pages += n
				}
			}
		}
	}
	if err := rows.Err(); err != nil || pages == 0 {
		p.t.Fatalf("explain: %v\n%s", err, plan)
	}
	return plan, pages
}
