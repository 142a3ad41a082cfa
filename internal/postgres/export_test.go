package postgres

import (
	"context"
	"io/fs"
	"time"

	"github.com/golang-migrate/migrate/v4"
)

// For the tests, which live outside: devenv imports this package.
var (
	MigrateUpFiles   = migrateUp
	MigrateDownFiles = migrateDown
	LatestVersion    = latestVersion
)

// MigrateImpatient is MigrateUpFiles that tries for its locks only once.
func MigrateImpatient(ctx context.Context, url string, files fs.FS) error {
	drv, err := openDriver(ctx, url)
	if err != nil {
		return err
	}
	drv.patience = -time.Second
	return runMigrator(drv, files, (*migrate.Migrate).Up)
}

// MigrateUnlocked is MigrateUpFiles without the advisory lock: the negative
// control of instances that start together.
func MigrateUnlocked(ctx context.Context, url string, files fs.FS) error {
	drv, err := openDriver(ctx, url)
	if err != nil {
		return err
	}
	return runMigrator(unlocked{drv}, files, (*migrate.Migrate).Up)
}

type unlocked struct{ *driver }

func (u unlocked) Lock() error {
	_, err := u.conn.Exec(u.ctx, createVersionTableSQL)
	return err
}

func (u unlocked) Unlock() error { return nil }
