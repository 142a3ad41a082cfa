package booking

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"openslot/internal/devenv"
)

// free reports whether nobody has a stripe or waits for one.
func (s *stripes) free() bool {
	return s.waiting.Load() == 0 && !slices.ContainsFunc(s.held, func(c chan struct{}) bool { return len(c) > 0 })
}

// Many take random keys, whichever way round and twice the same, on enough stripes and on few: each key
// has one at a time (or the race detector finds the counters), everybody gets their turn, and nothing
// stays taken.
func TestStripesTakeTurns(t *testing.T) {
	t.Parallel()
	for _, count := range []int{1, 2, 7, stripeCount} {
		s := newStripes(count, time.Minute)
		var counts [8]int
		together(16, func(i int) {
			dice := rand.New(rand.NewPCG(uint64(i), uint64(count)))
			for range 500 {
				var keys []key
				for range 1 + dice.IntN(4) {
					keys = append(keys, key{keySlot, int64(dice.IntN(len(counts)))})
				}
				give, err := s.take(t.Context(), keys...)
				if err != nil {
					t.Error(err)
					return
				}
				for _, k := range keys {
					counts[k.id]++
				}
				give()
			}
		})
		if !s.free() {
			t.Errorf("%d stripes: some are still taken", count)
		}
	}
}

// Taken in two orders, stripes are waited for in a circle; take knows only one.
func TestStripesOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, sorted := range []bool{true, false} {
			s := newStripes(3, time.Second)
			keys := map[int]key{} // one on each stripe
			for id := int64(0); len(keys) < 3; id++ {
				k := key{keySlot, id}
				keys[s.order([]key{k})[0]] = k
			}
			var failed atomic.Int32
			var done sync.WaitGroup
			s.held[2] <- struct{}{} // so that both have begun before one is through
			for _, order := range [][]int{{0, 2, 1}, {1, 2, 0}} {
				done.Go(func() {
					taken := order
					if sorted {
						taken = s.order([]key{keys[order[0]], keys[order[1]], keys[order[2]]})
					}
					give, err := s.lock(t.Context(), taken)
					if err != nil {
						failed.Add(1)
						return
					}
					give()
				})
			}
			synctest.Wait()
			<-s.held[2]
			done.Wait()
			if stuck := failed.Load() > 0; stuck == sorted || !s.free() {
				t.Errorf("sorted %v: %d waited in vain", sorted, failed.Load())
			}
		}
	})
}

// A wait ends with the caller's context or the patience, with nothing taken, and the next one's turn comes.
func TestStripesGiveUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStripes(stripeCount, time.Second)
		one, other := key{keySlot, 1}, key{keySlot, 2}
		if slices.Equal(s.order([]key{one}), s.order([]key{other})) {
			one = key{keySlot, 3}
		}
		give, err := s.take(t.Context(), one)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := s.take(t.Context(), one, other); code(err) != Overloaded || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := s.take(ctx, other, one); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := s.take(ctx, one)
			left <- err
		}()
		synctest.Wait()
		next := make(chan func())
		go func() { // behind the other
			give, err := s.take(t.Context(), one)
			if err != nil {
				t.Error(err)
			}
			next <- give
		}()
		synctest.Wait()
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if give, err := s.take(t.Context(), other); err != nil { // which those who gave up had for a while
			t.Error(err)
		} else {
			give()
		}
		give()
		(<-next)()
		if !s.free() {
			t.Error("some are still taken")
		}
	})
}

// A bounded number waits; the others are told at once.
func TestStripesBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStripes(stripeCount, time.Second)
		k := key{keySlot, 1}
		give, err := s.take(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		var got, refused atomic.Int32
		var done sync.WaitGroup
		for range stripeMost + 10 {
			done.Go(func() {
				began := time.Now()
				switch give, err := s.take(t.Context(), k); {
				case err == nil:
					got.Add(1)
					give()
				case code(err) == Overloaded && time.Since(began) == 0:
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		give()
		done.Wait()
		if got.Load() != stripeMost || refused.Load() != 10 || !s.free() {
			t.Errorf("%d got their turn and %d were refused at once, want %d and 10", got.Load(), refused.Load(), stripeMost)
		}
	})
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	p := &places{ring: make([]place, 4)}
	for id := range AppointmentID(6) {
		p.note(outcome{appointment: Appointment{ID: id, SlotID: SlotID(100 + id)}}, outcome{})
	}
	for id, want := range []key{{keyAppointment, 0}, {keyAppointment, 1}, {keySlot, 102}, {keySlot, 103}, {keySlot, 104}, {keySlot, 105}, {keyAppointment, 6}} {
		if got := p.key(AppointmentID(id)); got != want {
			t.Errorf("appointment %d: %v, want %v", id, got, want)
		}
	}
	if got := p.key(-1); got != (key{keyAppointment, -1}) {
		t.Errorf("%v", got)
	}
}

// Those who wait for a slot that somebody sits on wait without a connection: others find one. Without
// turns they find none.
func TestTurnsSpareConnections(t *testing.T) {
	t.Parallel()
	for _, unkeyed := range []bool{false, true} {
		t.Run(fmt.Sprint("Unkeyed=", unkeyed), func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			db := devenv.NewDB(t)
			p := &practice{t: t, pool: db.Pool}
			p.organization, p.doctor = p.newDoctor("Practice")
			slot, elsewhere, patients := p.slot(time.Hour, 10), p.slot(2*time.Hour, 1), p.patients(8)
			pool := open(t, db.URL) // of two connections
			config := patient(now)
			config.unkeyed = unkeyed
			s := New(pool, config)
			var booked []AppointmentID
			for _, who := range patients {
				booked = append(booked, must(s.Hold(ctx, who, BookRequest{Slot: slot, Key: "k"})).Appointment.ID)
			}
			var waiting sync.WaitGroup
			err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `SELECT FROM time_slot WHERE id = $1 FOR UPDATE`, slot); err != nil {
					return err
				}
				for i, id := range booked {
					waiting.Go(func() {
						var err error
						switch i % 3 {
						case 0:
							_, err = s.Confirm(ctx, patients[i], id)
						case 1:
							_, err = s.Cancel(ctx, patients[i], CancelRequest{Appointment: id})
						default:
							_, err = s.Release(ctx, patients[i], id)
						}
						if allow(err, Overloaded) != nil { // the lock, for too long
							t.Error(err)
						}
					})
				}
				want := map[bool]int32{false: 1, true: 2}[unkeyed]
				queued := func() bool {
					return pool.Stat().AcquiredConns() == want && (unkeyed || s.stripes.waiting.Load() == int64(len(booked)-1)) &&
						one[int32](p, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == want
				}
				for deadline := time.Now().Add(9 * time.Second); !queued(); {
					if time.Now().After(deadline) {
						t.Fatalf("%d connections are taken, want %d", pool.Stat().AcquiredConns(), want)
					}
				}
				if !unkeyed {
					if _, err := s.Book(ctx, patients[0], BookRequest{Slot: elsewhere, Key: "e"}); err != nil {
						t.Error(err)
					}
				}
				return nil
			})
			waiting.Wait()
			if err != nil {
				t.Fatal(err)
			}
			if !unkeyed && !s.stripes.free() {
				t.Error("some turns were not given back")
			}
			p.check()
		})
	}
}
