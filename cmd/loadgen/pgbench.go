package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"time"
)

// The floor of what books is pgbench: a booking is one transaction in the best shape it has by
// itself, one round trip and prepared: look-up of the key, conditional update, insert, event. The
// tables, constraints and data are ours; only the trigger that announces changes is off, because
// one transaction for each booking pays for it ten times what ours do.

// floorSQL is the transaction as a function.
const floorSQL = `CREATE FUNCTION floor_book(p_slot bigint, p_patient bigint, p_by text, p_key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    slot  time_slot;
    v_id  bigint;
    v_org bigint;
BEGIN
    PERFORM FROM appointment WHERE booked_by = p_by AND idempotency_key = p_key;
    IF FOUND THEN
        RETURN 'REPLAYED';
    END IF;
    UPDATE time_slot t SET booked_count = t.booked_count + 1
     WHERE t.id = p_slot AND t.booked_count < t.capacity AND t.status = 'OPEN' AND t.opens_at <= now() AND t.start_at > now()
    RETURNING * INTO slot;
    IF NOT FOUND THEN
        RETURN 'REFUSED';
    END IF;
    v_id := nextval('appointment_id_seq');
    v_org := (SELECT organization_id FROM doctor WHERE id = slot.doctor_id);
    INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, during)
    VALUES (v_id, v_id, p_slot, p_patient, v_org, 'BOOKED', p_key, p_by, sha256(p_key::bytea), tstzrange(slot.start_at, slot.end_at));
    INSERT INTO outbox_event (root_id, type, payload)
    VALUES (v_id, 'BOOKED', jsonb_build_object('appointmentId', v_id, 'slotId', p_slot, 'doctorId', slot.doctor_id,
        'organizationId', v_org, 'patientId', p_patient, 'startAt', slot.start_at, 'endAt', slot.end_at));
    RETURN 'BOOKED';
END $$`

// shape is the transaction for pgbench, which replaces the words that begin with a colon.
type shape struct{ name, sql string }

var (
	function = shape{"function", `SELECT floor_book(:slot, (:patient)::bigint + 1, 'patient p' || (:patient)::text, 'k' || (:k)::text);`}
	cte      = shape{"CTE", `WITH known AS (
    SELECT FROM appointment WHERE booked_by = 'patient p' || (:patient)::text AND idempotency_key = 'k' || (:k)::text
), won AS (
    UPDATE time_slot SET booked_count = booked_count + 1
     WHERE id = :slot AND booked_count < capacity AND status = 'OPEN' AND opens_at <= now() AND start_at > now()
       AND NOT EXISTS (SELECT FROM known)
    RETURNING id, doctor_id, start_at, end_at
), made AS (
    INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, during)
    SELECT n.id, n.id, won.id, (:patient)::bigint + 1, d.organization_id, 'BOOKED', 'k' || (:k)::text, 'patient p' || (:patient)::text,
           sha256(('k' || (:k)::text)::bytea), tstzrange(won.start_at, won.end_at)
      FROM won JOIN doctor d ON d.id = won.doctor_id, LATERAL nextval('appointment_id_seq') AS n (id)
    RETURNING id, slot_id, organization_id, patient_id
)
INSERT INTO outbox_event (root_id, type, payload)
SELECT made.id, 'BOOKED', jsonb_build_object('appointmentId', made.id, 'slotId', made.slot_id, 'doctorId', won.doctor_id,
       'organizationId', made.organization_id, 'patientId', made.patient_id, 'startAt', won.start_at, 'endAt', won.end_at)
  FROM made, won;`}
	bothShapes = []shape{function, cte}
)

// pgbench is one floor.
type pgbench struct {
	choose  string  // script that sets :slot; :k numbers the calls and :patient goes round with it
	shapes  []shape // to try
	clients []int   // to try
	rate    float64 // offered per second; 0 = as fast as it goes
	refused bool    // most calls are, so that not every call leaves an appointment

	best measurement // of those tried; nothing yet if its sql is empty
}

// numbers counts the calls of all clients without their knowing of each other.
const numbers = `\set k :n * :clients + :client_id
\set n :n + 1
\set patient :k % :patients
`

// run measures on a database that fresh makes. Before the first time it tries, each on a fresh
// database too, what suits pgbench best.
func (p *pgbench) run(ctx context.Context, fresh func(context.Context) (*database, error), t times) (figures, error) {
	var tries []measurement
	for _, clients := range p.clients {
		for _, s := range p.shapes {
			tries = append(tries, measurement{s, clients, t.warm, t.window / 2})
		}
	}
	if len(tries) == 1 {
		p.best = tries[0]
	}
	if p.best.sql == "" {
		best := 0.0
		for _, m := range tries {
			f, err := p.measure(ctx, fresh, m)
			if err != nil {
				return figures{}, err
			}
			if f.PerSecond > best {
				best, p.best = f.PerSecond, m
			}
		}
	}
	p.best.window = t.window
	return p.measure(ctx, fresh, p.best)
}

// name says what was found best.
func (p *pgbench) name() string { return p.best.String() }

type measurement struct {
	shape
	clients      int
	warm, window time.Duration
}

// String names it.
func (m measurement) String() string {
	return fmt.Sprintf("pgbench, %s, %d clients", m.name, m.clients)
}

func (p *pgbench) measure(ctx context.Context, fresh func(context.Context) (*database, error), m measurement) (figures, error) {
	db, err := fresh(ctx)
	if err != nil {
		return figures{}, err
	}
	if err := db.exec(ctx, `ALTER TABLE time_slot DISABLE TRIGGER slot_updated`); err != nil {
		return figures{}, err
	}
	r, err := p.bench(ctx, db, m)
	if err != nil {
		return figures{}, err
	}
	broken, err := db.violations(ctx, nil, false)
	if err == nil && broken > 0 {
		err = fmt.Errorf("pgbench left a database that breaks the rules, %d times", broken)
	}
	f := r.figures(plain)
	db.log("%s: %s", m, f)
	return f, err
}

// bench runs the program on a database and counts what fell into the window.
func (p *pgbench) bench(ctx context.Context, db *database, m measurement) (r result, err error) {
	script, logs := filepath.Join(db.folder, "floor.sql"), filepath.Join(db.folder, "pgbench")
	if err := os.WriteFile(script, []byte(numbers+p.choose+m.sql+"\n"), 0o600); err != nil {
		return r, err
	}
	defer func() {
		for _, old := range files(logs) {
			os.Remove(old)
		}
	}()
	const start = 300 * time.Millisecond // until all are connected
	begin := time.Now().Add(start + m.warm)
	end := begin.Add(m.window)
	seconds := int((start + m.warm + m.window + time.Second - 1) / time.Second)
	cmd := exec.CommandContext(ctx, db.pgbench, "--no-vacuum", "--protocol=prepared",
		"--client="+strconv.Itoa(m.clients), "--jobs="+strconv.Itoa(min(m.clients, runtime.NumCPU())),
		"--time="+strconv.Itoa(seconds), "--log", "--log-prefix="+logs, "--file="+script,
		"--define=n=0", "--define=clients="+strconv.Itoa(m.clients),
		"--define=patients="+strconv.Itoa(db.size.patients), "--define=doctors="+strconv.Itoa(db.doctors),
		"--define=slots="+strconv.Itoa(slotsEach))
	if p.rate > 0 {
		cmd.Args = append(cmd.Args, fmt.Sprintf("--rate=%g", p.rate))
	}
	cmd.Args = append(cmd.Args, db.url(db.name))
	ended := make(chan error, 1)
	go func() { ended <- run(cmd) }()
	sleepUntil(ctx, begin)
	before := db.cpu()
	sleepUntil(ctx, end)
	r = result{seconds: m.window.Seconds(), cpu: db.cpu() - before}
	if err := <-ended; err != nil {
		return r, err
	}
	total := int64(0)
	for _, path := range files(logs) {
		text, err := os.ReadFile(path)
		if err != nil {
			return r, err
		}
		n, err := readLog(text, begin, end, &r.latency[plain])
		if err != nil {
			return r, fmt.Errorf("%s: %w", filepath.Base(path), err)
		}
		total += n
	}
	if r.latency[plain].count == 0 {
		return r, errors.New("pgbench called nothing in the window")
	}
	if p.refused {
		return r, nil
	}
	// A floor that is quick because it does nothing is none.
	s := db.session(ctx, db.name)
	defer s.close()
	var made int64
	if s.read(`SELECT count(*) FROM appointment WHERE idempotency_key LIKE 'k%'`, &made); s.err == nil && made != total {
		s.err = fmt.Errorf("pgbench says %d transactions, and %d bookings were made", total, made)
	}
	return r, s.err
}

func files(prefix string) []string {
	found, err := filepath.Glob(prefix + ".*")
	if err != nil {
		panic(err) // the pattern is fixed
	}
	return found
}

// readLog adds the transactions that ended within a window: lines of client, number, latency in µs,
// script, and when it ended in seconds and µs. total counts all. With a rate the latency counts from when it was due.
func readLog(text []byte, begin, end time.Time, into *histogram) (total int64, err error) {
	from, to := begin.UnixMicro(), end.UnixMicro()
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		fields := bytes.Fields(lines.Bytes())
		if len(fields) < 6 {
			return total, fmt.Errorf("line %.100q", lines.Text())
		}
		var n [3]int64
		for i, field := range []int{2, 4, 5} {
			var ok bool
			var rest []byte
			if n[i], rest, ok = number(fields[field]); !ok || len(rest) > 0 {
				return total, fmt.Errorf("line %.100q", lines.Text())
			}
		}
		total++
		if at := n[1]*1_000_000 + n[2]; at >= from && at < to {
			into.add(time.Duration(n[0]) * time.Microsecond)
		}
	}
	return total, lines.Err()
}
