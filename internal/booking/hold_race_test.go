package booking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// like is an instance on the same road as another, at another time.
func (p *practice) like(other *Service, now time.Time) *Service {
	config := patient(now)
	config.Plain, config.unkeyed = other.batcher == nil, other.stripes == nil
	return New(p.pool, config)
}

// B04: every entry path obeys the same condition: one place, and it is booked or held, never both.
func TestRaceOfBookAndHold(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		patients := p.patients(8)
		for _, slot := range p.slots(rounds(500), 1, 3) {
			capacity := one[int](p, `SELECT capacity FROM time_slot WHERE id = $1`, slot)
			var won, full atomic.Int32
			together(len(patients), func(i int) {
				s := service(i)
				claim := []func(context.Context, Actor, BookRequest) (Booking, error){s.Book, s.Hold}[i%2]
				_, err := claim(context.Background(), patients[i], BookRequest{Slot: slot, Key: fmt.Sprint(slot)})
				switch code(err) {
				case "":
					won.Add(1)
				case SlotFull:
					full.Add(1)
				default:
					t.Error(err)
				}
			})
			if int(won.Load()) != capacity || int(full.Load()) != len(patients)-capacity {
				t.Fatalf("capacity %d: %d won, %d full", capacity, won.Load(), full.Load())
			}
		}
		p.check()
	})
}

// The moment a hold lapses: its holder confirms and gives it back, others book and hold, sweepers
// sweep. Whoever decides by a clock before that moment may still confirm, everybody else finds the
// place free, and it has one owner at the end.
func TestRaceAtTheLapse(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		ctx := context.Background()
		before, after := p.like(service(0), lapse.Add(-time.Microsecond)), p.like(service(0), lapse)
		patients := p.patients(4)
		for _, slot := range p.slots(rounds(500), 1) {
			held, err := service(0).Hold(ctx, patients[0], BookRequest{Slot: slot, Key: fmt.Sprint(slot)})
			if err != nil {
				t.Fatal(err)
			}
			var confirmed, booked atomic.Int32
			did := []func() error{
				func() error {
					_, err := before.Confirm(ctx, patients[0], held.Appointment.ID)
					if err == nil {
						confirmed.Add(1)
					}
					return allow(err, HoldExpired)
				},
				func() error {
					_, err := after.Confirm(ctx, patients[0], held.Appointment.ID)
					return allow(err, HoldExpired) // and without an error if it was confirmed already
				},
				func() error { _, err := after.Expire(ctx); return err },
				func() error { _, err := p.service.Expire(ctx, p.doctor); return err },
			}
			for i, claim := range []func(context.Context, Actor, BookRequest) (Booking, error){after.Book, after.Hold, after.Book} {
				did = append(did, func() error {
					_, err := claim(ctx, patients[1+i], BookRequest{Slot: slot, Key: fmt.Sprint(slot)})
					if err == nil {
						booked.Add(1)
					}
					return allow(err, SlotFull)
				})
			}
			together(len(did), func(i int) {
				if err := did[i](); err != nil {
					t.Errorf("call %d: %v", i, err)
				}
			})
			if confirmed.Load()+booked.Load() != 1 || one[int](p, `SELECT booked_count FROM time_slot WHERE id = $1`, slot) != 1 {
				t.Fatalf("%d confirmed, %d booked", confirmed.Load(), booked.Load())
			}
			p.exec(`UPDATE appointment SET status = 'BOOKED', expires_at = NULL WHERE status = 'HELD'`) // so that only this round's lapse
			p.exec(`INSERT INTO outbox_event (root_id, type, payload)
				SELECT root_id, 'BOOKED', '{}' FROM appointment a WHERE status = 'BOOKED'
				   AND (SELECT type FROM outbox_event e WHERE e.root_id = a.root_id ORDER BY id DESC LIMIT 1) = 'HELD'`)
		}
		p.check()
	})
}

// allow lets some refusals pass.
func allow(err error, codes ...Code) error {
	for _, c := range codes {
		if code(err) == c {
			return nil
		}
	}
	return err
}

// Several sweepers at once, and each hold ends once.
func TestSweepersAtOnce(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	slots := p.slots(rounds(3000), 3)
	holds := 0
	for i, patient := range p.patients(3) {
		together(8, func(worker int) {
			for n := worker; n < len(slots); n += 8 {
				if _, err := p.service.Hold(context.Background(), patient, BookRequest{Slot: slots[n], Key: fmt.Sprintf("%d.%d", i, n)}); err != nil {
					t.Error(err)
				}
			}
		})
		holds += len(slots)
	}
	var expired atomic.Int64
	together(4, func(i int) {
		sweeper := p.at(lapse)
		for {
			n, err := sweeper.Expire(context.Background())
			if err != nil {
				t.Error(err)
			}
			if expired.Add(int64(n)); n == 0 {
				return
			}
		}
	})
	if expired.Load() != int64(holds) {
		t.Errorf("%d of %d holds expired", expired.Load(), holds)
	}
	if n := one[int](p, `SELECT sum(booked_count) FROM time_slot`); n != 0 {
		t.Errorf("%d places are still taken", n)
	}
	p.check()
}

// A slot that somebody sits on is left alone by sweepers, and the others are tidied all the same.
func TestSweepPastALock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	stuck, free := p.slot(time.Hour, 1), p.slot(2*time.Hour, 1)
	p.hold(p.patient(), stuck, "k")
	p.hold(p.patient(), free, "k")
	err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM time_slot WHERE id = $1 FOR UPDATE`, stuck); err != nil {
			return err
		}
		if n, err := p.at(lapse).Expire(ctx); n != 1 || err != nil {
			t.Errorf("%d expired, %v; want 1", n, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, elsewhere := p.newDoctor("Elsewhere")
	if n, err := p.at(lapse).Expire(ctx, elsewhere); n != 0 || err != nil { // of another doctor
		t.Errorf("%d expired, %v; want 0", n, err)
	}
	if n, err := p.at(lapse).Expire(ctx, elsewhere, p.doctor); n != 1 || err != nil {
		t.Errorf("%d expired, %v; want 1", n, err)
	}
	p.check()
}

// Two patients hold crosswise, all lapsed, and book each other's slots, with referrals crosswise as
// well: nobody meets a deadlock, for whoever expires waits for nobody afterwards.
func TestCrossingLapses(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		ctx := context.Background()
		later := []*Service{p.like(service(0), lapse), p.like(service(0), lapse)}
		_, elsewhere := p.newDoctor("Elsewhere")
		patients := p.patients(2)
		for n, slot := range p.slots(rounds(300), 1) {
			beside := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
				SELECT $2, start_at, end_at, 1, opens_at FROM time_slot WHERE id = $1 RETURNING id`, slot, elsewhere)
			pair := []SlotID{slot, beside}
			for i := range 2 {
				if _, err := service(i).Hold(ctx, patients[i], BookRequest{Slot: pair[i], Key: fmt.Sprint("h", n), Referral: fmt.Sprintf("%d.%d", n, i)}); err != nil {
					t.Fatal(err)
				}
			}
			together(2, func(i int) {
				if _, err := later[i].Book(ctx, patients[i], BookRequest{Slot: pair[1-i], Key: fmt.Sprint("b", n), Referral: fmt.Sprintf("%d.%d", n, 1-i)}); err != nil {
					t.Errorf("patient %d: %v", i, err)
				}
			})
		}
		p.check()
		if n := one[int64](p, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
			t.Errorf("%d deadlocks", n)
		}
	})
}

// Everything at once on few slots, by two instances whose clocks are minutes apart, and two sweepers:
// counts, states and events agree, and nobody hears anything but the rules.
func TestMixOfClaims(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	slots, patients := p.slots(6, 1, 2), p.patients(10)
	services := []*Service{p.service, p.at(lapse), p.at(lapse.Add(-time.Minute))}
	var mu sync.Mutex
	var made []Booking
	together(16, func(caller int) {
		dice := rand.New(rand.NewPCG(uint64(caller), 7))
		for n := range rounds(10_000) / 16 {
			ctx, s := context.Background(), services[dice.IntN(len(services))]
			who := patients[dice.IntN(len(patients))]
			r := BookRequest{Slot: slots[dice.IntN(len(slots))], Key: fmt.Sprintf("%d.%d", caller, n)}
			if dice.IntN(2) == 0 {
				r.Referral = fmt.Sprint("R", dice.IntN(4))
			}
			mu.Lock()
			some := Booking{}
			if len(made) > 0 {
				some = made[dice.IntN(len(made))]
			}
			mu.Unlock()
			id, owner := some.Appointment.ID, Actor{Kind: Patient, PatientID: some.Appointment.PatientID}
			var err error
			var b Booking
			switch dice.IntN(12) {
			case 10, 11:
				id = max(id, 1)
				b, err = s.Reschedule(ctx, owner, RescheduleRequest{Appointment: id, To: r.Slot, Key: r.Key})
			case 0, 1, 2:
				b, err = s.Hold(ctx, who, r)
			case 3, 4:
				b, err = s.Book(ctx, who, r)
			case 5, 6:
				_, err = s.Confirm(ctx, owner, id)
			case 7:
				_, err = s.Release(ctx, owner, id)
			case 8:
				_, err = s.Cancel(ctx, owner, CancelRequest{Appointment: id})
			default:
				_, err = s.Expire(ctx)
			}
			if err = allow(err, SlotFull, AlreadyBooked, ReferralInUse, HoldExpired, InvalidState, NotFound); err != nil {
				t.Error(err)
			}
			if b.Appointment.ID != 0 {
				mu.Lock()
				made = append(made, b)
				mu.Unlock()
			}
		}
	})
	p.check()
	if n := one[int](p, `SELECT count(DISTINCT status) FROM appointment`); n < 3 {
		t.Errorf("appointments have come to only %d states", n)
	}
}
