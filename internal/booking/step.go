package booking

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// The steps from one state of an appointment to the next, as the function step knows them.
const (
	stepConfirm = "CONFIRM"
	stepRelease = "RELEASE"
	stepCancel  = "CANCEL"
	stepUnmark  = "UNMARK" // and the states that Mark leads to
)

// Step is an appointment after a call that was to change its state.
type Step struct {
	Appointment Appointment
	Changed     bool // false: it was in that state before
}

// stepSQL runs the rule of a step: one round trip, one transaction.
const stepSQL = `
SELECT outcome, ` + ruleColumns + `, ` + appointmentColumns + `
  FROM step($1, $2, $3, $4, $5, $6, $7, nullif($8, ''), $9)`

// step takes an appointment to its next state, if the actor may see it and the rules allow it.
func (s *Service) step(ctx context.Context, actor Actor, step string, id AppointmentID, reason string) (Step, error) {
	if actor.Kind == Anonymous {
		return Step{}, Refuse(Unauthenticated, "Sign in first.")
	}
	give, err := s.stripes.take(ctx, s.places.key(id))
	if err != nil {
		return Step{}, err
	}
	defer give()
	sees := actor.sees()
	for cleared := 0; ; cleared++ {
		var (
			taken   Step
			decided outcome
		)
		err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, rerun bool) error {
			row := conn.QueryRow(ctx, stepSQL, s.now(), step, id, sees.patient, sees.organization, sees.registrar,
				actor.Caller(), reason, actor.Exempt())
			taken, decided = Step{}, outcome{}
			if err := scanAppointment(row, &taken.Appointment, &decided.code,
				&decided.rule.name, &decided.rule.number, &decided.rule.moment); err != nil {
				return err
			}
			taken.Changed = decided.code == outcomeChanged || decided.code == outcomeUnchanged && rerun
			return nil
		})
		switch {
		case err != nil:
			return Step{}, fmt.Errorf("booking: %s appointment %d: %w", step, id, err)
		case decided.code == outcomeChanged || decided.code == outcomeUnchanged:
			return taken, nil
		case decided.code == outcomeLapsed && cleared == clearMost:
			return Step{}, errOverloaded
		case decided.code == outcomeLapsed:
			if _, err := s.expire(ctx, []SlotID{taken.Appointment.SlotID}, true); err != nil {
				return Step{}, fmt.Errorf("booking: %s appointment %d: %w", step, id, withoutEffect(err))
			}
		default:
			decided.appointment = taken.Appointment
			return Step{}, refusal(decided)
		}
	}
}
