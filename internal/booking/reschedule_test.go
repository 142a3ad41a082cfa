package booking

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// beside makes a slot that begins that long after now, of a doctor of its own at the practice.
func (p *practice) beside(after time.Duration, capacity int) SlotID {
	p.t.Helper()
	return one[SlotID](p, `
		WITH d AS (INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Beside') RETURNING id)
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT id, $2::timestamptz, $2::timestamptz + interval '30 min', $3, $2::timestamptz - interval '14 days' FROM d
		RETURNING id`, p.organization, now.Add(after), capacity)
}

func (p *practice) move(actor Actor, b Booking, to SlotID, key string) (Booking, error) {
	return p.service.Reschedule(context.Background(), actor, RescheduleRequest{Appointment: b.Appointment.ID, To: to, Key: key})
}

// count is booked_count as it is, with nothing else checked.
func (p *practice) count(slot SlotID) int {
	p.t.Helper()
	return one[int](p, `SELECT booked_count FROM time_slot WHERE id = $1`, slot)
}

func TestReschedule(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)

	t.Run("B72 Moved", func(t *testing.T) {
		patient, from, to := p.patient(), p.slot(time.Hour, 1), p.beside(2*time.Hour, 1)
		old, err := p.service.Book(ctx, patient, BookRequest{Slot: from, Key: "b", Referral: "R-1"})
		if err != nil {
			t.Fatal(err)
		}
		got, err := p.move(patient, old, to, "m")
		a := got.Appointment
		want := old
		want.Appointment.ID, want.Appointment.SlotID, want.Appointment.DoctorID = a.ID, to, a.DoctorID
		want.Appointment.StartAt, want.Appointment.EndAt = now.Add(2*time.Hour), now.Add(150*time.Minute)
		want.Appointment.Replaces = &old.Appointment.ID
		if diff := cmp.Diff(want, got); err != nil || diff != "" || a.ID == old.Appointment.ID || a.DoctorID == p.doctor {
			t.Errorf("%v %s", err, diff)
		}
		left, err := p.service.Appointment(ctx, patient, old.Appointment.ID)
		want = old
		want.Appointment.Status, want.Appointment.CancelledAt, want.Appointment.ReplacedBy = AppointmentCancelled, &now, &a.ID
		if diff := cmp.Diff(want.Appointment, left); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
		if f, n := p.booked(from), p.booked(to); f != 0 || n != 1 {
			t.Errorf("%d and %d places are taken, want 0 and 1", f, n)
		}
		events := all[string](p, `SELECT type FROM outbox_event WHERE root_id = $1 ORDER BY id`, old.Appointment.ID)
		if diff := cmp.Diff([]string{"BOOKED", "RESCHEDULED"}, events); diff != "" {
			t.Error(diff)
		}
		told := one[string](p, `SELECT concat_ws(' ', payload->'appointmentId', payload->'slotId', payload->'doctorId',
			payload->'from'->'appointmentId', payload->'from'->'slotId', payload->'from'->'doctorId')
			FROM outbox_event WHERE type = 'RESCHEDULED' AND root_id = $1`, old.Appointment.ID)
		if want := fmt.Sprint(a.ID, to, a.DoctorID, old.Appointment.ID, from, p.doctor); strings.Join(strings.Fields(want), " ") != told {
			t.Errorf("told %q, want %q", told, want)
		}

		t.Run("Replay", func(t *testing.T) {
			later := p.at(now.Add(10 * time.Hour)) // when all has begun
			p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, to)
			again, err := later.Reschedule(ctx, patient, RescheduleRequest{Appointment: old.Appointment.ID, To: to, Key: "m"})
			got.Replayed = true
			if diff := cmp.Diff(got, again); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
			for name, r := range map[string]RescheduleRequest{
				"slot": {Appointment: old.Appointment.ID, To: from, Key: "m"}, "appointment": {Appointment: a.ID, To: to, Key: "m"},
				"booking's": {Appointment: old.Appointment.ID, To: to, Key: "b"},
			} {
				if _, err := later.Reschedule(ctx, patient, r); code(err) != IdempotencyKeyReused {
					t.Errorf("another %s: %v", name, err)
				}
			}
			_, err = later.Book(ctx, patient, BookRequest{Slot: to, Key: "m"})
			wantCode(t, err, IdempotencyKeyReused)
		})
		t.Run("Again", func(t *testing.T) {
			_, err := p.move(patient, old, p.slot(3*time.Hour, 1), "m2")
			wantCode(t, err, InvalidState)
			next, err := p.move(patient, got, from, "m3")
			if err != nil || next.Appointment.SlotID != from {
				t.Fatalf("%+v, %v", next, err)
			}
			if root := one[AppointmentID](p, `SELECT root_id FROM appointment WHERE id = $1`, next.Appointment.ID); root != old.Appointment.ID {
				t.Errorf("root %d, want %d", root, old.Appointment.ID)
			}
			if _, err := p.service.Cancel(ctx, patient, CancelRequest{Appointment: next.Appointment.ID}); err != nil {
				t.Error(err)
			}
			p.check()
		})
	})

	t.Run("B29 ToItsOwnSlot", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(4*time.Hour, 1)
		b := p.book(patient, slot, "k")
		p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, slot)
		for _, late := range []time.Duration{0, 10 * time.Hour} {
			got, err := p.at(now.Add(late)).Reschedule(ctx, patient, RescheduleRequest{Appointment: b.Appointment.ID, To: slot, Key: "m"})
			want := Booking{Appointment: b.Appointment, Replayed: true}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})

	t.Run("B28 ItsOwnTime", func(t *testing.T) { // is not in its way; that of another one is
		patient, from := p.patient(), p.slot(5*time.Hour, 1)
		b := p.book(patient, from, "k")
		moved, err := p.move(patient, b, p.beside(5*time.Hour+15*time.Minute, 1), "m")
		if err != nil {
			t.Fatal(err)
		}
		other := p.book(patient, p.slot(6*time.Hour, 1), "k2")
		_, err = p.move(patient, moved, p.beside(6*time.Hour+15*time.Minute, 1), "m2")
		wantCode(t, err, Overlap)
		if e := asError(t, err); e.Existing != 0 {
			t.Errorf("the refusal tells of appointment %d", e.Existing)
		}
		_, err = p.move(patient, moved, other.Appointment.SlotID, "m3")
		wantCode(t, err, AlreadyBooked)
		p.check()
	})

	t.Run("OldPlaceAtOnceBookable", func(t *testing.T) {
		from := p.slot(7*time.Hour, 1)
		b := p.book(p.patient(), from, "k")
		if _, err := p.move(SystemActor, b, p.beside(7*time.Hour, 1), "m"); err != nil {
			t.Fatal(err)
		}
		p.book(p.patient(), from, "k")
		p.check()
	})

	t.Run("OverlapAllowed", func(t *testing.T) { // by staff, and for the place it moves to alone
		patient := p.registered(p.staff(), "overlaps")
		book := func(slot SlotID, reason string) Booking {
			return must(p.service.Book(ctx, p.staff(), BookRequest{Slot: slot, Patient: patient, Key: fmt.Sprint(slot), OverlapReason: reason}))
		}
		book(p.slot(8*time.Hour, 1), "")
		book(p.slot(9*time.Hour, 1), "")
		b := book(p.beside(8*time.Hour, 1), "both")
		to := p.beside(9*time.Hour, 1)
		r := RescheduleRequest{Appointment: b.Appointment.ID, To: to, Key: "m"}
		_, err := p.service.Reschedule(ctx, p.staff(), r)
		wantCode(t, err, Overlap)
		r.OverlapReason = " still both "
		_, err = p.service.Reschedule(ctx, SystemActor, r)
		wantCode(t, err, Forbidden)
		got, err := p.service.Reschedule(ctx, p.staff(), r)
		if err != nil || value(got.Appointment.OverlapReason) != "still both" {
			t.Errorf("%+v, %v", got.Appointment, err)
		}
		got, err = p.service.Reschedule(ctx, p.staff(), RescheduleRequest{Appointment: got.Appointment.ID, To: p.beside(12*time.Hour, 1), Key: "m2", OverlapReason: "?"})
		if err != nil || got.Appointment.OverlapReason != nil {
			t.Errorf("%+v, %v: nothing overlaps any more", got.Appointment, err)
		}
		p.check()
	})

	t.Run("States", func(t *testing.T) {
		for status, want := range map[AppointmentStatus]Code{
			AppointmentHeld: InvalidState, AppointmentBooked: "", AppointmentCancelled: InvalidState, AppointmentArrived: InvalidState,
			AppointmentFulfilled: InvalidState, AppointmentNoShow: InvalidState, AppointmentExpired: HoldExpired,
		} {
			b := p.book(p.patient(), p.slot(13*time.Hour, 1), "k")
			p.exec(`UPDATE appointment SET status = $2, expires_at = $3 WHERE id = $1`, b.Appointment.ID, status, lapse)
			to := p.slot(14*time.Hour, 1)
			if _, err := p.move(SystemActor, b, to, string(status)); code(err) != want {
				t.Errorf("%s: %v, want %q", status, err, want)
			}
			p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id IN ($1, $2)`, b.Appointment.SlotID, to)
			p.exec(`DELETE FROM outbox_event; DELETE FROM appointment; UPDATE time_slot SET booked_count = 0`)
		}
		held := p.hold(p.patient(), p.slot(15*time.Hour, 1), "k")
		_, err := p.at(lapse).Reschedule(ctx, SystemActor, RescheduleRequest{Appointment: held.Appointment.ID, To: p.slot(16*time.Hour, 1), Key: "m"})
		wantCode(t, err, HoldExpired)
	})

	t.Run("BadInput", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(17*time.Hour, 1)
		b := p.book(patient, slot, "k")
		id := b.Appointment.ID
		for name, test := range map[string]struct {
			r    RescheduleRequest
			want Code
		}{
			"Nothing":      {RescheduleRequest{To: slot, Key: "m"}, Invalid},
			"FromAlone":    {RescheduleRequest{From: slot, To: slot, Key: "m"}, Invalid},
			"ReferralOnly": {RescheduleRequest{Referral: "R", To: slot, Key: "m"}, Invalid},
			"BlankRef":     {RescheduleRequest{From: slot, Referral: " ", To: slot, Key: "m"}, Invalid},
			"Both":         {RescheduleRequest{Appointment: id, From: slot, Referral: "R", To: slot, Key: "m"}, Invalid},
			"HalfMore":     {RescheduleRequest{Appointment: id, From: slot, To: slot, Key: "m"}, Invalid},
			"LongReferral": {RescheduleRequest{From: slot, Referral: strings.Repeat("R", 65), To: slot, Key: "m"}, Invalid},
			"Key":          {RescheduleRequest{Appointment: id, To: slot}, Invalid},
			"LongReason":   {RescheduleRequest{Appointment: id, To: slot, Key: "m", OverlapReason: strings.Repeat("x", 501)}, Invalid},
			"NoSlot":       {RescheduleRequest{Appointment: id, Key: "m"}, Invalid},
			"UnknownSlot":  {RescheduleRequest{Appointment: id, To: 1 << 50, Key: "m"}, NotFound},
			"Unknown":      {RescheduleRequest{Appointment: 1 << 50, To: slot, Key: "m"}, NotFound},
			"UnknownFrom":  {RescheduleRequest{From: slot, Referral: "R-?", To: slot, Key: "m"}, NotFound},
		} {
			if _, err := p.service.Reschedule(ctx, patient, test.r); code(err) != test.want {
				t.Errorf("%s: %v, want %s", name, err, test.want)
			}
		}
		p.check()
	})
}

// Whatever refuses the new place, the old one is kept.
func TestRescheduleRefused(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	_, elsewhere := p.newDoctor("Elsewhere")
	change := func(slot SlotID, set string) SlotID {
		p.exec(`UPDATE time_slot SET `+set+` WHERE id = $1`, slot)
		return slot
	}
	full := p.slot(2*time.Hour, 1)
	p.book(p.patient(), full, "k")
	away := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', 1, '2026-10-01') RETURNING id`, elsewhere, now.Add(time.Hour))
	for name, test := range map[string]struct {
		to   SlotID
		want Code
		at   time.Duration // when it is tried
		by   func(patient Actor) Actor
	}{
		"Full":            {full, SlotFull, 0, nil},
		"Closed":          {change(p.slot(3*time.Hour, 1), `status = 'CLOSED'`), SlotIsClosed, 0, nil},
		"Withdrawn":       {change(p.slot(4*time.Hour, 1), `status = 'WITHDRAWN'`), NotFound, 0, nil},
		"NotOpen":         {change(p.slot(5*time.Hour, 1), `opens_at = start_at`), SlotNotOpen, 0, nil},
		"Past":            {p.slot(30*time.Minute, 1), SlotPast, 30 * time.Minute, nil},
		"Begun":           {p.slot(90*time.Minute, 1), TooLate, time.Hour, nil},
		"OtherPractice":   {away, Invalid, 0, nil},
		"OtherByStaff":    {away, NotFound, 0, func(Actor) Actor { return p.staff() }},
		"OfAnother":       {p.slot(6*time.Hour, 1), NotFound, 0, func(Actor) Actor { return p.patient() }},
		"ByOtherStaff":    {p.slot(7*time.Hour, 1), NotFound, 0, func(Actor) Actor { return Actor{Kind: Staff, Subject: "x", Organization: p.organization + 1} }},
		"ByOtherPartner":  {p.slot(8*time.Hour, 1), NotFound, 0, func(Actor) Actor { return Actor{Kind: Partner, Subject: "rival"} }},
		"ByNobody":        {p.slot(9*time.Hour, 1), Unauthenticated, 0, func(Actor) Actor { return Actor{} }},
		"ByItself":        {p.slot(10*time.Hour, 1), "", 0, nil},
		"ByStaff":         {p.slot(11*time.Hour, 1), "", 0, func(Actor) Actor { return p.staff() }},
		"ByTheOperators":  {p.slot(12*time.Hour, 1), "", 0, func(Actor) Actor { return SystemActor }},
		"ToABeginningOne": {p.slot(59*time.Minute, 1), "", 58 * time.Minute, nil},
	} {
		t.Run(name, func(t *testing.T) {
			patient, from := p.patient(), p.beside(time.Hour, 1)
			b := must(p.service.Book(ctx, patient, BookRequest{Slot: from, Key: "b", Referral: "R-" + name}))
			actor, taken := patient, p.count(test.to)
			if test.by != nil {
				actor = test.by(patient)
			}
			_, err := p.at(now.Add(test.at)).Reschedule(ctx, actor, RescheduleRequest{Appointment: b.Appointment.ID, To: test.to, Key: name})
			wantCode(t, err, test.want)
			if test.want == "" {
				return
			}
			left, err := p.service.Appointment(ctx, patient, b.Appointment.ID)
			if diff := cmp.Diff(b.Appointment, left); err != nil || diff != "" {
				t.Errorf("%v %s", err, diff)
			}
			if f, n := p.booked(from), p.count(test.to); f != 1 || n != taken {
				t.Errorf("%d and %d places are taken, want 1 and %d", f, n, taken)
			}
		})
	}
	t.Run("Partner", func(t *testing.T) {
		partner := Actor{Kind: Partner, Subject: "portal"}
		b := must(p.service.Book(ctx, partner, BookRequest{Slot: p.beside(time.Hour, 1), Key: "b", Patient: p.registered(partner, "s")}))
		if _, err := p.move(partner, b, p.beside(time.Hour, 1), "m"); err != nil {
			t.Error(err)
		}
	})
	t.Run("Control", func(t *testing.T) {
		patient, from := p.patient(), p.beside(time.Hour, 1)
		b := p.book(patient, from, "b")
		p.without("reschedule", `RAISE EXCEPTION USING ERRCODE = 'OS001', MESSAGE = 'reschedule: the old place is kept';`, `RETURN NEXT; RETURN;`)
		_, err := p.move(patient, b, full, "m")
		wantCode(t, err, SlotFull)
		if n := p.count(from); n != 0 {
			t.Errorf("%d places are taken: the control does not bite", n)
		}
	})
}

// A referral, a new slot and a previous slot say together what moves where.
func TestRescheduleByReferral(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	patient, from, to := p.patient(), p.slot(time.Hour, 2), p.slot(2*time.Hour, 1)
	book := func(key string) Booking {
		return must(p.service.Book(ctx, patient, BookRequest{Slot: from, Key: key, Referral: "R-1"}))
	}
	gone := book("k1")
	must(p.service.Cancel(ctx, patient, CancelRequest{Appointment: gone.Appointment.ID}))
	old := book("k2")
	r := RescheduleRequest{Referral: " R-1 ", From: from, To: to, Key: "m"}
	for name, actor := range map[string]Actor{"patient": p.patient(), "partner": {Kind: Partner, Subject: "x"}} {
		if _, err := p.service.Reschedule(ctx, actor, r); code(err) != NotFound {
			t.Errorf("another %s: %v", name, err)
		}
	}
	got, err := p.service.Reschedule(ctx, patient, r)
	if err != nil || got.Replayed || got.Appointment.SlotID != to || *got.Appointment.Replaces != old.Appointment.ID || value(got.Appointment.ReferralID) != "R-1" {
		t.Fatalf("%+v, %v", got, err)
	}
	again, err := p.service.Reschedule(ctx, patient, r)
	if got.Replayed = true; err != nil || !cmp.Equal(again, got) {
		t.Errorf("%+v, %v", again, err)
	}
	r.Key = "m2"
	_, err = p.service.Reschedule(ctx, patient, r) // it is not there any more
	wantCode(t, err, InvalidState)
	r.From, r.To = to, from // back, by staff
	if back, err := p.service.Reschedule(ctx, p.staff(), r); err != nil || back.Appointment.SlotID != from {
		t.Errorf("%+v, %v", back, err)
	}
	r.Key, r.From, r.To = "m", from, to // another appointment of that referral is in that slot now: still the first answer
	if again, err := p.service.Reschedule(ctx, patient, r); err != nil || again.Appointment.ID != got.Appointment.ID || again.Appointment.Status != AppointmentCancelled {
		t.Errorf("%+v, %v", again, err)
	}
	p.check()
}
