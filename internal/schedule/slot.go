package schedule

import (
	"context"

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

// changeSlotSQL reads the clock under the lock. chk_booked decides whether the places suffice.
const changeSlotSQL = `
UPDATE time_slot t SET capacity = coalesce($2, t.capacity), status = coalesce($3, t.status)
 WHERE t.id = $1 AND t.start_at > coalesce($4, clock_timestamp())
RETURNING ` + slotColumns

// UpdateSlot changes the capacity of a slot, closes or reopens it, for the staff of the doctor's
// organization; appointments stand. It returns the slot as it then is; what it is already counts
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
		if change.Capacity != nil && *change.Capacity < slot.Booked {
			if _, err := tx.Exec(ctx, expireSlotSQL, s.now(), id); err != nil {
				return err
			}
			if err := scanSlot(tx.QueryRow(ctx, lockSlotSQL, id, own), &slot); err != nil {
				return err
			}
		}
		past := booking.Refuse(booking.SlotPast, "The slot has begun and can't be changed any more.")
		return orElse(scanSlot(tx.QueryRow(ctx, changeSlotSQL, id, change.Capacity, change.Status, s.now()), &slot), past)
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
