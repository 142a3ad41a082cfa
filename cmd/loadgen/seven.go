package main

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// offered is what comes in per second at seven o'clock.
type offered struct {
	burst    float64 // to the doctor whom everybody wants
	lists    float64 // of other doctors' days
	bookings float64 // of other doctors' slots
}

// burstScript lets pgbench book the same slots.
const burstScript = "\\set slot (:doctors - 1) * :slots + 1 + random(0, 35)\n"

// burst is the contest of seven o'clock.
func (g *ground) burst(rate offered, callers int, t times) *contest {
	all := &row{Scenario: "burst, all calls", Callers: connections, measure: "answered/s at the rate offered", ratio: perSecond}
	winners := &row{Scenario: "burst, winners", Callers: connections, measure: "p99", ratio: p99}
	lists := &row{Scenario: "burst, lists of other doctors", Callers: connections, measure: "p99", ratio: p99, FloorName: "the same without a burst"}
	others := &row{Scenario: "burst, bookings elsewhere", Callers: connections, measure: "p99", ratio: p99, FloorName: "the same without a burst"}
	flatOut := &row{Scenario: "burst, as fast as it goes", Callers: callers, measure: "answered/s", ratio: perSecond}
	paced := &pgbench{choose: burstScript, shapes: []shape{function}, clients: []int{16}, rate: rate.burst, refused: true}
	unpaced := &pgbench{choose: burstScript, shapes: bothShapes, clients: g.tries(8, 16, 32), refused: true}
	prepare := fmt.Sprintf(burstSQL, slotID(g.size.doctors-1, 0), burstSlots)

	round := func(ctx context.Context) error {
		g.phase("burst: ours")
		db, err := g.fresh(ctx, g.size.doctors)
		if err != nil {
			return err
		}
		if err := db.exec(ctx, prepare); err != nil {
			return err
		}
		s := seven{database: db, rate: rate, callers: callers, t: t, zipf: newZipf(g.size.doctors - 1)}
		if err := db.withServer(ctx, func(p *process) error { return s.run(ctx, p) }); err != nil {
			return err
		}
		broken, err := db.violations(ctx, s.wins, s.unknown)
		if err != nil {
			return err
		}
		g.phase("burst: pgbench")
		if db, err = g.fresh(ctx, g.size.doctors); err != nil {
			return err
		}
		if err := db.exec(ctx, prepare); err != nil {
			return err
		}
		full := func(context.Context) (*database, error) { return db, nil } // after the first run
		long := t
		long.window = t.burst
		pacedFloor, err := paced.run(ctx, full, long)
		if err != nil {
			return err
		}
		unpacedFloor, err := unpaced.run(ctx, full, t)
		if err != nil {
			return err
		}
		all.FloorName, winners.FloorName, flatOut.FloorName = paced.name(), paced.name(), unpaced.name()
		all.add(s.all, pacedFloor, s.broken+broken)
		winners.add(s.winners, pacedFloor, 0)
		lists.add(s.lists, s.calmLists, 0)
		others.add(s.others, s.calmOthers, 0)
		flatOut.add(s.flatOut, unpacedFloor, 0)
		return nil
	}
	return &contest{rows: []*row{all, winners, lists, others, flatOut}, round: round}
}

// seven is our part of one round: calm, burst, and the burst as fast as it goes.
type seven struct {
	*database
	rate    offered
	callers int
	t       times
	zipf    zipf
	day     string // that is listed
	sent    int    // bookings elsewhere, so far

	all, winners       figures
	lists, calmLists   figures
	others, calmOthers figures
	flatOut            figures
	wins               []win
	broken             int64
	unknown            bool
}

func (s *seven) run(ctx context.Context, p *process) (err error) {
	if s.day, err = s.database.day(ctx); err != nil {
		return err
	}
	calls := int(s.rate.burst*s.t.burst.Seconds()*1.1) + 1000
	if err := s.newcomers.fill(calls / 2); err != nil {
		return err
	}
	if calls/2 > s.size.patients/2 {
		return fmt.Errorf("a burst of %d calls needs more than %d patients", calls, s.size.patients)
	}
	s.elsewhere(ctx, p, s.t.warm) // and forget it
	calm := s.elsewhere(ctx, p, s.t.burst/3)
	s.calmLists, s.calmOthers = calm.lists.figures(plain), calm.bookings.figures(plain)

	b := newBurst(s.database, p.address)
	b.end = time.Now().Add(s.t.burst)
	before := s.cpuWith(p)()
	crowd := make(chan result, 1)
	go func() {
		crowd <- openLoop{address: p.address, rate: s.rate.burst, length: s.t.burst, callers: connections, seed: 1, call: b.call}.run(ctx)
	}()
	beside := s.elsewhere(ctx, p, s.t.burst)
	r := <-crowd
	r.cpu = s.cpuWith(p)() - before
	s.complain(&r.tally)
	s.all, s.winners = r.figures(plain, won, refused, repeat), r.figures(won)
	s.winners.CPU = 0
	s.lists, s.others = beside.lists.figures(plain), beside.bookings.figures(plain)
	var wins []win
	wins, s.broken = b.result()
	s.wins = append(s.wins, wins...)
	s.unknown = s.unknown || r.errors > 0

	return s.rush(ctx, p)
}

// beside is what came of those who want something else.
type beside struct{ lists, bookings result }

// elsewhere is the calls for other doctors.
func (s *seven) elsewhere(ctx context.Context, p *process, length time.Duration) beside {
	var b beside
	booked := make(chan result, 1)
	from := s.sent
	s.sent += int(s.rate.bookings*length.Seconds()*2) + 100 // more than can come
	go func() {
		booked <- openLoop{address: p.address, rate: s.rate.bookings, length: length, callers: connections / 4, seed: 2,
			call: func(ctx context.Context, c *caller, n int) (kind, error) { return s.bookElsewhere(ctx, c, from+n) }}.run(ctx)
	}()
	b.lists = openLoop{address: p.address, rate: s.rate.lists, length: length, callers: connections / 4, seed: 3,
		call: func(ctx context.Context, c *caller, n int) (kind, error) {
			return plain, list(ctx, c, s.zipf.draw(&c.random), s.day, n)
		}}.run(ctx)
	b.bookings = <-booked
	for _, r := range []*result{&b.lists, &b.bookings} {
		s.complain(&r.tally)
		s.unknown = s.unknown || r.errors > 0
	}
	for _, a := range b.bookings.acks {
		s.wins = append(s.wins, win{a.appointment, a.slot, "p" + strconv.Itoa(s.lateComer(a.call)), "e" + strconv.Itoa(a.call), false})
	}
	return b
}

// lateComer is a registered patient who is not in the burst.
func (s *seven) lateComer(k int) int { return s.size.patients - 1 - k%(s.size.patients/2) }

func (s *seven) bookElsewhere(ctx context.Context, c *caller, k int) (kind, error) {
	slot := slotID(c.random.below(s.doctors-1), k%slotsEach)
	answer, err := s.bookOnce(ctx, c, claim{s.patients.tokens[s.lateComer(k)], slot, "e" + strconv.Itoa(k)})
	if err != nil {
		return plain, err
	}
	if answer.appointment == 0 || answer.replayed {
		return plain, fmt.Errorf("a booking elsewhere was answered by %+v", answer)
	}
	c.acks = append(c.acks, ack{k, slot, answer.appointment})
	return plain, nil
}

// rush lets the crowd call as fast as it goes for what is gone. Who finds a place all the same has it.
func (s *seven) rush(ctx context.Context, p *process) error {
	first := slotID(s.doctors-1, 0)
	subject := func(k int) int { return k % (s.size.patients / 2) }
	r := closedLoop{address: p.address, callers: s.callers, warm: s.t.warm, window: s.t.window, cpu: s.cpuWith(p),
		call: func(ctx context.Context, c *caller, n int) (kind, error) {
			k := n*s.callers + c.index
			slot := first + int64(mix(uint64(k))%burstSlots)
			answer, err := s.bookOnce(ctx, c, claim{s.patients.tokens[subject(k)], slot, "f" + strconv.Itoa(k)})
			switch {
			case err != nil:
				return plain, err
			case answer.refusal == "SLOT_FULL", answer.refusal == "ALREADY_BOOKED": // some have won before
				return plain, nil
			case answer.appointment == 0:
				return plain, fmt.Errorf("a call for a full slot was answered by %+v", answer)
			}
			c.acks = append(c.acks, ack{k, slot, answer.appointment})
			return plain, nil
		}}.run(ctx)
	s.complain(&r.tally)
	s.flatOut = r.figures(plain)
	s.unknown = s.unknown || r.errors > 0
	for _, a := range r.acks {
		s.wins = append(s.wins, win{a.appointment, a.slot, "p" + strconv.Itoa(subject(a.call)), "f" + strconv.Itoa(a.call), false})
	}
	return nil
}
