package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// rules are what must hold of a database at rest. Each query counts what breaks one.
var rules = []struct{ name, sql string }{
	{"booked_count is the number of occupying appointments", `
		SELECT count(*) FROM time_slot s LEFT JOIN (
		    SELECT slot_id, count(*) AS occupying FROM appointment
		     WHERE status NOT IN ('CANCELLED', 'EXPIRED') OR returns_at IS NOT NULL GROUP BY slot_id) a ON a.slot_id = s.id
		 WHERE s.booked_count <> coalesce(a.occupying, 0)`},
	{"no slot is overbooked", `SELECT count(*) FROM time_slot WHERE booked_count NOT BETWEEN 0 AND capacity`},
	{"one event says that an appointment was booked, one that it was cancelled, and no more", `
		SELECT count(*) FROM appointment a FULL JOIN (
		    SELECT root_id, count(*) FILTER (WHERE type = 'BOOKED') AS booked,
		           count(*) FILTER (WHERE type = 'CANCELLED') AS cancelled, count(*) AS events
		      FROM outbox_event GROUP BY root_id) e ON e.root_id = a.root_id
		 WHERE (e.booked, e.cancelled, e.events) IS DISTINCT FROM
		       (1::bigint, (a.status = 'CANCELLED')::int::bigint, 1 + (a.status = 'CANCELLED')::int::bigint)`},
	{"nobody has a slot twice", `
		SELECT count(*) FROM (SELECT FROM appointment WHERE status = 'BOOKED' GROUP BY slot_id, patient_id HAVING count(*) > 1) AS twice`},
}

// win is an appointment that a caller was told of.
type win struct {
	appointment int64
	slot        int64
	subject     string
	key         string
	cancelled   bool
}

// acknowledgedRules hold the appointments against what callers were told, in the table told.
var acknowledgedRules = []struct{ name, sql string }{
	{"every acknowledged appointment is there, for who was told, and as it was left", `
		SELECT count(*) FROM told t LEFT JOIN appointment a ON a.id = t.appointment LEFT JOIN patient p ON p.id = a.patient_id
		 WHERE (a.slot_id, p.subject, a.idempotency_key, a.status) IS DISTINCT FROM
		       (t.slot, t.subject, t.key, CASE WHEN t.cancelled THEN 'CANCELLED' ELSE 'BOOKED' END)`},
	{"no appointment was told to two", `SELECT count(*) - count(DISTINCT appointment) FROM told`},
	{"nobody has an appointment without having been told", `
		SELECT count(*) FROM appointment a WHERE a.idempotency_key NOT LIKE 'o%' AND NOT EXISTS (SELECT FROM told t WHERE t.appointment = a.id)`},
}

// violations counts what breaks the rules, and logs it. wins are all the bookings that callers were
// told of; unknown says that some got no answer, so that there may be more.
func (db *database) violations(ctx context.Context, wins []win, unknown bool) (int64, error) {
	s := db.session(ctx, db.name)
	defer s.close()
	var broken int64
	for _, rule := range rules {
		var n int64
		s.read(rule.sql, &n)
		broken += db.broke(rule.name, n)
	}
	if wins == nil || s.err != nil {
		return broken, s.err
	}
	s.exec(`CREATE TEMPORARY TABLE told (appointment bigint, slot bigint, subject text, key text, cancelled boolean)`)
	if s.err != nil {
		return broken, s.err
	}
	_, err := s.conn.CopyFrom(ctx, pgx.Identifier{"told"}, []string{"appointment", "slot", "subject", "key", "cancelled"},
		pgx.CopyFromSlice(len(wins), func(i int) ([]any, error) {
			w := wins[i]
			return []any{w.appointment, w.slot, w.subject, w.key, w.cancelled}, nil
		}))
	if err != nil {
		return broken, fmt.Errorf("acknowledged appointments: %w", err)
	}
	s.exec(`CREATE INDEX ON told (appointment)`)
	s.exec(`ANALYZE told`)
	for i, rule := range acknowledgedRules {
		if unknown && i == len(acknowledgedRules)-1 {
			continue
		}
		var n int64
		s.read(rule.sql, &n)
		broken += db.broke(rule.name, n)
	}
	return broken, s.err
}

func (g *ground) broke(rule string, times int64) int64 {
	if times != 0 {
		g.log("VIOLATION, %d times: %s", times, rule)
	}
	return times
}
