package postgres_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"openslot/internal/devenv"
	"openslot/internal/postgres"
)

func TestOpenSettings(t *testing.T) {
	t.Parallel()
	db := devenv.NewEmptyDB(t)
	tests := []struct {
		name string
		url  string
		cfg  postgres.Config
		want map[string]string
	}{
		{"Defaults", db.URL, postgres.Config{}, map[string]string{
			"application_name": "openslot", "lock_timeout": "1s", "statement_timeout": "5s",
			"idle_in_transaction_session_timeout": "10s", "TimeZone": "UTC", "plan_cache_mode": "force_generic_plan",
		}},
		{"FieldsWinOverURL", db.URL + "&lock_timeout=7s&timezone=Europe/Berlin",
			postgres.Config{LockTimeout: 1500 * time.Millisecond, StatementTimeout: time.Minute,
				IdleInTransactionTimeout: 3 * time.Second, ApplicationName: "worker"},
			map[string]string{
				"application_name": "worker", "lock_timeout": "1500ms", "statement_timeout": "1min",
				"idle_in_transaction_session_timeout": "3s", "TimeZone": "UTC",
			}},
		{"URLWinsOverDefaults", db.URL + "&lock_timeout=7s&application_name=psql", postgres.Config{},
			map[string]string{"lock_timeout": "7s", "application_name": "psql", "statement_timeout": "5s"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.cfg.URL = tt.url
			pool, err := postgres.Open(t.Context(), tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			for name, want := range tt.want {
				var got string
				if err := pool.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&got); err != nil {
					t.Fatal(err)
				}
				if got != want {
					t.Errorf("%s = %q, want %q", name, got, want)
				}
			}
		})
	}
}

func TestOpenMaxConns(t *testing.T) {
	t.Parallel()
	const url = "postgres://u:p@127.0.0.1:1/x?pool_max_conns=7"
	for _, tt := range []struct{ field, want int32 }{{0, 7}, {33, 33}} {
		pool, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: tt.field})
		if err != nil {
			t.Fatal(err) // nobody listens there: Open must not need it
		}
		if got := pool.Config().MaxConns; got != tt.want {
			t.Errorf("MaxConns %d in Config: %d in the pool, want %d", tt.field, got, tt.want)
		}
		if got := pool.Config().ConnConfig.ConnectTimeout; got != 2*time.Second {
			t.Errorf("connect timeout %s, want 2s", got)
		}
		pool.Close()
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, url, want string }{
		{"SimpleProtocol", "postgres://u:secret@127.0.0.1/x?default_query_exec_mode=simple_protocol", "simple protocol"},
		{"Nonsense", "postgres://u:secret@127.0.0.1:notaport/x", "database URL"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pool, err := postgres.Open(t.Context(), postgres.Config{URL: tt.url})
			if err == nil {
				pool.Close()
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("error %q: want one that says %q and no password", err, tt.want)
			}
		})
	}
}

// The limits are only worth something if the server acts on them.
func TestOpenStatementEnds(t *testing.T) {
	t.Parallel()
	db := devenv.NewEmptyDB(t)
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: db.URL, StatementTimeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := pool.Exec(ctx, `SELECT pg_sleep(30)`); !hasCode(err, "57014") { // query_canceled
		t.Errorf("a statement of 30 s under a limit of 50 ms: %v", err)
	}
}
