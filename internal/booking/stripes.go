package booking

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Operations that are a transaction of their own (all but what goes through the batcher) take turns
// in the process if they are about the same slot or the same appointment, so that those that would
// wait for one another in the database, each on a connection, wait here without one. That only spares
// the database: it decides, and two instances know nothing of each other's turns.
//
//   - An operation takes all its turns at once, before it asks for a connection, and gives them back
//     when its transaction is over. It takes none while it has some.
//   - A turn is one of a fixed number of stripes. Two keys on one stripe only delay each other.
//   - Stripes are taken in one order, so no two operations wait for each other.
//   - Few wait, and not for long: beyond, OVERLOADED. Fairness is not promised.
const (
	stripeCount = 1024
	stripeMost  = 4096 // operations that wait
)

// key is what an operation is about.
type key struct {
	kind byte
	id   int64
}

// The kinds of key.
const (
	keySlot        = 's'
	keyDoctor      = 'd' // whose calendar is written
	keyAppointment = 'a' // where the slot is not known
)

// targetKey is that of where something is to be: a slot, or a time.
func targetKey(slot SlotID, t *TimeTarget) key {
	if t != nil {
		return key{keyDoctor, int64(t.Doctor)}
	}
	return key{keySlot, int64(slot)}
}

// stripes are the turns of one process. Nil gives everybody their turn at once.
type stripes struct {
	seed     maphash.Seed
	patience time.Duration
	waiting  atomic.Int64
	held     []chan struct{} // full: somebody has it
}

func newStripes(count int, patience time.Duration) *stripes {
	s := &stripes{seed: maphash.MakeSeed(), patience: patience, held: make([]chan struct{}, count)}
	for i := range s.held {
		s.held[i] = make(chan struct{}, 1)
	}
	return s
}

// take waits for its turn with all the keys, and returns how to give it back, once. It returns an
// error if that takes too long, too many wait, or ctx ends.
func (s *stripes) take(ctx context.Context, keys ...key) (give func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	return s.lock(ctx, s.order(keys))
}

// order is the keys' stripes, each once.
func (s *stripes) order(keys []key) []int {
	taken := make([]int, len(keys))
	for i, k := range keys {
		taken[i] = int(maphash.Comparable(s.seed, k) % uint64(len(s.held)))
	}
	slices.Sort(taken)
	return slices.Compact(taken)
}

// lock takes stripes in the order given: all or none.
func (s *stripes) lock(ctx context.Context, taken []int) (give func(), err error) {
	defer s.waiting.Add(-1)
	if s.waiting.Add(1) > stripeMost {
		return nil, errOverloaded
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.patience, errOverloaded)
	defer cancel()
	for n, i := range taken {
		select {
		case s.held[i] <- struct{}{}:
		case <-ctx.Done():
			s.unlock(taken[:n])
			return nil, context.Cause(ctx)
		}
	}
	return func() { s.unlock(taken) }, nil
}

func (s *stripes) unlock(taken []int) {
	for _, i := range taken {
		<-s.held[i]
	}
}

// places remembers which slots appointments are in, which never changes. Ids are given out in order,
// so a ring of them has the last ones. What is not in it is no harm: an operation then takes turns
// with those on the same appointment only.
type places struct {
	mu   sync.Mutex
	ring []place
}

type place struct {
	appointment AppointmentID
	slot        SlotID
}

// placeCount is how many appointments are remembered: a megabyte.
const placeCount = 1 << 16

// note remembers the appointments of outcomes.
func (p *places) note(outcomes ...outcome) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range outcomes {
		if a := o.appointment; a.ID > 0 {
			p.ring[int(a.ID)%len(p.ring)] = place{a.ID, a.SlotID}
		}
	}
}

// key is that of the appointment's slot, or of the appointment if the slot is not known.
func (p *places) key(id AppointmentID) key {
	if p != nil && id > 0 {
		p.mu.Lock()
		defer p.mu.Unlock()
		if known := p.ring[int(id)%len(p.ring)]; known.appointment == id {
			return key{keySlot, int64(known.slot)}
		}
	}
	return key{keyAppointment, int64(id)}
}
