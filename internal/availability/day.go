package availability

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
)

// Day is a doctor's day as it stood at AsOf.
type Day struct {
	Date     booking.Date
	TimeZone string    // IANA name of the zone that Date is in
	AsOf     time.Time // UTC; the slots are at least as new
	// Slots by start: those that had not begun and are not withdrawn. Full and closed ones and those that
	// open later are included; so are the times that are taken of flexible hours, full slots of one place.
	Slots []booking.Slot
}

// Free are the slots with a place left that are not closed, whether they are open yet or not.
func (d Day) Free() []booking.Slot {
	isFree := func(s booking.Slot) bool { return s.Free() > 0 && s.Status == booking.SlotOpen }
	if !slices.ContainsFunc(d.Slots, func(s booking.Slot) bool { return !isFree(s) }) {
		return d.Slots
	}
	free := make([]booking.Slot, 0, len(d.Slots))
	for _, s := range d.Slots {
		if isFree(s) {
			free = append(free, s)
		}
	}
	return free
}

// zoneSQL begins a query about days of the doctor $1 with their zone and the time: $2, or when
// the statement began. What the statement sees is not older than that.
const zoneSQL = `
WITH z AS (SELECT o.time_zone AS zone, coalesce($2, now()) AS now
             FROM doctor d JOIN organization o ON o.id = d.organization_id
            WHERE d.id = $1)`

// slotsOfDaysSQL joins the slots t of the days from $3 to $4 that have not begun; a doctor without
// any still has a row. Which day a slot is on is what clocks in the zone show when it begins, and
// every query asks for that. But no index knows it, hence this range besides. Where clocks change
// at midnight a day's first moment is a matter of reading, so the range is wider than days by more
// than clocks ever change.
const slotsOfDaysSQL = `
  FROM z LEFT JOIN time_slot t
    ON t.doctor_id = $1 AND t.status <> 'WITHDRAWN' AND t.start_at > z.now
   AND t.start_at >= ($3::date::timestamp AT TIME ZONE z.zone) - interval '3 hours'
   AND t.start_at < (($4::date + 1)::timestamp AT TIME ZONE z.zone) + interval '3 hours'`

const daySQL = zoneSQL + `
SELECT z.zone, z.now, h.lapses, ` + slotColumns + slotsOfDaysSQL + `
   AND (t.start_at AT TIME ZONE z.zone)::date BETWEEN $3 AND $4` + holdsSQL + `
 ORDER BY t.start_at`

// Day reads a doctor's day with one query, unless it is kept in the cache. It refuses with
// NOT_FOUND an unknown doctor; the day of one without slots is empty.
func (s *Service) Day(ctx context.Context, doctor booking.DoctorID, date booking.Date) (Day, error) {
	if s.config.Cache == nil {
		untraced(ctx)
		day, _, err := s.readDay(ctx, doctor, date)
		return day, err
	}
	key := listKey{doctor: doctor, from: date, days: 1, slots: true}
	return fetch(ctx, s.config.Cache, key, func(ctx context.Context) (Day, time.Duration, error) {
		return s.readDay(ctx, doctor, date)
	})
}

// life is how long after AsOf the next slot begins or opens.
func (d Day) life() time.Duration {
	life := time.Duration(math.MaxInt64)
	for _, s := range d.Slots {
		for _, at := range []time.Time{s.StartAt, s.OpensAt} {
			if at.After(d.AsOf) {
				life = min(life, at.Sub(d.AsOf))
			}
		}
	}
	return life
}

// readDay also returns how long it is until the next of the slots begins or opens, or a hold lapses.
func (s *Service) readDay(ctx context.Context, doctor booking.DoctorID, date booking.Date) (Day, time.Duration, error) {
	day := Day{Date: date, Slots: []booking.Slot{}}
	life := time.Duration(math.MaxInt64)
	rows, err := s.pool.Query(ctx, daySQL, doctor, s.now(), date, date)
	if err != nil {
		return Day{}, 0, wrap(err, "day %s of doctor %d", date, doctor)
	}
	defer rows.Close()
	for rows.Next() {
		var slot booking.Slot
		var lapses *time.Time
		into := append([]any{&day.TimeZone, &day.AsOf, &lapses}, fields(&slot)...)
		empty := rows.RawValues()[3] == nil
		if empty {
			clear(into[2:]) // a nil skips its column
		}
		if err := rows.Scan(into...); err != nil {
			return Day{}, 0, wrap(err, "day %s of doctor %d", date, doctor)
		}
		if !empty {
			day.Slots = append(day.Slots, inUTC(slot))
		}
		if lapses != nil {
			life = min(life, lapses.Sub(day.AsOf))
		}
	}
	if err := rows.Err(); err != nil {
		return Day{}, 0, wrap(err, "day %s of doctor %d", date, doctor)
	}
	if day.TimeZone == "" {
		return Day{}, 0, noDoctor()
	}
	day.AsOf = day.AsOf.UTC()
	day.Slots = slices.Clone(day.Slots) // it may be kept for long: without the room in which it grew
	return day, min(life, day.life()), nil
}

// MaxDays is how many days can be asked for at once.
const MaxDays = 31

const daysSQL = zoneSQL + `
SELECT (t.start_at AT TIME ZONE z.zone)::date, sum(t.capacity - t.booked_count + h.lapsed), sum(t.capacity),
       min(t.start_at) FILTER (WHERE t.booked_count - h.lapsed < t.capacity),
       least(min(t.start_at), min(h.lapses)) - min(z.now)` + slotsOfDaysSQL + `
   AND t.status = 'OPEN'` + holdsSQL + `
 GROUP BY 1`

// Days reads what is left of the n days from, from+1, …, one entry for each, with one query unless
// they are kept in the cache. It refuses with INVALID unless n is 1 to MaxDays and the last day is
// in the calendar; NOT_FOUND for an unknown doctor.
func (s *Service) Days(ctx context.Context, doctor booking.DoctorID, from booking.Date, n int) ([]booking.DaySummary, error) {
	if n < 1 || n > MaxDays {
		return nil, booking.Refuse(booking.Invalid, "days must be between 1 and %d.", MaxDays)
	}
	if from.AddDays(n-1).Year > 9999 {
		return nil, booking.Refuse(booking.Invalid, "The calendar ends with 9999-12-31.")
	}
	if s.config.Cache == nil {
		untraced(ctx)
		days, _, err := s.readDays(ctx, doctor, from, n)
		return days, err
	}
	return fetch(ctx, s.config.Cache, listKey{doctor: doctor, from: from, days: n}, func(ctx context.Context) ([]booking.DaySummary, time.Duration, error) {
		return s.readDays(ctx, doctor, from, n)
	})
}

// readDays also returns how long it is until the next of the slots begins or a hold lapses.
func (s *Service) readDays(ctx context.Context, doctor booking.DoctorID, from booking.Date, n int) ([]booking.DaySummary, time.Duration, error) {
	days := make([]booking.DaySummary, n)
	at := make(map[booking.Date]*booking.DaySummary, n)
	for i := range days {
		days[i].Date = from.AddDays(i)
		at[days[i].Date] = &days[i]
	}
	rows, err := s.pool.Query(ctx, daysSQL, doctor, s.now(), from, from.AddDays(n-1))
	if err != nil {
		return nil, 0, wrap(err, "days from %s of doctor %d", from, doctor)
	}
	var (
		date           booking.Date
		free, capacity *int
		first          *time.Time
		next           *time.Duration
		life           = time.Duration(math.MaxInt64)
	)
	read, err := pgx.ForEachRow(rows, []any{&date, &free, &capacity, &first, &next}, func() error {
		if next != nil {
			life = min(life, *next)
		}
		day := at[date]
		if day == nil {
			return nil // slots of the day before or after, or no slots at all
		}
		day.Free, day.Capacity = *free, *capacity
		if first != nil {
			utc := first.UTC()
			day.FirstFree = &utc
		}
		return nil
	})
	if err != nil {
		return nil, 0, wrap(err, "days from %s of doctor %d", from, doctor)
	}
	if read.RowsAffected() == 0 {
		return nil, 0, noDoctor()
	}
	return days, life, nil
}
