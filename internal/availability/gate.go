package availability

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"openslot/internal/booking"
)

// Gate spares the core what is certain to be refused: slots that are full, and callers who try
// too many keys for one patient. It implements [booking.Gate].
//
// What this process knows is looked at first, so that a crowd in front of a full slot costs
// nothing outside. Only what would go on to the database is asked of Redis, for what other
// processes know; see [Redis] for what becomes of that when Redis is in trouble.
//
// A Gate may be used by any number of goroutines.
type Gate struct {
	redis *Redis
	limit *limiter
	marks *marks
}

var _ booking.Gate = (*Gate)(nil)

// NewGate makes a gate. alive says whether the feed of changes is, without cost; Resync, Changed
// and Stale are how it reaches the gate. Without Redis (nil) each process counts and knows for
// itself alone.
func NewGate(redis *Redis, alive func() bool) *Gate {
	return &Gate{redis: redis, limit: newLimiter(), marks: newMarks(alive)}
}

// Resync is told when changes may have been missed, and since when, by the database's clock, none
// are. Before the first time no slot counts as full.
func (g *Gate) Resync(_ int64, since time.Time) { g.marks.doubt(since) }

// Changed is told of new states of slots, for each in the order in which they were committed.
func (g *Gate) Changed(slots []booking.Slot) { g.marks.changed(slots) }

// Stale is told when changes of one doctor may have been missed.
func (g *Gate) Stale(_ booking.DoctorID, since time.Time) { g.marks.doubt(since) }

// Full implements [booking.Gate].
func (g *Gate) Full(f booking.FullMark) {
	if g.marks.full(f) {
		g.redis.tell(f)
	}
}

// Admit implements [booking.Gate]. It waits for Redis at most 50 ms, and is never the reason why a
// call fails.
func (g *Gate) Admit(ctx context.Context, actor booking.Actor, r booking.BookRequest) error {
	until := g.redis.until(time.Now())
	caller := actor.Caller()
	charge, wait := g.limit.charge(caller, r, time.Now())
	if wait > 0 {
		return tooMany(wait)
	}
	full, ask := false, false
	// Staff hear of a slot that is not theirs only that there is none. A time is of no slot yet.
	if actor.Kind != booking.Staff && r.Time == nil {
		full, ask = g.marks.look(r.Slot)
	}
	if full {
		g.limit.settle(charge)
		return noPlace()
	}
	wait, full = g.askRedis(ctx, until, caller, r, !charge.settled, ask)
	if wait > 0 {
		g.limit.release(charge)
		return tooMany(wait)
	}
	g.limit.settle(charge)
	if full {
		return noPlace()
	}
	return nil
}

// askRedis asks how long the caller has to wait, and whether the slot is full, in one go.
func (g *Gate) askRedis(ctx context.Context, until time.Time, caller string, r booking.BookRequest, limit, mark bool) (wait time.Duration, full bool) {
	if !g.redis.usable() || !limit && !mark {
		return 0, false
	}
	var commands []redis.Cmder
	var count ask
	if limit {
		count = g.redis.newAsk(caller, r, true)
		commands = append(commands, count)
	}
	text := redis.NewStringCmd(ctx, "get", markKey(r.Slot))
	if mark {
		commands = append(commands, text)
	}
	if !g.redis.do(ctx, until, commands...) {
		return 0, false
	}
	if mark && text.Err() == nil {
		full = g.marks.believe(r.Slot, text.Val())
	}
	if limit && isUnknownScript(count.Err()) { // it has been restarted
		count = g.redis.newAsk(caller, r, false)
		if !g.redis.do(ctx, until, count) {
			return 0, full
		}
	}
	if limit {
		wait = count.wait()
	}
	return wait, full
}

func noPlace() error {
	return booking.Refuse(booking.SlotFull, "No place is left in this slot. Choose another.")
}

func tooMany(wait time.Duration) error {
	refused := booking.Refuse(booking.RateLimited, "Too many different requests for this patient in a short time. Wait a moment, then go on.")
	refused.RetryAfter = wait
	return refused
}

// Allowance is what a caller may still try for one patient.
type Allowance struct {
	Keys   int // different ones that are taken within Window
	Window time.Duration
	Left   int           // that this process would take now; others may have taken their part
	Reset  time.Duration // until there may be another one
}

// Allowance says how many more different keys the caller may try for the patient. It asks nobody.
func (g *Gate) Allowance(actor booking.Actor, patient booking.PatientID) Allowance {
	taken, reset := g.limit.taken(actor.Caller(), patient, time.Now())
	return Allowance{Keys: limitKeys, Window: limitWindow, Left: limitKeys - taken, Reset: reset}
}
