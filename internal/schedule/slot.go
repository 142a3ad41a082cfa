package schedule

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
)

// SlotChange is what to change of a slot; nil = leave it.
type SlotChange struct {
	Capacity *int                // new number of places, 1 to 100,000
	Status   *booking.SlotStatus // SlotOpen or SlotClosed
}

func (c SlotChange) check() error {
	switch {
	case c.Capacity == nil && c.Status == nil:
		return booking.Refuse(booking.Invalid, "Nothing to change: give a capacity or a status.")
	case c.Capacity != nil && (*c.Capacity < 1 || *c.Capacity > maxCapacity):
		return booking.Refuse(booking.Invalid, "capacity must be between 1 and %d.", maxCapacity)
	case c.Status != nil && *c.Status != booking.SlotOpen && *c.Status != booking.SlotClosed:
		return booking.Refuse(booking.Invalid, "status must be OPEN or CLOSED.")
	}
	return nil
}

const slotColumns = `t.id, t.doctor_id, t.start_at, t.end_at, t.opens_at, t.capacity, t.booked_count, t.status, t.version`

// lockSlotSQL finds and locks a slot that the actor may change. What it reads besides is for
// the case that nothing changes.
const lockSlotSQL = `
SELECT ` + slotColumns + `
  FROM time_slot t JOIN doctor d ON d.id = t.doctor_id
 WHERE t.id = $1 AND t.status <> 'WITHDRAWN' AND ($2::bigint IS NULL OR d.organization_id = $2)
   FOR NO KEY UPDATE OF t`

// expireSlotSQL gives back the places whose holds have lapsed, so that they are in nobody's way.
const expireSlotSQL = `SELECT release_due($1, true, ARRAY[$2::bigint])`

// takeWithheldSQL takes places of cancelled appointments that are still withheld away for good, up to
// $2 of them: whoever has fewer places needs those first that nobody is in.
const takeWithheldSQL = `
WITH taken AS (
    UPDATE appointment SET returns_at = NULL
     WHERE id IN (SELECT id FROM appointment WHERE slot_id = $1 AND returns_at IS NOT NULL ORDER BY id LIMIT $2)
    RETURNING 1)
UPDATE time_slot t SET booked_count = t.booked_count - (SELECT count(*) FROM taken)
 WHERE t.id = $1 AND EXISTS (SELECT FROM taken)
RETURNING ` + slotColumns

// changeSlotSQL reads the clock under the lock. chk_booked decides whether the places suffice.
const changeSlotSQL = `
UPDATE time_slot t SET capacity = coalesce($2, t.capacity), status = coalesce($3, t.status)
 WHERE t.id = $1 AND t.start_at > coalesce($4, clock_timestamp())
RETURNING ` + slotColumns

// lockWaitingSQL finds who waits for a place of a slot that has some, and locks them.
const lockWaitingSQL = `
SELECT lock_waiting($1, ARRAY[t.id], ARRAY[t.capacity - t.booked_count], '{}')
  FROM time_slot t WHERE t.id = $2 AND t.status = 'OPEN' AND t.booked_count < t.capacity`

// offerSQL offers them the places, as the function give_back does with those that are given back. It
// returns the slot if anybody took one.
const offerSQL = `
WITH o AS (SELECT offer_places(coalesce($1, clock_timestamp()), ARRAY[t.id], ARRAY[t.capacity - t.booked_count], $3) AS spare
             FROM time_slot t WHERE t.id = $2)
UPDATE time_slot t SET booked_count = t.capacity - o.spare[1]
  FROM o
 WHERE t.id = $2 AND t.booked_count < t.capacity - o.spare[1]
RETURNING ` + slotColumns

// offer offers the places of a slot that the transaction has locked to those who wait for one.
func (s *Service) offer(ctx context.Context, tx pgx.Tx, slot *booking.Slot) error {
	var waiting []int64
	err := tx.QueryRow(ctx, lockWaitingSQL, s.now(), slot.ID).Scan(&waiting)
	if err == nil && waiting != nil {
		err = scanSlot(tx.QueryRow(ctx, offerSQL, s.now(), slot.ID, waiting), slot)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	return err
}

// UpdateSlot changes the capacity of a slot, closes or reopens it, for the staff of the doctor's
// organization; appointments stand. Places that can be booked by that are offered to those who wait
// for them first. It returns the slot as it then is; what it is already counts
// as changed, without effect. It refuses with CAPACITY_IN_USE if more places are taken than the
// new capacity has; SLOT_PAST for a slot that has begun, which nothing could book any more;
// NOT_FOUND for one that is not there, withdrawn or not the actor's; INVALID for a change of
// nothing, a capacity outside 1 to 100,000, or of a FLEXIBLE slot, or another status than SlotOpen and
// SlotClosed.
func (s *Service) UpdateSlot(ctx context.Context, actor booking.Actor, id booking.SlotID, change SlotChange) (booking.Slot, error) {
	own, err := scope(actor)
	if err != nil {
		return booking.Slot{}, err
	}
	if err := change.check(); err != nil {
		return booking.Slot{}, err
	}
	var slot booking.Slot
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := scanSlot(tx.QueryRow(ctx, lockSlotSQL, id, own), &slot); err != nil {
			return orElse(err, booking.Refuse(booking.NotFound, "There is no such slot."))
		}
		if change.is(slot) {
			return nil // no new version that would wake everybody who watches
		}
		fewer := change.Capacity != nil && *change.Capacity < slot.Booked
		if fewer {
			if _, err := tx.Exec(ctx, expireSlotSQL, s.now(), id); err != nil {
				return err
			}
			if err := scanSlot(tx.QueryRow(ctx, lockSlotSQL, id, own), &slot); err != nil {
				return err
			}
			err := scanSlot(tx.QueryRow(ctx, takeWithheldSQL, id, max(slot.Booked-*change.Capacity, 0)), &slot)
			if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
		}
		past := booking.Refuse(booking.SlotPast, "The slot has begun and can't be changed any more.")
		err := orElse(scanSlot(tx.QueryRow(ctx, changeSlotSQL, id, change.Capacity, change.Status, s.now()), &slot), past)
		if err != nil || fewer {
			return err
		}
		return s.offer(ctx, tx, &slot)
	})
	if booking.Constraint(err) == "chk_flexible_capacity" {
		return booking.Slot{}, booking.Refuse(booking.Invalid, "A time of flexible hours is for one patient: its capacity can't be changed.")
	}
	if booking.Constraint(err) == "chk_booked" {
		return booking.Slot{}, booking.Refuse(booking.CapacityInUse,
			"More places are taken than that. Cancel appointments first, or choose a capacity of at least %d.", slot.Booked)
	}
	if err != nil {
		return booking.Slot{}, wrap(err, "update slot %d", id)
	}
	return slot, nil
}

// is reports whether the slot is as the change wants it.
func (c SlotChange) is(s booking.Slot) bool {
	return (c.Capacity == nil || *c.Capacity == s.Capacity) && (c.Status == nil || *c.Status == s.Status)
}

func scanSlot(row pgx.Row, s *booking.Slot) error {
	err := row.Scan(&s.ID, &s.DoctorID, &s.StartAt, &s.EndAt, &s.OpensAt, &s.Capacity, &s.Booked, &s.Status, &s.Version)
	s.StartAt, s.EndAt, s.OpensAt = s.StartAt.UTC(), s.EndAt.UTC(), s.OpensAt.UTC()
	return err
}
