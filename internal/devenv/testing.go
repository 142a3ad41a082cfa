package devenv

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/postgres"
	"openslot/migrations"
)

// TestURLVariable names the server that a whole run shares. The command
// internal/devenv/with sets it for the command it runs.
const TestURLVariable = "OPENSLOT_TEST_DATABASE_URL"

// TestSettings make a server quick for many small databases. They trade away
// what survives a crash: never for a test that kills the server.
var TestSettings = map[string]string{
	"fsync":                     "off",
	"full_page_writes":          "off",
	"synchronous_commit":        "off",
	"wal_level":                 "minimal",
	"max_wal_senders":           "0",
	"max_connections":           "300",
	"max_locks_per_transaction": "128",
	"shared_buffers":            "256MB",
	"max_wal_size":              "4GB",
	// Refusals are what many tests provoke: errors would only fill the log.
	"log_min_messages": "log",
}

// DB is one test's own database with the full schema and no rows.
type DB struct {
	URL  string        // with the superuser's password
	Pool *pgxpool.Pool // opened by postgres.Open, with 8 connections at most
}

// NewDB returns a database cloned from a migrated template; it is dropped when
// the test ends, whoever is still connected. Without PostgreSQL the test fails:
// it never skips. Safe in parallel tests.
func NewDB(t testing.TB) *DB {
	t.Helper()
	return newDB(t, true)
}

// NewEmptyDB is NewDB without the schema: for tests of the migrations.
func NewEmptyDB(t testing.TB) *DB {
	t.Helper()
	return newDB(t, false)
}

func newDB(t testing.TB, schema bool) *DB {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	server, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	template := "template1"
	if schema {
		if template, err = sharedTemplate(); err != nil {
			t.Fatalf("devenv: make the template database: %v", err)
		}
	}
	name := randomName()
	if err := server.clone(ctx, name, template); err != nil {
		t.Fatalf("devenv: clone a database: %v", err)
	}
	db := &DB{URL: server.URL(name)}
	db.Pool, err = postgres.Open(ctx, postgres.Config{URL: db.URL, MaxConns: 8, ApplicationName: "openslot-test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() {
			db.Pool.Close() // waits for every connection to be released
			close(closed)
		}()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Error("devenv: the test never released a connection of its pool: a Release, Rollback or Rows.Close is missing")
		}
		// Sessions that are still open are cut.
		if err := server.drop(name); err != nil {
			t.Errorf("devenv: drop %s: %v", name, err)
		}
	})
	return db
}

func randomName() string { return "openslot_test_" + strings.ToLower(rand.Text()[:16]) }

// NewServer starts a server for this test alone, to be killed and restarted.
// It runs with the settings of production (fsync on) unless opts says
// otherwise, and is stopped when the test ends.
func NewServer(t testing.TB, opts PostgresOptions) *Postgres {
	t.Helper()
	opts.Own = true
	if opts.Log == nil {
		opts.Log = t.Logf
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	server, err := Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// shared is the server of this test binary: the run's, or one of its own,
// which goes away with the process.
var shared = sync.OnceValues(func() (*Postgres, error) {
	if given := os.Getenv(TestURLVariable); given != "" {
		return &Postgres{given: given}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	return Start(ctx, PostgresOptions{Settings: TestSettings})
})

var sharedTemplate = sync.OnceValues(func() (string, error) {
	server, err := shared()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	return server.template(ctx)
})

// template returns the name of a database that holds the migrated schema. The
// name carries a hash of the migrations, so an old one is never taken for it.
func (p *Postgres) template(ctx context.Context) (string, error) {
	hash, err := hashFiles(migrations.FS)
	if err != nil {
		return "", err
	}
	name := "openslot_template_" + hash
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))

	exists := func() (ok bool, err error) {
		err = conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)`, name).Scan(&ok)
		return ok, err
	}
	if ok, err := exists(); ok || err != nil {
		return name, err
	}
	// One test binary makes it; the others wait and find it.
	const lock = `SELECT pg_advisory_lock(hashtextextended('openslot template', 0))`
	if _, err := conn.Exec(ctx, lock); err != nil {
		return "", err
	}
	if ok, err := exists(); ok || err != nil {
		return name, err
	}
	// Under another name until it is whole.
	draft := name + "_draft"
	for _, sql := range []string{"DROP DATABASE IF EXISTS " + draft + " WITH (FORCE)", "CREATE DATABASE " + draft} {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return "", err
		}
	}
	if err := postgres.Migrate(ctx, p.URL(draft)); err != nil {
		return "", err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+draft+" RENAME TO "+name)
	return name, err
}

// clone makes database name from template, again where somebody was just
// connected to it.
func (p *Postgres) clone(ctx context.Context, name, template string) error {
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	sql := "CREATE DATABASE " + name + " TEMPLATE " + template
	// Copying files took 30 ms where the default of 15 and later, copying
	// through the WAL, took 170. Version 14 knows only the first, and no word for it.
	if numberAt(conn.PgConn().ParameterStatus("server_version")) >= 15 {
		sql += " STRATEGY FILE_COPY"
	}
	for {
		_, err = conn.Exec(ctx, sql)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "55006" { // object_in_use
			return err
		}
		if perr := pause(ctx, 100*time.Millisecond); perr != nil {
			return err
		}
	}
}

func (p *Postgres) drop(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
	return err
}

// hashFiles names the content of all files.
func hashFiles(files fs.FS) (string, error) {
	hash := sha256.New()
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		fmt.Fprintf(hash, "%s %d\n%s", path, len(text), text)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil)[:6]), err
}
