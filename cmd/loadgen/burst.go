package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// The burst: at seven o'clock the slots of one doctor's day open, and far more people call than
// there are places. Every call is a patient of its own, every second of them new. Some call again
// with the same key, as after a lost answer; some winners cancel, and somebody must get their place.
const (
	burstSlots  = 36
	retryOf     = 10 // one call in so many is a repetition of an earlier one
	cancelOf    = 20 // one winner in so many cancels
	connections = 256
)

// burstSQL gives the slots of the last doctor's first day capacities from 1 to 10.
const burstSQL = `UPDATE time_slot SET capacity = 1 + (id - %[1]d) %% 10 WHERE id BETWEEN %[1]d AND %[1]d + %[2]d - 1`

// burst is one run of it. Its methods are called by all callers at once.
type burst struct {
	*database
	address string // of the program
	first   int64  // slot
	random  random
	end     time.Time

	mu      sync.Mutex
	won     map[int]*prize // by the number of the first call
	winners []int          // the same, in order
	retried map[int]bool   // calls that were sent again
	freed   [burstSlots]time.Time
	refused [burstSlots]time.Time // when the last call was sent that was refused
	broken  int64                 // rules
	cancels sync.WaitGroup
}

// prize is a place that a call won.
type prize struct {
	appointment int64
	fresh       bool // the answer that was no repetition has come
	cancelling  bool
	cancelled   bool
}

func newBurst(db *database, address string) *burst {
	return &burst{database: db, address: address, first: slotID(db.doctors-1, 0), won: map[int]*prize{}, retried: map[int]bool{}}
}

func (b *burst) slot(n int) int        { return int(mix(uint64(n)+7) % burstSlots) }
func (b *burst) capacity(slot int) int { return 1 + slot%10 }

// isRetry says whether call n repeats another; if not, it is a patient of its own.
func isRetry(n int) bool { return n > 0 && mix(uint64(n))%retryOf == 0 }

// who is the patient of call n.
func (b *burst) who(n int) (token, subject string) {
	i := n / 2
	if n%2 == 0 {
		return b.patients.tokens[i], "p" + strconv.Itoa(i)
	}
	return b.newcomers.tokens[i], "n" + strconv.Itoa(i)
}

// origin is the call that call n repeats, known to have won or not.
func (b *burst) origin(c *caller, n int) int {
	if c.random.below(2) == 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.winners) > 0 {
			return b.winners[c.random.below(len(b.winners))]
		}
	}
	m := c.random.below(n)
	for isRetry(m) {
		m--
	}
	return m
}

// call is call n of the burst.
func (b *burst) call(ctx context.Context, c *caller, n int) (kind, error) {
	retry := isRetry(n)
	if retry {
		n = b.origin(c, n)
	}
	b.mu.Lock()
	known := b.won[n] != nil
	if retry {
		b.retried[n] = true
	}
	b.mu.Unlock()
	slot := b.slot(n)
	token, _ := b.who(n)
	sent := time.Now()
	answer, err := b.bookOnce(ctx, c, claim{token: token, slot: b.first + int64(slot), key: "b" + strconv.Itoa(n)})
	if err != nil {
		return plain, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case answer.appointment != 0 && answer.refusal == "":
		err = b.win(ctx, n, answer)
	case answer.refusal != "SLOT_FULL":
		err = fmt.Errorf("call %d was answered by %+v", n, answer)
	case known:
		err = fmt.Errorf("the winner of call %d was refused when they asked again", n)
	default:
		if sent.After(b.refused[slot]) {
			b.refused[slot] = sent
		}
	}
	switch {
	case err != nil:
		b.broken++
		return plain, err
	case retry:
		return repeat, nil
	case answer.appointment != 0:
		return won, nil
	default:
		return refused, nil
	}
}

// win notes that call n has a place. The caller holds the lock.
func (b *burst) win(ctx context.Context, n int, answer booked) error {
	p := b.won[n]
	if p == nil {
		p = &prize{appointment: answer.appointment}
		b.won[n] = p
		b.winners = append(b.winners, n)
		if mix(uint64(n)+13)%cancelOf == 0 {
			b.cancelLater(ctx, n, p)
		}
	}
	switch {
	case p.appointment != answer.appointment:
		return fmt.Errorf("call %d has won the appointments %d and %d", n, p.appointment, answer.appointment)
	case answer.status != "BOOKED" && !p.cancelling:
		return fmt.Errorf("the appointment of call %d is %s", n, answer.status)
	case !answer.replayed && p.fresh:
		return fmt.Errorf("call %d was booked twice as new", n)
	case answer.replayed && !b.retried[n]:
		return fmt.Errorf("call %d was answered as a repetition, and is none", n)
	}
	p.fresh = p.fresh || !answer.replayed
	return nil
}

// cancelLater lets the winner of call n cancel after a while, if that leaves time for others to take
// the place. The caller holds the lock.
func (b *burst) cancelLater(ctx context.Context, n int, p *prize) {
	left := time.Until(b.end)
	wait := left/10 + time.Duration(b.random.share()*float64(left)*0.4)
	if wait < 50*time.Millisecond {
		return
	}
	p.cancelling = true
	b.cancels.Add(1)
	time.AfterFunc(wait, func() {
		defer b.cancels.Done()
		b.cancel(ctx, n, p)
	})
}

// cancel is a cancellation by the winner of call n.
func (b *burst) cancel(ctx context.Context, n int, p *prize) {
	c := newCaller(b.address, 0)
	defer c.conn.close()
	token, _ := b.who(n)
	build, check := c.request.cancel, checkCancelled
	if b.overREST {
		build, check = c.request.cancelREST, checkCancelledREST
	}
	status, body, err := c.conn.do(ctx, build(token, p.appointment))
	if err == nil {
		err = check(status, body)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.log("burst: cancel the appointment of call %d: %v", n, err)
		b.broken++
		return
	}
	p.cancelled = true
	b.freed[b.slot(n)] = time.Now()
}

// result says who has won in the end, and how many rules the answers broke. A place may be left only
// if nobody was refused who called after it had become free.
func (b *burst) result() (wins []win, broken int64) {
	b.cancels.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	var taken [burstSlots]int
	for n, p := range b.won {
		_, subject := b.who(n)
		slot := b.slot(n)
		wins = append(wins, win{p.appointment, b.first + int64(slot), subject, "b" + strconv.Itoa(n), p.cancelled})
		if !p.cancelled {
			taken[slot]++
		}
	}
	broken = b.broken
	for slot, n := range taken {
		if free := b.capacity(slot) - n; free != 0 && b.refused[slot].After(b.freed[slot]) {
			b.log("VIOLATION: slot %d ends with %d places left, and people were refused", b.first+int64(slot), free)
			broken++
		}
	}
	return wins, broken
}
