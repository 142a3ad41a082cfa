package graph

import (
	"testing"
	"time"
)

const (
	holdSlot = `mutation($s:ID!,$p:ID,$k:String!,$r:String,$o:String){holdSlot(input:{slotId:$s,patientId:$p,idempotencyKey:$k,referralId:$r,overlapReason:$o}){
		appointment{id status expiresAt referralId overlapReason slot{id free}} replayed errors{code message} alternatives{id}}}`
	confirm = `mutation($a:ID!){confirmAppointment(input:{appointmentId:$a}){appointment{id status expiresAt} changed errors{code message}}}`
	release = `mutation($a:ID!){releaseHold(input:{appointmentId:$a}){appointment{id status} changed errors{code message}}}`
)

type holdPayload struct {
	Appointment *struct {
		ID, Status                string
		ExpiresAt                 *time.Time
		ReferralID, OverlapReason *string
		Slot                      slotJSON
	}
	payload
}

func TestHolding(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, ben := w.patient("ada"), w.patient("ben")
	slot, later := w.slot(w.northDoctor, noon(2), 1), w.slot(w.northDoctor, noon(3), 2)

	held := get[holdPayload](w, ada, holdSlot, vars{"s": id(slot), "k": "h1", "r": "R-1"})
	if a := held.Appointment; a == nil || a.Status != "HELD" || a.ExpiresAt == nil || *a.ReferralID != "R-1" || a.OverlapReason != nil ||
		a.Slot.Free != 0 || held.Replayed || held.Errors == nil || held.Alternatives == nil {
		t.Fatalf("hold: %+v", held)
	}
	again := get[holdPayload](w, ada, holdSlot, vars{"s": id(slot), "k": "h2", "r": "R-1"})
	if !again.Replayed || again.Appointment.ID != held.Appointment.ID {
		t.Errorf("held again: %+v", again)
	}
	if p := get[holdPayload](w, ben, holdSlot, vars{"s": id(slot), "k": "h"}); p.codes() != "SLOT_FULL" || len(p.Alternatives) == 0 {
		t.Errorf("full: %+v", p)
	}
	booked := get[payload](w, ada, book, vars{"s": id(slot), "k": "b"})
	if booked.codes() != "ALREADY_BOOKED" || booked.Appointment == nil || booked.Appointment.Status != "HELD" {
		t.Errorf("book what is held: %+v", booked)
	}
	inUse := get[holdPayload](w, ada, holdSlot, vars{"s": id(later), "k": "h3", "r": "R-1"})
	if inUse.codes() != "REFERRAL_IN_USE" || inUse.Appointment == nil || inUse.Appointment.ID != held.Appointment.ID {
		t.Errorf("referral in use: %+v", inUse)
	}
	if p := get[holdPayload](w, ben, holdSlot, vars{"s": id(later), "k": "h3", "r": "R-1"}); p.codes() != "REFERRAL_IN_USE" || p.Appointment != nil {
		t.Errorf("referral in use by somebody else: %+v", p)
	}

	for _, changed := range []bool{true, false} {
		if p := get[payload](w, ada, confirm, vars{"a": held.Appointment.ID}); p.Changed != changed || p.Appointment.Status != "BOOKED" || p.Errors == nil {
			t.Errorf("confirm: %+v", p)
		}
	}
	if p := get[payload](w, ada, release, vars{"a": held.Appointment.ID}); p.codes() != "INVALID_STATE" || p.Appointment != nil {
		t.Errorf("release what is booked: %+v", p)
	}
	for _, m := range []string{confirm, release} {
		if a := w.ask(ben, m, vars{"a": held.Appointment.ID}); a.code() != "NOT_FOUND" {
			t.Errorf("somebody else's: %s", a.Body)
		}
		if a := w.ask("", m, vars{"a": held.Appointment.ID}); a.code() != "UNAUTHENTICATED" {
			t.Errorf("nobody: %s", a.Body)
		}
	}

	given := get[holdPayload](w, ben, holdSlot, vars{"s": id(later), "k": "h4"})
	for _, changed := range []bool{true, false} {
		if p := get[payload](w, ben, release, vars{"a": given.Appointment.ID}); p.Changed != changed || p.Appointment.Status != "CANCELLED" {
			t.Errorf("release: %+v", p)
		}
	}
	lapsed := get[holdPayload](w, ben, holdSlot, vars{"s": id(later), "k": "h5"})
	sql[int64](w, `UPDATE appointment SET expires_at = now() - interval '1 second' WHERE id = $1 RETURNING id`, lapsed.Appointment.ID)
	for _, m := range []string{confirm, release, cancel} {
		if p := get[payload](w, ben, m, vars{"a": lapsed.Appointment.ID}); p.codes() != "HOLD_EXPIRED" {
			t.Errorf("lapsed: %+v", p)
		}
	}

	if a := w.ask(ada, holdSlot, vars{"s": id(later), "k": "h6", "o": "please"}); a.code() != "FORBIDDEN" {
		t.Errorf("a patient allows an overlap: %s", a.Body)
	}
}
