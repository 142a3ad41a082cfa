package rest

import (
	"fmt"
	"strings"
	"testing"

	"openslot/internal/booking"
)

// Every status and code that a mark can come to.
func TestAttendance(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot, begun, third := w.slot(0, 9), w.slot(1, 9), w.slot(2, 9)
	patient, staff, partner, system := w.token(booking.Patient, "p"), w.token(booking.Staff, "desk"), w.token(booking.Partner, "portal"), w.token(booking.System, "ops")
	booked, missed, held := w.book(patient, slot, "k"), w.book(patient, begun, "begun"), w.hold(patient, "held", fmt.Sprintf(`{"slotId":%d}`, third))
	w.exec(`UPDATE appointment SET during = tstzrange(now() - interval '1 hour', now()) WHERE id = $1`, missed.id())
	mark := func(token string, a answer, status string) ask {
		return ask{method: "PUT", path: fmt.Sprintf("/api/appointments/%d/attendance", a.id()), token: token, body: fmt.Sprintf(`{"status":%q}`, status)}
	}
	with := func(q ask, body string) ask {
		q.body = body
		return q
	}
	for _, tt := range []struct {
		name   string
		ask    ask
		status int
		code   string
		detail string // part of the body
	}{
		{"Arrived", mark(staff, booked, "ARRIVED"), 200, "", `"status":"ARRIVED"`},
		{"ArrivedAgain", mark(system, booked, "ARRIVED"), 200, "", `"status":"ARRIVED"`},
		{"Listed", ask{method: "GET", path: fmt.Sprintf("/api/doctors/%d/appointments?date=%s", w.doctor, w.day()), token: staff}, 200, "", `"status":"ARRIVED"`},
		{"NotBegun", mark(staff, booked, "NO_SHOW"), 409, "INVALID_STATE", "not begun"},
		{"Fulfilled", mark(staff, booked, "FULFILLED"), 200, "", `"status":"FULFILLED"`},
		{"TakenBack", mark(staff, booked, "BOOKED"), 200, "", `"status":"BOOKED"`},
		{"Missed", mark(staff, missed, "NO_SHOW"), 200, "", `"status":"NO_SHOW"`},
		{"BookedSince", ask{method: "POST", path: "/api/appointments", token: patient, key: "again", body: fmt.Sprintf(`{"slotId":%d}`, begun)}, 201, "", ""},
		{"NotTakenBack", mark(staff, missed, "BOOKED"), 409, "ALREADY_BOOKED", `"appointmentId":`},
		{"Held", mark(staff, held, "ARRIVED"), 409, "INVALID_STATE", ""},
		{"ByPatient", mark(patient, booked, "ARRIVED"), 403, "FORBIDDEN", "staff"},
		{"ByPartner", mark(partner, booked, "ARRIVED"), 403, "FORBIDDEN", "staff"},
		{"ByNobody", mark("", booked, "ARRIVED"), 401, "UNAUTHENTICATED", ""},
		{"Unknown", ask{method: "PUT", path: "/api/appointments/99999999/attendance", token: staff, body: `{"status":"ARRIVED"}`}, 404, "NOT_FOUND", ""},
		{"Cancelled", mark(staff, booked, "CANCELLED"), 400, "INVALID", "status must be"},
		{"LowerCase", mark(staff, booked, "arrived"), 400, "INVALID", "status must be"},
		{"Missing", with(mark(staff, booked, ""), `{}`), 400, "INVALID", "status is missing"},
		{"Number", with(mark(staff, booked, ""), `{"status":1}`), 400, "INVALID", "status must be"},
		{"NoBody", with(mark(staff, booked, ""), ""), 415, "INVALID", mediaJSON},
		{"NotAllowed", ask{method: "POST", path: "/api/appointments/1/attendance", token: staff}, 405, "INVALID", "PUT, OPTIONS"},
	} {
		a := w.ask(tt.ask)
		if a.status != tt.status || a.code() != tt.code || !strings.Contains(a.body, tt.detail) {
			t.Errorf("%s: %d %s\n%s\nwant %d %s %s", tt.name, a.status, a.code(), a.body, tt.status, tt.code, tt.detail)
		}
		checkHeaders(t, tt.name, a)
	}
	w.exec(`UPDATE appointment SET expires_at = now() - interval '1 second' WHERE id = $1`, held.id())
	if a := w.ask(mark(staff, held, "ARRIVED")); a.status != 410 || a.code() != "HOLD_EXPIRED" {
		t.Errorf("lapsed: %d %s", a.status, a.body)
	}
}
