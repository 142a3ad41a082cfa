package booking

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

// CancelRequest names an appointment to cancel.
type CancelRequest struct {
	Appointment AppointmentID
	Reason      string // for the practice; at most 500 characters, may be empty
}

// Cancellation is a cancelled appointment.
type Cancellation struct {
	Appointment Appointment
	Changed     bool // false: it was cancelled before
}

// cancelSQL runs the cancelling rule: one round trip, one transaction.
const cancelSQL = `
SELECT outcome, ` + appointmentColumns + `
  FROM cancel($1, $2, $3, $4, $5, $6, nullif($7, ''))`

// Cancel cancels an appointment that has not begun and gives its place back; of any number of
// calls one does so, and the others succeed without effect. It refuses with TOO_LATE,
// HOLD_EXPIRED, INVALID_STATE; NOT_FOUND, also for an appointment that is not the actor's;
// INVALID, UNAUTHENTICATED; OVERLOADED, UNAVAILABLE, OUTCOME_UNKNOWN.
func (s *Service) Cancel(ctx context.Context, actor Actor, r CancelRequest) (Cancellation, error) {
	switch {
	case actor.Kind == Anonymous:
		return Cancellation{}, Refuse(Unauthenticated, "Sign in to cancel.")
	case !validText(r.Reason, 500):
		return Cancellation{}, Refuse(Invalid, "reason must be text of at most 500 characters.")
	}
	var (
		cancelled Cancellation
		decided   outcome
		sees      = actor.sees()
	)
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, rerun bool) error {
		row := conn.QueryRow(ctx, cancelSQL, s.now(), r.Appointment, sees.patient, sees.organization, sees.registrar,
			actor.Caller(), r.Reason)
		if err := scanAppointment(row, &cancelled.Appointment, &decided.code); err != nil {
			return err
		}
		cancelled.Changed = decided.code == outcomeCancelled || decided.code == outcomeUnchanged && rerun
		return nil
	})
	if err != nil {
		return Cancellation{}, fmt.Errorf("booking: cancel appointment %d: %w", r.Appointment, err)
	}
	if decided.code != outcomeCancelled && decided.code != outcomeUnchanged {
		return Cancellation{}, refusal(decided)
	}
	return cancelled, nil
}

// validText reports whether s can be stored as text and is short enough, in characters.
func validText(s string, most int) bool {
	if !utf8.ValidString(s) || utf8.RuneCountInString(s) > most {
		return false
	}
	for _, r := range s {
		if r == 0 {
			return false
		}
	}
	return true
}
