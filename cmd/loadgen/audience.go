package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// change names a state of a slot.
type change struct {
	slot, version int64
}

// audience is all the screens of a measurement.
type audience struct {
	host
	screens []*screen
	reading sync.WaitGroup
	came    histogram     // from the first byte to the snapshot
	took    time.Duration // for all to come
}

const atTheDoor = 64 // screens that connect at once

// gather opens a screen for each of the doctors (from 0). The connections of the last ones hold little.
func gather(ctx context.Context, h host, doctors []int, slow int) (*audience, error) {
	a := &audience{host: h}
	kept := map[int]bool{}
	for i, doctor := range doctors {
		a.screens = append(a.screens, &screen{doctor: doctor, index: i, slow: i >= len(doctors)-slow, keep: !kept[doctor]})
		kept[doctor] = true
	}
	next := make(chan *screen, len(doctors))
	for _, s := range a.screens {
		next <- s
	}
	close(next)
	var mu sync.Mutex
	var failed error
	var coming sync.WaitGroup
	begin := time.Now()
	for range atTheDoor {
		coming.Go(func() {
			for s := range next {
				start := time.Now()
				err := s.connect(ctx, h)
				mu.Lock()
				if err != nil {
					failed = err
					mu.Unlock()
					return
				}
				a.came.add(time.Since(start))
				mu.Unlock()
				a.watch(s)
			}
		})
	}
	coming.Wait()
	a.took = time.Since(begin)
	if failed != nil {
		a.leave()
		return nil, fmt.Errorf("%d of %d screens are open: %w", a.came.count, len(doctors), failed)
	}
	return a, nil
}

// watch has the screen read until it is gone.
func (a *audience) watch(s *screen) {
	s.gone.Add(1)
	a.reading.Go(func() {
		defer s.gone.Done()
		s.watch()
	})
}

// leave ends all connections, and waits until nobody reads any more.
func (a *audience) leave() {
	for _, s := range a.screens {
		if s.conn != nil {
			s.leave()
		}
	}
	a.reading.Wait()
}

// each calls do for every screen, which holds still meanwhile.
func (a *audience) each(do func(*screen)) {
	for _, s := range a.screens {
		s.mu.Lock()
		do(s)
		s.mu.Unlock()
	}
}

// forget drops what was seen so far: what comes next counts.
func (a *audience) forget() {
	a.each(func(s *screen) { s.sights, s.kept, s.messages = nil, nil, 0 })
}

// messages is how many came to all screens.
func (a *audience) messages() (n int64) {
	a.each(func(s *screen) { n += s.messages })
	return n
}

// tape is what the screens of every doctor were sent, in order.
func (a *audience) tape() (all []message) {
	a.each(func(s *screen) { all = append(all, s.kept...) })
	slices.SortFunc(all, func(x, y message) int { return int(x.at - y.at) })
	return all
}

// delays are the times from a change, whose moments are given in µs since 1970, to when it or a
// later state of the slot was shown, for all screens that read on.
func (a *audience) delays(happened map[change]int64) (h histogram) {
	a.each(func(s *screen) {
		if s.stalled {
			return
		}
		for _, seen := range s.sights {
			for v := seen.from + 1; v <= seen.to; v++ {
				if at, ok := happened[change{seen.slot, v}]; ok {
					h.add(time.Duration(seen.at-at) * time.Microsecond)
				}
			}
		}
	})
	return h
}

// compare counts the screens that do not show what the database has, and those whose connection
// has ended.
func (a *audience) compare(truth map[int64]shown) (wrong, ended int64, example error) {
	a.each(func(s *screen) {
		switch {
		case s.stalled || s.leaving:
		case s.err != nil:
			ended++
			example = s.err
		default:
			if err := s.differs(truth); err != nil {
				wrong++
				example = err
			}
		}
	})
	return wrong, ended, example
}

// differs is nil if the screen shows exactly its day. The caller holds the lock.
func (s *screen) differs(truth map[int64]shown) error {
	for at := range slotsPerDay {
		id := slotID(s.doctor, at)
		if s.slots[id] != truth[id] {
			return fmt.Errorf("a screen shows %+v, the database has %+v", s.slots[id], truth[id])
		}
	}
	if len(s.slots) != slotsPerDay {
		return fmt.Errorf("a screen shows %d slots of doctor %d", len(s.slots), s.doctor)
	}
	return nil
}

// settleWithin is how long the last change may take to the last screen. Whoever has not got it
// by then has lost it.
const settleWithin = 20 * time.Second

// settle waits until all screens show what the database has, and counts those that never do.
func (a *audience) settle(ctx context.Context, db *database) (broken int64, err error) {
	truth, err := db.truth(ctx)
	if err != nil {
		return 0, err
	}
	for giveUp := time.Now().Add(settleWithin); ; sleepUntil(ctx, time.Now().Add(20*time.Millisecond)) {
		wrong, ended, example := a.compare(truth)
		if wrong+ended == 0 || ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if time.Now().After(giveUp) {
			db.log("VIOLATION: %d screens are wrong at the end and %d connections have ended: %v", wrong, ended, example)
			return wrong + ended, nil
		}
	}
}

// heard waits until the screens were sent so many messages in all.
func (a *audience) heard(ctx context.Context, want int64) error {
	for giveUp := time.Now().Add(settleWithin); a.messages() < want; sleepUntil(ctx, time.Now().Add(20*time.Millisecond)) {
		if time.Now().After(giveUp) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%d of %d messages have come", a.messages(), want), ctx.Err())
		}
	}
	return nil
}

// flicker has screens disconnect abruptly and come back, so many in a second, until ctx ends.
func (a *audience) flicker(ctx context.Context, rate float64) error {
	random := random(5)
	for rate > 0 {
		sleepUntil(ctx, time.Now().Add(time.Duration(random.gap()/rate*float64(time.Second))))
		if ctx.Err() != nil {
			return nil
		}
		s := a.screens[random.below(len(a.screens))]
		if s.keep || s.stalled {
			continue
		}
		if err := a.comeBack(s); err != nil {
			return fmt.Errorf("a screen that came back: %w", err)
		}
	}
	return nil
}

func (a *audience) comeBack(s *screen) error {
	s.leave()
	s.gone.Wait()
	if err := s.connect(context.Background(), a.host); err != nil { // the run's end must not make it an error
		return err
	}
	a.watch(s)
	return nil
}

// popular spreads n screens over doctors: a few that everybody wants to see, and many that somebody does.
func popular(n, doctors int) []int {
	z := newZipf(doctors)
	random := random(4)
	all := make([]int, n)
	for i := range all {
		all[i] = i // everybody has one
		if i >= doctors {
			all[i] = z.draw(&random)
		}
	}
	return all
}
