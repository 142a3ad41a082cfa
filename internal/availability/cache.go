package availability

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/singleflight"

	"openslot/internal/booking"
)

const (
	listLife    = 4 * time.Second       // how old a list gets, wherever it was kept
	listsMost   = 1 << 15               // lists in memory
	readTimeout = 5 * time.Second       // for the database
	listSkew    = 20 * time.Millisecond // by how much the age of a list from Redis may be wrong
	feedLag     = time.Second           // from a commit until it is announced, with a wide margin
)

// Cache keeps lists in memory and in Redis, so that the database reads each once in a while and not
// once per reader:
//
//	reader ──▶ memory ──▶ Redis ──▶ PostgreSQL      for those who wait for the same list, once
//
// A list is good until the feed tells of a change in it, the next of its slots begins or opens, a
// hold in it lapses, or it is listLife old: whichever comes first, and counted from the moment at
// which its read from the database began. A read that a change has overtaken is answered with and not kept, and
// nobody joins a read that began before the last change they could know of.
//
// A list that has become old while the feed went on and told of no change need not be read again:
// it is as it was at the moment up to which the feed has told everything, and is good for listLife
// from then on. So a feed that has died unnoticed makes no list older than listLife either.
//
// While the feed is away, changes are not heard of, and lists are as old as listLife; Redis is
// not asked then, because what others left there can't be held against the feed.
//
// A Cache may be used by any number of goroutines.
type Cache struct {
	redis    *Redis
	caughtUp func() time.Time
	lists    *lru.Cache[listKey, list]
	flights  singleflight.Group
	changes  changes
	clock    atomic.Pointer[dbClock]
	ids      atomic.Int64 // of lists, the last
}

// listKey names a list: a day with its slots, or what is left of days.
type listKey struct {
	doctor booking.DoctorID
	from   booking.Date
	days   int
	slots  bool // of one day
}

func (k listKey) String() string {
	kind := "days"
	if k.slots {
		kind = "slots"
	}
	return fmt.Sprintf("openslot:%s:{%d}:%s:%d", kind, k.doctor, k.from, k.days)
}

// list is an answer, and when it is good.
type list struct {
	value any
	id    int64     // of how it came here: lists with the same one say the same
	read  time.Time // when its read began: it lacks nothing that was committed before
	ends  time.Time // when the next of its slots begins or opens
	until time.Time
}

// NewCache makes a cache. caughtUp says up to which moment the feed of changes has told everything,
// without cost; zero = it is away. Resync, Changed and Stale are how it reaches the cache. redis may be nil.
func NewCache(redis *Redis, caughtUp func() time.Time) *Cache {
	lists, err := lru.New[listKey, list](listsMost)
	if err != nil {
		panic(err) // of a size below 1
	}
	return &Cache{redis: redis, caughtUp: caughtUp, lists: lists, changes: changes{began: time.Now()}}
}

// Resync is told when changes may have been missed, and what the database's clock shows.
func (c *Cache) Resync(_ int64, since time.Time) {
	c.clock.Store(&dbClock{shows: since, at: time.Now()})
	c.changes.all.now(c.changes.began)
}

// Changed is told of new states of slots.
func (c *Cache) Changed(slots []booking.Slot) {
	for _, s := range slots {
		c.changes.of(s.DoctorID, epochDay(s.StartAt)).now(c.changes.began)
	}
}

// Stale is told when changes of one doctor may have been missed.
func (c *Cache) Stale(doctor booking.DoctorID, _ time.Time) {
	c.changes.doctor(doctor).now(c.changes.began)
}

// good reports whether the list can be answered with.
func (c *Cache) good(k listKey, l list) bool {
	return time.Now().Before(l.until) && c.changes.last(k).Before(l.read)
}

// find returns the list from memory, if it can be answered with.
func (c *Cache) find(k listKey) (list, bool) {
	l, ok := c.lists.Get(k)
	if !ok || c.good(k, l) {
		return l, ok
	}
	return c.renew(k, l)
}

// renew makes a list that has become old one of the moment up to which the feed has told everything.
func (c *Cache) renew(k listKey, l list) (list, bool) {
	caughtUp, clock := c.caughtUp(), c.clock.Load() // before asking for changes
	if caughtUp.IsZero() || clock == nil || !c.changes.last(k).Before(l.read) {
		return list{}, false
	}
	at := caughtUp.Add(-feedLag)
	until := at.Add(listLife)
	if l.ends.Before(until) {
		until = l.ends
	}
	if !at.After(l.read) || !time.Now().Before(until) {
		return list{}, false
	}
	if day, ok := l.value.(Day); ok {
		day.AsOf = clock.when(at).UTC()
		l.value = day
	}
	l.read, l.until = at, until
	c.lists.Add(k, l)
	return l, true
}

// fetch returns a list from wherever it is good. read reads it from the database, and says how
// long it is good at most by the times in it.
func fetch[T any](ctx context.Context, c *Cache, k listKey, read func(context.Context) (T, time.Duration, error)) (T, error) {
	if l, ok := c.find(k); ok {
		note(ctx, c, k, l)
		return l.value.(T), nil
	}
	// Whoever knows of a later change waits for another flight.
	flight := k.String() + strconv.FormatInt(c.changes.last(k).UnixNano(), 36)
	landed := c.flights.DoChan(flight, func() (any, error) {
		if l, ok := c.find(k); ok { // landed while we were on our way here
			return l, nil
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readTimeout)
		defer cancel()
		if l, ok := fromRedis[T](ctx, c, k); ok {
			l.id = c.ids.Add(1)
			c.lists.Add(k, l)
			return l, nil
		}
		began := time.Now()
		value, life, err := read(ctx)
		if err != nil {
			return nil, err
		}
		l := list{value: value, id: c.ids.Add(1), read: began, ends: after(began, life), until: began.Add(min(life, listLife))}
		if c.good(k, l) {
			c.lists.Add(k, l)
			toRedis[T](ctx, c, k, l)
		}
		return l, nil
	})
	select {
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	case r := <-landed:
		if r.Err != nil {
			var none T
			return none, r.Err
		}
		l := r.Val.(list)
		note(ctx, c, k, l)
		return l.value.(T), nil
	}
}

// after is t + d, or the end of time.
func after(t time.Time, d time.Duration) time.Time {
	return t.Add(min(d, 100*365*24*time.Hour))
}

// stored is a list as Redis has it.
type stored[T any] struct {
	Of    string // its key: what is found elsewhere is none of ours
	Read  int64  // by the database's clock, in microseconds since 1970
	Value T
}

// toRedis leaves a list to others. Nobody waits for it.
func toRedis[T any](ctx context.Context, c *Cache, k listKey, l list) {
	clock := c.clock.Load()
	if !c.redis.usable() || clock == nil {
		return
	}
	text, err := json.Marshal(stored[T]{Of: k.String(), Read: clock.when(l.read).UnixMicro(), Value: l.value.(T)})
	life := time.Until(l.until).Milliseconds()
	if err != nil || life <= 0 {
		return
	}
	c.redis.send([]redis.Cmder{redis.NewStatusCmd(context.WithoutCancel(ctx), "set", k.String(), text, "px", life)})
}

// fromRedis finds a list that another instance has read and that no change has overtaken. How old
// it is is said by what is left of its life in Redis and by the time written in it; the worse holds.
func fromRedis[T any](ctx context.Context, c *Cache, k listKey) (list, bool) {
	clock := c.clock.Load()
	if !c.redis.usable() || clock == nil || c.caughtUp().IsZero() {
		return list{}, false
	}
	asked := time.Now()
	// In this order: of two values the older one's life is taken for that of the newer one.
	life := redis.NewDurationCmd(ctx, time.Millisecond, "pttl", k.String())
	text := redis.NewStringCmd(ctx, "get", k.String())
	if !c.redis.do(ctx, c.redis.until(asked), life, text) || text.Err() != nil || life.Err() != nil || life.Val() > listLife {
		return list{}, false
	}
	var s stored[T]
	decoder := json.NewDecoder(bytes.NewReader([]byte(text.Val())))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil || s.Of != k.String() {
		return list{}, false
	}
	age := max(listLife-life.Val(), clock.when(asked).Sub(time.UnixMicro(s.Read))) + listSkew
	until := asked.Add(listLife - age)
	l := list{value: s.Value, read: asked.Add(-age), ends: until, until: until}
	return l, age >= listSkew && c.good(k, l)
}

// changes knows when the feed last told of a change, by doctor and day. What a place in its table is
// about is not exact: a change of the doctor 32,768 numbers on, or on a day 31 days on, seems to be
// this one's too, which costs a read.
type changes struct {
	began   time.Time
	all     moment
	doctors [1 << 15]struct {
		any  moment     // on whatever day
		days [31]moment // side by side, as a list asks for them
	}
}

// moment is a time after changes.began, or zero.
type moment struct{ ns atomic.Int64 }

func (m *moment) now(began time.Time) { m.ns.Store(int64(time.Since(began))) }

func (c *changes) doctor(d booking.DoctorID) *moment {
	return &c.doctors[uint64(d)%uint64(len(c.doctors))].any
}

func (c *changes) of(d booking.DoctorID, day int64) *moment {
	days := &c.doctors[uint64(d)%uint64(len(c.doctors))].days
	return &days[uint64(day)%uint64(len(days))]
}

// last is when something of the list has last changed. Its days are the doctor's; in UTC they may
// begin on the day before and end on the day after.
func (c *changes) last(k listKey) time.Time {
	ns := max(c.all.ns.Load(), c.doctor(k.doctor).ns.Load())
	first := epochDay(time.Date(k.from.Year, k.from.Month, k.from.Day, 0, 0, 0, 0, time.UTC))
	for day := first - 1; day <= first+int64(k.days); day++ {
		ns = max(ns, c.of(k.doctor, day).ns.Load())
	}
	return c.began.Add(time.Duration(ns))
}

func epochDay(t time.Time) int64 { return t.Unix() / (24 * 60 * 60) }

// dbClock is what the database's clock shows, as far as we know.
type dbClock struct{ shows, at time.Time }

func (c *dbClock) when(t time.Time) time.Time { return c.shows.Add(t.Sub(c.at)) }

// Trace is what an answer was made of: it tells whether the answer is still good. One with a list
// that did not come through a [Cache] never is.
type Trace struct {
	mu    sync.Mutex
	parts []part
	until time.Time
}

type part struct {
	cache *Cache
	key   listKey
	list  list
}

type traceKey struct{}

// WithTrace returns a context in which lists are traced.
func WithTrace(ctx context.Context) (context.Context, *Trace) {
	t := &Trace{until: time.Now().Add(listLife)}
	return context.WithValue(ctx, traceKey{}, t), t
}

// untraced says that a list was read past the cache, so that nobody knows for how long it is good.
func untraced(ctx context.Context) {
	if t, ok := ctx.Value(traceKey{}).(*Trace); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.until = time.Time{}
	}
}

func note(ctx context.Context, c *Cache, k listKey, l list) {
	if t, ok := ctx.Value(traceKey{}).(*Trace); ok {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.parts = append(t.parts, part{c, k, l})
	}
}

// Good reports whether everything in the answer is still as it was, as far as is known, and
// nothing in it is older than lists may get.
func (t *Trace) Good() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.parts {
		if !p.cache.good(p.key, p.list) {
			return false
		}
	}
	return time.Now().Before(t.until)
}

// Renewed returns the trace of the same answer as it would be made now, and the AsOf of its first day
// (zero if it has none). It is false if the answer might be another one, or would have to be read to
// know. It speaks of the lists alone: an answer with anything else in it can't be renewed.
func (t *Trace) Renewed() (renewed *Trace, asOf time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	renewed = &Trace{parts: make([]part, 0, len(t.parts)), until: time.Now().Add(listLife)}
	for _, p := range t.parts {
		l, ok := p.cache.find(p.key)
		if !ok || l.id != p.list.id {
			return nil, time.Time{}, false
		}
		if day, ok := l.value.(Day); ok && asOf.IsZero() {
			asOf = day.AsOf
		}
		renewed.parts = append(renewed.parts, part{p.cache, p.key, l})
	}
	return renewed, asOf, len(t.parts) > 0 && !t.until.IsZero()
}
