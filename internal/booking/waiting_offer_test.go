package booking

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// offerEnds is when offers made at now are over.
var offerEnds = now.Add(30 * time.Minute)

func TestOffer(t *testing.T) {
	t.Parallel()
	ctx := context.Background()

	t.Run("Confirmed", func(t *testing.T) {
		p := newPractice(t)
		slot, booked := p.full(5*time.Hour, 1)
		who := p.patient()
		w := p.join(who)
		version := one[int64](p, `SELECT version FROM time_slot WHERE id = $1`, slot)
		p.cancel(booked[0])
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
		// Whoever keeps a copy learns that it will change by itself.
		if v := one[int64](p, `SELECT version FROM time_slot WHERE id = $1`, slot); v != version+1 {
			t.Errorf("version %d after %d", v, version)
		}
		offer := offered(t, p.service, w.ID)
		want := Appointment{ID: offer.ID, SlotID: slot, DoctorID: p.doctor, OrganizationID: p.organization, PatientID: who.PatientID,
			Status: AppointmentHeld, StartAt: now.Add(5 * time.Hour), EndAt: now.Add(5*time.Hour + 30*time.Minute), CreatedAt: now, ExpiresAt: &offerEnds}
		if diff := cmp.Diff(want, offer); diff != "" {
			t.Error(diff)
		}
		told := one[string](p, `SELECT type || ' ' || (payload->>'patientId') || ' ' || (payload->>'waitingId') FROM outbox_event WHERE root_id = $1`, offer.ID)
		if want := fmt.Sprint("OFFERED ", who.PatientID, " ", w.ID); told != want {
			t.Errorf("told %q, want %q", told, want)
		}
		_, err := p.service.Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, SlotFull)
		_, err = p.service.Book(ctx, who, BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, AlreadyBooked)
		if got := asError(t, err).Existing; got != offer.ID {
			t.Errorf("existing appointment %d, want %d", got, offer.ID)
		}
		_, err = p.service.Confirm(ctx, p.patient(), offer.ID) // somebody else's
		wantCode(t, err, NotFound)
		if c, err := p.service.Confirm(ctx, who, offer.ID); err != nil || !c.Changed {
			t.Errorf("%+v, %v", c, err)
		}
		wantStatus(t, p.service, w.ID, WaitingBooked)
		p.check()
		// The wish is fulfilled: nothing more is offered, and what becomes of the appointment is another matter.
		_, others := p.full(7*time.Hour, 1)
		p.cancel(others[0])
		p.cancel(Booking{Appointment: offer})
		wantStatus(t, p.service, w.ID, WaitingBooked)
		if n := p.booked(slot); n != 0 {
			t.Errorf("booked_count = %d, want 0", n)
		}
	})

	// Refused, lapsed, cancelled by the desk: to the next; and never the same slot again.
	later := func(p *practice) *Service { return p.at(offerEnds) }
	for name, decline := range map[string]func(p *practice, who Actor, id AppointmentID) (*Service, error){
		"Refused": func(p *practice, who Actor, id AppointmentID) (*Service, error) {
			_, err := p.service.Release(ctx, who, id)
			return p.service, err
		},
		"Cancelled": func(p *practice, _ Actor, id AppointmentID) (*Service, error) {
			_, err := p.service.Cancel(ctx, p.staff(), CancelRequest{Appointment: id})
			return p.service, err
		},
		"Lapsed": func(p *practice, who Actor, id AppointmentID) (*Service, error) {
			if _, err := later(p).Confirm(ctx, who, id); code(err) != HoldExpired {
				return nil, fmt.Errorf("confirmed too late: %w", err)
			}
			n, err := later(p).Expire(ctx)
			if err == nil && n != 1 {
				err = fmt.Errorf("%d expired", n)
			}
			return later(p), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPractice(t)
			slot, booked := p.full(5*time.Hour, 1)
			first, second := p.patient(), p.patient()
			w1, w2 := p.join(first), p.join(second)
			p.cancel(booked[0])
			wantStatus(t, p.service, w2.ID, WaitingForPlace)
			s, err := decline(p, first, offered(t, p.service, w1.ID).ID)
			if err != nil {
				t.Fatal(err)
			}
			wantStatus(t, s, w1.ID, WaitingForPlace)
			offer := offered(t, s, w2.ID)
			if n := p.booked(slot); n != 1 {
				t.Errorf("booked_count = %d, want 1", n)
			}
			if _, err := s.Release(ctx, second, offer.ID); err != nil {
				t.Fatal(err)
			}
			if n := p.booked(slot); n != 0 { // both have declined: it is everybody's
				t.Errorf("booked_count = %d, want 0", n)
			}
			// Another slot: the first has been offered a place longest ago.
			other, booked := p.full(7*time.Hour, 1)
			if _, err := s.Cancel(ctx, booked[0].by(), CancelRequest{Appointment: booked[0].Appointment.ID}); err != nil {
				t.Fatal(err)
			}
			if offer := offered(t, s, w1.ID); offer.SlotID != other {
				t.Errorf("offered %+v", offer)
			}
			p.check()
		})
	}

	t.Run("MovedAway", func(t *testing.T) { // and, refused, it is kept and offered to nobody
		p := newPractice(t)
		slot, booked := p.full(5*time.Hour, 1)
		target, _ := p.full(6*time.Hour, 1)
		w := p.join(p.patient())
		move := RescheduleRequest{Appointment: booked[0].Appointment.ID, To: target, Key: "m"}
		_, err := p.service.Reschedule(ctx, booked[0].by(), move)
		wantCode(t, err, SlotFull)
		wantStatus(t, p.service, w.ID, WaitingForPlace)
		p.exec(`UPDATE time_slot SET capacity = 2 WHERE id = $1`, target)
		if _, err := p.service.Reschedule(ctx, booked[0].by(), move); err != nil {
			t.Fatal(err)
		}
		if offer := offered(t, p.service, w.ID); offer.SlotID != slot {
			t.Errorf("offered %+v", offer)
		}
		if a, b := p.booked(slot), p.booked(target); a != 1 || b != 2 {
			t.Errorf("booked_count = %d and %d, want 1 and 2", a, b)
		}
	})

	t.Run("BehindThoseWhoCameMeanwhile", func(t *testing.T) {
		p := newPractice(t)
		_, booked := p.full(5*time.Hour, 1)
		_, others := p.full(6*time.Hour, 1)
		first := p.patient()
		w1 := p.joinAt(p.at(now.Add(-2*time.Minute)), first)
		p.cancel(booked[0])
		if _, err := p.service.Release(ctx, first, offered(t, p.service, w1.ID).ID); err != nil {
			t.Fatal(err)
		}
		second := p.joinAt(p.at(now.Add(-time.Minute)), p.patient()) // before the offer was made
		p.cancel(others[0])
		offered(t, p.service, second.ID)
		wantStatus(t, p.service, w1.ID, WaitingForPlace)
		p.check()
	})

	t.Run("NotBeyondTheStart", func(t *testing.T) {
		p := newPractice(t)
		_, booked := p.full(10*time.Minute, 1)
		w := p.join(p.patient())
		p.cancel(booked[0])
		if offer := offered(t, p.service, w.ID); !offer.ExpiresAt.Equal(now.Add(10 * time.Minute)) {
			t.Errorf("lapses at %s", offer.ExpiresAt)
		}
	})

	t.Run("AsLongAsTheOrganizationGrants", func(t *testing.T) {
		p := newPractice(t)
		p.exec(`UPDATE organization SET offer_minutes = 5`)
		_, booked := p.full(time.Hour, 1)
		w := p.join(p.patient())
		p.cancel(booked[0])
		if offer := offered(t, p.service, w.ID); !offer.ExpiresAt.Equal(now.Add(5 * time.Minute)) {
			t.Errorf("lapses at %s", offer.ExpiresAt)
		}
	})

	t.Run("LeftWhileOffered", func(t *testing.T) { // the offer stands
		p := newPractice(t)
		slot, booked := p.full(5*time.Hour, 1)
		who := p.patient()
		w := p.join(who)
		p.cancel(booked[0])
		offer := offered(t, p.service, w.ID)
		for _, changed := range []bool{true, false} {
			if left, got, err := p.service.LeaveWaitingList(ctx, who, w.ID); err != nil || got != changed || left.Status != WaitingLeft || left.Offer != nil {
				t.Errorf("%+v, %v, %v", left, got, err)
			}
		}
		if _, err := p.service.Confirm(ctx, who, offer.ID); err != nil {
			t.Error(err)
		}
		wantStatus(t, p.service, w.ID, WaitingLeft)
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})
}

// Who waits first and fits is offered the place; each reason not to fit, and the negative control: the
// same without the reason's guard.
func TestWhoFits(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, test := range map[string]struct {
		unfit func(p *practice, slot SlotID, who Actor, w WaitingID) // makes the first not fit
		guard [2]string                                              // of the function wants: what to leave out
		still bool                                                   // without the guard a constraint decides the same
	}{
		"HasAnAppointmentThen": {func(p *practice, slot SlotID, who Actor, _ WaitingID) {
			_, elsewhere := p.newDoctor("Elsewhere")
			beside := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
				SELECT $2, start_at + interval '15 min', end_at + interval '15 min', 1, opens_at FROM time_slot WHERE id = $1 RETURNING id`, slot, elsewhere)
			p.book(who, beside, "b")
		}, [2]string{"x.during && tstzrange(t.start_at, t.end_at)", "false"}, true},
		"HasAnAllowedOverlapThen": {func(p *practice, slot SlotID, who Actor, _ WaitingID) {
			_, elsewhere := p.newDoctor("Elsewhere")
			beside := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
				SELECT $2, start_at, end_at, 1, opens_at FROM time_slot WHERE id = $1 RETURNING id`, slot, elsewhere)
			p.book(who, beside, "b")
			p.exec(`UPDATE appointment SET overlap_allowed = true, overlap_reason = 'r' WHERE slot_id = $1`, beside)
		}, [2]string{"x.during && tstzrange(t.start_at, t.end_at)", "false"}, false},
		"GaveItUpBefore": {func(p *practice, slot SlotID, who Actor, _ WaitingID) {
			p.exec(`UPDATE time_slot SET capacity = 2 WHERE id = $1`, slot)
			p.cancel(p.book(who, slot, "g"))
			p.exec(`DELETE FROM waiting_entry WHERE patient_id <> $1`, who.PatientID) // the other one was offered that place
			p.exec(`UPDATE appointment SET status = 'BOOKED', expires_at = NULL WHERE status = 'HELD'`)
			p.exec(`INSERT INTO outbox_event (root_id, type, payload) SELECT root_id, 'BOOKED', '{}' FROM outbox_event WHERE type = 'OFFERED'`)
			p.join(p.patient())
		}, [2]string{"x.patient_id = w.patient_id AND x.slot_id = t.id", "false"}, false},
		"OtherDays": {func(p *practice, _ SlotID, _ Actor, w WaitingID) {
			p.exec(`UPDATE waiting_entry SET during = tstzrange('2026-10-06T00:00+02', '2026-10-07T00:00+02') WHERE id = $1`, w)
		}, [2]string{"AND w.during @> t.start_at", ""}, false},
		"OtherDoctor": {func(p *practice, _ SlotID, _ Actor, w WaitingID) {
			_, elsewhere := p.newDoctor("Elsewhere")
			p.exec(`UPDATE waiting_entry SET doctor_id = $2 WHERE id = $1`, w, elsewhere)
		}, [2]string{}, true}, // the index finds entries by doctor: there is nothing to leave out
		"Blocked": {func(p *practice, _ SlotID, who Actor, _ WaitingID) {
			p.exec(`UPDATE patient SET blocked_at = now(), blocked_by = 'staff:x' WHERE id = $1`, who.PatientID)
		}, [2]string{"p.id = w.patient_id AND p.blocked_at IS NOT NULL", "false"}, false},
		"HasAsMuchAsThePracticeAllows": {func(p *practice, _ SlotID, who Actor, _ WaitingID) {
			p.book(who, p.slot(8*time.Hour, 1), "b")
			p.exec(`UPDATE organization SET max_active = 1`)
		}, [2]string{"o.id = w.organization_id AND o.ruled", "false"}, false},
		"HoldsAsMuchAsThePracticeAllows": {func(p *practice, _ SlotID, who Actor, _ WaitingID) {
			p.hold(who, p.slot(8*time.Hour, 1), "b")
			p.exec(`UPDATE organization SET max_holds = 1`)
		}, [2]string{"o.id = w.organization_id AND o.ruled", "false"}, false},
		"Left": {func(p *practice, _ SlotID, who Actor, w WaitingID) {
			if _, _, err := p.service.LeaveWaitingList(ctx, who, w); err != nil {
				p.t.Fatal(err)
			}
		}, [2]string{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, control := range []bool{false, true} {
				p := newPractice(t)
				slot, booked := p.full(5*time.Hour, 1)
				first := p.patient()
				w1, w2 := p.join(first), p.join(p.patient())
				test.unfit(p, slot, first, w1.ID)
				if control {
					if test.guard[0] == "" {
						continue
					}
					p.without("wants", test.guard[0], test.guard[1])
				}
				p.cancel(booked[0])
				if next := one[WaitingID](p, `SELECT max(id) FROM waiting_entry`); next != w2.ID {
					w2.ID = next
				}
				firstGot := entry(t, p.service, w1.ID).Status == WaitingOffered
				secondGot := entry(t, p.service, w2.ID).Status == WaitingOffered
				if bites := control && !test.still; firstGot != bites || secondGot == bites {
					t.Errorf("control %v: offered to the first %v, to the second %v", control, firstGot, secondGot)
				}
				if !control {
					p.check()
				}
			}
		})
	}
}

// Slots that can't be booked are offered to nobody: their places come back as before.
func TestWhatIsOffered(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change string
		after  time.Duration
	}{
		"Closed":           {`UPDATE time_slot SET status = 'CLOSED'`, 5 * time.Hour},
		"NotYetOpen":       {`UPDATE time_slot SET opens_at = '2026-10-05T09:00+02'::timestamptz + interval '1 hour'`, 5 * time.Hour},
		"BeyondTheHorizon": {`UPDATE organization SET horizon_days = 1`, 25 * time.Hour},
		"BeginsAtOnce":     {`SELECT 1`, time.Minute},
		"WithinTheNotice":  {`UPDATE organization SET notice_minutes = 120`, 119 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t)
			slot, booked := p.full(test.after, 1)
			w := p.join(p.patient())
			p.exec(test.change)
			p.cancel(booked[0])
			wantStatus(t, p.service, w.ID, WaitingForPlace)
			if n := p.booked(slot); n != 0 {
				t.Errorf("booked_count = %d, want 0", n)
			}
		})
	}
}

// Several places at once, of several slots: to as many as wait, one each, in turn; the rest is everybody's.
func TestManyPlacesAtOnce(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	var slots []SlotID
	for i := range 4 {
		slot := p.slot(time.Duration(5+i)*time.Hour, 3)
		slots = append(slots, slot)
		for n, who := range p.patients(3) {
			p.hold(who, slot, fmt.Sprint(n))
		}
	}
	var entries []WaitingID
	for _, who := range p.patients(10) {
		entries = append(entries, p.join(who).ID)
	}
	later := p.at(lapse)
	if n, err := later.Expire(ctx); n != 12 || err != nil {
		t.Fatalf("%d expired, %v", n, err)
	}
	var got []SlotID
	for _, id := range entries {
		got = append(got, offered(t, later, id).SlotID)
	}
	want := slices.Concat(slices.Repeat(slots[0:1], 3), slices.Repeat(slots[1:2], 3), slices.Repeat(slots[2:3], 3), slots[3:])
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("offered (-want +got):\n%s", diff)
	}
	if n := p.booked(slots[3]); n != 1 {
		t.Errorf("booked_count = %d, want 1", n)
	}
}
