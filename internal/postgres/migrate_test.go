package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"openslot/internal/devenv"
	"openslot/internal/postgres"
	"openslot/migrations"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(killedMigratorVariable); url != "" {
		migrateUntilKilled(url)
	}
	// The library would give up its lock after this long, 15 s as it comes.
	// Nothing here may depend on it: see SlowMigration.
	migrate.DefaultLockTimeout = time.Nanosecond
	os.Exit(m.Run())
}

// instances start together.
const instances = 8

// rounds of the campaign, a tenth of what OPENSLOT_LONG runs.
func rounds() int {
	if os.Getenv("OPENSLOT_LONG") != "" {
		return 50
	}
	return 5
}

func TestMigrate(t *testing.T) {
	t.Run("UpDownUp", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		empty := schemaOf(t, db)
		must(t, postgres.Migrate(t.Context(), db.URL))
		full := schemaOf(t, db)
		if full == empty {
			t.Fatal("the migrations made nothing that the check can see")
		}
		must(t, postgres.MigrateDown(t.Context(), db.URL))
		if diff := cmp.Diff(empty, schemaOf(t, db)); diff != "" {
			t.Errorf("left behind after down (-empty +now):\n%s", diff)
		}
		must(t, postgres.MigrateDown(t.Context(), db.URL)) // nothing to do is no error
		must(t, postgres.Migrate(t.Context(), db.URL))
		must(t, postgres.Migrate(t.Context(), db.URL))
		if diff := cmp.Diff(full, schemaOf(t, db)); diff != "" {
			t.Errorf("up again differs (-first +second):\n%s", diff)
		}
	})

	t.Run("EightAtOnce", func(t *testing.T) {
		t.Parallel()
		want := schemaOf(t, devenv.NewDB(t))
		for range rounds() {
			db := devenv.NewEmptyDB(t)
			must(t, atOnce(t, db.URL, migrations.FS, postgres.MigrateUpFiles))
			if diff := cmp.Diff(want, schemaOf(t, db)); diff != "" {
				t.Fatalf("schema differs (-one +eight):\n%s", diff)
			}
		}
	})

	t.Run("EightAtOnceControl", func(t *testing.T) {
		t.Parallel()
		for range 20 {
			db := devenv.NewEmptyDB(t)
			if err := atOnce(t, db.URL, migrations.FS, postgres.MigrateUnlocked); err != nil {
				return
			}
		}
		t.Error("without the advisory lock eight instances never collided: the test above proves nothing")
	})

	t.Run("SlowMigration", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		release := holdGate(t, db)
		var group errgroup.Group
		for range instances {
			group.Go(func() error { return postgres.MigrateUpFiles(t.Context(), db.URL, gated) })
		}
		waitFor(t, db, "one instance in the file, seven behind it",
			`SELECT count(*) = $1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
			 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, instances)
		release()
		must(t, group.Wait())
		if v := recorded(t, db); v != "2 false" {
			t.Errorf("recorded %s, want 2 false", v)
		}
	})

	t.Run("NewerSchemaIsLeftAlone", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, twoFiles))
		older := fstest.MapFS{"001_a.up.sql": twoFiles["001_a.up.sql"], "001_a.down.sql": twoFiles["001_a.down.sql"]}
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, older))
		if v := recorded(t, db); v != "2 false" {
			t.Errorf("recorded %s, want 2 false", v)
		}
	})

	t.Run("BrokenFile", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		broken := fstest.MapFS{
			"001_a.up.sql": twoFiles["001_a.up.sql"],
			"002_b.up.sql": file("CREATE TABLE b (id int); SELECT 1/0;"),
		}
		err := postgres.MigrateUpFiles(t.Context(), db.URL, broken)
		if !hasCode(err, "22012") || !strings.Contains(err.Error(), "version 2") {
			t.Errorf("error %v: want a division by zero in version 2", err)
		}
		if v := recorded(t, db); v != "1 false" {
			t.Errorf("recorded %s, want 1 false", v)
		}
		must(t, postgres.MigrateUpFiles(t.Context(), db.URL, twoFiles)) // the corrected file
	})
}

// Each file must undo itself when something after it fails: no COMMIT inside.
func TestMigrationsAreWhole(t *testing.T) {
	t.Parallel()
	db := devenv.NewEmptyDB(t)
	ups, err := fs.Glob(migrations.FS, "*.up.sql")
	must(t, err)
	if len(ups) == 0 {
		t.Fatal("no migrations")
	}
	apply := func(name string) {
		t.Helper()
		body, err := fs.ReadFile(migrations.FS, name)
		must(t, err)
		before := schemaOf(t, db)
		if err := script(t, db, string(body)+"\n;SELECT 1/0"); !hasCode(err, "22012") {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, schemaOf(t, db)); diff != "" {
			t.Errorf("%s is not rolled back whole (-before +after):\n%s", name, diff)
		}
		must(t, script(t, db, string(body)))
		if before == schemaOf(t, db) {
			t.Errorf("%s changes nothing that this test can see", name)
		}
	}
	for _, up := range ups {
		apply(up)
	}
	for i := len(ups) - 1; i >= 0; i-- {
		apply(strings.TrimSuffix(ups[i], ".up.sql") + ".down.sql")
	}
}

func TestCheckSchema(t *testing.T) {
	t.Parallel()
	latest, err := postgres.LatestVersion(migrations.FS)
	must(t, err)
	tests := []struct {
		name string
		sql  string
		want *postgres.SchemaError
	}{
		{"Current", `SELECT 1`, nil},
		{"Newer", `UPDATE schema_migrations SET version = version + 1`, nil},
		{"Older", `UPDATE schema_migrations SET version = version - 1`, &postgres.SchemaError{Have: latest - 1, Want: latest}},
		{"Emptied", `DELETE FROM schema_migrations`, &postgres.SchemaError{Want: latest}},
		{"None", `DROP TABLE schema_migrations`, &postgres.SchemaError{Want: latest}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			db := devenv.NewDB(t)
			must(t, script(t, db, tt.sql))
			err := postgres.CheckSchema(t.Context(), db.Pool)
			var got *postgres.SchemaError
			if err != nil && !errors.As(err, &got) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("Away", func(t *testing.T) {
		t.Parallel()
		db := devenv.NewEmptyDB(t)
		db.Pool.Close()
		var schema *postgres.SchemaError
		if err := postgres.CheckSchema(t.Context(), db.Pool); err == nil || errors.As(err, &schema) {
			t.Errorf("no database: %v, want an error that blames no schema", err)
		}
	})
}

// atOnce runs migrate in all instances at the same time.
func atOnce(t *testing.T, url string, files fs.FS, migrate func(context.Context, string, fs.FS) error) error {
	var group errgroup.Group
	for range instances {
		group.Go(func() error { return migrate(t.Context(), url, files) })
	}
	return group.Wait()
}

// schemaSQL describes everything in the database that a migration can make,
// one line each, but for the version table.
const schemaSQL = `
WITH ours AS (SELECT oid FROM pg_namespace WHERE nspname NOT LIKE 'pg\_%' AND nspname <> 'information_schema')
SELECT string_agg(line, E'\n' ORDER BY line COLLATE "C") FROM (
  SELECT format('relation %s %s %s', relkind, relname, reloptions) AS line
    FROM pg_class WHERE relnamespace IN (SELECT oid FROM ours) AND relname NOT LIKE 'schema_migrations%'
  UNION ALL
  SELECT format('column %s %s %s %s %s', attrelid::regclass, attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid))
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
   WHERE relnamespace IN (SELECT oid FROM ours) AND attnum > 0 AND NOT attisdropped AND relname NOT LIKE 'schema_migrations%'
  UNION ALL
  SELECT format('constraint %s %s %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint WHERE connamespace IN (SELECT oid FROM ours) AND conname NOT LIKE 'schema_migrations%'
  UNION ALL
  SELECT format('index %s', pg_get_indexdef(indexrelid))
    FROM pg_index JOIN pg_class c ON c.oid = indexrelid WHERE relnamespace IN (SELECT oid FROM ours) AND relname NOT LIKE 'schema_migrations%'
  UNION ALL
  SELECT format('trigger %s', pg_get_triggerdef(oid)) FROM pg_trigger WHERE NOT tgisinternal
  UNION ALL
  SELECT format('function %s %s', oid::regprocedure, md5(prosrc)) FROM pg_proc WHERE pronamespace IN (SELECT oid FROM ours)
  UNION ALL
  SELECT format('type %s %s', typname, typtype) FROM pg_type
   WHERE typnamespace IN (SELECT oid FROM ours) AND typname NOT LIKE '%schema_migrations'
  UNION ALL
  SELECT format('extension %s %s', extname, extversion) FROM pg_extension
  UNION ALL
  SELECT format('schema %s', nspname) FROM pg_namespace WHERE oid IN (SELECT oid FROM ours)
) AS lines`

func schemaOf(t *testing.T, db *devenv.DB) string {
	t.Helper()
	var text string
	must(t, db.Pool.QueryRow(t.Context(), schemaSQL).Scan(&text))
	return text
}

// recorded is the version table's row.
func recorded(t *testing.T, db *devenv.DB) string {
	t.Helper()
	var version int
	var dirty bool
	must(t, db.Pool.QueryRow(t.Context(), `SELECT version, dirty FROM schema_migrations`).Scan(&version, &dirty))
	return fmt.Sprint(version, dirty)
}

// script runs several statements as one transaction.
func script(t *testing.T, db *devenv.DB, sql string) error {
	t.Helper()
	_, err := db.Pool.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

func file(sql string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(sql)} }

func hasCode(err error, code string) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == code
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
