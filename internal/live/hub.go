package live

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"openslot/internal/booking"
)

// Hub knows who watches which doctor. It is a consumer of the feed and never makes it wait.
type Hub struct {
	db       *pgxpool.Pool
	clock    *clock
	reads    *reads
	openings *openings
	tallies  tallies
	epoch    atomic.Int64 // of the feed

	mu      sync.Mutex
	closed  bool
	doctors map[booking.DoctorID]map[*view]struct{}
}

// NewHub makes a hub that reads from db, which must be the primary: a replica may lag behind
// what the feed announced. Snapshots come while Run runs. log may be nil.
func NewHub(db *pgxpool.Pool, log *slog.Logger) *Hub {
	c := new(clock)
	return &Hub{
		db:       db,
		clock:    c,
		reads:    newReads(db, c, cmp.Or(log, slog.Default())),
		openings: newOpenings(),
		tallies:  tallies{known: make(map[days]*tally)},
		doctors:  make(map[booking.DoctorID]map[*view]struct{}),
	}
}

// Run reads snapshots for the subscriptions, when they need one and when slots open, until ctx ends;
// then it closes the hub and returns nil.
func (h *Hub) Run(ctx context.Context) error {
	defer h.Close()
	var readers errgroup.Group
	for range maxReaders {
		readers.Go(func() error { h.reads.run(ctx); return nil })
	}
	readers.Go(func() error { h.openings.run(ctx, h.clock, h.opened); return nil })
	return readers.Wait()
}

// Close ends all subscriptions with ErrGoingAway and lets no more begin.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, views := range h.doctors {
		for v := range views {
			v.sub.end(ErrGoingAway)
		}
	}
}

// Consumer is how the feed reaches the hub.
func (h *Hub) Consumer() Consumer {
	return Consumer{Resync: h.resync, Changed: h.changed, Stale: h.stale}
}

func (h *Hub) resync(epoch int64, _ time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.epoch.Store(epoch)
	for _, views := range h.doctors {
		for v := range views {
			v.markStale()
		}
	}
}

func (h *Hub) stale(doctor booking.DoctorID, _ time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for v := range h.doctors[doctor] {
		v.markStale()
	}
}

func (h *Hub) changed(slots []booking.Slot) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(slots) > 0 { // one doctor's after the other
		n := 1
		for n < len(slots) && slots[n].DoctorID == slots[0].DoctorID {
			n++
		}
		if views := h.doctors[slots[0].DoctorID]; len(views) > 0 {
			b := newBatch(slots[:n])
			for v := range views {
				if c := b.within(v.from, v.to); c != nil {
					v.offer(c)
				}
			}
		}
		slots = slots[n:]
	}
}

// Subscribe begins to watch. ctx bounds this call alone: the subscription lasts until its Close or
// the hub's. Refusals: INVALID for a query out of bounds, NOT_FOUND for an unknown doctor,
// UNAVAILABLE or OVERLOADED when the database could not be asked; ErrGoingAway once the hub is closed.
func (h *Hub) Subscribe(ctx context.Context, q Query) (*Subscription, error) {
	s, err := h.prepare(ctx, q)
	if err != nil {
		return nil, err
	}
	if err := h.register(s); err != nil {
		return nil, err
	}
	return s, nil
}

// prepare makes a subscription that nobody knows of yet.
func (h *Hub) prepare(ctx context.Context, q Query) (*Subscription, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	zones, err := h.timeZones(ctx, q.Doctors)
	if err != nil {
		return nil, err
	}
	return h.subscription(q, zones), nil
}

// subscription makes one of a query that is in order, with the doctors' zones.
func (h *Hub) subscription(q Query, zones map[booking.DoctorID]*time.Location) *Subscription {
	s := &Subscription{hub: h, from: q.From, days: q.Days, wake: make(chan struct{}, 1)}
	s.views = make([]view, len(q.Doctors))
	for i, doctor := range q.Doctors {
		zone := zones[doctor]
		begin, _ := q.From.In(zone)
		_, end := q.From.AddDays(q.Days - 1).In(zone)
		s.views[i] = view{sub: s, zone: zone.String(), scope: scope{doctor, begin, end}, stale: true}
	}
	return s
}

func (h *Hub) register(s *Subscription) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return ErrGoingAway
	}
	for i := range s.views {
		v := &s.views[i]
		if h.doctors[v.doctor] == nil {
			h.doctors[v.doctor] = make(map[*view]struct{})
		}
		h.doctors[v.doctor][v] = struct{}{}
	}
	return nil
}

func (h *Hub) unregister(s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range s.views {
		v := &s.views[i]
		delete(h.doctors[v.doctor], v)
		if len(h.doctors[v.doctor]) == 0 {
			delete(h.doctors, v.doctor)
		}
	}
}

// Watched are the doctors that somebody watches, in no order.
func (h *Hub) Watched() []booking.DoctorID {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Collect(maps.Keys(h.doctors))
}

const timeZonesSQL = `
SELECT d.id, o.time_zone FROM doctor d JOIN organization o ON o.id = d.organization_id
 WHERE d.id = ANY ($1::bigint[])`

// timeZones finds the zone that each doctor's days are in, or refuses with NOT_FOUND.
func (h *Hub) timeZones(ctx context.Context, doctors []booking.DoctorID) (map[booking.DoctorID]*time.Location, error) {
	rows, err := h.db.Query(ctx, timeZonesSQL, doctors)
	if err != nil {
		return nil, unavailable(err)
	}
	defer rows.Close()
	zones := make(map[booking.DoctorID]*time.Location, len(doctors))
	for rows.Next() {
		var doctor booking.DoctorID
		var name string
		if err := rows.Scan(&doctor, &name); err != nil {
			return nil, unavailable(err)
		}
		if zones[doctor], err = booking.LoadZone(name); err != nil {
			return nil, fmt.Errorf("live: time zone of doctor %d: %w", doctor, err)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, unavailable(err)
	}
	for _, doctor := range doctors {
		if zones[doctor] == nil {
			return nil, booking.Refuse(booking.NotFound, "There is no doctor %d.", doctor)
		}
	}
	return zones, nil
}

// unavailable names a database error for the caller.
func unavailable(err error) error {
	return fmt.Errorf("live: subscribe: %w", booking.DatabaseError(err))
}
