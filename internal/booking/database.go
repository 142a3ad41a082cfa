package booking

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	busyMessage = "Too much is going on here right now. Try again in a moment."
	awayMessage = "The service is not available right now. Try again in a moment."
)

// DatabaseError turns an error of pgx into a refusal with a code, or returns it as it is when it
// is not one that a caller can do something about. The codes: OVERLOADED for a lock, a pool
// or a statement that took too long, UNAVAILABLE for a database that is away.
func DatabaseError(err error) error {
	var known *Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case isAway(err):
		return &Error{Code: Unavailable, Message: awayMessage, RetryAfter: time.Second, Cause: err}
	case isBusy(err):
		return &Error{Code: Overloaded, Message: busyMessage, RetryAfter: time.Second, Cause: err}
	default:
		return err
	}
}

// Constraint is the name of the constraint that refused, or "".
func Constraint(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.ConstraintName
	}
	return ""
}

// LogText is what the log says of an unexpected error. The database's messages may quote values, so of
// those the condition has to do.
func LogText(err error) string {
	if state := sqlState(err); state != "" {
		return fmt.Sprintf("SQLSTATE %s, constraint %q", state, Constraint(err))
	}
	return err.Error()
}

func sqlState(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// isBusy: a wait was given up, by the database or by our own deadline.
func isBusy(err error) bool { return isGivenUp(err) || errors.Is(err, context.DeadlineExceeded) }

// isGivenUp: the database has given a statement up that waited or ran for too long.
func isGivenUp(err error) bool {
	switch sqlState(err) {
	case "55P03", "57014": // lock_not_available, query_canceled (statement timeout)
		return true
	}
	return false
}

// isCollision: the transaction was sacrificed to let another go on; it had no effect.
func isCollision(err error) bool {
	switch sqlState(err) {
	case "40P01", "40001": // deadlock_detected, serialization_failure
		return true
	}
	return false
}

// isAway: no connection, a connection that broke, or a server that takes no work (starting,
// stopping, a standby).
func isAway(err error) bool {
	if state := sqlState(err); state != "" {
		return strings.HasPrefix(state, "08") || strings.HasPrefix(state, "57P") || state == "53300" || state == "25006"
	}
	var connect *pgconn.ConnectError
	if errors.As(err, &connect) {
		return true
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false // we stopped waiting; that says nothing about the database
	}
	var network net.Error
	return errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, pgconn.ErrConnClosed)
}
