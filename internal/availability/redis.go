package availability

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// How long Redis is given.
const (
	redisPatience = 50 * time.Millisecond // for an answer; whoever waits goes on without one
	dialPatience  = 500 * time.Millisecond
	firstProbe    = 100 * time.Millisecond // after it failed, until it is tried again
	lastProbe     = time.Second            // the same if it fails again and again
	settledAfter  = 10 * time.Second       // without trouble, until a failure is a first one again
	quietFor      = 30 * time.Second       // between two lines in the log about the same trouble
	flightMost    = 512                    // commands sent together
	waitingMost   = 8192                   // commands that wait to be sent
)

// Redis is shared memory of all instances that may be away, slow or wrong. Nothing is asked of
// it that can't be done without; it costs a caller at most redisPatience, and after that nothing
// until it answers in time again:
//
//	       no answer in time, or one that makes it useless
//	sound ────────────────────────────────────────────────▶ away
//	  ▲                                                       │
//	  └───────── a probe writes and is answered in time ──────┘
//
// Commands of callers that come while others are under way go together in the next flight, as
// bookings do; whoever is alone waits for nobody.
//
// Keys name what they belong to in braces, so that a cluster keeps it in one place, and hold no
// personal data.
type Redis struct {
	options  *redis.Options
	patience time.Duration // redisPatience
	log      *slog.Logger
	nonce    string
	count    atomic.Int64
	sound    atomic.Bool // changed to true by Run alone
	trouble  chan error  // why it is not sound any more, for Run

	mu      sync.Mutex
	client  *redis.Client
	waiting []*parcel
	size    int // commands in waiting
	flying  bool
	flights sync.WaitGroup
}

// parcel is commands that go together. Until done is closed they belong to the flight.
type parcel struct {
	commands []redis.Cmder
	answered bool
	done     chan struct{}
}

// silence keeps the client library from writing to stderr whatever happens to a connection.
type silence struct{}

func (silence) Printf(context.Context, string, ...any) {}

var silenced sync.Once

// OpenRedis takes the address of a Redis, as redis://[user:password@]host[:port][/database] (or
// rediss:// for TLS). Nothing is sent before Run runs. log may be nil.
func OpenRedis(address string, log *slog.Logger) (*Redis, error) {
	silenced.Do(func() { redis.SetLogger(silence{}) })
	options, err := redis.ParseURL(address)
	if bad := new(url.Error); errors.As(err, &bad) {
		// It would say the address, password and all.
		err = errors.New("want redis://[user:password@]host[:port][/database]")
	}
	if err != nil {
		return nil, fmt.Errorf("availability: the address of Redis: %w", err)
	}
	options.MaxRetries = -1 // a retry would be a second wait
	options.DialTimeout, options.DialerRetries = dialPatience, 1
	options.ContextTimeoutEnabled = true
	options.PoolSize, options.MinIdleConns = 3, 1
	options.Protocol, options.DisableIdentity = 2, true
	return &Redis{options: options, patience: redisPatience, log: cmp.Or(log, slog.Default()), nonce: rand.Text()[:8], trouble: make(chan error, 1)}, nil
}

// Run keeps the connection until ctx ends, and then returns nil.
func (r *Redis) Run(ctx context.Context) error {
	defer r.close()
	r.options.ReadTimeout, r.options.WriteTimeout, r.options.PoolTimeout = r.patience, r.patience, r.patience
	var said time.Time // when the log was last told of trouble
	told := false      // and has not been told of its end
	for failures := 0; ; failures++ {
		if failures > 0 && !sleep(ctx, min(firstProbe<<min(failures-1, 10), lastProbe)) {
			return nil
		}
		err := r.probe(ctx)
		if err == nil {
			if told {
				told = false
				r.log.Info("Redis answers again")
			}
			began := time.Now()
			r.sound.Store(true)
			select {
			case <-ctx.Done():
				return nil
			case err = <-r.trouble:
			}
			if time.Since(began) > settledAfter {
				failures = 0
			}
		}
		if ctx.Err() == nil && time.Since(said) > quietFor {
			said, told = time.Now(), true
			r.log.Warn("going on without Redis", "error", err)
		}
	}
}

// until is when an answer to a question asked at that moment is too late. With a nil *Redis there is
// nothing to wait for.
func (r *Redis) until(asked time.Time) time.Time {
	if r == nil {
		return asked
	}
	return asked.Add(r.patience)
}

// usable reports whether it is worth asking. A nil *Redis never is.
func (r *Redis) usable() bool { return r != nil && r.sound.Load() }

// trip puts an end to the use of Redis, until a probe succeeds.
func (r *Redis) trip(cause error) {
	if r.sound.CompareAndSwap(true, false) {
		r.trouble <- cause // Run waits for it
	}
}

// probe finds out whether Redis can be used, over new connections: the old ones may lead to a
// server that has been replaced.
func (r *Redis) probe(ctx context.Context) error {
	client := redis.NewClient(r.options)
	r.mu.Lock()
	old := r.client
	r.client = client
	r.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
	// The first one connects, which takes what it takes; the second is held to what callers expect.
	for _, patience := range []time.Duration{max(dialPatience, r.patience), r.patience} {
		within, cancel := context.WithTimeout(ctx, patience)
		nonce := r.echo()
		said, err := client.Eval(within, probeScript, []string{"openslot:probe:{" + r.nonce + "}"}, nonce).Text()
		cancel()
		if err != nil {
			return err
		}
		if said != nonce {
			return errors.New("the answer is not to what was asked")
		}
	}
	return nil
}

// probeScript writes, which a replica refuses to do.
const probeScript = `redis.call('SET', KEYS[1], ARGV[1], 'PX', 10000) return ARGV[1]`

// echo makes a word for Redis to repeat, so that an answer to something else, or to nothing, is
// not taken for one.
func (r *Redis) echo() string { return fmt.Sprintf("%s-%d", r.nonce, r.count.Add(1)) }

func (r *Redis) close() {
	r.mu.Lock()
	r.sound.Store(false) // no flight begins any more
	r.mu.Unlock()
	r.flights.Wait()
	if r.client != nil {
		_ = r.client.Close()
	}
}

// do sends commands together and reports whether they have been answered, be it with an error
// that concerns the command alone. If not, they must not be touched any more: answers may still
// come.
func (r *Redis) do(ctx context.Context, until time.Time, commands ...redis.Cmder) bool {
	q := r.send(commands)
	if q == nil {
		return false
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-q.done:
		return q.answered
	case <-ctx.Done():
		return false
	case <-timer.C:
		r.trip(fmt.Errorf("no answer within %s", r.patience))
		return false
	}
}

// send puts commands into the next flight; nil if there is none for them.
func (r *Redis) send(commands []redis.Cmder) *parcel {
	if !r.usable() {
		return nil
	}
	q := &parcel{commands: commands, done: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.sound.Load() || r.size+len(commands) > waitingMost {
		return nil
	}
	r.waiting = append(r.waiting, q)
	r.size += len(commands)
	if !r.flying {
		r.flying = true
		r.flights.Go(r.fly)
	}
	return q
}

// fly sends what waits, flight after flight, until nothing does.
func (r *Redis) fly() {
	for {
		r.mu.Lock()
		n, load := 0, 0
		for n < len(r.waiting) && (n == 0 || load+len(r.waiting[n].commands) <= flightMost) {
			load += len(r.waiting[n].commands)
			n++
		}
		parcels, client := r.waiting[:n:n], r.client
		r.waiting = r.waiting[n:]
		r.size -= load
		if n == 0 {
			r.waiting, r.flying = nil, false
		}
		r.mu.Unlock()
		if n == 0 {
			return
		}
		var err error
		if r.sound.Load() {
			if err = exchange(client, parcels, r.patience); err != nil {
				r.trip(err)
			}
		}
		for _, q := range parcels {
			q.answered = err == nil && r.sound.Load()
			close(q.done)
		}
	}
}

// exchange sends the commands of the parcels and reads their answers. An error says that the
// server can't be used, or is none.
func exchange(client *redis.Client, parcels []*parcel, patience time.Duration) (err error) {
	defer func() {
		if problem := recover(); problem != nil { // of the library, at something that is no answer
			err = fmt.Errorf("panic: %v", problem)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	pipe := client.Pipeline()
	for _, q := range parcels {
		if err := pipe.BatchProcess(ctx, q.commands...); err != nil {
			return err
		}
	}
	commands, err := pipe.Exec(ctx)
	var said redis.Error
	if err != nil && !errors.As(err, &said) {
		return err
	}
	for _, c := range commands {
		switch err := c.Err(); {
		case err == nil, errors.Is(err, redis.Nil), redis.HasErrorPrefix(err, "WRONGTYPE"), isUnknownScript(err):
		default: // it is loading, a replica, out of memory …
			return err
		}
	}
	return nil
}

func isUnknownScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// sleep reports false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
