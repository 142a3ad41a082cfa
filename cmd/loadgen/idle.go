package main

import (
	"context"
	"time"
)

// tight keeps what a Go process holds close to what it needs: the garbage is collected before it is
// a tenth of the heap. Ours and the floor have it where memory is measured.
const tight = "GOGC=10"

// idling is what screens cost to whom nothing happens: the memory of each, and in the end one change for each.
func (g *ground) idling(c crowd) *contest {
	r := &row{Scenario: "live, idle", Callers: c.idle, FloorName: gorillaName, measure: "memory (RSS, " + tight + ") per socket", ratio: memory}
	all := popular(c.idle, g.size.watched)
	return &contest{rows: []*row{r}, round: func(ctx context.Context) error {
		g.phase("idle: ours")
		ours, err := g.idle(ctx, all)
		if err != nil {
			return err
		}
		g.phase("idle: gorilla")
		floor, err := g.playBack(ctx, all, ours.tape, true)
		if err != nil {
			return err
		}
		r.add(ours.figures, floor, ours.broken)
		return nil
	}}
}

// idle has the screens come, do nothing, be shown one change each, and go.
func (g *ground) idle(ctx context.Context, all []int) (r showing, err error) {
	err = g.watched(ctx, func(w *watched) error {
		base, a, err := g.sit(ctx, w.host(), all, &r.figures)
		if err != nil {
			return err
		}
		defer a.leave()
		s := &stir{database: w.database, address: w.api.address, doctors: g.size.watched}
		before, err := w.truth(ctx)
		if err != nil {
			return err
		}
		a.forget()
		if err := s.each(ctx); err != nil {
			return err
		}
		if r.broken, err = a.settle(ctx, w.database); err != nil {
			return err
		}
		r.broken += a.unequal(1)
		commits, _, err := w.commits(ctx, before)
		if err != nil {
			return err
		}
		h := a.delays(commits)
		r.P50, r.P99, r.tape = h.quantile(0.5), h.quantile(0.99), a.tape()
		a.leave()
		r.broken += w.back(ctx, base)
		return nil
	}, tight)
	return r, err
}

// unequal counts the screens that were not sent n messages.
func (a *audience) unequal(n int64) (broken int64) {
	a.each(func(s *screen) {
		if s.messages != n {
			broken++
		}
	})
	return broken
}

// sit has the screens come and notes how fast they did, and what memory each takes when they sit
// still. base is the descriptors of the server before.
func (g *ground) sit(ctx context.Context, h host, all []int, f *figures) (base int, a *audience, err error) {
	first, err := gather(ctx, h, all[:min(len(all), 2*atTheDoor)], 0) // what is made once, whoever comes
	if err != nil {
		return 0, nil, err
	}
	first.leave()
	still := func() int64 {
		sleepUntil(ctx, time.Now().Add(g.size.rest))
		return memoryOf(h.pid)
	}
	before := still()
	base = descriptorsOf(h.pid)
	if a, err = gather(ctx, h, all, 0); err != nil {
		return 0, nil, err
	}
	f.Memory = float64(still()-before) / 1024 / float64(len(all))
	f.PerSecond = float64(len(all)) / a.took.Seconds()
	return base, a, nil
}
