package main

import (
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"time"
)

// The data: doctors with 14 days of 40 slots of a quarter of an hour, from tomorrow on. Ids have no
// gaps, so that everybody can reckon which slot is whose and when it begins.
const (
	daysAhead   = 14
	slotsPerDay = 40
	slotsEach   = daysAhead * slotsPerDay // of a doctor
	capacity    = 10

	oldEach = 3 // appointments of everybody who booked before

	issuer   = "loadgen"
	timeZone = "Europe/Berlin"
)

// size is how much there is.
type size struct {
	doctors  int           // 2,000 have 1.12 million slots
	large    int           // doctors of the scenario in which the data have grown
	watched  int           // doctors whom screens watch
	patients int           // who have rows: p0, p1, …, with the ids 1, 2, …
	small    bool          // for tests: with less memory
	rest     time.Duration // until memory is measured
}

// old is how many appointments there are from the start: a calendar is never empty, and the planner
// believes what it has seen.
func old(doctors int) int { return oldEach * min(50*doctors, 100_000) }

// oldStep is the distance between the slots of old appointments.
func oldStep(doctors int) int { return doctors * slotsEach / old(doctors) }

// slotID is the slot of a doctor (from 0) at a time (0 to slotsEach-1).
func slotID(doctor, at int) int64 { return int64(doctor)*slotsEach + int64(at) + 1 }

const (
	organizationsSQL = `INSERT INTO organization (name, time_zone)
		SELECT 'Practice ' || n, $2 FROM generate_series(1, ($1::int + 9) / 10) AS n`

	doctorsSQL = `INSERT INTO doctor (id, organization_id, name, specialty)
		SELECT n + 1, n / 10 + 1, 'Dr. Example ' || n, 'General practice' FROM generate_series(0, $1::int - 1) AS n`

	// One statement for the doctors $1 to $2-1 (from 0).
	slotsSQL = `INSERT INTO time_slot (id, doctor_id, start_at, end_at, capacity, opens_at, booked_count)
		SELECT id, d + 1, at, at + interval '15 min', $4, now() - interval '1 day', (id % $7 = 0 AND id / $7 <= $8)::int
		  FROM generate_series($1::int, $2::int - 1) AS d, generate_series(0, $3::int - 1) AS n,
		       LATERAL (SELECT d::bigint * $3 + n + 1 AS id) AS i,
		       LATERAL (SELECT ((now() AT TIME ZONE $6)::date + 1 + n / $5::int + time '08:00'
		                        + n % $5::int * interval '15 min') AT TIME ZONE $6 AS at) AS l`

	patientsSQL = `INSERT INTO patient (id, issuer, subject)
		SELECT n + 1, $2, 'p' || n FROM generate_series(0, $1::int - 1) AS n`

	oldPatientsSQL = `INSERT INTO patient (id, issuer, subject)
		SELECT $1::int + n, $3, 'o' || n FROM generate_series(1, $2::int) AS n`

	// Appointment n has slot n * $2 and is one of $4 in a row of the same patient.
	oldAppointmentsSQL = `INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, during)
		SELECT n, n, s.id, $3::int + 1 + (n - 1) / $4::int, d.organization_id, 'BOOKED', 'o' || n, 'patient:o' || (n - 1) / $4::int,
		       sha256(n::text::bytea), tstzrange(s.start_at, s.end_at)
		  FROM generate_series(1, $1::int) AS n JOIN time_slot s ON s.id = n::bigint * $2 JOIN doctor d ON d.id = s.doctor_id
		 ORDER BY n`

	oldEventsSQL = `INSERT INTO outbox_event (root_id, type, payload)
		SELECT id, 'BOOKED', jsonb_build_object('appointmentId', id, 'slotId', slot_id, 'patientId', patient_id) FROM appointment ORDER BY id`

	sequencesSQL = `SELECT setval('doctor_id_seq', $1), setval('time_slot_id_seq', $1::bigint * $2), setval('patient_id_seq', $3),
		setval('appointment_id_seq', $4)`
)

// data makes a template database with so many doctors, on first use, and returns its name.
func (g *ground) data(ctx context.Context, doctors int) (template string, err error) {
	template = "data_" + strconv.Itoa(doctors)
	var exists bool
	s := g.session(ctx, "postgres")
	defer s.close()
	s.read(`SELECT EXISTS (SELECT FROM pg_database WHERE datname = '`+template+`')`, &exists)
	if s.err != nil || exists {
		return template, s.err
	}
	if err := g.server.CreateDatabase(ctx, template+"_draft"); err != nil {
		return "", err
	}
	migrate := exec.CommandContext(ctx, g.openslot, "migrate", "up")
	migrate.Env = []string{"DATABASE_URL=" + g.server.URL(template+"_draft")}
	if err := run(migrate); err != nil {
		return "", err
	}
	if err := g.fill(ctx, template+"_draft", doctors); err != nil {
		return "", fmt.Errorf("data of %d doctors: %w", doctors, err)
	}
	s.exec("ALTER DATABASE " + template + "_draft RENAME TO " + template)
	return template, s.err
}

func (g *ground) fill(ctx context.Context, database string, doctors int) error {
	const atOnce = 500 // doctors
	g.progress.phase("making %d slots", doctors*slotsEach)
	s := g.session(ctx, database)
	defer s.close()
	// Nothing here breaks a rule, and nobody wants to hear of it: no triggers, no look-ups of keys.
	s.exec(`SET session_replication_role = replica`)
	s.exec(organizationsSQL, doctors, timeZone)
	s.exec(doctorsSQL, doctors)
	for from := 0; from < doctors; from += atOnce {
		s.exec(slotsSQL, from, min(from+atOnce, doctors), slotsEach, capacity, slotsPerDay, timeZone, oldStep(doctors), old(doctors))
	}
	g.progress.phase("making patients and appointments")
	s.exec(patientsSQL, g.size.patients, issuer)
	s.exec(oldPatientsSQL, g.size.patients, old(doctors)/oldEach, issuer)
	s.exec(oldAppointmentsSQL, old(doctors), oldStep(doctors), g.size.patients, oldEach)
	s.exec(oldEventsSQL)
	s.exec(sequencesSQL, doctors, slotsEach, g.size.patients+old(doctors)/oldEach, old(doctors))
	s.exec(floorSQL)
	if g.prewarm {
		s.exec(`CREATE EXTENSION pg_prewarm`)
	}
	s.exec(`VACUUM (FREEZE, ANALYZE)`)
	return s.err
}

// day is the first that has slots, tomorrow when the data were made, as YYYY-MM-DD.
func (db *database) day(ctx context.Context) (day string, err error) {
	s := db.session(ctx, db.name)
	defer s.close()
	s.read(`SELECT (start_at AT TIME ZONE '`+timeZone+`')::date::text FROM time_slot WHERE id = 1`, &day)
	return day, s.err
}
