package e2e

import (
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"
)

// together runs n calls at once.
func together(n int, call func(i int)) {
	var done sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		done.Go(func() {
			<-start
			call(i)
		})
	}
	close(start)
	done.Wait()
}

// Twenty patients who have never been here press "book" at once, on two instances.
func TestTwentyAfterOnePlace(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	slots := c.slots(3, 1)
	slot := slots[0]
	answers := make([]booking, 20)
	together(20, func(i int) {
		answers[i] = book(c.instances[i%2], c.token("patient", fmt.Sprint("p", i)), slot, "k")
	})
	won := 0
	for _, a := range answers {
		switch a.code() {
		case "":
			won++
		case "SLOT_FULL":
			var data struct {
				BookAppointment struct{ Alternatives []struct{ ID string } }
			}
			if err := json.Unmarshal(a.Data, &data); err != nil || a.status != 200 {
				t.Errorf("status %d, %v", a.status, err)
			}
			if got := data.BookAppointment.Alternatives; len(got) == 0 || got[0].ID != strconv.FormatInt(slots[1], 10) {
				t.Errorf("alternatives %v, want slot %d first", got, slots[1])
			}
		default:
			t.Errorf("answer %s", a.body)
		}
	}
	if n := scan[int](c, `SELECT booked_count FROM time_slot WHERE id = $1`, slot); won != 1 || n != 1 {
		t.Errorf("%d won, booked_count = %d; want 1 and 1", won, n)
	}
	if n := scan[int](c, `SELECT count(*) FROM patient`); n != 20 {
		t.Errorf("%d patients, want 20", n)
	}
	c.check()
}

// B12, B13, B17, B21, B48: the counts that a front end shows, through all that changes them.
func TestCounts(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 1)
	api, slot := c.instances[0], c.slots(2, 4)[0]
	staff := c.token("staff", "desk")
	free := func() int {
		t.Helper()
		day := scan[string](c, `SELECT (start_at AT TIME ZONE 'Europe/Berlin')::date::text FROM time_slot WHERE id = $1`, slot)
		a := ask(api, "", `query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on, includeFull: true) { timeZone slots { id free } } }`,
			map[string]any{"d": strconv.FormatInt(c.doctor, 10), "on": day})
		var data struct {
			Slots struct {
				TimeZone string
				Slots    []struct {
					ID   string
					Free int
				}
			}
		}
		if err := json.Unmarshal(a.Data, &data); err != nil || data.Slots.TimeZone != "Europe/Berlin" {
			t.Fatalf("%s: %v", a.body, err)
		}
		for _, s := range data.Slots.Slots {
			if s.ID == strconv.FormatInt(slot, 10) {
				return s.Free
			}
		}
		t.Fatalf("slot %d is not listed: %s", slot, a.body)
		return 0
	}
	eventually := func(want int) {
		t.Helper()
		deadline := time.Now().Add(patience)
		for got := free(); got != want; got = free() {
			if time.Now().After(deadline) {
				t.Fatalf("free = %d, want %d", got, want)
			}
		}
	}
	var ids []string
	for i := range 4 {
		b := book(api, c.token("patient", fmt.Sprint(i)), slot, "k")
		if b.code() != "" {
			t.Fatalf("%s", b.body)
		}
		ids = append(ids, b.id)
		eventually(3 - i)
	}
	for subject, want := range map[string]string{"4": "SLOT_FULL", "0": "ALREADY_BOOKED"} {
		if b := book(api, c.token("patient", subject), slot, "k2"); b.code() != want {
			t.Errorf("%s, want %s", b.body, want)
		}
	}
	if a := cancel(api, staff, ids[2]); a.code() != "" {
		t.Fatalf("%s", a.body)
	}
	eventually(1)
	if b := book(api, c.token("patient", "4"), slot, "k3"); b.code() != "" { // at once
		t.Fatalf("%s", b.body)
	}
	update := func(capacity int) answer {
		return ask(api, staff, `mutation ($s: ID!, $c: Int!) { updateSlot(input: {slotId: $s, capacity: $c}) { slot { free } errors { code } } }`,
			map[string]any{"s": strconv.FormatInt(slot, 10), "c": capacity})
	}
	if a := update(5); a.code() != "" {
		t.Fatalf("%s", a.body)
	}
	eventually(1)
	if b := book(api, c.token("patient", "5"), slot, "k"); b.code() != "" {
		t.Fatalf("%s", b.body)
	}
	if a := update(4); a.code() != "CAPACITY_IN_USE" {
		t.Errorf("%s", a.body)
	}
	c.check()
}
