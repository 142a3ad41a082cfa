package live

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"openslot/internal/booking"
)

func sqlState(err error) string {
	if pg := new(pgconn.PgError); errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

const goodLine = "s 7 12 3 1000000 1600000500 10 4 CLOSED -5"

var goodSlot = booking.Slot{
	DoctorID: 7, ID: 12, Version: 3, Capacity: 10, Booked: 4, Status: booking.SlotClosed,
	StartAt: time.Unix(1, 0).UTC(), EndAt: time.Unix(1600, 500_000).UTC(), OpensAt: time.UnixMicro(-5).UTC(),
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		payload string
		want    message // but err
		fails   bool
	}{
		"a slot":                {goodLine, message{changed: []booking.Slot{goodSlot}}, false},
		"a doctor":              {"d 9223372036854775807", message{stale: []booking.DoctorID{math.MaxInt64}}, false},
		"several":               {"d 1\n" + goodLine + "\nd 2", message{changed: []booking.Slot{goodSlot}, stale: []booking.DoctorID{1, 2}}, false},
		"nothing":               {"", message{lost: true}, true},
		"no fields":             {"s", message{lost: true}, true},
		"unknown kind":          {"x 7", message{lost: true}, true},
		"doctor 0":              {"d 0", message{lost: true}, true},
		"doctor too large":      {"d 9223372036854775808", message{lost: true}, true},
		"an end of line":        {"d 7\n", message{stale: []booking.DoctorID{7}, lost: true}, true},
		"too few fields":        {"s 7 12 3 1000000", message{stale: []booking.DoctorID{7}}, true},
		"the last is missing":   {"s 7 12 3 1 2 10 4 OPEN", message{stale: []booking.DoctorID{7}}, true},
		"too many fields":       {goodLine + " 1", message{stale: []booking.DoctorID{7}}, true},
		"a space at the end":    {goodLine + " ", message{stale: []booking.DoctorID{7}}, true},
		"doctor with more":      {"d 7 8", message{stale: []booking.DoctorID{7}}, true},
		"no number":             {"s 7 12 3 1e6 2 10 4 OPEN 0", message{stale: []booking.DoctorID{7}}, true},
		"unknown status":        {"s 7 12 3 1 2 10 4 Open 0", message{stale: []booking.DoctorID{7}}, true},
		"more booked than fit":  {"s 7 12 3 1 2 10 11 OPEN 0", message{stale: []booking.DoctorID{7}}, true},
		"ends before it began":  {"s 7 12 3 2 1 10 4 OPEN 0", message{stale: []booking.DoctorID{7}}, true},
		"the rest still counts": {"nonsense\n" + goodLine, message{changed: []booking.Slot{goodSlot}, lost: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got := parse(tt.payload)
			if (got.err != nil) != tt.fails {
				t.Errorf("error %v", got.err)
			}
			got.err = nil
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(message{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// format writes a slot as the trigger does.
func format(s booking.Slot) string {
	return fmt.Sprintf("s %d %d %d %d %d %d %d %s %d", s.DoctorID, s.ID, s.Version,
		s.StartAt.UnixMicro(), s.EndAt.UnixMicro(), s.Capacity, s.Booked, s.Status, s.OpensAt.UnixMicro())
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "s", "d 7", goodLine, "d 7\n" + goodLine + "\nd 8", "s 7 12 3 1 2 10 4 OPEN\n", "s 7  12", "s -7 12 3 1 2 10 4 OPEN 0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, payload string) {
		m := parse(payload)
		lines := strings.Count(payload, "\n") + 1
		if len(m.changed)+len(m.stale) < lines && !m.lost {
			t.Fatalf("of %d lines nothing remains but %+v", lines, m)
		}
		if m.lost && m.err == nil {
			t.Fatal("lost without a reason")
		}
		for _, s := range m.changed { // what was understood says the same when it is written again
			if again := parse(format(s)); again.err != nil || len(again.changed) != 1 || again.changed[0] != s {
				t.Fatalf("%+v became %+v", s, again)
			}
		}
		for _, doctor := range m.stale {
			if doctor <= 0 {
				t.Fatalf("doctor %d", doctor)
			}
		}
	})
}

// The widest values that the columns hold stay below NOTIFY's limit, and every slot is told once.
func TestPayloadSize(t *testing.T) {
	t.Parallel()
	c := newClinic(t)
	conn, err := pgx.Connect(t.Context(), c.db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), `LISTEN slot_change`); err != nil {
		t.Fatal(err)
	}
	c.exec(`INSERT INTO doctor (id, organization_id, name)
		SELECT 9223372036854770000 + n, organization_id, 'x' FROM doctor, generate_series(1, 1500) AS n`)
	// told executes a change and collects what is announced: the slots, and the doctors to read again.
	told := func(t *testing.T, sql string) (slots, doctors int) {
		t.Helper()
		c.exec(sql)
		c.exec(`SELECT pg_notify('slot_change', 'end')`)
		seen := map[string]bool{}
		for {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			n, err := conn.WaitForNotification(ctx)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			if n.Payload == "end" {
				return slots, doctors
			}
			if len(n.Payload) >= 8000 || seen[n.Payload] {
				t.Errorf("%d bytes, again: %t", len(n.Payload), seen[n.Payload])
			}
			seen[n.Payload] = true
			m := parse(n.Payload)
			if m.err != nil {
				t.Fatal(m.err)
			}
			slots, doctors = slots+len(m.changed), doctors+len(m.stale)
		}
	}
	const insert = `
		INSERT INTO time_slot (id, doctor_id, start_at, end_at, capacity, booked_count, opens_at, status, version)
		SELECT 9223372036854770000 + n, 9223372036854770000 + n, at, at + interval '1 microsecond', 2147483647, 2147483647,
		       timestamptz '4713-01-01 00:00:00.000001Z BC', 'WITHDRAWN', 9223372036854775800
		  FROM generate_series(%d, %d) AS n, LATERAL (SELECT timestamptz '290000-12-31 23:59:00.123456Z' - n * interval '1 second') AS a (at)`
	for _, tt := range []struct {
		name, sql      string
		slots, doctors int
	}{
		{"1,000 slots inserted", fmt.Sprintf(insert, 1, 1000), 1000, 0},
		{"1,000 slots updated", `UPDATE time_slot SET capacity = capacity`, 1000, 0},
		{"1,000 slots deleted", `DELETE FROM time_slot`, 1000, 0},
		{"nothing", `DELETE FROM time_slot`, 0, 0},
		{"1,001 slots inserted", fmt.Sprintf(insert, 1, 1001), 0, 1001},
		{"1,500 slots updated", fmt.Sprintf(insert, 1002, 1500) + "; UPDATE time_slot SET capacity = capacity", 499, 1500},
	} {
		ok := t.Run(tt.name, func(t *testing.T) {
			slots, doctors := told(t, tt.sql)
			if slots != tt.slots || doctors != tt.doctors {
				t.Errorf("%d slots and %d doctors, want %d and %d", slots, doctors, tt.slots, tt.doctors)
			}
		})
		if !ok {
			return
		}
	}
	t.Run("without the budget it would fail", func(t *testing.T) {
		def := query[string](c, `SELECT pg_get_functiondef('slot_announce'::regproc)`)[0]
		c.exec(strings.Replace(def, ":= 7700", ":= 77000", 1))
		_, err := c.db.Pool.Exec(t.Context(), `DELETE FROM time_slot WHERE id IN (SELECT id FROM time_slot LIMIT 900)`)
		if sqlState(err) != "22023" {
			t.Errorf("%v: the test above proves nothing", err)
		}
	})
}
