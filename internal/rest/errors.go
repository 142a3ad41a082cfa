package rest

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"openslot/internal/booking"
)

// kind is how a code is told.
type kind struct {
	status int
	title  string
}

// kinds is the table of codes of this transport; every code has its row.
var kinds = map[booking.Code]kind{
	booking.Invalid:         {http.StatusBadRequest, "The request makes no sense"},
	booking.Unauthenticated: {http.StatusUnauthorized, "Not signed in"},
	booking.Forbidden:       {http.StatusForbidden, "Not in this role"},
	booking.NotFound:        {http.StatusNotFound, "Not found"},

	booking.SlotFull:      {http.StatusConflict, "The slot is full"},
	booking.SlotIsClosed:  {http.StatusConflict, "The slot is closed"},
	booking.SlotPast:      {http.StatusConflict, "The slot has begun"},
	booking.SlotNotOpen:   {http.StatusConflict, "Booking opens later"},
	booking.AlreadyBooked: {http.StatusConflict, "The patient has this slot already"},
	booking.Overlap:       {http.StatusConflict, "The patient has another appointment at that time"},
	booking.ReferralInUse: {http.StatusConflict, "The referral has an appointment already"},
	booking.TooEarly:      {http.StatusConflict, "Too early for this"},
	booking.TooLate:       {http.StatusConflict, "Too late for this"},
	booking.InvalidState:  {http.StatusConflict, "Not in this state"},
	booking.LimitReached:  {http.StatusConflict, "A limit is reached"},
	booking.CapacityInUse: {http.StatusConflict, "More places are taken than that"},
	booking.ScheduleInUse: {http.StatusConflict, "The period has a schedule already"},

	booking.HoldExpired:          {http.StatusGone, "The hold has lapsed"},
	booking.IdempotencyKeyReused: {http.StatusUnprocessableEntity, "The key stands for another request"},
	booking.RateLimited:          {http.StatusTooManyRequests, "Too many requests"},

	booking.Overloaded:     {http.StatusServiceUnavailable, "Overloaded"},
	booking.Unavailable:    {http.StatusServiceUnavailable, "Not available right now"},
	booking.OutcomeUnknown: {http.StatusServiceUnavailable, "The outcome is not known"},

	booking.Internal: {http.StatusInternalServerError, "Our fault"},
}

// problem is a refusal as the document has it.
type problem struct {
	Type          string                `json:"type"`
	Title         string                `json:"title"`
	Status        int                   `json:"status"`
	Detail        string                `json:"detail"`
	Code          booking.Code          `json:"code"`
	RequestID     string                `json:"requestId"`
	RetryAfter    int                   `json:"retryAfter,omitempty"` // seconds
	OpensAt       *time.Time            `json:"opensAt,omitempty"`
	AppointmentID booking.AppointmentID `json:"appointmentId,omitempty"`
	Alternatives  string                `json:"alternatives,omitempty"`
}

// statusError is a refusal for which HTTP has a status of its own.
type statusError struct {
	error
	status int
}

// fault is an INVALID request for which HTTP has a status of its own.
func fault(status int, format string, args ...any) error {
	return &statusError{booking.Refuse(booking.Invalid, format, args...), status}
}

// Unwrap gives the refusal.
func (e *statusError) Unwrap() error { return e.error }

// fullError is SLOT_FULL with the slot that it is about; 0: about a time.
type fullError struct {
	error
	slot booking.SlotID
}

// Unwrap gives the refusal.
func (e *fullError) Unwrap() error { return e.error }

// panicError is a panic as an error.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// fail answers with a problem.
func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	known := h.told(r, err)
	k := kinds[known.Code]
	p := problem{Type: referencePath + "#" + string(known.Code), Title: k.title, Status: k.status,
		Detail: known.Message, Code: known.Code, RequestID: requestID(r), RetryAfter: known.RetrySeconds(), AppointmentID: known.Existing}
	if !known.OpensAt.IsZero() {
		p.OpensAt = new(known.OpensAt.UTC())
	}
	var own *statusError
	if errors.As(err, &own) {
		p.Status = own.status
	}
	var full *fullError
	if errors.As(err, &full) && known.Code == booking.SlotFull && full.slot != 0 {
		p.Alternatives = "/api/slots/" + strconv.FormatInt(int64(full.slot), 10) + "/alternatives"
	}
	p.write(w)
}

// Refuse answers a request that never comes as far as a handler in its shape.
func Refuse(w http.ResponseWriter, r *http.Request, refused *booking.Error) {
	k := kinds[refused.Code]
	problem{Type: referencePath + "#" + string(refused.Code), Title: k.title, Status: k.status,
		Detail: refused.Message, Code: refused.Code, RequestID: requestID(r)}.write(w)
}

func (p problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // nothing in it can fail
	}
	header := w.Header()
	if p.RetryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(p.RetryAfter))
	}
	if p.Status == http.StatusUnauthorized {
		header.Set("WWW-Authenticate", "Bearer")
	}
	header["Content-Type"] = contentProblem
	header["Cache-Control"] = noStore
	header["X-Content-Type-Options"] = nosniff
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.Status)
	w.Write(body)
}

// told is the refusal that an error is told as. What only the log may know goes there.
func (h *Handler) told(r *http.Request, err error) *booking.Error {
	ctx := r.Context()
	told := booking.Told(ctx, err)
	switch {
	case told.Code == booking.Internal:
		attrs := []any{"requestId", requestID(r), "error", booking.LogText(told.Cause)}
		if problem := new(panicError); errors.As(told.Cause, &problem) {
			attrs = append(attrs, "stack", string(problem.stack))
		}
		h.Log.ErrorContext(ctx, "internal error", attrs...)
	case told.Cause != nil && kinds[told.Code].status == http.StatusServiceUnavailable:
		h.Log.InfoContext(ctx, "not now", "code", told.Code, "requestId", requestID(r), "error", booking.LogText(told.Cause))
	}
	return told
}

// requestIDHeader names a request; whoever runs before us has made sure of a sane one.
const requestIDHeader = "X-Request-Id"

func requestID(r *http.Request) string {
	id := r.Header.Get(requestIDHeader)
	if id == "" {
		id = rand.Text()
		r.Header.Set(requestIDHeader, id)
	}
	return id
}
