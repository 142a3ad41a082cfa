package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

// Listener is the feed: one connection that LISTENs, outside the pool, made again whenever it is
// lost. Set the fields, then call Run once.
type Listener struct {
	// URL of the database itself, the primary: LISTEN does not work through a pooler in
	// transaction mode.
	URL string
	// Consumers are told of everything, in this order.
	Consumers []Consumer
	Log       *slog.Logger // nil: slog.Default()

	// PingAfter is how often the feed is asked whether it lives, and has told everything; default
	// 2 s. PingTimeout is how long it has to answer, and how long a new connection may take;
	// default 3 s. A connection that died without a sign is replaced after their sum.
	PingAfter, PingTimeout time.Duration

	settledAfter time.Duration // 0: the constant; tests have less patience

	epoch    int64
	proven   atomic.Pointer[time.Time] // last sign of life; nil while there is no connection
	caughtUp atomic.Pointer[time.Time] // see CaughtUp; nil while there is no connection
}

// Alive reports whether changes arrive right now, as far as is known: a LISTEN is in force and
// the server gave a sign of life within PingAfter + PingTimeout. It costs nothing.
func (l *Listener) Alive() bool {
	proven := l.proven.Load()
	return proven != nil && time.Since(*proven) <= l.pingAfter()+l.pingTimeout()
}

// CaughtUp is a moment, a few seconds ago at most, up to which every change that the server had
// announced was passed on; zero = the feed is not alive. A transaction announces what it changed the
// blink of an eye after it has committed, so allow for that.
func (l *Listener) CaughtUp() time.Time {
	if at := l.caughtUp.Load(); at != nil && l.Alive() {
		return *at
	}
	return time.Time{}
}

func (l *Listener) pingAfter() time.Duration   { return cmp.Or(l.PingAfter, 2*time.Second) }
func (l *Listener) pingTimeout() time.Duration { return cmp.Or(l.PingTimeout, 3*time.Second) }
func (l *Listener) log() *slog.Logger          { return cmp.Or(l.Log, slog.Default()) }

func (l *Listener) prove() {
	now := time.Now()
	l.proven.Store(&now)
}

// settledAfter is how long a connection has to hold for the next one to be tried at once again.
// Less, and a server that accepts and drops us would have everybody read everything all the time.
const settledAfter = time.Second

// Run listens until ctx ends, and then returns nil. It never gives up on a database that is
// away; its only error is a URL that can't be understood.
func (l *Listener) Run(ctx context.Context) error {
	cfg, err := pgxpool.ParseConfig(l.URL) // knows the pool's settings, which a plain connection would send
	if err != nil {
		return fmt.Errorf("live: database URL: %w", err)
	}
	for attempt := 0; ; attempt++ {
		lived, err := l.session(ctx, cfg.ConnConfig)
		l.proven.Store(nil)
		l.caughtUp.Store(nil)
		if ctx.Err() != nil {
			return nil
		}
		if lived >= cmp.Or(l.settledAfter, settledAfter) {
			attempt = 0
		}
		l.log().Warn("change feed lost, connecting again", "epoch", l.epoch, "lived", lived, "error", err)
		if !pause(ctx, attempt) {
			return nil
		}
	}
}

// session is one connection from its start to its loss. lived is how long its LISTEN was in force.
func (l *Listener) session(ctx context.Context, base *pgx.ConnConfig) (lived time.Duration, err error) {
	conn, err := l.connect(ctx, base)
	if err != nil {
		return 0, err
	}
	defer func() {
		if ctx.Err() == nil {
			// Lost, perhaps in silence: no farewell, which would wait for an answer.
			_ = conn.PgConn().Conn().Close()
			return
		}
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = conn.Close(bye)
	}()
	within, cancel := context.WithTimeout(ctx, l.pingTimeout())
	_, err = conn.Exec(within, `LISTEN slot_change`)
	cancel()
	if err != nil {
		return 0, fmt.Errorf("listen: %w", err)
	}
	// Only now: a change from here on is announced to us, and whatever was committed before is
	// seen by those who read from here on.
	began := time.Now()
	l.epoch++
	l.log().Info("change feed in force", "epoch", l.epoch)
	if err = l.resync(ctx, conn); err == nil {
		l.prove() // not before they know that what they had is in doubt
		err = l.receive(ctx, conn)
	}
	return time.Since(began), err
}

// connect opens the feed's own connection.
func (l *Listener) connect(ctx context.Context, base *pgx.ConnConfig) (*pgx.Conn, error) {
	cfg := base.Copy()
	cfg.ConnectTimeout = l.pingTimeout()
	cfg.RuntimeParams["application_name"] = "openslot-live"
	cfg.RuntimeParams["idle_session_timeout"] = "0" // waiting is its work
	var connected atomic.Bool
	dial := cfg.DialFunc
	cfg.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		// When a connection breaks, pgx dials another one to cancel what ran on it. Nothing runs
		// on ours, and the network that just failed would only keep the dial waiting.
		if connected.Load() {
			return nil, errors.New("nothing to cancel")
		}
		return dial(ctx, network, address)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	connected.Store(true)
	return conn, err
}

// receive passes on notifications until the connection is lost.
func (l *Listener) receive(ctx context.Context, conn *pgx.Conn) error {
	ping := time.Now() // at once: how far it has come is to be known soon
	for {
		within, cancel := context.WithDeadline(ctx, ping)
		n, err := conn.WaitForNotification(within)
		cancel()
		switch {
		case n != nil:
			l.prove()
			if err := l.tell(ctx, conn, n.Payload); err != nil {
				return err
			}
		case ctx.Err() != nil:
			return ctx.Err()
		case conn.IsClosed() || !pgconn.Timeout(err):
			return err
		default: // a timeout leaves the connection as it is
			if err := l.catchUp(ctx, conn); err != nil {
				return err
			}
			ping = time.Now().Add(l.pingAfter())
		}
	}
}

// catchUp asks the server for a sign of life. Whatever it announced before its answer has come
// with it, and is passed on.
func (l *Listener) catchUp(ctx context.Context, conn *pgx.Conn) error {
	sent := time.Now()
	within, cancel := context.WithTimeout(ctx, l.pingTimeout())
	defer cancel()
	if err := conn.Ping(within); err != nil {
		return fmt.Errorf("no answer to a ping: %w", err)
	}
	l.prove()
	over, end := context.WithCancel(ctx)
	end() // so that what has come is returned, and nothing is waited for
	for {
		n, err := conn.WaitForNotification(over)
		if err != nil {
			break
		}
		if err := l.tell(ctx, conn, n.Payload); err != nil {
			return err
		}
	}
	l.caughtUp.Store(&sent)
	return nil
}

// tell passes a notification on. One that makes no sense costs a read, never the feed.
func (l *Listener) tell(ctx context.Context, conn *pgx.Conn, payload string) error {
	m := parse(payload)
	if m.err != nil {
		l.log().Error("a notification that makes no sense: reading again what it may concern",
			"error", m.err, "all", m.lost)
	}
	if m.lost {
		return l.resync(ctx, conn) // whatever else it said is in what they read now
	}
	var since time.Time
	if len(m.stale) > 0 {
		var err error
		if since, err = l.clock(ctx, conn); err != nil {
			return err
		}
	}
	slices.SortStableFunc(m.changed, func(a, b booking.Slot) int { return cmp.Compare(a.DoctorID, b.DoctorID) })
	for _, c := range l.Consumers {
		if c.Changed != nil && len(m.changed) > 0 {
			c.Changed(m.changed)
		}
		if c.Access != nil && len(m.patients) > 0 {
			c.Access(m.patients)
		}
		for _, doctor := range m.stale {
			if c.Stale != nil {
				c.Stale(doctor, since)
			}
		}
	}
	return nil
}

func (l *Listener) resync(ctx context.Context, conn *pgx.Conn) error {
	since, err := l.clock(ctx, conn)
	if err != nil {
		return err
	}
	for _, c := range l.Consumers {
		if c.Resync != nil {
			c.Resync(l.epoch, since)
		}
	}
	return nil
}

// clock reads the database's. Notifications that come meanwhile wait in the connection.
func (l *Listener) clock(ctx context.Context, conn *pgx.Conn) (now time.Time, err error) {
	within, cancel := context.WithTimeout(ctx, l.pingTimeout())
	defer cancel()
	if err := conn.QueryRow(within, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return time.Time{}, fmt.Errorf("read the clock: %w", err)
	}
	return now, nil
}
