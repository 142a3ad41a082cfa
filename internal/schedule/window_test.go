package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"openslot/internal/booking"
)

// window reads times as a person writes them, for Mondays.
func window(t testing.TB, start, end string, every int, durations ...int) Window {
	t.Helper()
	from, to, err := ParseTimes(start, end)
	if err != nil {
		t.Fatal(err)
	}
	return Window{Weekday: Monday, StartMinute: from, EndMinute: to, EveryMinutes: every, Durations: durations}
}

// flexible gives the doctor a window every day of the days from, …, until.
func (p *practice) flexible(from, until booking.Date, w Window) {
	p.t.Helper()
	t := Template{ValidFrom: from, ValidUntil: until}
	for w.Weekday = Monday; w.Weekday <= Sunday; w.Weekday++ {
		t.Windows = append(t.Windows, w)
	}
	if _, err := p.CreateSchedule(p.t.Context(), staff(p.organization), p.doctor.ID, t); err != nil {
		p.t.Fatal(err)
	}
}

// bookings is a service of the core at a time; it is for a machine that is busy with other tests.
func (p *practice) bookings(now time.Time) *booking.Service {
	return booking.New(p.pool, booking.Config{Now: func() time.Time { return now }, AcquireWait: time.Minute, Persist: time.Minute})
}

func (p *practice) patient() booking.Actor {
	p.t.Helper()
	id := one[booking.PatientID](p, `INSERT INTO patient (issuer, subject) VALUES ('https://id.example', gen_random_uuid()::text) RETURNING id`)
	return booking.Actor{Kind: booking.Patient, Subject: fmt.Sprint(id), PatientID: id}
}

func (p *practice) request(at time.Time, minutes int, key string) booking.BookRequest {
	return booking.BookRequest{Time: &booking.TimeTarget{Doctor: p.doctor.ID, StartAt: at, Minutes: minutes}, Key: key}
}

func TestTemplateWithWindows(t *testing.T) {
	t.Parallel()
	good := window(t, "09:00", "17:00", 15, 15, 30)
	with := func(change func(w *Window)) []Window {
		changed := window(t, "18:00", "20:00", 15, 15)
		change(&changed)
		return []Window{good, changed}
	}
	for want, windows := range map[string][]Window{
		"windows must be at most 200":       make([]Window, 201),
		"windows[1].weekday":                with(func(w *Window) { w.Weekday = 8 }),
		"windows[1].start":                  with(func(w *Window) { w.StartMinute = -1 }),
		"windows[1].end":                    with(func(w *Window) { w.EndMinute = w.StartMinute }),
		"windows[1].everyMinutes":           with(func(w *Window) { w.EveryMinutes = 0 }),
		"windows[1].durations must be 1 to": with(func(w *Window) { w.Durations = nil }),
		"windows[1].durations must be 1 or": with(func(w *Window) { w.Durations = []int{15, 121} }),
		"windows[1].durations must be 1":    with(func(w *Window) { w.Durations = []int{0} }),
		"windows[1].durations has 15 twice": with(func(w *Window) { w.Durations = []int{15, 30, 15} }),
		"windows[1] overlaps windows[0]":    with(func(w *Window) { w.StartMinute = 17*60 - 1 }),
		"windows[2] overlaps windows[1]": {good, {Sunday, 23 * 60, 26 * 60, 60, []int{60}}, // into Monday
			window(t, "01:00", "03:00", 60, 60)},
	} {
		err := Template{ValidFrom: date(t, "2026-10-05"), Windows: windows}.check()
		if code(err) != booking.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want INVALID with %q", err, want)
		}
	}
	both := Template{ValidFrom: date(t, "2026-10-05"), Windows: []Window{good}, Shifts: []Shift{shift(t, "09:00", "10:00", 30, 30)}}
	if err := both.check(); code(err) != booking.Invalid {
		t.Errorf("shifts and windows: %v", err)
	}
	if err := (Template{ValidFrom: date(t, "2026-10-05"), Windows: with(func(*Window) {})}).check(); err != nil {
		t.Error(err)
	}
}

// A day has one template, of whichever kind; generation makes no slots of windows.
func TestCreateFlexibleSchedule(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	w := window(t, "09:00", "12:00", 15, 30, 15)
	p.flexible(date(t, "2026-10-05"), date(t, "2026-10-11"), w)
	fixed := daily(shift(t, "09:00", "10:00", 30, 30))[0]
	fixed.ValidFrom = date(t, "2026-10-11")
	_, err := p.CreateSchedule(t.Context(), staff(p.organization), p.doctor.ID, fixed)
	wantCode(t, err, booking.ScheduleInUse)
	fixed.ValidFrom = date(t, "2026-10-12")
	if _, err := p.CreateSchedule(t.Context(), staff(p.organization), p.doctor.ID, fixed); err != nil {
		t.Fatal(err)
	}
	if n := p.generate(p.Service, 8); n != 2 { // of the eighth day, the 12th
		t.Errorf("%d slots, want 2", n)
	}
	p.newDoctor(p.organization, "Dr. Bob")
	if n, err := p.GenerateAll(t.Context(), 8, func(_, total int) {
		if total != 1 {
			t.Errorf("%d doctors to generate, want 1", total)
		}
	}); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	f, err := p.FreeStarts(t.Context(), booking.Actor{}, StartsQuery{p.doctor.ID, date(t, "2026-10-11"), 30})
	if err != nil || len(f.Starts) != 11 || !slices.Equal(f.Durations, []int{15, 30}) || f.TimeZone != "Europe/Berlin" || !f.AsOf.Equal(now) {
		t.Errorf("%+v, %v", f, err)
	}
	p.refuses(func(actor booking.Actor) error {
		_, err := p.CreateSchedule(t.Context(), actor, p.doctor.ID, Template{ValidFrom: date(t, "2027-01-01"), Windows: []Window{w}})
		return err
	})
}

var zones = []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo",
	"Asia/Kathmandu", "Pacific/Apia", "America/Havana", "UTC"}

// The database reads clocks as we do, on days when they change as well.
func TestWallTime(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	ctx := context.Background()
	for _, zone := range zones {
		loc, err := booking.LoadZone(zone)
		if err != nil {
			t.Fatal(err)
		}
		var days []booking.Date
		for at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).In(loc); ; { // around each change of two years
			_, until := at.ZoneBounds()
			if until.IsZero() || until.Year() > 2027 {
				break
			}
			for n := -1; n <= 1; n++ {
				days = append(days, booking.DateOf(until, loc).AddDays(n))
			}
			at = until
		}
		days = append(days, booking.Date{Year: 2026, Month: 6, Day: 15})
		for _, day := range days {
			var got []time.Time
			if err := p.pool.QueryRow(ctx, `SELECT array_agg(wall_time($1::date::timestamp + make_interval(mins => m), $2) ORDER BY m)
				FROM generate_series(0, 2880, 5) AS m`, day, zone).Scan(&got); err != nil {
				t.Fatal(err)
			}
			for i, at := range got {
				if want := day.At(5*i, loc); !at.Equal(want) {
					t.Fatalf("%s, %s, minute %d: %s, want %s", zone, day, 5*i, at.UTC(), want)
				}
			}
		}
	}
}

// What a window offers for one duration is what a shift with slots of that length would be: the same
// times, opening at the same moment.
func TestTimesOfferedAreThoseOfSlots(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	rapid.Check(t, func(rt *rapid.T) {
		zone := rapid.SampledFrom(zones).Draw(rt, "zone")
		loc, _ := booking.LoadZone(zone)
		change := time.Date(2026, rapid.SampledFrom([]time.Month{3, 4, 10, 11}).Draw(rt, "month"), 1, 0, 0, 0, 0, time.UTC).In(loc)
		if _, until := change.ZoneBounds(); !until.IsZero() {
			change = until
		}
		from := booking.DateOf(change, loc).AddDays(-1)
		s := Shift{StartMinute: rapid.IntRange(0, 95).Draw(rt, "start") * 15, EveryMinutes: rapid.SampledFrom([]int{15, 20, 60}).Draw(rt, "every"),
			SlotMinutes: rapid.SampledFrom([]int{15, 30, 45, 90}).Draw(rt, "minutes"), Capacity: 1}
		s.EndMinute = s.StartMinute + rapid.IntRange(6, 60).Draw(rt, "length")*15
		p.exec(`DELETE FROM schedule`)
		p.exec(`UPDATE organization SET time_zone = $1`, zone)
		templates := daily(s)
		p.flexible(templates[0].ValidFrom, booking.Date{}, Window{StartMinute: s.StartMinute, EndMinute: min(s.EndMinute, s.StartMinute+1440),
			EveryMinutes: s.EveryMinutes, Durations: []int{s.SlotMinutes}})
		var want, got []PlannedSlot
		want = Slots(templates, loc, from, 3)
		dayFrom, _ := from.In(loc)
		dayTo, _ := from.AddDays(3).In(loc)
		rows, err := p.pool.Query(context.Background(), `SELECT * FROM times_offered($1, $2, $3, $4)`, p.doctor.ID, s.SlotMinutes, dayFrom, dayTo)
		if err != nil {
			rt.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			o := PlannedSlot{Capacity: 1}
			if err := rows.Scan(&o.StartAt, &o.EndAt, &o.OpensAt); err != nil {
				rt.Fatal(err)
			}
			got = append(got, PlannedSlot{o.StartAt.UTC(), o.EndAt.UTC(), o.OpensAt.UTC(), 1})
		}
		if diff := cmp.Diff(want, got); rows.Err() != nil || diff != "" {
			rt.Fatalf("%s from %s, %+v: %v\n%s", zone, from, s, rows.Err(), diff)
		}
	})
}

// B09: visits of 45 minutes over three units while the doctor's slots are generated, again and again:
// each call ends, in success or conflict, and no deadlock reaches anybody. At the border of a FLEXIBLE
// and a FIXED template both want the same time, and each finds what the other has made.
func TestBookWhileGenerating(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	// Monday's window lasts until 04:00 on Tuesday, when the doctor has slots from midnight on.
	p.flexible(date(t, "2026-10-05"), date(t, "2026-10-05"), window(t, "22:00", "04:00", 15, 15, 45))
	fixed := daily(shift(t, "00:00", "06:00", 30, 30))[0]
	fixed.ValidFrom = date(t, "2026-10-06")
	if _, err := p.CreateSchedule(t.Context(), staff(p.organization), p.doctor.ID, fixed); err != nil {
		t.Fatal(err)
	}
	midnight := now.Add(18 * time.Hour)
	services := []*booking.Service{p.bookings(now), p.bookings(now)}
	won := 0
	for round := range 12 {
		var patients []booking.Actor
		for range 8 {
			patients = append(patients, p.patient())
		}
		var mu sync.Mutex
		errs := together(10, func(i int) error {
			if i >= 8 {
				_, err := p.Generate(t.Context(), booking.SystemActor, p.doctor.ID, 2)
				return err
			}
			at := midnight.Add(time.Duration(i*15) * time.Minute)
			b, err := services[i%2].Book(t.Context(), patients[i], p.request(at, 45, fmt.Sprint(round)))
			switch {
			case err == nil:
				mu.Lock()
				defer mu.Unlock()
				if won++; round%3 > 0 {
					_, err = services[i%2].Cancel(t.Context(), patients[i], booking.CancelRequest{Appointment: b.Appointment.ID})
				}
			case code(err) == booking.SlotFull || code(err) == booking.SlotIsClosed:
				err = nil
			}
			return err
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		if n := p.overlapping(); n > 0 {
			t.Fatalf("round %d: %d pairs of slots overlap", round, n)
		}
		p.exec(`DELETE FROM time_slot WHERE kind = 'FIXED'`)
		if round%3 == 2 {
			p.exec(`UPDATE time_slot SET status = 'WITHDRAWN', booked_count = 0 WHERE kind = 'FLEXIBLE'`)
			p.exec(`UPDATE appointment SET status = 'CANCELLED'`)
		}
	}
	if won == 0 {
		t.Error("nothing was ever booked")
	}
}

// overlapping counts pairs of slots of a doctor that must not be: of one FLEXIBLE and any other.
func (p *practice) overlapping() int {
	return one[int](p, `
		SELECT count(*) FROM time_slot f JOIN time_slot o ON o.doctor_id = f.doctor_id AND o.id <> f.id
		    AND tstzrange(o.start_at, o.end_at) && tstzrange(f.start_at, f.end_at)
		 WHERE f.kind = 'FLEXIBLE' AND f.status <> 'WITHDRAWN' AND o.status <> 'WITHDRAWN'`)
}

// Generation makes no slot where a patient has a time, and all others.
func TestGenerateAroundTimes(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.flexible(date(t, "2026-10-05"), date(t, "2026-10-05"), window(t, "22:00", "04:00", 15, 15, 45))
	fixed := daily(shift(t, "00:00", "02:00", 30, 30))[0]
	fixed.ValidFrom = date(t, "2026-10-06")
	if _, err := p.CreateSchedule(t.Context(), staff(p.organization), p.doctor.ID, fixed); err != nil {
		t.Fatal(err)
	}
	patient, core := p.patient(), p.bookings(now)
	b, err := core.Book(t.Context(), patient, p.request(now.Add(18*time.Hour+45*time.Minute), 45, "k")) // 00:45 to 01:30
	if err != nil {
		t.Fatal(err)
	}
	p.generate(p.Service, 2)
	if diff := cmp.Diff([]string{"10-06 00:00", "10-06 00:45", "10-06 01:30"}, p.starts()); diff != "" {
		t.Error(diff)
	}
	if _, err := core.Cancel(t.Context(), patient, booking.CancelRequest{Appointment: b.Appointment.ID}); err != nil {
		t.Fatal(err)
	}
	p.generate(p.Service, 2) // adds what is missing
	if diff := cmp.Diff([]string{"10-06 00:00", "10-06 00:30", "10-06 01:00", "10-06 01:30"}, p.starts()); diff != "" {
		t.Error(diff)
	}
}

// Generation waits for whoever is claiming a time; if they did not have the doctor's lock, it would not
// see what they are about to take.
func TestGenerateWaitsForTimes(t *testing.T) {
	t.Parallel()
	for name, locked := range map[string]bool{"Locked": true, "WithoutLock": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t)
			p.schedule(p.doctor, shift(t, "08:00", "10:00", 30, 30))
			tx, err := p.pool.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(t.Context()) //nolint:errcheck // a no-op after Commit
			if locked {
				if _, err := tx.Exec(t.Context(), lockSQL, []booking.DoctorID{p.doctor.ID}); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := tx.Exec(t.Context(), `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at, kind)
				VALUES ($1, $2, $2::timestamptz + interval '45 min', 1, '2026-01-01', 'FLEXIBLE')`, p.doctor.ID, now.Add(135*time.Minute)); err != nil {
				t.Fatal(err) // 08:15 to 09:00
			}
			done := make(chan int, 1)
			go func() { n, _ := p.Generate(context.Background(), booking.SystemActor, p.doctor.ID, 1); done <- n }()
			added, waits := -1, false
			for added < 0 && !waits {
				select {
				case added = <-done:
				default:
					waits = one[bool](p, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
						WHERE a.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted)`)
				}
			}
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if added < 0 {
				added = <-done
			}
			if n := p.overlapping(); (n == 0) != locked || waits != locked || locked && added != 2 {
				t.Errorf("waited %v, added %d slots, %d pairs overlap", waits, added, n)
			}
		})
	}
}

// A time that is taken is announced as a full slot, and never as one with a place; given back, as gone.
func TestTimesAreAnnounced(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.flexible(date(t, "2026-10-05"), booking.Date{}, window(t, "08:00", "10:00", 15, 30))
	core, patient := p.bookings(now), p.patient()
	var b booking.Booking
	if got := changes(t, p.pool, func() {
		var err error
		if b, err = core.Book(t.Context(), patient, p.request(now.Add(2*time.Hour), 30, "k")); err != nil {
			t.Fatal(err)
		}
		_, err = core.Book(t.Context(), p.patient(), p.request(now.Add(2*time.Hour+15*time.Minute), 30, "k"))
		wantCode(t, err, booking.SlotFull)
		_, err = core.Book(t.Context(), patient, p.request(now.Add(-20*time.Hour), 30, "k2"))
		wantCode(t, err, booking.SlotIsClosed)
	}); strings.Count(got, "s ") != 1 || !strings.Contains(got, " 1 1 OPEN ") {
		t.Errorf("booked: %s", got)
	}
	id := b.Appointment.SlotID
	two := 2
	_, err := p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Capacity: &two})
	wantCode(t, err, booking.Invalid)
	closed := booking.SlotClosed
	if _, err := p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Status: &closed}); err != nil {
		t.Fatal(err) // appointments stand
	}
	if got := changes(t, p.pool, func() {
		if _, err := core.Cancel(t.Context(), patient, booking.CancelRequest{Appointment: b.Appointment.ID}); err != nil {
			t.Fatal(err)
		}
	}); !strings.Contains(got, " 1 0 WITHDRAWN ") {
		t.Errorf("cancelled: %s", got)
	}
}
