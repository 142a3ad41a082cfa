package booking

import (
	"context"
	"fmt"
	"testing"
	"time"

	"openslot/internal/devenv"
)

// killing is a call about times that is killed: what it works on, a patient of its own has.
type killing struct {
	has   string // slot, time or held, or nothing
	call  func(s *Service, who Actor, has AppointmentID, slot SlotID, to *TimeTarget) (Booking, error)
	kills int
	want  string // what the patient has afterwards: kind of slot and state
}

// killings are the ways in which a time is taken, moved and given back.
func killings() map[string]killing {
	ctx := context.Background()
	move := func(s *Service, who Actor, id AppointmentID, slot SlotID, to *TimeTarget) (Booking, error) {
		return s.Reschedule(ctx, who, RescheduleRequest{Appointment: id, To: slot, ToTime: to, Key: "k"})
	}
	toTime := func(s *Service, who Actor, id AppointmentID, _ SlotID, to *TimeTarget) (Booking, error) {
		return move(s, who, id, 0, to)
	}
	stepped := func(step Step, err error) (Booking, error) {
		return Booking{Appointment: step.Appointment, Replayed: !step.Changed}, err
	}
	return map[string]killing{
		"Book": {"", func(s *Service, who Actor, _ AppointmentID, _ SlotID, to *TimeTarget) (Booking, error) {
			return s.Book(ctx, who, BookRequest{Time: to, Key: "k"})
		}, 10, "FLEXIBLE BOOKED"},
		"Hold": {"", func(s *Service, who Actor, _ AppointmentID, _ SlotID, to *TimeTarget) (Booking, error) {
			return s.Hold(ctx, who, BookRequest{Time: to, Key: "k"})
		}, 10, "FLEXIBLE HELD"},
		"SlotToTime": {"slot", toTime, 16, "FLEXIBLE BOOKED"},
		"TimeToTime": {"time", toTime, 16, "FLEXIBLE BOOKED"},
		"TimeToSlot": {"time", func(s *Service, who Actor, id AppointmentID, slot SlotID, _ *TimeTarget) (Booking, error) {
			return move(s, who, id, slot, nil)
		}, 14, "FIXED BOOKED"},
		"Cancel": {"time", func(s *Service, who Actor, id AppointmentID, _ SlotID, _ *TimeTarget) (Booking, error) {
			return stepped(s.Cancel(ctx, who, CancelRequest{Appointment: id}))
		}, 8, ""},
		"Release": {"held", func(s *Service, who Actor, id AppointmentID, _ SlotID, _ *TimeTarget) (Booking, error) {
			return stepped(s.Release(ctx, who, id))
		}, 8, ""},
		"Confirm": {"held", func(s *Service, who Actor, id AppointmentID, _ SlotID, _ *TimeTarget) (Booking, error) {
			return stepped(s.Confirm(ctx, who, id))
		}, 6, "FLEXIBLE BOOKED"},
	}
}

// prepare makes what the n-th call works on, and gives the call and the patient. A time moves to one that
// overlaps it.
func (k killing) prepare(p *practice, n int) (func(*Service) error, PatientID) {
	p.t.Helper()
	who, at := p.patient(), 24*60*(n/8)+60*(n%8)
	var id AppointmentID
	switch k.has {
	case "slot":
		id = p.book(who, p.beside(time.Duration(24*60+at)*time.Minute, 1), "b").Appointment.ID
	case "time", "held":
		b, err := p.service.claim(context.Background(), who, BookRequest{Time: p.time(at, 30), Key: "b"}, k.has == "held")
		if err != nil {
			p.t.Fatal(err)
		}
		id = b.Appointment.ID
	}
	slot, to := p.beside(time.Duration(40*24*60+at)*time.Minute, 1), p.time(at+15, 45)
	p.exec(`UPDATE time_slot SET opens_at = '2026-01-01' WHERE id = $1`, slot)
	return func(s *Service) error {
		first, err := k.call(s, who, id, slot, to)
		if err != nil || first.Replayed {
			return fmt.Errorf("%+v, %w", first, err)
		}
		again, err := k.call(s, who, id, slot, to)
		if err != nil || !again.Replayed || again.Appointment.ID != first.Appointment.ID {
			return fmt.Errorf("again: %+v, %w; want appointment %d", again, err, first.Appointment.ID)
		}
		return nil
	}, who.PatientID
}

// Whatever is asked about a time, killed at whatever point: it happens once, its slot's row comes and goes
// with it, and whoever asks again hears of it.
func TestTimesKilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	for name, k := range killings() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := devenv.NewDB(t)
			p := &practice{t: t, pool: db.Pool}
			p.service = p.at(now)
			p.organization, p.doctor = p.newDoctor("Practice")
			p.flexible(p.doctor)
			var patients []PatientID
			kills := killed(p, db, func() func(*Service) error {
				call, patient := k.prepare(p, len(patients))
				patients = append(patients, patient)
				return call
			})
			if kills != k.kills {
				t.Errorf("killed %d times, want %d", kills, k.kills)
			}
			for _, patient := range patients {
				if got := one[string](p, `
					SELECT coalesce(string_agg(concat(t.kind, ' ', a.status), ', '), '') FROM appointment a JOIN time_slot t ON t.id = a.slot_id
					 WHERE a.patient_id = $1 AND a.status IN ('BOOKED', 'HELD')`, patient); got != k.want {
					t.Errorf("patient %d has %q, want %q", patient, got, k.want)
				}
			}
			if n, want := one[int](p, `SELECT count(*) FROM time_slot WHERE kind = 'FLEXIBLE' AND status <> 'WITHDRAWN'`),
				one[int](p, `SELECT count(*) FROM appointment a JOIN time_slot t ON t.id = a.slot_id WHERE t.kind = 'FLEXIBLE' AND a.status IN ('BOOKED', 'HELD')`); n != want {
				t.Errorf("%d FLEXIBLE slots stand for %d appointments", n, want)
			}
			p.check()
		})
	}
}
