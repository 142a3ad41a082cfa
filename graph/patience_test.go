package graph

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
	"openslot/internal/devenv"
	"openslot/internal/schedule"
)

// With all connections taken for good, a request is refused in bounded time, and told when to try
// again; once they are back, the next one is answered.
func TestOperationPatience(t *testing.T) {
	t.Parallel()
	pool := devenv.NewDB(t).Pool // of the directory alone
	w := newWorld(t, func(parts *Parts) {
		parts.patience = 200 * time.Millisecond
		parts.Schedule = schedule.New(pool, schedule.Config{})
	})
	const doctors = `{ doctors { nodes { id } } }`
	var taken []*pgxpool.Conn
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, conn)
	}
	got := w.ask("", doctors, nil)
	if got.Status != http.StatusServiceUnavailable || got.Header.Get("Retry-After") == "" ||
		len(got.Errors) != 1 || got.Errors[0].Extensions["code"] != string(booking.Overloaded) {
		t.Errorf("status %d: %s", got.Status, got.Body)
	}
	for _, conn := range taken {
		conn.Release()
	}
	if got := w.ask("", doctors, nil); got.Status != http.StatusOK {
		t.Errorf("status %d: %s", got.Status, got.Body)
	}
}
