package main

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// bookings is a load of bookings by callers who know their slot.
type bookings struct {
	doctors int
	callers int
	prepare string // SQL for the fresh database; may be empty
	// slot is the one that call k books.
	slot func(c *caller, k int) int64
}

// spread lets everybody book somewhere else. Patients take turns; when one comes round again, it is
// for another time (their number plus one and slotsEach have no common factor), so nobody ever has
// two appointments at once.
func (g *ground) spread(doctors, callers int) bookings {
	return bookings{doctors: doctors, callers: callers, slot: func(c *caller, k int) int64 {
		return slotID(c.random.below(doctors), (k+k/g.size.patients)%slotsEach)
	}}
}

// spreadScript is the same for pgbench.
const spreadScript = `\set at (:k + :k / :patients) % :slots
\set slot random(0, :doctors - 1) * :slots + :at + 1
`

const hotCapacity = 1_000_000

// hot lets everybody book one slot.
func (g *ground) hot(callers int) bookings {
	return bookings{doctors: g.size.doctors, callers: callers,
		prepare: fmt.Sprintf(`UPDATE time_slot SET capacity = %d WHERE id = 1`, hotCapacity),
		slot:    func(*caller, int) int64 { return 1 }}
}

const hotScript = "\\set slot 1\n"

// patient is whose turn call k is.
func (g *ground) patient(k int) int { return k % g.size.patients }

// booking is the call of a caller that books, the n-th of theirs.
func (g *ground) booking(b bookings) func(context.Context, *caller, int) (kind, error) {
	return func(ctx context.Context, c *caller, n int) (kind, error) {
		k := n*b.callers + c.index
		slot := b.slot(c, k)
		answer, err := g.bookOnce(ctx, c, claim{token: g.patients.tokens[g.patient(k)], slot: slot, key: "k" + strconv.Itoa(k)})
		if err != nil {
			return plain, err
		}
		if answer.appointment == 0 || answer.replayed || answer.status != "BOOKED" {
			return plain, fmt.Errorf("a booking was answered by %+v", answer)
		}
		c.acks = append(c.acks, ack{k, slot, answer.appointment})
		return plain, nil
	}
}

// claim is what a booking asks for.
type claim struct {
	token string
	slot  int64
	key   string
}

func (g *ground) bookOnce(ctx context.Context, c *caller, w claim) (booked, error) {
	build, read := c.request.book, readBooked
	if g.overREST {
		build, read = c.request.bookREST, readBookedREST
	}
	status, body, err := c.conn.do(ctx, build(w.token, w.slot, w.key))
	if err != nil {
		return booked{}, err
	}
	return read(status, body)
}

// wins are the acks of bookings, in words that the database knows.
func (g *ground) wins(acks []ack) []win {
	wins := make([]win, len(acks))
	for i, a := range acks {
		wins[i] = win{appointment: a.appointment, slot: a.slot, subject: "p" + strconv.Itoa(g.patient(a.call)), key: "k" + strconv.Itoa(a.call)}
	}
	return wins
}

// database is a fresh one, prepared for the load.
func (g *ground) database(ctx context.Context, b bookings) (*database, error) {
	db, err := g.fresh(ctx, b.doctors)
	if err == nil && b.prepare != "" {
		err = db.exec(ctx, b.prepare)
	}
	return db, err
}

// ours measures the program under the load, on a database of its own.
func (g *ground) ours(ctx context.Context, b bookings, t times) (figures, int64, error) {
	db, err := g.database(ctx, b)
	if err != nil {
		return figures{}, 0, err
	}
	var r result
	err = db.withServer(ctx, func(p *process) error {
		r = closedLoop{address: p.address, callers: b.callers, warm: t.warm, window: t.window,
			cpu: db.cpuWith(p), call: g.booking(b)}.run(ctx)
		return nil
	})
	if err != nil {
		return figures{}, 0, err
	}
	g.complain(&r.tally)
	broken, err := db.violations(ctx, g.wins(r.acks), r.errors > 0)
	return r.figures(plain), broken, err
}

// withServer runs do beside the program on the database.
func (db *database) withServer(ctx context.Context, do func(*process) error) (err error) {
	p, err := db.serve(ctx)
	if err != nil {
		return err
	}
	err = do(p)
	if serr := p.stop(); err == nil {
		err = serr
	}
	if err == nil {
		err = ctx.Err()
	}
	return err
}

// cpuWith is the CPU time of PostgreSQL and a server.
func (g *ground) cpuWith(p *process) func() time.Duration {
	return func() time.Duration { return g.cpu() + p.cpu() }
}

// against is a contest of bookings against pgbench.
func (g *ground) against(name string, b bookings, p *pgbench, t times) *contest {
	r := &row{Scenario: name, Callers: b.callers, measure: "bookings/s", ratio: perSecond}
	return &contest{rows: []*row{r}, round: func(ctx context.Context) error {
		g.phase("%s: ours", name)
		ours, broken, err := g.ours(ctx, b, t)
		if err != nil {
			return err
		}
		g.phase("%s: pgbench", name)
		floor, err := p.run(ctx, func(ctx context.Context) (*database, error) { return g.database(ctx, b) }, t)
		if err != nil {
			return err
		}
		r.FloorName = p.name()
		r.add(ours, floor, broken)
		return nil
	}}
}
