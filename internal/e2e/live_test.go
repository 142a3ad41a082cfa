package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// A screen on one instance sees whatever changes a slot, done on another or behind our back.
func TestScreenSeesEveryChange(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	here, there := c.instances[0], c.instances[1]
	slots := c.slots(4, 2)
	slot := slots[0]
	staff := c.token("staff", "desk")
	s := c.watch(here)
	s.shows(t, slot, "the snapshot", func(s state) bool { return s.Free == 2 && s.Status == "OPEN" })

	b := book(there, c.token("patient", "1"), slot, "k")
	s.shows(t, slot, "a booking through the API", func(s state) bool { return s.Free == 1 })
	c.exec(`UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1`, slot)
	s.shows(t, slot, "a booking made in psql", func(s state) bool { return s.Free == 0 })
	c.exec(`UPDATE time_slot SET booked_count = booked_count - 1 WHERE id = $1`, slot)
	if a := cancel(there, staff, b.id); a.code() != "" {
		t.Fatalf("%s", a.body)
	}
	s.shows(t, slot, "a cancel", func(s state) bool { return s.Free == 2 })
	id := map[string]any{"s": strconv.FormatInt(slot, 10)}
	ask(there, staff, `mutation ($s: ID!) { updateSlot(input: {slotId: $s, capacity: 7}) { errors { code } } }`, id)
	s.shows(t, slot, "more capacity", func(s state) bool { return s.Free == 7 })
	ask(there, staff, `mutation ($s: ID!) { updateSlot(input: {slotId: $s, status: CLOSED}) { errors { code } } }`, id)
	s.shows(t, slot, "the closed slot", func(s state) bool { return s.Status == "CLOSED" })
	c.exec(`DELETE FROM time_slot WHERE id = $1`, slots[3])
	s.shows(t, slots[3], "the deleted slot", func(s state) bool { return s.Status == "WITHDRAWN" })

	doctor := map[string]any{"d": strconv.FormatInt(c.doctor, 10), "from": time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly)}
	if a := ask(there, staff, `mutation ($d: ID!, $from: Date!) { createSchedule(input: {doctorId: $d, validFrom: $from, shifts: [
		{weekday: MONDAY, start: "06:10", end: "06:30", slotMinutes: 20}, {weekday: FRIDAY, start: "06:10", end: "06:30", slotMinutes: 20}]}) {
			errors { code } } }`, doctor); a.code() != "" {
		t.Fatalf("%s", a.body)
	}
	if a := ask(there, staff, `mutation ($d: ID!) { generateSlots(input: {doctorId: $d}) { added } }`, map[string]any{"d": doctor["d"]}); a.code() != "" {
		t.Fatalf("%s", a.body)
	}
	generated := scan[int64](c, `SELECT max(id) FROM time_slot`)
	s.shows(t, generated, "a generated slot", func(s state) bool { return s.Free == 1 })
}

// The feed's connections are killed in the middle of changes, the last time over the last of
// them: without being asked, every screen ends with what the database has.
func TestScreensAfterLostFeed(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	slots := c.slots(8, 50)
	var screens []*screen
	for i := range 6 {
		screens = append(screens, c.watch(c.instances[i%2]))
	}
	for round := range 5 {
		for i := range 40 {
			if i == 20 {
				c.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				         WHERE application_name = 'openslot-live' AND datname = current_database()`)
			}
			c.exec(`UPDATE time_slot SET booked_count = (booked_count + 1) % 50 WHERE id = $1`, slots[i%8])
		}
		screens = append(screens, c.watch(c.instances[round%2])) // late-comers
	}
	for n, s := range screens {
		for _, slot := range slots {
			want := state{
				Free:    scan[int](c, `SELECT capacity - booked_count FROM time_slot WHERE id = $1`, slot),
				Status:  "OPEN",
				Version: scan[int64](c, `SELECT version FROM time_slot WHERE id = $1`, slot),
			}
			s.shows(t, slot, fmt.Sprintf("the last state (screen %d)", n), func(got state) bool { return got == want })
		}
	}
}
