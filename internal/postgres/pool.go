// Package postgres opens the connection pool and brings the schema up to date.
//
// It knows nothing of slots or appointments: the packages that own a table run
// their own SQL on the pool opened here. What this package decides is how every
// connection behaves (time limits, time zone, protocol) and how several
// instances that start together leave one clean schema (see Migrate).
//
// All functions may be called concurrently; they share no state.
package postgres

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Config says where the database is and how its connections behave. Zero
// values mean the defaults named at each field.
type Config struct {
	// URL is a postgres:// URL or a key=value connection string. What it sets
	// itself (pool_max_conns, statement_timeout, …) yields to the fields below
	// where those are not zero.
	URL string

	// MaxConns bounds the pool; 0 leaves what the URL says, else pgx's default
	// (the number of CPUs, at least 4).
	MaxConns int32

	// LockTimeout is how long a statement waits for one lock; default 1 s.
	// Longer than that and the caller is better served by a refusal.
	LockTimeout time.Duration

	// StatementTimeout ends a statement that runs away; default 5 s. Bulk work
	// (generating a calendar) raises it for its transaction with SET LOCAL.
	StatementTimeout time.Duration

	// IdleInTransactionTimeout ends the session of a caller that holds a
	// transaction open and does nothing, with its locks; default 10 s.
	IdleInTransactionTimeout time.Duration

	// ConnectTimeout bounds one attempt to connect to one host; default 2 s.
	ConnectTimeout time.Duration

	// ApplicationName is shown in pg_stat_activity; default "openslot".
	ApplicationName string
}

// Open returns a pool for cfg. It checks the configuration but does not
// connect: a database that is away now is met by the first query, as it would
// be if it went away later. Close the pool when done.
//
// The time limits travel as start-up parameters, so they hold from the first
// statement and cost no round trip. A pooler in transaction mode, which cannot
// keep them (nor LISTEN, nor advisory locks), refuses such a connection.
func Open(ctx context.Context, cfg Config) (*pgxpool.Pool, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, fmt.Errorf("postgres: database URL: %w", err)
	}
	if err := refuseSimpleProtocol(pc.ConnConfig); err != nil {
		return nil, err
	}
	if cfg.MaxConns > 0 {
		pc.MaxConns = cfg.MaxConns
	}
	cc := pc.ConnConfig
	cc.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, cc.ConnectTimeout, 2*time.Second)
	p := cc.RuntimeParams
	setDefault(p, "application_name", cfg.ApplicationName, "openslot")
	setDefault(p, "lock_timeout", millis(cfg.LockTimeout), "1000")
	setDefault(p, "statement_timeout", millis(cfg.StatementTimeout), "5000")
	setDefault(p, "idle_in_transaction_session_timeout", millis(cfg.IdleInTransactionTimeout), "10000")
	// Every statement here is a probe of an index or two, whatever its values are: a plan made for
	// each anew costs several times as much as running it (8 look-ups of a key: 360 µs each, 150).
	setDefault(p, "plan_cache_mode", "", "force_generic_plan")
	// Times are stored and compared as instants; a server set to local time
	// must not change how they print or how ::date cuts them.
	p["timezone"] = "UTC"

	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, fmt.Errorf("postgres: open pool: %w", err)
	}
	return pool, nil
}

// refuseSimpleProtocol keeps values out of the SQL text: the simple protocol
// would interpolate them on our side.
func refuseSimpleProtocol(cc *pgx.ConnConfig) error {
	if cc.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		return fmt.Errorf("postgres: the database URL asks for the simple protocol: remove default_query_exec_mode")
	}
	return nil
}

// setDefault sets params[key] to value, or, where value is empty and the URL
// did not set it, to fallback.
func setDefault(params map[string]string, key, value, fallback string) {
	switch {
	case value != "":
		params[key] = value
	case params[key] == "":
		params[key] = fallback
	}
}

// millis is d as PostgreSQL reads it, "" for zero.
func millis(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatInt(max(1, d.Milliseconds()), 10)
}
