package main

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"
)

// crowd is how many screens watch in the rows of live, and what goes on meanwhile.
type crowd struct {
	one     int     // all on one doctor
	many    int     // over all watched doctors
	stop    int     // over all watched doctors as well, of whom
	stalled int     // read no more
	idle    int     // to whom nothing happens
	changes float64 // per second
	drops   float64 // abrupt disconnects per second
}

// scene is one measurement of what screens are shown.
type scene struct {
	screens []int // by the doctor
	doctors int   // that changes are spread over
	changes float64
	drops   float64
	slow    int  // of the screens have a connection that holds little,
	stall   bool // and read no more from when it begins
}

// showing is what came of it.
type showing struct {
	figures
	tape   []message // what was shown, for the floor
	broken int64
}

// watched is a database with two instances of the program, one that gets the bookings and one that
// all screens are at: its CPU time is that of showing.
type watched struct {
	*database
	api, live *process
	from      string // first day of the screens
}

// watched runs do on a fresh database. env is for the instance of the screens.
func (g *ground) watched(ctx context.Context, do func(*watched) error, env ...string) error {
	db, err := g.stirring(ctx, g.size.watched)
	if err != nil {
		return err
	}
	day, err := db.day(ctx)
	if err != nil {
		return err
	}
	return db.withServer(ctx, func(api *process) (err error) {
		live, err := db.instance(ctx, api.redis.URL(), env...)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, live.stop()) }()
		return do(&watched{db, api, live, day})
	})
}

func (w *watched) host() host {
	return host{address: w.live.address, pid: w.live.cmd.Process.Pid, from: w.from}
}

// show measures the program.
func (g *ground) show(ctx context.Context, sc scene, t times) (r showing, err error) {
	err = g.watched(ctx, func(w *watched) error {
		base := descriptorsOf(w.host().pid)
		a, err := gather(ctx, w.host(), sc.screens, sc.slow)
		if err != nil {
			return err
		}
		defer a.leave()
		before, err := w.truth(ctx)
		if err != nil {
			return err
		}
		s := &stir{database: w.database, address: w.api.address, doctors: sc.doctors}
		s.run(ctx, sc.changes, t.warm)
		if r.broken, err = a.settle(ctx, w.database); err != nil {
			return err
		}
		gone := func() int64 { return 0 }
		if sc.stall {
			if gone, err = w.stall(ctx, a); err != nil {
				return err
			}
		}
		if err := w.measure(ctx, a, s, measuring{sc, t.window, before, &r}); err != nil {
			return err
		}
		r.broken += gone()
		a.leave()
		r.broken += w.back(ctx, base)
		broken, err := w.violations(ctx, s.wins, s.lost > 0)
		r.broken += broken
		return err
	})
	return r, err
}

type measuring struct {
	scene
	window time.Duration
	before map[int64]shown // what the database had before any change
	into   *showing
}

// measure stirs for a while and adds up what the screens were shown.
func (w *watched) measure(ctx context.Context, a *audience, s *stir, m measuring) error {
	a.forget()
	used, begin := w.live.cpu(), time.Now()
	flickering, stop := context.WithCancel(ctx)
	flickered := make(chan error, 1)
	go func() { flickered <- a.flicker(flickering, m.drops) }()
	s.run(ctx, m.changes, m.window)
	seconds := time.Since(begin).Seconds()
	stop()
	if err := <-flickered; err != nil {
		return err
	}
	broken, err := a.settle(ctx, w.database)
	if err != nil {
		return err
	}
	m.into.broken += broken
	used = w.live.cpu() - used
	commits, odd, err := w.commits(ctx, m.before)
	if err != nil {
		return err
	}
	if odd > 0 {
		w.log("of %d slots it is not known which transaction made which version: they do not count", odd)
	}
	h := a.delays(commits)
	n := a.messages()
	m.into.figures = figures{PerSecond: float64(n) / seconds, P50: h.quantile(0.5), P99: h.quantile(0.99),
		CPU: float64(used.Microseconds()) / float64(n), Errors: s.lost}
	m.into.tape = a.tape()
	return nil
}

// back waits until the screens' instance has closed all connections of screens that have left.
func (w *watched) back(ctx context.Context, base int) (broken int64) {
	const others = 20 // to the database, and requests
	n := 0
	for giveUp := time.Now().Add(settleWithin); time.Now().Before(giveUp) && ctx.Err() == nil; sleepUntil(ctx, time.Now().Add(20*time.Millisecond)) {
		if n = descriptorsOf(w.host().pid); n <= base+others {
			return 0
		}
	}
	w.log("VIOLATION: all screens have left, and the server has %d descriptors instead of %d", n, base)
	return 1
}

// Whoever stalls asks for all days of a doctor, and these change at once until nothing more fits
// between the server and them.
const (
	fills    = 8
	fillSQL  = `UPDATE time_slot SET capacity = capacity WHERE doctor_id <= %d AND (id - 1) %% %d >= %d`
	goneSoon = 10 * time.Second
)

// stall has the slow screens stall, and fills what is on the way to them. The result waits until they
// are gone, and says whether they took too long.
func (w *watched) stall(ctx context.Context, a *audience) (gone func() int64, err error) {
	before := descriptorsOf(w.host().pid)
	stalled := 0
	for _, s := range a.screens {
		if s.slow {
			if err := s.stall(w.from); err != nil {
				return nil, err
			}
			stalled++
		}
	}
	for range fills {
		if err := w.exec(ctx, fmt.Sprintf(fillSQL, 1, slotsEach, slotsPerDay)); err != nil {
			return nil, err
		}
		sleepUntil(ctx, time.Now().Add(100*time.Millisecond))
	}
	full := time.Now()
	took := make(chan time.Duration, 1)
	go func() {
		for descriptorsOf(w.host().pid) > before-stalled && time.Since(full) < 3*goneSoon && ctx.Err() == nil {
			sleepUntil(ctx, time.Now().Add(50*time.Millisecond))
		}
		took <- time.Since(full)
	}()
	return func() int64 {
		d := <-took
		w.log("%d screens that read no more were gone %.1f s after nothing more fitted on the way to them", stalled, d.Seconds())
		if d > goneSoon && !w.size.small || d > 3*goneSoon {
			w.log("VIOLATION: that is more than %v", goneSoon)
			return 1
		}
		return 0
	}, nil
}

// watching is the contest of a scene against gorilla, which plays back what the program has sent.
func (g *ground) watching(r *row, sc scene, t times) *contest {
	r.Callers, r.FloorName = len(sc.screens), gorillaName
	return &contest{rows: []*row{r}, round: func(ctx context.Context) error {
		g.phase("%s: ours", r.Scenario)
		ours, err := g.show(ctx, sc, t)
		if err != nil {
			return err
		}
		debug.FreeOSMemory() // the garbage of thousands of screens is not for the floor to wait for
		g.phase("%s: gorilla", r.Scenario)
		floor, err := g.playBack(ctx, sc.screens, ours.tape, false)
		if err != nil {
			return err
		}
		r.add(ours.figures, floor, ours.broken)
		return nil
	}}
}

// stalling is the contest of those who read on with and without others who don't.
func (g *ground) stalling(c crowd, t times) *contest {
	all := popular(c.stop, g.size.watched)
	for i := range c.stalled {
		all[len(all)-1-i] = 0
	}
	r := &row{Scenario: fmt.Sprintf("live, %d screens stall, the others", c.stalled), Callers: len(all), measure: "p99", ratio: p99,
		FloorName: "the same without"}
	sc := scene{screens: all, doctors: g.size.watched, changes: c.changes, slow: c.stalled}
	return &contest{rows: []*row{r}, round: func(ctx context.Context) error {
		var f [2]showing
		for i, stall := range []bool{true, false} {
			g.phase("%s: %v", r.Scenario, stall)
			sc.stall = stall
			var err error
			if f[i], err = g.show(ctx, sc, t); err != nil {
				return err
			}
		}
		r.add(f[0].figures, f[1].figures, f[0].broken+f[1].broken)
		return nil
	}}
}

// live is all its contests.
func (g *ground) live(c crowd, t times) []*contest {
	one := make([]int, c.one)
	return []*contest{
		g.watching(&row{Scenario: "live, one doctor", measure: "CPU per message", ratio: cpu},
			scene{screens: one, doctors: 1, changes: c.changes / 5}, t),
		g.watching(&row{Scenario: fmt.Sprintf("live, %d doctors", g.size.watched), measure: "p99 from commit to screen", ratio: p99},
			scene{screens: popular(c.many, g.size.watched), doctors: g.size.watched, changes: c.changes, drops: c.drops}, t),
		g.watching(&row{Scenario: "live, one screen, nothing else", measure: "p99 from commit to screen", ratio: p99},
			scene{screens: one[:1], doctors: 1, changes: min(c.changes, 20)}, t),
		g.stalling(c, t),
		g.idling(c),
	}
}
