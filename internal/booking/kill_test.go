package booking

import (
	"context"
	"fmt"
	"testing"
	"time"

	"openslot/internal/devenv"
)

// deaths are the points inside a transaction at which its session can be killed: triggers.
var deaths = map[string]string{
	"before the appointment":     `CREATE TRIGGER death BEFORE INSERT OR UPDATE ON appointment FOR EACH ROW EXECUTE FUNCTION die()`,
	"after the appointment":      `CREATE TRIGGER death AFTER INSERT OR UPDATE ON appointment FOR EACH ROW EXECUTE FUNCTION die()`,
	"before the slot":            `CREATE TRIGGER death BEFORE INSERT OR UPDATE ON time_slot FOR EACH ROW EXECUTE FUNCTION die()`,
	"after the slot":             `CREATE TRIGGER death AFTER INSERT OR UPDATE ON time_slot FOR EACH ROW EXECUTE FUNCTION die()`,
	"before the event":           `CREATE TRIGGER death BEFORE INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION die()`,
	"after the event":            `CREATE TRIGGER death AFTER INSERT ON outbox_event FOR EACH ROW EXECUTE FUNCTION die()`,
	"at COMMIT":                  `CREATE CONSTRAINT TRIGGER death AFTER INSERT ON outbox_event DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()`,
	"after COMMIT, before we do": "",
}

// killed runs a call again and again, and has its session killed at each point that it comes by, once for
// each time that it does. It gives how often one was. prepare makes what the call works on, undisturbed.
func killed(p *practice, db *devenv.DB, prepare func() func(*Service) error) (kills int) {
	p.t.Helper()
	cutter, url := newCutter(p.t, db)
	service := New(open(p.t, url), patient(now))
	p.exec(`CREATE SEQUENCE alive; CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
	    IF nextval('alive') = 100 THEN
	        PERFORM pg_terminate_backend(pg_backend_pid());
	        PERFORM pg_sleep(60);
	    END IF;
	    RETURN NEW;
	END $$`)
	for name, trigger := range deaths {
		for pass, reached := 1, true; reached; pass++ {
			call := prepare()
			if trigger == "" {
				cutter.cuts.Store(2)
			} else {
				p.exec(fmt.Sprint(`ALTER SEQUENCE alive RESTART WITH `, 101-pass))
				p.exec(trigger)
			}
			if err := call(service); err != nil {
				p.t.Errorf("killed %s, the %dth time: %v", name, pass, err)
			}
			if trigger == "" {
				kills += int(min(cutter.done.Load(), 1))
				break
			}
			if reached = one[bool](p, `SELECT is_called AND last_value >= 100 FROM alive`); reached {
				kills++
			}
			for _, table := range []string{"appointment", "time_slot", "outbox_event"} {
				p.exec(`DROP TRIGGER IF EXISTS death ON ` + table)
			}
		}
		p.check()
	}
	return kills
}

func TestKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	taken := func(status AppointmentStatus) func(Step, error) error {
		return func(s Step, err error) error {
			if err == nil && (!s.Changed || s.Appointment.Status != status) {
				return fmt.Errorf("%+v", s)
			}
			return err
		}
	}
	won := func(b Booking, err error) error {
		if err == nil && b.Replayed {
			return fmt.Errorf("%+v", b)
		}
		return err
	}
	for name, call := range map[string]struct {
		held  bool // it is about a hold
		moves bool // it is about an appointment in another slot
		call  func(s *Service, who Actor, slot SlotID, id AppointmentID) error
		kills int // points that it comes by
		count int // places taken afterwards
	}{
		"Book": {false, false, func(s *Service, who Actor, slot SlotID, _ AppointmentID) error {
			return won(s.Book(ctx, who, BookRequest{Slot: slot, Key: "k"}))
		}, 8, 1},
		"Hold": {false, false, func(s *Service, who Actor, slot SlotID, _ AppointmentID) error {
			return won(s.Hold(ctx, who, BookRequest{Slot: slot, Key: "k"}))
		}, 8, 1},
		"Confirm": {true, false, func(s *Service, who Actor, _ SlotID, id AppointmentID) error {
			return taken(AppointmentBooked)(s.Confirm(ctx, who, id))
		}, 6, 1}, // it leaves the slot alone
		"Release": {true, false, func(s *Service, who Actor, _ SlotID, id AppointmentID) error {
			return taken(AppointmentCancelled)(s.Release(ctx, who, id))
		}, 8, 0},
		"Reschedule": {false, true, func(s *Service, who Actor, slot SlotID, id AppointmentID) error {
			return won(s.Reschedule(ctx, who, RescheduleRequest{Appointment: id, To: slot, Key: "k"}))
		}, 14, 1},
		"Expire": {true, false, func(s *Service, _ Actor, _ SlotID, _ AppointmentID) error {
			later := New(s.pool, patient(lapse))
			_, err := later.Expire(ctx)
			return err
		}, 8, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := devenv.NewDB(t)
			p := &practice{t: t, pool: db.Pool}
			p.service = p.at(now)
			p.organization, p.doctor = p.newDoctor("Practice")
			var slots []SlotID
			kills := killed(p, db, func() func(*Service) error {
				who, slot := p.patient(), p.slot(time.Duration(len(slots)+1)*time.Hour, 1)
				slots = append(slots, slot)
				var id AppointmentID
				if call.moves {
					id = p.book(who, p.beside(time.Duration(len(slots))*time.Hour, 1), "b").Appointment.ID
				}
				if call.held {
					id = p.hold(who, slot, "h").Appointment.ID
				}
				return func(s *Service) error { return call.call(s, who, slot, id) }
			})
			if kills != call.kills {
				t.Errorf("killed at %d points, want %d", kills, call.kills)
			}
			if n := one[int](p, `SELECT count(*) FROM appointment WHERE status = 'BOOKED'`); call.moves && n != len(slots) {
				t.Errorf("%d appointments stand, want %d", n, len(slots))
			}
			for _, slot := range slots {
				if n := p.booked(slot); n != call.count {
					t.Errorf("slot %d: booked_count = %d, want %d", slot, n, call.count)
				}
			}
		})
	}
}
