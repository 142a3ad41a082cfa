package booking

import (
	"context"
	"unicode/utf8"
)

// CancelRequest names an appointment to cancel.
type CancelRequest struct {
	Appointment AppointmentID
	Reason      string // for the practice; at most 500 characters, may be empty
}

// Cancel cancels an appointment that has not begun, or a hold, and gives its place back; of any
// number of calls one does so, and the others succeed without effect. It refuses with TOO_LATE (for
// patients also after the practice's cut-off, but a hold may be given back until it begins),
// HOLD_EXPIRED, INVALID_STATE; NOT_FOUND, also for an appointment that is not the actor's; INVALID,
// UNAUTHENTICATED; OVERLOADED, UNAVAILABLE, OUTCOME_UNKNOWN.
func (s *Service) Cancel(ctx context.Context, actor Actor, r CancelRequest) (Step, error) {
	if !validText(r.Reason, 500) {
		return Step{}, Refuse(Invalid, "reason must be text of at most 500 characters.")
	}
	return s.step(ctx, actor, stepCancel, r.Appointment, r.Reason)
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
