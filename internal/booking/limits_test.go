package booking

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// rules changes the rules of the practice, as SET does: "max_active = 2, max_holds = NULL".
func (p *practice) rules(set string) {
	p.t.Helper()
	p.exec(`UPDATE organization SET ` + set + ` WHERE id = ` + p.organization.String())
}

// slotAt makes an open slot of half an hour, of any number of places.
func (p *practice) slotAt(start time.Time) SlotID {
	p.t.Helper()
	return one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', 1000, '2026-01-01') RETURNING id`, p.doctor, start)
}

func at(t testing.TB, text string) time.Time {
	t.Helper()
	moment, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return moment
}

// wantRule checks that a rule refused which holds from or until the moment, and says so.
func wantRule(t testing.TB, err error, want Code, moment string) {
	t.Helper()
	if code(err) != want || !strings.Contains(err.Error(), moment) {
		t.Fatalf("%v, want %s and %s", err, want, moment)
	}
	if opens := asError(t, err).OpensAt; want == TooEarly && !opens.Equal(at(t, moment)) {
		t.Fatalf("opens at %s, want %s", opens, moment)
	}
}

// Notice, horizon and cut-off to the second, on either side of a change of the clocks too: days are
// those of the wall clock, minutes those that pass.
func TestNoticeHorizonCutOff(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, tt := range []struct {
		name, rule string
		start      string // of the slot
		moment     string // the last or first that the rule lets pass
		want       Code
	}{
		{"Horizon", "horizon_days = 2", "2026-10-08T08:00:00Z", "2026-10-06T08:00:00Z", TooEarly},
		{"HorizonBackToWinter", "horizon_days = 2", "2026-10-26T08:00:00Z", "2026-10-24T07:00:00Z", TooEarly},
		{"HorizonToSummer", "horizon_days = 2", "2027-03-29T07:00:00Z", "2027-03-27T08:00:00Z", TooEarly},
		{"HorizonInTheGap", "horizon_days = 1", "2027-03-29T00:30:00Z", "2027-03-28T01:30:00Z", TooEarly}, // 02:30, which isn't there
		{"Notice", "notice_minutes = 90", "2026-10-08T08:00:00Z", "2026-10-08T06:30:00Z", TooLate},
		{"NoticeOverTheChange", "notice_minutes = 1440", "2026-10-26T08:00:00Z", "2026-10-25T08:00:00Z", TooLate},
		{"CutOff", "cutoff_minutes = 1440", "2026-10-08T08:00:00Z", "2026-10-07T08:00:00Z", TooLate},
		{"CutOffOverTheChange", "cutoff_minutes = 1440", "2027-03-29T07:00:00Z", "2027-03-28T07:00:00Z", TooLate},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t)
			slot, moment := p.slotAt(at(t, tt.start)), at(t, tt.moment)
			within, beyond := moment, moment.Add(time.Second)
			if tt.want == TooEarly {
				beyond = moment.Add(-time.Second)
			}
			partner := Actor{Kind: Partner, Subject: "portal"}
			bound := map[string]func() (Actor, BookRequest){
				"Patient": func() (Actor, BookRequest) { return p.patient(), BookRequest{Slot: slot, Key: "k"} },
				"Partner": func() (Actor, BookRequest) {
					id := p.registered(partner, fmt.Sprint(one[int](p, `SELECT count(*) FROM patient`)))
					return partner, BookRequest{Slot: slot, Patient: id, Key: fmt.Sprint("p", id)}
				},
			}
			free := map[string]func() (Actor, BookRequest){
				"Staff": func() (Actor, BookRequest) {
					id := p.registered(p.staff(), fmt.Sprint(one[int](p, `SELECT count(*) FROM patient`)))
					return p.staff(), BookRequest{Slot: slot, Patient: id, Key: fmt.Sprint("s", id)}
				},
				"System": func() (Actor, BookRequest) {
					id := p.patient().PatientID
					return SystemActor, BookRequest{Slot: slot, Patient: id, Key: fmt.Sprint("o", id)}
				},
			}
			try := func(at time.Time, who func() (Actor, BookRequest), hold bool) error {
				actor, r := who()
				if strings.HasPrefix(tt.name, "CutOff") {
					made, err := p.service.Book(ctx, actor, r)
					if err != nil {
						t.Fatal(err)
					}
					s, err := p.at(at).Cancel(ctx, actor, CancelRequest{Appointment: made.Appointment.ID})
					if err == nil && !s.Changed {
						t.Error("nothing was cancelled")
					}
					return err
				}
				_, err := p.at(at).claim(ctx, actor, r, hold)
				return err
			}
			p.rules(tt.rule)
			for _, hold := range []bool{false, true} {
				for who, who_ := range bound {
					if err := try(within, who_, hold); err != nil {
						t.Errorf("%s at %s: %v", who, within, err)
					}
					wantRule(t, try(beyond, who_, hold), tt.want, tt.moment)
				}
				for who, who_ := range free {
					if err := try(beyond, who_, hold); err != nil {
						t.Errorf("%s at %s: %v", who, beyond, err)
					}
				}
			}
			p.check()
		})
	}
}

// What the times of a practice do not forbid: to retry, to hold again, to confirm what was held in
// time, to give it back, and to hear that one has the slot.
func TestWithinTheNotice(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.rules("notice_minutes = 60, cutoff_minutes = 120")
	slot, booked, held, released := p.slot(time.Hour, 5), p.patient(), p.patient(), p.patient()
	p.book(booked, slot, "k")
	hold, given := p.hold(held, slot, "k"), p.hold(released, slot, "k")
	later := p.at(now.Add(time.Second))
	if again, err := later.Book(ctx, booked, BookRequest{Slot: slot, Key: "k"}); err != nil || !again.Replayed {
		t.Errorf("a retry: %+v, %v", again, err)
	}
	_, err := later.Book(ctx, booked, BookRequest{Slot: slot, Key: "k2"})
	wantCode(t, err, AlreadyBooked)
	if again, err := later.Hold(ctx, held, BookRequest{Slot: slot, Key: "k2"}); err != nil || again.Appointment.ID != hold.Appointment.ID {
		t.Errorf("holding again: %+v, %v", again, err)
	}
	if s, err := later.Confirm(ctx, held, hold.Appointment.ID); err != nil || !s.Changed {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := later.Release(ctx, released, given.Appointment.ID); err != nil || !s.Changed {
		t.Errorf("%+v, %v", s, err)
	}
	cancelled := p.hold(released, slot, "k3") // by the clock of before
	if s, err := later.Cancel(ctx, released, CancelRequest{Appointment: cancelled.Appointment.ID}); err != nil || !s.Changed {
		t.Errorf("%+v, %v", s, err)
	}
	_, err = later.Cancel(ctx, held, CancelRequest{Appointment: hold.Appointment.ID})
	wantRule(t, err, TooLate, "2026-10-05T06:00:00Z")
	_, err = p.at(now.Add(time.Hour)).Cancel(ctx, held, CancelRequest{Appointment: hold.Appointment.ID})
	if code(err) != TooLate || !strings.Contains(err.Error(), "begun") {
		t.Errorf("once it has begun: %v", err)
	}
	if n := p.booked(slot); n != 2 {
		t.Errorf("booked_count = %d, want 2", n)
	}
}

// What counts against the limit of appointments, and until when.
func TestMaxActive(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.rules("max_active = 2, hold_minutes = 30")
	patient, slots := p.patient(), p.slots(6, 5) // from tomorrow 07:00 UTC on
	refused := func(s *Service, slot SlotID, until string) {
		t.Helper()
		for _, hold := range []bool{false, true} {
			_, err := s.claim(ctx, patient, BookRequest{Slot: slot, Key: "no"}, hold)
			wantRule(t, err, LimitReached, until)
		}
	}
	first := p.book(patient, slots[0], "k0")
	p.hold(patient, slots[1], "k1")
	refused(p.service, slots[2], "2026-10-05T07:30:00Z") // when the hold lapses
	if again := p.book(patient, slots[0], "k0"); !again.Replayed {
		t.Errorf("%+v", again)
	}
	p.book(p.patient(), slots[2], "k") // others have limits of their own

	lapsed := p.at(now.Add(30 * time.Minute))
	if _, err := lapsed.Book(ctx, patient, BookRequest{Slot: slots[2], Key: "k2"}); err != nil { // it is not swept
		t.Fatal(err)
	}
	refused(lapsed, slots[3], "2026-10-06T07:30:00Z") // when the first is over
	over := p.at(at(t, "2026-10-06T07:30:00Z"))
	refused(p.at(at(t, "2026-10-06T07:29:59Z")), slots[3], "2026-10-06T07:30:00Z")
	if _, err := over.Book(ctx, patient, BookRequest{Slot: slots[3], Key: "k3"}); err != nil { // though nobody wrote down who came
		t.Fatal(err)
	}
	refused(over, slots[4], "2026-10-06T08:30:00Z")
	p.rules("max_active = 1") // of two that stand, both must be over
	refused(over, slots[4], "2026-10-06T09:00:00Z")
	p.rules("max_active = 3")
	if _, err := over.Book(ctx, patient, BookRequest{Slot: slots[4], Key: "k4"}); err != nil {
		t.Fatal(err)
	}
	if s, err := over.Cancel(ctx, patient, CancelRequest{Appointment: first.Appointment.ID}); code(err) != TooLate {
		t.Fatalf("%+v, %v", s, err)
	}

	t.Run("Elsewhere", func(t *testing.T) { // each organization counts its own
		p.rules("max_active = 1")
		guest := p.patient()
		p.book(guest, slots[5], "k5")
		_, doctor := p.newDoctor("Elsewhere")
		there := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			SELECT $2, start_at, end_at, 5, opens_at FROM time_slot WHERE id = $1 RETURNING id`, slots[0], doctor)
		p.book(guest, there, "k6")
		_, err := p.service.Book(ctx, guest, BookRequest{Slot: slots[0], Key: "k7"})
		wantCode(t, err, LimitReached)
	})
	t.Run("Cancelled", func(t *testing.T) {
		p.rules("max_active = 1")
		guest := p.patient()
		made := p.book(guest, slots[5], "k5")
		must(p.service.Cancel(ctx, guest, CancelRequest{Appointment: made.Appointment.ID}))
		p.book(guest, slots[4], "k6")
	})
	t.Run("Exempt", func(t *testing.T) {
		p.rules("max_active = 1, max_per_day = 1, max_holds = 1")
		for name, actor := range map[string]Actor{"Staff": p.staff(), "System": SystemActor} {
			guest := p.registered(p.staff(), name)
			for i, slot := range slots {
				r := BookRequest{Slot: slot, Patient: guest, Key: fmt.Sprint("exempt", i)}
				if _, err := p.service.claim(ctx, actor, r, i%2 == 0); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
	p.check()
}

// Live holds have a limit of their own; what is booked, confirmed or has lapsed is none of them.
func TestMaxHolds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.rules("max_holds = 1")
	patient, slots := p.patient(), p.slots(6, 5)
	p.book(patient, slots[0], "k0")
	held := p.hold(patient, slots[1], "k1")
	_, err := p.service.Hold(ctx, patient, BookRequest{Slot: slots[2], Key: "k2"})
	wantRule(t, err, LimitReached, "2026-10-05T07:10:00Z")
	p.book(patient, slots[2], "k2") // it is no hold
	if again := p.hold(patient, slots[1], "k3"); !again.Replayed || again.Appointment.ID != held.Appointment.ID {
		t.Errorf("holding again: %+v", again)
	}
	must(p.service.Confirm(ctx, patient, held.Appointment.ID))
	p.hold(patient, slots[3], "k3")
	_, err = p.at(lapse.Add(-time.Second)).Hold(ctx, patient, BookRequest{Slot: slots[4], Key: "k4"})
	wantCode(t, err, LimitReached)
	if _, err := p.at(lapse).Hold(ctx, patient, BookRequest{Slot: slots[4], Key: "k4"}); err != nil {
		t.Error(err)
	}
	p.check()
}

// B50: a day is one of the practice's zone, whatever day it is in UTC.
func TestMaxPerDay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.rules("time_zone = 'Australia/Brisbane', max_per_day = 1")
	patient := p.patient()
	book := func(start string) error {
		slot := p.slotAt(at(t, start))
		_, err := p.service.Book(ctx, patient, BookRequest{Slot: slot, Key: fmt.Sprint(slot)})
		return err
	}
	const ends = "2026-11-02T14:00:00Z" // 3 Nov, 00:00 in Brisbane
	if err := book("2026-11-02T16:00:00+10:00"); err != nil {
		t.Fatal(err)
	}
	for _, start := range []string{"2026-11-02T00:00:00+10:00", "2026-11-02T09:59:00+10:00", "2026-11-02T10:00:00+10:00", "2026-11-02T23:59:59+10:00"} {
		wantRule(t, book(start), LimitReached, ends)
	}
	for _, start := range []string{"2026-11-03T07:00:00+10:00", "2026-11-01T23:59:59+10:00"} {
		if err := book(start); err != nil {
			t.Errorf("%s: %v", start, err)
		}
	}
	wantRule(t, book("2026-11-01T01:00:00+10:00"), LimitReached, "2026-11-01T14:00:00Z")

	t.Run("LongAndShortDays", func(t *testing.T) {
		p.rules("time_zone = 'Europe/Berlin'")
		for _, day := range []struct{ first, last, ends string }{
			{"2026-10-24T22:15:00Z", "2026-10-25T22:59:59Z", "2026-10-25T23:00:00Z"}, // of 25 hours
			{"2027-03-27T23:15:00Z", "2027-03-28T21:59:59Z", "2027-03-28T22:00:00Z"}, // of 23
		} {
			if err := book(day.first); err != nil {
				t.Fatal(err)
			}
			wantRule(t, book(day.last), LimitReached, day.ends)
			if err := book(day.ends); err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("WhatBelongsToADay", func(t *testing.T) { // a visit that took place does, what was given up does not
		for i, status := range []string{"ARRIVED", "FULFILLED", "NO_SHOW"} {
			patient = p.patient()
			made := p.book(patient, p.slotAt(at(t, "2026-12-01T09:00:00Z").Add(time.Duration(i)*time.Minute)), "k")
			p.exec(`UPDATE appointment SET status = $2 WHERE id = $1`, made.Appointment.ID, status)
			p.exec(`INSERT INTO outbox_event (root_id, type, payload) VALUES ($1, $2, '{}')`, made.Appointment.ID, status)
			wantCode(t, book(fmt.Sprintf("2026-12-01T15:0%d:00Z", i)), LimitReached)
		}
		patient = p.patient()
		made := p.book(patient, p.slotAt(at(t, "2026-12-02T09:00:00Z")), "k")
		must(p.service.Cancel(ctx, patient, CancelRequest{Appointment: made.Appointment.ID}))
		p.hold(patient, p.slotAt(at(t, "2026-12-02T10:00:00Z")), "k2")
		third := p.slotAt(at(t, "2026-12-02T11:00:00Z"))
		_, err := p.service.Book(ctx, patient, BookRequest{Slot: third, Key: "k3"})
		wantCode(t, err, LimitReached)
		if _, err := p.at(lapse).Book(ctx, patient, BookRequest{Slot: third, Key: "k3"}); err != nil {
			t.Error(err)
		}
	})
	p.check()
}

// A move goes by the rules of the slot it goes to and by the cut-off of the one it leaves, and no limit
// counts what moves.
func TestRulesOfMoves(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	slots, patient := p.slots(4, 5), p.patient() // tomorrow 07:00 UTC, 07:30 …
	soon, far := p.slot(time.Hour, 5), p.slot(10*24*time.Hour, 5)
	id := p.book(patient, slots[0], "k").Appointment.ID
	key := 0
	move := func(s *Service, actor Actor, to SlotID) error {
		key++
		b, err := s.Reschedule(ctx, actor, RescheduleRequest{Appointment: id, To: to, Key: fmt.Sprint("m", key)})
		if err == nil {
			id = b.Appointment.ID
		}
		return err
	}
	p.rules("max_active = 1, max_per_day = 1, horizon_days = 9, notice_minutes = 61, cutoff_minutes = 60")
	if err := move(p.service, patient, slots[1]); err != nil {
		t.Errorf("within the limits that it fills itself: %v", err)
	}
	wantRule(t, move(p.service, patient, far), TooEarly, "2026-10-06T07:00:00Z")
	wantRule(t, move(p.service, patient, soon), TooLate, "2026-10-05T06:59:00Z")
	cutoff := at(t, "2026-10-06T06:30:00Z")
	if err := move(p.at(cutoff), patient, slots[1]); err != nil {
		t.Errorf("to where it is: %v", err)
	}
	if err := move(p.at(cutoff), patient, slots[3]); err != nil {
		t.Errorf("in the last moment: %v", err)
	}
	late := p.at(at(t, "2026-10-06T07:30:01Z"))
	wantRule(t, move(late, patient, slots[2]), TooLate, "2026-10-06T07:30:00Z")
	if err := move(late, p.staff(), slots[2]); err != nil {
		t.Errorf("by staff: %v", err)
	}
	if err := move(late, SystemActor, slots[3]); err != nil {
		t.Errorf("by the operators: %v", err)
	}

	other := p.patient()
	p.rules("max_active = NULL, notice_minutes = NULL, cutoff_minutes = NULL")
	id = p.book(other, slots[0], "k").Appointment.ID
	kept := id
	p.book(other, p.slot(2*24*time.Hour, 5), "k2")
	next := p.slot(49*time.Hour, 5)
	wantRule(t, move(p.service, other, next), LimitReached, "2026-10-07T22:00:00Z") // that day has one already
	if a, err := p.service.Appointment(ctx, other, kept); err != nil || a.Status != AppointmentBooked {
		t.Errorf("the old place: %+v, %v", a, err)
	}
	p.check()
	t.Run("Control", func(t *testing.T) {
		p.without("reschedule", "outcome := coalesce(rule.code, outcome)", "outcome := outcome")
		p.rules("cutoff_minutes = 10000")
		if err := move(p.service, other, slots[1]); err != nil {
			t.Errorf("the control does not bite: %v", err)
		}
	})
}
