package booking

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Gate refuses calls before they cost the core anything. It may be wrong for a moment, so it
// never grants; and before its refusal is passed on, a look-up tells whether the call's key has
// booked already.
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
// flight are looked up together in the next. Whoever comes alone does not wait; in a crowd statements
// don't follow each other closer than lookupRest, because a few large ones cost less than many small.
type lookups struct {
	find func(calls []*call) // answers those of which something is known, and leaves the others

	mu      sync.Mutex
	waiting []*lookup
	working bool
}

type lookup struct {
	call *call
	done chan struct{}
}

const (
	lookupMost = 256 // keys that one statement looks up
	lookupRest = 4 * time.Millisecond
)

// known reports whether the call could be answered by what has been booked before; if not, the
// call says whether its slot has room. After an error the call still belongs to the look-up.
func (l *lookups) known(ctx context.Context, c *call) (bool, error) {
	w := &lookup{c, make(chan struct{})}
	l.mu.Lock()
	if len(l.waiting) >= queueMost {
		l.mu.Unlock()
		return false, errOverloaded
	}
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
		began := time.Now()
		l.find(calls)
		for _, w := range batch {
			close(w.done)
		}
		if n > 1 {
			time.Sleep(lookupRest - time.Since(began))
		}
	}
}

// knownSQL finds what a call's key has booked, or else the place that its patient has in the slot,
// or else whether the slot has room: a place that was given back, or held or withheld until a moment
// ago, can be booked at once, whatever a gate still believes.
// The lateral subqueries keep it to a probe of an index each, whatever the planner believes about
// the size of the table.
const knownSQL = `
SELECT k.n, outcome, ` + appointmentColumns + `
  FROM unnest($2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::bigint[], $7::text[], $8::boolean[], $9::text[])
       WITH ORDINALITY AS k (caller, key, hash, slot, patient, registrar, hold, referral, n),
       LATERAL ((SELECT 1 AS rank, x AS a, s.doctor_id,
                        CASE WHEN x.request_hash = k.hash THEN 'REPLAYED' ELSE 'IDEMPOTENCY_KEY_REUSED' END AS outcome
                   FROM appointment x JOIN time_slot s ON s.id = x.slot_id
                  WHERE x.booked_by = k.caller AND x.idempotency_key = k.key
                  LIMIT 1)
                UNION ALL
                (SELECT 2, x, s.doctor_id, CASE WHEN x.status = 'HELD' AND k.hold AND x.referral_id IS NOT DISTINCT FROM k.referral
                                                THEN 'UNCHANGED' ELSE 'ALREADY_BOOKED' END
                   FROM appointment x JOIN time_slot s ON s.id = x.slot_id JOIN patient p ON p.id = x.patient_id
                  WHERE x.slot_id = k.slot AND x.patient_id = k.patient AND x.status IN ('HELD', 'BOOKED', 'ARRIVED')
                    AND (x.status <> 'HELD' OR x.expires_at > coalesce($1, clock_timestamp()))
                    AND k.registrar IN ('', p.issuer)
                  LIMIT 1)
                UNION ALL
                (SELECT 3, NULL, NULL, 'ROOM' FROM time_slot s
                  WHERE s.id = k.slot
                    AND (s.booked_count < s.capacity
                         OR (SELECT true FROM appointment x
                              WHERE x.slot_id = s.id AND x.status = 'HELD'
                                AND x.expires_at <= coalesce($1, clock_timestamp()) LIMIT 1)
                         OR (SELECT true FROM appointment x
                              WHERE x.slot_id = s.id AND x.returns_at IS NOT NULL
                                AND x.returns_at <= coalesce($1, clock_timestamp()) LIMIT 1)))
                ORDER BY rank LIMIT 1) AS known`

// find answers the calls of which something is known: a replay, a key that stands for another
// request, a patient who has the slot already; and marks those whose slot has room. If the database can't be asked, they are all
// answered with that.
func (s *Service) find(ctx context.Context, calls []*call) {
	r := columns(calls)
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		rows, err := conn.Query(ctx, knownSQL, s.now(),
			r.callers, r.keys, r.hashes, r.slots, r.patients, r.registrars, r.holds, r.referrals)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var (
				n int
				o outcome
			)
			if err := scanAppointment(rows, &o.appointment, &n, &o.code); err != nil {
				return err
			}
			if c := calls[n-1]; !c.isAnswered() { // by a run whose connection broke
				c.settle(o, false)
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
