package booking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	sweepSlots  = 200         // that are tidied in one transaction
	sweepEvery  = time.Second // how often Sweep looks
	releaseMost = 500         // places that release_due gives back at once
)

// dueSQL finds slots with holds that have lapsed or places that are withheld no more, after slot $2,
// of all doctors or of those in $3.
const dueSQL = `
SELECT DISTINCT x.slot_id
  FROM (SELECT slot_id FROM appointment
         WHERE status = 'HELD' AND expires_at <= coalesce($1::timestamptz, clock_timestamp())
        UNION ALL
        SELECT slot_id FROM appointment
         WHERE returns_at IS NOT NULL AND returns_at <= coalesce($1::timestamptz, clock_timestamp())) AS x
  JOIN time_slot t ON t.id = x.slot_id
 WHERE x.slot_id > $2 AND ($3::bigint[] IS NULL OR t.doctor_id = ANY ($3))
 ORDER BY x.slot_id LIMIT $4`

const expireSQL = `SELECT release_due($1, $2, $3)`

// Expire writes down which holds have lapsed and which places are withheld no more, for all doctors
// or, if any are given, for these, and gives the places back: to whoever waits for them, else to
// everybody. No rule needs it: what is due hinders nobody. But what was written down is announced to
// those who look on. It returns how many there were.
//
// Any number of calls, here and elsewhere, end each once. Slots that somebody works on are left to
// them.
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
		n := 0
		if err == nil && len(slots) > 0 {
			n, err = s.expire(ctx, slots, false)
			expired += n
		}
		switch {
		case err != nil:
			return expired, fmt.Errorf("booking: expire holds: %w", err)
		case n >= releaseMost: // and perhaps more of the same slots
		case len(slots) < sweepSlots:
			return expired, nil
		default:
			after = slots[len(slots)-1]
		}
	}
}

// expire gives back what is due in some slots, at most releaseMost places. It waits for the slots'
// locks, or leaves those that somebody has locked.
func (s *Service) expire(ctx context.Context, slots []SlotID, wait bool) (n int, err error) {
	err = s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		return conn.QueryRow(ctx, expireSQL, s.now(), wait, slots).Scan(&n)
	})
	return n, err
}

// endWaitingSQL takes entries off the waiting list whose days are over. Nobody is offered anything for
// them any more; this keeps the list short.
const endWaitingSQL = `
UPDATE waiting_entry SET status = 'ENDED'
 WHERE id IN (SELECT id FROM waiting_entry
               WHERE status = 'WAITING' AND upper(during) <= coalesce($1::timestamptz, clock_timestamp())
               LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED)`

// endWaiting tidies the waiting list.
func (s *Service) endWaiting(ctx context.Context) error {
	return s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		_, err := conn.Exec(ctx, endWaitingSQL, s.now())
		return err
	})
}

// Sweep calls Expire for all doctors and tidies the waiting list, again and again until ctx ends, and
// then returns nil. While the database is away it tells failed and goes on.
func (s *Service) Sweep(ctx context.Context, failed func(error)) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		_, err := s.Expire(ctx)
		if err == nil {
			err = s.endWaiting(ctx)
		}
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
