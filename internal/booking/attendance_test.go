package booking

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Every state and every operation, before the appointment begins and after.
func TestStates(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	desk := p.staff()
	const starts, before, after = 20 * time.Minute, 15 * time.Minute, 21 * time.Minute
	at := func(after time.Duration) *Service { return p.at(now.Add(after)) }
	mark := func(s *Service, id AppointmentID, statuses ...AppointmentStatus) error {
		for _, status := range statuses {
			if _, err := s.Mark(ctx, desk, id, status); err != nil {
				return err
			}
		}
		return nil
	}
	// How an appointment comes to a state.
	states := map[string]func(who Actor, slot SlotID) (AppointmentID, error){
		"HELD": func(who Actor, slot SlotID) (AppointmentID, error) {
			b, err := at(before-time.Minute).Hold(ctx, who, BookRequest{Slot: slot, Key: "k"})
			return b.Appointment.ID, err
		},
		"LAPSED": func(who Actor, slot SlotID) (AppointmentID, error) {
			return p.hold(who, slot, "k").Appointment.ID, nil
		},
		"EXPIRED": func(who Actor, slot SlotID) (AppointmentID, error) {
			id := p.hold(who, slot, "k").Appointment.ID
			_, err := at(before).Expire(ctx)
			return id, err
		},
		"CANCELLED": func(who Actor, slot SlotID) (AppointmentID, error) {
			id := p.book(who, slot, "k").Appointment.ID
			_, err := p.service.Cancel(ctx, who, CancelRequest{Appointment: id})
			return id, err
		},
		"BOOKED": func(who Actor, slot SlotID) (AppointmentID, error) { return p.book(who, slot, "k").Appointment.ID, nil },
		"ARRIVED": func(who Actor, slot SlotID) (AppointmentID, error) {
			id := p.book(who, slot, "k").Appointment.ID
			return id, mark(p.service, id, AppointmentArrived)
		},
		"FULFILLED": func(who Actor, slot SlotID) (AppointmentID, error) {
			id := p.book(who, slot, "k").Appointment.ID
			return id, mark(p.service, id, AppointmentArrived, AppointmentFulfilled)
		},
		"NO_SHOW": func(who Actor, slot SlotID) (AppointmentID, error) {
			id := p.book(who, slot, "k").Appointment.ID
			return id, mark(at(after), id, AppointmentNoShow)
		},
	}
	type operation func(s *Service, who Actor, id AppointmentID) (changed bool, err error)
	take := func(step func(s *Service, who Actor, id AppointmentID) (Step, error)) operation {
		return func(s *Service, who Actor, id AppointmentID) (bool, error) {
			taken, err := step(s, who, id)
			return taken.Changed, err
		}
	}
	marks := func(status AppointmentStatus) operation {
		return take(func(s *Service, _ Actor, id AppointmentID) (Step, error) { return s.Mark(ctx, desk, id, status) })
	}
	operations := []struct {
		name string
		do   operation
	}{
		{"Confirm", take(func(s *Service, who Actor, id AppointmentID) (Step, error) { return s.Confirm(ctx, who, id) })},
		{"Release", take(func(s *Service, who Actor, id AppointmentID) (Step, error) { return s.Release(ctx, who, id) })},
		{"Cancel", take(func(s *Service, who Actor, id AppointmentID) (Step, error) {
			return s.Cancel(ctx, who, CancelRequest{Appointment: id})
		})},
		{"Arrived", marks(AppointmentArrived)},
		{"Fulfilled", marks(AppointmentFulfilled)},
		{"NoShow", marks(AppointmentNoShow)},
		{"Unmark", marks(AppointmentBooked)},
		{"Move", func(s *Service, who Actor, id AppointmentID) (bool, error) {
			_, err := s.Reschedule(ctx, who, RescheduleRequest{Appointment: id, To: p.beside(2*time.Hour, 1), Key: "m"})
			return err == nil, err
		}},
		{"Sweep", func(s *Service, _ Actor, _ AppointmentID) (bool, error) {
			n, err := s.Expire(ctx)
			return n > 0, err
		}},
	}
	const ( // outcomes besides the state that it leads to
		same = "-"       // nothing changes
		no   = "no"      // INVALID_STATE
		late = "late"    // TOO_LATE
		gone = "expired" // HOLD_EXPIRED
	)
	table := map[time.Duration]map[string]string{
		//                Confirm Release Cancel Arrived Fulfilled NoShow Unmark Move Sweep
		before: {
			"HELD":      "BOOKED CANCELLED CANCELLED no no no no no -",
			"LAPSED":    "expired expired expired expired expired expired expired expired EXPIRED",
			"EXPIRED":   "expired expired expired expired expired expired expired expired -",
			"CANCELLED": "no - - no no no no no -",
			"BOOKED":    "- no CANCELLED ARRIVED no no - CANCELLED -",
			"ARRIVED":   "no no no - FULFILLED no BOOKED no -",
			"FULFILLED": "no no no ARRIVED - no BOOKED no -",
			"NO_SHOW":   "no no no ARRIVED no - BOOKED no -", // its clock is that of another instance
		},
		after: {
			"HELD":      "late late late no no no no no -",
			"LAPSED":    "expired expired expired expired expired expired expired expired EXPIRED",
			"EXPIRED":   "expired expired expired expired expired expired expired expired -",
			"CANCELLED": "no - - no no no no no -",
			"BOOKED":    "- no late ARRIVED FULFILLED NO_SHOW - late -",
			"ARRIVED":   "no no no - FULFILLED NO_SHOW BOOKED no -",
			"FULFILLED": "no no no ARRIVED - NO_SHOW BOOKED no -",
			"NO_SHOW":   "no no no ARRIVED FULFILLED - BOOKED no -",
		},
	}
	codes := map[string]Code{no: InvalidState, late: TooLate, gone: HoldExpired}
	for when, rows := range table {
		for state, reach := range states {
			wants := strings.Fields(rows[state])
			if len(wants) != len(operations) {
				t.Fatalf("%s has %d columns", state, len(wants))
			}
			for i, o := range operations {
				who := p.patient()
				id, err := reach(who, p.beside(starts, 1))
				if err != nil {
					t.Fatal(err)
				}
				is := func() string { return one[string](p, `SELECT status FROM appointment WHERE id = $1`, id) }
				from, want := is(), wants[i]
				changed, err := o.do(at(when), who, id)
				goal := want
				if want == same || codes[want] != "" {
					goal = from
				}
				if code(err) != codes[want] || is() != goal || changed != (goal != from) {
					t.Errorf("%v, %s, %s: changed %v to %s, %v; want %s", when, state, o.name, changed, is(), err, want)
				}
				if _, err := at(before).Expire(ctx); err != nil { // none is left for the next sweep
					t.Fatal(err)
				}
			}
			p.check()
		}
	}
}

func TestMark(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	later := p.at(now.Add(100 * time.Hour))
	hours := 0
	next := func() SlotID { hours++; return p.slot(time.Duration(hours)*time.Hour, 2) }
	otherOrganization, _ := p.newDoctor("Other")

	t.Run("Events", func(t *testing.T) {
		b := p.book(p.patient(), next(), "k")
		for _, status := range []AppointmentStatus{AppointmentArrived, AppointmentBooked, AppointmentNoShow, AppointmentFulfilled, AppointmentFulfilled} {
			if s, err := later.Mark(ctx, p.staff(), b.Appointment.ID, status); err != nil || s.Appointment.Status != status {
				t.Fatalf("%+v, %v", s, err)
			}
		}
		got := one[string](p, `SELECT string_agg(type, ' ' ORDER BY id) FROM outbox_event WHERE root_id = $1`, b.Appointment.ID)
		if want := "BOOKED ARRIVED UNMARKED NO_SHOW FULFILLED"; got != want {
			t.Errorf("events %q, want %q", got, want)
		}
		if n := p.booked(b.Appointment.SlotID); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})

	for name, test := range map[string]struct {
		actor Actor
		want  Code
	}{
		"Anonymous":  {Actor{}, Unauthenticated},
		"Patient":    {p.patient(), Forbidden},
		"Partner":    {Actor{Kind: Partner, Subject: "portal"}, Forbidden},
		"OtherStaff": {Actor{Kind: Staff, Subject: "desk", Organization: otherOrganization}, NotFound},
		"Staff":      {p.staff(), ""},
		"System":     {SystemActor, ""},
	} {
		b := p.book(p.patient(), next(), "k")
		if _, err := p.service.Mark(ctx, test.actor, b.Appointment.ID, AppointmentArrived); code(err) != test.want {
			t.Errorf("by %s: %v, want %q", name, err, test.want)
		}
	}
	for _, status := range []AppointmentStatus{"", AppointmentHeld, AppointmentCancelled, AppointmentExpired, stepUnmark, stepCancel} {
		_, err := p.service.Mark(ctx, p.staff(), 1, status)
		wantCode(t, err, Invalid)
	}

	// What is over blocks neither its time nor its referral; taken back, it may find them used.
	over := func(slot SlotID, patient Actor) AppointmentID {
		b := must(p.service.Book(ctx, patient, BookRequest{Slot: slot, Key: fmt.Sprint(slot), Referral: fmt.Sprint("R", slot)}))
		must(later.Mark(ctx, p.staff(), b.Appointment.ID, AppointmentNoShow))
		return b.Appointment.ID
	}
	for name, test := range map[string]struct {
		use  func(patient Actor, slot SlotID, s *Service) (Booking, error)
		want Code
	}{
		"SameSlot": {func(patient Actor, slot SlotID, s *Service) (Booking, error) {
			return s.Hold(ctx, patient, BookRequest{Slot: slot, Key: "again"})
		}, AlreadyBooked},
		"Referral": {func(patient Actor, slot SlotID, s *Service) (Booking, error) {
			return s.Hold(ctx, patient, BookRequest{Slot: next(), Key: "again", Referral: fmt.Sprint("R", slot)})
		}, ReferralInUse},
		"Time": {func(patient Actor, slot SlotID, s *Service) (Booking, error) {
			return s.Hold(ctx, patient, BookRequest{Slot: p.beside(time.Duration(hours)*time.Hour+10*time.Minute, 1), Key: "again"})
		}, Overlap},
	} {
		for _, status := range []AppointmentStatus{AppointmentBooked, AppointmentArrived} {
			patient, slot := p.patient(), next()
			id := over(slot, patient)
			used, err := test.use(patient, slot, p.service)
			if err != nil {
				t.Fatal(name, err)
			}
			_, err = p.service.Mark(ctx, p.staff(), id, status)
			var refused *Error
			if !errors.As(err, &refused) || refused.Code != test.want || test.want != Overlap && refused.Existing != used.Appointment.ID {
				t.Errorf("%s: %v, want %s", name, err, test.want)
			}
			if s, err := p.service.Mark(ctx, p.staff(), id, AppointmentNoShow); err != nil || s.Changed {
				t.Errorf("%s: %+v, %v", name, s, err)
			}
			if s, err := p.at(lapse).Mark(ctx, p.staff(), id, status); err != nil || !s.Changed { // the hold has lapsed
				t.Errorf("%s: %+v, %v", name, s, err)
			}
			p.check()
		}
	}
}

// It is the constraints that refuse a mark to be taken back.
func TestUnmarkControl(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	patient, slot := p.patient(), p.slot(time.Hour, 1)
	b := p.book(patient, slot, "k")
	must(p.at(now.Add(2*time.Hour)).Mark(context.Background(), SystemActor, b.Appointment.ID, AppointmentNoShow))
	p.book(patient, p.beside(time.Hour, 1), "k2")
	_, err := p.service.Mark(context.Background(), SystemActor, b.Appointment.ID, AppointmentBooked)
	wantCode(t, err, Overlap)
	p.exec(`ALTER TABLE appointment DROP CONSTRAINT ex_patient_overlap`)
	if _, err := p.service.Mark(context.Background(), SystemActor, b.Appointment.ID, AppointmentBooked); err != nil {
		t.Errorf("%v: the control does not bite", err)
	}
}

// Whoever takes a mark back races with whoever books at that time: one of them gets the patient's time.
func TestRaceOfUnmarkAndBook(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		ctx := context.Background()
		patient := p.patient()
		_, elsewhere := p.newDoctor("Elsewhere")
		late := p.like(service(1), now.Add(10_000*time.Hour))
		for n, slot := range p.slots(rounds(300), 1) {
			beside := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
				SELECT $2, start_at, end_at, 1, opens_at FROM time_slot WHERE id = $1 RETURNING id`, slot, elsewhere)
			b := must(service(0).Book(ctx, patient, BookRequest{Slot: slot, Key: fmt.Sprint("b", n)}))
			must(late.Mark(ctx, SystemActor, b.Appointment.ID, AppointmentNoShow))
			var won atomic.Int32
			together(2, func(i int) {
				var err error
				if i == 0 {
					_, err = service(0).Mark(ctx, SystemActor, b.Appointment.ID, AppointmentBooked)
				} else {
					_, err = service(1).Book(ctx, patient, BookRequest{Slot: beside, Key: fmt.Sprint("c", n)})
				}
				if err == nil {
					won.Add(1)
				} else if code(err) != Overlap {
					t.Error(err)
				}
			})
			if won.Load() != 1 {
				t.Fatalf("round %d: %d won", n, won.Load())
			}
		}
		p.check()
	})
}
