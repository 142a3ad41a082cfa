package schedule

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
)

func TestGenerate(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.schedule(p.doctor, shift(t, "09:00", "10:30", 30, 30))
	generate := func(actor booking.Actor, days int) (int, error) {
		return p.Generate(t.Context(), actor, p.doctor.ID, days)
	}

	n, err := generate(staff(p.organization), 2)
	if err != nil || n != 6 {
		t.Fatalf("added %d, %v, want 6", n, err)
	}
	want := []string{"10-05 09:00", "10-05 09:30", "10-05 10:00", "10-06 09:00", "10-06 09:30", "10-06 10:00"}
	if diff := cmp.Diff(want, p.starts()); diff != "" {
		t.Error(diff)
	}
	if n := one[int](p, `SELECT count(*) FROM time_slot WHERE end_at = start_at + interval '30 min' AND capacity = 1 AND kind = 'FIXED'
		AND status = 'OPEN' AND booked_count = 0 AND opens_at = (start_at::date - 14 + time '07:00') AT TIME ZONE 'Europe/Berlin'`); n != 6 {
		t.Errorf("%d slots as they should be, want 6", n)
	}
	if n, err := generate(booking.SystemActor, 14); err != nil || n != 12*3 {
		t.Errorf("two weeks added %d, %v, want %d", n, err, 12*3)
	}
	if n := one[int](p, `SELECT count(*) FROM time_slot WHERE opens_at > $1`, now); n != 0 {
		t.Errorf("%d slots of two weeks are not open yet", n)
	}
	// The fifteenth day is there before it opens, so that there is something to wait for at seven.
	if n, err := generate(booking.SystemActor, MaxDays); err != nil || n != 3 {
		t.Errorf("the fifteenth day added %d, %v, want 3", n, err)
	}

	p.refuses(func(actor booking.Actor) error { _, err := generate(actor, 1); return err })
	for _, days := range []int{-1, 0, MaxDays + 1} {
		_, err := generate(booking.SystemActor, days)
		wantCode(t, err, booking.Invalid)
		_, err = p.GenerateAll(t.Context(), days, nil)
		wantCode(t, err, booking.Invalid)
	}
	_, err = p.Generate(t.Context(), booking.SystemActor, -1, 1)
	wantCode(t, err, booking.NotFound)
	other := p.newDoctor(p.organization, "Dr. Without Template")
	if n, err := p.Generate(t.Context(), booking.SystemActor, other.ID, 1); err != nil || n != 0 {
		t.Errorf("without a template: %d, %v", n, err)
	}
}

// Days are those of the practice, and slots that have begun are not made.
func TestGenerateToday(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.schedule(p.doctor, shift(t, "23:00", "01:30", 30, 30))
	for _, tt := range []struct {
		name string
		now  time.Time
		want []string
	}{
		{"a slot that begins now has begun", time.Date(2026, 10, 4, 22, 30, 0, 0, time.UTC), // 00:30 on the 5th there
			[]string{"10-05 01:00", "10-05 23:00", "10-05 23:30"}},
		{"before midnight there", time.Date(2026, 10, 7, 21, 29, 0, 0, time.UTC), []string{"10-07 23:30"}},
		{"after midnight there", time.Date(2026, 10, 8, 22, 1, 0, 0, time.UTC),
			[]string{"10-09 00:30", "10-09 01:00", "10-09 23:00", "10-09 23:30"}},
	} {
		p.exec(`DELETE FROM time_slot`)
		p.generate(p.at(tt.now), 1)
		if diff := cmp.Diff(tt.want, p.starts()); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
}

// B68: the same days made at once by several processes, and again later, are there once, and what
// is booked stays booked.
func TestB68GenerateTogether(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.schedule(p.doctor, shift(t, "09:00", "17:00", 15, 15)) // 32 a day
	p.generate(p.Service, 1)
	p.exec(`UPDATE time_slot SET capacity = 3, booked_count = 2`)
	p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = (SELECT min(id) FROM time_slot)`)

	added := make([]int, 6)
	for _, err := range together(len(added), func(i int) (err error) {
		added[i], err = p.at(now).Generate(t.Context(), booking.SystemActor, p.doctor.ID, 7)
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	total := 0
	for _, n := range added {
		total += n
	}
	if again := p.generate(p.Service, 7); total != 6*32 || again != 0 {
		t.Errorf("added %v and again %d, want %d in all", added, again, 6*32)
	}
	if n := one[int](p, `SELECT count(*) FROM time_slot`); n != 7*32 {
		t.Errorf("%d slots, want %d", n, 7*32)
	}
	if n := one[int](p, `SELECT count(*) FROM time_slot WHERE capacity = 3 AND booked_count = 2 AND version = 1 + (status = 'CLOSED')::int`); n != 32 {
		t.Errorf("%d slots as they were, want 32", n)
	}

	// A withdrawn slot is history: its place in the calendar is free.
	p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = (SELECT min(id) FROM time_slot)`)
	if n := p.generate(p.Service, 7); n != 1 {
		t.Errorf("added %d for one withdrawn, want 1", n)
	}
}

// The insert alone keeps starts distinct, even where neither lock nor earlier reading helps; the
// same without its ON CONFLICT fails, so this would notice.
func TestInsertDecides(t *testing.T) {
	t.Parallel()
	careless, _, _ := strings.Cut(insertSQL, "ON CONFLICT")
	for sql, want := range map[string]string{insertSQL: "", careless: "uq_doctor_start"} {
		p := newPractice(t)
		var both plan
		slot := PlannedSlot{StartAt: now.Add(time.Hour), EndAt: now.Add(2 * time.Hour), OpensAt: now, Capacity: 1}
		both.append(p.doctor.ID, slot)
		insert := func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), sql, both.doctors, both.starts, both.ends, both.openings, both.capacities)
			return err
		}
		first, err := p.pool.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := insert(first); err != nil {
			t.Fatal(err)
		}
		second := make(chan error)
		go func() { second <- pgx.BeginFunc(t.Context(), p.pool, insert) }()
		p.waitForWaiter()
		if err := first.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := booking.Constraint(<-second); got != want {
			t.Errorf("the second insert: constraint %q, want %q", got, want)
		}
		if n := one[int](p, `SELECT count(*) FROM time_slot`); n != 1 {
			t.Errorf("%d slots, want 1", n)
		}
	}
}

// Whoever writes a calendar waits for whoever else does, and reads after that. A call that took no
// lock would not wait, and one that read before would not see the change.
func TestWritersWait(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.schedule(p.doctor, shift(t, "09:00", "10:00", 30, 30))
	added, err := 0, error(nil)
	p.whileLocked(`UPDATE schedule_shift SET end_minute = 11 * 60`, func() {
		added, err = p.Generate(t.Context(), booking.SystemActor, p.doctor.ID, 1)
	})
	if added != 4 || err != nil {
		t.Errorf("added %d, %v, want the 4 slots of the changed template", added, err)
	}
	p.exec(`DELETE FROM schedule`)
	p.whileLocked(`INSERT INTO schedule (doctor_id, valid_from) SELECT id, '2026-10-05' FROM doctor`, func() {
		_, err = p.CreateSchedule(t.Context(), booking.SystemActor, p.doctor.ID, daily(shift(t, "09:00", "10:00", 30, 30))[0])
	})
	wantCode(t, err, booking.ScheduleInUse)
}

// whileLocked runs call against a transaction that holds the doctor's calendar until call waits for
// it, and then runs sql and commits.
func (p *practice) whileLocked(sql string, call func()) {
	p.t.Helper()
	called := make(chan struct{})
	err := p.write(p.t.Context(), []booking.DoctorID{p.doctor.ID}, func(tx pgx.Tx) error {
		go func() {
			call()
			close(called)
		}()
		p.waitForWaiter()
		_, err := tx.Exec(p.t.Context(), sql)
		return err
	})
	<-called
	if err != nil {
		p.t.Fatal(err)
	}
}

// waitForWaiter returns once some transaction of this database waits for a lock.
func (p *practice) waitForWaiter() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	for waiting := 0; waiting == 0; {
		err := p.pool.QueryRow(ctx, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		if err != nil {
			p.t.Fatalf("nobody waits: %v", err)
		}
	}
}

// All doctors, in several zones, from two processes at once; the full size in a long run.
func TestGenerateAll(t *testing.T) {
	t.Parallel()
	doctors := 200
	if os.Getenv("OPENSLOT_LONG") != "" {
		doctors = 2000
	}
	const slots = 40
	p := newPractice(t)
	p.newOrganization("Tokyo", "Asia/Tokyo")
	p.newOrganization("New York", "America/New_York")
	p.exec(`INSERT INTO doctor (organization_id, name) SELECT o.id, 'Dr.' FROM organization o, generate_series(1, $1) LIMIT $1`, doctors)
	p.exec(`INSERT INTO schedule (doctor_id, valid_from) SELECT id, '2026-01-01' FROM doctor WHERE name = 'Dr.'`)
	p.exec(`INSERT INTO schedule_shift SELECT s.id, weekday, 840, 1440, 15, 15, 10 FROM schedule s, generate_series(1, 7) AS weekday`)
	morning := time.Date(2026, 10, 5, 4, 30, 0, 0, time.UTC) // before 14:00 of that day everywhere

	var calls []int
	started := time.Now()
	announced := changes(t, p.pool, func() {
		n, err := p.at(morning).GenerateAll(t.Context(), MaxDays, func(done, total int) {
			if total != doctors {
				t.Errorf("progress: %d of %d", done, total)
			}
			calls = append(calls, done)
		})
		if err != nil || n != int64(doctors*slots*MaxDays) {
			t.Fatalf("added %d, %v, want %d", n, err, doctors*slots*MaxDays)
		}
	})
	t.Logf("%d slots in %s", doctors*slots*MaxDays, time.Since(started))
	if calls[0] != 0 || calls[len(calls)-1] != doctors {
		t.Errorf("progress: %v", calls)
	}
	if strings.Contains(announced, "s ") || strings.Count(announced, "d ") != doctors {
		t.Errorf("announced %d doctors to read again, want %d and no single slots", strings.Count(announced, "d "), doctors)
	}

	started = time.Now()
	if n, err := p.at(morning).GenerateAll(t.Context(), MaxDays, nil); err != nil || n != 0 {
		t.Errorf("again: %d, %v", n, err)
	}
	t.Logf("nothing to add in %s", time.Since(started))

	added := make([]int64, 2)
	for _, err := range together(2, func(i int) (err error) {
		added[i], err = p.at(morning.AddDate(0, 0, 1)).GenerateAll(t.Context(), MaxDays, nil)
		return err
	}) {
		if err != nil {
			t.Error(err)
		}
	}
	if added[0]+added[1] != int64(doctors*slots) {
		t.Errorf("a day later, twice at once: %v, want %d in all", added, doctors*slots)
	}
}

func TestGenerateAllStops(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.schedule(p.doctor, shift(t, "09:00", "10:00", 30, 30))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := p.GenerateAll(ctx, 1, func(int, int) { cancel() })
	if err == nil || one[int](p, `SELECT count(*) FROM time_slot`) != 0 {
		t.Errorf("cancelled before the first batch: %v", err)
	}
}
