package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
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
	Appointment string // id; with a refusal that of the appointment that stands
	Status      string // of the appointment
	Referral    string
	Overlap     string // why it may
	Lapses      bool   // some time
	Replaces    string // which appointment
	ReplacedBy  string
	Replayed    bool
	Free        string // id:free of the slots of a list
	Entry       string // of a waiting list
}

// place is what is to be booked or held.
type place struct {
	slot, patient          int64
	time                   moment // instead of a slot
	key, referral, overlap string
	hold                   bool
}

// moment is a time of a doctor whose hours are flexible.
type moment struct {
	doctor  int64
	start   string
	minutes int
}

// target is where to, with a time as a transport has it.
func (m moment) target(doctor any) map[string]any {
	return map[string]any{"doctorId": doctor, "startAt": m.start, "minutes": m.minutes}
}

// move is what is to be moved, named by id or by referral and from, and where to.
type move struct {
	id, referral string
	from, to     int64
	time         moment // to, instead of a slot
	key, overlap string
}

// transport makes the calls of an app.
type transport interface {
	claim(base, token string, p place) told
	step(base, token, step, id string) told // confirm or release
	cancel(base, token, id, reason string) told
	move(base, token string, m move) told
	mark(base, token, id, status string) told
	show(base, token, id string) told
	list(base string, doctor int64, day string) told
	register(base, token, subject string) (patient int64)
	join(base, token string, w wish) told // Replayed: they have just joined
	leave(base, token, id string) told
	entry(base, token, id string) told // of a waiting list
}

type overGraphQL struct{}

// appointmentFields are those that are compared.
const appointmentFields = `id status referralId overlapReason expiresAt replaces replacedBy`

type appointmentData struct {
	ID, Status, ReferralID, OverlapReason, Replaces, ReplacedBy string
	ExpiresAt                                                   *time.Time
}

func toldBy(a answer, field string) (t told) {
	t.Code = a.code()
	var data map[string]struct {
		appointmentData // of an appointment itself
		Appointment     appointmentData
		Replayed        bool
		Slots           []struct {
			ID   string
			Free int
		}
	}
	_ = json.Unmarshal(a.Data, &data)
	payload := data[field]
	shown := payload.Appointment
	if shown.ID == "" {
		shown = payload.appointmentData
	}
	t.Appointment = shown.ID
	if t.Code == "" {
		t.Status, t.Referral, t.Overlap, t.Lapses = shown.Status, shown.ReferralID, shown.OverlapReason, shown.ExpiresAt != nil
		t.Replayed, t.Replaces, t.ReplacedBy = payload.Replayed, shown.Replaces, shown.ReplacedBy
	}
	for _, s := range payload.Slots {
		t.Free += fmt.Sprintf("%s:%d ", s.ID, s.Free)
	}
	return t
}

func (overGraphQL) claim(base, token string, p place) told {
	input := map[string]any{"slotId": strconv.FormatInt(p.slot, 10), "idempotencyKey": p.key}
	if p.time != (moment{}) {
		delete(input, "slotId")
		input["target"] = map[string]any{"time": p.time.target(strconv.FormatInt(p.time.doctor, 10))}
	}
	if p.patient != 0 {
		input["patientId"] = strconv.FormatInt(p.patient, 10)
	}
	if p.referral != "" {
		input["referralId"] = p.referral
	}
	if p.overlap != "" {
		input["overlapReason"] = p.overlap
	}
	field, kind := "bookAppointment", "BookAppointmentInput"
	if p.hold {
		field, kind = "holdSlot", "HoldSlotInput"
	}
	return toldBy(ask(base, token, `mutation ($in: `+kind+`!) { `+field+`(input: $in) { appointment { `+appointmentFields+` } replayed errors { code } } }`,
		map[string]any{"in": input}), field)
}

func (overGraphQL) step(base, token, step, id string) told {
	field := map[string]string{"confirm": "confirmAppointment", "release": "releaseHold"}[step]
	return toldBy(ask(base, token, `mutation ($id: ID!) { `+field+`(input: {appointmentId: $id}) { appointment { `+appointmentFields+` } errors { code } } }`,
		map[string]any{"id": id}), field)
}

func (overGraphQL) cancel(base, token, id, reason string) told {
	return toldBy(ask(base, token, `mutation ($in: CancelAppointmentInput!) { cancelAppointment(input: $in) { appointment { `+appointmentFields+` } errors { code } } }`,
		map[string]any{"in": map[string]any{"appointmentId": id, "reason": reason}}), "cancelAppointment")
}

func (overGraphQL) move(base, token string, m move) told {
	input := map[string]any{"toSlotId": strconv.FormatInt(m.to, 10), "idempotencyKey": m.key}
	if m.time != (moment{}) {
		delete(input, "toSlotId")
		input["to"] = map[string]any{"time": m.time.target(strconv.FormatInt(m.time.doctor, 10))}
	}
	if m.id != "" {
		input["appointmentId"] = m.id
	} else {
		input["referralId"], input["fromSlotId"] = m.referral, strconv.FormatInt(m.from, 10)
	}
	if m.overlap != "" {
		input["overlapReason"] = m.overlap
	}
	return toldBy(ask(base, token, `mutation ($in: RescheduleAppointmentInput!) { rescheduleAppointment(input: $in) { appointment { `+appointmentFields+` } replayed errors { code } } }`,
		map[string]any{"in": input}), "rescheduleAppointment")
}

func (overGraphQL) mark(base, token, id, status string) told {
	return toldBy(ask(base, token, `mutation ($in: MarkAppointmentInput!) { markAppointment(input: $in) { appointment { `+appointmentFields+` } errors { code } } }`,
		map[string]any{"in": map[string]any{"appointmentId": id, "status": status}}), "markAppointment")
}

func (overGraphQL) show(base, token, id string) told {
	t := toldBy(ask(base, token, `query ($id: ID!) { appointment(id: $id) { `+appointmentFields+` } }`, map[string]any{"id": id}), "appointment")
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
		Code, Status              json.RawMessage // a problem's status is a number
		ID, AppointmentID         json.Number
		Replaces, ReplacedBy      json.Number
		ReferralID, OverlapReason string
		ExpiresAt                 *time.Time
		Slots                     []struct {
			ID   int64
			Free int
		}
	}
	_ = json.Unmarshal(a.body, &body)
	if a.status >= 300 {
		return told{Code: strings.Trim(string(body.Code), `"`), Appointment: body.AppointmentID.String()}
	}
	t = told{Appointment: body.ID.String(), Status: strings.Trim(string(body.Status), `"`),
		Referral: body.ReferralID, Overlap: body.OverlapReason, Lapses: body.ExpiresAt != nil,
		Replaces: body.Replaces.String(), ReplacedBy: body.ReplacedBy.String()}
	for _, s := range body.Slots {
		t.Free += fmt.Sprintf("%d:%d ", s.ID, s.Free)
	}
	return t
}

func (overREST) claim(base, token string, p place) told {
	asked := map[string]any{"slotId": p.slot}
	if p.time != (moment{}) {
		asked = map[string]any{"time": p.time.target(p.time.doctor)}
	}
	if p.patient != 0 {
		asked["patientId"] = p.patient
	}
	if p.referral != "" {
		asked["referralId"] = p.referral
	}
	if p.overlap != "" {
		asked["overlapReason"] = p.overlap
	}
	body, _ := json.Marshal(asked)
	path := "/api/appointments"
	if p.hold {
		path = "/api/holds"
	}
	a := rest(base, token, "POST", path, p.key, string(body))
	t := toldByREST(a)
	t.Replayed = a.status == http.StatusOK
	return t
}

func (overREST) step(base, token, step, id string) told {
	if step == "release" {
		return toldByREST(rest(base, token, "DELETE", "/api/holds/"+id, "", ""))
	}
	return toldByREST(rest(base, token, "POST", "/api/holds/"+id+"/"+step, "", ""))
}

func (overREST) cancel(base, token, id, reason string) told {
	if reason == "" {
		return toldByREST(rest(base, token, "DELETE", "/api/appointments/"+id, "", ""))
	}
	body, _ := json.Marshal(map[string]string{"reason": reason})
	return toldByREST(rest(base, token, "POST", "/api/appointments/"+id+"/cancel", "", string(body)))
}

func (overREST) move(base, token string, m move) told {
	asked, path := map[string]any{"toSlotId": m.to}, "/api/appointments/"
	if m.time != (moment{}) {
		asked = map[string]any{"toTime": m.time.target(m.time.doctor)}
	}
	if m.id != "" {
		path += m.id + "/"
	} else {
		asked["referralId"], asked["fromSlotId"] = m.referral, m.from
	}
	if m.overlap != "" {
		asked["overlapReason"] = m.overlap
	}
	body, _ := json.Marshal(asked)
	a := rest(base, token, "POST", path+"reschedule", m.key, string(body))
	t := toldByREST(a)
	t.Replayed = a.status == http.StatusOK
	return t
}

func (overREST) mark(base, token, id, status string) told {
	body, _ := json.Marshal(map[string]string{"status": status})
	return toldByREST(rest(base, token, "PUT", "/api/appointments/"+id+"/attendance", "", string(body)))
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
