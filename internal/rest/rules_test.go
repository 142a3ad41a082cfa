package rest

import (
	"fmt"
	"strings"
	"testing"

	"openslot/internal/booking"
)

// What a practice asks of its patients is told with its doctors, and refused with its code.
func TestBookingRules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot, later := w.slot(0, 9), w.slot(1, 9)
	patient, other, staff := w.token(booking.Patient, "p"), w.token(booking.Patient, "other"), w.token(booking.Staff, "desk")
	anna := w.register(staff, "anna")
	for _, path := range []string{fmt.Sprintf("/api/doctors/%d", w.doctor), "/api/doctors"} {
		for set, want := range map[string]string{
			"hold_minutes = 10": `"bookingRules":{"holdMinutes":10,"noticeMinutes":null,"horizonDays":null,"cutoffMinutes":null,"maxActive":null,"maxHolds":null,"maxPerDay":null,"offerMinutes":30,"cancelledPlacesReturn":"AT_ONCE"}`,
			"hold_minutes = 7, notice_minutes = 1, horizon_days = 2, cutoff_minutes = 3, max_active = 4, max_holds = 5, max_per_day = 6": `"bookingRules":{"holdMinutes":7,"noticeMinutes":1,"horizonDays":2,"cutoffMinutes":3,"maxActive":4,"maxHolds":5,"maxPerDay":6,"offerMinutes":30,"cancelledPlacesReturn":"AT_ONCE"}`,
		} {
			w.exec(`UPDATE organization SET hold_minutes = 10, notice_minutes = NULL, horizon_days = NULL, cutoff_minutes = NULL, max_active = NULL, max_holds = NULL, max_per_day = NULL`)
			w.exec(`UPDATE organization SET ` + set)
			if a := w.get(path, ""); a.status != 200 || !strings.Contains(a.body, want) {
				t.Errorf("%s: %d %s", path, a.status, a.body)
			}
		}
	}
	w.exec(`UPDATE organization SET notice_minutes = NULL, horizon_days = 1, max_active = NULL, max_holds = NULL, max_per_day = NULL`)
	early := w.book(patient, slot, "k")
	if early.status != 409 || early.code() != "TOO_EARLY" || early.member("opensAt") == nil || early.header.Get("Retry-After") == "" {
		t.Errorf("beyond the horizon: %d %v %s", early.status, early.header, early.body)
	}
	checkHeaders(t, "TooEarly", early)
	w.exec(`UPDATE organization SET horizon_days = NULL`)
	mine := w.book(patient, slot, "k")
	held := w.hold(patient, "h", fmt.Sprintf(`{"slotId":%d}`, later))
	w.exec(`UPDATE organization SET notice_minutes = 525600, cutoff_minutes = 525600, max_active = 1`)
	for _, tt := range []struct {
		name   string
		ask    ask
		status int
		code   string
	}{
		{"Notice", ask{method: "POST", path: "/api/holds", token: other, key: "k", body: fmt.Sprintf(`{"slotId":%d}`, slot)}, 409, "TOO_LATE"},
		{"CutOff", ask{method: "DELETE", path: fmt.Sprintf("/api/appointments/%d", mine.id()), token: patient}, 409, "TOO_LATE"},
		{"CutOffOfMove", ask{method: "POST", path: fmt.Sprintf("/api/appointments/%d/reschedule", mine.id()), token: patient, key: "m", body: fmt.Sprintf(`{"toSlotId":%d}`, later)}, 409, "TOO_LATE"},
		{"HoldGivenBack", ask{method: "DELETE", path: fmt.Sprintf("/api/holds/%d", held.id()), token: patient}, 200, ""},
		{"Staff", ask{method: "POST", path: "/api/appointments", token: staff, key: "k", body: fmt.Sprintf(`{"slotId":%d,"patientId":%d}`, slot, anna)}, 201, ""},
		{"StaffBeyondTheLimit", ask{method: "POST", path: "/api/holds", token: staff, key: "k2", body: fmt.Sprintf(`{"slotId":%d,"patientId":%d}`, later, anna)}, 201, ""},
		{"StaffCancel", ask{method: "DELETE", path: fmt.Sprintf("/api/appointments/%d", mine.id()), token: staff}, 200, ""},
	} {
		a := w.ask(tt.ask)
		if a.status != tt.status || a.code() != tt.code {
			t.Errorf("%s: %d %s, want %d %s", tt.name, a.status, a.body, tt.status, tt.code)
		}
		checkHeaders(t, tt.name, a)
	}
	w.exec(`UPDATE organization SET notice_minutes = NULL`)
	w.book(patient, slot, "k3")
	if a := w.book(patient, later, "k4"); a.status != 409 || a.code() != "LIMIT_REACHED" || !strings.Contains(a.body, "until 20") {
		t.Errorf("the limit: %d %s", a.status, a.body)
	}
}
