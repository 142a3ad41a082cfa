package booking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

// B08: of two visits that overlap, booked at once, one succeeds, and the loser leaves nothing taken.
func TestRaceOfTwoTimes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newFlexible(t)
	services := []*Service{p.service, p.at(now)}
	for round := range rounds(300) {
		patients := p.patients(2)
		at := 24 * 60 * (round % 10)
		won := make([]Booking, 2)
		errs := make([]error, 2)
		together(2, func(i int) {
			won[i], errs[i] = services[i].Book(ctx, patients[i], BookRequest{Time: p.time(at+15*i, 30), Key: "k"})
		})
		winner := 0
		if errs[0] != nil {
			winner = 1
		}
		if errs[winner] != nil || code(errs[1-winner]) != SlotFull {
			t.Fatalf("round %d: %v, %v", round, errs[0], errs[1])
		}
		// The quarter of an hour that only the loser wanted is free.
		b, err := p.bookTime(patients[1-winner], "k2", p.time(at+30*(1-winner), 15))
		if err != nil {
			t.Fatal(err)
		}
		p.wantTaken([]string{"10:00-10:30 10:30-10:45", "10:00-10:15 10:15-10:45"}[winner])
		for i, id := range []AppointmentID{won[winner].Appointment.ID, b.Appointment.ID} {
			if _, err := p.service.Cancel(ctx, []Actor{patients[winner], patients[1-winner]}[i], CancelRequest{Appointment: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// impatient is a configuration that runs nothing again, on a database that looks for deadlocks soon.
// busy takes an error that is a deadlock, which dead counts, or means that the machine is slow.
func (p *practice) impatient() (config Config, busy func(error) bool, dead *atomic.Int64) {
	p.t.Helper()
	p.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''50ms''', current_database()); END $$`)
	p.pool.Reset()
	config, dead = patient(now), new(atomic.Int64)
	config.Persist = time.Nanosecond
	return config, func(err error) bool {
		if sqlState(err) == "40P01" {
			dead.Add(1)
		}
		return code(err) == Overloaded
	}, dead
}

// stampede has 16 callers at two instances book, hold, give back and let lapse times of one doctor, all
// at once, with sweepers. Whoever does not win hears why. It returns how often there was a deadlock.
func (p *practice) stampede(calls int) (deadlocks int64, err error) {
	ctx := context.Background()
	config, busy, dead := p.impatient()
	var late atomic.Int64
	config.Now = func() time.Time { return now.Add(time.Duration(late.Load())) }
	services := []*Service{New(p.pool, config), New(p.pool, config)}
	patients := p.patients(8)
	var crowd errgroup.Group
	for caller := range 16 {
		crowd.Go(func() error {
			s, random := services[caller%2], rand.New(rand.NewPCG(uint64(caller), 1))
			for n := range calls / 16 {
				actor := patients[random.IntN(len(patients))]
				r := BookRequest{Time: p.time(15*random.IntN(6), 15+15*random.IntN(4)), Key: fmt.Sprint(caller, "-", n)}
				claim := []func(context.Context, Actor, BookRequest) (Booking, error){s.Book, s.Hold}[random.IntN(2)]
				b, err := claim(ctx, actor, r)
				if err := allow(err, SlotFull, Overlap, AlreadyBooked, SlotPast); err != nil && !busy(err) {
					return fmt.Errorf("claim: %w", err)
				}
				switch end := random.IntN(8); {
				case err != nil:
				case end == 0: // left to the sweeper or whoever is hindered
					late.Add(int64(11 * time.Second))
				case b.Appointment.Status == AppointmentHeld && end < 4:
					_, err = s.Release(ctx, actor, b.Appointment.ID)
				default:
					_, err = s.Cancel(ctx, actor, CancelRequest{Appointment: b.Appointment.ID})
				}
				if err := allow(err, HoldExpired, TooLate, InvalidState, SlotFull, Overlap, AlreadyBooked, SlotPast); err != nil && !busy(err) {
					return fmt.Errorf("give back: %w", err)
				}
				if random.IntN(8) == 0 {
					if _, err := s.Expire(ctx); err != nil && !busy(err) {
						return fmt.Errorf("expire: %w", err)
					}
				}
			}
			return nil
		})
	}
	err = crowd.Wait()
	return dead.Load(), err
}

func TestRaceOfTimes(t *testing.T) {
	t.Parallel()
	calls := map[string]int{"Guarded": 20_000, "ConstraintAlone": 3_000}
	for name, without := range map[string]func(p *practice){
		"Guarded": func(*practice) {},
		// ex_flexible_doctor_time decides: nothing else need be known beforehand.
		"ConstraintAlone": func(p *practice) {
			p.without("claim_time", "PERFORM pg_advisory_xact_lock(hashtextextended('doctor:' || p_doctor, 0));", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFlexible(t)
			without(p)
			deadlocks, err := p.stampede(rounds(calls[name]))
			if err != nil || deadlocks > 0 && name == "Guarded" {
				t.Errorf("%d deadlocks, %v", deadlocks, err)
			}
			p.check()
		})
	}
}

// overlapping counts pairs of slots of a doctor that must not be: of one FLEXIBLE and any other.
func (p *practice) overlapping() int {
	return one[int](p, `
		SELECT count(*) FROM time_slot f JOIN time_slot o ON o.doctor_id = f.doctor_id AND o.id <> f.id
		    AND tstzrange(o.start_at, o.end_at) && tstzrange(f.start_at, f.end_at)
		 WHERE f.kind = 'FLEXIBLE' AND f.status <> 'WITHDRAWN' AND o.status <> 'WITHDRAWN'`)
}

// interleave runs a call while a transaction that has done something is open: until the call waits
// for a lock or is over. Then the transaction is committed.
func (p *practice) interleave(doing []string, call func() error) error {
	p.t.Helper()
	ctx := context.Background()
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		p.t.Fatal(err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // a no-op after Commit
	waits := time.NewTicker(5 * time.Millisecond)
	defer waits.Stop()
	for _, sql := range doing {
		if _, err := tx.Exec(ctx, sql, p.doctor, now); err != nil {
			p.t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	go func() { done <- call() }()
	for {
		select {
		case err := <-done:
			if err := tx.Commit(ctx); err != nil {
				p.t.Fatal(err)
			}
			return err
		case <-waits.C:
		}
		if one[int](p, `SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`) > 0 {
			if err := tx.Commit(ctx); err != nil {
				p.t.Fatal(err)
			}
			return <-done
		}
	}
}

// The controls: each guard is left out where it is the only one, and is missed.
func TestTimeControls(t *testing.T) {
	t.Parallel()
	const lock = "PERFORM pg_advisory_xact_lock(hashtextextended('doctor:' || p_doctor, 0));"
	generate := []string{ // as generation does: the doctor's lock, then the slots
		`SELECT pg_advisory_xact_lock(hashtextextended('doctor:' || $1::bigint, 0)), $2::timestamptz`,
		`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		 VALUES ($1, $2::timestamptz + interval '70 min', $2::timestamptz + interval '90 min', 3, '2026-01-01')`,
	}
	taken := []string{ // as another booking does, of an overlapping time
		`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at, kind)
		 VALUES ($1, $2::timestamptz + interval '75 min', $2::timestamptz + interval '105 min', 1, '2026-01-01', 'FLEXIBLE')`,
	}
	for name, tt := range map[string]struct {
		doing   []string
		without func(p *practice)
		want    Code
		overlap bool
	}{
		"Generation":            {generate, func(*practice) {}, SlotIsClosed, false},
		"GenerationWithoutLock": {generate, func(p *practice) { p.without("claim_time", lock, "") }, "", true},
		"Taken":                 {taken, func(*practice) {}, SlotFull, false},
		"TakenWithoutConstraint": {taken, func(p *practice) {
			p.exec(`ALTER TABLE time_slot DROP CONSTRAINT ex_flexible_doctor_time`)
		}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFlexible(t)
			tt.without(p)
			err := p.interleave(tt.doing, func() error { _, err := p.bookTime(p.patient(), "k", p.time(0, 30)); return err })
			wantCode(t, err, tt.want)
			if n := p.overlapping(); (n > 0) != tt.overlap {
				t.Errorf("%d pairs of slots overlap", n)
			}
		})
	}
	t.Run("WindowUnchecked", func(t *testing.T) {
		t.Parallel()
		p := newFlexible(t)
		_, err := p.bookTime(p.patient(), "k", p.time(22*60-15, 30))
		wantCode(t, err, SlotIsClosed)
		p.without("working_hours", "w.start_minute)", "w.start_minute - 60)")
		if _, err := p.bookTime(p.patient(), "k", p.time(22*60-15, 30)); err != nil {
			t.Errorf("%v: the test does not see the window", err)
		}
	})
	t.Run("RowKept", func(t *testing.T) { // a refused call's row has to go
		t.Parallel()
		p := newFlexible(t)
		p.without("claim_time", "IF outcome <> 'WON' THEN", "IF false THEN")
		_, err := p.bookTime(p.patient(), "k", p.time(-60, 15))
		wantCode(t, err, SlotPast)
		if n := one[int](p, `SELECT count(*) FROM time_slot WHERE kind = 'FLEXIBLE' AND booked_count = 0`); n != 1 {
			t.Errorf("%d rows without an appointment: the test of that does not see them", n)
		}
	})
}
