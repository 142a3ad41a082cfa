package booking

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Group commit: calls that arrive while a transaction is in flight are executed together in
// the next one. There is no timer and no wait when idle; the batch grows by itself while the
// one before it commits.
//
//   - A slot's calls form a line, in order of arrival. A line is in one batch at a time, so
//     the order holds; a batch takes calls from the lines in turn, so a crowd at one slot does
//     not starve the others.
//   - A slot that another process has locked is skipped: its line rests for skipRest and tries
//     again; after skipPatience it gets a transaction of its own, which waits for the lock.
//     So one stuck row stalls nobody else.
//   - The number of waiting calls is bounded for each slot and for all. Beyond: OVERLOADED.
const (
	batchMost    = 128                   // calls in a batch
	batchWorkers = 2                     // batches in flight
	secondWorker = 32                    // ready calls from which a second batch pays
	lineMost     = 1024                  // calls waiting for one slot
	queueMost    = 16384                 // calls waiting for all slots
	skipRest     = 2 * time.Millisecond  // before a locked slot is tried again
	skipPatience = 20 * time.Millisecond // before it goes to the slow lane
	clearMost    = 4                     // lapsed holds in the way of a call, one after the other, before it is busy
	slowLanes    = 4                     // transactions that wait for a lock
	slowPatience = time.Second           // for a slow lane to become free
	lockPatience = 3 * time.Second       // for the locks that the calls of one batch need one by one
)

// call is one booking or hold on its way. Until it is taken into a batch the batcher owns it; the
// transaction writes the answer, and then closes done.
type call struct {
	request BookRequest
	actor   Actor
	hold    bool
	hash    []byte
	done    chan struct{}
	joined  int  // how many callers wait, under the batcher's lock; at 0 nobody does
	busy    bool // a slot it needs was locked by another: to be tried again
	cleared int  // how often what had lapsed in its way has been expired
	room    bool // a look-up found a free place
	booking Booking
	err     error
}

func (c *call) answer(b Booking, err error) {
	c.booking, c.err = b, err
	close(c.done)
}

// scope is what an idempotency key belongs to.
type scope struct{ caller, key string }

func (c *call) scope() scope { return scope{c.actor.Caller(), c.request.Key} }

// line is the calls that wait for one slot.
type line struct {
	slot    SlotID
	calls   []*call
	resting bool      // in a batch, in the slow lane or between two tries: not to be taken
	skipped time.Time // since when it has been skipped, or zero
}

// batcher executes bookings together.
type batcher struct {
	// execute runs the calls in one transaction and answers them; unless wait is set, it may
	// leave some unanswered and busy. An error means that the database could not be worked with.
	execute func(calls []*call, wait bool) error

	mu      sync.Mutex
	lines   map[SlotID]*line // those with calls waiting, or resting
	ready   []*line          // those that can be taken, in turn
	waiting int              // calls in lines
	workers int
	joining map[scope]*call // calls that another with the same key and request may join
	slow    chan struct{}
}

func newBatcher(execute func(calls []*call, wait bool) error) *batcher {
	return &batcher{
		execute: execute,
		lines:   map[SlotID]*line{},
		joining: map[scope]*call{},
		slow:    make(chan struct{}, slowLanes),
	}
}

var errOverloaded = &Error{Code: Overloaded, Message: busyMessage, RetryAfter: time.Second}

// book queues the call and waits for its answer. A caller that gives up leaves: its call is
// dropped if it was still waiting and nobody else has joined it.
func (b *batcher) book(ctx context.Context, c *call) (Booking, error) {
	c, joined, err := b.enqueue(c)
	if err != nil {
		return Booking{}, err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		b.mu.Lock()
		c.joined--
		b.mu.Unlock()
		return Booking{}, ctx.Err()
	}
	booking := c.booking
	if joined && c.err == nil {
		booking.Replayed = true
	}
	return booking, c.err
}

// enqueue puts the call at the end of its slot's line, or lets its caller wait for the same
// call, made a moment ago. One that is answered is over: what refused it may be gone.
func (b *batcher) enqueue(c *call) (_ *call, joined bool, _ error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.joining[c.scope()]
	if first != nil && string(first.hash) == string(c.hash) && first.joined > 0 && !first.isAnswered() {
		first.joined++
		return first, true, nil
	}
	l := b.lines[c.request.Slot]
	if l == nil {
		l = &line{slot: c.request.Slot}
		b.lines[l.slot] = l
	}
	if len(l.calls) >= lineMost || b.waiting >= queueMost {
		b.forget(l)
		return nil, false, errOverloaded
	}
	c.joined = 1
	b.joining[c.scope()] = c
	l.calls = append(l.calls, c)
	b.waiting++
	if len(l.calls) == 1 && !l.resting {
		b.ready = append(b.ready, l)
	}
	b.hire()
	return c, false, nil
}

// forget drops a line that nobody waits in. The caller holds the lock.
func (b *batcher) forget(l *line) {
	if len(l.calls) == 0 && !l.resting {
		delete(b.lines, l.slot)
	}
}

// hire starts a worker if one is needed: the first at once, the second when it pays. The
// caller holds the lock.
func (b *batcher) hire() {
	if len(b.ready) > 0 && (b.workers == 0 || b.workers < batchWorkers && b.waiting >= secondWorker) {
		b.workers++
		go b.work()
	}
}

// work runs batches until nothing is ready.
func (b *batcher) work() {
	for {
		b.mu.Lock()
		calls, lines := b.take()
		if len(calls) == 0 {
			b.workers--
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		err := b.execute(calls, false)
		b.finish(calls, lines, err)
	}
}

// take fills a batch from the ready lines in turn: one call of each, then again of those until
// the batch is full. The caller holds the lock.
func (b *batcher) take() (calls []*call, lines []*line) {
	for len(b.ready) > 0 && len(calls) < batchMost {
		l := b.ready[0]
		b.ready = b.ready[1:]
		if c := b.next(l); c != nil {
			l.resting = true
			calls, lines = append(calls, c), append(lines, l)
		} else {
			b.forget(l)
		}
	}
	for more := true; more; {
		more = false
		for _, l := range lines {
			if len(calls) == batchMost {
				return calls, lines
			}
			if c := b.next(l); c != nil {
				calls, more = append(calls, c), true
			}
		}
	}
	return calls, lines
}

// next takes the first call of the line that somebody still waits for. The caller holds the lock.
func (b *batcher) next(l *line) *call {
	for len(l.calls) > 0 {
		c := l.calls[0]
		l.calls[0] = nil
		l.calls = l.calls[1:]
		b.waiting--
		if c.joined > 0 {
			return c
		}
		b.leave(c)
	}
	return nil
}

// leave ends the time in which others may join the call. The caller holds the lock.
func (b *batcher) leave(c *call) {
	if b.joining[c.scope()] == c {
		delete(b.joining, c.scope())
	}
}

// finish puts the lines of a batch back, each with the calls that were skipped at its head. If
// the database could not be worked with, those who wait are told so now and not one by one.
func (b *batcher) finish(calls []*call, lines []*line, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	again := map[SlotID][]*call{}
	for _, c := range calls {
		if c.busy {
			c.busy = false
			again[c.request.Slot] = append(again[c.request.Slot], c)
		} else {
			b.leave(c)
		}
	}
	for _, l := range lines {
		skipped := again[l.slot]
		if len(skipped) == 0 {
			l.skipped = time.Time{}
			b.awake(l)
			continue
		}
		l.calls = append(skipped, l.calls...)
		b.waiting += len(skipped)
		if l.skipped.IsZero() {
			l.skipped = time.Now()
		}
		if time.Since(l.skipped) < skipPatience {
			time.AfterFunc(skipRest, func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				b.awake(l)
			})
		} else {
			go b.waitFor(l)
		}
	}
	if err != nil {
		for _, l := range b.ready {
			b.refuse(l, withoutEffect(err))
			b.forget(l)
		}
		b.ready = nil
	}
	b.hire()
}

// awake makes a line that has rested ready again. The caller holds the lock.
func (b *batcher) awake(l *line) {
	l.resting = false
	if len(l.calls) > 0 {
		b.ready = append(b.ready, l)
		b.hire()
	}
	b.forget(l)
}

// waitFor is the slow lane: a transaction for one line alone, which waits for the slot's lock
// as long as lock_timeout allows. If that is not enough, everybody in the line is refused.
func (b *batcher) waitFor(l *line) {
	var calls []*call
	err := error(errOverloaded)
	select {
	case b.slow <- struct{}{}:
		b.mu.Lock()
		for c := b.next(l); c != nil; c = b.next(l) {
			if calls = append(calls, c); len(calls) == batchMost {
				break
			}
		}
		b.mu.Unlock()
		err = b.execute(calls, true)
		<-b.slow
	case <-time.After(slowPatience):
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range calls {
		b.leave(c)
	}
	if err != nil {
		b.refuse(l, withoutEffect(err))
	}
	l.skipped = time.Time{}
	b.awake(l)
}

// refuse turns away all who wait in the line. The caller holds the lock.
func (b *batcher) refuse(l *line, err error) {
	for c := b.next(l); c != nil; c = b.next(l) {
		b.leave(c)
		c.answer(Booking{}, err)
	}
}

// withoutEffect is the error of a call that was not even tried, when the one before it failed.
func withoutEffect(err error) error {
	var refused *Error
	if errors.As(err, &refused) && refused.Code == OutcomeUnknown {
		return &Error{Code: Unavailable, Message: awayMessage, RetryAfter: refused.RetryAfter, Cause: err}
	}
	return err
}
