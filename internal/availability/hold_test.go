package availability

import (
	"fmt"
	"testing"
	"time"

	"openslot/internal/booking"
)

// hold takes places of a slot for a while after now.
func (p *practice) hold(slot booking.SlotID, after time.Duration, places int) {
	p.t.Helper()
	p.exec(`
		WITH u AS (INSERT INTO patient (issuer, subject) SELECT 'i', gen_random_uuid()::text FROM generate_series(1, $3) RETURNING id)
		INSERT INTO appointment (slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, root_id, during, expires_at)
		SELECT s.id, u.id, d.organization_id, 'HELD', 'k' || u.id, 'test', '', 0, tstzrange(s.start_at, s.end_at), $2
		  FROM u, time_slot s JOIN doctor d ON d.id = s.doctor_id WHERE s.id = $1`, slot, now.Add(after), places)
	p.exec(`UPDATE time_slot SET booked_count = booked_count + $2 WHERE id = $1`, slot, places)
}

// B41: a place whose hold has lapsed is free in every answer, though nobody has written that down.
func TestLapsedIsFree(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	first, second := p.slot("10-05 12:00", 1, 0), p.slot("10-05 13:00", 3, 0)
	p.hold(first, 10*time.Minute, 1)
	p.hold(second, 10*time.Minute, 1)
	p.hold(second, 20*time.Minute, 1)
	for after, want := range map[time.Duration]struct {
		free  []string // places by slot
		day   string   // free and first free
		next  []string // beside the first
		after []string // beside the second
	}{
		10*time.Minute - time.Microsecond: {[]string{"13:00 1"}, "1 13:00", []string{"13:00 1"}, nil},
		10 * time.Minute:                  {[]string{"12:00 1", "13:00 2"}, "3 12:00", []string{"13:00 2"}, []string{"12:00 1"}},
		20 * time.Minute:                  {[]string{"12:00 1", "13:00 3"}, "4 12:00", []string{"13:00 3"}, []string{"12:00 1"}},
	} {
		s := at(p.pool, now.Add(after))
		shown := func(slots []booking.Slot) (shown []string) {
			for _, s := range slots {
				shown = append(shown, fmt.Sprint(s.StartAt.In(p.loc).Format("15:04 "), s.Free()))
			}
			return shown
		}
		same(t, fmt.Sprint(after, ": the day"), shown(p.day(s, "2026-10-05").Free()), want.free)
		days, err := s.Days(t.Context(), p.doctor, day(t, "2026-10-05"), 1)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint(after, ": days"), fmt.Sprint(days[0].Free, days[0].FirstFree.In(p.loc).Format(" 15:04")), want.day)
		for slot, want := range map[booking.SlotID][]string{first: want.next, second: want.after} {
			next, err := s.Next(t.Context(), slot, 5)
			if err != nil {
				t.Fatal(err)
			}
			same(t, fmt.Sprint(after, ": next to ", slot), shown(next), want)
		}
		one, err := s.Slot(t.Context(), second)
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprint(after, ": the slot"), shown([]booking.Slot{one})[0], want.free[len(want.free)-1])
	}
}

// A list is good only until the next hold in it lapses.
func TestListEndsWithAHold(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	slot := p.slot("10-05 12:00", 3, 0)
	lives := func() (life [2]time.Duration) {
		t.Helper()
		var err error
		if _, life[0], err = p.readDay(t.Context(), p.doctor, day(t, "2026-10-05")); err != nil {
			t.Fatal(err)
		}
		if _, life[1], err = p.readDays(t.Context(), p.doctor, day(t, "2026-10-05"), 2); err != nil {
			t.Fatal(err)
		}
		return life
	}
	same(t, "without a hold", lives(), [2]time.Duration{30 * time.Minute, 30 * time.Minute})
	p.hold(slot, 10*time.Minute, 1)
	p.hold(slot, 5*time.Minute, 1)
	p.hold(slot, -time.Minute, 1) // over already
	same(t, "with holds", lives(), [2]time.Duration{5 * time.Minute, 5 * time.Minute})
}

// B85: a place that is withheld is in no answer until its time, and then in every one, though nobody
// has written that down; lists end at that time.
func TestWithheld(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	first, second := p.slot("10-05 12:00", 1, 0), p.slot("10-05 13:00", 2, 0)
	p.hold(first, time.Hour, 1)
	p.hold(second, time.Hour, 1)
	p.exec(`UPDATE appointment SET status = 'CANCELLED', returns_at = $1, expires_at = NULL`, now.Add(10*time.Minute))
	for after, want := range map[time.Duration]string{
		10*time.Minute - time.Microsecond: "[13:00] 1 [13:00] []",
		10 * time.Minute:                  "[12:00 13:00] 3 [13:00] [12:00]",
	} {
		s := at(p.pool, now.Add(after))
		shown := func(slots []booking.Slot) (shown []string) {
			for _, s := range slots {
				shown = append(shown, s.StartAt.In(p.loc).Format("15:04"))
			}
			return shown
		}
		days, err := s.Days(t.Context(), p.doctor, day(t, "2026-10-05"), 1)
		if err != nil {
			t.Fatal(err)
		}
		var next [2][]string
		for i, slot := range []booking.SlotID{first, second} {
			found, err := s.Next(t.Context(), slot, 5)
			if err != nil {
				t.Fatal(err)
			}
			next[i] = shown(found)
		}
		same(t, after.String(), fmt.Sprint(shown(p.day(s, "2026-10-05").Free()), days[0].Free, next[0], next[1]), want)
	}
	_, life, err := p.readDay(t.Context(), p.doctor, day(t, "2026-10-05"))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "the list's life", life, 10*time.Minute)
}

// A place that is due and that somebody waits for is in no answer: it is theirs.
func TestAwaitedIsNotFree(t *testing.T) {
	t.Parallel()
	p := newPractice(t, "Europe/Berlin")
	lapsed, free := p.slot("10-05 12:00", 1, 0), p.slot("10-05 13:00", 2, 1)
	p.hold(lapsed, time.Minute, 1)
	s := at(p.pool, now.Add(time.Minute))
	shown := func() string {
		t.Helper()
		days, err := s.Days(t.Context(), p.doctor, day(t, "2026-10-05"), 1)
		if err != nil {
			t.Fatal(err)
		}
		next, err := s.Next(t.Context(), free, 5)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(len(p.day(s, "2026-10-05").Free()), days[0].Free, len(next))
	}
	same(t, "nobody waits", shown(), "2 2 1")
	wait := func(doctor booking.DoctorID, from, to string) {
		p.exec(`INSERT INTO waiting_entry (doctor_id, organization_id, patient_id, first_day, last_day, during, turn, joined_by, created_at)
			SELECT $1, 0, id, $2, $3, tstzrange($2::date::timestamptz, $3::date::timestamptz), $4, 'test', $4 FROM patient`, doctor, from, to, now)
	}
	wait(p.doctor, "2026-10-06", "2026-10-09")
	same(t, "somebody waits for other days", shown(), "2 2 1")
	wait(p.doctor, "2026-10-05", "2026-10-09")
	same(t, "somebody waits", shown(), "1 1 0")
	p.exec(`UPDATE waiting_entry SET status = 'LEFT'`)
	same(t, "nobody waits any more", shown(), "2 2 1")
}
