package schedule

import (
	"strings"
	"testing"

	"openslot/internal/booking"
)

func TestParseTimes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		start, end string
		from, to   int
	}{
		{"09:00", "16:45", 540, 1005},
		{"00:00", "24:00", 0, 1440},
		{"20:00", "24:00", 1200, 1440},
		{"20:00", "00:00", 1200, 1440},
		{"22:30", "01:30", 1350, 1530},
		{"23:59", "00:00", 1439, 1440},
	} {
		from, to, err := ParseTimes(tt.start, tt.end)
		if err != nil || from != tt.from || to != tt.to {
			t.Errorf("%s to %s: %d, %d, %v", tt.start, tt.end, from, to, err)
		}
	}
	for _, tt := range [][2]string{
		{"", "10:00"}, {"9:00", "10:00"}, {"09.00", "10:00"}, {"24:00", "10:00"}, {"09:60", "10:00"}, {"-9:00", "10:00"},
		{"09:00", ""}, {"09:00", "24:01"}, {"09:00", "25:00"}, {"09:00", "1O:00"}, {"09:00", "09:00"}, {"09:00", "10:00 "},
		{"09:00\x00", "10:00"}, {"０９:00", "10:00"},
	} {
		if _, _, err := ParseTimes(tt[0], tt[1]); code(err) != booking.Invalid {
			t.Errorf("%q to %q: %v, want INVALID", tt[0], tt[1], err)
		}
	}
}

func TestTemplateInvalid(t *testing.T) {
	t.Parallel()
	good := shift(t, "09:00", "17:00", 30, 30)
	with := func(change func(s *Shift)) Template {
		changed := good
		change(&changed)
		return Template{ValidFrom: date(t, "2026-10-05"), Shifts: []Shift{good, changed}}
	}
	clash := func(a, b Shift) Template { return Template{ValidFrom: date(t, "2026-10-05"), Shifts: []Shift{a, b}} }
	sunday := shift(t, "23:00", "02:00", 60, 60)
	sunday.Weekday = Sunday
	for want, template := range map[string]Template{
		"validFrom is missing":                 {Shifts: []Shift{good}},
		"validUntil must not":                  {ValidFrom: date(t, "2026-10-05"), ValidUntil: date(t, "2026-10-04"), Shifts: []Shift{good}},
		"shifts must not be empty":             {ValidFrom: date(t, "2026-10-05")},
		"shifts must be at most 200":           {ValidFrom: date(t, "2026-10-05"), Shifts: make([]Shift, 201)},
		"shifts[1].weekday":                    with(func(s *Shift) { s.Weekday = 0 }),
		"shifts[1].weekday must":               with(func(s *Shift) { s.Weekday = 8 }),
		"shifts[1].start":                      with(func(s *Shift) { s.StartMinute = -1 }),
		"shifts[1].start must":                 with(func(s *Shift) { s.StartMinute, s.EndMinute = 1440, 1500 }),
		"shifts[1].end":                        with(func(s *Shift) { s.EndMinute = s.StartMinute }),
		"shifts[1].end must":                   with(func(s *Shift) { s.EndMinute = s.StartMinute + 1441 }),
		"shifts[1].slotMinutes":                with(func(s *Shift) { s.SlotMinutes = 0 }),
		"shifts[1].slotMinutes must":           with(func(s *Shift) { s.SlotMinutes = 481 }), // the shift has 480
		"shifts[1].everyMinutes":               with(func(s *Shift) { s.EveryMinutes = 0 }),
		"shifts[1].everyMinutes must":          with(func(s *Shift) { s.EveryMinutes = 1441 }),
		"shifts[1].capacity":                   with(func(s *Shift) { s.Capacity = 0 }),
		"shifts[1].capacity must":              with(func(s *Shift) { s.Capacity = 100_001 }),
		"starts at 09:00, as one of shifts[0]": with(func(*Shift) {}),
		"starts at 12:00, as one of shifts[0]": clash(good, shift(t, "12:00", "13:00", 60, 60)),
		"starts at 00:00, as one of shifts[0]": clash(sunday, shift(t, "00:00", "00:15", 15, 15)), // Sunday night, Monday
	} {
		err := template.check()
		if code(err) != booking.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want INVALID with %q", err, want)
		}
	}
	for name, template := range map[string]Template{
		"one day":           {ValidFrom: date(t, "2026-10-05"), ValidUntil: date(t, "2026-10-05"), Shifts: []Shift{good}},
		"interleaved":       clash(good, shift(t, "09:15", "17:15", 30, 30)),
		"starts at its end": clash(good, shift(t, "17:00", "18:00", 30, 30)),
		"the largest": {ValidFrom: date(t, "2026-10-05"), Shifts: []Shift{
			{Weekday: Sunday, StartMinute: 1439, EndMinute: 2879, SlotMinutes: 1440, EveryMinutes: 1440, Capacity: 100_000}}},
	} {
		if err := template.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCreateSchedule(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	create := func(actor booking.Actor, from, until string) error {
		template := Template{ValidFrom: date(t, from), Shifts: []Shift{shift(t, "09:00", "10:00", 30, 30)}}
		if until != "" {
			template.ValidUntil = date(t, until)
		}
		_, err := p.CreateSchedule(t.Context(), actor, p.doctor.ID, template)
		return err
	}
	desk := staff(p.organization)
	for _, tt := range []struct {
		from, until string
		want        booking.Code
	}{
		{"2026-10-01", "2026-10-31", ""},
		{"2026-10-31", "2026-11-30", booking.ScheduleInUse}, // the last day is inclusive
		{"2026-11-10", "2026-11-01", booking.Invalid},
		{"2026-12-01", "", ""},
		{"9999-12-31", "", booking.ScheduleInUse},
		{"2026-11-01", "2026-11-30", ""},
		{"0001-01-01", "2026-09-30", ""},
	} {
		if got := code(create(desk, tt.from, tt.until)); got != tt.want {
			t.Errorf("%s to %s: %q, want %q", tt.from, tt.until, got, tt.want)
		}
	}
	p.refuses(func(actor booking.Actor) error { return create(actor, "2026-10-01", "") })
	_, err := p.CreateSchedule(t.Context(), booking.SystemActor, 0, daily(shift(t, "09:00", "10:00", 30, 30))[0])
	wantCode(t, err, booking.NotFound)
	if n := one[int](p, `SELECT count(*) FROM schedule s JOIN schedule_shift x ON x.schedule_id = s.id`); n != 4 {
		t.Errorf("%d schedules with a shift, want 4", n)
	}
}

// Of schedules for the same days at the same time one is kept, and the others get a refusal:
// neither a deadlock nor two schedules.
func TestCreateScheduleTogether(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	template := Template{Shifts: []Shift{shift(t, "09:00", "10:00", 30, 30)}}
	for round := range 10 {
		template.ValidFrom = date(t, "2026-10-05").AddDays(round)
		template.ValidUntil = template.ValidFrom
		got := map[booking.Code]int{}
		for _, err := range together(6, func(int) error {
			_, err := p.CreateSchedule(t.Context(), staff(p.organization), p.doctor.ID, template)
			return err
		}) {
			got[code(err)]++
		}
		if got[""] != 1 || got[booking.ScheduleInUse] != 5 {
			t.Fatalf("round %d: %v", round, got)
		}
	}
}
