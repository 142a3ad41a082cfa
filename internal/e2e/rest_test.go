package e2e

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Random calls through GraphQL on one database and through REST on its twin come to the same, in
// what is told, in the rows and in the events.
func TestTransportsAgree(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	outcomes := map[string]int{}
	var states [2][]string
	var answers [2][]told
	midnight := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 3)
	for i, through := range []transport{overGraphQL{}, overREST{}} {
		c := newClinic(t, 1)
		api := c.instances[0]
		slots := append(c.slots(6, 3), 999_999)
		c.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, slots[4])
		c.exec(`UPDATE time_slot SET opens_at = now() + interval '1 hour' WHERE id = $1`, slots[5])
		day := scan[string](c, `SELECT (start_at AT TIME ZONE 'Europe/Berlin')::date::text FROM time_slot WHERE id = $1`, slots[2])
		later := scan[string](c, `SELECT ($1::date + 2)::text`, day)
		partner := c.token("partner", "portal")
		elsewhere := *c // another doctor's slots at the same times
		elsewhere.doctor = scan[int64](c, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Another') RETURNING id`, c.organization)
		slots = append(slots, elsewhere.slots(4, 3)...)
		flexible := scan[int64](c, `WITH d AS (INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Flexible') RETURNING id),
			s AS (INSERT INTO schedule (doctor_id, valid_from, kind) SELECT id, '2026-01-01', 'FLEXIBLE' FROM d RETURNING id, doctor_id),
			w AS (INSERT INTO schedule_window SELECT s.id, day, 0, 1440, 15, '{30, 45}' FROM s, generate_series(1, 7) AS day)
			SELECT doctor_id FROM s`, c.organization)
		desk := c.token("staff", "desk")
		var patients []int64
		for n := range 24 {
			patients = append(patients, through.register(api, []string{partner, partner, desk}[n%3], fmt.Sprint("s", n)))
		}
		tokens := []string{partner, desk, c.token("patient", "p1"), c.token("patient", "p2"), c.token("partner", "other"), ""}
		note := func(got told) told {
			answers[i] = append(answers[i], got)
			if i == 0 {
				outcomes[got.Code]++
			}
			return got
		}
		lapse := func(id string) {
			c.exec(`UPDATE appointment SET expires_at = clock_timestamp() WHERE id = $1 AND status = 'HELD'`, id)
		}
		// What chance seldom leads to.
		sure := c.token("patient", "sure")
		for n, p := range []place{{slot: slots[0]}, {slot: slots[7], hold: true}, {slot: slots[0], hold: true}} {
			p.key = fmt.Sprint("sure", n)
			note(through.claim(api, sure, p))
		}
		held := note(through.claim(api, sure, place{slot: slots[1], key: "lapses", hold: true}))
		lapse(held.Appointment)
		note(through.step(api, sure, "confirm", held.Appointment))
		sure = c.token("patient", "moves") // has five keys of their own
		booked := note(through.claim(api, sure, place{slot: slots[2], key: "moves", referral: "R-S"}))
		for n, m := range []move{{id: booked.Appointment, to: slots[3]}, {referral: "R-S", from: slots[3], to: slots[2]}, {id: booked.Appointment, to: slots[3]}} {
			m.key = []string{"m0", "m1", "m0"}[n]
			note(through.move(api, sure, m))
		}
		ruled := c.token("patient", "ruled")
		bound := note(through.claim(api, ruled, place{slot: slots[0], key: "b"}))
		for n, rule := range []string{"horizon_days = 1", "horizon_days = NULL, notice_minutes = 525600, cutoff_minutes = 525600"} {
			c.exec(`UPDATE organization SET ` + rule)
			note(through.claim(api, ruled, place{slot: slots[8], key: "k", hold: n == 0}))
			note(through.move(api, ruled, move{id: bound.Appointment, to: slots[8], key: "m"}))
		}
		note(through.cancel(api, ruled, bound.Appointment, ""))
		c.exec(`UPDATE organization SET notice_minutes = NULL, cutoff_minutes = NULL, max_active = 1`)
		note(through.claim(api, ruled, place{slot: slots[8], key: "k", hold: true}))
		c.exec(`UPDATE organization SET max_active = 4, max_holds = 1`)
		patientOf := map[string]int{} // by appointment
		random := rand.New(rand.NewPCG(seed, 1))
		for range 1000 {
			token := tokens[min(random.IntN(12), 5)]
			n := random.IntN(len(patients))
			patient := patients[n]
			if random.IntN(6) > 0 {
				token = []string{partner, partner, desk}[n%3]
			}
			if random.IntN(6) == 0 {
				n, patient = -1, 0
			}
			// Five keys for each patient: the limit of keys, which is a matter of time, lets them pass.
			p := place{slot: slots[random.IntN(len(slots))], patient: patient, key: fmt.Sprintf("k%d-%d", n, random.IntN(5)), hold: random.IntN(2) == 0}
			if random.IntN(4) == 0 {
				p.slot, p.time = 0, moment{flexible, midnight.Add(time.Duration(random.IntN(12)) * 15 * time.Minute).Format(time.RFC3339), 30 + 15*random.IntN(3)}
			}
			if random.IntN(2) == 0 {
				p.referral = fmt.Sprint("R-", random.IntN(6))
			}
			if random.IntN(12) == 0 || token == desk && random.IntN(2) == 0 {
				p.overlap = "both doctors"
			}
			id := strconv.Itoa(1 + random.IntN(60))
			reason := []string{"", "away"}[random.IntN(2)]
			var got told
			made := false // an appointment
			switch random.IntN(22) {
			case 17, 18:
				status := []string{"BOOKED", "ARRIVED", "FULFILLED", "NO_SHOW"}[random.IntN(4)]
				if random.IntN(3) > 0 {
					token = desk
				}
				got = through.mark(api, token, id, status)
			case 14, 15, 16:
				made = true
				m := move{id: id, to: p.slot, time: p.time, overlap: p.overlap}
				n = -1
				if who, known := patientOf[id]; known {
					n = who
				}
				m.key = fmt.Sprintf("k%d-%d", n, random.IntN(5))
				if p.referral != "" && random.IntN(3) == 0 {
					m.id, m.referral, m.from = "", p.referral, slots[random.IntN(len(slots))]
					m.key = "k-referral"
				}
				got = through.move(api, token, m)
			case 0, 1, 2, 3, 4, 5, 6:
				got, made = through.claim(api, token, p), true
			case 19, 20:
				got = through.join(api, token, wish{doctor: c.doctor, patient: patient, from: day, to: []string{day, later}[random.IntN(2)]})
			case 21:
				entry := strconv.Itoa(1 + random.IntN(40))
				if token != "" {
					if got = through.entry(api, token, entry); random.IntN(3) == 0 {
						got = through.leave(api, token, entry)
					}
				}
			case 7, 8:
				got = through.cancel(api, token, id, reason)
			case 9, 10:
				got = through.step(api, token, "confirm", id)
			case 11:
				got = through.step(api, token, "release", id)
			case 12:
				lapse(id)
			default:
				if token != "" { // over REST nobody is told to sign in, over GraphQL there is nothing
					got = through.show(api, token, id)
				}
			}
			note(got)
			if _, known := patientOf[got.Appointment]; made && !known && got.Code == "" {
				patientOf[got.Appointment] = n
			}
		}
		answers[i] = append(answers[i], through.list(api, c.doctor, day))
		for _, sql := range []string{
			`SELECT concat_ws(' ', id, slot_id, patient_id, status, idempotency_key, booked_by, cancelled_by, cancel_reason,
			    replaces, replaced_by, root_id, referral_id, overlap_reason, expires_at IS NULL) FROM appointment ORDER BY id`,
			`SELECT concat_ws(' ', id, root_id, type) FROM outbox_event ORDER BY id`,
			`SELECT concat_ws(' ', id, patient_id, first_day, last_day, status, appointment_id, joined_by) FROM waiting_entry ORDER BY id`,
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
	for _, code := range []string{"", "SLOT_FULL", "SLOT_CLOSED", "SLOT_NOT_OPEN", "NOT_FOUND", "UNAUTHENTICATED", "INVALID", "IDEMPOTENCY_KEY_REUSED",
		"FORBIDDEN", "ALREADY_BOOKED", "OVERLAP", "REFERRAL_IN_USE", "TOO_EARLY", "TOO_LATE", "LIMIT_REACHED", "HOLD_EXPIRED", "INVALID_STATE"} {
		if outcomes[code] == 0 {
			t.Errorf("nothing came to %q: the calls are not random enough", code)
		}
	}
}

// Callers of both transports race for a slot on two instances, some to hold it: as many win as there are places.
func TestMixedRace(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	through := []transport{overGraphQL{}, overREST{}}
	for round, slot := range c.slots(10, 3) {
		var mu sync.Mutex
		won, refused := 0, 0
		together(16, func(i int) {
			got := through[i%2].claim(c.instances[(i/2)%2], c.token("patient", fmt.Sprint(round, "-", i)), place{slot: slot, key: "k", hold: i%3 == 0})
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

// One key at once over both transports books or holds once, and everybody gets the same appointment; then a
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
			answers[i] = through[i%2].claim(c.instances[(i/2)%2], token, place{slot: slot, key: "k", hold: round%2 == 0})
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
			if a := by.claim(c.instances[0], token, place{slot: slot, key: "k", hold: round%2 == 0}); !a.Replayed || a.Appointment != answers[0].Appointment {
				t.Errorf("a retry: %+v", a)
			}
			if a := by.claim(c.instances[1], token, place{slot: slots[10], key: "k", hold: round%2 == 0}); a.Code != "IDEMPOTENCY_KEY_REUSED" {
				t.Errorf("another request: %+v", a)
			}
		}
	}
	c.check()
}
