package graph

import "testing"

const mark = `mutation($a:ID!,$s:Attendance!){markAppointment(input:{appointmentId:$a,status:$s}){appointment{id status} changed errors{code message}}}`

// The desk marks who came, and sees so in its list of the day.
func TestAttendance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ada, desk := w.patient("ada"), w.staff()
	slot := w.slot(w.northDoctor, noon(2), 1)
	booked := get[payload](w, ada, book, vars{"s": id(slot), "k": "b"}).Appointment
	for _, changed := range []bool{true, false} {
		if p := get[payload](w, desk, mark, vars{"a": booked.ID, "s": "ARRIVED"}); p.Changed != changed || p.Appointment.Status != "ARRIVED" || p.Errors == nil {
			t.Errorf("arrived: %+v", p)
		}
	}
	list := get[struct {
		Nodes []struct{ ID, Status string }
	}](w, desk, `query($d:ID!,$on:Date!){appointments(doctorId:$d,date:$on){nodes{id status}}}`, vars{"d": id(w.northDoctor), "on": noon(2).Format("2006-01-02")})
	if len(list.Nodes) != 1 || list.Nodes[0].ID != booked.ID || list.Nodes[0].Status != "ARRIVED" {
		t.Errorf("the day: %+v", list)
	}
	if p := get[payload](w, desk, mark, vars{"a": booked.ID, "s": "NO_SHOW"}); p.codes() != "INVALID_STATE" || p.Appointment != nil {
		t.Errorf("missed before it begins: %+v", p)
	}
	for _, status := range []string{"FULFILLED", "BOOKED"} {
		if p := get[payload](w, desk, mark, vars{"a": booked.ID, "s": status}); !p.Changed || p.Appointment.Status != status {
			t.Errorf("%s: %+v", status, p)
		}
	}
	for _, status := range []any{"CANCELLED", "HELD", "arrived", "", nil, 1} {
		if a := w.ask(desk, mark, vars{"a": booked.ID, "s": status}); a.code() != "INVALID" {
			t.Errorf("%v: %s", status, a.Body)
		}
	}
}
