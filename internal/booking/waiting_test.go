package booking

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// today is the day of now, in Berlin.
var today = Date{2026, 10, 5}

// join puts a patient on the waiting list for today and the 30 days after.
func (p *practice) join(who Actor) WaitingEntry {
	p.t.Helper()
	return p.joinAt(p.service, who)
}

func (p *practice) joinAt(s *Service, who Actor) WaitingEntry {
	p.t.Helper()
	entry, joined, err := s.JoinWaitingList(context.Background(), who, WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(30)})
	if err != nil || !joined {
		p.t.Fatalf("%+v, %v, %v", entry, joined, err)
	}
	return entry
}

// entry is the entry as it is at the service's time.
func entry(t testing.TB, s *Service, id WaitingID) WaitingEntry {
	t.Helper()
	w, err := s.WaitingEntry(context.Background(), SystemActor, id)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// offered is the offer that the entry has at the service's time.
func offered(t testing.TB, s *Service, id WaitingID) Appointment {
	t.Helper()
	w := entry(t, s, id)
	if w.Status != WaitingOffered || w.Offer == nil || w.Offer.Status != AppointmentHeld || w.Offer.PatientID != w.PatientID {
		t.Fatalf("no offer: %+v", w)
	}
	return *w.Offer
}

func wantStatus(t testing.TB, s *Service, id WaitingID, want WaitingStatus) {
	t.Helper()
	if w := entry(t, s, id); w.Status != want {
		t.Fatalf("%+v, want %s", w, want)
	}
}

// full books all places of a new slot of the day and gives who has them.
func (p *practice) full(after time.Duration, capacity int) (SlotID, []Booking) {
	p.t.Helper()
	slot := p.slot(after, capacity)
	var all []Booking
	for _, who := range p.patients(capacity) {
		all = append(all, p.book(who, slot, "k"))
	}
	return slot, all
}

func (b Booking) by() Actor { return Actor{Kind: Patient, PatientID: b.Appointment.PatientID} }

func (p *practice) cancel(b Booking) {
	p.t.Helper()
	if _, err := p.service.Cancel(context.Background(), b.by(), CancelRequest{Appointment: b.Appointment.ID}); err != nil {
		p.t.Fatal(err)
	}
}

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

func TestWaitingList(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	who, staff := p.patient(), p.staff()
	r := WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(2)}

	t.Run("JoinAndLeave", func(t *testing.T) {
		entry, joined, err := p.service.JoinWaitingList(ctx, who, r)
		want := WaitingEntry{ID: entry.ID, DoctorID: p.doctor, PatientID: who.PatientID, From: r.From, To: r.To, Status: WaitingForPlace, CreatedAt: now}
		if diff := cmp.Diff(want, entry); err != nil || !joined || diff != "" {
			t.Errorf("%v %v %s", joined, err, diff)
		}
		again, joined, err := p.at(now.Add(time.Minute)).JoinWaitingList(ctx, who, r)
		if diff := cmp.Diff(want, again); err != nil || joined || diff != "" {
			t.Errorf("again: %v %v %s", joined, err, diff)
		}
		if during := one[string](p, `SELECT during::text FROM waiting_entry WHERE id = $1`, entry.ID); !strings.Contains(during, "2026-10-04 22:00:00+00") ||
			!strings.Contains(during, "2026-10-07 22:00:00+00") {
			t.Errorf("the days are %s", during)
		}
		want.Status = WaitingLeft
		for _, changed := range []bool{true, false} {
			left, got, err := p.service.LeaveWaitingList(ctx, who, entry.ID)
			if diff := cmp.Diff(want, left); err != nil || got != changed || diff != "" {
				t.Errorf("%v %v %s", got, err, diff)
			}
		}
		if next, joined, err := p.service.JoinWaitingList(ctx, who, r); err != nil || !joined || next.ID == entry.ID {
			t.Errorf("%+v, %v, %v", next, joined, err)
		}
	})

	t.Run("Over", func(t *testing.T) { // at midnight in Berlin, by itself; a sweeper tidies
		for at, want := range map[time.Time]WaitingStatus{
			time.Date(2026, 10, 7, 21, 59, 59, 0, time.UTC): WaitingForPlace,
			time.Date(2026, 10, 7, 22, 0, 0, 0, time.UTC):   WaitingEnded,
		} {
			s := p.at(at)
			ids := all[WaitingID](p, `SELECT id FROM waiting_entry WHERE status = 'WAITING'`)
			wantStatus(t, s, ids[0], want)
		}
		s := p.at(time.Date(2026, 10, 7, 22, 0, 0, 0, time.UTC))
		_, _, err := s.JoinWaitingList(ctx, who, r)
		wantCode(t, err, Invalid)
		if err := s.endWaiting(ctx); err != nil {
			t.Fatal(err)
		}
		if n := one[int](p, `SELECT count(*) FROM waiting_entry WHERE status = 'WAITING'`); n != 0 {
			t.Errorf("%d entries are not tidied", n)
		}
		id := one[WaitingID](p, `SELECT max(id) FROM waiting_entry`)
		if w, changed, err := s.LeaveWaitingList(ctx, who, id); err != nil || changed || w.Status != WaitingEnded {
			t.Errorf("%+v, %v, %v", w, changed, err)
		}
	})

	own, rival := p.registered(staff, "own"), Actor{Kind: Partner, Subject: "rival"}
	rivals := p.registered(rival, "theirs")
	otherOrganization, otherDoctor := p.newDoctor("Other")
	for name, test := range map[string]struct {
		actor Actor
		r     WaitingRequest
		want  Code
	}{
		"Anonymous":         {Actor{}, r, Unauthenticated},
		"ForSomebodyElse":   {who, WaitingRequest{p.doctor, r.From, r.To, own}, NotFound},
		"StaffForNobody":    {staff, r, Invalid},
		"StaffForOwn":       {staff, WaitingRequest{p.doctor, r.From, r.To, own}, ""},
		"StaffForAStranger": {staff, WaitingRequest{p.doctor, r.From, r.To, rivals}, NotFound},
		"StaffElsewhere":    {staff, WaitingRequest{otherDoctor, r.From, r.To, own}, NotFound},
		"PartnerForTheirs":  {rival, WaitingRequest{p.doctor, r.From, r.To, rivals}, ""},
		"PartnerForOthers":  {rival, WaitingRequest{p.doctor, r.From, r.To, own}, NotFound},
		"System":            {SystemActor, WaitingRequest{p.doctor, r.From, r.To.AddDays(1), own}, ""},
		"NoDoctor":          {who, WaitingRequest{999, r.From, r.To, 0}, NotFound},
		"WrongOrder":        {who, WaitingRequest{p.doctor, r.To, r.From, 0}, Invalid},
		"TooManyDays":       {who, WaitingRequest{p.doctor, r.From, r.From.AddDays(366), 0}, Invalid},
		"AYear":             {who, WaitingRequest{p.doctor, r.From, r.From.AddDays(365), 0}, ""},
		"EndOfTheCalendar":  {who, WaitingRequest{p.doctor, Date{9999, 12, 30}, Date{9999, 12, 31}, 0}, Invalid},
		"Past":              {who, WaitingRequest{p.doctor, today.AddDays(-2), today.AddDays(-1), 0}, Invalid},
	} {
		t.Run("By/"+name, func(t *testing.T) {
			_, _, err := p.service.JoinWaitingList(ctx, test.actor, test.r)
			wantCode(t, err, test.want)
		})
	}

	t.Run("Sight", func(t *testing.T) {
		id := p.join(p.patient()).ID
		for name, test := range map[string]struct {
			actor Actor
			want  Code
		}{
			"Anonymous": {Actor{}, Unauthenticated}, "OtherPatient": {who, NotFound},
			"OtherStaff": {Actor{Kind: Staff, Organization: otherOrganization}, NotFound}, "OtherPartner": {rival, NotFound}, "Staff": {staff, ""},
		} {
			if test.want == "" || test.want == NotFound {
				_, err := p.service.WaitingEntry(ctx, test.actor, id)
				if code(err) != test.want {
					t.Errorf("%s reads: %v", name, err)
				}
			}
			if _, _, err := p.service.LeaveWaitingList(ctx, test.actor, id); code(err) != test.want {
				t.Errorf("%s leaves: %v", name, err)
			}
		}
	})

	t.Run("Pages", func(t *testing.T) {
		pages := func(list func(Page) (WaitingPage, error)) (ids []WaitingID) {
			for page := (Page{First: 2}); ; {
				got, err := list(page)
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range got.Entries {
					ids = append(ids, w.ID)
				}
				if !got.HasNext {
					return ids
				}
				page.After = got.Entries[len(got.Entries)-1].Cursor()
			}
		}
		own := pages(func(page Page) (WaitingPage, error) { return p.service.PatientWaiting(ctx, who, page) })
		if want := all[WaitingID](p, `SELECT id FROM waiting_entry WHERE patient_id = $1 ORDER BY id DESC`, who.PatientID); len(want) < 3 || !slices.Equal(own, want) {
			t.Errorf("own entries %v, want %v", own, want)
		}
		list := pages(func(page Page) (WaitingPage, error) { return p.service.DoctorWaiting(ctx, staff, p.doctor, page) })
		if want := all[WaitingID](p, `SELECT id FROM waiting_entry ORDER BY id`); !slices.Equal(list, want) {
			t.Errorf("the doctor's entries %v, want %v", list, want)
		}
		elsewhere, err := p.service.DoctorWaiting(ctx, Actor{Kind: Staff, Organization: otherOrganization}, p.doctor, Page{First: 10})
		if err != nil || len(elsewhere.Entries) != 0 {
			t.Errorf("%+v, %v", elsewhere, err)
		}
		_, err = p.service.DoctorWaiting(ctx, who, p.doctor, Page{First: 10})
		wantCode(t, err, Forbidden)
		_, err = p.service.PatientWaiting(ctx, staff, Page{First: 10})
		wantCode(t, err, Forbidden)
		for _, page := range []Page{{First: 0}, {First: 101}, {First: 1, After: "?"}, {First: 1, After: "MDE"}} {
			_, err = p.service.PatientWaiting(ctx, who, page)
			wantCode(t, err, Invalid)
		}
	})

	t.Run("Limit", func(t *testing.T) {
		who := p.patient()
		for n := range 12 {
			_, _, err := p.service.JoinWaitingList(ctx, who, WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(n)})
			if n < waitingMost && err != nil || n >= waitingMost && code(err) != LimitReached {
				t.Errorf("wish %d: %v", n, err)
			}
		}
		if _, joined, err := p.service.JoinWaitingList(ctx, who, WaitingRequest{Doctor: p.doctor, From: today, To: today}); err != nil || joined { // stands
			t.Errorf("%v, %v", joined, err)
		}
	})
}

// A patient joins for the same many times at once, and for many things at once: one entry, and no more than the limit.
func TestJoinRace(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		who := p.patient()
		for _, distinct := range []int{0, 1} {
			together(24, func(i int) {
				_, _, err := service(i).JoinWaitingList(context.Background(), who, WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(i * distinct)})
				if err = allow(err, LimitReached); err != nil {
					t.Error(err)
				}
			})
			if n, want := one[int](p, `SELECT count(*) FROM waiting_entry`), 1+distinct*(waitingMost-1); n != want {
				t.Errorf("%d entries, want %d", n, want)
			}
		}
	})
}
