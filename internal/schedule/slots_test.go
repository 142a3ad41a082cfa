package schedule

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"openslot/internal/booking"
)

// daily has one shift on every day of the week, for ever.
func daily(s Shift) []Template {
	t := Template{ValidFrom: booking.Date{Year: 1, Month: 1, Day: 1}}
	for s.Weekday = Monday; s.Weekday <= Sunday; s.Weekday++ {
		t.Shifts = append(t.Shifts, s)
	}
	return []Template{t}
}

// shift reads times as a person writes them.
func shift(t *testing.T, start, end string, slot, every int) Shift {
	t.Helper()
	from, to, err := ParseTimes(start, end)
	if err != nil {
		t.Fatal(err)
	}
	return Shift{Weekday: Monday, StartMinute: from, EndMinute: to, SlotMinutes: slot, EveryMinutes: every, Capacity: 1}
}

func date(t testing.TB, s string) booking.Date {
	t.Helper()
	d, err := booking.ParseDate(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func zone(t testing.TB, name string) *time.Location {
	t.Helper()
	loc, err := booking.LoadZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}

// clocks are the starts as clocks in loc show them.
func clocks(slots []PlannedSlot, loc *time.Location) (shown []string) {
	for _, s := range slots {
		shown = append(shown, s.StartAt.In(loc).Format("01-02 15:04"))
	}
	return shown
}

func TestB44StartStaysOnTheClock(t *testing.T) {
	t.Parallel()
	loc := zone(t, "America/New_York")
	monday := []Template{{ValidFrom: date(t, "2026-01-01"), Shifts: []Shift{shift(t, "09:00", "10:00", 60, 60)}}}
	slots := Slots(monday, loc, date(t, "2026-10-01"), 92) // to 31 December
	if len(slots) != 13 {
		t.Fatalf("%d slots, want 13 Mondays", len(slots))
	}
	for _, s := range slots {
		want := 13 // UTC hour
		if !s.StartAt.Before(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)) {
			want = 14
		}
		if local := s.StartAt.In(loc); local.Hour() != 9 || s.StartAt.Hour() != want || local.Weekday() != time.Monday {
			t.Errorf("starts at %s, there %s", s.StartAt, local)
		}
	}
}

func TestB46ShiftAcrossClockChange(t *testing.T) {
	t.Parallel()
	loc := zone(t, "Europe/Berlin")
	night := daily(shift(t, "00:00", "06:00", 30, 30))
	for day, want := range map[string]int{"2026-03-28": 12, "2026-03-29": 10, "2026-03-30": 12, "2026-10-25": 14} {
		slots := Slots(night, loc, date(t, day), 1)
		if len(slots) != want {
			t.Errorf("%s: %d slots, want %d: %v", day, len(slots), want, clocks(slots, loc))
		}
		for i, s := range slots {
			if s.EndAt.Sub(s.StartAt) != 30*time.Minute || i > 0 && !s.StartAt.Equal(slots[i-1].EndAt) {
				t.Errorf("%s: slot %d is %s to %s", day, i, s.StartAt, s.EndAt)
			}
		}
	}
}

func TestSlotsOfDay(t *testing.T) {
	t.Parallel()
	// The Wednesday 2026-10-07 and, where shifts cross midnight, what the Tuesday leaves on it.
	tests := []struct {
		name  string
		shift Shift
		want  []string
	}{
		{"B52 ends at midnight", shift(t, "20:00", "24:00", 60, 60),
			[]string{"10-07 20:00", "10-07 21:00", "10-07 22:00", "10-07 23:00"}},
		{"B52 crosses midnight", shift(t, "22:30", "01:30", 60, 30),
			[]string{"10-07 00:00", "10-07 00:30", "10-07 22:30", "10-07 23:00", "10-07 23:30"}},
		{"last slot ends with the shift", shift(t, "09:00", "10:30", 30, 30),
			[]string{"10-07 09:00", "10-07 09:30", "10-07 10:00"}},
		{"pauses between slots", shift(t, "09:00", "10:30", 20, 35),
			[]string{"10-07 09:00", "10-07 09:35", "10-07 10:10"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			loc := zone(t, "Europe/Berlin")
			got := clocks(Slots(daily(tt.shift), loc, date(t, "2026-10-07"), 1), loc)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestB53NothingPastClosing(t *testing.T) {
	t.Parallel()
	loc := zone(t, "Europe/Berlin")
	slots := Slots(daily(shift(t, "09:00", "16:45", 20, 20)), loc, date(t, "2026-10-07"), 1)
	shown := clocks(slots, loc)
	if len(slots) != 23 || shown[22] != "10-07 16:20" {
		t.Fatalf("%d slots, the last at %s", len(slots), shown[len(shown)-1])
	}
}

func TestOpening(t *testing.T) {
	t.Parallel()
	tests := []struct{ zone, day, opens string }{
		{"Europe/Berlin", "2026-10-07", "2026-09-23T05:00:00Z"},
		{"Europe/Berlin", "2026-11-02", "2026-10-19T05:00:00Z"}, // clocks change in between
		{"Europe/Berlin", "2026-04-06", "2026-03-23T06:00:00Z"},
		{"Asia/Tokyo", "2026-10-05", "2026-09-20T22:00:00Z"},
	}
	for _, tt := range tests {
		slots := Slots(daily(shift(t, "23:00", "01:00", 60, 60)), zone(t, tt.zone), date(t, tt.day), 1)
		if len(slots) != 2 {
			t.Fatalf("%s: %d slots, want one after each midnight and one before", tt.day, len(slots))
		}
		for _, s := range slots {
			if got := s.OpensAt.Format(time.RFC3339); got != tt.opens {
				t.Errorf("%s %s: the slot at %s opens %s, want %s", tt.zone, tt.day, s.StartAt, got, tt.opens)
			}
		}
	}
}

// A template holds from its first to its last day, for shifts that begin on them.
func TestTemplatePeriods(t *testing.T) {
	t.Parallel()
	loc := zone(t, "Europe/Berlin")
	early, late := daily(shift(t, "23:00", "01:00", 60, 60))[0], daily(shift(t, "00:00", "01:00", 60, 60))[0]
	early.ValidFrom, early.ValidUntil = date(t, "2026-10-06"), date(t, "2026-10-07")
	late.ValidFrom = date(t, "2026-10-08")
	late.Shifts[3].Capacity = 7 // Thursday: meets the end of Wednesday night, which began first
	slots := Slots([]Template{late, early}, loc, date(t, "2026-10-05"), 5)
	want := []string{"10-06 23:00", "10-07 00:00", "10-07 23:00", "10-08 00:00", "10-09 00:00"}
	if diff := cmp.Diff(want, clocks(slots, loc)); diff != "" {
		t.Error(diff)
	}
	if slots[3].Capacity != 1 {
		t.Errorf("the slot of the later shift was kept, capacity %d", slots[3].Capacity)
	}
}

// Whatever the zone, year and shifts: slots are sorted, distinct, within their shift and their
// days, and asking for days together or one by one gives the same.
func TestSlotsProperties(t *testing.T) {
	t.Parallel()
	zones := []string{"UTC", "Europe/Berlin", "Europe/London", "America/New_York", "America/Havana", "America/Santiago",
		"America/Scoresbysund", "Atlantic/Azores", "Africa/Cairo", "Africa/Casablanca", "Asia/Beirut", "Asia/Kathmandu",
		"Asia/Tokyo", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Kiritimati", "Pacific/Apia"}
	rapid.Check(t, func(rt *rapid.T) {
		loc := zone(t, rapid.SampledFrom(zones).Draw(rt, "zone"))
		from := booking.Date{Year: rapid.IntRange(1970, 2100).Draw(rt, "year"), Month: 1, Day: 1}.
			AddDays(rapid.IntRange(0, 365).Draw(rt, "day"))
		days := rapid.IntRange(1, 20).Draw(rt, "days")
		template := Template{ValidFrom: from.AddDays(-10), Shifts: rapid.SliceOfN(rapid.Custom(drawShift), 1, 5).Draw(rt, "shifts")}
		templates := []Template{template}

		slots := Slots(templates, loc, from, days)
		first, _ := from.In(loc)
		_, last := from.AddDays(days - 1).In(loc)
		for i, s := range slots {
			if i > 0 && !slots[i-1].StartAt.Before(s.StartAt) {
				rt.Fatalf("slot %d starts at %s, the one before at %s", i, s.StartAt, slots[i-1].StartAt)
			}
			if s.StartAt.Before(first) || !s.StartAt.Before(last) {
				rt.Fatalf("starts at %s, outside of the days", s.StartAt)
			}
			if !slices.ContainsFunc(template.Shifts, func(x Shift) bool { return x.holds(s, loc) }) {
				rt.Fatalf("no shift has the slot from %s to %s", s.StartAt, s.EndAt)
			}
		}
		var single []PlannedSlot
		for n := range days {
			single = append(single, Slots(templates, loc, from.AddDays(n), 1)...)
		}
		if diff := cmp.Diff(slots, single, cmpopts.EquateEmpty()); diff != "" {
			rt.Fatalf("together (-) and day by day (+): %s", diff)
		}
	})
}

func drawShift(t *rapid.T) Shift {
	s := Shift{
		Weekday:      Weekday(rapid.IntRange(1, 7).Draw(t, "weekday")),
		StartMinute:  rapid.IntRange(0, 1439).Draw(t, "start"),
		EveryMinutes: rapid.IntRange(5, 1440).Draw(t, "every"),
		Capacity:     rapid.IntRange(1, 20).Draw(t, "capacity"),
	}
	s.EndMinute = s.StartMinute + rapid.IntRange(1, 1440).Draw(t, "length")
	s.SlotMinutes = rapid.IntRange(1, s.EndMinute-s.StartMinute).Draw(t, "slot")
	return s
}

// holds reports, by a road of its own, whether the slot is one of the shift: it begins a whole
// number of steps after some begin of the shift and is over when the shift is.
func (s Shift) holds(slot PlannedSlot, loc *time.Location) bool {
	for n := -1; n <= 0; n++ {
		day := booking.DateOf(slot.StartAt, loc).AddDays(n)
		if weekdayOf(day) != s.Weekday {
			continue
		}
		begin, end := day.At(s.StartMinute, loc), day.At(s.EndMinute, loc)
		if !slot.StartAt.Before(begin) && !slot.EndAt.After(end) &&
			slot.StartAt.Sub(begin)%(time.Duration(s.EveryMinutes)*time.Minute) == 0 &&
			slot.EndAt.Sub(slot.StartAt) == time.Duration(s.SlotMinutes)*time.Minute && slot.Capacity == s.Capacity {
			return true
		}
	}
	return false
}

// The database's next release is the one that slots are generated for.
func TestNextRelease(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	for _, zone := range []string{"Europe/Berlin", "America/Santiago", "Australia/Brisbane", "Pacific/Apia", "UTC"} {
		loc, err := booking.LoadZone(zone)
		if err != nil {
			t.Fatal(err)
		}
		for at := now; at.Before(now.AddDate(1, 0, 0)); at = at.Add(11*time.Hour + 59*time.Minute + 30*time.Second) {
			day := booking.DateOf(at, loc)
			today := day.At(releaseMinute, loc)
			for _, at := range []time.Time{at, today, today.Add(-time.Microsecond)} {
				want := today
				if !want.After(at) {
					want = day.AddDays(1).At(releaseMinute, loc)
				}
				var got time.Time
				if err := p.pool.QueryRow(t.Context(), `SELECT next_release($1, $2)`, at, zone).Scan(&got); err != nil || !got.Equal(want) {
					t.Fatalf("%s after %s: %s, want %s; %v", zone, at, got, want, err)
				}
			}
		}
	}
}
