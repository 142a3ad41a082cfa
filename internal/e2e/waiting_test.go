package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"
)

// wish is what somebody waits for.
type wish struct {
	doctor, patient int64
	from, to        string
}

// entryData is an entry as GraphQL has it.
type entryData struct {
	ID, Status, From, To string
	Doctor, Patient      struct{ ID string }
	Offer                *appointmentData
}

const entryFields = `id status from to doctor { id } patient { id } offer { ` + appointmentFields + ` }`

func (e entryData) told() string {
	if e.ID == "" {
		return ""
	}
	offer := ""
	if e.Offer != nil {
		offer = e.Offer.ID + " " + e.Offer.Status
	}
	return fmt.Sprint(e.ID, " ", e.Status, " ", e.From, " ", e.To, " ", e.Doctor.ID, " ", e.Patient.ID, " ", offer)
}

func toldOfEntry(a answer, field string) (t told) {
	t.Code = a.code()
	var data map[string]struct {
		entryData // of an entry itself
		Entry     entryData
		Joined    bool
	}
	_ = json.Unmarshal(a.Data, &data)
	payload := data[field]
	t.Entry, t.Replayed = payload.Entry.told(), payload.Joined
	if t.Entry == "" {
		t.Entry = payload.entryData.told()
	}
	return t
}

func (overGraphQL) join(base, token string, w wish) told {
	input := map[string]any{"doctorId": strconv.FormatInt(w.doctor, 10), "from": w.from, "to": w.to}
	if w.patient != 0 {
		input["patientId"] = strconv.FormatInt(w.patient, 10)
	}
	return toldOfEntry(ask(base, token, `mutation ($in: JoinWaitingListInput!) { joinWaitingList(input: $in) { entry { `+entryFields+` } joined errors { code } } }`,
		map[string]any{"in": input}), "joinWaitingList")
}

func (overGraphQL) leave(base, token, id string) told {
	return toldOfEntry(ask(base, token, `mutation ($id: ID!) { leaveWaitingList(input: {entryId: $id}) { entry { `+entryFields+` } errors { code } } }`,
		map[string]any{"id": id}), "leaveWaitingList")
}

func (overGraphQL) entry(base, token, id string) told {
	t := toldOfEntry(ask(base, token, `query ($id: ID!) { waitingEntry(id: $id) { `+entryFields+` } }`, map[string]any{"id": id}), "waitingEntry")
	if t == (told{}) {
		t.Code = "NOT_FOUND" // GraphQL's null
	}
	return t
}

func toldOfEntryByREST(a answer) (t told) {
	var body struct {
		Code                    json.RawMessage
		ID, DoctorID, PatientID int64
		Status                  json.RawMessage // a problem's is a number
		From, To                string
		Offer                   *struct {
			ID     int64
			Status string
		}
	}
	_ = json.Unmarshal(a.body, &body)
	if a.status >= 300 {
		_ = json.Unmarshal(body.Code, &t.Code)
		return t
	}
	e := entryData{ID: fmt.Sprint(body.ID), From: body.From, To: body.To}
	_ = json.Unmarshal(body.Status, &e.Status)
	e.Doctor.ID, e.Patient.ID = fmt.Sprint(body.DoctorID), fmt.Sprint(body.PatientID)
	if body.Offer != nil {
		e.Offer = &appointmentData{ID: fmt.Sprint(body.Offer.ID), Status: body.Offer.Status}
	}
	t.Entry = e.told()
	return t
}

func (overREST) join(base, token string, w wish) told {
	asked := map[string]any{"doctorId": w.doctor, "from": w.from, "to": w.to}
	if w.patient != 0 {
		asked["patientId"] = w.patient
	}
	body, _ := json.Marshal(asked)
	a := rest(base, token, "POST", "/api/waiting", "", string(body))
	t := toldOfEntryByREST(a)
	t.Replayed = a.status == http.StatusCreated
	return t
}

func (overREST) leave(base, token, id string) told {
	return toldOfEntryByREST(rest(base, token, "DELETE", "/api/waiting/"+id, "", ""))
}

func (overREST) entry(base, token, id string) told {
	return toldOfEntryByREST(rest(base, token, "GET", "/api/waiting/"+id, "", ""))
}

// listed reports whether the slot is in the doctor's list of free slots.
func (c *clinic) listed(base string, slot int64) bool {
	c.t.Helper()
	day := scan[string](c, `SELECT (start_at AT TIME ZONE 'Europe/Berlin')::date::text FROM time_slot WHERE id = $1`, slot)
	a := ask(base, "", `query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { slots { id } } }`,
		map[string]any{"d": strconv.FormatInt(c.doctor, 10), "on": day})
	var list struct {
		Slots struct{ Slots []struct{ ID string } }
	}
	if err := json.Unmarshal(a.Data, &list); err != nil {
		c.t.Fatalf("%s: %v", a.body, err)
	}
	for _, s := range list.Slots.Slots {
		if s.ID == strconv.FormatInt(slot, 10) {
			return true
		}
	}
	return false
}

// away checks that the place is in no list, can't be taken over either transport, and is on no screen.
func (c *clinic) away(slot int64, screens ...*screen) {
	c.t.Helper()
	version := scan[int64](c, `SELECT version FROM time_slot WHERE id = $1`, slot)
	for _, s := range screens {
		s.shows(c.t, slot, "its newest state", func(s state) bool { return s.Version >= version })
		s.shows(c.t, slot, "no free place", func(s state) bool { return s.Free == 0 })
	}
	for n, api := range c.instances { // screens are told last
		if c.listed(api, slot) {
			c.t.Errorf("instance %d lists slot %d", n, slot)
		}
		for i, through := range []transport{overGraphQL{}, overREST{}} {
			who := c.token("patient", fmt.Sprint("late", n))
			if got := through.claim(api, who, place{slot: slot, key: fmt.Sprintf("k%d.%d", slot, i), hold: i == 0}); got.Code != "SLOT_FULL" {
				c.t.Errorf("instance %d: slot %d was to be had: %+v", n, slot, got)
			}
		}
	}
}

// A place that comes free goes to those who wait, one after the other, on two instances and without a
// worker; nobody else sees it until nobody waits.
func TestOffersPastScreens(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	slot := c.slots(1, 1)[0]
	screens := []*screen{c.watch(c.instances[0]), c.watch(c.instances[1])}
	api := overREST{}
	holder := c.token("patient", "holder")
	booked := api.claim(c.instances[0], holder, place{slot: slot, key: "b"})
	day := scan[string](c, `SELECT (start_at AT TIME ZONE 'Europe/Berlin')::date::text FROM time_slot WHERE id = $1`, slot)
	waits := []string{c.token("patient", "first"), c.token("patient", "second"), c.token("patient", "third")}
	for i, token := range waits {
		if got := api.join(c.instances[i%2], token, wish{doctor: c.doctor, from: day, to: day}); got.Code != "" || !got.Replayed {
			t.Fatalf("join: %+v", got)
		}
	}
	offer := func(i int) string { // the id of the offer that somebody has, or will have in a moment
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			if id := scan[int64](c, `SELECT coalesce(max(a.id), 0) FROM waiting_entry w JOIN appointment a ON a.id = w.appointment_id
				WHERE w.id = $1 AND w.status = 'OFFERED' AND a.status = 'HELD'`, i+1); id != 0 {
				return strconv.FormatInt(id, 10)
			}
			if time.Now().After(deadline) {
				t.Fatalf("entry %d has no offer", i+1)
			}
		}
	}
	api.cancel(c.instances[0], holder, booked.Appointment, "")
	first := offer(0)
	c.away(slot, screens...)
	if got := api.step(c.instances[1], waits[0], "release", first); got.Code != "" {
		t.Errorf("refuse: %+v", got)
	}
	second := offer(1)
	c.away(slot, screens...)
	c.exec(`UPDATE appointment SET expires_at = clock_timestamp() WHERE id = $1`, second)
	third := offer(2) // no worker: the screens are reason enough
	c.away(slot, screens...)
	c.exec(`UPDATE appointment SET expires_at = clock_timestamp() WHERE id = $1`, third)
	for _, s := range screens {
		s.shows(t, slot, "the place that nobody waits for any more", func(s state) bool { return s.Free == 1 })
	}
	if got := api.claim(c.instances[1], holder, place{slot: slot, key: "again"}); got.Code != "" {
		t.Errorf("%+v", got)
	}
	c.check()
}

// B85: a place that was cancelled is not listed, not to be held and on no screen before it returns; then
// it is all of that, though no worker runs.
func TestWithheldPastScreens(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	c.exec(`UPDATE organization SET cancelled_returns = 'NEXT_RELEASE'`)
	slots := c.slots(2, 1)
	screens := []*screen{c.watch(c.instances[0]), c.watch(c.instances[1])}
	holder := c.token("patient", "holder")
	for i, slot := range slots {
		through := []transport{overGraphQL{}, overREST{}}[i]
		booked := through.claim(c.instances[0], holder, place{slot: slot, key: fmt.Sprint("b", i)})
		if got := through.cancel(c.instances[1], holder, booked.Appointment, ""); got.Code != "" {
			t.Fatalf("%+v", got)
		}
		c.away(slot, screens...)
	}
	c.exec(`UPDATE appointment SET returns_at = clock_timestamp() + interval '200 ms'`)
	for _, slot := range slots {
		for _, s := range screens {
			s.shows(t, slot, "the place when it returns", func(s state) bool { return s.Free == 1 })
		}
		deadline := time.Now().Add(patience)
		for !c.listed(c.instances[1], slot) {
			if time.Now().After(deadline) {
				t.Fatal("it is never listed")
			}
		}
		if got := (overREST{}).claim(c.instances[0], c.token("patient", "buyer"), place{slot: slot, key: fmt.Sprint("k", slot)}); got.Code != "" {
			t.Errorf("%+v", got)
		}
	}
	c.check()
}
