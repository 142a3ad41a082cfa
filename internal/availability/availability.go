// Package availability answers what is free: the slots of a doctor's day, what is left of days,
// and where to go instead of a slot that is full.
//
// An answer is a picture, true at its AsOf and perhaps no longer: it never decides a booking.
// Days are those of the doctor's organization's time zone; a slot belongs to the day on which it
// begins there. Slots that have begun are in no answer about days.
//
// [Cache] keeps such answers for seconds, [Gate] stands before the core, and both may use [Redis].
//
// A [Service] may be used by any number of goroutines at once. What it returns may be shared with
// others: it must not be written to.
package availability

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

// Config holds what a [Service] can be told. The zero value is right for production.
type Config struct {
	// Now is what time it is; nil = the database's clock, which all instances share.
	Now func() time.Time
	// Cache keeps days and their summaries; nil = each is read from the database.
	Cache *Cache
}

// Service reads slots.
type Service struct {
	pool   *pgxpool.Pool
	config Config
}

// New makes a service on a pool; a replica will do.
func New(pool *pgxpool.Pool, config Config) *Service {
	return &Service{pool: pool, config: config}
}

// now is the time to answer for; nil lets the database read its own clock.
func (s *Service) now() *time.Time {
	if s.config.Now == nil {
		return nil
	}
	now := s.config.Now()
	return &now
}

// slotColumns are a slot t as it is with holdsSQL: a place whose hold has lapsed, or which is withheld
// no more, is free, whether or not somebody has written that down.
const slotColumns = `t.id, t.doctor_id, t.start_at, t.end_at, t.opens_at, t.capacity, t.booked_count - h.lapsed, t.status, t.version`

// awaitedSQL says whether somebody waits for places like those of slot t. What is due in it is theirs,
// if they fit: that is found out when it is written down, which takes a second at most.
const awaitedSQL = `EXISTS (SELECT FROM waiting_entry w
                             WHERE w.doctor_id = t.doctor_id AND w.status IN ('WAITING', 'OFFERED') AND w.during @> t.start_at)`

// holdsSQL joins, to each slot t, how many of its places are due at z.now and nobody's, and when the
// next one will be due. It costs a probe of an index for each slot with places taken. A FLEXIBLE slot
// has no place that could be free: it is taken until it is withdrawn.
const holdsSQL = `
  LEFT JOIN LATERAL (SELECT (count(*) FILTER (WHERE e.at <= z.now AND NOT ` + awaitedSQL + `))::int AS lapsed,
                            min(e.at) FILTER (WHERE e.at > z.now) AS lapses
                       FROM (SELECT CASE x.status WHEN 'HELD' THEN x.expires_at ELSE x.returns_at END AS at
                               FROM appointment x
                              WHERE x.slot_id = t.id AND (x.status = 'HELD' OR x.returns_at IS NOT NULL)) AS e
                      WHERE t.booked_count > 0 AND t.kind = 'FIXED') AS h ON true`

// fields are where slotColumns go.
func fields(s *booking.Slot) []any {
	return []any{&s.ID, &s.DoctorID, &s.StartAt, &s.EndAt, &s.OpensAt, &s.Capacity, &s.Booked, &s.Status, &s.Version}
}

// inUTC is the slot with its times in UTC, as all times in answers are.
func inUTC(s booking.Slot) booking.Slot {
	s.StartAt, s.EndAt, s.OpensAt = s.StartAt.UTC(), s.EndAt.UTC(), s.OpensAt.UTC()
	return s
}

// slots runs a query for slotColumns.
func (s *Service) slots(ctx context.Context, sql string, args ...any) ([]booking.Slot, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (slot booking.Slot, err error) {
		err = row.Scan(fields(&slot)...)
		return inUTC(slot), err
	})
}

// Slot reads one slot, whatever its state, or refuses with NOT_FOUND.
func (s *Service) Slot(ctx context.Context, id booking.SlotID) (booking.Slot, error) {
	found, err := s.SlotsByID(ctx, []booking.SlotID{id})
	if err != nil {
		return booking.Slot{}, err
	}
	slot, ok := found[id]
	if !ok {
		return booking.Slot{}, booking.Refuse(booking.NotFound, "There is no such slot.")
	}
	return slot, nil
}

const slotsSQL = `
WITH z AS (SELECT coalesce($2, now()) AS now)
SELECT ` + slotColumns + `
  FROM z CROSS JOIN time_slot t` + holdsSQL + `
 WHERE t.id = ANY ($1)`

// SlotsByID reads many slots with one query, whatever their state: an appointment's slot may have
// been withdrawn. Ids that name none are left out.
func (s *Service) SlotsByID(ctx context.Context, ids []booking.SlotID) (map[booking.SlotID]booking.Slot, error) {
	list, err := s.slots(ctx, slotsSQL, ids, s.now())
	if err != nil {
		return nil, wrap(err, "read slots")
	}
	found := make(map[booking.SlotID]booking.Slot, len(list))
	for _, slot := range list {
		found[slot.ID] = slot
	}
	return found, nil
}

func noDoctor() error { return booking.Refuse(booking.NotFound, "There is no such doctor.") }

// wrap names what failed. Refusals pass through it with their code.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("availability: %s: %w", fmt.Sprintf(format, args...), booking.DatabaseError(err))
}
