package app

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"

	"openslot/internal/postgres"
)

// readyWait is how long a readiness check waits for the database.
const readyWait = time.Second

// health answers whether this instance should get requests. It has a connection of its own, so
// that a crowd which holds the others can't make the instance look dead; and one check runs at
// a time, however many ask.
type health struct {
	pool     *pgxpool.Pool
	listens  func() bool // whether the change feed is alive
	draining atomic.Bool
	log      *slog.Logger
	check    singleflight.Group
}

var (
	errDraining = errors.New("shutting down")
	errDeaf     = errors.New("the change feed is not connected")
)

// ready is nil, or why this instance should get no requests.
func (h *health) ready(ctx context.Context) error {
	if h.draining.Load() {
		return errDraining
	}
	_, err, _ := h.check.Do("schema", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readyWait)
		defer cancel()
		return nil, postgres.CheckSchema(ctx, h.pool)
	})
	if err == nil && !h.listens() {
		err = errDeaf
	}
	return err
}

// readyz answers 200 or 503. Why not is logged, and told to nobody.
func (h *health) readyz(w http.ResponseWriter, r *http.Request) {
	err := h.ready(r.Context())
	if err != nil {
		h.log.Warn("not ready", "error", err)
		w.Header().Set("Retry-After", "1")
		plain(w, http.StatusServiceUnavailable, "not ready\n")
		return
	}
	plain(w, http.StatusOK, "ready\n")
}

// livez answers 200 as long as the process can answer at all: what is wrong outside is no
// reason to restart it.
func livez(w http.ResponseWriter, _ *http.Request) {
	plain(w, http.StatusOK, "alive\n")
}

func plain(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text))
}
