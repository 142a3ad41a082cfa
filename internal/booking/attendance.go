package booking

import "context"

// Mark notes whether the patient of a booked appointment came: ARRIVED, FULFILLED or NO_SHOW; BOOKED
// takes the mark back. Any of them may follow any other, as desks correct themselves, and the same
// again changes nothing. But nobody can be NO_SHOW before the appointment begins, and only who has
// arrived can be FULFILLED by then.
//
// It is for staff of the organization, and for the system. It refuses with INVALID_STATE for what is
// not booked or has not begun; HOLD_EXPIRED for a hold that has lapsed; when a mark is taken back that
// said that all was over, with ALREADY_BOOKED, REFERRAL_IN_USE or OVERLAP for what was booked since;
// NOT_FOUND, also for an appointment that is not the actor's; INVALID for another status;
// UNAUTHENTICATED, FORBIDDEN; OVERLOADED, UNAVAILABLE, OUTCOME_UNKNOWN.
func (s *Service) Mark(ctx context.Context, actor Actor, id AppointmentID, status AppointmentStatus) (Step, error) {
	if actor.Kind != System {
		if err := actor.require(Staff, "Only staff say who came."); err != nil {
			return Step{}, err
		}
	}
	step := string(status)
	switch status {
	case AppointmentArrived, AppointmentFulfilled, AppointmentNoShow:
	case AppointmentBooked:
		step = stepUnmark
	default:
		return Step{}, Refuse(Invalid, "status must be ARRIVED, FULFILLED, NO_SHOW or BOOKED.")
	}
	return s.step(ctx, actor, step, id, "")
}
