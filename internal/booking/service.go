package booking

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config holds what a [Service] can be told. The zero value is right for production.
type Config struct {
	// Now is what time it is; nil = the database's clock, which all instances share.
	Now func() time.Time
	// AcquireWait is how long a call waits for its turn in the process, and how long for a
	// connection, before it is refused as OVERLOADED. 0 = 500 ms.
	AcquireWait time.Duration
	// Gate is asked before the database is; nil = everybody is let through.
	Gate Gate
	// Plain books every call in a transaction of its own, instead of those that arrive
	// together in one.
	Plain bool
	// Persist is how long a call is run again after its connection broke or its transaction
	// was sacrificed to another's. 0 = 2 s.
	Persist time.Duration

	unkeyed bool // no turns are taken in the process: for tests, which must pass without
}

// Service books, cancels and reads appointments.
type Service struct {
	pool    *pgxpool.Pool
	config  Config
	batcher *batcher // nil on the plain road
	lookups lookups
	stripes *stripes
	places  *places
}

// New makes a service on a pool that reaches the primary.
func New(pool *pgxpool.Pool, config Config) *Service {
	if config.AcquireWait == 0 {
		config.AcquireWait = 500 * time.Millisecond
	}
	if config.Persist == 0 {
		config.Persist = 2 * time.Second
	}
	s := &Service{pool: pool, config: config}
	s.lookups.find = func(calls []*call) { s.find(context.Background(), calls) }
	if !config.Plain {
		s.batcher = newBatcher(func(calls []*call, wait bool) error {
			return s.execute(context.Background(), calls, wait)
		})
	}
	if !config.unkeyed {
		s.stripes = newStripes(stripeCount, config.AcquireWait)
		s.places = &places{ring: make([]place, placeCount)}
	}
	return s
}

// statementDeadline bounds one transaction. It is above the statement_timeout of the server,
// which normally ends a slow one first, and definitely.
const statementDeadline = 10 * time.Second

// now is the time to decide by; nil lets the database read its own clock.
func (s *Service) now() *time.Time {
	if s.config.Now == nil {
		return nil
	}
	now := s.config.Now()
	return &now
}

// run runs a transaction that may safely run more than once: again after a broken connection
// or a collision, until it has an answer or its time is over. rerun tells a run that an earlier
// one may have been committed without our hearing of it.
//
// The transaction itself does not end with ctx: a caller who has gone cannot leave it unknown.
func (s *Service) run(ctx context.Context, transact func(ctx context.Context, conn *pgx.Conn, rerun bool) error) error {
	unknown := false
	attempt := func() (struct{}, error) {
		acquire, cancel := context.WithTimeout(ctx, s.config.AcquireWait)
		defer cancel()
		conn, err := s.pool.Acquire(acquire)
		if err == nil {
			defer conn.Release()
			statement, cancel := context.WithTimeout(context.WithoutCancel(ctx), statementDeadline)
			defer cancel()
			err = transact(statement, conn.Conn(), unknown)
			unknown = unknown || isUnknown(err)
		}
		if err != nil && !isAway(err) && !isCollision(err) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval = 5 * time.Millisecond
	pause.MaxInterval = 200 * time.Millisecond
	_, err := backoff.Retry(ctx, attempt, backoff.WithBackOff(pause), backoff.WithMaxElapsedTime(s.config.Persist))
	switch {
	case err == nil:
		return nil
	case unknown:
		return &Error{Code: OutcomeUnknown, RetryAfter: time.Second, Cause: err,
			Message: "The connection to the database broke, and the outcome is not known. Send the same request again."}
	case ctx.Err() != nil:
		return ctx.Err()
	case isCollision(err):
		return &Error{Code: Overloaded, RetryAfter: time.Second, Cause: err, Message: busyMessage}
	default:
		return DatabaseError(err)
	}
}

// isUnknown: the statement was sent and no definite answer came, so its transaction may have
// been committed. An error from the server is definite, unless it says that the session ends.
func isUnknown(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return isAway(err)
	}
	var refusal *Error
	return err != nil && !errors.As(err, &refusal) && !pgconn.SafeToRetry(err)
}
