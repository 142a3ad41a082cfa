package live

import (
	"context"
	"sync"
	"time"

	"openslot/internal/booking"
)

// maxKept bounds what a view keeps of changes, in slots. Beyond it a snapshot is cheaper.
const maxKept = 1000

// Subscription is one client's watch on some doctors. Somebody must call Next again and again, or
// Take whenever told to; whatever happens in between is kept in bounded memory.
type Subscription struct {
	hub  *Hub
	from booking.Date
	days int
	wake chan struct{} // holds a token when there may be something to do

	mu     sync.Mutex
	notify func()
	err    error  // why it ended
	views  []view // one per doctor; the slice itself never changes
	cursor int    // the view whose turn it is, so that a busy doctor doesn't hide the others
}

// Next waits for the next update. Errors: that of ctx, after which Next may be called again;
// ErrGoingAway and ErrClosed, after which it is over.
func (s *Subscription) Next(ctx context.Context) (Update, error) {
	for {
		update, ok, err := s.Take()
		if ok || err != nil {
			return update, err
		}
		select {
		case <-ctx.Done():
			return Update{}, ctx.Err()
		case <-s.wake:
		}
	}
}

// Notify has call called when Take may have something, from now on and once at once: for those who
// don't keep a goroutine in Next for each subscription. It is called from any goroutine and must
// return at once, without a call of the subscription or the hub.
func (s *Subscription) Notify(call func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = call
	s.signal()
}

// Take returns the next update, or false if there is none now. It does not wait. Errors:
// ErrGoingAway and ErrClosed, after which it is over. Like Next, one call at a time.
func (s *Subscription) Take() (Update, bool, error) {
	update, ok, begin, err := s.step()
	if len(begin) > 0 {
		// The views said so before the read can begin: what changes from there on is kept.
		s.hub.reads.join(begin)
	}
	return update, ok, err
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
			v.ready, v.base, v.later, v.pending, v.shared = nil, nil, nil, nil, nil
		}
	}
	s.signal()
}

// signal must be called with mu held.
func (s *Subscription) signal() {
	if s.notify != nil {
		s.notify()
		return
	}
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
	shared  *content                        // not yet told, all of it, and nothing else is pending
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
	v.pending, v.shared = nil, nil
}

// offer brings changes of the doctor, each within the range. A view that has told all before keeps
// them as they are, and so tells what others tell; one that fell behind keeps the latest of each slot.
func (v *view) offer(c *content) {
	v.sub.mu.Lock()
	defer v.sub.mu.Unlock()
	if v.sub.err != nil {
		return
	}
	if !v.share(c) {
		v.unshare()
		for i, slot := range c.slots {
			v.change(slot, c.first[i])
		}
	}
	if v.stale || v.shared != nil || len(v.pending) > 0 && !v.reading {
		v.sub.signal()
	}
}

// share keeps changes as they are, if all of them are news and nothing else is.
func (v *view) share(c *content) bool {
	if v.stale || v.reading || v.shared != nil || len(v.pending) > 0 || len(v.later)+len(c.slots) > maxKept {
		return false
	}
	for i, slot := range c.slots {
		if v.judge(slot, c.first[i]) != news {
			return false
		}
	}
	for _, slot := range c.slots {
		v.note(slot)
	}
	v.shared = c
	return true
}

// unshare keeps what was shared by slot, for others to be added.
func (v *view) unshare() {
	if v.shared == nil {
		return
	}
	for _, slot := range v.shared.slots {
		v.keep(slot)
	}
	v.shared = nil
}

// change brings the state of a slot; first is the version of the first one that came with it.
func (v *view) change(slot booking.Slot, first int64) {
	switch {
	case slot.StartAt.Before(v.from) || !slot.StartAt.Before(v.to):
		return
	case v.stale:
		return // the read that will begin shows it
	case v.reading:
		if old, ok := v.pending[slot.ID]; ok && old.Version >= slot.Version {
			return
		}
	default:
		switch v.judge(slot, first) {
		case old:
			return
		case lost:
			v.fall()
			return
		}
		v.note(slot)
	}
	v.keep(slot)
	if len(v.pending) > maxKept || len(v.later) > maxKept {
		v.fall()
	}
}

func (v *view) keep(slot booking.Slot) {
	if v.pending == nil {
		v.pending = make(map[booking.SlotID]booking.Slot)
	}
	v.pending[slot.ID] = slot
}

func (v *view) note(slot booking.Slot) {
	if v.later == nil {
		v.later = make(map[booking.SlotID]told)
	}
	v.later[slot.ID] = told{slot.Version, slot.Status == booking.SlotWithdrawn}
	v.expectOpening(slot)
}

// verdict is what a state of a slot means to a live view.
type verdict int

const (
	old  verdict = iota // told before, or of no interest
	news                // has to be told
	lost                // can't be, to somebody who knows what this view knows: read again
)

func (v *view) judge(slot booking.Slot, first int64) verdict {
	withdrawn := slot.Status == booking.SlotWithdrawn
	if last, ok := v.later[slot.ID]; ok {
		return newsIf(slot.Version > last.version && !(withdrawn && last.gone))
	}
	if version, ok := v.base[slot.ID]; ok {
		return newsIf(slot.Version > version)
	}
	if withdrawn {
		return old // what was never told needs no farewell
	}
	if first > 0 {
		// Not new, and not in the snapshot. Either the snapshot was ahead of the feed and the slot
		// is withdrawn already, or it came back from there: the database knows.
		return lost
	}
	return news
}

func newsIf(newer bool) verdict {
	if newer {
		return news
	}
	return old
}

// deliver brings the snapshot that was asked for.
func (v *view) deliver(s *snapshot) {
	v.sub.mu.Lock()
	defer v.sub.mu.Unlock()
	if v.sub.err != nil {
		return
	}
	kept := v.pending
	v.reading, v.ready, v.base, v.later, v.pending = false, s, s.versions, nil, nil // nothing is shared while reading
	v.opens = time.Time{}
	v.expect(s.opens)
	for _, slot := range kept {
		v.change(slot, slot.Version)
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
		u.Kind, u.Slots, u.AsOf, u.content = Snapshot, v.ready.slots, &v.ready.asOf, &v.ready.content
		v.ready = nil
	case v.shared != nil:
		u.Kind, u.Slots, u.content = Delta, v.shared.slots, v.shared
		v.shared = nil
	case len(v.pending) > 0 && !v.reading:
		u.Kind, u.Slots = Delta, make([]booking.Slot, 0, len(v.pending))
		for _, slot := range v.pending {
			u.Slots = append(u.Slots, slot)
		}
		sortSlots(u.Slots)
		v.pending = nil
	default:
		return Update{}, false
	}
	return u, true
}
