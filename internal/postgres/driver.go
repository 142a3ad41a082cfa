package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	codeUndefinedTable = "42P01"
	codeLockTimeout    = "55P03"
)

// ddlLockTimeout is how long a migration may make everyone else wait behind
// it for a table; ddlPatience is how long it keeps trying.
const (
	ddlLockTimeout = 2 * time.Second
	ddlPatience    = time.Minute
)

// driver is golang-migrate's database side on one connection of ours.
//
// The library's own driver marks a version dirty, runs the file, then clears
// the mark, in three transactions: a migrator that dies in between leaves a
// mark which doesn't tell whether the file was committed, and waits for a
// person. Here SetVersion(v, dirty) writes nothing; Run commits the file and
// its version together. There is no dirty state. The driver also obeys a
// context, which the library's can't. The advisory lock has the library's key,
// so its command-line tool and this binary exclude each other.
type driver struct {
	ctx      context.Context // the interface leaves no room for an argument
	conn     *pgx.Conn
	lockKey  string
	target   int           // the version Run records, from SetVersion
	patience time.Duration // how long Run tries again for locks
}

const lockNameSQL = `SELECT current_database(), current_schema()`

func openDriver(ctx context.Context, url string) (*driver, error) {
	cc, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	p := cc.RuntimeParams
	p["application_name"] = "openslot-migrate"
	p["timezone"] = "UTC"
	// Whatever the role or the URL says: the wait for the advisory lock has no
	// limit (see Run for the limit on tables), and a migration may take long.
	p["lock_timeout"] = "0"
	p["statement_timeout"] = "0"
	// A session whose machine has vanished gives its lock back within a minute.
	p["tcp_keepalives_idle"] = "20"
	p["tcp_keepalives_interval"] = "10"
	p["tcp_keepalives_count"] = "3"
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return nil, err
	}
	d := &driver{ctx: ctx, conn: conn, patience: ddlPatience}
	var db, schema string
	if err = conn.QueryRow(ctx, lockNameSQL).Scan(&db, &schema); err == nil {
		d.lockKey, err = database.GenerateAdvisoryLockId(db, schema, "schema_migrations")
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

const createVersionTableSQL = `CREATE TABLE IF NOT EXISTS schema_migrations (version bigint NOT NULL PRIMARY KEY, dirty boolean NOT NULL)`

// Lock waits for the advisory lock until the context ends, and makes the
// version table where it is missing.
func (d *driver) Lock() error {
	if _, err := d.conn.Exec(d.ctx, `SELECT pg_advisory_lock($1::bigint)`, d.lockKey); err != nil {
		return fmt.Errorf("wait for the migration lock: %w", err)
	}
	var exists bool
	err := d.conn.QueryRow(d.ctx, `SELECT to_regclass('schema_migrations') IS NOT NULL`).Scan(&exists)
	if err == nil && !exists {
		_, err = d.conn.Exec(d.ctx, createVersionTableSQL)
	}
	if err != nil {
		return fmt.Errorf("version table: %w", err)
	}
	return nil
}

// Unlock gives the advisory lock back. A broken connection has done so already.
func (d *driver) Unlock() error {
	if d.conn.IsClosed() {
		return nil
	}
	_, err := d.conn.Exec(d.ctx, `SELECT pg_advisory_unlock($1::bigint)`, d.lockKey)
	return err
}

// SetVersion remembers the version that the next Run records. The library
// calls it again with dirty false after Run: by then it is recorded.
func (d *driver) SetVersion(version int, _ bool) error {
	d.target = version
	return nil
}

// Run executes one file and records its version, all or nothing: statements
// sent as one simple query are one transaction.
func (d *driver) Run(migration io.Reader) error {
	body, err := io.ReadAll(migration)
	if err != nil {
		return err
	}
	record := "DELETE FROM schema_migrations;\n"
	if d.target >= 0 {
		record += fmt.Sprintf("INSERT INTO schema_migrations (version, dirty) VALUES (%d, false);\n", d.target)
	}
	script := fmt.Sprintf("SET LOCAL lock_timeout = %d;\n%s\n;%s", ddlLockTimeout.Milliseconds(), body, record)

	for giveUp := time.Now().Add(d.patience); ; {
		_, err = d.conn.PgConn().Exec(d.ctx, script).ReadAll()
		var pgErr *pgconn.PgError
		if err == nil {
			return nil
		}
		if !errors.As(err, &pgErr) || pgErr.Code != codeLockTimeout || time.Now().After(giveUp) {
			return fmt.Errorf("version %d: %w", d.target, err)
		}
		select { // let those who queued behind us pass
		case <-d.ctx.Done():
			return d.ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// Version is the recorded version, or -1 where none is. A dirty mark left by
// the library's command-line tool is reported: only a person knows how far it got.
func (d *driver) Version() (version int, dirty bool, err error) {
	err = d.conn.QueryRow(d.ctx, `SELECT version, dirty FROM schema_migrations LIMIT 1`).Scan(&version, &dirty)
	if errors.Is(err, pgx.ErrNoRows) {
		return database.NilVersion, false, nil
	}
	return version, dirty, err
}

// Close ends the session, and with it the lock.
func (d *driver) Close() error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(d.ctx), 5*time.Second)
	defer cancel()
	return d.conn.Close(ctx)
}

// Open and Drop belong to the interface but to nothing we do.
func (d *driver) Open(string) (database.Driver, error) { return nil, errors.ErrUnsupported }
func (d *driver) Drop() error                          { return errors.ErrUnsupported }
