package live

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"openslot/internal/booking"
)

// maxKept bounds what a view keeps of changes, in slots. Beyond it a snapshot is cheaper.
const maxKept = 1000

// Subscription is one client's watch on some doctors. Somebody must call Next again and again;
// whatever happens in between is kept in bounded memory.
type Subscription struct {
	hub  *Hub
	from booking.Date
	days int
	wake chan struct{} // holds a token when there may be something to do

	mu     sync.Mutex
	err    error  // why it ended
	views  []view // one per doctor; the slice itself never changes
	cursor int    // the view whose turn it is, so that a busy doctor doesn't hide the others
}

// Next waits for the next update. Errors: that of ctx, after which Next may be called again;
// ErrGoingAway and ErrClosed, after which it is over.
func (s *Subscription) Next(ctx context.Context) (Update, error) {
	for {
		update, ok, begin, err := s.step()
		if err != nil {
			return Update{}, err
		}
		// The views said so before the read can begin: what changes from there on is kept.
		s.hub.reads.join(begin)
		if ok {
			return update, nil
		}
		select {
		case <-ctx.Done():
			return Update{}, ctx.Err()
		case <-s.wake:
		}
	}
}

// step takes an update if there is one, and the views for which a read has to begin.
func (s *Subscription) step() (update Update, ok bool, begin []*view, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return Update{}, false, nil, s.err
	}
	for i := range s.views {
		if v := &s.views[i]; v.stale && !v.reading {
			v.stale, v.reading, v.epoch = false, true, s.hub.epoch.Load()
			begin = append(begin, v)
		}
	}
	for n := range s.views {
		i := (s.cursor + n) % len(s.views)
		if update, ok = s.views[i].take(); ok {
			s.cursor = i + 1
			break
		}
	}
	return update, ok, begin, nil
}

// Close ends the subscription. It may be called more than once, and while Next waits.
func (s *Subscription) Close() {
	s.end(ErrClosed)
	s.hub.unregister(s)
	s.hub.reads.leave(s)
}

func (s *Subscription) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
		for i := range s.views { // whoever keeps a closed subscription keeps no slots
			v := &s.views[i]
			v.ready, v.base, v.later, v.pending = nil, nil, nil, nil
		}
	}
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// scope is what a view shows: slots of a doctor that start in [from, to), in UTC.
type scope struct {
	doctor   booking.DoctorID
	from, to time.Time
}

// view is a subscription's knowledge of one doctor. Its fields below sub are guarded by sub.mu;
// the scope and the zone never change.
type view struct {
	scope
	zone string
	sub  *Subscription

	stale   bool      // has to be read again, by a read that begins from now on
	reading bool      // such a read was asked for and is not there yet
	epoch   int64     // of the feed when the last read was asked for
	opens   time.Time // when the next slot opens, as far as is known; zero: none will

	ready   *snapshot                       // read but not yet told
	base    map[booking.SlotID]int64        // versions in the last snapshot; shared, never written to
	later   map[booking.SlotID]told         // what was told, or is pending, since then
	pending map[booking.SlotID]booking.Slot // not yet told; while reading: not yet compared with the snapshot
}

// told is the newest state that a subscriber has, or is about to have.
type told struct {
	version int64
	gone    bool // WITHDRAWN
}

// markStale asks for a new snapshot. Changes until that read begins are in it, so none is kept.
func (v *view) markStale() {
	v.sub.mu.Lock()
	defer v.sub.mu.Unlock()
	v.fall()
	v.sub.signal()
}

func (v *view) fall() {
	v.stale = true
	v.pending = nil
}

// offer brings changes of the doctor.
func (v *view) offer(slots []booking.Slot) {
	v.sub.mu.Lock()
	defer v.sub.mu.Unlock()
	if v.sub.err != nil {
		return
	}
	for _, slot := range slots {
		v.change(slot)
	}
	if v.stale || len(v.pending) > 0 && !v.reading {
		v.sub.signal()
	}
}

func (v *view) change(slot booking.Slot) {
	switch {
	case slot.StartAt.Before(v.from) || !slot.StartAt.Before(v.to):
		return
	case v.stale:
		return // the read that will begin shows it
	case v.reading:
		if old, ok := v.pending[slot.ID]; ok && old.Version >= slot.Version {
			return
		}
	case !v.isNews(slot):
		return
	default:
		if v.later == nil {
			v.later = make(map[booking.SlotID]told)
		}
		v.later[slot.ID] = told{slot.Version, slot.Status == booking.SlotWithdrawn}
		v.expectOpening(slot)
	}
	if v.pending == nil {
		v.pending = make(map[booking.SlotID]booking.Slot)
	}
	v.pending[slot.ID] = slot
	if len(v.pending) > maxKept || len(v.later) > maxKept {
		v.fall()
	}
}

// isNews reports whether a live view has to tell this state.
func (v *view) isNews(slot booking.Slot) bool {
	withdrawn := slot.Status == booking.SlotWithdrawn
	if last, ok := v.later[slot.ID]; ok {
		return slot.Version > last.version && !(withdrawn && last.gone)
	}
	if version, ok := v.base[slot.ID]; ok {
		return slot.Version > version
	}
	if withdrawn {
		return false // what was never told needs no farewell
	}
	if slot.Version > 0 {
		// Not new, and not in the snapshot. Either the snapshot was ahead of the feed and the slot
		// is withdrawn already, or it came back from there: the database knows.
		v.fall()
		return false
	}
	return true
}

// deliver brings the snapshot that was asked for.
func (v *view) deliver(s *snapshot) {
	v.sub.mu.Lock()
	defer v.sub.mu.Unlock()
	if v.sub.err != nil {
		return
	}
	kept := v.pending
	v.reading, v.ready, v.base, v.later, v.pending = false, s, s.versions, nil, nil
	v.opens = time.Time{}
	v.expect(s.opens)
	for _, slot := range kept {
		v.change(slot)
	}
	v.sub.signal()
}

// wanted reports whether the view still waits for a snapshot.
func (v *view) wanted() bool {
	v.sub.mu.Lock()
	defer v.sub.mu.Unlock()
	return v.sub.err == nil && v.reading
}

// take removes what is to be told next.
func (v *view) take() (Update, bool) {
	u := Update{DoctorID: v.doctor, From: v.sub.from, Days: v.sub.days, TimeZone: v.zone, Epoch: v.epoch}
	switch {
	case v.ready != nil:
		u.Kind, u.Slots, u.AsOf = Snapshot, v.ready.slots, &v.ready.asOf
		v.ready = nil
	case len(v.pending) > 0 && !v.reading:
		u.Kind, u.Slots = Delta, make([]booking.Slot, 0, len(v.pending))
		for _, slot := range v.pending {
			u.Slots = append(u.Slots, slot)
		}
		slices.SortFunc(u.Slots, func(a, b booking.Slot) int {
			return cmp.Or(a.StartAt.Compare(b.StartAt), cmp.Compare(a.ID, b.ID))
		})
		v.pending = nil
	default:
		return Update{}, false
	}
	return u, true
}
