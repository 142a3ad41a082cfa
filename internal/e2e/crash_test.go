package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/devenv"
	"openslot/internal/postgres"
)

// PostgreSQL is killed with -9 under load and started again: no acknowledged booking is lost,
// callers hear 503 meanwhile and never 500, and the service is back soon after the database.
func TestDatabaseKilledUnderLoad(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := devenv.NewServer(t, devenv.PostgresOptions{})
	if err := server.CreateDatabase(ctx, "clinic"); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Migrate(ctx, server.URL("clinic")); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, server.URL("clinic"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c := startClinic(t, server.URL("clinic"), pool, 1)
	api, slots := c.instances[0], c.slots(20_000, 1000)

	const callers = 8
	var (
		acknowledged = make([]map[string]string, callers) // key → appointment
		running      sync.WaitGroup
		stop         = make(chan struct{})
		total        atomic.Int64
		lastAnswer   atomic.Int64 // when the last booking was acknowledged
		away         atomic.Int64
	)
	// Nobody may try more than a few keys in a short time: each caller books for many patients.
	patient := func(i, n int) string { return c.token("patient", fmt.Sprintf("%d-%d", i, n/4)) }
	for i := range callers {
		acknowledged[i] = map[string]string{}
		running.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprint(n)
				b := book(api, patient(i, n), slots[n%len(slots)], key)
				switch {
				case b.status == http.StatusOK && b.id != "":
					acknowledged[i][key] = b.id
					total.Add(1)
					lastAnswer.Store(time.Now().UnixNano())
				case b.status == http.StatusServiceUnavailable && b.header.Get("Retry-After") != "":
					away.Add(1)
				case b.code() == "ALREADY_BOOKED" || b.code() == "OVERLAP": // a booking whose answer was lost
				default:
					t.Errorf("status %d: %s", b.status, b.body)
				}
			}
		})
	}
	until := func(what string, reached func() bool) {
		t.Helper()
		poll := time.NewTicker(5 * time.Millisecond)
		defer poll.Stop()
		for deadline := time.Now().Add(patience); !reached(); <-poll.C {
			if time.Now().After(deadline) {
				t.Errorf("never happened: %s", what)
				return
			}
		}
	}
	for round := range 3 {
		before := total.Load()
		until("bookings go on", func() bool { return total.Load() > before+50 })
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		refused := away.Load()
		until("callers are refused", func() bool { return away.Load() > refused })
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		back := time.Now()
		until("bookings go on again", func() bool { return lastAnswer.Load() > back.UnixNano() })
		took := time.Unix(0, lastAnswer.Load()).Sub(back)
		t.Logf("round %d: the first booking %s after the database was back", round, took)
		if took > 2*time.Second {
			t.Errorf("the service was back only after %s", took)
		}
	}
	close(stop)
	running.Wait()
	lost := 0
	for i, keys := range acknowledged {
		for key, id := range keys {
			if scan[int](c, `SELECT count(*) FROM appointment WHERE id = $1 AND idempotency_key = $2`, id, key) != 1 {
				lost++
			}
		}
		for key, id := range keys { // and a retry still gets it
			var n int
			if _, err := fmt.Sscan(key, &n); err != nil {
				t.Fatal(err)
			}
			if b := book(api, patient(i, n), slots[n%len(slots)], key); b.id != id || !b.replayed {
				t.Errorf("retry of key %s: %s, want appointment %s", key, b.body, id)
			}
			break
		}
	}
	if lost != 0 {
		t.Errorf("%d of %d acknowledged bookings are lost", lost, total.Load())
	}
	t.Logf("%d bookings, %d refused meanwhile", total.Load(), away.Load())
	c.check()
}
