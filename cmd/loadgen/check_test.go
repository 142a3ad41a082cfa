package main

import (
	"strings"
	"testing"
)

// TestViolations breaks each rule in a database that is clean otherwise: the check must find it, and
// nothing else.
func TestViolations(t *testing.T) {
	g := testGround(t)
	db, err := g.fresh(t.Context(), g.size.doctors)
	if err != nil {
		t.Fatal(err)
	}
	const three = `INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, during)
		SELECT n, n, n, n, 1, 'BOOKED', 'k' || n, 'somebody', '', tstzrange(start_at, end_at)
		  FROM generate_series(1, 3) AS n JOIN time_slot s ON s.id = n;
		INSERT INTO outbox_event (root_id, type, payload) SELECT n, 'BOOKED', '{}' FROM generate_series(1, 3) AS n;
		UPDATE time_slot SET booked_count = 1 WHERE id <= 3;
		UPDATE appointment SET status = 'CANCELLED' WHERE id = 3;
		UPDATE time_slot SET booked_count = 0 WHERE id = 3;
		INSERT INTO outbox_event (root_id, type, payload) VALUES (3, 'CANCELLED', '{}')`
	told := []win{{1, 1, "p0", "k1", false}, {2, 2, "p1", "k2", false}, {3, 3, "p2", "k3", true}}
	const everyOne = "" // breaks nothing

	tests := []struct {
		name, sql string
		told      []win
		unknown   bool
		want      int64
	}{
		{"Clean", everyOne, told, false, 0},
		{"CountTooHigh", `UPDATE time_slot SET booked_count = 2 WHERE id = 1`, told, false, 1},
		{"CountTooLow", `UPDATE time_slot SET booked_count = 0 WHERE id = 1`, told, false, 1},
		{"NoEvent", `DELETE FROM outbox_event WHERE root_id = 1`, told, false, 1},
		{"TwoEvents", `INSERT INTO outbox_event (root_id, type, payload) VALUES (1, 'BOOKED', '{}')`, told, false, 1},
		{"EventOfNothing", `INSERT INTO outbox_event (root_id, type, payload) VALUES (9, 'BOOKED', '{}')`, told, false, 1},
		{"CancelledUntold", `DELETE FROM outbox_event WHERE type = 'CANCELLED'`, told, false, 1},
		{"Lost", `DELETE FROM outbox_event WHERE root_id = 2; DELETE FROM appointment WHERE id = 2; UPDATE time_slot SET booked_count = 0 WHERE id = 2`, told, false, 1},
		{"OfAnother", `UPDATE appointment SET patient_id = 9 WHERE id = 2`, told, false, 1},
		{"CameBack", everyOne, []win{told[0], {2, 2, "p1", "k2", true}, told[2]}, false, 1},
		{"ToldTwice", everyOne, append([]win{{1, 1, "p0", "k1", false}}, told...), false, 1},
		{"NobodyKnows", everyOne, told[:2], false, 1},
		{"SomebodyMayKnow", everyOne, told[:2], true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// The rules that the database holds by itself would hide what the check is for.
			for _, sql := range []string{"TRUNCATE appointment, outbox_event, waiting_entry; UPDATE time_slot SET booked_count = 0 WHERE booked_count > 0", three, tt.sql} {
				for one := range strings.SplitSeq(sql, ";") {
					if one = strings.TrimSpace(one); one == "" {
						continue
					}
					if err := db.exec(t.Context(), one); err != nil {
						t.Fatal(err)
					}
				}
			}
			got, err := db.violations(t.Context(), tt.told, tt.unknown)
			if err != nil {
				t.Fatal(err)
			}
			if got != tt.want {
				t.Errorf("%d violations, want %d", got, tt.want)
			}
		})
	}
}

// TestBurstRules plays answers to the bookkeeping of the burst that no program may give.
func TestBurstRules(t *testing.T) {
	g := &ground{size: little.size, patients: &wallet{prefix: "p"}, newcomers: &wallet{prefix: "n"}, progress: newProgress(t.Output())}
	for _, w := range []*wallet{g.patients, g.newcomers} {
		if err := w.fill(100); err != nil {
			t.Fatal(err)
		}
	}
	fresh := func() *burst { return newBurst(&database{ground: g, doctors: 1}, "") }
	answer := booked{appointment: 5, status: "BOOKED"}
	replay := booked{appointment: 5, status: "BOOKED", replayed: true}
	tests := []struct {
		name    string
		answers []booked // to call 1
		retried bool
		want    bool // all are right
	}{
		{"Won", []booked{answer}, false, true},
		{"AskedAgain", []booked{answer, replay}, true, true},
		{"AskedAgainFirst", []booked{replay, answer}, true, true},
		{"NewTwice", []booked{answer, answer}, true, false},
		{"TwoAppointments", []booked{answer, {appointment: 6, status: "BOOKED", replayed: true}}, true, false},
		{"ReplayOfNothing", []booked{replay}, false, false},
		{"CancelledByNobody", []booked{answer, {appointment: 5, status: "CANCELLED", replayed: true}}, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := fresh()
			b.retried[1] = tt.retried
			right := true
			for _, a := range tt.answers {
				right = b.win(t.Context(), 1, a) == nil && right
			}
			if right != tt.want {
				t.Errorf("the answers %+v are right: %v, want %v", tt.answers, right, tt.want)
			}
		})
	}
	t.Run("PlaceLeft", func(t *testing.T) {
		b := fresh()
		if _, broken := b.result(); broken != 0 {
			t.Errorf("nobody called, and %d rules are broken", broken)
		}
		b.refused[0] = b.freed[0].Add(1)
		if _, broken := b.result(); broken != 1 {
			t.Errorf("somebody was refused a place that is still free, and %d rules are broken", broken)
		}
	})
}
