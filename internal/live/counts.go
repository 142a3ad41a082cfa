package live

import (
	"context"
	"sync"
	"time"

	"openslot/internal/booking"
)

// countPace is how often a tally looks at what has changed: a burst of bookings is one message.
const countPace = 250 * time.Millisecond

// DayCounts is one message to whoever counts: what is left of some days of a doctor. Each day
// replaces what was told of it before.
type DayCounts struct {
	DoctorID booking.DoctorID
	TimeZone string // IANA name, the zone of the dates; as it was when somebody began to count
	// Days by date: at first all of the range, then those that changed.
	Days []booking.DaySummary
}

// Counts is one client's watch on what is left of some doctors' days. Somebody must call Next again
// and again, and Close in the end.
type Counts struct {
	hub  *Hub
	wake chan struct{} // holds a token when there may be something to tell

	tallies []*tally // one per doctor; fixed
	told    []int64  // Next's own: the revision of each tally that was told last
	cursor  int      // Next's own: the tally whose turn it is

	closing sync.Once
	closed  chan struct{}
}

// Count begins to watch what is left of the days of q. Its refusals are those of Subscribe.
func (h *Hub) Count(ctx context.Context, q Query) (*Counts, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	zones, err := h.timeZones(ctx, q.Doctors)
	if err != nil {
		return nil, err
	}
	c := &Counts{hub: h, wake: make(chan struct{}, 1), told: make([]int64, len(q.Doctors)), closed: make(chan struct{})}
	for _, doctor := range q.Doctors {
		t, err := h.follow(c, days{doctor, q.From, q.Days}, zones[doctor])
		if err != nil {
			c.Close()
			return nil, err
		}
		c.tallies = append(c.tallies, t)
	}
	return c, nil
}

// Next waits for the next counts. Errors: that of ctx, after which Next may be called again;
// ErrGoingAway and ErrClosed, after which it is over.
func (c *Counts) Next(ctx context.Context) (DayCounts, error) {
	for {
		select {
		case <-c.closed:
			return DayCounts{}, ErrClosed
		default:
		}
		for n := range c.tallies {
			i := (c.cursor + n) % len(c.tallies)
			changed, revision, err := c.tallies[i].since(c.told[i])
			if err != nil {
				return DayCounts{}, err
			}
			if len(changed) > 0 {
				c.told[i], c.cursor = revision, i+1
				t := c.tallies[i]
				return DayCounts{DoctorID: t.doctor, TimeZone: t.zone.String(), Days: changed}, nil
			}
		}
		select {
		case <-ctx.Done():
			return DayCounts{}, ctx.Err()
		case <-c.closed:
		case <-c.wake:
		}
	}
}

// Close ends it. It may be called more than once, and while Next waits.
func (c *Counts) Close() {
	c.closing.Do(func() {
		close(c.closed)
		for _, t := range c.hub.leave(c) {
			<-t.ended
		}
	})
}

func (c *Counts) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// days are some of a doctor's.
type days struct {
	doctor booking.DoctorID
	from   booking.Date
	n      int
}

// tallies are those that somebody follows.
type tallies struct {
	mu    sync.Mutex
	known map[days]*tally
}

// follow makes c a follower of the days' tally, which it starts if there is none.
func (h *Hub) follow(c *Counts, d days, zone *time.Location) (*tally, error) {
	h.tallies.mu.Lock()
	defer h.tallies.mu.Unlock()
	t := h.tallies.known[d]
	if t == nil {
		s := h.subscription(Query{Doctors: []booking.DoctorID{d.doctor}, From: d.from, Days: d.n},
			map[booking.DoctorID]*time.Location{d.doctor: zone})
		if err := h.register(s); err != nil {
			return nil, err
		}
		t = newTally(d, zone, s)
		h.tallies.known[d] = t
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.followers[c] = struct{}{}
	return t, nil
}

// leave ends c's following, and the tallies that nobody follows any more. They end soon.
func (h *Hub) leave(c *Counts) (ending []*tally) {
	h.tallies.mu.Lock()
	defer h.tallies.mu.Unlock()
	for _, t := range c.tallies {
		t.mu.Lock()
		delete(t.followers, c)
		alone := len(t.followers) == 0
		t.mu.Unlock()
		if alone {
			delete(h.tallies.known, t.days)
			t.stop()
			ending = append(ending, t)
		}
	}
	return ending
}

// tally counts some days for all who follow it. It is a subscriber like any other: after any
// trouble it is told a SNAPSHOT, counts again, and tells what differs.
type tally struct {
	days
	zone  *time.Location
	sub   *Subscription
	stop  context.CancelFunc
	ended chan struct{} // closed when run has returned

	slots map[booking.SlotID]booking.Slot // run's own; none is WITHDRAWN

	mu        sync.Mutex
	err       error   // why it has ended
	revision  int64   // of the newest of counts
	counts    []count // one per day; nil: not counted yet
	followers map[*Counts]struct{}
}

// count is a day's, and in which revision of the tally it became so.
type count struct {
	booking.DaySummary
	revision int64
}

func newTally(d days, zone *time.Location, s *Subscription) *tally {
	t := &tally{days: d, zone: zone, sub: s, ended: make(chan struct{}),
		slots: make(map[booking.SlotID]booking.Slot), followers: make(map[*Counts]struct{})}
	var ctx context.Context
	ctx, t.stop = context.WithCancel(context.Background()) // it ends with its last follower
	go t.run(ctx)
	return t
}

// run counts until ctx or the subscription ends.
func (t *tally) run(ctx context.Context) {
	defer close(t.ended)
	defer t.stop()
	defer t.sub.Close()
	err := t.take(ctx, time.Time{})
	for err == nil {
		begins := t.count(t.sub.hub.clock.now())
		if err = pass(ctx, countPace); err == nil {
			err = t.take(ctx, begins)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = err
	t.tell()
}

// take waits for changes and takes them in, or for the next slot to begin; zero: none will.
func (t *tally) take(ctx context.Context, begins time.Time) error {
	until := ctx
	if !begins.IsZero() {
		const most = time.Minute // somebody may set clocks
		var cancel context.CancelFunc
		until, cancel = context.WithTimeout(ctx, min(most, begins.Sub(t.sub.hub.clock.now())))
		defer cancel()
	}
	u, err := t.sub.Next(until)
	if err != nil {
		if until.Err() != nil && ctx.Err() == nil {
			return nil // time to count again
		}
		return err
	}
	if u.Kind == Snapshot {
		clear(t.slots)
	}
	for _, slot := range u.Slots {
		t.slots[slot.ID] = slot
		if slot.Status == booking.SlotWithdrawn {
			delete(t.slots, slot.ID)
		}
	}
	return nil
}

// count counts the days as they are at now and tells what differs. It returns when the next of the
// slots begins; zero: none will.
func (t *tally) count(now time.Time) (begins time.Time) {
	sums := make([]booking.DaySummary, t.n)
	at := make(map[booking.Date]*booking.DaySummary, t.n)
	for i := range sums {
		sums[i].Date = t.from.AddDays(i)
		at[sums[i].Date] = &sums[i]
	}
	for _, slot := range t.slots {
		sum := at[booking.DateOf(slot.StartAt, t.zone)]
		if sum == nil || slot.Status != booking.SlotOpen || !slot.StartAt.After(now) {
			continue
		}
		sum.Free += slot.Free()
		sum.Capacity += slot.Capacity
		if slot.Free() > 0 && (sum.FirstFree == nil || slot.StartAt.Before(*sum.FirstFree)) {
			sum.FirstFree = &slot.StartAt
		}
		if begins.IsZero() || slot.StartAt.Before(begins) {
			begins = slot.StartAt
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	first, changed := t.counts == nil, false
	if first {
		t.counts = make([]count, t.n)
	}
	for i, sum := range sums {
		if first || !same(sum, t.counts[i].DaySummary) {
			t.counts[i] = count{sum, t.revision + 1}
			changed = true
		}
	}
	if changed {
		t.revision++
		t.tell()
	}
	return begins
}

func same(a, b booking.DaySummary) bool {
	if a.FirstFree != nil && b.FirstFree != nil && a.FirstFree.Equal(*b.FirstFree) {
		a.FirstFree = b.FirstFree
	}
	return a == b
}

func (t *tally) tell() {
	for c := range t.followers {
		c.signal()
	}
}

// since returns the days that changed after a revision, and the one they are of.
func (t *tally) since(told int64) (changed []booking.DaySummary, revision int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, c := range t.counts {
		if c.revision > told {
			changed = append(changed, c.DaySummary)
		}
	}
	return changed, t.revision, t.err
}
