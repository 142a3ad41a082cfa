package schedule

import (
	"context"
	"fmt"
	"slices"
	"time"

	"openslot/internal/booking"
)

// Window is working time on one day of the week in which patients choose when they come, and for how
// long. Begin and end are minutes of wall clock after midnight of that day.
type Window struct {
	Weekday      Weekday `json:"weekday"`       // on which it begins
	StartMinute  int     `json:"start_minute"`  // 0 to 1439
	EndMinute    int     `json:"end_minute"`    // at most 1440 after StartMinute; above 1440 = on the next day
	EveryMinutes int     `json:"every_minutes"` // the grid: from one start to the next, 1 to 1440
	Durations    []int   `json:"durations"`     // minutes that an appointment may last, each once
}

const maxDurations = 50

// checkWindows refuses windows that could not be kept, naming the field.
func checkWindows(windows []Window) error {
	if len(windows) > maxShifts {
		return booking.Refuse(booking.Invalid, "windows must be at most %d.", maxShifts)
	}
	const week = 7 * minutesOfDay
	var taken [week]int // window that has that minute of the week, counted from 1
	for i, w := range windows {
		if problem := w.problem(); problem != "" {
			return booking.Refuse(booking.Invalid, "windows[%d].%s", i, problem)
		}
		for at := w.StartMinute; at < w.EndMinute; at++ {
			minute := (int(w.Weekday-Monday)*minutesOfDay + at) % week
			if other := taken[minute]; other != 0 {
				return booking.Refuse(booking.Invalid, "windows[%d] overlaps windows[%d].", i, other-1)
			}
			taken[minute] = i + 1
		}
	}
	return nil
}

// problem says what is wrong with the window, beginning with the field; "" = nothing.
func (w Window) problem() string {
	shift := Shift{Weekday: w.Weekday, StartMinute: w.StartMinute, EndMinute: w.EndMinute,
		SlotMinutes: 1, EveryMinutes: w.EveryMinutes, Capacity: 1}
	if problem := shift.problem(); problem != "" {
		return problem
	}
	if n := len(w.Durations); n < 1 || n > maxDurations {
		return fmt.Sprintf("durations must be 1 to %d numbers of minutes.", maxDurations)
	}
	for i, d := range w.Durations {
		switch {
		case d < 1 || d > w.EndMinute-w.StartMinute:
			return "durations must be 1 or more, and not longer than the window."
		case slices.Contains(w.Durations[:i], d):
			return fmt.Sprintf("durations has %d twice.", d)
		}
	}
	return ""
}

const createFlexibleSQL = `
WITH s AS (INSERT INTO schedule (doctor_id, valid_from, valid_until, kind) VALUES ($1, $2, $3, 'FLEXIBLE') RETURNING id),
     x AS (INSERT INTO schedule_window
           SELECT s.id, w.* FROM s, jsonb_to_recordset($4::jsonb)
               AS w (weekday smallint, start_minute smallint, end_minute smallint, every_minutes smallint, durations smallint[]))
SELECT id FROM s`

// FreeStarts is when appointments of a length can begin on a doctor's day.
type FreeStarts struct {
	Date      booking.Date
	TimeZone  string    // IANA name of the zone that Date is in
	AsOf      time.Time // UTC; the starts are at least as new
	Minutes   int
	Durations []int       // lengths that windows of the day offer, in ascending order
	Starts    []time.Time // UTC, in ascending order
}

// freeStartsSQL has one clock for all. The rules of the practice that bind every patient are those that
// forbid a time to nobody in particular: notice and horizon, by the function that claim asks.
const freeStartsSQL = `
WITH z AS (SELECT o.id, o.time_zone, o.ruled AND NOT $5 AS ruled, coalesce($4, now()) AS now
             FROM doctor d JOIN organization o ON o.id = d.organization_id WHERE d.id = $1)
SELECT z.time_zone, z.now,
       ARRAY(SELECT s.at FROM free_starts(z.now, $1, $2, $3) AS s (at)
              WHERE NOT z.ruled OR (forbidding_rule(z.now, z.id, NULL, s.at, false)).code IS NULL
              ORDER BY s.at),
       ARRAY(SELECT DISTINCT u::int AS minutes
               FROM working_hours($1, wall_time($2::date::timestamp, z.time_zone), wall_time($2::date::timestamp, z.time_zone)) AS w,
                    unnest(w.durations) AS u
              WHERE w.end_at > wall_time($2::date::timestamp, z.time_zone) ORDER BY minutes)
  FROM z`

// StartsQuery asks when appointments can begin.
type StartsQuery struct {
	Doctor  booking.DoctorID
	Date    booking.Date
	Minutes int // of the appointment, 1 to 1440
}

// FreeStarts reads when an appointment with the doctor can begin on a day, and could be booked by the
// actor now: starts that the practice's notice or horizon refuses to every patient are told to staff
// alone. What is a patient's own affair, limits and other appointments, is not looked at. A doctor
// without flexible hours that day has no starts. It asks the database each time: unlike the slots of a
// day, starts are kept by no cache. It refuses with INVALID other minutes; NOT_FOUND for an unknown
// doctor.
func (s *Service) FreeStarts(ctx context.Context, actor booking.Actor, q StartsQuery) (FreeStarts, error) {
	if q.Minutes < 1 || q.Minutes > minutesOfDay {
		return FreeStarts{}, booking.Refuse(booking.Invalid, "minutes must be between 1 and %d.", minutesOfDay)
	}
	f := FreeStarts{Date: q.Date, Minutes: q.Minutes}
	err := s.pool.QueryRow(ctx, freeStartsSQL, q.Doctor, q.Date, q.Minutes, s.now(), actor.Exempt()).
		Scan(&f.TimeZone, &f.AsOf, &f.Starts, &f.Durations)
	if err != nil {
		return FreeStarts{}, wrap(orElse(err, noDoctor()), "free starts of doctor %d", q.Doctor)
	}
	f.AsOf = f.AsOf.UTC()
	for i, at := range f.Starts {
		f.Starts[i] = at.UTC()
	}
	return f, nil
}
