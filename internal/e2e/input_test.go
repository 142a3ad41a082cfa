package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// Whatever is sent, the answer is JSON with a code and never a 5xx, and nothing is booked.
func TestBadInput(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 1)
	api, slot, patient := c.instances[0], c.slots(1, 1)[0], c.token("patient", "1")
	request := func(query, variables string) string {
		body, _ := json.Marshal(query)
		return fmt.Sprintf(`{"query":%s,"variables":%s}`, body, variables)
	}
	mutation := `mutation ($s: ID!, $k: String!) { bookAppointment(input: {slotId: $s, idempotencyKey: $k}) { appointment { id } errors { code } } }`
	list := `query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { slots { id } } }`
	for name, body := range map[string]string{
		"NoJSON":          `{`,
		"Empty":           ``,
		"Array":           `[{"query":"{ me { role } }"}]`,
		"NumberAsQuery":   `{"query":7}`,
		"NULInBody":       "{\"query\":\"{ me\x00 { role } }\"}",
		"InvalidUTF8":     "{\"query\":\"{ me \xff }\"}",
		"UnknownField":    request(`{ nope }`, `{}`),
		"SlotAsNumber":    request(mutation, `{"s":1.5,"k":"k"}`),
		"SlotAsObject":    request(mutation, `{"s":{},"k":"k"}`),
		"SlotNull":        request(mutation, `{"s":null,"k":"k"}`),
		"SlotMissing":     request(mutation, `{"k":"k"}`),
		"SlotText":        request(mutation, `{"s":"1 OR 1=1","k":"k"}`),
		"SlotUnknown":     request(mutation, `{"s":"999999999","k":"k"}`),
		"SlotZero":        request(mutation, `{"s":"0","k":"k"}`),
		"SlotNegative":    request(mutation, `{"s":"-1","k":"k"}`),
		"SlotTooLarge":    request(mutation, `{"s":"99999999999999999999","k":"k"}`),
		"KeyEmpty":        request(mutation, fmt.Sprintf(`{"s":"%d","k":""}`, slot)),
		"KeyTooLong":      request(mutation, fmt.Sprintf(`{"s":"%d","k":"%s"}`, slot, strings.Repeat("k", 65))),
		"KeyWithNUL":      request(mutation, fmt.Sprintf(`{"s":"%d","k":"a\u0000b"}`, slot)),
		"KeyNotASCII":     request(mutation, fmt.Sprintf(`{"s":"%d","k":"schlüssel"}`, slot)),
		"KeyLoneSurrogat": request(mutation, fmt.Sprintf(`{"s":"%d","k":"\ud800"}`, slot)),
		"KeyNumber":       request(mutation, fmt.Sprintf(`{"s":"%d","k":7}`, slot)),
		"ReasonWithNUL":   request(`mutation { cancelAppointment(input: {appointmentId: "1", reason: "a\u0000b"}) { errors { code } } }`, `{}`),
		"NoDate":          request(list, fmt.Sprintf(`{"d":"%d","on":"tomorrow"}`, c.doctor)),
		"DateEmpty":       request(list, fmt.Sprintf(`{"d":"%d","on":""}`, c.doctor)),
		"DateImpossible":  request(list, fmt.Sprintf(`{"d":"%d","on":"2026-02-30"}`, c.doctor)),
		"DateWithTime":    request(list, fmt.Sprintf(`{"d":"%d","on":"2026-02-03T00:00:00Z"}`, c.doctor)),
		"DoctorUnknown":   request(list, `{"d":"999999","on":"2026-10-05"}`),
		"FirstNegative":   request(`{ doctors(first: -1) { nodes { id } } }`, `{}`),
		"FirstHuge":       request(`{ doctors(first: 99999999) { nodes { id } } }`, `{}`),
		"FirstOverflow":   request(`{ doctors(first: 3000000000) { nodes { id } } }`, `{}`),
		"CursorForeign":   request(`{ myAppointments(after: "x") { nodes { id } } }`, `{}`),
		"DaysNegative":    request(fmt.Sprintf(`{ days(doctorId: "%d", from: "2026-10-05", days: -1) { free } }`, c.doctor), `{}`),
		"DaysHuge":        request(fmt.Sprintf(`{ days(doctorId: "%d", from: "2026-10-05", days: 32) { free } }`, c.doctor), `{}`),
		"DayAtTheEnd":     request(fmt.Sprintf(`{ days(doctorId: "%d", from: "9999-12-31") { free } }`, c.doctor), `{}`),
		"SearchWithNUL":   request(`query ($s: String) { doctors(search: $s) { nodes { id } } }`, `{"s":"a\u0000"}`),
	} {
		a := post(api, patient, body)
		if a.status < 200 || a.status >= 500 || a.code() == "" || !json.Valid(a.body) {
			t.Errorf("%s: status %d, code %q: %.300s", name, a.status, a.code(), a.body)
		}
	}

	// Real requests with random damage.
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	real := []string{
		request(mutation, `{"s":"999999999","k":"key"}`),
		request(list, fmt.Sprintf(`{"d":"%d","on":"2026-10-05"}`, c.doctor)),
		request(`{ me { role patient { id } } doctors(first: 3) { edges { cursor node { id organization { name } } } } }`, `{}`),
	}
	for range 3000 {
		body := []byte(real[random.IntN(len(real))])
		for range 1 + random.IntN(4) {
			switch at := random.IntN(len(body)); random.IntN(4) {
			case 0:
				body[at] = byte(random.IntN(256))
			case 1:
				body = append(body[:at:at], body[min(len(body), at+random.IntN(9)):]...)
			case 2:
				body = append(body[:at:at], append([]byte(`{}[]()":,$!@\u0000`[random.IntN(12):]), body[at:]...)...)
			default:
				body = append(body[:at:at], append(body[at/2:at:at], body[at:]...)...)
			}
			if len(body) == 0 {
				break
			}
		}
		if a := post(api, patient, string(body)); a.status < 200 || a.status >= 500 || !json.Valid(a.body) {
			t.Fatalf("status %d to %q: %.300s", a.status, body, a.body)
		}
	}
	if n := scan[int](c, `SELECT count(*) FROM appointment`); n != 0 {
		t.Errorf("%d appointments came of bad input", n)
	}
}
