package booking

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"time"
)

// BookRequest asks for one place in a slot, to be booked or held.
type BookRequest struct {
	// Slot is which one, or else Time is a time of a doctor who has hours and no slots; its slot comes
	// into being with the appointment.
	Slot SlotID
	Time *TimeTarget
	// Patient is for whom: required of staff and partners. Patients book for themselves and
	// leave it 0.
	Patient PatientID
	// Key is the idempotency key: 1 to 64 printable ASCII characters without spaces, new for
	// every request that is meant, the same for a retry.
	Key string
	// Referral is the permission to be seen, if one is needed: at most 64 characters. Blank is none.
	// A referral has one active appointment at most, whoever asks.
	Referral string
	// OverlapReason lets the place be taken though the patient has another appointment at that
	// time: for staff, who say why in at most 500 characters. Blank: no.
	OverlapReason string
}

// Booking is a place won.
type Booking struct {
	Appointment Appointment
	Replayed    bool // an earlier call had won it: with this key, or the same hold with another one
}

// hash is what the idempotency key stands for.
func (r BookRequest) hash(hold bool) []byte {
	text := make([]byte, 0, 64)
	if hold {
		text = append(text, "hold"...)
	} else {
		text = append(text, "book"...)
	}
	if t := r.Time; t != nil {
		text = fmt.Appendf(text, " doctor=%d start=%d minutes=%d patient=%d", t.Doctor, t.StartAt.Unix(), t.Minutes, r.Patient)
	} else {
		text = fmt.Appendf(text, " slot=%d patient=%d", r.Slot, r.Patient)
	}
	if r.Referral != "" {
		text = fmt.Appendf(text, " referral=%q", r.Referral)
	}
	if r.OverlapReason != "" {
		text = fmt.Appendf(text, " overlap=%q", r.OverlapReason)
	}
	sum := sha256.Sum256(text)
	return sum[:]
}

// Book wins a place in a slot for a patient, or refuses: SLOT_FULL, SLOT_CLOSED (also a time that the
// practice does not offer), SLOT_PAST, SLOT_NOT_OPEN, ALREADY_BOOKED, OVERLAP, REFERRAL_IN_USE,
// IDEMPOTENCY_KEY_REUSED; by the practice's rules for patients TOO_EARLY, TOO_LATE, LIMIT_REACHED;
// NOT_FOUND, also for a slot, doctor or patient that is not the actor's; INVALID, UNAUTHENTICATED,
// FORBIDDEN (an overlap is for staff to allow); OVERLOADED, UNAVAILABLE and OUTCOME_UNKNOWN, after
// which the same request may be sent again.
//
// A key that has booked before is answered first, whatever has become of the slot since and
// whatever the gate says.
func (s *Service) Book(ctx context.Context, actor Actor, r BookRequest) (Booking, error) {
	return s.claim(ctx, actor, r, false)
}

// claim wins a place, booked or held.
func (s *Service) claim(ctx context.Context, actor Actor, r BookRequest, hold bool) (Booking, error) {
	r, err := admit(actor, r)
	if err != nil {
		return Booking{}, err
	}
	c := &call{request: r, actor: actor, hold: hold, hash: r.hash(hold), done: make(chan struct{})}
	answered, err := s.pass(ctx, c)
	switch {
	case err != nil:
		return Booking{}, err // the call may still be answered: it is not ours to read
	case answered:
		return c.booking, c.err
	}
	if s.batcher != nil && r.Time == nil {
		booked, err := s.batcher.book(ctx, c)
		if err != nil && errors.Is(err, ctx.Err()) { // the call may be in a transaction
			return Booking{}, &Error{Code: OutcomeUnknown, RetryAfter: time.Second,
				Message: "The request was given up before its outcome was known. Send the same request again."}
		}
		return booked, err
	}
	if r.Time != nil { // the doctor's lock makes one wait for the other anyway
		give, err := s.stripes.take(ctx, targetKey(r.Slot, r.Time))
		if err != nil {
			return Booking{}, err
		}
		defer give()
	}
	_ = s.execute(ctx, []*call{c}, true) // the call has its own copy of the error
	return c.booking, c.err
}

// pass asks the gate. What the gate refuses is answered if its key has won a place before; else the
// refusal is the error, unless it is for want of a place and there is one.
func (s *Service) pass(ctx context.Context, c *call) (answered bool, err error) {
	if s.config.Gate == nil {
		return false, nil
	}
	refused := s.config.Gate.Admit(ctx, c.actor, c.request)
	if refused == nil {
		return false, nil
	}
	answered, err = s.lookups.known(ctx, c)
	if err != nil || answered || c.room && isFull(refused) {
		return answered, err
	}
	return false, refused
}

func isFull(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Code == SlotFull
}

// admit checks a request before it costs a database anything, and brings it into its one form: with
// the patient, and without blanks around texts.
func admit(actor Actor, r BookRequest) (_ BookRequest, err error) {
	switch actor.Kind {
	case Anonymous:
		return r, Refuse(Unauthenticated, "Sign in to book.")
	case Patient:
		if r.Patient != 0 && r.Patient != actor.PatientID {
			return r, Refuse(NotFound, "There is no such patient.")
		}
		r.Patient = actor.PatientID
	}
	r.Referral, r.OverlapReason = strings.TrimSpace(r.Referral), strings.TrimSpace(r.OverlapReason)
	switch {
	case !validText(r.Referral, 64):
		return r, Refuse(Invalid, "referralId must be text of at most 64 characters.")
	case !validText(r.OverlapReason, 500):
		return r, Refuse(Invalid, "overlapReason must be text of at most 500 characters.")
	case r.OverlapReason != "" && actor.Kind != Staff:
		return r, Refuse(Forbidden, "Only staff may let appointments of a patient overlap.")
	case !validKey(r.Key):
		return r, Refuse(Invalid, "idempotencyKey must be 1 to 64 printable ASCII characters without spaces.")
	}
	if r.Time, err = admitTarget(r.Slot, r.Time); err != nil {
		return r, err
	}
	switch {
	case r.Patient == 0:
		return r, Refuse(Invalid, "patientId is required: say for whom the place is.")
	case r.Patient < 0:
		return r, Refuse(NotFound, "There is no such patient.")
	}
	return r, nil
}

func validKey(key string) bool {
	if len(key) < 1 || len(key) > 64 {
		return false
	}
	for _, b := range []byte(key) {
		if b <= ' ' || b > '~' {
			return false
		}
	}
	return true
}

// Outcomes of the functions claim and step, and of look-ups, that are no refusals.
const (
	outcomeWon       = "WON"
	outcomeReplayed  = "REPLAYED"
	outcomeBusy      = "SLOT_BUSY"
	outcomeLapsed    = "LAPSED"
	outcomeRoom      = "ROOM"
	outcomeChanged   = "CHANGED"
	outcomeUnchanged = "UNCHANGED"
)

// refusal words an outcome that is one.
func refusal(o outcome) error {
	switch code := Code(o.code); code {
	case "SLOT_NOT_FOUND":
		return Refuse(NotFound, "There is no such slot.")
	case "DOCTOR_NOT_FOUND":
		return Refuse(NotFound, "There is no such doctor.")
	case "TIME_NOT_OFFERED":
		return Refuse(SlotIsClosed, "The practice does not offer an appointment of this length at that time. Choose one of the free starts.")
	case "TIME_TAKEN":
		return Refuse(SlotFull, "The doctor is taken at that time. Choose another one of the free starts.")
	case "PATIENT_NOT_FOUND":
		return Refuse(NotFound, "There is no such patient.")
	case NotFound:
		return Refuse(NotFound, "There is no such appointment.")
	case SlotFull:
		return Refuse(code, "No place is left in this slot. Choose another.")
	case SlotIsClosed:
		return Refuse(code, "The practice has closed this slot. Choose another.")
	case SlotPast:
		return Refuse(code, "This slot has begun. Choose a later one.")
	case SlotNotOpen:
		err := Refuse(code, "Booking of this slot opens at %s.", o.opensAt.UTC().Format(time.RFC3339))
		err.OpensAt = *o.opensAt
		return err
	case AlreadyBooked:
		err := Refuse(code, "The patient has this slot already.")
		if o.appointment.Status == AppointmentHeld {
			err = Refuse(code, "This slot is held for the patient already. Confirm the hold.")
		}
		err.Existing = o.appointment.ID
		return err
	case ReferralInUse:
		err := Refuse(code, "There is an appointment for this referral already. Cancel it first.")
		err.Existing = o.appointment.ID
		return err
	case Overlap:
		return Refuse(code, "The patient has another appointment at that time. Cancel it first or choose another slot.")
	case "NOT_BEGUN":
		return Refuse(InvalidState, "The appointment has not begun yet. Say so once it has.")
	case "OTHER_ORGANIZATION":
		return Refuse(Invalid, "An appointment moves within its practice. Book there, and cancel this one.")
	case IdempotencyKeyReused:
		return Refuse(code, "This idempotency key stands for another request. Use a new key for a new request.")
	case TooEarly, LimitReached:
		return o.rule.refuse(code)
	case TooLate:
		if o.rule.name != nil {
			return o.rule.refuse(code)
		}
		return Refuse(code, "The appointment has begun and can't be changed any more.")
	case HoldExpired:
		return Refuse(code, "The hold has lapsed and its place was given back. Choose a slot again.")
	case InvalidState:
		return Refuse(code, "That can't be done with the appointment as it is now. Look at its status.")
	default:
		return fmt.Errorf("booking: outcome %q is unknown", o.code)
	}
}
