package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	"github.com/golang-migrate/migrate/v4/source/iofs"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/migrations"
)

// Migrate brings the schema of the database at url up to the version this
// binary carries. Any number of instances may call it at once: one works, the
// others wait for its advisory lock and then find nothing to do.
//
// Each file runs in one transaction that also records its version, so wherever
// a migrator dies, the database stands exactly before or after a file, and the
// next call goes on from there. A file waits at most two seconds for a lock,
// because everyone who comes after queues behind it; then it is rolled back and
// tried again for a minute. When ctx ends, the running file is cancelled.
//
// A schema newer than the binary is left alone and is no error: that is an old
// instance starting again in the middle of a roll-out.
func Migrate(ctx context.Context, url string) error {
	return migrateUp(ctx, url, migrations.FS)
}

// MigrateDown takes every migration back, which deletes all data. What stays
// is the empty table schema_migrations.
func MigrateDown(ctx context.Context, url string) error {
	return migrateDown(ctx, url, migrations.FS)
}

func migrateUp(ctx context.Context, url string, files fs.FS) error {
	latest, err := latestVersion(files)
	if err != nil {
		return err
	}
	err = withMigrator(ctx, url, files, func(m *migrate.Migrate) error {
		err := m.Up()
		// The library looks the recorded version up among the files first,
		// and fails where a newer binary recorded it.
		if errors.Is(err, fs.ErrNotExist) {
			if v, _, verr := m.Version(); verr == nil && v > latest {
				return nil
			}
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("postgres: migrate up: %w", err)
	}
	return nil
}

func migrateDown(ctx context.Context, url string, files fs.FS) error {
	err := withMigrator(ctx, url, files, (*migrate.Migrate).Down)
	if err != nil {
		return fmt.Errorf("postgres: migrate down: %w", err)
	}
	return nil
}

// withMigrator runs do on a connection of its own.
func withMigrator(ctx context.Context, url string, files fs.FS, do func(*migrate.Migrate) error) error {
	drv, err := openDriver(ctx, url)
	if err != nil {
		return err
	}
	return runMigrator(drv, files, do)
}

// runMigrator runs do on drv, which it closes, and reads "nothing to do" as
// success.
func runMigrator(drv database.Driver, files fs.FS, do func(*migrate.Migrate) error) error {
	src, err := iofs.New(files, ".")
	if err != nil {
		return errors.Join(err, drv.Close())
	}
	m, err := migrate.NewWithInstance("iofs", src, "openslot", drv)
	if err != nil {
		return errors.Join(err, src.Close(), drv.Close())
	}
	// The wait for the lock ends with ctx: a deadline of the library's own
	// would make the eighth instance behind a slow migration fail.
	m.LockTimeout = 365 * 24 * time.Hour
	err = do(m)
	if errors.Is(err, migrate.ErrNoChange) {
		err = nil
	}
	srcErr, drvErr := m.Close()
	return errors.Join(err, srcErr, drvErr)
}

// latestVersion is the highest version among files.
func latestVersion(files fs.FS) (uint, error) {
	src, err := iofs.New(files, ".")
	if err != nil {
		return 0, fmt.Errorf("postgres: read migrations: %w", err)
	}
	defer src.Close()
	version, err := src.First()
	for err == nil {
		var next uint
		if next, err = src.Next(version); err == nil {
			version = next
		}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("postgres: read migrations: %w", err)
	}
	return version, nil
}

const versionSQL = `SELECT coalesce(max(version), 0) FROM schema_migrations`

// CheckSchema returns nil if the database has at least the schema this binary
// was built for. An older schema gives an error that says so and what to do; a
// newer one is accepted, since migrations only add what older binaries can
// live with. Cheap enough for a readiness check.
func CheckSchema(ctx context.Context, pool *pgxpool.Pool) error {
	want, err := latestVersion(migrations.FS)
	if err != nil {
		return err
	}
	var have int64
	err = pool.QueryRow(ctx, versionSQL).Scan(&have)
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &pgErr) && pgErr.Code == codeUndefinedTable:
		have = 0
	case err != nil:
		return fmt.Errorf("postgres: read schema version: %w", err)
	}
	if have < int64(want) {
		return &SchemaError{Have: uint(have), Want: want}
	}
	return nil
}

// SchemaError says that the database's schema is older than the binary needs.
type SchemaError struct {
	Have, Want uint // versions; Have is 0 for a database without our schema
}

func (e *SchemaError) Error() string {
	if e.Have == 0 {
		return fmt.Sprintf("postgres: the database has no openslot schema (version %d is needed): run `openslot migrate up`", e.Want)
	}
	return fmt.Sprintf("postgres: the database schema is at version %d, this binary needs %d: run `openslot migrate up`", e.Have, e.Want)
}
