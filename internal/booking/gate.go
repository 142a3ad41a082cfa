package booking

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Gate refuses calls before they cost the core anything. It may be wrong for a moment, so it
// never grants; and a call that it refuses is first asked whether its key has booked already.
type Gate interface {
	// Admit refuses a call with RATE_LIMITED, or with SLOT_FULL where that is known for certain,
	// or lets it through with nil. It answers soon, whatever state the gate's own parts are in.
	Admit(ctx context.Context, actor Actor, r BookRequest) error
	// Full says that a committed transaction left the slot without a free place.
	Full(mark FullMark)
}

// FullMark says that a slot was full.
type FullMark struct {
	Slot    SlotID
	Version int64     // of the slot when it was full; a newer one may have room
	At      time.Time // by the database's clock, while the slot was locked
}

// lookups answers calls that the gate has refused: those that wait while a statement is in
// flight are looked up together in the next.
type lookups struct {
	find func(calls []*call) // answers those whose key has been used, and leaves the others

	mu      sync.Mutex
	waiting []*lookup
	working bool
}

type lookup struct {
	call *call
	done chan struct{}
}

// lookupMost is how many keys one statement looks up.
const lookupMost = 256

// used reports whether the call's key has been used; then the call is answered.
func (l *lookups) used(ctx context.Context, c *call) (bool, error) {
	w := &lookup{c, make(chan struct{})}
	l.mu.Lock()
	l.waiting = append(l.waiting, w)
	if !l.working {
		l.working = true
		go l.work()
	}
	l.mu.Unlock()
	select {
	case <-w.done:
		return c.isAnswered(), nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (l *lookups) work() {
	for {
		l.mu.Lock()
		n := min(len(l.waiting), lookupMost)
		batch := l.waiting[:n:n]
		l.waiting = l.waiting[n:]
		l.working = n > 0
		l.mu.Unlock()
		if n == 0 {
			return
		}
		calls := make([]*call, n)
		for i, w := range batch {
			calls[i] = w.call
		}
		l.find(calls)
		for _, w := range batch {
			close(w.done)
		}
	}
}

// keySQL finds what keys have booked. The lateral subquery keeps it to one probe of the index
// for each key, whatever the planner believes about the size of the table.
const keySQL = `
SELECT k.n, same, ` + appointmentColumns + `
  FROM unnest($1::text[], $2::text[], $3::bytea[]) WITH ORDINALITY AS k (caller, key, hash, n),
       LATERAL (SELECT x AS a, x.request_hash = k.hash AS same, s.doctor_id
                  FROM appointment x JOIN time_slot s ON s.id = x.slot_id
                 WHERE x.booked_by = k.caller AND x.idempotency_key = k.key
                 LIMIT 1) AS stored`

// find answers the calls whose key has been used: with what it booked, if it stood for the
// same request. If the database can't be asked, they are all answered with that.
func (s *Service) find(ctx context.Context, calls []*call) {
	keys, callers, hashes := scopes(calls)
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		rows, err := conn.Query(ctx, keySQL, callers, keys, hashes)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var (
				n    int
				same bool
				a    Appointment
			)
			if err := scanAppointment(rows, &a, &n, &same); err != nil {
				return err
			}
			switch c := calls[n-1]; {
			case c.isAnswered(): // by a run whose connection broke
			case same:
				c.answer(Booking{Appointment: a, Replayed: true}, nil)
			default:
				c.answer(Booking{}, refusal(outcome{code: string(IdempotencyKeyReused)}))
			}
		}
		return rows.Err()
	})
	if err == nil {
		return
	}
	for _, c := range calls {
		if !c.isAnswered() {
			c.answer(Booking{}, withoutEffect(err))
		}
	}
}

func (c *call) isAnswered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}
