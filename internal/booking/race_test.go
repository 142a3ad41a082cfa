package booking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"
)

// together runs n calls at once, none before all are ready.
func together(n int, call func(i int)) {
	var ready, done sync.WaitGroup
	start := make(chan struct{})
	ready.Add(n)
	for i := range n {
		done.Go(func() {
			ready.Done()
			<-start
			call(i)
		})
	}
	ready.Wait()
	close(start)
	done.Wait()
}

// roads are the ways a booking can go; every race is run on each.
var roads = map[string]struct {
	plain     bool
	unkeyed   bool // nobody takes turns in the process
	instances int
}{
	"Batched":      {false, false, 1},
	"TwoInstances": {false, true, 2},
	"Plain":        {true, false, 1},
}

// onEachRoad runs the race on every road. service is the instance that caller i talks to; nobody
// is refused for want of a connection.
func onEachRoad(t *testing.T, race func(t *testing.T, p *practice, service func(i int) *Service)) {
	for name, road := range roads {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t)
			config := patient(now)
			config.Plain, config.unkeyed = road.plain, road.unkeyed
			var services []*Service
			for range road.instances {
				services = append(services, New(p.pool, config))
			}
			race(t, p, func(i int) *Service { return services[i%len(services)] })
		})
	}
}

// B01, B03: as many win as there are places, and everybody else hears SLOT_FULL.
func TestRaceForOneSlot(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		for n, test := range []struct{ callers, capacity int }{{2, 1}, {20, 1}, {200, 3}} {
			slot, patients := p.slot(time.Duration(n+1)*time.Hour, test.capacity), p.patients(test.callers)
			answers := make([]Code, test.callers)
			together(test.callers, func(i int) {
				_, err := service(i).Book(context.Background(), patients[i], BookRequest{Slot: slot, Key: "k"})
				answers[i] = code(err)
			})
			count := map[Code]int{}
			for _, a := range answers {
				count[a]++
			}
			if count[""] != test.capacity || count[SlotFull] != test.callers-test.capacity {
				t.Errorf("%d callers: answers %v, want %d won and the rest SLOT_FULL", test.callers, count, test.capacity)
			}
			if n := p.booked(slot); n != test.capacity {
				t.Errorf("booked_count = %d, want %d", n, test.capacity)
			}
		}
	})
}

// Wins equal capacity exactly, both ways: nothing oversold, no place lost.
func TestRaceForManySlots(t *testing.T) {
	t.Parallel()
	const racers = 24
	capacity := []int{1, 3, 20}
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		patients := p.patients(racers)
		var crowd errgroup.Group
		crowd.SetLimit(8) // slots raced for side by side
		var wrong atomic.Int32
		for i, slot := range p.slots(rounds(10_000), capacity...) {
			crowd.Go(func() error {
				var won, full atomic.Int32
				together(racers, func(r int) {
					_, err := service(r).Book(context.Background(), patients[r], BookRequest{Slot: slot, Key: fmt.Sprint(slot)})
					switch code(err) {
					case "":
						won.Add(1)
					case SlotFull:
						full.Add(1)
					}
				})
				if want := capacity[i%3]; int(won.Load()) != want || int(full.Load()) != racers-want {
					wrong.Add(1)
					return fmt.Errorf("slot of capacity %d: %d won, %d full", want, won.Load(), full.Load())
				}
				return nil
			})
		}
		if err := crowd.Wait(); err != nil {
			t.Errorf("%v (and %d like it)", err, wrong.Load()-1)
		}
		p.check()
	})
}

// The negative control of the races: a booking that reads the count first and writes it in
// another statement, as careless programs do, must be caught. With the constraint it runs into
// chk_booked or loses bookings; without, it oversells. Otherwise the races prove nothing.
func TestReadThenWriteOversells(t *testing.T) {
	t.Parallel()
	const racers = 8
	careless := func(p *practice, slot SlotID, write string) (won int32, stopped int32) {
		patients := p.patients(racers)
		var read sync.WaitGroup // the barrier: all have read before one writes
		read.Add(racers)
		var w, s atomic.Int32
		together(racers, func(i int) {
			err := pgx.BeginFunc(context.Background(), p.pool, func(tx pgx.Tx) error {
				ctx := context.Background()
				var free, booked int
				err := tx.QueryRow(ctx, `SELECT capacity - booked_count, booked_count FROM time_slot WHERE id = $1`, slot).Scan(&free, &booked)
				read.Done()
				read.Wait()
				if err != nil || free < 1 {
					return errors.Join(err, errors.New("full"))
				}
				if _, err := tx.Exec(ctx, strings.ReplaceAll(write, "$2", fmt.Sprint(booked+1)), slot); err != nil {
					return err
				}
				_, err = tx.Exec(ctx, `INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status,
					idempotency_key, booked_by, request_hash, during)
					SELECT v, v, $1, $2, $3, 'BOOKED', v::text, 'careless', '', tstzrange(start_at, end_at)
					  FROM nextval('appointment_id_seq') v, time_slot WHERE time_slot.id = $1`,
					slot, patients[i].PatientID, p.organization)
				return err
			})
			switch {
			case err == nil:
				w.Add(1)
			case Constraint(err) == "chk_booked":
				s.Add(1)
			}
		})
		return w.Load(), s.Load()
	}

	t.Run("StoppedByConstraint", func(t *testing.T) {
		t.Parallel()
		p := newPractice(t)
		won, stopped := careless(p, p.slot(time.Hour, 1), `UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1`)
		if won != 1 || stopped != racers-1 {
			t.Errorf("%d won and %d were stopped by chk_booked, want 1 and %d", won, stopped, racers-1)
		}
	})
	t.Run("OversellsWithoutConstraint", func(t *testing.T) {
		t.Parallel()
		p := newPractice(t)
		p.exec(`ALTER TABLE time_slot DROP CONSTRAINT chk_booked`)
		if won, _ := careless(p, p.slot(time.Hour, 1), `UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1`); won <= 1 {
			t.Errorf("%d won one place: the control does not bite", won)
		}
	})
	t.Run("OversellsUnseenByTheCount", func(t *testing.T) {
		t.Parallel()
		p := newPractice(t)
		if won, _ := careless(p, p.slot(time.Hour, 1), `UPDATE time_slot SET booked_count = $2 WHERE id = $1`); won <= 1 {
			t.Errorf("%d won one place: the control does not bite", won)
		}
	})
}

// If the first of two racers rolls back, the second wins.
func TestSecondWinsAfterRollback(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	slot, first, second := p.slot(time.Hour, 1), p.patient(), p.patient()
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	request := BookRequest{Slot: slot, Patient: first.PatientID, Key: "k"}
	if _, err := tx.Exec(ctx, claimSQL, now, true, []SlotID{slot}, []PatientID{first.PatientID}, []string{"k"},
		[]string{first.Caller()}, [][]byte{request.hash(false)}, []OrganizationID{0}, []string{""}, nil, nil, nil, nil); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error)
	go func() {
		_, err := p.service.Book(ctx, second, BookRequest{Slot: slot, Key: "k"})
		answer <- err
	}()
	p.waitForLock()
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("the second was refused: %v", err)
	}
	if n := p.booked(slot); n != 1 {
		t.Errorf("booked_count = %d, want 1", n)
	}
}

// waitForLock returns once somebody waits for a lock in this database.
func (p *practice) waitForLock() {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if one[int](p, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0 {
			return
		}
	}
	p.t.Fatal("nobody waits for a lock")
}

// B34: one submit, a hundred times at once.
func TestSameKeyHundredTimes(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		patient, slot := p.patient(), p.slot(time.Hour, 5)
		bookings := make([]Booking, 100)
		together(100, func(i int) {
			b, err := service(i).Book(context.Background(), patient, BookRequest{Slot: slot, Key: "k"})
			if err != nil {
				t.Error(err)
			}
			bookings[i] = b
		})
		fresh := 0
		for _, b := range bookings {
			if b.Appointment.ID != bookings[0].Appointment.ID {
				t.Fatalf("two appointments: %d and %d", b.Appointment.ID, bookings[0].Appointment.ID)
			}
			if !b.Replayed {
				fresh++
			}
		}
		if fresh != 1 || p.booked(slot) != 1 {
			t.Errorf("%d calls were told that they booked, %d places are taken; want 1 and 1", fresh, p.booked(slot))
		}
	})
}

// One key has one effect, with four callers at once for each of many keys.
func TestSameKeyStorm(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		keys := rounds(10_000)
		slots, patients := p.slots(keys/20, 20), p.patients(keys)
		var crowd errgroup.Group
		crowd.SetLimit(16)
		for k := range keys {
			crowd.Go(func() error {
				var ids [4]AppointmentID
				var errs [4]error
				together(4, func(i int) {
					var b Booking
					b, errs[i] = service(i).Book(context.Background(), patients[k], BookRequest{Slot: slots[k/20], Key: fmt.Sprint(k)})
					ids[i] = b.Appointment.ID
				})
				if ids != [4]AppointmentID{ids[0], ids[0], ids[0], ids[0]} {
					return errors.Join(append(errs[:], fmt.Errorf("key %d made appointments %v", k, ids))...)
				}
				return errors.Join(errs[:]...)
			})
		}
		if err := crowd.Wait(); err != nil {
			t.Error(err)
		}
		if n := one[int](p, `SELECT count(*) FROM appointment`); n != keys {
			t.Errorf("%d appointments for %d keys", n, keys)
		}
		p.check()
	})
}

// The same key at once for two slots: only uq_idempotency_key can tell, and does.
func TestSameKeyForTwoSlots(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		n := rounds(1000)
		slots, patients := p.slots(2*n, 1), p.patients(n)
		for k := range n {
			var answers [2]Code
			together(2, func(i int) {
				_, err := service(i).Book(context.Background(), patients[k], BookRequest{Slot: slots[2*k+i], Key: "k"})
				answers[i] = code(err)
			})
			if answers != [2]Code{"", IdempotencyKeyReused} && answers != [2]Code{IdempotencyKeyReused, ""} {
				t.Fatalf("answers %v", answers)
			}
		}
		p.check()
	})
}
