package booking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sweepSlots = 200         // whose holds end in one transaction
	sweepEvery = time.Second // how often Sweep looks
)

// dueSQL finds slots with holds that have lapsed, after slot $2, of all doctors or of those in $3.
const dueSQL = `
SELECT DISTINCT x.slot_id
  FROM appointment x JOIN time_slot t ON t.id = x.slot_id
 WHERE x.status = 'HELD' AND x.expires_at <= coalesce($1::timestamptz, clock_timestamp())
   AND x.slot_id > $2 AND ($3::bigint[] IS NULL OR t.doctor_id = ANY ($3))
 ORDER BY x.slot_id LIMIT $4`

const expireSQL = `SELECT release_due($1, $2, $3)`

// Expire writes down which holds have lapsed, for all doctors or, if any are given, for these, and
// gives their places back. No rule needs it: a hold that has lapsed hinders nobody. But what was
// written down is announced to those who look on. It returns how many there were.
//
// Any number of calls, here and elsewhere, end each hold once. Slots that somebody works on are
// left to them.
func (s *Service) Expire(ctx context.Context, doctors ...DoctorID) (int, error) {
	expired := 0
	for after := SlotID(0); ; {
		var slots []SlotID
		err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
			rows, err := conn.Query(ctx, dueSQL, s.now(), after, doctors, sweepSlots)
			if err != nil {
				return err
			}
			slots, err = pgx.CollectRows(rows, pgx.RowTo[SlotID])
			return err
		})
		if err == nil && len(slots) > 0 {
			var n int
			n, err = s.expire(ctx, slots, false)
			expired += n
		}
		if err != nil {
			return expired, fmt.Errorf("booking: expire holds: %w", err)
		}
		if len(slots) < sweepSlots {
			return expired, nil
		}
		after = slots[len(slots)-1]
	}
}

// expire ends the holds of some slots that have lapsed. It waits for the slots' locks, or leaves
// those that somebody has locked.
func (s *Service) expire(ctx context.Context, slots []SlotID, wait bool) (n int, err error) {
	err = s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		return conn.QueryRow(ctx, expireSQL, s.now(), wait, slots).Scan(&n)
	})
	return n, err
}

// Sweep calls Expire for all doctors again and again until ctx ends, and then returns nil. While
// the database is away it tells failed and goes on.
func (s *Service) Sweep(ctx context.Context, failed func(error)) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if _, err := s.Expire(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
