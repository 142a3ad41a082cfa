package schedule

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"openslot/internal/booking"
)

func TestFreeStarts(t *testing.T) {
	t.Parallel()
	p := newPractice(t) // it is 06:00
	p.flexible(date(t, "2026-10-05"), booking.Date{}, window(t, "05:30", "08:00", 15, 15, 30, 60))
	day := func(d string, minutes int) string {
		t.Helper()
		f, err := p.FreeStarts(t.Context(), booking.Actor{}, StartsQuery{p.doctor.ID, date(t, d), minutes})
		if err != nil {
			t.Fatal(err)
		}
		var starts []string
		for _, at := range f.Starts {
			starts = append(starts, at.In(time.FixedZone("Berlin", 2*60*60)).Format("15:04"))
		}
		return strings.Join(starts, " ")
	}
	held, err := p.bookings(now).Hold(t.Context(), p.patient(), p.request(now.Add(45*time.Minute), 30, "k")) // 06:45 to 07:15
	if err != nil {
		t.Fatal(err)
	}
	for minutes, want := range map[int]string{
		15: "06:15 06:30 07:15 07:30 07:45", 30: "06:15 07:15 07:30", 60: "", 45: "",
	} {
		if got := day("2026-10-05", minutes); got != want {
			t.Errorf("%d minutes: %s, want %s", minutes, got, want)
		}
	}
	p.config.Now = func() time.Time { return *held.Appointment.ExpiresAt } // nobody has expired it
	if got, want := day("2026-10-05", 60), "06:15 06:30 06:45 07:00"; got != want {
		t.Errorf("after the lapse: %s, want %s", got, want)
	}
	if got := day("2026-10-04", 15); got != "" { // before the schedule
		t.Errorf("a day without windows: %s", got)
	}
	if got := day("2026-10-19", 60); got != "" { // it opens at 07:00
		t.Errorf("a day that has not opened: %s", got)
	}
	p.config.Now = func() time.Time { return now.Add(time.Hour) }
	if got, want := day("2026-10-19", 60), "05:30 05:45 06:00 06:15 06:30 06:45 07:00"; got != want {
		t.Errorf("a day that has just opened: %s, want %s", got, want)
	}
	for want, q := range map[booking.Code]StartsQuery{
		booking.Invalid:  {p.doctor.ID, date(t, "2026-10-05"), 0},
		booking.NotFound: {1 << 40, date(t, "2026-10-05"), 15},
	} {
		if _, err := p.FreeStarts(t.Context(), booking.Actor{}, q); code(err) != want {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Every start that is told is booked, and every other one on the grid is refused, whatever the notice.
func TestFreeStartsAreWhatBooks(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	grid := window(t, "08:00", "12:00", 15, 15, 30, 45)
	p.flexible(date(t, "2026-10-05"), booking.Date{}, grid)
	p.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at) VALUES ($1, $2, $2::timestamptz + interval '20 min', 1, '2026-01-01')`,
		p.doctor.ID, now.Add(4*time.Hour)) // 10:00
	ctx := context.Background()
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		at := now.Add(time.Duration(rapid.IntRange(0, 5*60).Draw(rt, "minute")) * time.Minute)
		core := p.bookings(at)
		p.exec(`UPDATE organization SET notice_minutes = nullif($1, 0)`, rapid.SampledFrom([]int{0, 0, 30, 45, 100}).Draw(rt, "notice"))
		defer p.exec(`UPDATE time_slot SET status = 'WITHDRAWN', booked_count = 0 WHERE kind = 'FLEXIBLE'`)
		defer p.exec(`UPDATE appointment SET status = 'CANCELLED'`)
		for n := range rapid.IntRange(0, 6).Draw(rt, "others") {
			r := p.request(now.Add(time.Duration(8+rapid.IntRange(0, 16).Draw(rt, "start"))*15*time.Minute), 15*rapid.IntRange(1, 3).Draw(rt, "length"), fmt.Sprint(run, "-", n))
			earlier := p.bookings(at.Add(-time.Duration(rapid.IntRange(0, 20).Draw(rt, "ago")) * time.Minute))
			claim := rapid.SampledFrom([]func(context.Context, booking.Actor, booking.BookRequest) (booking.Booking, error){earlier.Book, earlier.Hold}).Draw(rt, "claim")
			_, _ = claim(ctx, p.patient(), r) // whichever of them win
		}
		minutes := 15 * rapid.IntRange(1, 4).Draw(rt, "minutes")
		p.config.Now = func() time.Time { return at }
		f, err := p.FreeStarts(ctx, booking.Actor{}, StartsQuery{p.doctor.ID, date(t, "2026-10-05"), minutes})
		if err != nil {
			rt.Fatal(err)
		}
		if !slices.IsSortedFunc(f.Starts, time.Time.Compare) {
			rt.Errorf("not in order: %v", f.Starts)
		}
		for n := range 30 { // from 07:00
			start := now.Add(time.Hour + time.Duration(n)*15*time.Minute)
			told := slices.ContainsFunc(f.Starts, start.Equal)
			patient := p.patient()
			b, err := core.Book(ctx, patient, p.request(start, minutes, "k"))
			if told != (err == nil) {
				rt.Fatalf("%d minutes at %s, at %s: told free %v, booked: %v", minutes, start, at, told, err)
			}
			if err == nil {
				_, err = core.Cancel(ctx, patient, booking.CancelRequest{Appointment: b.Appointment.ID})
			} else if !slices.Contains([]booking.Code{booking.SlotFull, booking.SlotIsClosed, booking.SlotPast, booking.TooLate}, code(err)) {
				rt.Fatal(err)
			} else {
				err = nil
			}
			if err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// What notice and horizon refuse to every patient is told to those alone whom they don't bind; and what
// is a patient's own affair, the limits, to everybody. The moments themselves are within.
func TestFreeStartsUnderRules(t *testing.T) {
	t.Parallel()
	p := newPractice(t) // it is 06:00
	p.flexible(date(t, "2026-10-05"), booking.Date{}, window(t, "05:00", "08:00", 30, 30))
	const today, inTwoDays = "2026-10-05", "2026-10-07"
	told := func(actor booking.Actor, d string) string {
		t.Helper()
		f, err := p.FreeStarts(t.Context(), actor, StartsQuery{p.doctor.ID, date(t, d), 30})
		if err != nil {
			t.Fatal(err)
		}
		var starts []string
		for _, at := range f.Starts {
			starts = append(starts, at.In(time.FixedZone("Berlin", 2*60*60)).Format("15:04"))
		}
		return strings.Join(starts, " ")
	}
	const all, early = "05:00 05:30 06:00 06:30 07:00 07:30", "05:00 05:30 06:00"
	for _, tt := range []struct{ rules, day, bound, free string }{
		{"notice_minutes = NULL", today, "06:30 07:00 07:30", "06:30 07:00 07:30"},
		{"notice_minutes = 60", today, "07:00 07:30", "06:30 07:00 07:30"},
		{"notice_minutes = 61", today, "07:30", "06:30 07:00 07:30"},
		{"notice_minutes = 1440", today, "", "06:30 07:00 07:30"},
		{"horizon_days = 2", inTwoDays, early, all},
		{"horizon_days = 1", inTwoDays, "", all},
		{"horizon_days = 3", inTwoDays, all, all},
		{"max_active = 1, max_holds = 1, max_per_day = 1, cutoff_minutes = 10000", inTwoDays, all, all},
	} {
		p.exec(`UPDATE organization SET notice_minutes = NULL, horizon_days = NULL, max_active = NULL, max_holds = NULL, max_per_day = NULL`)
		p.exec(`UPDATE organization SET ` + tt.rules)
		for _, actor := range []booking.Actor{{}, p.patient(), {Kind: booking.Partner, Subject: "portal"}} {
			if got := told(actor, tt.day); got != tt.bound {
				t.Errorf("%s: %q is told %s, want %s", tt.rules, actor.Kind, got, tt.bound)
			}
		}
		for _, actor := range []booking.Actor{staff(p.organization), booking.SystemActor} {
			if got := told(actor, tt.day); got != tt.free {
				t.Errorf("%s: %s is told %s, want %s", tt.rules, actor.Kind, got, tt.free)
			}
		}
	}
}
