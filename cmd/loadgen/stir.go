package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// stir changes what screens show, by bookings and cancellations through the API.
type stir struct {
	*database
	address string // of the program
	doctors int    // who are watched: the first ones

	mu    sync.Mutex
	next  int // the patient who books next
	stand []int
	wins  []win
	lost  int64 // calls without an answer
}

// roomSQL makes room in the days that are watched, so that nobody is refused.
const roomSQL = `UPDATE time_slot SET capacity = 10000 WHERE doctor_id <= %d AND (id - 1) %% %d < %d`

// stirring prepares a fresh database for doctors whose first day is watched.
func (g *ground) stirring(ctx context.Context, doctors int) (*database, error) {
	db, err := g.fresh(ctx, g.size.doctors)
	if err == nil {
		err = db.exec(ctx, fmt.Sprintf(roomSQL, doctors, slotsEach, slotsPerDay))
	}
	return db, err
}

// run makes changes at a rate, come what may.
func (s *stir) run(ctx context.Context, rate float64, length time.Duration) result {
	r := openLoop{address: s.address, rate: rate, length: length, callers: 32, seed: 6,
		call: func(ctx context.Context, c *caller, n int) (kind, error) {
			if i, ok := s.cancellable(n); ok {
				return plain, s.cancel(ctx, c, i)
			}
			return plain, s.book(ctx, c, slotID(c.random.below(s.doctors), c.random.below(slotsPerDay)))
		}}.run(ctx)
	s.complain(&r.tally)
	s.lost += r.errors
	return r
}

// each changes one slot of every doctor.
func (s *stir) each(ctx context.Context) error {
	c := newCaller(s.address, 0)
	defer c.conn.close()
	for doctor := range s.doctors {
		if err := s.book(ctx, c, slotID(doctor, doctor%slotsPerDay)); err != nil {
			return err
		}
	}
	return nil
}

// book books the slot for a patient of its own.
func (s *stir) book(ctx context.Context, c *caller, slot int64) error {
	s.mu.Lock()
	k := s.next
	s.next++
	s.mu.Unlock()
	if k >= s.size.patients {
		return fmt.Errorf("%d patients are too few", k)
	}
	key := "v" + strconv.Itoa(k)
	answer, err := s.bookOnce(ctx, c, claim{token: s.patients.tokens[k], slot: slot, key: key})
	if err != nil {
		return err
	}
	if answer.appointment == 0 || answer.replayed || answer.status != "BOOKED" {
		return fmt.Errorf("a booking was answered by %+v", answer)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stand = append(s.stand, len(s.wins))
	s.wins = append(s.wins, win{appointment: answer.appointment, slot: slot, subject: "p" + strconv.Itoa(k), key: key})
	return nil
}

// cancellable is an appointment for every second call to cancel, if there is one.
func (s *stir) cancellable(n int) (i int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n%2 == 0 || len(s.stand) == 0 {
		return 0, false
	}
	i = s.stand[0]
	s.stand = s.stand[1:]
	return i, true
}

func (s *stir) cancel(ctx context.Context, c *caller, i int) error {
	s.mu.Lock()
	w := s.wins[i]
	s.mu.Unlock()
	k, err := strconv.Atoi(w.subject[1:])
	if err != nil {
		return err
	}
	status, body, err := c.conn.do(ctx, c.request.cancel(s.patients.tokens[k], w.appointment))
	if err != nil {
		return err
	}
	if err := checkCancelled(status, body); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wins[i].cancelled = true
	return nil
}

// truth is what the database has of the days that may be watched.
func (db *database) truth(ctx context.Context) (map[int64]shown, error) {
	s := db.session(ctx, db.name)
	defer s.close()
	if s.err != nil {
		return nil, s.err
	}
	rows, err := s.conn.Query(ctx, `SELECT id, capacity - booked_count, status = 'OPEN', version FROM time_slot WHERE doctor_id <= $1`, db.size.watched)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	truth := map[int64]shown{}
	for rows.Next() {
		var t shown
		if err := rows.Scan(&t.slot, &t.free, &t.open, &t.version); err != nil {
			return nil, err
		}
		truth[t.slot] = t
	}
	return truth, rows.Err()
}

// commits are the moments, in µs since 1970, at which the server began to write the commits of our
// bookings and cancellations, by what they made of their slots. Every transaction changes a slot
// once, so the n-th commit of a slot's has made its n-th version since before; where that does not
// come out even, nothing of the slot is returned, and it is counted.
func (db *database) commits(ctx context.Context, before map[int64]shown) (at map[change]int64, odd int64, err error) {
	after, err := db.truth(ctx)
	if err != nil {
		return nil, 0, err
	}
	s := db.session(ctx, db.name)
	defer s.close()
	if s.err != nil {
		return nil, 0, s.err
	}
	rows, err := s.conn.Query(ctx, `
		SELECT slot_id, at FROM (
		    SELECT DISTINCT a.slot_id, e.xmin::text, (extract(epoch FROM pg_xact_commit_timestamp(e.xmin)) * 1000000)::bigint AS at
		      FROM outbox_event e JOIN appointment a ON a.root_id = e.root_id
		     WHERE a.idempotency_key LIKE 'v%') AS c
		 ORDER BY slot_id, at`)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	at = map[change]int64{}
	made := map[int64]int64{}
	for rows.Next() {
		var slot, moment int64
		if err := rows.Scan(&slot, &moment); err != nil {
			return nil, 0, err
		}
		made[slot]++
		at[change{slot, before[slot].version + made[slot]}] = moment
	}
	for slot, n := range made {
		if before[slot].version+n != after[slot].version {
			odd++
			for v := before[slot].version; v <= before[slot].version+n; v++ {
				delete(at, change{slot, v})
			}
		}
	}
	return at, odd, rows.Err()
}
