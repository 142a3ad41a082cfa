package booking

import "context"

// Hold takes a place in a slot for the minutes that the slot's organization grants; it lapses
// unless it is confirmed by then. It refuses as Book does. Whoever holds the place already, with
// the same referral, is given the same hold, whose time does not begin anew.
//
// Book does not take what is held: it refuses with ALREADY_BOOKED and names the hold.
func (s *Service) Hold(ctx context.Context, actor Actor, r BookRequest) (Booking, error) {
	return s.claim(ctx, actor, r, true)
}

// Confirm books what is held. Confirming again changes nothing. It refuses with HOLD_EXPIRED once
// the hold has lapsed, however long ago; TOO_LATE when the slot has begun; INVALID_STATE for a hold
// that was given back; else as Cancel does. The practice's rules were asked when the place was held:
// a hold that stands can be confirmed, though its notice may have begun since.
func (s *Service) Confirm(ctx context.Context, actor Actor, id AppointmentID) (Step, error) {
	return s.step(ctx, actor, stepConfirm, id, "")
}

// Release gives a held place back. Releasing again changes nothing. It refuses with HOLD_EXPIRED
// once the hold has lapsed; TOO_LATE when the slot has begun; INVALID_STATE for what is no hold any
// more: it is to be cancelled; else as Cancel does.
func (s *Service) Release(ctx context.Context, actor Actor, id AppointmentID) (Step, error) {
	return s.step(ctx, actor, stepRelease, id, "")
}
