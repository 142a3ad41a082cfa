package booking

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// RescheduleRequest asks to move an appointment to another slot. What to move is said by the
// appointment, or by a referral and the slot it is used in.
type RescheduleRequest struct {
	Appointment AppointmentID
	Referral    string // with From, instead of Appointment
	From        SlotID
	// To is where to, or else ToTime is, as in [BookRequest].
	To     SlotID
	ToTime *TimeTarget
	// Key is an idempotency key, as that of a booking is.
	Key string
	// OverlapReason is as in [BookRequest]. What was allowed where the appointment was is not
	// allowed where it moves to.
	OverlapReason string
}

// hash is what the idempotency key stands for.
func (r RescheduleRequest) hash() []byte {
	text := fmt.Appendf(nil, "move appointment=%d slot=%d", r.Appointment, r.To)
	if t := r.ToTime; t != nil {
		text = fmt.Appendf(text, " doctor=%d start=%d minutes=%d", t.Doctor, t.StartAt.Unix(), t.Minutes)
	}
	if r.Appointment == 0 {
		text = fmt.Appendf(text, " from=%d referral=%q", r.From, r.Referral)
	}
	if r.OverlapReason != "" {
		text = fmt.Appendf(text, " overlap=%q", r.OverlapReason)
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

// Reschedule moves a booked appointment to another slot of its practice: the appointment becomes
// CANCELLED, and a new one, which replaces it, has the other slot and the same referral. Both happen
// or neither: whatever refuses the new place, the old one is kept. The appointment that moves is
// never in its own way. Its own slot again is a success that changes nothing; the answer is then the
// same appointment, as replayed.
//
// Who may cancel may reschedule. It refuses as Book does for the new slot, but no limit counts the
// appointment that moves; with TOO_LATE once that has begun, for patients also after the practice's
// cut-off; HOLD_EXPIRED for a hold that has lapsed, INVALID_STATE for what is not booked, a hold
// included: that is given back and another made; INVALID for a slot of another practice: that is to be
// booked there; NOT_FOUND, also for an appointment that is not the actor's.
func (s *Service) Reschedule(ctx context.Context, actor Actor, r RescheduleRequest) (Booking, error) {
	r, err := r.admit(actor)
	if err != nil {
		return Booking{}, err
	}
	moved, err := s.moved(ctx, actor, r)
	if err != nil {
		return Booking{}, err
	}
	c := &call{
		request: BookRequest{Slot: r.To, Time: r.ToTime, Patient: moved.PatientID, Key: r.Key, Referral: value(moved.ReferralID), OverlapReason: r.OverlapReason},
		actor:   actor, hash: r.hash(), done: make(chan struct{}),
	}
	if moved.SlotID != r.To && !r.ToTime.is(moved) { // else there is nothing to win
		answered, err := s.pass(ctx, c)
		switch {
		case err != nil:
			return Booking{}, err
		case answered:
			return c.booking, c.err
		}
	}
	give, err := s.stripes.take(ctx, key{keySlot, int64(moved.SlotID)}, targetKey(r.To, r.ToTime))
	if err != nil {
		return Booking{}, err
	}
	defer give()
	if err := s.move(ctx, c, moved.ID); err != nil {
		return Booking{}, fmt.Errorf("booking: reschedule appointment %d: %w", moved.ID, err)
	}
	return c.booking, c.err
}

// admit checks a request before it costs a database anything, and brings it into its one form.
func (r RescheduleRequest) admit(actor Actor) (_ RescheduleRequest, err error) {
	r.Referral, r.OverlapReason = strings.TrimSpace(r.Referral), strings.TrimSpace(r.OverlapReason)
	switch {
	case actor.Kind == Anonymous:
		return r, Refuse(Unauthenticated, "Sign in first.")
	case (r.Appointment == 0) != (r.From != 0 && r.Referral != "") || r.Appointment != 0 && (r.From != 0 || r.Referral != ""):
		return r, Refuse(Invalid, "Say what to move: by appointmentId, or by referralId and fromSlotId.")
	case !validText(r.Referral, 64):
		return r, Refuse(Invalid, "referralId must be text of at most 64 characters.")
	case !validText(r.OverlapReason, 500):
		return r, Refuse(Invalid, "overlapReason must be text of at most 500 characters.")
	case r.OverlapReason != "" && actor.Kind != Staff:
		return r, Refuse(Forbidden, "Only staff may let appointments of a patient overlap.")
	case !validKey(r.Key):
		return r, Refuse(Invalid, "idempotencyKey must be 1 to 64 printable ASCII characters without spaces.")
	}
	r.ToTime, err = admitTarget(r.To, r.ToTime)
	return r, err
}

// moved finds the appointment that the request names. Of several with the same referral in the same
// slot it is the active one; if none is, the last: a retry names what has been moved.
func (s *Service) moved(ctx context.Context, actor Actor, r RescheduleRequest) (Appointment, error) {
	if r.Appointment != 0 {
		return s.Appointment(ctx, actor, r.Appointment)
	}
	found, err := s.read(ctx, actor, readSQL+`
   AND a.slot_id = $5 AND a.referral_id = $6
 ORDER BY a.status IN ('HELD', 'BOOKED', 'ARRIVED') DESC, a.id DESC
 LIMIT 1`, r.From, r.Referral)
	if err != nil {
		return Appointment{}, err
	}
	if len(found) == 0 {
		return Appointment{}, Refuse(NotFound, "There is no appointment for this referral in that slot.")
	}
	return found[0], nil
}

// rescheduleSQL runs the rule of a move: one round trip, one transaction.
const rescheduleSQL = `
SELECT outcome, opens_at, ` + ruleColumns + `, full_version, decided_at, lapsed, ` + appointmentColumns + `
  FROM reschedule($1, $2, $3, $4, $5, nullif($6::bigint, 0), $7, $8, $9, nullif($10, ''), $11, $12, $13, $14)`

// move answers the call with the appointment's move to the call's slot. What has nothing but lapsed
// holds in its way is tried again without these.
func (s *Service) move(ctx context.Context, c *call, id AppointmentID) error {
	sees, target := c.actor.sees(), c.request.Time.columns()
	for {
		var (
			o     outcome
			again bool
		)
		err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, rerun bool) error {
			again = rerun
			row := conn.QueryRow(ctx, rescheduleSQL, s.now(), id, sees.patient, sees.organization, sees.registrar,
				c.request.Slot, c.request.Key, c.actor.Caller(), c.hash, c.request.OverlapReason, c.actor.Exempt(),
				target.doctor, target.start, target.minutes)
			o = outcome{}
			return scanAppointment(row, &o.appointment, &o.code, &o.opensAt,
				&o.rule.name, &o.rule.number, &o.rule.moment, &o.full, &o.at, &o.lapsed)
		})
		switch {
		case err != nil:
			return err
		case o.code == outcomeBusy, o.code == outcomeLapsed && c.cleared == clearMost:
			return errOverloaded
		case o.code == outcomeLapsed:
			c.cleared++
			// In a transaction of its own, which waits for nobody once it has changed anything: see claim.
			if _, err := s.expire(ctx, o.lapsed, true); err != nil {
				return withoutEffect(err)
			}
		default:
			s.hear(c.request.Slot, o)
			s.places.note(o)
			c.settle(o, again)
			return nil
		}
	}
}

func value(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
