package devenv

import (
	"testing"

	"golang.org/x/sync/errgroup"

	"openslot/internal/postgres"
)

func TestNewDB(t *testing.T) {
	t.Run("OwnSchemaAndRows", func(t *testing.T) {
		t.Parallel()
		a, b := NewDB(t), NewDB(t)
		must(t, postgres.CheckSchema(t.Context(), a.Pool))
		query(t, a.URL, `CREATE TABLE mine ()`)
		if got := query(t, b.URL, `SELECT to_regclass('mine')::text`); got != "" {
			t.Error("two tests see each other's tables")
		}
		if err := postgres.CheckSchema(t.Context(), NewEmptyDB(t).Pool); err == nil {
			t.Error("the empty database has the schema")
		}
	})

	t.Run("DroppedAtTheEnd", func(t *testing.T) {
		t.Parallel()
		server, err := shared()
		must(t, err)
		var name string
		t.Run("Inner", func(t *testing.T) {
			db := NewDB(t)
			must(t, db.Pool.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name))
			conn, err := db.Pool.Acquire(t.Context())
			must(t, err)
			conn.Hijack() // a session that nobody closes
		})
		if got := query(t, server.URL(""), `SELECT count(*)::text FROM pg_database WHERE datname = '`+name+`'`); got != "0" {
			t.Errorf("database %s is still there", name)
		}
	})

	t.Run("TemplateMadeOnce", func(t *testing.T) {
		t.Parallel()
		server := NewServer(t, PostgresOptions{Settings: TestSettings})
		var group errgroup.Group
		for range 6 { // test binaries that start together
			group.Go(func() error {
				name, err := server.template(t.Context())
				if err != nil {
					return err
				}
				return server.clone(t.Context(), randomName(), name)
			})
		}
		must(t, group.Wait())
		got := query(t, server.URL(""), `SELECT count(*) FILTER (WHERE datname LIKE '%template\_%') || ' ' || count(*) FILTER (WHERE datname LIKE '%test\_%')
			FROM pg_database`)
		if got != "1 6" {
			t.Errorf("templates and clones: %s, want 1 6", got)
		}
	})
}
