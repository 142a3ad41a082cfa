package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rest sends a REST request.
func rest(base, token, method, path, key, body string) (a answer) {
	request, err := http.NewRequest(method, base+path, strings.NewReader(body))
	if err != nil {
		return a
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	if key != "" {
		request.Header.Set("Idempotency-Key", key)
	}
	response, err := client.Do(request)
	if err != nil {
		return a
	}
	defer response.Body.Close()
	a.status, a.header = response.StatusCode, response.Header
	a.body, _ = io.ReadAll(response.Body)
	return a
}

// told is what a call came to, in words that both transports have.
type told struct {
	Code        string // of a refusal
	Appointment string // id
	Status      string // of the appointment
	Replayed    bool
	Free        string // id:free of the slots of a list
}

// transport makes the calls of an app.
type transport interface {
	book(base, token string, slot, patient int64, key string) told
	cancel(base, token, id, reason string) told
	show(base, token, id string) told
	list(base string, doctor int64, day string) told
	register(base, token, subject string) (patient int64)
}

type overGraphQL struct{}

func toldBy(a answer, field string) (t told) {
	t.Code = a.code()
	var data map[string]struct {
		ID, Status  string // of an appointment itself
		Appointment struct{ ID, Status string }
		Replayed    bool
		Slots       []struct {
			ID   string
			Free int
		}
	}
	_ = json.Unmarshal(a.Data, &data)
	payload := data[field]
	if t.Code == "" {
		t.Appointment, t.Status, t.Replayed = payload.Appointment.ID+payload.ID, payload.Appointment.Status+payload.Status, payload.Replayed
	}
	for _, s := range payload.Slots {
		t.Free += fmt.Sprintf("%s:%d ", s.ID, s.Free)
	}
	return t
}

func (overGraphQL) book(base, token string, slot, patient int64, key string) told {
	input := map[string]any{"slotId": strconv.FormatInt(slot, 10), "idempotencyKey": key}
	if patient != 0 {
		input["patientId"] = strconv.FormatInt(patient, 10)
	}
	return toldBy(ask(base, token, `mutation ($in: BookAppointmentInput!) { bookAppointment(input: $in) { appointment { id status } replayed errors { code } } }`,
		map[string]any{"in": input}), "bookAppointment")
}

func (overGraphQL) cancel(base, token, id, reason string) told {
	return toldBy(ask(base, token, `mutation ($in: CancelAppointmentInput!) { cancelAppointment(input: $in) { appointment { id status } errors { code } } }`,
		map[string]any{"in": map[string]any{"appointmentId": id, "reason": reason}}), "cancelAppointment")
}

func (overGraphQL) show(base, token, id string) told {
	t := toldBy(ask(base, token, `query ($id: ID!) { appointment(id: $id) { id status } }`, map[string]any{"id": id}), "appointment")
	if t == (told{}) {
		t.Code = "NOT_FOUND" // GraphQL's null
	}
	return t
}

func (overGraphQL) list(base string, doctor int64, day string) told {
	return toldBy(ask(base, "", `query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { slots { id free } } }`,
		map[string]any{"d": strconv.FormatInt(doctor, 10), "on": day}), "slots")
}

func (overGraphQL) register(base, token, subject string) (patient int64) {
	var data struct {
		RegisterPatient struct {
			Patient struct {
				ID int64 `json:",string"`
			}
		}
	}
	_ = json.Unmarshal(ask(base, token, `mutation ($s: String!) { registerPatient(input: {subject: $s}) { patient { id } } }`, map[string]any{"s": subject}).Data, &data)
	return data.RegisterPatient.Patient.ID
}

type overREST struct{}

func toldByREST(a answer) (t told) {
	var body struct {
		Code, Status json.RawMessage // a problem's status is a number
		ID           json.Number
		Slots        []struct {
			ID   int64
			Free int
		}
	}
	_ = json.Unmarshal(a.body, &body)
	if a.status >= 300 {
		return told{Code: strings.Trim(string(body.Code), `"`)}
	}
	t.Appointment, t.Status = body.ID.String(), strings.Trim(string(body.Status), `"`)
	for _, s := range body.Slots {
		t.Free += fmt.Sprintf("%d:%d ", s.ID, s.Free)
	}
	return t
}

func (overREST) book(base, token string, slot, patient int64, key string) told {
	body := fmt.Sprintf(`{"slotId":%d}`, slot)
	if patient != 0 {
		body = fmt.Sprintf(`{"slotId":%d,"patientId":%d}`, slot, patient)
	}
	a := rest(base, token, "POST", "/api/appointments", key, body)
	t := toldByREST(a)
	t.Replayed = a.status == http.StatusOK
	return t
}

func (overREST) cancel(base, token, id, reason string) told {
	if reason == "" {
		return toldByREST(rest(base, token, "DELETE", "/api/appointments/"+id, "", ""))
	}
	body, _ := json.Marshal(map[string]string{"reason": reason})
	return toldByREST(rest(base, token, "POST", "/api/appointments/"+id+"/cancel", "", string(body)))
}

func (overREST) show(base, token, id string) told {
	return toldByREST(rest(base, token, "GET", "/api/appointments/"+id, "", ""))
}

func (overREST) list(base string, doctor int64, day string) told {
	return toldByREST(rest(base, "", "GET", fmt.Sprintf("/api/doctors/%d/slots?date=%s", doctor, day), "", ""))
}

func (overREST) register(base, token, subject string) int64 {
	id, _ := strconv.ParseInt(toldByREST(rest(base, token, "PUT", "/api/patients/"+subject, "", "{}")).Appointment, 10, 64)
	return id
}

// Random calls through GraphQL on one database and through REST on its twin come to the same, in
// what is told, in the rows and in the events.
func TestTransportsAgree(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	outcomes := map[string]int{}
	var states [2][]string
	var answers [2][]told
	for i, through := range []transport{overGraphQL{}, overREST{}} {
		c := newClinic(t, 1)
		api := c.instances[0]
		slots := append(c.slots(6, 2), 999_999)
		c.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, slots[4])
		c.exec(`UPDATE time_slot SET opens_at = now() + interval '1 hour' WHERE id = $1`, slots[5])
		day := scan[string](c, `SELECT (start_at AT TIME ZONE 'Europe/Berlin')::date::text FROM time_slot WHERE id = $1`, slots[2])
		partner := c.token("partner", "portal")
		var patients []int64
		for n := range 40 {
			patients = append(patients, through.register(api, partner, fmt.Sprint("s", n)))
		}
		tokens := []string{partner, c.token("staff", "desk"), c.token("patient", "p1"), c.token("patient", "p2"), c.token("partner", "other"), ""}
		random := rand.New(rand.NewPCG(seed, 1))
		for range 500 {
			token := tokens[min(random.IntN(12), 5)]
			if random.IntN(2) == 0 {
				token = partner
			}
			n := random.IntN(len(patients))
			patient := patients[n]
			if random.IntN(6) == 0 {
				n, patient = -1, 0
			}
			// Five keys for each patient: the limit of keys, which is a matter of time, lets them pass.
			slot, key, id := slots[random.IntN(len(slots))], fmt.Sprintf("k%d-%d", n, random.IntN(5)), strconv.Itoa(1+random.IntN(40))
			reason := []string{"", "away"}[random.IntN(2)]
			var got told
			switch random.IntN(8) {
			case 0, 1, 2, 3, 4:
				got = through.book(api, token, slot, patient, key)
			case 5, 6:
				got = through.cancel(api, token, id, reason)
			default:
				if token != "" { // over REST nobody is told to sign in, over GraphQL there is nothing
					got = through.show(api, token, id)
				}
			}
			answers[i] = append(answers[i], got)
			if i == 0 {
				outcomes[got.Code]++
			}
		}
		answers[i] = append(answers[i], through.list(api, c.doctor, day))
		for _, sql := range []string{
			`SELECT concat_ws(' ', id, slot_id, patient_id, status, idempotency_key, booked_by, cancelled_by, cancel_reason) FROM appointment ORDER BY id`,
			`SELECT concat_ws(' ', id, root_id, type) FROM outbox_event ORDER BY id`,
			`SELECT concat_ws(' ', id, booked_count, version) FROM time_slot ORDER BY id`,
		} {
			rows, err := c.pool.Query(t.Context(), sql)
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var text string
				if err := rows.Scan(&text); err != nil {
					t.Fatal(err)
				}
				states[i] = append(states[i], text)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
		}
		c.check()
	}
	if diff := cmp.Diff(answers[0], answers[1]); diff != "" {
		t.Errorf("answers (-GraphQL +REST):\n%s", diff)
	}
	if diff := cmp.Diff(states[0], states[1]); diff != "" {
		t.Errorf("rows and events (-GraphQL +REST):\n%s", diff)
	}
	t.Logf("%v", outcomes)
	for _, code := range []string{"", "SLOT_FULL", "SLOT_CLOSED", "SLOT_NOT_OPEN", "NOT_FOUND", "UNAUTHENTICATED", "INVALID", "IDEMPOTENCY_KEY_REUSED"} {
		if outcomes[code] == 0 {
			t.Errorf("nothing came to %q: the calls are not random enough", code)
		}
	}
}

// Callers of both transports race for a slot on two instances: as many win as there are places.
func TestMixedRace(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	through := []transport{overGraphQL{}, overREST{}}
	for round, slot := range c.slots(10, 3) {
		var mu sync.Mutex
		won, refused := 0, 0
		together(16, func(i int) {
			got := through[i%2].book(c.instances[(i/2)%2], c.token("patient", fmt.Sprint(round, "-", i)), slot, 0, "k")
			mu.Lock()
			defer mu.Unlock()
			switch got.Code {
			case "":
				won++
			case "SLOT_FULL":
				refused++
			default:
				t.Errorf("%+v", got)
			}
		})
		if n := scan[int](c, `SELECT booked_count FROM time_slot WHERE id = $1`, slot); won != 3 || refused != 13 || n != 3 {
			t.Errorf("%d won, %d were refused, booked_count = %d", won, refused, n)
		}
	}
	c.check()
}

// One key at once over both transports books once, and everybody gets the same appointment; then a
// retry by the other transport does, too, and another request with the key is refused by both.
func TestMixedKeys(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	through := []transport{overGraphQL{}, overREST{}}
	slots := c.slots(11, 5)
	for round, slot := range slots[:10] {
		token := c.token("patient", fmt.Sprint(round))
		var answers [8]told
		together(len(answers), func(i int) {
			answers[i] = through[i%2].book(c.instances[(i/2)%2], token, slot, 0, "k")
		})
		first := 0
		for _, a := range answers {
			if a.Appointment == "" || a.Appointment != answers[0].Appointment {
				t.Errorf("%+v, another got %+v", a, answers[0])
			}
			if !a.Replayed {
				first++
			}
		}
		if n := scan[int](c, `SELECT count(*) FROM appointment WHERE slot_id = $1`, slot); n != 1 || first < 1 {
			t.Errorf("%d appointments, %d answers that were no replay", n, first)
		}
		for _, by := range through {
			if a := by.book(c.instances[0], token, slot, 0, "k"); !a.Replayed || a.Appointment != answers[0].Appointment {
				t.Errorf("a retry: %+v", a)
			}
			if a := by.book(c.instances[1], token, slots[10], 0, "k"); a.Code != "IDEMPOTENCY_KEY_REUSED" {
				t.Errorf("another request: %+v", a)
			}
		}
	}
	c.check()
}
