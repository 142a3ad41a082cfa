package postgres_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	_ "github.com/jackc/pgx/v5/stdlib" // for the library's own driver

	"openslot/internal/devenv"
	"openslot/internal/postgres"
)

var twoFiles = fstest.MapFS{
	"001_a.up.sql":   file("CREATE TABLE a (id int)"),
	"001_a.down.sql": file("DROP TABLE a"),
	"002_b.up.sql":   file("CREATE TABLE b (id int); ALTER TABLE a ADD COLUMN note text; -- the end"),
	"002_b.down.sql": file("ALTER TABLE a DROP COLUMN note; DROP TABLE b"),
}

// gated is twoFiles with a second file that stops half-way until the gate is
// released.
var gated = fstest.MapFS{
	"001_a.up.sql":   twoFiles["001_a.up.sql"],
	"001_a.down.sql": twoFiles["001_a.down.sql"],
	"002_b.up.sql": file(`CREATE TABLE b (id int);
		SET LOCAL lock_timeout = 0; SELECT pg_advisory_xact_lock(4711);
		ALTER TABLE a ADD COLUMN note text`),
}

// holdGate closes the gate until release is called.
func holdGate(t *testing.T, db *devenv.DB) (release func()) {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(4711), set_config('idle_in_transaction_session_timeout', '0', true)`)
	must(t, err)
	release = func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
	t.Cleanup(release)
	return release
}

// waitFor polls a condition in SQL.
func waitFor(t *testing.T, db *devenv.DB, what, sql string, args ...any) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-tick.C {
		var ok bool
		must(t, db.Pool.QueryRow(t.Context(), sql, args...).Scan(&ok))
		if ok {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

const (
	atGateSQL = `SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))`
	killAtGateSQL = `SELECT bool_and(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711
		AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
)

// Wherever a migrator dies, the next one needs no person's help.
func TestMigrateInterrupted(t *testing.T) {
	t.Run("SessionKilled", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		release := holdGate(t, db)
		done := make(chan error, 1)
		go func() { done <- postgres.MigrateUpFiles(t.Context(), db.URL, gated) }()
		waitFor(t, db, "the migrator is half-way", atGateSQL)
		waitFor(t, db, "its session is killed", killAtGateSQL)
		if err := <-done; !hasCode(err, "57P01") { // admin_shutdown
			t.Errorf("the killed migrator says %v", err)
		}
		wantHalf(t, db)
		release()
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, gated))
		wantWhole(t, db)
	})

	t.Run("ContextCancelled", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		release := holdGate(t, db)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- postgres.MigrateUpFiles(ctx, db.URL, gated) }()
		waitFor(t, db, "the migrator is half-way", atGateSQL)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("the cancelled migrator says %v", err)
		}
		waitFor(t, db, "the server gave the file up", `SELECT NOT (`+atGateSQL+`)`)
		wantHalf(t, db)
		release()
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, gated))
		wantWhole(t, db)
	})

	t.Run("CancelledWhileWaiting", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		release := holdGate(t, db)
		first := make(chan error, 1)
		go func() { first <- postgres.MigrateUpFiles(t.Context(), db.URL, gated) }()
		waitFor(t, db, "the first is half-way", atGateSQL)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		if err := postgres.MigrateUpFiles(ctx, db.URL, gated); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the waiting migrator says %v", err)
		}
		release()
		must(t, <-first)
		wantWhole(t, db)
	})

	// The server learns late that a client is gone: it finishes the file and
	// commits. So the version must be in the same commit.
	t.Run("ProcessKilled", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		killMigrator(t, db, "ours")
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, gated))
		wantWhole(t, db)
	})

	t.Run("ProcessKilledControl", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		killMigrator(t, db, "library")
		var dirty migrate.ErrDirty
		if err := postgres.MigrateUpFiles(t.Context(), db.URL, gated); !errors.As(err, &dirty) {
			t.Errorf("after the library's driver was killed: %v, want a dirty version; else the test above proves nothing", err)
		}
	})
}

// A migration must not stop the clinic: who comes after it waits two seconds
// at most, however long a transaction holds the table.
func TestMigrateYields(t *testing.T) {
	t.Run("BusyTable", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, fstest.MapFS{"001_a.up.sql": twoFiles["001_a.up.sql"]}))
		holder, err := db.Pool.Begin(t.Context())
		must(t, err)
		_, err = holder.Exec(t.Context(), `SELECT count(*) FROM a`)
		must(t, err)

		done := make(chan error, 1)
		go func() { done <- postgres.MigrateUpFiles(t.Context(), db.URL, twoFiles) }()
		waitFor(t, db, "the migrator queues for the table",
			`SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'a'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted)`)
		patient, err := postgres.Open(t.Context(), postgres.Config{URL: db.URL, LockTimeout: 4 * time.Second})
		must(t, err)
		defer patient.Close()
		if _, err := patient.Exec(t.Context(), `INSERT INTO a VALUES (1)`); err != nil {
			t.Errorf("behind a waiting migration: %v", err)
		}
		must(t, holder.Commit(t.Context()))
		must(t, <-done)
		wantWhole(t, db)
	})

	t.Run("GivesUp", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, fstest.MapFS{"001_a.up.sql": twoFiles["001_a.up.sql"]}))
		holder, err := db.Pool.Begin(t.Context())
		must(t, err)
		_, err = holder.Exec(t.Context(), `SELECT count(*) FROM a`)
		must(t, err)
		if err := postgres.MigrateImpatient(t.Context(), db.URL, twoFiles); !hasCode(err, "55P03") {
			t.Errorf("one try against a busy table: %v", err)
		}
		must(t, holder.Commit(t.Context()))
		wantHalf(t, db)
	})
}

// wantHalf checks that exactly the first file is in force.
func wantHalf(t *testing.T, db *devenv.DB) {
	t.Helper()
	want(t, db, "1 false", false)
}

// wantWhole checks that both files are in force.
func wantWhole(t *testing.T, db *devenv.DB) {
	t.Helper()
	want(t, db, "2 false", true)
}

func want(t *testing.T, db *devenv.DB, version string, second bool) {
	t.Helper()
	if got := recorded(t, db); got != version {
		t.Errorf("recorded %s, want %s", got, version)
	}
	var table, column bool
	must(t, db.Pool.QueryRow(t.Context(), `SELECT to_regclass('b') IS NOT NULL,
		EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'a'::regclass AND attname = 'note')`).Scan(&table, &column))
	if table != second || column != second {
		t.Errorf("of the second file: table %t, column %t, want both %t", table, column, second)
	}
}

// killedMigratorVariable makes this test binary a migrator that will be killed.
const (
	killedMigratorVariable = "OPENSLOT_TEST_KILLED_MIGRATOR"
	killedDriverVariable   = "OPENSLOT_TEST_KILLED_DRIVER"
)

// killMigrator starts a migrator of its own process, kills it half-way, lets
// the server finish what it was sent and waits until the session is gone.
func killMigrator(t *testing.T, db *devenv.DB, driver string) {
	t.Helper()
	release := holdGate(t, db)
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), killedMigratorVariable+"="+db.URL, killedDriverVariable+"="+driver)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	waitFor(t, db, "the migrator is half-way", atGateSQL)
	must(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Fatalf("the migrator ended by itself: %s", output.String())
	}
	release()
	waitFor(t, db, "the dead migrator's session is gone",
		`SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
		 AND backend_type = 'client backend' AND query LIKE '%pg_advisory_xact_lock(4711)%' AND pid <> pg_backend_pid()
		 AND application_name <> 'openslot-test')`)
}

func migrateUntilKilled(url string) {
	err := func() error {
		if os.Getenv(killedDriverVariable) == "ours" {
			return postgres.MigrateUpFiles(context.Background(), url, gated)
		}
		src, err := iofs.New(gated, ".")
		if err != nil {
			return err
		}
		db, err := sql.Open("pgx", url)
		if err != nil {
			return err
		}
		drv, err := migratepgx.WithInstance(db, &migratepgx.Config{})
		if err != nil {
			return err
		}
		m, err := migrate.NewWithInstance("iofs", src, "pgx", drv)
		if err != nil {
			return err
		}
		return m.Up()
	}()
	fmt.Println("not killed:", err)
	os.Exit(1)
}
