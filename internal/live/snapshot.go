package live

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

const (
	maxReaders   = 2                    // connections that snapshots may take from the pool
	maxReadViews = 64                   // scopes in one statement
	maxReadSpan  = 200 * 24 * time.Hour // days in one statement, over all its scopes
	readTimeout  = 5 * time.Second
)

// snapshot is all of a scope as one read saw it. It is shared and never written to.
type snapshot struct {
	content
	versions map[booking.SlotID]int64
	asOf     time.Time // the database's clock before the read
	opens    time.Time // when the next of the slots opens; zero: all are open
}

// reads makes the snapshots. Views that wait for the same scope share one read, and scopes that
// wait together share a statement. A view may join a read only until it begins: what is waiting
// has not begun.
type reads struct {
	db    *pgxpool.Pool
	clock *clock
	log   *slog.Logger
	wake  chan struct{} // holds a token when something may be waiting

	mu      sync.Mutex
	waiting map[scope]map[*view]struct{}
}

// request is a scope that is being read, and for whom.
type request struct {
	scope
	views map[*view]struct{}
}

func newReads(db *pgxpool.Pool, c *clock, log *slog.Logger) *reads {
	return &reads{db: db, clock: c, log: log, wake: make(chan struct{}, 1), waiting: make(map[scope]map[*view]struct{})}
}

// join asks for snapshots that are read from now on.
func (r *reads) join(views []*view) {
	if len(views) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range views {
		r.add(v)
	}
	r.signal()
}

func (r *reads) add(v *view) {
	if r.waiting[v.scope] == nil {
		r.waiting[v.scope] = make(map[*view]struct{})
	}
	r.waiting[v.scope][v] = struct{}{}
}

// leave forgets the views of a subscription that has ended.
func (r *reads) leave(s *Subscription) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range s.views {
		v := &s.views[i]
		delete(r.waiting[v.scope], v)
		if len(r.waiting[v.scope]) == 0 {
			delete(r.waiting, v.scope)
		}
	}
}

func (r *reads) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run makes snapshots until ctx ends. While the database is away the views wait; whatever they
// asked for is tried again.
func (r *reads) run(ctx context.Context) {
	for attempt := 0; ; {
		batch := r.take()
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return
			case <-r.wake:
			}
			continue
		}
		snapshots, err := r.read(ctx, batch)
		if err == nil {
			attempt = 0
			deliver(batch, snapshots)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		r.log.Warn("snapshots could not be read, trying again", "scopes", len(batch), "error", err)
		r.putBack(batch)
		if !pause(ctx, attempt) {
			return
		}
		attempt++
	}
}

// take removes as much of what waits as goes into one statement. From here on nobody can join it.
func (r *reads) take() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	var batch []request
	var span time.Duration
	for where, views := range r.waiting {
		span += where.to.Sub(where.from)
		if len(batch) == maxReadViews || len(batch) > 0 && span > maxReadSpan {
			r.signal() // for another reader
			break
		}
		batch = append(batch, request{where, views})
		delete(r.waiting, where)
	}
	return batch
}

func (r *reads) putBack(batch []request) {
	var views []*view
	for _, req := range batch {
		for v := range req.views {
			if v.wanted() {
				views = append(views, v)
			}
		}
	}
	r.join(views)
}

func deliver(batch []request, snapshots []*snapshot) {
	for i, req := range batch {
		for v := range req.views {
			v.deliver(snapshots[i])
		}
	}
}

// The subquery is sorted so that it stays one: for each scope an index range of uq_doctor_start,
// whatever the planner thinks of the arrays.
const readSQL = `
SELECT w.n, s.*
  FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[]) WITH ORDINALITY AS w (doctor_id, from_at, to_at, n),
       LATERAL (SELECT id, start_at, end_at, opens_at, capacity, booked_count, status, version
                  FROM time_slot
                 WHERE doctor_id = w.doctor_id AND start_at >= w.from_at AND start_at < w.to_at
                   AND status <> 'WITHDRAWN'
                 ORDER BY start_at) AS s
 ORDER BY w.n, s.start_at`

// read makes the snapshots of a batch, in its order.
func (r *reads) read(ctx context.Context, batch []request) ([]*snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	doctors := make([]booking.DoctorID, len(batch))
	from, to := make([]time.Time, len(batch)), make([]time.Time, len(batch))
	for i, req := range batch {
		doctors[i], from[i], to[i] = req.doctor, req.from, req.to
	}
	conn, err := r.db.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("live: read snapshots: %w", err)
	}
	defer conn.Release()
	// One round trip. The clock is read in a statement before: what the snapshots show is not older.
	var statements pgx.Batch
	var asOf time.Time
	var snapshots []*snapshot
	statements.Queue(`SELECT clock_timestamp()`).QueryRow(func(row pgx.Row) error { return row.Scan(&asOf) })
	statements.Queue(readSQL, doctors, from, to).Query(func(rows pgx.Rows) error {
		snapshots, err = collect(rows, doctors, asOf.UTC())
		return err
	})
	asked := time.Now()
	if err := conn.SendBatch(ctx, &statements).Close(); err != nil {
		return nil, fmt.Errorf("live: read snapshots: %w", err)
	}
	r.clock.set(asOf, asked)
	return snapshots, nil
}

// collect reads the rows of readSQL: a snapshot for each of the doctors, in their order.
func collect(rows pgx.Rows, doctors []booking.DoctorID, asOf time.Time) ([]*snapshot, error) {
	snapshots := make([]*snapshot, len(doctors))
	for i := range snapshots {
		snapshots[i] = &snapshot{content: content{slots: []booking.Slot{}}, versions: make(map[booking.SlotID]int64), asOf: asOf}
	}
	var n int
	var s booking.Slot
	into := []any{&n, &s.ID, &s.StartAt, &s.EndAt, &s.OpensAt, &s.Capacity, &s.Booked, &s.Status, &s.Version}
	_, err := pgx.ForEachRow(rows, into, func() error {
		s.DoctorID = doctors[n-1]
		s.StartAt, s.EndAt, s.OpensAt = s.StartAt.UTC(), s.EndAt.UTC(), s.OpensAt.UTC()
		snap := snapshots[n-1]
		snap.slots = append(snap.slots, s)
		snap.versions[s.ID] = s.Version
		if s.Status == booking.SlotOpen && s.OpensAt.After(asOf) && (snap.opens.IsZero() || s.OpensAt.Before(snap.opens)) {
			snap.opens = s.OpensAt
		}
		return nil
	})
	return snapshots, err
}
