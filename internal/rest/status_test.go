package rest

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

// Every status and code that a client can meet, through real HTTP.
func TestStatus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, two, closed, later, past := w.slot(0, 1), w.slot(1, 5), w.slot(2, 5), w.slot(3, 5), w.slot(-100, 5)
	begun := w.slot(5, 5)
	w.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, closed)
	w.exec(`UPDATE time_slot SET opens_at = now() + interval '1 hour' WHERE id = $1`, later)

	patient, late, staff, partner, system := w.token(booking.Patient, "p"), w.token(booking.Patient, "late"),
		w.token(booking.Staff, "desk"), w.token(booking.Partner, "portal"), w.token(booking.System, "ops")
	booked := w.book(patient, one, "first")
	started := w.book(w.token(booking.Patient, "starter"), begun, "k")
	w.exec(`UPDATE appointment SET during = tstzrange(now() - interval '1 hour', now()) WHERE id = $1`, started.id())
	mine := fmt.Sprintf("/api/appointments/%d", booked.id())

	book := func(token, key, body string) ask {
		return ask{method: "POST", path: "/api/appointments", token: token, key: key, body: body}
	}
	with := func(q ask, name, value string) ask {
		q.header = map[string]string{name: value}
		return q
	}
	slot := func(id int64) string { return fmt.Sprintf(`{"slotId":%d}`, id) }
	get := func(path, token string) ask { return ask{method: "GET", path: path, token: token} }
	ids := fmt.Sprintf("/api/doctors/%d", w.doctor)
	for _, tt := range []struct {
		name   string
		ask    ask
		status int
		code   string
		detail string // part of it
	}{
		{"Booked", book(patient, "second", slot(two)), 201, "", ""},
		{"Replayed", book(patient, "first", slot(one)), 200, "", ""},
		{"ReplayedQuoted", book(patient, `"first"`, slot(one)), 200, "", ""},
		{"KeyMissing", book(patient, "", slot(one)), 400, "INVALID", "Idempotency-Key is missing"},
		{"KeyWithSpace", book(patient, "a b", slot(one)), 400, "INVALID", "1 to 64"},
		{"KeyTooLong", book(patient, strings.Repeat("k", 65), slot(one)), 400, "INVALID", "1 to 64"},
		{"KeyHalfQuoted", book(patient, `"k`, slot(one)), 400, "INVALID", "quoted"},
		{"KeyEmptyQuoted", book(patient, `""`, slot(one)), 400, "INVALID", "1 to 64"},
		{"KeyReused", book(patient, "first", slot(two)), 422, "IDEMPOTENCY_KEY_REUSED", "new key"},
		{"SlotFull", book(late, "a", slot(one)), 409, "SLOT_FULL", "No place"},
		{"SlotClosed", book(late, "b", slot(closed)), 409, "SLOT_CLOSED", ""},
		{"SlotNotOpen", book(late, "c", slot(later)), 409, "SLOT_NOT_OPEN", ""},
		{"SlotPast", book(late, "d", slot(past)), 409, "SLOT_PAST", ""},
		{"SlotUnknown", book(late, "e", slot(99999999)), 404, "NOT_FOUND", "no such slot"},
		{"AlreadyBooked", book(patient, "again", slot(one)), 409, "ALREADY_BOOKED", ""},
		{"RateLimited", book(late, "f", slot(two)), 429, "RATE_LIMITED", ""},
		{"NotSignedIn", book("", "k", slot(one)), 401, "UNAUTHENTICATED", ""},
		{"BadToken", get("/api/doctors", "x.y.z"), 401, "UNAUTHENTICATED", ""},
		{"StaffWithoutPatient", book(staff, "k", slot(two)), 400, "INVALID", "patientId"},
		{"ForeignPatient", book(partner, "k", fmt.Sprintf(`{"slotId":%d,"patientId":%d}`, two, int64(booked.member("patientId").(float64)))), 404, "NOT_FOUND", "no such patient"},
		{"UnknownMember", book(patient, "k", `{"slotId":1,"slot":2}`), 400, "INVALID", `"slot"`},
		{"OtherCase", book(patient, "k", `{"SlotId":1}`), 400, "INVALID", `"SlotId"`},
		{"MemberTwice", book(patient, "k", `{"slotId":1,"slotId":1}`), 400, "INVALID", "more than once"},
		{"MemberMissing", book(patient, "k", `{}`), 400, "INVALID", "slotId is missing"},
		{"MemberNull", book(patient, "k", `{"slotId":null}`), 400, "INVALID", "slotId must be"},
		{"MemberText", book(patient, "k", `{"slotId":"1"}`), 400, "INVALID", "slotId must be"},
		{"MemberZero", book(patient, "k", `{"slotId":0}`), 400, "INVALID", "slotId must be"},
		{"MemberFraction", book(patient, "k", `{"slotId":1.5}`), 400, "INVALID", "slotId must be"},
		{"MemberTooLarge", book(patient, "k", `{"slotId":9223372036854775808}`), 400, "INVALID", "slotId must be"},
		{"NoJSON", book(patient, "k", `{`), 400, "INVALID", "JSON object"},
		{"Array", book(patient, "k", `[]`), 400, "INVALID", "JSON object"},
		{"Trailing", book(patient, "k", `{"slotId":1}{}`), 400, "INVALID", "JSON object"},
		{"NotUTF8", book(patient, "k", "{\"slotId\":1,\"\xff\":1}"), 400, "INVALID", "UTF-8"},
		{"NoBody", book(patient, "k", ""), 415, "INVALID", mediaJSON},
		{"TextPlain", with(book(patient, "k", slot(one)), "Content-Type", "text/plain"), 415, "INVALID", mediaJSON},
		{"Latin1", with(book(patient, "k", slot(one)), "Content-Type", "application/json; charset=iso-8859-1"), 415, "INVALID", "UTF-8"},
		{"UTF8", with(book(patient, "first", slot(one)), "Content-Type", "application/json; charset=UTF-8"), 200, "", ""},
		{"Compressed", with(book(patient, "k", slot(one)), "Content-Encoding", "gzip"), 415, "INVALID", "uncompressed"},
		{"TooLarge", book(patient, "k", `{"slotId":1,"x":"`+strings.Repeat("x", maxBody)+`"}`), 413, "INVALID", "64 KiB"},
		{"NotAcceptable", with(get("/api/doctors", ""), "Accept", "text/html"), 406, "INVALID", mediaJSON},
		{"NotAcceptableAtAll", with(get("/api/doctors", ""), "Accept", "*/*, application/json;q=0"), 406, "INVALID", mediaJSON},
		{"AcceptableAmongOthers", with(get("/api/doctors", ""), "Accept", "text/html, application/*;q=0.1"), 200, "", ""},

		{"Doctors", get("/api/doctors?search=dent&first=1", ""), 200, "", ""},
		{"DoctorsFirstZero", get("/api/doctors?first=0", ""), 400, "INVALID", "first"},
		{"DoctorsFirstText", get("/api/doctors?first=ten", ""), 400, "INVALID", "first"},
		{"DoctorsFirstTwice", get("/api/doctors?first=1&first=2", ""), 400, "INVALID", "more than once"},
		{"DoctorsCursor", get("/api/doctors?after=x", ""), 400, "INVALID", "after"},
		{"DoctorsUnknownParameter", get("/api/doctors?frist=1", ""), 400, "INVALID", `"frist"`},
		{"DoctorsNUL", get("/api/doctors?search=%00", ""), 400, "INVALID", "search"},
		{"DoctorsNotUTF8", get("/api/doctors?search=%ff", ""), 400, "INVALID", "UTF-8"},
		{"DoctorsBadEscape", get("/api/doctors?search=%zz", ""), 400, "INVALID", "malformed"},
		{"DoctorsOrganization", get("/api/doctors?organizationId=0", ""), 400, "INVALID", "organizationId"},
		{"Doctor", get(ids, ""), 200, "", ""},
		{"DoctorUnknown", get("/api/doctors/999999", ""), 404, "NOT_FOUND", "no such doctor"},
		{"DoctorNoID", get("/api/doctors/ada", ""), 400, "INVALID", "doctorId"},
		{"Slots", get(ids+"/slots?includeFull=true&date="+w.day(), ""), 200, "", ""},
		{"SlotsNoDate", get(ids+"/slots", ""), 400, "INVALID", "date is missing"},
		{"SlotsImpossibleDate", get(ids+"/slots?date=2026-02-30", ""), 400, "INVALID", "date"},
		{"SlotsFlag", get(ids+"/slots?includeFull=1&date="+w.day(), ""), 400, "INVALID", "includeFull"},
		{"SlotsUnknownDoctor", get("/api/doctors/999999/slots?date="+w.day(), ""), 404, "NOT_FOUND", "doctor"},
		{"Days", get(ids+"/days?days=3&from="+w.day(), ""), 200, "", ""},
		{"DaysTooMany", get(ids+"/days?days=32&from="+w.day(), ""), 400, "INVALID", "days"},
		{"DaysUnknownDoctor", get("/api/doctors/999999/days?from="+w.day(), ""), 404, "NOT_FOUND", "doctor"},
		{"Alternatives", get(fmt.Sprintf("/api/slots/%d/alternatives", one), ""), 200, "", ""},
		{"WatchNobody", get("/api/availability?from="+w.day(), ""), 400, "INVALID", "doctor"},
		{"WatchTwice", get("/api/availability?doctorId=1&doctorId=1&from="+w.day(), ""), 400, "INVALID", "twice"},
		{"WatchUnknown", get("/api/availability?doctorId=999999&from="+w.day(), ""), 404, "NOT_FOUND", "doctor"},
		{"WatchAsJSON", with(get("/api/availability?doctorId=1&from="+w.day(), ""), "Accept", mediaJSON), 406, "INVALID", mediaEvents},

		{"Appointment", get(mine, patient), 200, "", ""},
		{"AppointmentOfAnother", get(mine, late), 404, "NOT_FOUND", "no such appointment"},
		{"AppointmentSeenByStaff", get(mine, staff), 200, "", ""},
		{"AppointmentOfNobody", get(mine, ""), 401, "UNAUTHENTICATED", ""},
		{"Appointments", get("/api/appointments", patient), 200, "", ""},
		{"AppointmentsOfStaff", get("/api/appointments", staff), 403, "FORBIDDEN", ""},
		{"AppointmentsOfDay", get(ids+"/appointments?date="+w.day(), staff), 200, "", ""},
		{"AppointmentsOfDayForPatients", get(ids+"/appointments?date="+w.day(), patient), 403, "FORBIDDEN", ""},
		{"CancelOfAnother", ask{method: "DELETE", path: mine, token: late}, 404, "NOT_FOUND", ""},
		{"CancelTooLate", ask{method: "DELETE", path: fmt.Sprintf("/api/appointments/%d", started.id()), token: staff}, 409, "TOO_LATE", ""},
		{"CancelOfNobody", ask{method: "DELETE", path: mine}, 401, "UNAUTHENTICATED", ""},
		{"CancelReasonTooLong", ask{method: "POST", path: mine + "/cancel", token: patient, body: `{"reason":"` + strings.Repeat("x", 501) + `"}`}, 400, "INVALID", "reason"},
		{"CancelReason", ask{method: "POST", path: mine + "/cancel", token: patient, body: `{"reason":"away"}`}, 200, "", ""},
		{"CancelAgain", ask{method: "DELETE", path: mine, token: patient}, 200, "", ""},
		{"ReplayedCancelled", book(patient, "first", slot(one)), 200, "", ""},

		{"PatientCreated", ask{method: "PUT", path: "/api/patients/anna%2F1", token: partner, body: `{"name":"Anna","email":"anna@example.org"}`}, 201, "", ""},
		{"PatientKnown", ask{method: "PUT", path: "/api/patients/anna%2F1", token: partner, body: `{"phone":"+49 30 1234"}`}, 200, "", ""},
		{"PatientByPatient", ask{method: "PUT", path: "/api/patients/anna", token: patient, body: `{}`}, 403, "FORBIDDEN", ""},
		{"PatientBySystem", ask{method: "PUT", path: "/api/patients/anna", token: system, body: `{}`}, 403, "FORBIDDEN", ""},
		{"PatientByNobody", ask{method: "PUT", path: "/api/patients/anna", body: `{}`}, 401, "UNAUTHENTICATED", ""},
		{"PatientEmail", ask{method: "PUT", path: "/api/patients/anna", token: partner, body: `{"email":"nobody"}`}, 400, "INVALID", "email"},
		{"PatientNull", ask{method: "PUT", path: "/api/patients/anna", token: partner, body: `{"email":null}`}, 400, "INVALID", "email"},
		{"PatientSubject", ask{method: "PUT", path: "/api/patients/" + strings.Repeat("a", 256), token: partner, body: `{}`}, 400, "INVALID", "subject"},

		{"NoSuchAddress", get("/api/nothing", ""), 404, "NOT_FOUND", "address"},
		{"MethodNotAllowed", ask{method: "PATCH", path: mine, token: patient, body: `{}`}, 405, "INVALID", "DELETE, GET, HEAD, OPTIONS"},
		{"TokenInQuery", get("/api/doctors?access_token=x", ""), 401, "UNAUTHENTICATED", ""},
	} {
		a := w.ask(tt.ask)
		if a.status != tt.status || a.code() != tt.code || !strings.Contains(a.body, strings.ReplaceAll(tt.detail, `"`, `\"`)) {
			t.Errorf("%s: %d %s\n%s\nwant %d %s %s", tt.name, a.status, a.code(), a.body, tt.status, tt.code, tt.detail)
		}
		checkHeaders(t, tt.name, a)
	}
}

// checkHeaders holds what is true of every answer.
func checkHeaders(t *testing.T, name string, a answer) {
	t.Helper()
	problem := a.status >= 400
	want := map[string]string{"Content-Type": "application/json; charset=utf-8", "X-Content-Type-Options": "nosniff"}
	if problem {
		want["Content-Type"] = "application/problem+json; charset=utf-8"
		want["Cache-Control"] = "no-store"
		if got := a.member("status"); got != float64(a.status) {
			t.Errorf("%s: status %v in the problem, %d outside", name, got, a.status)
		}
		if got := a.member("type"); got != "/api/#"+a.code() {
			t.Errorf("%s: type %v", name, got)
		}
	}
	if a.status == 401 {
		want["WWW-Authenticate"] = "Bearer"
	}
	for header, value := range want {
		if got := a.header.Get(header); got != value {
			t.Errorf("%s: %s: %q, want %q", name, header, got, value)
		}
	}
	if after := a.member("retryAfter"); (after != nil) != (a.header.Get("Retry-After") != "") || after != nil && fmt.Sprint(after) != a.header.Get("Retry-After") {
		t.Errorf("%s: retryAfter %v, Retry-After %q", name, after, a.header.Get("Retry-After"))
	}
}

// Every code has its row in the table, and the document names it.
func TestCodes(t *testing.T) {
	t.Parallel()
	_, codes, _ := strings.Cut(string(document), "    Code:\n")
	codes, _, _ = strings.Cut(codes, "    Problem:\n")
	for _, code := range []booking.Code{booking.Invalid, booking.Unauthenticated, booking.Forbidden, booking.NotFound, booking.SlotFull,
		booking.SlotIsClosed, booking.SlotPast, booking.SlotNotOpen, booking.AlreadyBooked, booking.Overlap, booking.ReferralInUse, booking.TooEarly, booking.TooLate,
		booking.LimitReached, booking.InvalidState,
		booking.HoldExpired, booking.CapacityInUse, booking.ScheduleInUse, booking.IdempotencyKeyReused, booking.RateLimited,
		booking.Overloaded, booking.Unavailable, booking.OutcomeUnknown, booking.Internal} {
		if kinds[code].status == 0 || !strings.Contains(codes, string(code)) {
			t.Errorf("%s: %+v", code, kinds[code])
		}
	}
	if n := strings.Count(codes, ",") + 1; n != len(kinds) {
		t.Errorf("the document has %d codes, the table %d", n, len(kinds))
	}
}

// What fails inside is logged, and told without its reason.
func TestInternal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	slot := w.slot(0, 1)
	w.exec(`ALTER TABLE outbox_event RENAME TO secret_name`)
	a := w.book(w.token(booking.Patient, "p"), slot, "k")
	if a.status != 500 || a.code() != "INTERNAL" || strings.Contains(a.body, "secret") || strings.Contains(a.body, "outbox") {
		t.Errorf("%d %s", a.status, a.body)
	}
	if log := w.log.String(); !strings.Contains(log, fmt.Sprint(a.member("requestId"))) || !strings.Contains(log, "SQLSTATE") {
		t.Errorf("the log has nothing of it: %s", log)
	}
	w.handler.Booking = nil // a panic
	a = w.book(w.token(booking.Patient, "p"), slot, "k")
	if a.status != 500 || a.code() != "INTERNAL" || !strings.Contains(w.log.String(), "nil pointer") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// With the database away the answer says so, and when to come back.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	away, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/away")
	if err != nil {
		t.Fatal(err)
	}
	defer away.Close()
	w := newWorld(t, func(p *Parts) { p.Booking = booking.New(away, booking.Config{Persist: 50 * time.Millisecond}) })
	a := w.book(w.token(booking.Patient, "p"), 1, "k")
	if a.status != 503 || a.code() != "UNAVAILABLE" && a.code() != "OVERLOADED" || a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.status, a.body)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	request, _ := http.NewRequestWithContext(ctx, http.MethodGet, "/api/doctors", nil)
	if told := w.handler.told(request, context.Canceled); told.Code != booking.Unavailable {
		t.Errorf("%+v", told)
	}
}
