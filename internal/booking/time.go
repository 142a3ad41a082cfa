package booking

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// TimeTarget is a time of a doctor whose hours are flexible: what to book where there are no slots.
// It has to be one that the doctor's schedule offers: within a window, on its grid, of a length that
// it allows.
type TimeTarget struct {
	Doctor  DoctorID
	StartAt time.Time
	Minutes int // 1 to 1440
}

// admitTarget refuses what is neither just a slot nor just a time.
func admitTarget(slot SlotID, t *TimeTarget) (*TimeTarget, error) {
	switch {
	case t != nil && slot != 0:
		return nil, Refuse(Invalid, "Name a slot or a time, not both.")
	case t != nil:
		return t.admit()
	case slot == 0:
		return nil, Refuse(Invalid, "Name a slot, or a time of a doctor.")
	case slot < 0:
		return nil, Refuse(NotFound, "There is no such slot.")
	}
	return nil, nil
}

// admit checks a target before it costs a database anything, and brings it into its one form.
func (t TimeTarget) admit() (*TimeTarget, error) {
	t.StartAt = t.StartAt.UTC()
	switch {
	case t.Doctor <= 0:
		return nil, Refuse(NotFound, "There is no such doctor.")
	case t.Minutes < 1 || t.Minutes > 24*60:
		return nil, Refuse(Invalid, "minutes must be between 1 and 1440.")
	case t.StartAt.Year() < 1 || t.StartAt.Year() > 9999 || t.StartAt.Nanosecond() != 0:
		return nil, Refuse(Invalid, "startAt must be a moment of the years 1 to 9999, in whole seconds.")
	}
	return &t, nil
}

// is reports whether the target is the time of an appointment.
func (t *TimeTarget) is(a Appointment) bool {
	return t != nil && t.Doctor == a.DoctorID && t.StartAt.Equal(a.StartAt) &&
		a.EndAt.Equal(t.StartAt.Add(time.Duration(t.Minutes)*time.Minute))
}

// timeColumns are a target as the statements take it: all NULL, there is none.
type timeColumns struct {
	doctor  *DoctorID
	start   *time.Time
	minutes *int
}

func (t *TimeTarget) columns() timeColumns {
	if t == nil {
		return timeColumns{}
	}
	return timeColumns{&t.Doctor, &t.StartAt, &t.Minutes}
}

// target names, for the log, what was asked for.
func (r BookRequest) target() string {
	if t := r.Time; t != nil {
		return fmt.Sprintf("%d minutes of doctor %d at %s", t.Minutes, t.Doctor, t.StartAt.Format(time.RFC3339))
	}
	return fmt.Sprintf("slot %d", r.Slot)
}

// claimTimeSQL runs the rule for a time: one round trip, one transaction.
const claimTimeSQL = `
SELECT outcome, opens_at, ` + ruleColumns + `, lapsed, ` + appointmentColumns + `
  FROM claim_time($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)`

// transactTime is transact for a call that asks for a time: such calls have no slot in common, and
// take the doctor's lock, for which no others shall wait.
func (s *Service) transactTime(ctx context.Context, c *call) (outcomes []outcome, rerun bool, err error) {
	var (
		o        outcome
		r        = c.request
		optional = func(text string) *string {
			if text == "" {
				return nil
			}
			return &text
		}
	)
	err = s.run(ctx, func(ctx context.Context, conn *pgx.Conn, again bool) error {
		rerun = again
		row := conn.QueryRow(ctx, claimTimeSQL, s.now(), r.Time.Doctor, r.Time.StartAt, r.Time.Minutes,
			r.Patient, r.Key, c.actor.Caller(), c.hash, c.actor.Organization, c.actor.Registrar(),
			c.hold, optional(r.Referral), optional(r.OverlapReason), c.actor.Exempt())
		o = outcome{}
		return scanAppointment(row, &o.appointment, &o.code, &o.opensAt, &o.rule.name, &o.rule.number, &o.rule.moment, &o.lapsed)
	})
	return []outcome{o}, rerun, err
}
