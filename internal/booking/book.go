package booking

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// BookRequest asks for one place in a slot.
type BookRequest struct {
	Slot SlotID
	// Patient is for whom: required of staff and partners. Patients book for themselves and
	// leave it 0.
	Patient PatientID
	// Key is the idempotency key: 1 to 64 printable ASCII characters without spaces, new for
	// every request that is meant, the same for a retry.
	Key string
}

// Booking is a place won.
type Booking struct {
	Appointment Appointment
	Replayed    bool // an earlier call with this key had won it
}

// hash is what the idempotency key stands for.
func (r BookRequest) hash() []byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "book slot=%d patient=%d", r.Slot, r.Patient))
	return sum[:]
}

// bookSQL runs the booking rule for one request: one round trip, one transaction.
const bookSQL = `
SELECT outcome, opens_at, ` + appointmentColumns + `
  FROM book($1, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY[$4::text], ARRAY[$5::text], ARRAY[$6::bytea],
            ARRAY[$7::bigint], ARRAY[$8::text])`

// keySQL finds what a key has booked.
const keySQL = `
SELECT ` + appointmentColumns + `
  FROM appointment a JOIN time_slot s ON s.id = a.slot_id
 WHERE a.booked_by = $1 AND a.idempotency_key = $2 AND a.request_hash = $3`

// Book wins a place in a slot for a patient, or refuses: SLOT_FULL, SLOT_CLOSED, SLOT_PAST,
// SLOT_NOT_OPEN, ALREADY_BOOKED, OVERLAP, IDEMPOTENCY_KEY_REUSED; NOT_FOUND, also for a slot or
// patient that is not the actor's; INVALID, UNAUTHENTICATED; OVERLOADED, UNAVAILABLE and
// OUTCOME_UNKNOWN, after which the same request may be sent again.
//
// A key that has booked before is answered first, whatever has become of the slot since.
func (s *Service) Book(ctx context.Context, actor Actor, r BookRequest) (Booking, error) {
	r, err := admit(actor, r)
	if err != nil {
		return Booking{}, err
	}
	var (
		booking Booking
		outcome string
		opensAt *time.Time
	)
	err = s.run(ctx, func(ctx context.Context, conn *pgx.Conn, rerun bool) error {
		row := conn.QueryRow(ctx, bookSQL, s.now(), r.Slot, r.Patient, r.Key, actor.Caller(), r.hash(),
			actor.Organization, actor.Registrar())
		if err := scanAppointment(row, &booking.Appointment, &outcome, &opensAt); err != nil {
			return err
		}
		booking.Replayed = outcome == outcomeReplayed && !rerun
		return nil
	})
	if busy := new(Error); errors.As(err, &busy) && busy.Code == Overloaded {
		// Somebody sits on the slot. A retry need not wait for it to hear what it has won.
		if stored, ok := s.replay(ctx, actor, r); ok {
			return stored, nil
		}
	}
	if err != nil {
		return Booking{}, fmt.Errorf("booking: book slot %d: %w", r.Slot, err)
	}
	if outcome != outcomeBooked && outcome != outcomeReplayed {
		return Booking{}, refusal(outcome, opensAt, booking.Appointment.ID)
	}
	return booking, nil
}

// replay looks up what the key has booked, without waiting for any lock.
func (s *Service) replay(ctx context.Context, actor Actor, r BookRequest) (Booking, bool) {
	booking := Booking{Replayed: true}
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		return scanAppointment(conn.QueryRow(ctx, keySQL, actor.Caller(), r.Key, r.hash()), &booking.Appointment)
	})
	return booking, err == nil
}

// admit checks a request before it costs a database anything, and fills in the patient.
func admit(actor Actor, r BookRequest) (BookRequest, error) {
	switch actor.Kind {
	case Anonymous:
		return r, Refuse(Unauthenticated, "Sign in to book.")
	case Patient:
		if r.Patient != 0 && r.Patient != actor.PatientID {
			return r, Refuse(NotFound, "There is no such patient.")
		}
		r.Patient = actor.PatientID
	}
	switch {
	case !validKey(r.Key):
		return r, Refuse(Invalid, "idempotencyKey must be 1 to 64 printable ASCII characters without spaces.")
	case r.Slot <= 0:
		return r, Refuse(NotFound, "There is no such slot.")
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

// Outcomes of the functions book and cancel that are no refusals.
const (
	outcomeBooked    = "BOOKED"
	outcomeReplayed  = "REPLAYED"
	outcomeCancelled = "CANCELLED"
	outcomeUnchanged = "UNCHANGED"
)

// refusal words an outcome that is one.
func refusal(outcome string, opensAt *time.Time, existing AppointmentID) error {
	switch code := Code(outcome); code {
	case "SLOT_NOT_FOUND":
		return Refuse(NotFound, "There is no such slot.")
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
		err := Refuse(code, "Booking of this slot opens at %s.", opensAt.UTC().Format(time.RFC3339))
		err.OpensAt = *opensAt
		return err
	case AlreadyBooked:
		err := Refuse(code, "The patient has this slot already.")
		err.Existing = existing
		return err
	case Overlap:
		return Refuse(code, "The patient has another appointment at that time. Cancel it first or choose another slot.")
	case IdempotencyKeyReused:
		return Refuse(code, "This idempotency key stands for another request. Use a new key for a new request.")
	case TooLate:
		return Refuse(code, "The appointment has begun and can't be cancelled any more.")
	case HoldExpired:
		return Refuse(code, "The hold has lapsed; there is nothing left to cancel.")
	case InvalidState:
		return Refuse(code, "The appointment can't be cancelled any more.")
	default:
		return fmt.Errorf("booking: outcome %q is unknown", outcome)
	}
}
