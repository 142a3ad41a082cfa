package booking

import (
	"context"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/devenv"
)

// practice is a database with one organization and one doctor, and a clock that stands at now.
type practice struct {
	t            testing.TB
	pool         *pgxpool.Pool
	service      *Service
	organization OrganizationID
	doctor       DoctorID
}

// now is a Monday, 09:00 in Berlin.
var now = time.Date(2026, 10, 5, 7, 0, 0, 0, time.UTC)

func newPractice(t testing.TB) *practice {
	t.Helper()
	p := &practice{t: t, pool: devenv.NewDB(t).Pool}
	p.service = p.at(now)
	p.organization, p.doctor = p.newDoctor("Practice")
	return p
}

// at is the practice's service at another time.
func (p *practice) at(now time.Time) *Service { return New(p.pool, patient(now)) }

// patient is a configuration for a machine that is busy with other tests: it never gives up
// where production would refuse.
func patient(now time.Time) Config {
	return Config{Now: func() time.Time { return now }, AcquireWait: time.Minute, Persist: time.Minute}
}

func (p *practice) newDoctor(name string) (OrganizationID, DoctorID) {
	p.t.Helper()
	organization := one[OrganizationID](p,
		`INSERT INTO organization (name, time_zone) VALUES ($1, 'Europe/Berlin') RETURNING id`, name)
	return organization, one[DoctorID](p,
		`INSERT INTO doctor (organization_id, name) VALUES ($1, $2) RETURNING id`, organization, "Dr. "+name)
}

// slot makes an open slot of half an hour, that long after now.
func (p *practice) slot(after time.Duration, capacity int) SlotID {
	p.t.Helper()
	return one[SlotID](p, `
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', $3, $2::timestamptz - interval '14 days')
		RETURNING id`, p.doctor, now.Add(after), capacity)
}

// slots makes n open slots, one every half hour from tomorrow on, their capacities in turn.
func (p *practice) slots(n int, capacities ...int) []SlotID {
	p.t.Helper()
	return all[SlotID](p, `
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT $1, at, at + interval '30 min', ($4::int[])[1 + n % cardinality($4::int[])], $3::timestamptz - interval '1 day'
		  FROM generate_series(0, $2 - 1) AS n, LATERAL (SELECT $3::timestamptz + interval '1 day' + n * interval '30 min') AS a (at)
		RETURNING id`, p.doctor, n, now, capacities)
}

// patients makes n patients and gives them as actors.
func (p *practice) patients(n int) []Actor {
	p.t.Helper()
	ids := all[PatientID](p, `
		INSERT INTO patient (issuer, subject)
		SELECT 'https://id.example', gen_random_uuid()::text FROM generate_series(1, $1) RETURNING id`, n)
	actors := make([]Actor, n)
	for i, id := range ids {
		actors[i] = Actor{Kind: Patient, Subject: strconv.Itoa(int(id)), PatientID: id}
	}
	return actors
}

func (p *practice) patient() Actor { return p.patients(1)[0] }

func (p *practice) staff() Actor {
	return Actor{Kind: Staff, Subject: "desk", Organization: p.organization}
}

// registered makes a patient that the actor has registered.
func (p *practice) registered(by Actor, subject string) PatientID {
	p.t.Helper()
	return one[PatientID](p, `INSERT INTO patient (issuer, subject) VALUES ($1, $2) RETURNING id`, by.Registrar(), subject)
}

func (p *practice) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.pool.Exec(context.Background(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

// booked is the slot's count, after checking that it agrees with the appointments.
func (p *practice) booked(slot SlotID) int {
	p.t.Helper()
	p.check()
	return one[int](p, `SELECT booked_count FROM time_slot WHERE id = $1`, slot)
}

// check holds what is true of every database at rest: counts agree with the appointments and
// stay within capacity, and every change of state has its one event.
func (p *practice) check() {
	p.t.Helper()
	for rule, sql := range map[string]string{
		"booked_count = occupying appointments": `
			SELECT count(*) FROM time_slot s LEFT JOIN (
			    SELECT slot_id, count(*) AS occupying FROM appointment
			     WHERE status NOT IN ('CANCELLED', 'EXPIRED') OR returns_at IS NOT NULL GROUP BY slot_id) a ON a.slot_id = s.id
			 WHERE s.booked_count <> coalesce(a.occupying, 0)`,
		"0 <= booked_count <= capacity": `SELECT count(*) FROM time_slot WHERE booked_count NOT BETWEEN 0 AND capacity`,
		"one event per change of state, in order, none without": `
			SELECT count(*) FROM (
			    SELECT root_id, (array_agg(status ORDER BY id DESC))[1] AS status, count(replaces) AS moves
			      FROM appointment GROUP BY root_id) a FULL JOIN (
			    SELECT root_id, string_agg(type, ' ' ORDER BY id) AS told, count(*) FILTER (WHERE type = 'RESCHEDULED') AS moves
			      FROM outbox_event GROUP BY root_id) e ON e.root_id = a.root_id
			 WHERE (a.moves = e.moves AND e.told ~ CASE a.status
			            WHEN 'HELD' THEN '^(HELD|OFFERED)$' WHEN 'EXPIRED' THEN '^(HELD|OFFERED) EXPIRED$'
			            WHEN 'CANCELLED' THEN '^(((HELD|OFFERED) )?BOOKED.* CANCELLED|(HELD|OFFERED) RELEASED)$'
			            WHEN 'BOOKED' THEN '^((HELD|OFFERED) )?BOOKED(.* (RESCHEDULED|UNMARKED))?$'
			            ELSE '^((HELD|OFFERED) )?BOOKED.* ' || a.status || '$' END
			        AND e.told !~ '(BOOKED|ARRIVED|FULFILLED|NO_SHOW|UNMARKED) \1|CANCELLED .|EXPIRED .|RELEASED .|(ARRIVED|FULFILLED|NO_SHOW) (RESCHEDULED|CANCELLED)') IS NOT TRUE`,
		"moves are told from both ends": `
			SELECT count(*) FROM appointment a FULL JOIN appointment b ON b.id = a.replaced_by
			 WHERE a.replaced_by IS NOT NULL AND (a.status = 'CANCELLED' AND b.replaces = a.id AND b.root_id = a.root_id) IS NOT TRUE
			    OR b.replaces IS NOT NULL AND a.id IS NULL`,
		"of a chain of moves only the last is active": `
			SELECT count(*) FROM (SELECT FROM appointment GROUP BY root_id
			 HAVING min(id) FILTER (WHERE status IN ('HELD', 'BOOKED', 'ARRIVED')) < max(id)) AS early`,
		"no active appointment overlaps an earlier one of the patient that stood, unless it is allowed": `
			SELECT count(*) FROM appointment a JOIN appointment b
			    ON b.patient_id = a.patient_id AND b.id > a.id AND b.during && a.during
			 WHERE a.status IN ('HELD', 'BOOKED', 'ARRIVED') AND b.status IN ('HELD', 'BOOKED', 'ARRIVED')
			   AND NOT b.overlap_allowed
			   AND NOT (a.overlap_allowed AND a.status = 'HELD' AND a.expires_at <= b.created_at)`,
		"a referral has one active appointment": `
			SELECT count(*) FROM (SELECT FROM appointment
			 WHERE status IN ('HELD', 'BOOKED', 'ARRIVED') AND referral_id IS NOT NULL
			 GROUP BY organization_id, referral_id HAVING count(*) > 1) AS twice`,
		"an entry is offered what is held for its patient, booked or offered once": `
			SELECT count(*) FROM waiting_entry w JOIN appointment a ON a.id = w.appointment_id
			 WHERE w.status = 'OFFERED' AND a.status <> 'HELD' OR w.status = 'BOOKED' AND a.status IN ('HELD', 'EXPIRED')
			    OR a.patient_id <> w.patient_id OR NOT w.during @> lower(a.during)`,
		"only what is cancelled is withheld": `
			SELECT count(*) FROM appointment WHERE returns_at IS NOT NULL AND (status <> 'CANCELLED' OR returns_at >= lower(during))`,
		"a FLEXIBLE slot stands with its appointment": `
			SELECT count(*) FROM time_slot WHERE kind = 'FLEXIBLE' AND (status = 'WITHDRAWN') <> (booked_count = 0)`,
		"no FLEXIBLE slot overlaps another slot of its doctor": `
			SELECT count(*) FROM time_slot f JOIN time_slot o ON o.doctor_id = f.doctor_id AND o.id <> f.id
			    AND tstzrange(o.start_at, o.end_at) && tstzrange(f.start_at, f.end_at)
			 WHERE f.kind = 'FLEXIBLE' AND f.status <> 'WITHDRAWN' AND o.status <> 'WITHDRAWN'`,
	} {
		if broken := one[int](p, sql); broken != 0 {
			p.t.Errorf("%s: broken %d times", rule, broken)
		}
	}
}

func one[T any](p *practice, sql string, args ...any) T {
	p.t.Helper()
	var v T
	if err := p.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		p.t.Fatal(err)
	}
	return v
}

func all[T any](p *practice, sql string, args ...any) []T {
	p.t.Helper()
	rows, err := p.pool.Query(context.Background(), sql, args...)
	if err != nil {
		p.t.Fatal(err)
	}
	defer rows.Close()
	var vs []T
	for rows.Next() {
		var v T
		if err := rows.Scan(&v); err != nil {
			p.t.Fatal(err)
		}
		vs = append(vs, v)
	}
	if err := rows.Err(); err != nil {
		p.t.Fatal(err)
	}
	return vs
}

// code is the refusal's code; "" = no error; INTERNAL for an error without a code.
func code(err error) Code {
	var refused *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused):
		return refused.Code
	default:
		return Internal
	}
}

func wantCode(t testing.TB, err error, want Code) {
	t.Helper()
	if got := code(err); got != want {
		t.Fatalf("got code %q (%v), want %q", got, err, want)
	}
}

// book books with a key made of the patient and the slot.
func (p *practice) book(actor Actor, slot SlotID, key string) Booking {
	p.t.Helper()
	b, err := p.service.Book(context.Background(), actor, BookRequest{Slot: slot, Key: key})
	if err != nil {
		p.t.Fatal(err)
	}
	return b
}

// rounds is how many rounds a campaign runs: all of them in a long run, else a tenth.
func rounds(n int) int {
	if os.Getenv("OPENSLOT_LONG") != "" {
		return n
	}
	return n / 10
}
