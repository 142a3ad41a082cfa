package schedule

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
)

// Weekday is a day of the week as ISO 8601 counts them.
type Weekday int16

// The days of the week.
const (
	Monday Weekday = 1 + iota
	Tuesday
	Wednesday
	Thursday
	Friday
	Saturday
	Sunday
)

// weekdayOf is the weekday of a date.
func weekdayOf(d booking.Date) Weekday {
	if w := d.Weekday(); w != time.Sunday {
		return Weekday(w)
	}
	return Sunday
}

// Shift is working time on one day of the week, cut into slots. Begin and end are minutes of
// wall clock after midnight of that day.
type Shift struct {
	Weekday      Weekday // on which it begins
	StartMinute  int     // 0 to 1439
	EndMinute    int     // at most 1440 after StartMinute; above 1440 = on the next day
	SlotMinutes  int     // length of a slot, 1 to 1440
	EveryMinutes int     // from one start to the next, 1 to 1440; less than SlotMinutes = slots overlap
	Capacity     int     // patients per slot, 1 to 100,000
}

// Template is a doctor's week, for the days on which it holds: shifts cut into slots, or else windows
// of flexible hours.
type Template struct {
	ValidFrom  booking.Date
	ValidUntil booking.Date // last day; zero = open end
	Shifts     []Shift
	Windows    []Window
}

// ScheduleID names a stored template.
type ScheduleID int64

// The bounds of a template. They stand as constraints in the database as well.
const (
	maxCapacity  = 100_000
	maxShifts    = 200
	minutesOfDay = 24 * 60
)

// ParseTimes reads a shift's times, "HH:MM" as on a clock, as minutes after midnight. "24:00" is
// the midnight at the end of the day, and an end before the begin is on the next day. It refuses
// anything else with INVALID, also an end that equals the begin: it would mean none or all of a day.
func ParseTimes(start, end string) (startMinute, endMinute int, err error) {
	startMinute, ok := parseClock(start)
	if !ok || startMinute >= minutesOfDay {
		return 0, 0, booking.Refuse(booking.Invalid, "start must be a time HH:MM, 00:00 to 23:59.")
	}
	endMinute, ok = parseClock(end)
	switch {
	case !ok:
		return 0, 0, booking.Refuse(booking.Invalid, "end must be a time HH:MM, 00:00 to 24:00.")
	case endMinute == startMinute && endMinute > 0:
		return 0, 0, booking.Refuse(booking.Invalid, "end must differ from start.")
	case endMinute <= startMinute:
		endMinute += minutesOfDay
	}
	return startMinute, endMinute, nil
}

// parseClock reads "00:00" to "24:00".
func parseClock(s string) (minute int, ok bool) {
	if len(s) != len("HH:MM") || s[2] != ':' {
		return 0, false
	}
	for _, i := range []int{0, 1, 3, 4} {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
	}
	hours, minutes := int(s[0]-'0')*10+int(s[1]-'0'), int(s[3]-'0')*10+int(s[4]-'0')
	minute = hours*60 + minutes
	return minute, minutes < 60 && minute <= minutesOfDay
}

// check refuses a template that could not be kept, naming the field.
func (t Template) check() error {
	switch {
	case t.ValidFrom.IsZero():
		return booking.Refuse(booking.Invalid, "validFrom is missing.")
	case !t.ValidUntil.IsZero() && t.ValidUntil.Before(t.ValidFrom):
		return booking.Refuse(booking.Invalid, "validUntil must not be before validFrom.")
	case len(t.Windows) > 0 && len(t.Shifts) > 0:
		return booking.Refuse(booking.Invalid, "shifts and windows can't be in one schedule: a doctor has slots or flexible hours.")
	case len(t.Windows) > 0:
		return checkWindows(t.Windows)
	case len(t.Shifts) == 0:
		return booking.Refuse(booking.Invalid, "shifts must not be empty, or windows, for flexible hours.")
	case len(t.Shifts) > maxShifts:
		return booking.Refuse(booking.Invalid, "shifts must be at most %d.", maxShifts)
	}
	const week = 7 * minutesOfDay
	var taken [week]int // shift with a start at that minute of the week, counted from 1
	for i, s := range t.Shifts {
		if problem := s.problem(); problem != "" {
			return booking.Refuse(booking.Invalid, "shifts[%d].%s", i, problem)
		}
		// Two slots of a doctor can't have one start, so one of them would silently be missing.
		for at := s.StartMinute; at+s.SlotMinutes <= s.EndMinute; at += s.EveryMinutes {
			minute := (int(s.Weekday-Monday)*minutesOfDay + at) % week
			if other := taken[minute]; other != 0 {
				return booking.Refuse(booking.Invalid, "shifts[%d] has a slot that starts at %02d:%02d, as one of shifts[%d] does.",
					i, minute%minutesOfDay/60, minute%60, other-1)
			}
			taken[minute] = i + 1
		}
	}
	return nil
}

// problem says what is wrong with the shift, beginning with the field; "" = nothing.
func (s Shift) problem() string {
	switch {
	case s.Weekday < Monday || s.Weekday > Sunday:
		return "weekday must be a day of the week."
	case s.StartMinute < 0 || s.StartMinute >= minutesOfDay:
		return "start must be a time of the day."
	case s.EndMinute <= s.StartMinute || s.EndMinute > s.StartMinute+minutesOfDay:
		return "end must be within 24 hours after start."
	case s.SlotMinutes < 1 || s.SlotMinutes > minutesOfDay:
		return fmt.Sprintf("slotMinutes must be between 1 and %d.", minutesOfDay)
	case s.SlotMinutes > s.EndMinute-s.StartMinute:
		return "slotMinutes must not be longer than the shift."
	case s.EveryMinutes < 1 || s.EveryMinutes > minutesOfDay:
		return fmt.Sprintf("everyMinutes must be between 1 and %d.", minutesOfDay)
	case s.Capacity < 1 || s.Capacity > maxCapacity:
		return fmt.Sprintf("capacity must be between 1 and %d.", maxCapacity)
	}
	return ""
}

const ownDoctorSQL = `SELECT EXISTS (SELECT FROM doctor WHERE id = $1 AND ($2::bigint IS NULL OR organization_id = $2))`

const createScheduleSQL = `
WITH s AS (INSERT INTO schedule (doctor_id, valid_from, valid_until) VALUES ($1, $2, $3) RETURNING id),
     x AS (INSERT INTO schedule_shift
                (schedule_id, weekday, start_minute, end_minute, slot_minutes, every_minutes, capacity)
           SELECT s.id, u.* FROM s, unnest($4::smallint[], $5::smallint[], $6::smallint[], $7::smallint[],
                                           $8::smallint[], $9::int[]) AS u)
SELECT id FROM s`

// CreateSchedule gives a doctor a template, for the staff of the doctor's organization. Its slots
// come with Generate; windows have none. It refuses with SCHEDULE_IN_USE if one of its days has a template; NOT_FOUND
// for a doctor that is not there or not the actor's; INVALID, naming the field, for shifts that
// make no slots or two slots with one start, and windows that overlap.
func (s *Service) CreateSchedule(ctx context.Context, actor booking.Actor, doctor booking.DoctorID, t Template) (ScheduleID, error) {
	own, err := scope(actor)
	if err != nil {
		return 0, err
	}
	if err := t.check(); err != nil {
		return 0, err
	}
	var (
		id      ScheduleID
		columns [6][]int32
	)
	for _, s := range t.Shifts {
		for i, v := range []int{int(s.Weekday), s.StartMinute, s.EndMinute, s.SlotMinutes, s.EveryMinutes, s.Capacity} {
			columns[i] = append(columns[i], int32(v))
		}
	}
	// Under the doctor's lock: two overlapping templates at once would else wait for each other
	// in the exclusion constraint, which is a deadlock and no refusal.
	err = s.write(ctx, []booking.DoctorID{doctor}, func(tx pgx.Tx) error {
		var ours bool
		if err := tx.QueryRow(ctx, ownDoctorSQL, doctor, own).Scan(&ours); err != nil {
			return err
		}
		if !ours {
			return noDoctor()
		}
		if len(t.Windows) > 0 {
			return tx.QueryRow(ctx, createFlexibleSQL, doctor, t.ValidFrom, t.ValidUntil, t.Windows).Scan(&id)
		}
		return tx.QueryRow(ctx, createScheduleSQL, doctor, t.ValidFrom, t.ValidUntil,
			columns[0], columns[1], columns[2], columns[3], columns[4], columns[5]).Scan(&id)
	})
	if booking.Constraint(err) == "ex_schedule_period" {
		return 0, booking.Refuse(booking.ScheduleInUse, "The doctor has a schedule for some of these days already. Choose other days.")
	}
	return id, wrap(err, "create schedule of doctor %d", doctor)
}

// on reports whether the template holds on a day.
func (t Template) on(d booking.Date) bool {
	return !d.Before(t.ValidFrom) && (t.ValidUntil.IsZero() || !t.ValidUntil.Before(d))
}
