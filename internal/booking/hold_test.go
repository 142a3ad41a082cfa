package booking

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// hold holds a place at the practice's time.
func (p *practice) hold(actor Actor, slot SlotID, key string) Booking {
	p.t.Helper()
	b, err := p.service.Hold(context.Background(), actor, BookRequest{Slot: slot, Key: key})
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// lapse is when holds made at now are over.
var lapse = now.Add(10 * time.Minute)

// without changes the text of a function of the database: a guard is left out, to see whether it is
// missed.
func (p *practice) without(function, guard, instead string) {
	p.t.Helper()
	text := one[string](p, `SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = $1 ORDER BY oid DESC LIMIT 1`, function)
	if !strings.Contains(text, guard) {
		p.t.Fatalf("the function %s has no %q", function, guard)
	}
	p.exec(strings.ReplaceAll(text, guard, instead))
}

func TestHold(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)

	t.Run("Held", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(time.Hour, 2)
		got := p.hold(patient, slot, "k")
		want := Booking{Appointment: Appointment{
			ID: got.Appointment.ID, SlotID: slot, DoctorID: p.doctor, OrganizationID: p.organization,
			PatientID: patient.PatientID, Status: AppointmentHeld, StartAt: now.Add(time.Hour),
			EndAt: now.Add(90 * time.Minute), CreatedAt: now, ExpiresAt: &lapse,
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})

	t.Run("AsLongAsTheOrganizationGrants", func(t *testing.T) {
		p.exec(`UPDATE organization SET hold_minutes = 3`)
		defer p.exec(`UPDATE organization SET hold_minutes = 10`)
		for name, actor := range map[string]Actor{"alone": p.patient(), "carefully": p.staff()} {
			r := BookRequest{Slot: p.slot(time.Duration(90+len(name))*time.Minute, 1), Key: name}
			if actor.Kind == Staff {
				r.Patient = p.registered(actor, name)
			}
			b, err := p.service.Hold(ctx, actor, r)
			if err != nil || !b.Appointment.ExpiresAt.Equal(now.Add(3*time.Minute)) {
				t.Errorf("%s: %+v, %v", name, b.Appointment, err)
			}
		}
	})

	t.Run("B40 Again", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(3*time.Hour, 2)
		first := p.hold(patient, slot, "k1")
		later := p.at(now.Add(time.Minute))
		for _, key := range []string{"k1", "k2"} { // a retry, and somebody who went back and chose again
			again, err := later.Hold(ctx, patient, BookRequest{Slot: slot, Key: key})
			first.Replayed = true
			if diff := cmp.Diff(first, again); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
		_, err := later.Hold(ctx, patient, BookRequest{Slot: slot, Key: "k3", Referral: "R"}) // not the same
		wantCode(t, err, AlreadyBooked)
		_, err = later.Book(ctx, patient, BookRequest{Slot: slot, Key: "k1"})
		wantCode(t, err, IdempotencyKeyReused)
	})

	t.Run("ThenBook", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(4*time.Hour, 1)
		held := p.hold(patient, slot, "k1")
		_, err := p.service.Book(ctx, patient, BookRequest{Slot: slot, Key: "k2"})
		wantCode(t, err, AlreadyBooked)
		if got := asError(t, err).Existing; got != held.Appointment.ID {
			t.Errorf("existing appointment %d, want %d", got, held.Appointment.ID)
		}
		_, err = p.service.Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, SlotFull)
		p.check()
	})

	t.Run("WhatIsBooked", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(5*time.Hour, 2)
		p.book(patient, slot, "k1")
		_, err := p.service.Hold(ctx, patient, BookRequest{Slot: slot, Key: "k2"})
		wantCode(t, err, AlreadyBooked)
	})

	t.Run("OfAClosedSlot", func(t *testing.T) { // stands, and nobody gets another
		patient, slot := p.patient(), p.slot(6*time.Hour, 2)
		held := p.hold(patient, slot, "k1")
		p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, slot)
		if again := p.hold(patient, slot, "k2"); again.Appointment.ID != held.Appointment.ID {
			t.Errorf("another hold: %+v", again)
		}
		_, err := p.service.Hold(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, SlotIsClosed)
		if c, err := p.service.Confirm(ctx, patient, held.Appointment.ID); err != nil || !c.Changed {
			t.Errorf("%+v, %v", c, err)
		}
		p.check()
	})
}

func TestConfirmAndRelease(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	type step func(ctx context.Context, actor Actor, id AppointmentID) (Step, error)

	t.Run("Confirm", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(time.Hour, 1)
		held := p.hold(patient, slot, "k")
		for _, changed := range []bool{true, false} {
			c, err := p.service.Confirm(ctx, patient, held.Appointment.ID)
			want := held.Appointment
			want.Status, want.ExpiresAt = AppointmentBooked, nil
			if diff := cmp.Diff(Step{want, changed}, c); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		}
		p.check()
		if again := p.hold(patient, slot, "k"); !again.Replayed || again.Appointment.Status != AppointmentBooked {
			t.Errorf("replay: %+v", again)
		}
		// What was confirmed does not lapse.
		if n, err := p.at(lapse.Add(time.Hour)).Expire(ctx); n != 0 || err != nil {
			t.Errorf("%d expired, %v", n, err)
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
		_, err := p.service.Release(ctx, patient, held.Appointment.ID)
		wantCode(t, err, InvalidState)
	})

	t.Run("Release", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(2*time.Hour, 1)
		for i, give := range []step{p.service.Release, func(ctx context.Context, actor Actor, id AppointmentID) (Step, error) {
			return p.service.Cancel(ctx, actor, CancelRequest{Appointment: id})
		}} {
			held := p.hold(patient, slot, string(rune('a'+i)))
			for _, changed := range []bool{true, false} {
				c, err := give(ctx, patient, held.Appointment.ID)
				if err != nil || c.Changed != changed || c.Appointment.Status != AppointmentCancelled {
					t.Errorf("%+v, %v", c, err)
				}
			}
			if n := p.booked(slot); n != 0 {
				t.Errorf("booked_count = %d, want 0", n)
			}
			_, err := p.service.Confirm(ctx, patient, held.Appointment.ID)
			wantCode(t, err, InvalidState)
		}
		p.book(p.patient(), slot, "k")
	})

	other, _ := p.newDoctor("Other")
	for name, test := range map[string]struct {
		actor Actor
		want  Code
	}{
		"Anonymous":    {Actor{}, Unauthenticated},
		"OtherPatient": {p.patient(), NotFound},
		"OtherStaff":   {Actor{Kind: Staff, Subject: "desk", Organization: other}, NotFound},
		"OtherPartner": {Actor{Kind: Partner, Subject: "rival"}, NotFound},
		"Staff":        {p.staff(), ""},
		"System":       {SystemActor, ""},
	} {
		t.Run("By/"+name, func(t *testing.T) {
			slot := p.slot(time.Duration(10+len(name))*time.Hour, 1)
			defer p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
			held := p.hold(p.patient(), slot, name)
			_, err := p.service.Confirm(ctx, test.actor, held.Appointment.ID)
			wantCode(t, err, test.want)
			_, err = p.service.Release(ctx, test.actor, held.Appointment.ID)
			if test.want == "" {
				test.want = InvalidState
			}
			wantCode(t, err, test.want)
		})
	}

	t.Run("Begun", func(t *testing.T) { // the hold outlasts the slot's start
		patient, slot := p.patient(), p.slot(5*time.Minute, 1)
		held := p.hold(patient, slot, "k")
		late := p.at(now.Add(5 * time.Minute))
		for _, take := range []step{late.Confirm, late.Release} {
			_, err := take(ctx, patient, held.Appointment.ID)
			wantCode(t, err, TooLate)
		}
		p.check()
	})
}

// B36, B37: a hold that has lapsed is over for everybody: before and after somebody wrote that
// down, one second later and a year later.
func TestLapsed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	patient, slot := p.patient(), p.slot(400*24*time.Hour, 1)
	p.exec(`UPDATE time_slot SET opens_at = $1`, now)
	held := p.hold(patient, slot, "k")
	for name, at := range map[string]time.Time{
		"AtOnce": lapse, "ASecondLater": lapse.Add(time.Second), "FiveMinutesLater": lapse.Add(5 * time.Minute), "AYearLater": lapse.Add(8760 * time.Hour),
	} {
		later := p.at(at)
		refused := func() {
			t.Helper()
			_, err := later.Confirm(ctx, patient, held.Appointment.ID)
			wantCode(t, err, HoldExpired)
			_, err = later.Release(ctx, patient, held.Appointment.ID)
			wantCode(t, err, HoldExpired)
			_, err = later.Cancel(ctx, patient, CancelRequest{Appointment: held.Appointment.ID})
			wantCode(t, err, HoldExpired)
			for what, status := range map[string]AppointmentStatus{
				"read":   must(later.Appointment(ctx, patient, held.Appointment.ID)).Status,
				"listed": must(later.PatientAppointments(ctx, patient, Page{First: 1})).Appointments[0].Status,
				"replay": must(later.Hold(ctx, patient, BookRequest{Slot: slot, Key: "k"})).Appointment.Status,
			} {
				if status != AppointmentExpired {
					t.Errorf("%s, %s: %s", name, what, status)
				}
			}
			p.check()
		}
		refused()
		if n, err := p.at(lapse.Add(-time.Microsecond)).Expire(ctx); n != 0 || err != nil {
			t.Errorf("too early: %d expired, %v", n, err)
		}
		for _, want := range []int{1, 0} {
			if n, err := later.Expire(ctx); n != want || err != nil {
				t.Errorf("%d expired, want %d; %v", n, want, err)
			}
		}
		refused()
		if n := p.booked(slot); n != 0 {
			t.Errorf("booked_count = %d, want 0", n)
		}
		p.exec(`TRUNCATE outbox_event`) // and back
		p.exec(`UPDATE appointment SET status = 'HELD'`)
		p.exec(`UPDATE time_slot SET booked_count = 1`)
		p.exec(`INSERT INTO outbox_event (root_id, type, payload) VALUES ($1, 'HELD', '{}')`, held.Appointment.ID)
	}

	t.Run("Control", func(t *testing.T) {
		p.without("step", "a.expires_at <= v_now", "false")
		if c, err := p.at(lapse).Confirm(ctx, patient, held.Appointment.ID); err != nil || !c.Changed {
			t.Errorf("%+v, %v: the control does not bite", c, err)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// B10, B41: a hold that has lapsed is in nobody's way, though no sweeper has been there: not for its
// place, not for its patient's time, not for its referral.
func TestLapsedHindersNobody(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	onEachRoad(t, func(t *testing.T, p *practice, service func(int) *Service) {
		config := patient(lapse)
		config.Plain = service(0).batcher == nil
		later := New(p.pool, config)
		_, elsewhere := p.newDoctor("Elsewhere")
		beside := func(slot SlotID) SlotID { // at the same time, elsewhere
			return one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
				SELECT $2, start_at, end_at, 1, opens_at FROM time_slot WHERE id = $1 RETURNING id`, slot, elsewhere)
		}

		t.Run("B10 Place", func(t *testing.T) {
			first, second, slot := p.patient(), p.patient(), p.slot(time.Hour, 1)
			held := p.hold(first, slot, "k")
			next, err := later.Hold(ctx, second, BookRequest{Slot: slot, Key: "k"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := later.Confirm(ctx, second, next.Appointment.ID); err != nil {
				t.Error(err)
			}
			_, err = later.Confirm(ctx, first, held.Appointment.ID)
			wantCode(t, err, HoldExpired)
			if n := p.booked(slot); n != 1 {
				t.Errorf("booked_count = %d, want 1", n)
			}
		})

		t.Run("OwnPlace", func(t *testing.T) {
			patient, slot := p.patient(), p.slot(2*time.Hour, 2)
			held := p.hold(patient, slot, "k1")
			if again, err := later.Hold(ctx, patient, BookRequest{Slot: slot, Key: "k2"}); err != nil || again.Replayed || again.Appointment.ID == held.Appointment.ID {
				t.Errorf("%+v, %v", again, err)
			}
			if n := p.booked(slot); n != 1 {
				t.Errorf("booked_count = %d, want 1", n)
			}
		})

		t.Run("Patient", func(t *testing.T) {
			patient, slot := p.patient(), p.slot(3*time.Hour, 1)
			other := beside(slot)
			p.hold(patient, slot, "k1")
			_, err := p.service.Book(ctx, patient, BookRequest{Slot: other, Key: "k2"})
			wantCode(t, err, Overlap)
			if _, err := later.Book(ctx, patient, BookRequest{Slot: other, Key: "k2"}); err != nil {
				t.Error(err)
			}
			if a, b := p.booked(slot), p.booked(other); a != 0 || b != 1 {
				t.Errorf("booked_count = %d and %d, want 0 and 1", a, b)
			}
		})

		t.Run("Everything", func(t *testing.T) { // of place, patient and referral, each elsewhere
			full, withReferral := p.slot(4*time.Hour, 1), p.slot(6*time.Hour, 1)
			p.exec(`UPDATE time_slot SET capacity = 2 WHERE id = $1`, full)
			patient := p.patient()
			atTime := beside(full)
			p.hold(patient, atTime, "k1")
			p.hold(p.patient(), full, "k")
			p.hold(p.patient(), full, "k")
			if _, err := p.service.Hold(ctx, patient, BookRequest{Slot: withReferral, Key: "k2", Referral: "R"}); err != nil {
				t.Fatal(err)
			}
			r := BookRequest{Slot: full, Key: "k3", Referral: "R"}
			_, err := p.service.Book(ctx, patient, r)
			wantCode(t, err, SlotFull)
			if b, err := later.Book(ctx, patient, r); err != nil || b.Replayed {
				t.Errorf("%+v, %v", b, err)
			}
			if n := p.booked(full); n != 1 {
				t.Errorf("booked_count = %d, want 1", n)
			}
		})

		t.Run("Gate", func(t *testing.T) { // that believes the slot is full
			config.Gate = &gate{admit: func(BookRequest) error { return Refuse(SlotFull, "as far as I know") }}
			slot, holder := p.slot(7*time.Hour, 1), p.patient()
			p.hold(holder, slot, "k")
			_, err := p.gatedBy(config.Gate, config.Plain).Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
			wantCode(t, err, SlotFull)
			if held, err := p.gatedBy(config.Gate, config.Plain).Hold(ctx, holder, BookRequest{Slot: slot, Key: "k2"}); err != nil || !held.Replayed {
				t.Errorf("held again: %+v, %v", held, err)
			}
			if _, err := New(p.pool, config).Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"}); err != nil {
				t.Error(err)
			}
			p.check()
		})

		t.Run("Control", func(t *testing.T) { // nothing of this would work if nobody expired anything
			p.without("release_due", "IF due <> '{}'", "IF false")
			slot := p.slot(8*time.Hour, 1)
			p.hold(p.patient(), slot, "k")
			hurried := config
			hurried.Gate = nil
			_, err := New(p.pool, hurried).Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
			wantCode(t, err, Overloaded)
		})
	})
}
