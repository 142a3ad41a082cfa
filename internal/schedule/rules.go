package schedule

import (
	"context"

	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
)

// BookingRules is what an organization asks of its patients, and of whoever books for them, and what
// it grants. Its staff and the operators are not bound. nil = no such rule.
type BookingRules struct {
	HoldMinutes   int  // how long a hold lasts
	NoticeMinutes *int // booked at least so long before the start
	HorizonDays   *int // and so many days at most, by the wall clock
	CutoffMinutes *int // cancelled or moved at least so long before the start
	MaxActive     *int // appointments of a patient that stand and are not over, holds included
	MaxHolds      *int // live holds of a patient
	MaxPerDay     *int // appointments of a patient on a day of the organization's zone
	OfferMinutes  int  // how long somebody who waits may think an offer over
	// CancelledPlacesReturn is when the place of a cancelled or moved appointment comes back, unless
	// somebody waits for it.
	CancelledPlacesReturn PlacesReturn
}

// PlacesReturn is when places come back.
type PlacesReturn string

// The policies. At the next release nobody knows when a cancelled place will be to be had, but everybody
// knows it at the same time: so nobody can hand it to a buyer.
const (
	AtOnce      PlacesReturn = "AT_ONCE"
	NextRelease PlacesReturn = "NEXT_RELEASE" // at 07:00 of the organization's clocks; at once if the slot begins before
)

// rulesColumns selects the fields of BookingRules in their order.
const rulesColumns = `hold_minutes, notice_minutes, horizon_days, cutoff_minutes, max_active, max_holds, max_per_day,
       offer_minutes, cancelled_returns`

// RulesChange is what to change of an organization's rules; nil = leave it, 0 = no such rule.
type RulesChange struct {
	Organization  booking.OrganizationID // 0 = that of the actor
	HoldMinutes   *int                   // 1 to 1,440; there is always one
	NoticeMinutes *int                   // to 525,600
	HorizonDays   *int                   // to 3,650
	CutoffMinutes *int                   // to 525,600
	MaxActive     *int                   // to 10,000
	MaxHolds      *int                   // to 10,000
	MaxPerDay     *int                   // to 10,000
	OfferMinutes  *int                   // 1 to 1,440; there is always one

	CancelledPlacesReturn *PlacesReturn
}

// IsEmpty reports whether the change leaves everything as it is.
func (c RulesChange) IsEmpty() bool { return c == RulesChange{Organization: c.Organization} }

func (c RulesChange) check() error {
	if c.IsEmpty() {
		return booking.Refuse(booking.Invalid, "Nothing to change: give at least one rule.")
	}
	if n := c.HoldMinutes; n != nil && (*n < 1 || *n > 1440) {
		return booking.Refuse(booking.Invalid, "holdMinutes must be between 1 and 1440.")
	}
	if n := c.OfferMinutes; n != nil && (*n < 1 || *n > 1440) {
		return booking.Refuse(booking.Invalid, "offerMinutes must be between 1 and 1440.")
	}
	if r := c.CancelledPlacesReturn; r != nil && *r != AtOnce && *r != NextRelease {
		return booking.Refuse(booking.Invalid, "cancelledPlacesReturn must be AT_ONCE or NEXT_RELEASE.")
	}
	for _, rule := range []struct {
		name  string
		value *int
		most  int
	}{
		{"noticeMinutes", c.NoticeMinutes, 525600}, {"horizonDays", c.HorizonDays, 3650}, {"cutoffMinutes", c.CutoffMinutes, 525600},
		{"maxActive", c.MaxActive, 10000}, {"maxHolds", c.MaxHolds, 10000}, {"maxPerDay", c.MaxPerDay, 10000},
	} {
		if n := rule.value; n != nil && (*n < 0 || *n > rule.most) {
			return booking.Refuse(booking.Invalid, "%s must be between 1 and %d, or 0 for no such rule.", rule.name, rule.most)
		}
	}
	return nil
}

const updateRulesSQL = `
UPDATE organization SET
       hold_minutes = coalesce($2, hold_minutes),
       notice_minutes = nullif(coalesce($3, notice_minutes), 0),
       horizon_days = nullif(coalesce($4, horizon_days), 0),
       cutoff_minutes = nullif(coalesce($5, cutoff_minutes), 0),
       max_active = nullif(coalesce($6, max_active), 0),
       max_holds = nullif(coalesce($7, max_holds), 0),
       max_per_day = nullif(coalesce($8, max_per_day), 0),
       offer_minutes = coalesce($9, offer_minutes),
       cancelled_returns = coalesce($10, cancelled_returns)
 WHERE id = $1
RETURNING ` + organizationColumns

// UpdateRules changes the rules of an organization, for its staff and the operators. They hold for
// what is decided from then on; what stands, stands. It refuses with INVALID a change of nothing and
// numbers outside their range; NOT_FOUND for an organization that is not there or not the actor's.
func (s *Service) UpdateRules(ctx context.Context, actor booking.Actor, change RulesChange) (Organization, error) {
	own, err := scope(actor)
	if err != nil {
		return Organization{}, err
	}
	if err := change.check(); err != nil {
		return Organization{}, err
	}
	if own != nil && change.Organization == 0 {
		change.Organization = *own
	}
	if own != nil && *own != change.Organization {
		return Organization{}, noOrganization()
	}
	rows, err := s.pool.Query(ctx, updateRulesSQL, change.Organization, change.HoldMinutes, change.NoticeMinutes,
		change.HorizonDays, change.CutoffMinutes, change.MaxActive, change.MaxHolds, change.MaxPerDay,
		change.OfferMinutes, change.CancelledPlacesReturn)
	if err != nil {
		return Organization{}, wrap(err, "update rules")
	}
	o, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Organization])
	return o, wrap(orElse(err, noOrganization()), "update rules")
}
