package booking

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Code names a refusal. Codes are part of the public contract: clients branch on them.
type Code string

// The refusals. Each transport has one table from code to status.
const (
	Invalid         Code = "INVALID"
	Unauthenticated Code = "UNAUTHENTICATED"
	Forbidden       Code = "FORBIDDEN"
	NotFound        Code = "NOT_FOUND" // also: not yours

	SlotFull      Code = "SLOT_FULL"
	SlotIsClosed  Code = "SLOT_CLOSED"
	SlotPast      Code = "SLOT_PAST"
	SlotNotOpen   Code = "SLOT_NOT_OPEN"
	AlreadyBooked Code = "ALREADY_BOOKED"
	Overlap       Code = "OVERLAP"
	ReferralInUse Code = "REFERRAL_IN_USE"
	TooEarly      Code = "TOO_EARLY"     // the practice's horizon
	TooLate       Code = "TOO_LATE"      // it has begun; or the practice's notice or cut-off
	LimitReached  Code = "LIMIT_REACHED" // how much a practice lets a patient have at once
	InvalidState  Code = "INVALID_STATE"
	HoldExpired   Code = "HOLD_EXPIRED"

	CapacityInUse        Code = "CAPACITY_IN_USE"
	ScheduleInUse        Code = "SCHEDULE_IN_USE"
	IdempotencyKeyReused Code = "IDEMPOTENCY_KEY_REUSED"
	RateLimited          Code = "RATE_LIMITED"

	Overloaded     Code = "OVERLOADED"
	Unavailable    Code = "UNAVAILABLE"
	OutcomeUnknown Code = "OUTCOME_UNKNOWN"
	Internal       Code = "INTERNAL"
)

// Business reports whether the code is an answer of the rules, which a client shows to its
// user, rather than a fault of the input, of access or of the system.
func (c Code) Business() bool {
	switch c {
	case SlotFull, SlotIsClosed, SlotPast, SlotNotOpen, AlreadyBooked, Overlap, ReferralInUse, TooEarly, TooLate,
		LimitReached, InvalidState, HoldExpired, CapacityInUse, ScheduleInUse, IdempotencyKeyReused, RateLimited:
		return true
	default:
		return false
	}
}

// Error is a refusal: the call had no effect (or, with OutcomeUnknown, may be repeated with its
// key to learn which). Message is for people, says what to do and carries no internals.
type Error struct {
	Code       Code
	Message    string
	RetryAfter time.Duration // when trying again may help; 0 = not said
	OpensAt    time.Time     // SLOT_NOT_OPEN, TOO_EARLY: when booking opens
	Existing   AppointmentID // ALREADY_BOOKED, REFERRAL_IN_USE: the appointment that stands, if it is the patient's
	Cause      error         // for the log only
}

func (e *Error) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s: %s: %v", e.Code, e.Message, e.Cause)
	}
	return fmt.Sprintf("%s: %s", e.Code, e.Message)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Cause }

// RetrySeconds is after how many whole seconds from now trying again may help, 0 = not said. It is
// rounded up, as trying again too early is what it is to prevent, and fits 32 bits.
func (e *Error) RetrySeconds() int {
	wait := e.RetryAfter
	if !e.OpensAt.IsZero() {
		wait = time.Until(e.OpensAt)
	}
	return int(min(max(math.Ceil(wait.Seconds()), 0), math.MaxInt32))
}

// Told is the refusal that a client is told an error as, and that has what only the log may know as its
// cause: refusals as they are, UNAVAILABLE if the request was given up, what [DatabaseError] says, and
// of anything else that there was one, with INTERNAL.
func Told(ctx context.Context, err error) *Error {
	var known *Error
	switch {
	case errors.As(err, &known):
	case ctx.Err() != nil || errors.Is(err, context.Canceled):
		return &Error{Code: Unavailable, RetryAfter: time.Second, Message: "The request was given up before it was answered."}
	case !errors.As(DatabaseError(err), &known):
		known = &Error{Code: Internal}
	}
	if known.Code == Internal {
		return &Error{Code: Internal, Message: "Something went wrong on our side. Ask us with the request id if it stays.", Cause: err}
	}
	return known
}

// Refuse makes a refusal with a formatted message.
func Refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func (id OrganizationID) String() string { return strconv.FormatInt(int64(id), 10) }
