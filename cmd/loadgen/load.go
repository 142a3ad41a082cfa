package main

import (
	"context"
	"sync"
	"time"
)

// kind is how a call was answered, where that makes a difference to what is measured.
type kind int

const (
	plain   kind = iota // what the scenario is about
	won                 // a place
	refused             // by the rules
	repeat              // a call that was sent before
	kinds
)

// tally is what came of calls.
type tally struct {
	latency  [kinds]histogram
	errors   int64 // calls that got no answer, or a wrong one
	examples []string
	acks     []ack
}

// ack is an appointment that a caller was told of.
type ack struct {
	call        int // its number among all calls
	slot        int64
	appointment int64
}

const maxExamples = 3

func (t *tally) add(k kind, latency time.Duration, err error) {
	if err != nil {
		t.fail(err)
		return
	}
	t.latency[k].add(latency)
}

func (t *tally) fail(err error) {
	t.errors++
	if len(t.examples) < maxExamples {
		t.examples = append(t.examples, err.Error())
	}
}

func (t *tally) merge(other *tally) {
	for k := range t.latency {
		t.latency[k].merge(&other.latency[k])
	}
	t.errors += other.errors
	t.examples = append(t.examples, other.examples[:min(len(other.examples), maxExamples-len(t.examples))]...)
	t.acks = append(t.acks, other.acks...)
}

// of is all latencies of some kinds.
func (t *tally) of(ks ...kind) histogram {
	var h histogram
	for _, k := range ks {
		h.merge(&t.latency[k])
	}
	return h
}

// result is a tally with the time it took.
type result struct {
	tally
	seconds float64
	cpu     time.Duration // that the servers used
}

// figures is how good it was for some kinds of call. CPU and errors are everybody's.
func (r *result) figures(ks ...kind) figures {
	h := r.of(ks...)
	f := figures{PerSecond: float64(h.count) / r.seconds, P50: h.quantile(0.5), P99: h.quantile(0.99), Errors: r.errors}
	if h.count > 0 {
		f.CPU = float64(r.cpu.Microseconds()) / float64(h.count)
	}
	return f
}

// caller is one who calls, over a connection of their own.
type caller struct {
	index   int // from 0
	conn    *conn
	request request
	random  random
	tally
}

func newCaller(address string, index int) *caller {
	return &caller{index: index, conn: newConn(address), random: random(index)}
}

// closedLoop has a number of callers who call again as soon as they are answered.
type closedLoop struct {
	address      string
	callers      int
	warm, window time.Duration        // what ends within the window counts
	cpu          func() time.Duration // used so far by the servers
	call         func(ctx context.Context, c *caller, n int) (kind, error)
}

// run returns when all callers have been answered.
func (l closedLoop) run(ctx context.Context) result {
	begin := time.Now().Add(l.warm)
	end := begin.Add(l.window)
	callers := make([]*caller, l.callers)
	var wg sync.WaitGroup
	for i := range callers {
		callers[i] = newCaller(l.address, i)
		wg.Go(func() { l.work(ctx, callers[i], begin, end) })
	}
	sleepUntil(ctx, begin)
	before := l.cpu()
	sleepUntil(ctx, end)
	r := result{seconds: l.window.Seconds(), cpu: l.cpu() - before}
	wg.Wait()
	for _, c := range callers {
		r.merge(&c.tally)
	}
	return r
}

func (l closedLoop) work(ctx context.Context, c *caller, begin, end time.Time) {
	defer c.conn.close()
	start := time.Now()
	for n := 0; start.Before(end) && ctx.Err() == nil; n++ {
		k, err := l.call(ctx, c, n)
		now := time.Now()
		switch {
		case err != nil:
			c.fail(err)
			sleepUntil(ctx, now.Add(10*time.Millisecond)) // whoever is refused a connection does not turn faster
			now = time.Now()
		case now.After(begin) && now.Before(end):
			c.add(k, now.Sub(start), nil)
		}
		start = now
	}
}

// openLoop sends calls at a rate, whether or not those before them were answered. The latency is
// counted from the moment a call was due, so a stall of the server shows in all who came meanwhile,
// and so does a generator that can't keep up.
type openLoop struct {
	address string
	rate    float64 // per second; they come at random
	length  time.Duration
	callers int // connections; calls wait for a free one
	seed    random
	call    func(ctx context.Context, c *caller, n int) (kind, error)
}

type arrival struct {
	n   int
	due time.Time
}

// run returns when all calls that were due within the length have been answered.
func (l openLoop) run(ctx context.Context) result {
	begin := time.Now()
	arrivals := make(chan arrival, int(l.rate*l.length.Seconds())+1000) // so that who stalls stalls nobody else
	callers := make([]*caller, l.callers)
	var wg sync.WaitGroup
	for i := range callers {
		callers[i] = newCaller(l.address, i)
		wg.Go(func() {
			defer callers[i].conn.close()
			for a := range arrivals {
				k, err := l.call(ctx, callers[i], a.n)
				callers[i].add(k, time.Since(a.due), err)
			}
		})
	}
	l.send(ctx, begin, arrivals)
	wg.Wait()
	r := result{seconds: max(time.Since(begin), l.length).Seconds()}
	for _, c := range callers {
		r.merge(&c.tally)
	}
	return r
}

// leastNap lets calls that are due within it go together. It counts against the server, and is little
// against what waking for each of thousands a second would take from it.
const leastNap = time.Millisecond

func (l openLoop) send(ctx context.Context, begin time.Time, arrivals chan<- arrival) {
	defer close(arrivals)
	random := l.seed
	at := 0.0 // seconds after begin
	for n := 0; ctx.Err() == nil; n++ {
		at += random.gap() / l.rate
		after := time.Duration(at * float64(time.Second))
		if after >= l.length {
			return
		}
		due := begin.Add(after)
		if wait := time.Until(due); wait > 0 {
			nap(max(wait, leastNap))
		}
		arrivals <- arrival{n, due}
	}
}

// sleepUntil waits for a moment or the end of ctx.
func sleepUntil(ctx context.Context, moment time.Time) {
	select {
	case <-time.After(time.Until(moment)):
	case <-ctx.Done():
	}
}
