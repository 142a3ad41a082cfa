package graph

import (
	"encoding/json"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/99designs/gqlgen/graphql"

	"openslot/internal/live"
)

// watch is an operation whose updates have a shape. It has no goroutine: the hub says that
// there is something to tell, and the courier tells it.
type watch struct {
	operation    *operation
	shape        *shape
	subscription *live.Subscription
	head         string // of its messages
	state        atomic.Int32
	done         atomic.Bool // nothing is to be told any more
}

// The states of a watch. Whoever makes it queued from idle gives it to the courier; it is in one
// pair of hands at most.
const (
	idle    int32 = iota
	queued        // with the courier, or parked at the socket's wire
	running       // the courier tells what there is
	again         // so, and more may have come since
)

// watch has the courier tell an operation's updates from now on; false if it has ended meanwhile.
func (s *socket) watch(o *operation, f *feed) bool {
	id, err := json.Marshal(o.id)
	if err != nil {
		panic(err) // of a string
	}
	w := &watch{operation: o, shape: f.shape, subscription: f.watched, head: `{"id":` + string(id) + `,"type":"next","payload":`}
	s.mu.Lock()
	current := s.operations[o.id] == o && !s.ended
	if current {
		o.watch = w
	}
	s.mu.Unlock()
	if current {
		w.subscription.Notify(w.wake)
	}
	return current
}

func (w *watch) stop() {
	w.done.Store(true)
	w.subscription.Close()
}

// wake is called when there may be something to tell.
func (w *watch) wake() {
	for {
		switch {
		case w.state.CompareAndSwap(idle, queued):
			w.operation.socket.courier.take(w)
			return
		case w.state.CompareAndSwap(running, again):
			return
		}
		if s := w.state.Load(); s == queued || s == again {
			return
		}
	}
}

// tell tells what there is, and leaves what the wire has no room for to somebody who may wait.
func (w *watch) tell(frame *[]byte) {
	s := w.operation.socket
	for {
		if mine, _ := s.wire.acquireOr(w); !mine {
			return // parked, or over
		}
		w.state.Store(running)
		rest, err := w.write(frame)
		if err == nil && len(rest) > 0 {
			w.state.Store(queued)
			rest = slices.Clone(rest)
			go w.finish(rest)
			return
		}
		s.wire.release()
		if err != nil {
			go w.fail(err)
			return
		}
		if w.state.CompareAndSwap(running, idle) {
			return
		}
		w.state.Store(queued)
	}
}

// errWire means that nothing can be written to the peer any more.
var errWire = errors.New("graph: the peer is gone")

// write writes updates until there are none, or no room. It needs the wire.
func (w *watch) write(frame *[]byte) (rest []byte, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = recovered(w.operation.socket.ctx, problem)
		}
	}()
	for {
		update, ok, err := w.subscription.Take()
		if err != nil || !ok || w.done.Load() {
			return nil, err
		}
		payload := w.shape.payload(&update)
		b := appendHead((*frame)[:0], len(w.head)+len(payload)+1)
		b = append(append(append(b, w.head...), payload...), '}')
		*frame = b
		if rest, err = w.operation.socket.wire.now(b); err != nil {
			return nil, errWire
		}
		w.operation.socket.wrote()
		if len(rest) > 0 {
			return rest, nil
		}
	}
}

// finish waits until the rest of a frame has left, and gives the watch back to the courier.
func (w *watch) finish(rest []byte) {
	s := w.operation.socket
	err := s.wire.wait(rest)
	s.wire.release()
	if err != nil {
		s.cut()
		return
	}
	s.courier.take(w)
}

// fail ends the watch, and what has to end with it.
func (w *watch) fail(err error) {
	s := w.operation.socket
	switch {
	case errors.Is(err, errWire):
		s.cut()
	case errors.Is(err, live.ErrGoingAway):
		s.end(closeGoingAway, goingAway)
	case errors.Is(err, live.ErrClosed):
	default:
		w.stop()
		ctx := graphql.WithOperationContext(s.ctx, &graphql.OperationContext{Headers: s.header()})
		w.operation.fail(ctx, asList(err))
	}
}

// courier tells watches' updates, in goroutines that it has while there is something to tell. It
// never waits for a peer.
type courier struct {
	mu      sync.Mutex
	queue   []*watch
	next    int // in queue
	running int
}

// take takes a watch on, which is queued.
func (c *courier) take(w *watch) {
	c.mu.Lock()
	if len(c.queue) == cap(c.queue) && c.next > len(c.queue)/2 { // rather than grow
		n := copy(c.queue, c.queue[c.next:])
		clear(c.queue[n:])
		c.queue, c.next = c.queue[:n], 0
	}
	c.queue = append(c.queue, w)
	more := c.running < runtime.GOMAXPROCS(0)
	if more {
		c.running++
	}
	c.mu.Unlock()
	if more {
		go c.run()
	}
}

// handful is how many watches are taken off the queue at once.
const handful = 16

func (c *courier) run() {
	var hand [handful]*watch
	frame := make([]byte, 0, 1024)
	for {
		n := c.draw(&hand)
		if n == 0 {
			return
		}
		for _, w := range hand[:n] {
			w.tell(&frame)
		}
	}
}

// draw takes watches off the queue; if there are none, the caller is no longer counted.
func (c *courier) draw(hand *[handful]*watch) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := copy(hand[:], c.queue[c.next:])
	clear(c.queue[c.next : c.next+n])
	c.next += n
	if c.next == len(c.queue) {
		c.queue, c.next = c.queue[:0], 0
	}
	if n == 0 {
		c.running--
	}
	return n
}
