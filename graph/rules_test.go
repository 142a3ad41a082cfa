package graph

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const rulesFields = `id bookingRules{holdMinutes noticeMinutes horizonDays cutoffMinutes maxActive maxHolds maxPerDay}`

type rulesJSON struct {
	ID           string
	BookingRules struct {
		HoldMinutes                                                               int
		NoticeMinutes, HorizonDays, CutoffMinutes, MaxActive, MaxHolds, MaxPerDay *int
	}
}

// Staff change the rules of their practice, everybody reads them, and patients are held to them.
func TestBookingRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	update := func(input string) rulesJSON {
		t.Helper()
		return get[struct{ Organization rulesJSON }](w, w.staff(), `mutation{updateBookingRules(input:{`+input+`}){organization{`+rulesFields+`}}}`, nil).Organization
	}
	read := func() rulesJSON {
		t.Helper()
		return get[struct{ Organization rulesJSON }](w, "", `query($d:ID!){doctor(id:$d){organization{`+rulesFields+`}}}`, vars{"d": id(w.northDoctor)}).Organization
	}
	want := rulesJSON{ID: id(w.north)}
	want.BookingRules.HoldMinutes = 10
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("at first: %s", diff)
	}
	want.BookingRules.HoldMinutes, want.BookingRules.HorizonDays, want.BookingRules.CutoffMinutes = 20, new(1), new(525600)
	if diff := cmp.Diff(want, update(`holdMinutes:20,horizonDays:1,cutoffMinutes:525600`)); diff != "" {
		t.Errorf("changed: %s", diff)
	}
	want.BookingRules.CutoffMinutes = nil
	update(`cutoffMinutes:0, horizonDays:null`)
	if diff := cmp.Diff(want, read()); diff != "" {
		t.Errorf("read: %s", diff)
	}

	ada := w.patient("ada")
	slot, later := w.slot(w.northDoctor, noon(3), 2), w.slot(w.northDoctor, noon(4), 2)
	p := get[payload](w, ada, book, vars{"s": id(slot), "k": "k"})
	if p.codes() != "TOO_EARLY" || p.Errors[0].RetryAfter == nil || !strings.Contains(p.Errors[0].Message, "opens at 2") {
		t.Errorf("beyond the horizon: %+v", p)
	}
	update(`horizonDays:0,noticeMinutes:525600`)
	if p := get[payload](w, ada, book, vars{"s": id(slot), "k": "k"}); p.codes() != "TOO_LATE" || p.Appointment != nil {
		t.Errorf("within the notice: %+v", p)
	}
	update(`noticeMinutes:0,maxActive:1,cutoffMinutes:525600`)
	standing := get[payload](w, ada, book, vars{"s": id(slot), "k": "k"})
	if p := get[holdPayload](w, ada, holdSlot, vars{"s": id(later), "k": "k2"}); p.codes() != "LIMIT_REACHED" || p.Alternatives == nil {
		t.Errorf("another: %+v", p)
	}
	if p := get[payload](w, ada, cancel, vars{"a": standing.Appointment.ID}); p.codes() != "TOO_LATE" {
		t.Errorf("cancel: %+v", p)
	}
	if p := get[payload](w, w.staff(), cancel, vars{"a": standing.Appointment.ID}); !p.Changed {
		t.Errorf("cancel by staff: %+v", p)
	}
}
