package booking

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	partner := Actor{Kind: Partner, Subject: "portal"}
	otherOrganization, _ := p.newDoctor("Other")
	cancel := func(actor Actor, b Booking) (Step, error) {
		return p.service.Cancel(ctx, actor, CancelRequest{Appointment: b.Appointment.ID, Reason: "ill"})
	}

	t.Run("B20 B21 TwiceThenBookAgain", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(time.Hour, 1)
		b := p.book(patient, slot, "k")
		first, err := cancel(patient, b)
		if err != nil || !first.Changed || first.Appointment.Status != AppointmentCancelled ||
			!first.Appointment.CancelledAt.Equal(now) || *first.Appointment.CancelReason != "ill" {
			t.Fatalf("%+v, %v", first, err)
		}
		second, err := cancel(p.staff(), b)
		if err != nil || second.Changed || second.Appointment.Status != AppointmentCancelled {
			t.Fatalf("%+v, %v", second, err)
		}
		if n := p.booked(slot); n != 0 {
			t.Errorf("booked_count = %d, want 0", n)
		}
		p.book(p.patient(), slot, "k")
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})

	t.Run("B26 Begun", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(2*time.Hour, 1)
		b := p.book(patient, slot, "k")
		for _, late := range []time.Duration{0, time.Hour} {
			_, err := p.at(b.Appointment.StartAt.Add(late)).Cancel(ctx, patient, CancelRequest{Appointment: b.Appointment.ID})
			wantCode(t, err, TooLate)
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})

	t.Run("States", func(t *testing.T) {
		for status, want := range map[AppointmentStatus]Code{
			AppointmentBooked: "", AppointmentCancelled: "", AppointmentArrived: InvalidState,
			AppointmentFulfilled: InvalidState, AppointmentNoShow: InvalidState, AppointmentExpired: HoldExpired,
		} {
			b := p.book(p.patient(), p.slot(3*time.Hour, 1), "k")
			p.exec(`UPDATE appointment SET status = $2 WHERE id = $1`, b.Appointment.ID, status)
			_, err := cancel(SystemActor, b)
			if got := code(err); got != want {
				t.Errorf("%s: code %q, want %q", status, got, want)
			}
			p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, b.Appointment.SlotID)
		}
	})

	for name, test := range map[string]struct {
		actor Actor
		want  Code
	}{
		"Anonymous":    {Actor{}, Unauthenticated},
		"OtherPatient": {p.patient(), NotFound},
		"OtherStaff":   {Actor{Kind: Staff, Subject: "desk", Organization: otherOrganization}, NotFound},
		"OtherPartner": {Actor{Kind: Partner, Subject: "rival"}, NotFound},
		"Partner":      {partner, ""},
		"Staff":        {p.staff(), ""},
		"System":       {SystemActor, ""},
	} {
		t.Run("By/"+name, func(t *testing.T) {
			slot := p.slot(time.Duration(10+len(name))*time.Hour, 1)
			defer p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
			b, err := p.service.Book(ctx, partner, BookRequest{Slot: slot, Key: name, Patient: p.registered(partner, name)})
			if err != nil {
				t.Fatal(err)
			}
			_, err = cancel(test.actor, b)
			wantCode(t, err, test.want)
		})
	}

	t.Run("BadInput", func(t *testing.T) {
		for _, reason := range []string{strings.Repeat("x", 501), "a\x00b", "\xff"} {
			_, err := p.service.Cancel(ctx, p.patient(), CancelRequest{Appointment: 1, Reason: reason})
			wantCode(t, err, Invalid)
		}
		for _, id := range []AppointmentID{0, -1, 1 << 50} {
			_, err := p.service.Cancel(ctx, p.patient(), CancelRequest{Appointment: id, Reason: strings.Repeat("ß", 500)})
			wantCode(t, err, NotFound)
		}
	})
}

// B24: five clicks at once are one change, one event, one place back, and five consistent answers.
func TestCancelFiveTimesAtOnce(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	for round := range 20 {
		patient, slot := p.patient(), p.slot(time.Duration(round+1)*time.Hour, 1)
		b := p.book(patient, slot, "k")
		var changed, same atomic.Int32
		together(5, func(int) {
			c, err := p.service.Cancel(context.Background(), patient, CancelRequest{Appointment: b.Appointment.ID})
			if err == nil && c.Appointment.Status == AppointmentCancelled {
				same.Add(1)
			}
			if c.Changed {
				changed.Add(1)
			}
		})
		if changed.Load() != 1 || same.Load() != 5 || p.booked(slot) != 0 {
			t.Errorf("%d changed, %d consistent, booked_count %d; want 1, 5, 0", changed.Load(), same.Load(), p.booked(slot))
		}
	}
}

// A patient who books and cancels on the same slots in parallel meets no deadlock.
func TestBookAndCancelInParallel(t *testing.T) {
	t.Parallel()
	allowed := map[Code]bool{"": true, SlotFull: true, AlreadyBooked: true}
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		patient, slots := p.patient(), p.slots(3, 1)
		var booked atomic.Int32
		n := rounds(1000)
		together(8, func(worker int) {
			for i := worker; i < n; i += 8 {
				b, err := service(i).Book(context.Background(), patient, BookRequest{Slot: slots[i%3], Key: fmt.Sprint(i)})
				if !allowed[code(err)] {
					t.Errorf("book: %v", err)
				}
				id := b.Appointment.ID
				if err == nil {
					booked.Add(1)
				} else if refused := asError(t, err); refused.Existing != 0 {
					id = refused.Existing // cancel what another worker has just booked
				}
				if id == 0 {
					continue
				}
				if _, err := service(i+1).Cancel(context.Background(), patient, CancelRequest{Appointment: id}); err != nil {
					t.Errorf("cancel: %v", err)
				}
			}
		})
		if booked.Load() == 0 {
			t.Error("nothing was booked")
		}
		p.check()
	})
}
