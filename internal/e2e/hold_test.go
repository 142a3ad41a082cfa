package e2e

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"openslot/internal/app"
)

// hold holds a place and gives the hold's id.
func (c *clinic) hold(base, subject string, slot int64) string {
	c.t.Helper()
	a := ask(base, c.token("patient", subject), `mutation ($s: ID!) { holdSlot(input: {slotId: $s, idempotencyKey: "h"}) {
		appointment { id status } errors { code } } }`, map[string]any{"s": strconv.FormatInt(slot, 10)})
	var data struct {
		HoldSlot struct{ Appointment struct{ ID, Status string } }
	}
	if err := json.Unmarshal(a.Data, &data); err != nil || data.HoldSlot.Appointment.Status != "HELD" {
		c.t.Fatalf("%s: %v", a.body, err)
	}
	return data.HoldSlot.Appointment.ID
}

// B36, B41: a hold lapses in front of two screens on two instances, and no worker runs: the screens
// show the place at once, and it can be booked.
func TestHoldLapsesOnScreens(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	slot := c.slots(1, 1)[0]
	screens := []*screen{c.watch(c.instances[0]), c.watch(c.instances[1])}
	id := c.hold(c.instances[0], "1", slot)
	for _, s := range screens {
		s.shows(t, slot, "the hold", func(s state) bool { return s.Free == 0 })
	}
	if b := book(c.instances[1], c.token("patient", "2"), slot, "k"); b.code() != "SLOT_FULL" { // and is known to be full
		t.Errorf("%s", b.body)
	}
	lapses := scan[time.Time](c, `UPDATE appointment SET expires_at = clock_timestamp() + interval '200 ms' WHERE id = $1 RETURNING expires_at`, id)
	for _, s := range screens {
		s.shows(t, slot, "the lapse", func(s state) bool { return s.Free == 1 })
	}
	t.Logf("shown %s after the lapse", time.Since(lapses))
	confirm := func() string {
		return ask(c.instances[0], c.token("patient", "1"), `mutation ($a: ID!) { confirmAppointment(input: {appointmentId: $a}) { errors { code } } }`,
			map[string]any{"a": id}).code()
	}
	if code := confirm(); code != "HOLD_EXPIRED" {
		t.Errorf("confirmed after the lapse: %q", code)
	}
	if b := book(c.instances[1], c.token("patient", "2"), slot, "k"); b.code() != "" {
		t.Errorf("%s", b.body)
	}
	for _, s := range screens {
		s.shows(t, slot, "the booking", func(s state) bool { return s.Free == 0 })
	}
	if code := confirm(); code != "HOLD_EXPIRED" {
		t.Errorf("confirmed after somebody else booked: %q", code)
	}
	c.check()
}

// Nobody looks on: lists show the place all the same, and who books it gets it; two workers write
// down what nobody needed until now, once.
func TestHoldsLapseUnwatched(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 1)
	slots := c.slots(20, 1)
	for _, slot := range slots {
		c.hold(c.instances[0], strconv.FormatInt(slot, 10), slot)
	}
	c.exec(`UPDATE appointment SET expires_at = clock_timestamp() - interval '1 second'`)
	if b := book(c.instances[0], c.token("patient", "next"), slots[0], "k"); b.code() != "" {
		t.Errorf("%s", b.body)
	}
	listed := scan[string](c, `SELECT (start_at AT TIME ZONE 'Europe/Berlin')::date::text FROM time_slot WHERE id = $1`, slots[5])
	a := ask(c.instances[0], "", `query ($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { slots { id } } }`,
		map[string]any{"d": strconv.FormatInt(c.doctor, 10), "on": listed})
	var day struct {
		Slots struct{ Slots []struct{ ID string } }
	}
	if err := json.Unmarshal(a.Data, &day); err != nil || len(day.Slots.Slots) == 0 {
		t.Errorf("%s: %v", a.body, err)
	}
	if n := scan[int](c, `SELECT count(*) FROM appointment WHERE status = 'HELD'`); n != len(slots)-1 {
		t.Errorf("%d holds are still to be tidied, want %d", n, len(slots)-1)
	}

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	for range 2 {
		go func() { ended <- app.Work(ctx, c.config.Database, slog.New(slog.NewJSONHandler(io.Discard, nil))) }()
	}
	deadline := time.Now().Add(patience)
	for scan[int](c, `SELECT count(*) FROM appointment WHERE status = 'HELD'`) > 0 {
		if time.Now().After(deadline) {
			t.Fatal("the workers do nothing")
		}
	}
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	c.check()
}
