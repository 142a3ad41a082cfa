package rest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
)

// A patient waits, is offered what somebody gives back, and takes it; and every status on the way.
func TestWaitingList(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(0, 1)
	patient, other, staff := w.token(booking.Patient, "p"), w.token(booking.Patient, "other"), w.token(booking.Staff, "desk")
	anna := w.register(staff, "anna")
	booked := w.book(other, slot, "b")
	from, to := time.Now().UTC().Format(time.DateOnly), time.Now().UTC().AddDate(0, 0, 20).Format(time.DateOnly)
	wish := func(from, to, more string) string {
		return fmt.Sprintf(`{"doctorId":%d,"from":%q,"to":%q%s}`, w.doctor, from, to, more)
	}
	join := func(token, body string) ask {
		return ask{method: "POST", path: "/api/waiting", token: token, body: body}
	}
	get := func(path, token string) ask { return ask{method: "GET", path: path, token: token} }

	joined := w.ask(join(patient, wish(from, to, "")))
	path := fmt.Sprintf("/api/waiting/%d", joined.id())
	if joined.status != 201 || joined.member("status") != "WAITING" || joined.member("offer") != nil || joined.header.Get("Location") != path {
		t.Fatalf("joined: %d %v %s", joined.status, joined.header, joined.body)
	}
	if again := w.ask(join(patient, wish(from, to, ""))); again.status != 200 || again.body != joined.body || again.header.Get("Location") != path {
		t.Errorf("joined again: %d %s", again.status, again.body)
	}
	w.ask(ask{method: "DELETE", path: fmt.Sprintf("/api/appointments/%d", booked.id()), token: other})
	offered := w.get(path, patient)
	offer, _ := offered.member("offer").(map[string]any)
	if offered.member("status") != "OFFERED" || offer["status"] != "HELD" || offer["slotId"] != float64(slot) {
		t.Fatalf("offered: %s", offered.body)
	}
	confirm := ask{method: "POST", path: fmt.Sprintf("/api/holds/%.0f/confirm", offer["id"]), token: patient}

	list := fmt.Sprintf("/api/doctors/%d/waiting", w.doctor)
	for _, tt := range []struct {
		name   string
		ask    ask
		status int
		code   string
		detail string // part of the body
	}{
		{"JoinForAnna", join(staff, wish(from, to, fmt.Sprintf(`,"patientId":%d`, anna))), 201, "", `"WAITING"`},
		{"JoinForNobody", join(staff, wish(from, to, "")), 400, "INVALID", "patientId"},
		{"JoinForAnother", join(patient, wish(from, to, fmt.Sprintf(`,"patientId":%d`, anna))), 404, "NOT_FOUND", "patient"},
		{"JoinUnknownDoctor", join(patient, `{"doctorId":99999999,"from":"2030-01-01","to":"2030-01-01"}`), 404, "NOT_FOUND", "doctor"},
		{"JoinPast", join(patient, wish("2020-01-01", "2020-01-02", "")), 400, "INVALID", "over"},
		{"JoinWrongOrder", join(patient, wish(to, from, "")), 400, "INVALID", "before"},
		{"JoinTooLong", join(patient, wish(from, "9998-01-01", "")), 400, "INVALID", "366"},
		{"JoinNoDay", join(patient, wish("tomorrow", to, "")), 400, "INVALID", "from must be a day"},
		{"JoinDayMissing", join(patient, `{"doctorId":1,"from":"2030-01-01"}`), 400, "INVALID", "to is missing"},
		{"JoinUnknownMember", join(patient, wish(from, to, `,"prio":1`)), 400, "INVALID", `\"prio\"`},
		{"JoinNobody", join("", wish(from, to, "")), 401, "UNAUTHENTICATED", ""},
		{"JoinNoBody", join(patient, ""), 415, "INVALID", mediaJSON},
		{"NotAllowed", ask{method: "PUT", path: "/api/waiting", token: patient}, 405, "INVALID", "GET, POST, HEAD, OPTIONS"},
		{"ShowOfAnother", get(path, other), 404, "NOT_FOUND", ""},
		{"ShowOfNobody", get(path, ""), 401, "UNAUTHENTICATED", ""},
		{"ShowNoID", get("/api/waiting/x", patient), 400, "INVALID", "entryId"},
		{"LeaveOfAnother", ask{method: "DELETE", path: path, token: other}, 404, "NOT_FOUND", ""},
		{"LeaveOfNobody", ask{method: "DELETE", path: path}, 401, "UNAUTHENTICATED", ""},
		{"Confirm", confirm, 200, "", `"BOOKED"`},
		{"LeaveWhatIsOver", ask{method: "DELETE", path: path, token: patient}, 200, "", `"status":"BOOKED"`},
		{"Own", get("/api/waiting", patient), 200, "", `"status":"BOOKED"`},
		{"OwnOfStaff", get("/api/waiting", staff), 403, "FORBIDDEN", ""},
		{"OwnOfNobody", get("/api/waiting", ""), 401, "UNAUTHENTICATED", ""},
		{"OwnNoCursor", get("/api/waiting?after=x", patient), 400, "INVALID", "cursor"},
		{"List", get(list+"?first=1", staff), 200, "", `"next":"`},
		{"ListOfPatient", get(list, patient), 403, "FORBIDDEN", ""},
		{"ListUnknown", get("/api/doctors/99999999/waiting", staff), 200, "", `"entries":[]`},
	} {
		a := w.ask(tt.ask)
		if a.status != tt.status || a.code() != tt.code || !strings.Contains(a.body, tt.detail) {
			t.Errorf("%s: %d %s\n%s\nwant %d %s %s", tt.name, a.status, a.code(), a.body, tt.status, tt.code, tt.detail)
		}
		checkHeaders(t, tt.name, a)
	}
	for n := range 11 {
		a := w.ask(join(other, wish(from, time.Now().UTC().AddDate(0, 0, n).Format(time.DateOnly), "")))
		if n < 10 && a.status != 201 || n == 10 && a.code() != "LIMIT_REACHED" {
			t.Errorf("wish %d: %d %s", n, a.status, a.body)
		}
	}
}
