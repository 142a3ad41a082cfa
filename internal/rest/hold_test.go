package rest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
)

// register makes a patient of the caller's.
func (w *world) register(token, subject string) (patient int64) {
	w.t.Helper()
	return w.ask(ask{method: "PUT", path: "/api/patients/" + subject, token: token, body: `{}`}).id()
}

func (w *world) hold(token, key, body string) answer {
	w.t.Helper()
	return w.ask(ask{method: "POST", path: "/api/holds", token: token, key: key, body: body})
}

// A place is held, held again, looked at and booked.
func TestHold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	patient, slot := w.token(booking.Patient, "p"), w.slot(0, 1)
	body := fmt.Sprintf(`{"slotId":%d,"referralId":" R-1 "}`, slot)
	held := w.hold(patient, "h", body)
	path := fmt.Sprintf("/api/appointments/%d", held.id())
	until, err := time.Parse(time.RFC3339, fmt.Sprint(held.member("expiresAt")))
	if held.status != 201 || held.member("status") != "HELD" || held.member("referralId") != "R-1" || held.header.Get("Location") != path ||
		!strings.HasPrefix(held.header.Get("RateLimit"), `"keys";r=4;`) || err != nil || time.Until(until) < time.Minute {
		t.Fatalf("held: %d %v %s", held.status, held.header, held.body)
	}
	for _, key := range []string{"h", `"h"`, "other"} {
		if again := w.hold(patient, key, body); again.status != 200 || again.body != held.body || again.header.Get("Location") != path {
			t.Errorf("held again by %s: %d %v %s", key, again.status, again.header, again.body)
		}
	}
	if seen := w.get(path, patient); seen.body != held.body {
		t.Errorf("looked at: %s", seen.body)
	}
	if booked := w.book(patient, slot, "b"); booked.code() != "ALREADY_BOOKED" || booked.member("appointmentId") != float64(held.id()) {
		t.Errorf("what is held was booked: %s", booked.body)
	}
	confirm := ask{method: "POST", path: fmt.Sprintf("/api/holds/%d/confirm", held.id()), token: patient}
	first, second := w.ask(confirm), w.ask(confirm)
	if first.status != 200 || first.member("status") != "BOOKED" || first.member("expiresAt") != nil || first.id() != held.id() || second.body != first.body {
		t.Errorf("confirmed: %d %s, then %d %s", first.status, first.body, second.status, second.body)
	}
	if again := w.hold(patient, "h", body); again.status != 200 || again.body != first.body {
		t.Errorf("the hold's key after that: %d %s", again.status, again.body)
	}
}

// Every status and code that holds, referrals and overlaps add.
func TestHoldStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	full, open, third, fourth, begun := w.slot(0, 1), w.slot(1, 9), w.slot(2, 9), w.slot(3, 9), w.slot(4, 9)
	patient, other, staff := w.token(booking.Patient, "p"), w.token(booking.Patient, "other"), w.token(booking.Staff, "desk")
	anna, ben := w.register(staff, "anna"), w.register(staff, "ben")
	var same int64 // a slot at the time of open, of another doctor
	w.scan(&same, `WITH d AS (INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Ben Example') RETURNING id)
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT d.id, s.start_at, s.end_at, 9, s.opens_at FROM d, time_slot AS s WHERE s.id = $2 RETURNING id`, w.practice, open)

	slot := func(id int64) string { return fmt.Sprintf(`{"slotId":%d}`, id) }
	forAnna := func(id int64, more string) string {
		return fmt.Sprintf(`{"slotId":%d,"patientId":%d%s}`, id, anna, more)
	}
	held, booked := w.hold(patient, "held", slot(full)), w.book(patient, third, "booked")
	lapsed, started, given := w.hold(patient, "lapsed", slot(fourth)), w.hold(other, "started", slot(begun)), w.hold(other, "given", slot(third))
	w.exec(`UPDATE appointment SET expires_at = now() - interval '1 second' WHERE id = $1`, lapsed.id())
	w.exec(`UPDATE appointment SET during = tstzrange(now() - interval '1 hour', now()) WHERE id = $1`, started.id())
	w.exec(`UPDATE appointment SET expires_at = now() + interval '1 hour' WHERE id = $1`, started.id())

	hold := func(token, key, body string) ask {
		return ask{method: "POST", path: "/api/holds", token: token, key: key, body: body}
	}
	book := func(token, key, body string) ask {
		return ask{method: "POST", path: "/api/appointments", token: token, key: key, body: body}
	}
	confirm := func(token string, a answer) ask {
		return ask{method: "POST", path: fmt.Sprintf("/api/holds/%d/confirm", a.id()), token: token}
	}
	release := func(token string, a answer) ask {
		return ask{method: "DELETE", path: fmt.Sprintf("/api/holds/%d", a.id()), token: token}
	}
	for _, tt := range []struct {
		name   string
		ask    ask
		status int
		code   string
		detail string // part of the body
	}{
		{"HoldFull", hold(other, "a", slot(full)), 409, "SLOT_FULL", fmt.Sprintf(`"alternatives":"/api/slots/%d/alternatives"`, full)},
		{"HoldBooked", hold(patient, "b", slot(third)), 409, "ALREADY_BOOKED", fmt.Sprintf(`"appointmentId":%d`, booked.id())},
		{"HoldKeyReused", hold(patient, "held", slot(open)), 422, "IDEMPOTENCY_KEY_REUSED", "new key"},
		{"HoldKeyOfBooking", hold(patient, "booked", slot(third)), 422, "IDEMPOTENCY_KEY_REUSED", "new key"},
		{"HoldKeyMissing", hold(patient, "", slot(open)), 400, "INVALID", "Idempotency-Key is missing"},
		{"HoldOfNobody", hold("", "k", slot(open)), 401, "UNAUTHENTICATED", ""},
		{"HoldForNobody", hold(staff, "k", slot(open)), 400, "INVALID", "patientId"},
		{"HoldUnknownSlot", hold(other, "k", slot(99999999)), 404, "NOT_FOUND", "no such slot"},
		{"HoldUnknownMember", hold(other, "k", `{"slotId":1,"minutes":60}`), 400, "INVALID", `\"minutes\"`},
		{"HoldNoBody", hold(other, "k", ""), 415, "INVALID", mediaJSON},
		{"HoldNotAllowed", ask{method: "GET", path: "/api/holds", token: other}, 405, "INVALID", "POST, OPTIONS"},

		{"ReferralTooLong", hold(other, "k", `{"slotId":1,"referralId":"`+strings.Repeat("ü", 65)+`"}`), 400, "INVALID", "referralId must be text of at most 64"},
		{"ReferralNUL", hold(other, "k", `{"slotId":1,"referralId":"\u0000"}`), 400, "INVALID", "referralId must be text of at most 64"},
		{"ReferralNumber", hold(other, "k", `{"slotId":1,"referralId":7}`), 400, "INVALID", "referralId must be text of at most 64"},
		{"OverlapReasonTooLong", book(staff, "k", `{"slotId":1,"overlapReason":"`+strings.Repeat("x", 501)+`"}`), 400, "INVALID", "overlapReason must be text of at most 500"},
		{"Referral", book(staff, "r1", forAnna(open, `,"referralId":"R-1"`)), 201, "", `"referralId":"R-1"`},
		{"ReferralReplayed", book(staff, "r1", forAnna(open, `,"referralId":"R-1"`)), 200, "", `"referralId":"R-1"`},
		{"ReferralOtherWithKey", book(staff, "r1", forAnna(open, `,"referralId":"R-2"`)), 422, "IDEMPOTENCY_KEY_REUSED", ""},
		{"ReferralInUse", book(staff, "r2", forAnna(third, `,"referralId":"R-1"`)), 409, "REFERRAL_IN_USE", `"appointmentId":`},
		{"Overlap", book(staff, "o1", forAnna(same, "")), 409, "OVERLAP", ""},
		{"OverlapAllowed", book(staff, "o2", forAnna(same, `,"overlapReason":"both doctors"`)), 201, "", `"overlapReason":"both doctors"`},
		{"OverlapHeld", hold(staff, "o3", fmt.Sprintf(`{"slotId":%d,"patientId":%d,"overlapReason":"x"}`, same, ben)), 201, "", `"HELD"`},
		{"OverlapByPatient", book(other, "o4", fmt.Sprintf(`{"slotId":%d,"overlapReason":"please"}`, same)), 403, "FORBIDDEN", "staff"},
		{"OverlapHeldByPatient", hold(other, "o5", fmt.Sprintf(`{"slotId":%d,"overlapReason":"please"}`, same)), 403, "FORBIDDEN", "staff"},

		{"ConfirmOfAnother", confirm(other, held), 404, "NOT_FOUND", ""},
		{"ConfirmOfNobody", confirm("", held), 401, "UNAUTHENTICATED", ""},
		{"ConfirmLapsed", confirm(patient, lapsed), 410, "HOLD_EXPIRED", "lapsed"},
		{"ConfirmTooLate", confirm(other, started), 409, "TOO_LATE", ""},
		{"ConfirmNoID", ask{method: "POST", path: "/api/holds/x/confirm", token: other}, 400, "INVALID", "appointmentId"},
		{"ConfirmUnknown", ask{method: "POST", path: "/api/holds/99999999/confirm", token: other}, 404, "NOT_FOUND", ""},
		{"ConfirmAsHTML", ask{method: "POST", path: "/api/holds/1/confirm", token: other, header: map[string]string{"Accept": "text/html"}}, 406, "INVALID", mediaJSON},
		{"ReleaseOfAnother", release(other, held), 404, "NOT_FOUND", ""},
		{"ReleaseOfNobody", release("", held), 401, "UNAUTHENTICATED", ""},
		{"ReleaseLapsed", release(patient, lapsed), 410, "HOLD_EXPIRED", "lapsed"},
		{"ReleaseTooLate", release(other, started), 409, "TOO_LATE", ""},
		{"ReleaseBooked", release(patient, booked), 409, "INVALID_STATE", ""},
		{"CancelLapsed", ask{method: "DELETE", path: fmt.Sprintf("/api/appointments/%d", lapsed.id()), token: patient}, 410, "HOLD_EXPIRED", "lapsed"},
		{"Lapsed", ask{method: "GET", path: fmt.Sprintf("/api/appointments/%d", lapsed.id()), token: patient}, 200, "", `"expiresAt":"`},
		{"Release", release(other, given), 200, "", `"CANCELLED"`},
		{"ReleaseAgain", release(other, given), 200, "", `"CANCELLED"`},
		{"ConfirmGivenBack", confirm(other, given), 409, "INVALID_STATE", ""},
		{"CancelHeld", ask{method: "DELETE", path: fmt.Sprintf("/api/appointments/%d", held.id()), token: patient}, 200, "", `"CANCELLED"`},
	} {
		a := w.ask(tt.ask)
		if a.status != tt.status || a.code() != tt.code || !strings.Contains(a.body, tt.detail) {
			t.Errorf("%s: %d %s\n%s\nwant %d %s %s", tt.name, a.status, a.code(), a.body, tt.status, tt.code, tt.detail)
		}
		checkHeaders(t, tt.name, a)
	}
	for n := 0; ; n++ {
		a := w.hold(w.token(booking.Patient, "keen"), fmt.Sprint(n), slot(99999999))
		if a.code() == "RATE_LIMITED" {
			if checkHeaders(t, "HoldRateLimited", a); a.status != 429 || a.header.Get("Retry-After") == "" {
				t.Errorf("%d %v", a.status, a.header)
			}
			break
		}
		if n == 50 {
			t.Fatalf("key after key is taken: %s", a.body)
		}
	}
}
