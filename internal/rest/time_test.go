package rest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
)

// Flexible hours: every status and code, and what is no time.
func TestTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.exec(`
		WITH s AS (INSERT INTO schedule (doctor_id, valid_from, kind) VALUES ($1, '2026-01-01', 'FLEXIBLE') RETURNING id)
		INSERT INTO schedule_window (schedule_id, weekday, start_minute, end_minute, every_minutes, durations)
		SELECT s.id, d, 840, 960, 15, '{30, 45}' FROM s, generate_series(1, 7) AS d`, w.doctor)
	ada, ben := w.token(booking.Patient, "ada"), w.token(booking.Patient, "ben")
	slot := w.slot(0, 1)
	date := time.Now().AddDate(0, 0, 3).Format(time.DateOnly)
	starts := func(query string) answer { return w.get(fmt.Sprintf("/api/doctors/%d/starts?%s", w.doctor, query), "") }
	all := starts("minutes=45&date=" + date)
	list, _ := all.member("starts").([]any)
	if all.status != 200 || len(list) != 6 || all.member("timeZone") != "Europe/Berlin" || all.header.Get("ETag") == "" {
		t.Fatalf("starts: %d %s", all.status, all.body)
	}
	for query, status := range map[string]int{
		"date=" + date: 400, "minutes=0&date=" + date: 400, "minutes=1441&date=" + date: 400, "minutes=45": 400,
		"minutes=1440&date=" + date: 200, "minutes=45&date=2020-01-01": 200,
	} {
		if a := starts(query); a.status != status {
			t.Errorf("%s: %d %s, want %d", query, a.status, a.body, status)
		}
	}
	if a := w.get("/api/doctors/999999/starts?minutes=45&date="+date, ""); a.status != 404 {
		t.Errorf("no doctor: %d %s", a.status, a.body)
	}
	at := func(i int) string { return list[i].(string) }
	target := func(start string, minutes int) string {
		return fmt.Sprintf(`{"doctorId":%d,"startAt":%q,"minutes":%d}`, w.doctor, start, minutes)
	}
	post := func(path, token, key, body string) answer {
		t.Helper()
		return w.ask(ask{method: "POST", path: path, token: token, key: key, body: body})
	}
	const book, hold = "/api/appointments", "/api/holds"
	booked := post(book, ada, "b", `{"time":`+target(at(1), 45)+`}`)
	if booked.status != 201 || booked.member("startAt") != at(1) || booked.header.Get("RateLimit") == "" {
		t.Fatalf("booked: %d %s", booked.status, booked.body)
	}
	move := fmt.Sprintf("/api/appointments/%d/reschedule", booked.id())
	for _, tt := range []struct {
		name             string
		path, token, key string
		body             string
		status           int
		code             string
	}{
		{"Replayed", book, ada, "b", `{"time":` + target(at(1), 45) + `}`, 200, ""},
		{"KeyReused", book, ada, "b", `{"time":` + target(at(1), 30) + `}`, 422, "IDEMPOTENCY_KEY_REUSED"},
		{"Taken", hold, ben, "t", `{"time":` + target(at(2), 30) + `}`, 409, "SLOT_FULL"},
		{"NotOffered", hold, ben, "o", `{"time":` + target(at(5), 60) + `}`, 409, "SLOT_CLOSED"},
		{"Past", hold, ben, "p", `{"time":` + target("2026-01-05T13:00:00Z", 30) + `}`, 409, "SLOT_PAST"},
		{"NoDoctor", hold, ben, "n", `{"time":{"doctorId":999999,"startAt":"2026-10-12T07:15:00Z","minutes":30}}`, 404, "NOT_FOUND"},
		{"Both", book, ben, "x", fmt.Sprintf(`{"slotId":%d,"time":%s}`, slot, target(at(0), 30)), 400, "INVALID"},
		{"Neither", book, ben, "x", `{}`, 400, "INVALID"},
		{"NoMinutes", book, ben, "x", `{"time":{"doctorId":1,"startAt":"2026-10-12T07:15:00Z"}}`, 400, "INVALID"},
		{"ManyMinutes", book, ben, "x", `{"time":` + target(at(0), 1441) + `}`, 400, "INVALID"},
		{"MinutesText", book, ben, "x", `{"time":{"doctorId":1,"startAt":"2026-10-12T07:15:00Z","minutes":"30"}}`, 400, "INVALID"},
		{"Unknown", book, ben, "x", `{"time":{"doctorId":1,"startAt":"2026-10-12T07:15:00Z","minutes":30,"more":1}}`, 400, "INVALID"},
		{"Fraction", book, ben, "x", `{"time":` + target("2026-10-12T07:15:00.5Z", 30) + `}`, 400, "INVALID"},
		{"NoOffset", book, ben, "x", `{"time":` + target("2026-10-12T07:15:00", 30) + `}`, 400, "INVALID"},
		{"NoDay", book, ben, "x", `{"time":` + target("2026-02-30T07:15:00Z", 30) + `}`, 400, "INVALID"},
		{"Null", book, ben, "x", `{"time":null}`, 400, "INVALID"},
		{"List", book, ben, "x", `{"time":[]}`, 400, "INVALID"},
		{"MoveNeither", move, ada, "x", `{}`, 400, "INVALID"},
		{"MoveBoth", move, ada, "x", fmt.Sprintf(`{"toSlotId":%d,"toTime":%s}`, slot, target(at(0), 30)), 400, "INVALID"},
		{"MoveNotOffered", move, ada, "y", `{"toTime":` + target(at(0), 50) + `}`, 409, "SLOT_CLOSED"},
		{"MoveOverItself", move, ada, "m", `{"toTime":` + target(at(2), 45) + `}`, 201, ""},
		{"MoveAgain", move, ada, "m", `{"toTime":` + target(at(2), 45) + `}`, 200, ""},
		{"Held", hold, ben, "h", `{"time":` + target(at(0), 30) + `}`, 201, ""},
	} {
		a := post(tt.path, tt.token, tt.key, tt.body)
		if a.status != tt.status || tt.code != "" && a.member("code") != tt.code || a.member("alternatives") != nil {
			t.Errorf("%s: %d %s, want %d %s", tt.name, a.status, a.body, tt.status, tt.code)
		}
	}
	if a := starts("minutes=30&date=" + date); len(a.member("starts").([]any)) != 2 { // 15:15 and 15:30
		t.Errorf("starts: %s", a.body)
	}
	w.exec(`UPDATE organization SET notice_minutes = 10000`) // a week
	for token, want := range map[string]int{"": 0, ada: 0, w.token(booking.Staff, "desk"): 2} {
		a := w.get(fmt.Sprintf("/api/doctors/%d/starts?minutes=30&date=%s", w.doctor, date), token)
		if len(a.member("starts").([]any)) != want || !strings.Contains(strings.Join(a.header.Values("Vary"), ","), "Authorization") {
			t.Errorf("within the notice: %s, want %d", a.body, want)
		}
	}
}
