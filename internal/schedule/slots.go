package schedule

import (
	"slices"
	"time"

	"openslot/internal/booking"
)

// When a slot can be booked: from releaseMinute of wall clock on, releaseDays before its day.
const (
	releaseDays   = 14
	releaseMinute = 7 * 60
)

// PlannedSlot is a slot that a template asks for.
type PlannedSlot struct {
	StartAt  time.Time // UTC
	EndAt    time.Time // UTC
	OpensAt  time.Time // UTC
	Capacity int
}

// Slots are the slots of the days from, from+1, … as the templates ask for them, by start, no two
// with the same. A slot belongs to the day that clocks in loc show when it begins, whichever day
// its shift began on.
//
// A shift lasts from the moment its begin to the moment its end comes on the clocks in loc, and
// its slots follow each other in real time: a shift in which clocks change has slots for the hours
// that it really has.
func Slots(templates []Template, loc *time.Location, from booking.Date, days int) []PlannedSlot {
	var slots []PlannedSlot
	dayFrom, _ := from.In(loc)
	dayTo, _ := from.AddDays(days).In(loc)
	// A shift of the day before may reach into the first day.
	for n := -1; n < days; n++ {
		day := from.AddDays(n)
		for _, t := range templates {
			if !t.on(day) {
				continue
			}
			for _, s := range t.Shifts {
				if s.Weekday == weekdayOf(day) {
					slots = s.appendSlots(slots, day, loc)
				}
			}
		}
	}
	slots = slices.DeleteFunc(slots, func(s PlannedSlot) bool {
		return s.StartAt.Before(dayFrom) || !s.StartAt.Before(dayTo)
	})
	// Shifts that never meet on the clock can when it is changed; the one that began first stays.
	slices.SortStableFunc(slots, func(a, b PlannedSlot) int { return a.StartAt.Compare(b.StartAt) })
	return slices.CompactFunc(slots, func(a, b PlannedSlot) bool { return a.StartAt.Equal(b.StartAt) })
}

// appendSlots appends the slots of the shift that begins on a day.
func (s Shift) appendSlots(slots []PlannedSlot, day booking.Date, loc *time.Location) []PlannedSlot {
	var (
		end   = day.At(s.EndMinute, loc)
		slot  = time.Duration(s.SlotMinutes) * time.Minute
		every = time.Duration(s.EveryMinutes) * time.Minute
		date  booking.Date
		opens time.Time
	)
	for at := day.At(s.StartMinute, loc); !at.Add(slot).After(end); at = at.Add(every) {
		if d := booking.DateOf(at, loc); d != date {
			date, opens = d, d.AddDays(-releaseDays).At(releaseMinute, loc)
		}
		slots = append(slots, PlannedSlot{StartAt: at, EndAt: at.Add(slot), OpensAt: opens, Capacity: s.Capacity})
	}
	return slots
}
