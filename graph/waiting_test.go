package graph

import (
	"strings"
	"testing"
)

const (
	entryFields = `{id from to status createdAt doctor{id} patient{id} offer{id status expiresAt slot{id}}}`
	join        = `mutation($d:ID!,$f:Date!,$t:Date!,$p:ID){joinWaitingList(input:{doctorId:$d,from:$f,to:$t,patientId:$p}){entry` + entryFields + ` joined errors{code message}}}`
	leave       = `mutation($e:ID!){leaveWaitingList(input:{entryId:$e}){entry` + entryFields + ` changed errors{code}}}`
)

type entryJSON struct {
	ID, From, To, Status string
	Doctor, Patient      struct{ ID string }
	Offer                *struct {
		ID, Status string
		Slot       slotJSON
	}
}

type entryPayload struct {
	Entry           *entryJSON
	Joined, Changed bool
	payload
}

func TestWaitingList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, ben := w.patient("ada"), w.patient("ben")
	slot := w.slot(w.northDoctor, noon(2), 1)
	booked := get[payload](w, ada, book, vars{"s": id(slot), "k": "b"})
	from, to := noon(0).Format("2006-01-02"), noon(5).Format("2006-01-02")
	wish := vars{"d": id(w.northDoctor), "f": from, "t": to}

	var entry entryJSON
	for _, joined := range []bool{true, false} {
		p := get[entryPayload](w, ben, join, wish)
		if p.Joined != joined || p.Entry == nil || p.Entry.Status != "WAITING" || p.Entry.From != from || p.Entry.To != to ||
			p.Entry.Doctor.ID != id(w.northDoctor) || p.Entry.Offer != nil || p.Errors == nil {
			t.Fatalf("join: %+v", p)
		}
		entry = *p.Entry
	}
	show := func(token string) *entryJSON {
		return get[*entryJSON](w, token, `query($e:ID!){waitingEntry(id:$e)`+entryFields+`}`, vars{"e": entry.ID})
	}
	get[payload](w, ada, cancel, vars{"a": booked.Appointment.ID})
	offered := show(ben)
	if offered == nil || offered.Status != "OFFERED" || offered.Offer == nil || offered.Offer.Status != "HELD" || offered.Offer.Slot.ID != id(slot) {
		t.Fatalf("offered: %+v", offered)
	}
	if seen := show(ada); seen != nil {
		t.Errorf("somebody else's: %+v", seen)
	}
	if p := get[payload](w, ben, confirm, vars{"a": offered.Offer.ID}); !p.Changed {
		t.Errorf("confirm: %+v", p)
	}

	next := get[entryPayload](w, ben, join, vars{"d": id(w.northDoctor), "f": to, "t": to}).Entry
	for _, changed := range []bool{true, false} {
		if p := get[entryPayload](w, ben, leave, vars{"e": next.ID}); p.Changed != changed || p.Entry.Status != "LEFT" {
			t.Errorf("leave: %+v", p)
		}
	}
	type list struct {
		Nodes    []entryJSON
		PageInfo struct{ HasNextPage bool }
	}
	if l := get[list](w, ben, `{myWaitingList(first:1){nodes`+entryFields+` pageInfo{hasNextPage}}}`, nil); len(l.Nodes) != 1 || l.Nodes[0].ID != next.ID || !l.PageInfo.HasNextPage {
		t.Errorf("own entries: %+v", l)
	}
	l := get[list](w, w.staff(), `query($d:ID!){waitingList(doctorId:$d){nodes`+entryFields+` edges{cursor} pageInfo{hasNextPage}}}`, vars{"d": id(w.northDoctor)})
	if len(l.Nodes) != 2 || l.Nodes[0].Status != "BOOKED" || l.Nodes[0].Offer.Status != "BOOKED" || l.Nodes[1].Status != "LEFT" {
		t.Errorf("the doctor's list: %+v", l)
	}

	for n := range 10 {
		get[entryPayload](w, ben, join, vars{"d": id(w.northDoctor), "f": from, "t": noon(n + 10).Format("2006-01-02")})
	}
	if p := get[entryPayload](w, ben, join, wish); p.codes() != "LIMIT_REACHED" || p.Entry != nil || !strings.Contains(p.Errors[0].Message, "10") {
		t.Errorf("one too many: %+v", p)
	}
	for code, call := range map[string]struct {
		token, query string
		vars         vars
	}{
		"UNAUTHENTICATED": {"", join, wish},
		"INVALID":         {ben, join, vars{"d": id(w.northDoctor), "f": to, "t": from}},
		"NOT_FOUND":       {ada, leave, vars{"e": entry.ID}},
		"FORBIDDEN":       {ben, `{waitingList(doctorId:"1"){nodes{id}}}`, nil},
	} {
		if a := w.ask(call.token, call.query, call.vars); a.code() != code {
			t.Errorf("want %s: %s", code, a.Body)
		}
	}
}
