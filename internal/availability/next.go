package availability

import (
	"context"

	"openslot/internal/booking"
)

// lapsedSQL says whether slot t has a place that is due and nobody's, as holdsSQL counts them.
const lapsedSQL = `t.kind = 'FIXED' AND ((SELECT true FROM appointment x WHERE x.slot_id = t.id AND x.status = 'HELD' AND x.expires_at <= w.now LIMIT 1)
                        OR (SELECT true FROM appointment x WHERE x.slot_id = t.id AND x.returns_at IS NOT NULL AND x.returns_at <= w.now LIMIT 1))
                       AND NOT ` + awaitedSQL

// nextSQL goes along the doctor's slots in both directions from the wanted one, far enough in each
// for the case that the other has none.
const nextSQL = `
WITH w AS (SELECT doctor_id, start_at, coalesce($2, now()) AS now FROM time_slot WHERE id = $1),
     z AS (SELECT now FROM w),
     n AS ((SELECT t.*, t.start_at - w.start_at AS away
              FROM w, LATERAL (SELECT * FROM time_slot t
                     WHERE t.doctor_id = w.doctor_id AND t.status <> 'WITHDRAWN'
                       AND t.start_at >= w.start_at AND t.start_at > w.now AND t.id <> $1
                       AND t.status = 'OPEN' AND t.opens_at <= w.now AND (t.booked_count < t.capacity OR ` + lapsedSQL + `)
                     ORDER BY t.start_at LIMIT $3) AS t)
           UNION ALL
           (SELECT t.*, w.start_at - t.start_at
              FROM w, LATERAL (SELECT * FROM time_slot t
                     WHERE t.doctor_id = w.doctor_id AND t.status <> 'WITHDRAWN'
                       AND t.start_at < w.start_at AND t.start_at > w.now
                       AND t.status = 'OPEN' AND t.opens_at <= w.now AND (t.booked_count < t.capacity OR ` + lapsedSQL + `)
                     ORDER BY t.start_at DESC LIMIT $3) AS t))
SELECT ` + slotColumns + `
  FROM z CROSS JOIN n AS t` + holdsSQL + `
 ORDER BY t.away, t.start_at DESC
 LIMIT $3`

// Next are other slots of a slot's doctor that can be booked now and have a place left, at most
// limit (1 to 100). Somebody wanted that slot, so those nearest to it in time come first, earlier
// or later; of two equally near ones the later, which leaves more time to get there. An unknown
// slot has none.
func (s *Service) Next(ctx context.Context, slot booking.SlotID, limit int) ([]booking.Slot, error) {
	if limit < 1 || limit > 100 {
		return nil, booking.Refuse(booking.Invalid, "limit must be between 1 and 100.")
	}
	next, err := s.slots(ctx, nextSQL, slot, s.now(), limit)
	return next, wrap(err, "next slots after %d", slot)
}
