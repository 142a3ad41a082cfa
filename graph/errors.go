package graph

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/booking"
)

// place is how a refusal travels.
type place int

const (
	// inData: in the payload's errors, as part of a successful answer.
	inData place = iota
	// inErrors: as a GraphQL error, beside whatever else was asked for.
	inErrors
	// asWhole: as a GraphQL error without any data and with HTTP status 503 and Retry-After, so
	// that whoever stands between us and the client (balancer, retrying library) understands it
	// too. What was asked for beside it is asked for again by the retry.
	asWhole
)

// places is the table of codes of this transport; every code has its row.
var places = map[booking.Code]place{
	booking.Invalid:         inErrors,
	booking.Unauthenticated: inErrors,
	booking.Forbidden:       inErrors,
	booking.NotFound:        inErrors,

	booking.SlotFull:             inData,
	booking.SlotIsClosed:         inData,
	booking.SlotPast:             inData,
	booking.SlotNotOpen:          inData,
	booking.AlreadyBooked:        inData,
	booking.Overlap:              inData,
	booking.ReferralInUse:        inData,
	booking.TooEarly:             inData,
	booking.TooLate:              inData,
	booking.LimitReached:         inData,
	booking.InvalidState:         inData,
	booking.HoldExpired:          inData,
	booking.CapacityInUse:        inData,
	booking.ScheduleInUse:        inData,
	booking.IdempotencyKeyReused: inData,
	booking.RateLimited:          inData,

	booking.Overloaded:     asWhole,
	booking.Unavailable:    asWhole,
	booking.OutcomeUnknown: asWhole,

	booking.Internal: inErrors,
}

// Refusal is a refusal as the contract has it in payloads.
type Refusal struct {
	Code       booking.Code
	Message    string
	RetryAfter *int // seconds
}

// refusals is an error of the core as data of a payload. What doesn't belong there stays an error.
func refusals(err error) ([]Refusal, error) {
	var known *booking.Error
	if !errors.As(err, &known) || places[known.Code] != inData {
		return []Refusal{}, err
	}
	refusal := Refusal{Code: known.Code, Message: known.Message}
	if seconds := known.RetrySeconds(); seconds > 0 {
		refusal.RetryAfter = &seconds
	}
	return []Refusal{refusal}, nil
}

// absent turns NOT_FOUND into nil, for fields that answer null then.
func absent[T any](found T, err error) (*T, error) {
	var known *booking.Error
	switch {
	case errors.As(err, &known) && known.Code == booking.NotFound:
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &found, nil
}

// seconds rounds up: trying again too early is what Retry-After is to prevent.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// code is the code of an error that the presenter made.
func code(err *gqlerror.Error) booking.Code {
	code, _ := err.Extensions["code"].(booking.Code)
	return code
}

// whole is the error that stands for the whole answer, if one does.
func whole(errs gqlerror.List) *gqlerror.Error {
	for _, err := range errs {
		if places[code(err)] == asWhole {
			return err
		}
	}
	return nil
}

// presenter words errors for clients.
type presenter struct {
	log *slog.Logger
}

// present makes what a client gets to see of an error: refusals with their code, faults of the
// document as INVALID, and of everything else no more than an id to ask us about.
func (p presenter) present(ctx context.Context, err error) *gqlerror.Error {
	var shown gqlerror.Error
	var document *gqlerror.Error
	if errors.As(err, &document) {
		shown = gqlerror.Error{Message: document.Message, Path: document.Path, Locations: document.Locations}
	}
	var told *booking.Error
	if !errors.As(err, &told) && document != nil && document.Extensions["code"] != nil { // by the parser or the rules
		told = booking.Refuse(booking.Invalid, "%s", document.Message)
	} else {
		told = booking.Told(ctx, err)
	}
	shown.Message = told.Message
	shown.Extensions = map[string]any{"code": told.Code}
	if seconds := told.RetrySeconds(); seconds > 0 {
		shown.Extensions["retryAfter"] = seconds
	}
	if told.Cause != nil && places[told.Code] == asWhole {
		p.log.InfoContext(ctx, "not now", "code", told.Code, "requestId", requestID(ctx), "error", booking.LogText(told.Cause))
	}
	if told.Code == booking.Internal {
		id := requestID(ctx)
		shown.Extensions["requestId"] = id
		attrs := []any{"requestId", id, "error", booking.LogText(told.Cause)}
		if problem := new(panicError); errors.As(told.Cause, &problem) {
			attrs = append(attrs, "stack", string(problem.stack))
		}
		p.log.ErrorContext(ctx, "internal error", attrs...)
	}
	return &shown
}

// panicError is a panic as an error.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// recovered makes an error of what recover returned.
func recovered(_ context.Context, value any) error {
	return &booking.Error{Code: booking.Internal, Cause: &panicError{value, debug.Stack()}}
}

const (
	maxErrors  = 5   // in one answer
	maxMessage = 300 // bytes of one error's message
	maxPath    = 300 // bytes of one error's path
)

// bounded keeps errors small, whatever of the request their messages and paths repeat.
func bounded(errs gqlerror.List) gqlerror.List {
	if len(errs) > maxErrors {
		errs = errs[:maxErrors]
	}
	for _, err := range errs {
		if len(err.Message) > maxMessage {
			err.Message = strings.ToValidUTF8(err.Message[:maxMessage], "") + "…"
		}
		if len(err.Locations) > 2 {
			err.Locations = err.Locations[:2]
		}
		if len(err.Path.String()) > maxPath {
			err.Path = nil
		}
	}
	return errs
}

// requestIDHeader names a request; whoever runs before us has made sure of a sane one.
const requestIDHeader = "X-Request-Id"

func requestID(ctx context.Context) string {
	if graphql.HasOperationContext(ctx) {
		if id := graphql.GetOperationContext(ctx).Headers.Get(requestIDHeader); id != "" {
			return id
		}
	}
	return rand.Text()
}

// statusOf is the HTTP status of a request that was refused for who sent it.
func statusOf(c booking.Code) int {
	switch c {
	case booking.Unauthenticated:
		return http.StatusUnauthorized
	case booking.Forbidden:
		return http.StatusForbidden
	default:
		return http.StatusInternalServerError
	}
}
