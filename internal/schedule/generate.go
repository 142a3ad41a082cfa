package schedule

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"openslot/internal/booking"
)

// MaxDays is how many days slots are made for at most, today included. The default of 14 makes the
// days that have opened by this morning; the one beyond is the day whose slots open at the next release.
const MaxDays = 15

// GenerateAll works through doctors in batches, several at a time. A batch is one transaction and
// one statement, large enough that the change feed says "read these doctors again" instead of
// listing every slot.
const (
	batchDoctors = 16
	batchWorkers = 4
)

// Generate makes what is missing of a doctor's slots for today and the days after, for the staff
// of the doctor's organization. Today is what it is there; slots that have begun are not made.
// It changes no slot that exists. It returns how many it added, and refuses with INVALID unless
// days is 1 to MaxDays; NOT_FOUND for a doctor that is not there or not the actor's.
func (s *Service) Generate(ctx context.Context, actor booking.Actor, doctor booking.DoctorID, days int) (int, error) {
	own, err := scope(actor)
	if err != nil {
		return 0, err
	}
	if err := checkDays(days); err != nil {
		return 0, err
	}
	var ours bool
	if err := s.pool.QueryRow(ctx, ownDoctorSQL, doctor, own).Scan(&ours); err != nil {
		return 0, wrap(err, "generate slots of doctor %d", doctor)
	}
	if !ours {
		return 0, noDoctor()
	}
	n, err := s.generate(ctx, []booking.DoctorID{doctor}, days)
	return int(n), wrap(err, "generate slots of doctor %d", doctor)
}

const scheduledSQL = `SELECT DISTINCT doctor_id FROM schedule WHERE kind = 'FIXED' ORDER BY doctor_id`

// GenerateAll is Generate for all doctors who have a template with shifts. It calls progress, unless that is
// nil, as doctors are done, never twice at once. What it has added before an error stays: it may
// simply be run again.
func (s *Service) GenerateAll(ctx context.Context, days int, progress func(done, total int)) (int64, error) {
	if err := checkDays(days); err != nil {
		return 0, err
	}
	rows, err := s.pool.Query(ctx, scheduledSQL)
	if err != nil {
		return 0, wrap(err, "list doctors to generate")
	}
	doctors, err := pgx.CollectRows(rows, pgx.RowTo[booking.DoctorID])
	if err != nil {
		return 0, wrap(err, "list doctors to generate")
	}
	if progress == nil {
		progress = func(int, int) {}
	}
	var (
		mu    sync.Mutex // guards the rest, and progress
		added int64
		done  int
	)
	progress(0, len(doctors))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(batchWorkers)
	for batch := range slices.Chunk(doctors, batchDoctors) {
		group.Go(func() error {
			n, err := s.generate(ctx, batch, days)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				return err
			}
			added += n
			done += len(batch)
			progress(done, len(doctors))
			return nil
		})
	}
	err = group.Wait()
	return added, wrap(err, "generate slots of all doctors")
}

func checkDays(days int) error {
	if days < 1 || days > MaxDays {
		return booking.Refuse(booking.Invalid, "days must be between 1 and %d.", MaxDays)
	}
	return nil
}

// generate makes what is missing of the doctors' slots, in one transaction.
func (s *Service) generate(ctx context.Context, doctors []booking.DoctorID, days int) (int64, error) {
	var added int64
	err := s.write(ctx, doctors, func(tx pgx.Tx) error {
		calendars, now, err := s.calendars(ctx, tx, doctors)
		if err != nil {
			return err
		}
		var p plan
		for _, c := range calendars {
			if err := p.add(c, now, days); err != nil {
				return err
			}
		}
		if err := p.dropExisting(ctx, tx); err != nil || len(p.doctors) == 0 {
			return err
		}
		done, err := tx.Exec(ctx, insertSQL, p.doctors, p.starts, p.ends, p.openings, p.capacities)
		added = done.RowsAffected()
		return err
	})
	if err != nil {
		return 0, err // nothing of it was committed
	}
	return added, nil
}

// calendar is all that a doctor's slots follow from.
type calendar struct {
	doctor    booking.DoctorID
	zone      string
	templates []Template
}

// shiftsSQL also tells what time it is, now that the doctors' locks are held.
const shiftsSQL = `
SELECT s.doctor_id, s.id, o.time_zone, coalesce($2, clock_timestamp()), s.valid_from, s.valid_until,
       x.weekday, x.start_minute, x.end_minute, x.slot_minutes, x.every_minutes, x.capacity
  FROM schedule s
  JOIN schedule_shift x ON x.schedule_id = s.id
  JOIN doctor d ON d.id = s.doctor_id
  JOIN organization o ON o.id = d.organization_id
 WHERE s.doctor_id = ANY ($1)
 ORDER BY s.doctor_id, s.valid_from, x.weekday, x.start_minute`

// calendars reads the templates of doctors, and what time it is; doctors without any are left out.
func (s *Service) calendars(ctx context.Context, tx pgx.Tx, doctors []booking.DoctorID) ([]calendar, time.Time, error) {
	rows, err := tx.Query(ctx, shiftsSQL, doctors, s.now())
	if err != nil {
		return nil, time.Time{}, err
	}
	var (
		found    []calendar
		now      time.Time
		c        calendar
		t        Template
		x        Shift
		id, last ScheduleID
	)
	_, err = pgx.ForEachRow(rows, []any{&c.doctor, &id, &c.zone, &now, &t.ValidFrom, &t.ValidUntil,
		&x.Weekday, &x.StartMinute, &x.EndMinute, &x.SlotMinutes, &x.EveryMinutes, &x.Capacity}, func() error {
		if len(found) == 0 || found[len(found)-1].doctor != c.doctor {
			found = append(found, c)
		}
		doctor := &found[len(found)-1]
		if id != last {
			doctor.templates = append(doctor.templates, t)
			last = id
		}
		template := &doctor.templates[len(doctor.templates)-1]
		template.Shifts = append(template.Shifts, x)
		return nil
	})
	return found, now, err
}

// plan is slots to be made, by column as the insert takes them.
type plan struct {
	doctors                []booking.DoctorID
	starts, ends, openings []time.Time
	capacities             []int32
}

// add plans a doctor's slots that have not begun.
func (p *plan) add(c calendar, now time.Time, days int) error {
	loc, err := booking.LoadZone(c.zone)
	if err != nil {
		return err
	}
	for _, slot := range Slots(c.templates, loc, booking.DateOf(now, loc), days) {
		if slot.StartAt.After(now) {
			p.append(c.doctor, slot)
		}
	}
	return nil
}

func (p *plan) append(doctor booking.DoctorID, s PlannedSlot) {
	p.doctors = append(p.doctors, doctor)
	p.starts = append(p.starts, s.StartAt)
	p.ends = append(p.ends, s.EndAt)
	p.openings = append(p.openings, s.OpensAt)
	p.capacities = append(p.capacities, int32(s.Capacity)) // a column of type int holds it
}

const existingSQL = `
SELECT doctor_id, start_at FROM time_slot
 WHERE doctor_id = ANY ($1) AND start_at BETWEEN $2 AND $3 AND status <> 'WITHDRAWN'`

// dropExisting spares the insert what would conflict: to find that out by writing costs several
// times as much, and an id.
func (p *plan) dropExisting(ctx context.Context, tx pgx.Tx) error {
	if len(p.doctors) == 0 {
		return nil
	}
	type key struct {
		doctor booking.DoctorID
		start  int64
	}
	var (
		exists  = make(map[key]bool)
		doctor  booking.DoctorID
		start   time.Time
		missing plan
	)
	rows, err := tx.Query(ctx, existingSQL, slices.Compact(slices.Clone(p.doctors)),
		slices.MinFunc(p.starts, time.Time.Compare), slices.MaxFunc(p.starts, time.Time.Compare))
	if err != nil {
		return err
	}
	_, err = pgx.ForEachRow(rows, []any{&doctor, &start}, func() error {
		exists[key{doctor, start.UnixMicro()}] = true
		return nil
	})
	if err != nil {
		return err
	}
	for i, doctor := range p.doctors {
		if !exists[key{doctor, p.starts[i].UnixMicro()}] {
			missing.append(doctor, PlannedSlot{p.starts[i], p.ends[i], p.openings[i], int(p.capacities[i])})
		}
	}
	*p = missing
	return nil
}

// insertSQL decides what is missing, whatever was read before. It makes no slot where a patient has a
// time of a doctor whose hours were flexible: windows may reach into the first day of a template.
const insertSQL = `
INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
SELECT * FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::timestamptz[], $5::int[])
           AS p (doctor_id, start_at, end_at, opens_at, capacity)
 WHERE NOT EXISTS (SELECT FROM time_slot t
                    WHERE t.doctor_id = p.doctor_id AND t.kind = 'FLEXIBLE' AND t.status <> 'WITHDRAWN'
                      AND tstzrange(t.start_at, t.end_at) && tstzrange(p.start_at, p.end_at))
ON CONFLICT (doctor_id, start_at) WHERE status <> 'WITHDRAWN' DO NOTHING`
