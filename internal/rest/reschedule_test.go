package rest

import (
	"fmt"
	"strings"
	"testing"

	"openslot/internal/booking"
)

// Every status and code that a move can come to.
func TestReschedule(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	from, to, full, third, begun, closed, later := w.slot(0, 1), w.slot(1, 9), w.slot(2, 1), w.slot(3, 9), w.slot(4, 9), w.slot(5, 9), w.slot(6, 9)
	w.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, closed)
	w.exec(`UPDATE time_slot SET opens_at = now() + interval '1 hour' WHERE id = $1`, later)
	patient, other, staff, idle, system := w.token(booking.Patient, "p"), w.token(booking.Patient, "other"), w.token(booking.Staff, "desk"), w.token(booking.Patient, "idle"), w.token(booking.System, "ops")
	anna := w.register(staff, "anna")
	w.book(idle, full, "full")
	old := w.ask(ask{method: "POST", path: "/api/appointments", token: patient, key: "b", body: fmt.Sprintf(`{"slotId":%d,"referralId":"R-1"}`, from)})
	standing, started, held := w.book(other, third, "third"), w.book(other, begun, "begun"), w.hold(other, "held", fmt.Sprintf(`{"slotId":%d}`, to))
	w.exec(`UPDATE appointment SET during = tstzrange(now() - interval '1 hour', now()) WHERE id = $1`, started.id())
	annas := w.ask(ask{method: "POST", path: "/api/appointments", token: staff, key: "a", body: fmt.Sprintf(`{"slotId":%d,"patientId":%d}`, third, anna)})

	move := func(token, key string, a answer, slot int64) ask {
		return ask{method: "POST", path: fmt.Sprintf("/api/appointments/%d/reschedule", a.id()), token: token, key: key, body: fmt.Sprintf(`{"toSlotId":%d}`, slot)}
	}
	byReferral := func(token, key, referral string, from, to int64) ask {
		return ask{method: "POST", path: "/api/appointments/reschedule", token: token, key: key,
			body: fmt.Sprintf(`{"referralId":%q,"fromSlotId":%d,"toSlotId":%d}`, referral, from, to)}
	}
	with := func(q ask, body string) ask {
		q.body = body
		return q
	}
	moved := w.ask(move(patient, "m", old, to))
	path := fmt.Sprintf("/api/appointments/%d", moved.id())
	if moved.status != 201 || moved.member("status") != "BOOKED" || moved.member("replaces") != float64(old.id()) || moved.member("replacedBy") != nil ||
		moved.member("slotId") != float64(to) || moved.header.Get("Location") != path || moved.header.Get("RateLimit") == "" {
		t.Fatalf("moved: %d %v %s", moved.status, moved.header, moved.body)
	}
	if seen := w.get(fmt.Sprintf("/api/appointments/%d", old.id()), patient); seen.member("status") != "CANCELLED" || seen.member("replacedBy") != float64(moved.id()) {
		t.Errorf("the old one: %s", seen.body)
	}
	for _, tt := range []struct {
		name   string
		ask    ask
		status int
		code   string
		detail string // part of the body
	}{
		{"Replayed", move(patient, "m", old, to), 200, "", `"status":"BOOKED"`},
		{"InItAlready", move(patient, "m2", moved, to), 200, "", `"status":"BOOKED"`},
		{"KeyReused", move(patient, "m", moved, third), 422, "IDEMPOTENCY_KEY_REUSED", "new key"},
		{"KeyMissing", move(patient, "", moved, third), 400, "INVALID", "Idempotency-Key is missing"},
		{"Full", move(patient, "f", moved, full), 409, "SLOT_FULL", fmt.Sprintf(`"alternatives":"/api/slots/%d/alternatives"`, full)},
		{"Closed", move(system, "c", moved, closed), 409, "SLOT_CLOSED", ""},
		{"NotOpen", move(system, "n", moved, later), 409, "SLOT_NOT_OPEN", `"opensAt":`},
		{"Past", move(system, "p", moved, w.slot(-100, 5)), 409, "SLOT_PAST", ""},
		{"Moved", move(staff, "s", old, third), 409, "INVALID_STATE", ""},
		{"Held", move(other, "h", held, third), 409, "INVALID_STATE", ""},
		{"Begun", move(system, "b", started, to), 409, "TOO_LATE", ""},
		{"OfAnother", move(other, "o", moved, third), 404, "NOT_FOUND", "no such appointment"},
		{"ToNowhere", move(patient, "w", moved, 99999999), 404, "NOT_FOUND", "no such slot"},
		{"OfNobody", move("", "k", moved, third), 401, "UNAUTHENTICATED", ""},
		{"BadID", ask{method: "POST", path: "/api/appointments/x/reschedule", token: patient, key: "k", body: `{"toSlotId":1}`}, 400, "INVALID", "appointmentId"},
		{"NoBody", with(move(patient, "k", moved, 1), ""), 415, "INVALID", mediaJSON},
		{"NoSlot", with(move(patient, "k", moved, 1), "{}"), 400, "INVALID", "toSlotId is missing"},
		{"OverlapByPatient", with(move(patient, "k", moved, 1), `{"toSlotId":1,"overlapReason":"please"}`), 403, "FORBIDDEN", "staff"},
		{"UnknownMember", with(move(patient, "k", moved, 1), `{"toSlotId":1,"referralId":"R-1"}`), 400, "INVALID", `\"referralId\"`},
		{"NotAllowed", ask{method: "GET", path: path + "/reschedule", token: patient}, 405, "INVALID", "POST, OPTIONS"},
		{"ByReferral", byReferral(staff, "r", " R-1 ", to, third), 201, "", `"referralId":"R-1"`},
		{"ByReferralReplayed", byReferral(staff, "r", " R-1 ", to, third), 200, "", `"referralId":"R-1"`},
		{"ByReferralNotThere", byReferral(staff, "r2", "R-1", from, third), 409, "INVALID_STATE", ""}, // it was, and was moved
		{"ByReferralUnknown", byReferral(staff, "r2", "R-2", to, third), 404, "NOT_FOUND", "for this referral"},
		{"ByReferralOfAnother", byReferral(other, "r2", "R-1", third, from), 404, "NOT_FOUND", ""},
		{"ByReferralBlank", byReferral(staff, "r2", " ", to, third), 400, "INVALID", "referralId"},
		{"ByReferralMissing", with(byReferral(staff, "r2", "", 1, 1), `{"fromSlotId":1,"toSlotId":1}`), 400, "INVALID", "referralId is missing"},
		{"ByReferralTooLong", byReferral(staff, "r2", strings.Repeat("R", 65), to, third), 400, "INVALID", "referralId must be"},
		{"ByReferralKeyMissing", byReferral(staff, "", "R-1", to, third), 400, "INVALID", "Idempotency-Key is missing"},
		{"ByReferralNotAllowed", ask{method: "GET", path: "/api/appointments/reschedule", token: patient}, 405, "INVALID", "POST, OPTIONS"},
		{"AlreadyBooked", move(other, "ab", w.book(other, w.slot(7, 1), "ab0"), third), 409, "ALREADY_BOOKED", fmt.Sprintf(`"appointmentId":%d`, standing.id())},
		{"ByStaff", move(staff, "bs", annas, from), 201, "", `"BOOKED"`},
	} {
		a := w.ask(tt.ask)
		if a.status != tt.status || a.code() != tt.code || !strings.Contains(a.body, tt.detail) {
			t.Errorf("%s: %d %s\n%s\nwant %d %s %s", tt.name, a.status, a.code(), a.body, tt.status, tt.code, tt.detail)
		}
		checkHeaders(t, tt.name, a)
	}
}
