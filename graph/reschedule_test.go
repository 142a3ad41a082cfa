package graph

import "testing"

const (
	move = `mutation($a:ID,$r:String,$f:ID,$s:ID!,$k:String!,$o:String){rescheduleAppointment(input:{appointmentId:$a,referralId:$r,fromSlotId:$f,toSlotId:$s,idempotencyKey:$k,overlapReason:$o}){
		appointment{id status replaces replacedBy referralId overlapReason slot{id free}} replayed errors{code message} alternatives{id}}}`
	replaced = `query($a:ID!){appointment(id:$a){id status replaces replacedBy cancelledAt slot{id free}}}`
)

type movePayload struct {
	Appointment *struct {
		ID, Status           string
		Replaces, ReplacedBy string
		ReferralID           string
		OverlapReason        *string
		Slot                 slotJSON
	}
	payload
}

func TestRescheduling(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, ben := w.patient("ada"), w.patient("ben")
	from, to, full, away := w.slot(w.northDoctor, noon(2), 1), w.slot(w.northDoctor, noon(3), 2), w.slot(w.northDoctor, noon(4), 1), w.slot(w.southDoctor, noon(5), 1)
	get[payload](w, ben, book, vars{"s": id(full), "k": "b"})
	held := get[holdPayload](w, ada, holdSlot, vars{"s": id(from), "k": "h", "r": "R-1"})
	if p := get[movePayload](w, ada, move, vars{"a": held.Appointment.ID, "s": id(to), "k": "m0"}); p.codes() != "INVALID_STATE" || p.Appointment != nil {
		t.Errorf("a hold: %+v", p)
	}
	get[payload](w, ada, confirm, vars{"a": held.Appointment.ID})

	if p := get[movePayload](w, ada, move, vars{"a": held.Appointment.ID, "s": id(full), "k": "m1"}); p.codes() != "SLOT_FULL" || len(p.Alternatives) == 0 {
		t.Errorf("full: %+v", p)
	}
	moved := get[movePayload](w, ada, move, vars{"a": held.Appointment.ID, "s": id(to), "k": "m1"})
	if a := moved.Appointment; a == nil || a.Status != "BOOKED" || a.Replaces != held.Appointment.ID || a.ReplacedBy != "" || a.ReferralID != "R-1" ||
		a.Slot.ID != id(to) || a.Slot.Free != 1 || moved.Replayed || moved.Errors == nil || moved.Alternatives == nil {
		t.Fatalf("moved: %+v", moved)
	}
	old := get[struct {
		ID, Status, ReplacedBy, CancelledAt string
		Slot                                slotJSON
	}](w, ada, replaced, vars{"a": held.Appointment.ID})
	if old.Status != "CANCELLED" || old.ReplacedBy != moved.Appointment.ID || old.CancelledAt == "" || old.Slot.Free != 1 {
		t.Errorf("the old one: %+v", old)
	}
	for _, key := range []string{"m1", "m2"} { // a retry, and where it is already
		in := vars{"a": held.Appointment.ID, "s": id(to), "k": key}
		if key == "m2" {
			in["a"] = moved.Appointment.ID
		}
		if p := get[movePayload](w, ada, move, in); !p.Replayed || p.Appointment.ID != moved.Appointment.ID {
			t.Errorf("%s: %+v", key, p)
		}
	}
	if p := get[movePayload](w, ada, move, vars{"a": held.Appointment.ID, "s": id(from), "k": "m1"}); p.codes() != "IDEMPOTENCY_KEY_REUSED" {
		t.Errorf("another with the key: %+v", p)
	}
	back := get[movePayload](w, w.staff(), move, vars{"r": "R-1", "f": id(to), "s": id(from), "k": "back"})
	if back.Appointment == nil || back.Appointment.Slot.ID != id(from) || back.Appointment.Replaces != moved.Appointment.ID {
		t.Errorf("back, by the referral: %+v", back)
	}
	for name, tt := range map[string]struct {
		token string
		in    vars
		code  string
	}{
		"somebody else's":      {ben, vars{"a": back.Appointment.ID, "s": id(to), "k": "x"}, "NOT_FOUND"},
		"nobody":               {"", vars{"a": back.Appointment.ID, "s": id(to), "k": "x"}, "UNAUTHENTICATED"},
		"to another practice":  {ada, vars{"a": back.Appointment.ID, "s": id(away), "k": "x"}, "INVALID"},
		"an overlap":           {ada, vars{"a": back.Appointment.ID, "s": id(to), "k": "x", "o": "please"}, "FORBIDDEN"},
		"nothing":              {ada, vars{"s": id(to), "k": "x"}, "INVALID"},
		"both":                 {ada, vars{"a": back.Appointment.ID, "r": "R-1", "f": id(from), "s": id(to), "k": "x"}, "INVALID"},
		"a referral alone":     {ada, vars{"r": "R-1", "s": id(to), "k": "x"}, "INVALID"},
		"a referral elsewhere": {ada, vars{"r": "R-1", "f": id(full), "s": id(to), "k": "x"}, "NOT_FOUND"},
		"to nowhere":           {ada, vars{"a": back.Appointment.ID, "s": "4711", "k": "x"}, "NOT_FOUND"},
	} {
		if a := w.ask(tt.token, move, tt.in); a.code() != tt.code {
			t.Errorf("%s: %s, want %s", name, a.Body, tt.code)
		}
	}
}
