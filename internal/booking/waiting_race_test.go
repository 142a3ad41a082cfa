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

	"openslot/internal/devenv"
)

// While somebody who fits waits, no direct booker gets what comes free, however it does: cancelled,
// refused, lapsed. Without the offer in the freeing transaction they do.
func TestNobodySlipsIn(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	race := func(t *testing.T, p *practice, service func(int) *Service, n int) (slipped int) {
		bookers := p.patients(4)
		for round, slot := range p.slots(n, 1) {
			holder := p.book(p.patient(), slot, "k")
			first, second := p.patient(), p.patient()
			w1, w2 := p.join(first), p.join(second)
			late := p.like(service(0), offerEnds)
			free := []func() error{
				func() error { // cancelled
					_, err := service(0).Cancel(ctx, holder.by(), CancelRequest{Appointment: holder.Appointment.ID})
					return err
				},
				func() error { // refused, or lapsed
					offer := entry(t, service(0), w1.ID).Offer
					switch {
					case offer == nil:
						return nil
					case round%2 == 0:
						_, err := service(0).Release(ctx, first, offer.ID)
						return err
					}
					_, err := late.Expire(ctx)
					return err
				},
			}
			for i, give := range free {
				var won atomic.Int32
				together(1+len(bookers), func(caller int) {
					if caller == 0 {
						if err := give(); err != nil {
							t.Error(err)
						}
						return
					}
					s := service(caller)
					if i == 1 && round%2 == 1 { // the lapse: they find it themselves
						s = late
					}
					claim := []func(context.Context, Actor, BookRequest) (Booking, error){s.Book, s.Hold}[caller%2]
					for try := range 3 {
						_, err := claim(ctx, bookers[caller-1], BookRequest{Slot: slot, Key: fmt.Sprint(slot, "-", i, "-", try)})
						if err == nil {
							won.Add(1)
							return
						}
						if err = allow(err, SlotFull); err != nil {
							t.Error(err)
						}
					}
				})
				slipped += int(won.Load())
				if won.Load() > 0 {
					t.Logf("round %d, freed for the %d. time: %d slipped in", round, i+1, won.Load())
					break
				}
			}
			if slipped == 0 { // and takes it, so that only this round's places come free in the next
				s := []*Service{service(0), late}[round%2]
				if _, err := s.Confirm(ctx, second, offered(t, s, w2.ID).ID); err != nil {
					t.Error(err)
				}
			}
			p.exec(`UPDATE waiting_entry SET status = 'LEFT' WHERE status IN ('WAITING', 'OFFERED')`)
		}
		return slipped
	}
	onEachRoad(t, func(t *testing.T, p *practice, service func(int) *Service) {
		if n := race(t, p, service, rounds(100)); n > 0 {
			t.Errorf("%d slipped in", n)
		}
		p.check()
	})
	t.Run("Control", func(t *testing.T) {
		p := newPractice(t)
		p.without("give_back", "IF p_waiting IS NOT NULL", "IF false")
		if race(t, p, func(int) *Service { return p.service }, 3) == 0 {
			t.Error("nobody slips in without the guard: the control does not bite")
		}
	})
}

// crossingOffers has two patients cancel at once who each wait for the other's place, and tells how many
// deadlocks there were. Locks are taken slowly, so that they really cross.
func crossingOffers(t *testing.T, unsorted bool) (deadlocks int) {
	ctx := context.Background()
	p := newPractice(t)
	home := p.doctor
	_, elsewhere := p.newDoctor("Elsewhere")
	p.without("lock_waiting", "PERFORM pg_advisory_xact_lock(p.k)", "PERFORM pg_advisory_xact_lock(p.k), pg_sleep(0.05)")
	if unsorted { // one's own first
		p.without("lock_waiting", "SELECT DISTINCT patient_lock_key(u.patient) AS k", "SELECT patient_lock_key(u.patient) AS k")
		p.without("lock_waiting", "ORDER BY k) AS p", "OFFSET 0) AS p")
	}
	for round := range 5 {
		patients := p.patients(2)
		var booked [2]Booking
		for i, doctor := range []DoctorID{home, elsewhere} {
			p.doctor = doctor
			booked[i] = p.book(patients[i], p.slot(time.Duration(5+2*round+i)*time.Hour, 1), fmt.Sprint(round))
			p.join(patients[1-i])
		}
		var mu sync.Mutex
		together(2, func(i int) {
			err := pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = 0`); err != nil { // or it would find the deadlock first
					return err
				}
				_, err := tx.Exec(ctx, `SELECT step($1, 'CANCEL', $2, $3, NULL, NULL, 'patient:x', NULL, false)`,
					now, booked[i].Appointment.ID, patients[i].PatientID)
				return err
			})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case isCollision(err):
				deadlocks++
			case err != nil:
				t.Error(err)
			}
		})
		if deadlocks == 0 { // each has the other's
			for i := range 2 {
				if n := one[int](p, `SELECT count(*) FROM appointment WHERE slot_id = $1 AND patient_id = $2 AND status = 'HELD'`,
					booked[i].Appointment.SlotID, patients[1-i].PatientID); n != 1 {
					t.Errorf("%d offers", n)
				}
			}
		}
		p.check()
		p.exec(`UPDATE waiting_entry SET status = 'LEFT'`)
	}
	return deadlocks
}

func TestCrossingOffers(t *testing.T) {
	t.Parallel()
	if n := crossingOffers(t, false); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
	if crossingOffers(t, true) == 0 {
		t.Error("no deadlock though nobody sorts: the control does not bite")
	}
}

// Everything at once, on few slots, by two instances and a sweeper: at every moment the places taken and
// offered are those counted, and within capacity.
func TestMixOfOffers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.exec(`UPDATE organization SET offer_minutes = 1`)
	slots, patients := p.slots(4, 1, 2), p.patients(16)
	begun := time.Now()
	config := patient(now)
	config.Now = func() time.Time { return now.Add(60 * time.Since(begun)) } // offers lapse within seconds
	services := []*Service{New(p.pool, config), New(p.pool, config)}
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-ended:
				return
			default:
				p.check()
			}
		}
	})
	var offers atomic.Int64
	together(len(patients), func(caller int) {
		dice := rand.New(rand.NewPCG(uint64(caller), 7))
		who := patients[caller]
		for n := range rounds(600) {
			s := services[dice.IntN(2)]
			r := BookRequest{Slot: slots[dice.IntN(len(slots))], Key: fmt.Sprintf("%d.%d", caller, n)}
			var mine []Appointment
			page, err := s.PatientAppointments(ctx, who, Page{First: 10})
			for _, a := range page.Appointments {
				if a.Status == AppointmentHeld || a.Status == AppointmentBooked {
					mine = append(mine, a)
				}
			}
			some := Appointment{ID: 1}
			if len(mine) > 0 {
				some = mine[dice.IntN(len(mine))]
			}
			switch dice := dice.IntN(12); {
			case err != nil:
			case dice < 3:
				_, _, err = s.JoinWaitingList(ctx, who, WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(1 + dice)})
			case dice == 3:
				var list WaitingPage
				if list, err = s.PatientWaiting(ctx, who, Page{First: 1}); err == nil && len(list.Entries) > 0 {
					if list.Entries[0].Offer != nil {
						offers.Add(1)
					}
					_, _, err = s.LeaveWaitingList(ctx, who, list.Entries[0].ID)
				}
			case dice == 4:
				_, err = s.Hold(ctx, who, r)
			case dice < 7:
				_, err = s.Book(ctx, who, r)
			case dice == 7:
				_, err = s.Confirm(ctx, who, some.ID)
			case dice == 8:
				_, err = s.Release(ctx, who, some.ID)
			case dice < 11:
				_, err = s.Cancel(ctx, who, CancelRequest{Appointment: some.ID})
			default:
				_, err = s.Expire(ctx)
			}
			if err = allow(err, SlotFull, AlreadyBooked, HoldExpired, InvalidState, NotFound, LimitReached); err != nil {
				t.Error(err)
			}
		}
	})
	close(ended)
	watching.Wait()
	p.check()
	told := one[int](p, `SELECT count(*) FROM outbox_event WHERE type = 'OFFERED'`)
	t.Logf("%d offers", told)
	if told == 0 {
		t.Error("nobody was offered anything")
	}
}

// A session is killed at every row that a transaction with an offer touches: afterwards the place is
// offered once, or taken once, and to the right one.
func TestOfferKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, call := range map[string]struct {
		held  bool // what comes free was held
		call  func(p *practice, s *Service, of Booking, waits Actor, to SlotID) error
		kills int // points that it comes by
		after WaitingStatus
	}{
		"Cancel": {false, func(_ *practice, s *Service, of Booking, _ Actor, _ SlotID) error {
			_, err := s.Cancel(ctx, of.by(), CancelRequest{Appointment: of.Appointment.ID})
			return err
		}, 18, WaitingOffered},
		"Lapse": {true, func(p *practice, s *Service, _ Booking, _ Actor, _ SlotID) error {
			_, err := New(s.pool, patient(lapse)).Expire(ctx)
			return err
		}, 18, WaitingOffered},
		"Move": {false, func(p *practice, s *Service, of Booking, _ Actor, to SlotID) error {
			_, err := s.Reschedule(ctx, of.by(), RescheduleRequest{Appointment: of.Appointment.ID, To: to, Key: fmt.Sprint(of.Appointment.ID)})
			return err
		}, 27, WaitingOffered},
		"Confirm": {false, func(p *practice, s *Service, of Booking, waits Actor, _ SlotID) error {
			p.cancel(of)
			_, err := s.Confirm(ctx, waits, one[AppointmentID](p, `SELECT max(id) FROM appointment`))
			return err
		}, 27, WaitingBooked},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := devenv.NewDB(t)
			p := &practice{t: t, pool: db.Pool}
			p.service = p.at(now)
			p.organization, p.doctor = p.newDoctor("Practice")
			victim := New(open(t, db.URL), patient(now))
			p.exec(`CREATE SEQUENCE alive; CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN
			    IF nextval('alive') = TG_ARGV[0]::int THEN
			        PERFORM pg_terminate_backend(pg_backend_pid());
			        PERFORM pg_sleep(60);
			    END IF;
			    RETURN NEW;
			END $$`)
			kills, tries := 0, 0
			for _, table := range []string{"appointment", "time_slot", "waiting_entry", "outbox_event"} {
				for _, trigger := range []string{
					"CREATE TRIGGER death BEFORE INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION die(%d)",
					"CREATE TRIGGER death AFTER INSERT OR UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION die(%d)",
					"CREATE CONSTRAINT TRIGGER death AFTER INSERT OR UPDATE ON %s DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die(%d)",
				} {
					for row, died := 1, true; died; row++ {
						tries++
						slot, take := p.slot(time.Duration(5+tries)*time.Hour, 1), p.book
						if call.held {
							take = p.hold
						}
						of, waits := take(p.patient(), slot, fmt.Sprint(tries)), p.patient()
						w, to := p.join(waits), p.beside(300*time.Hour, 1)
						p.exec(`ALTER SEQUENCE alive RESTART`)
						p.exec(fmt.Sprintf(trigger, table, row))
						if err := call.call(p, victim, of, waits, to); err != nil {
							t.Errorf("row %d of %s, %s: %v", row, table, trigger, err)
						}
						p.exec(`DROP TRIGGER death ON ` + table)
						wantStatus(t, p.service, w.ID, call.after)
						if n := p.booked(slot); n != 1 {
							t.Errorf("row %d of %s, %s: booked_count = %d, want 1", row, table, trigger, n)
						}
						p.exec(`UPDATE waiting_entry SET status = 'LEFT' WHERE status = 'WAITING'`)
						if died = one[bool](p, `SELECT is_called AND last_value >= $1 FROM alive`, row); died {
							kills++
						}
					}
				}
			}
			if kills != call.kills {
				t.Errorf("killed at %d points, want %d", kills, call.kills)
			}
		})
	}
}

// Of more than can be locked at once, it is those who have waited longest who are offered something.
func TestManyTurns(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	slot := p.slot(30*time.Hour, 1000)
	p.exec(`UPDATE time_slot SET booked_count = 500 WHERE id = $1`, slot)
	p.exec(`
		WITH p AS (INSERT INTO patient (issuer, subject) SELECT 'https://id.example', 'late-' || n FROM generate_series(1, 520) AS n RETURNING id)
		INSERT INTO waiting_entry (doctor_id, organization_id, patient_id, first_day, last_day, during, turn, joined_by, created_at)
		SELECT $1, $2, id, $4, $4::date + 30, tstzrange($3, $3::timestamptz + interval '30 days'), $3::timestamptz - id * interval '1 s', 'patient:x', $3::timestamptz - interval '1 day'
		  FROM p`, p.doctor, p.organization, now, today)
	p.exec(`
		WITH locked AS MATERIALIZED (SELECT id FROM time_slot WHERE id = $1 FOR NO KEY UPDATE),
		     waiting AS MATERIALIZED (SELECT id, lock_waiting($2, ARRAY[id], ARRAY[500], '{}') AS entries FROM locked)
		SELECT give_back($2, ARRAY[id], ARRAY[500], entries) FROM waiting`, slot, now)
	if n := one[int](p, `SELECT count(*) FROM waiting_entry WHERE status = 'OFFERED'`); n != 500 {
		t.Errorf("%d offers, want 500", n)
	}
	if n := one[int](p, `
		SELECT count(*) FROM waiting_entry w
		 WHERE status = 'WAITING' AND EXISTS (SELECT FROM waiting_entry o WHERE o.status = 'OFFERED' AND o.patient_id < w.patient_id)`); n != 0 {
		t.Errorf("%d who have waited longer than others were passed over", n)
	}
}
