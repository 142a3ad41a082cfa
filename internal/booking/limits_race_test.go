package booking

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// One patient asks for many slots at once: as many are won as the limit says.
func TestRaceOfOnePatient(t *testing.T) {
	t.Parallel()
	const most = 3
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		p.rules(fmt.Sprint("max_active = ", most))
		slots := p.slots(16, 100000)
		for range rounds(200) {
			patient := p.patient()
			var won atomic.Int32
			together(len(slots), func(i int) {
				_, err := service(i).claim(context.Background(), patient, BookRequest{Slot: slots[i], Key: fmt.Sprint(i)}, i%3 == 0)
				switch code(err) {
				case "":
					won.Add(1)
				case LimitReached:
				default:
					t.Error(err)
				}
			})
			stand := one[int](p, `SELECT count(*) FROM appointment WHERE patient_id = $1`, patient.PatientID)
			if won.Load() != most || stand != most {
				t.Fatalf("%d won, %d stand, want %d", won.Load(), stand, most)
			}
		}
		p.check()
	})
}

// Two calls of one patient in one batch count too.
func TestLimitInOneBatch(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.rules("max_active = 1")
	slots := p.slots(4, 5)
	together := func() []Code {
		service, patient := p.at(now), p.patient()
		release := p.gated(service)
		answers := p.line(service, actorRequest{p.patient(), slots[3], "warm-up"}, // a batch of its own
			actorRequest{patient, slots[0], "k0"}, actorRequest{patient, slots[1], "k1"}, actorRequest{patient, slots[2], "k2"})
		release()
		return answers()
	}
	if got, want := together(), []Code{"", "", LimitReached, LimitReached}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	p.check()
	t.Run("Control", func(t *testing.T) { // the road for those who all win counts nothing
		p.without("claim", "AND g.ruled)", "AND false)")
		if got, want := together(), []Code{"", "", "", ""}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

// meanwhile runs a statement in a transaction and makes the call before it is committed. The call waits
// for a lock of that transaction, unless it was left out.
func (p *practice) meanwhile(waits bool, call func() error, sql string, args ...any) error {
	p.t.Helper()
	answer := make(chan error, 1)
	err := pgx.BeginFunc(context.Background(), p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(context.Background(), sql, args...); err != nil {
			return err
		}
		go func() { answer <- call() }()
		if waits {
			p.waitForLock()
			return nil
		}
		err := <-answer
		answer <- err
		return nil
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return <-answer
}

// Whoever counts has the patient's lock, so what was won a moment ago is counted, committed or not.
func TestLimitUnderTheLock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.rules("max_active = 1")
	slots := p.slots(2, 100)
	race := func(waits bool) error {
		patient := p.patient()
		r := BookRequest{Slot: slots[0], Patient: patient.PatientID, Key: "k"}
		return p.meanwhile(waits, func() error {
			_, err := p.service.Book(ctx, patient, BookRequest{Slot: slots[1], Key: "k1"})
			return err
		}, claimSQL, now, true, []SlotID{r.Slot}, []PatientID{r.Patient}, []string{r.Key}, []string{patient.Caller()},
			[][]byte{r.hash(false)}, []OrganizationID{0}, []string{""}, nil, nil, nil, nil)
	}
	wantCode(t, race(true), LimitReached)
	t.Run("Control", func(t *testing.T) {
		p.without("claim", "PERFORM pg_advisory_xact_lock(p.k)", "PERFORM p.k")
		if err := race(false); err != nil {
			t.Errorf("the control does not bite: %v", err)
		}
	})
}

// A hold that is confirmed in its last moment counts for whoever reads a later clock.
func TestLimitAtTheLapse(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.rules("max_active = 1")
	slots := p.slots(2, 100)
	race := func(waits bool) error {
		patient := p.patient()
		held := p.hold(patient, slots[0], "k")
		sees := patient.sees()
		return p.meanwhile(waits, func() error {
			_, err := p.at(lapse).Book(ctx, patient, BookRequest{Slot: slots[1], Key: "k1"})
			return err
		}, stepSQL, lapse.Add(-time.Microsecond), stepConfirm, held.Appointment.ID, sees.patient, sees.organization, sees.registrar,
			patient.Caller(), "", false)
	}
	wantCode(t, race(true), LimitReached)
	p.check()
	t.Run("Control", func(t *testing.T) {
		p.without("step", "PERFORM pg_advisory_xact_lock(patient_lock_key(a.patient_id))", "PERFORM 1")
		if err := race(false); err != nil {
			t.Errorf("the control does not bite: %v", err)
		}
	})
}

// An ordinary appointment does not overlap one that staff let overlap others, on any road.
func TestNothingOverlapsTheAllowed(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		ctx := context.Background()
		desk := p.staff()
		start := now.Add(24 * time.Hour)
		visit, beside := p.slotAt(start), p.slotAt(start.Add(10*time.Minute))
		during, touching := p.slotAt(start.Add(35*time.Minute)), p.slotAt(start.Add(40*time.Minute))
		// prepare makes a patient who has [0, 30) and, allowed, [10, 40).
		prepare := func(claim func(context.Context, Actor, BookRequest) (Booking, error)) (patient Actor, allowed AppointmentID) {
			id := p.registered(desk, fmt.Sprint(one[int](p, `SELECT count(*) FROM patient`)))
			patient = Actor{Kind: Patient, Subject: fmt.Sprint(id), PatientID: id}
			p.book(patient, visit, "k")
			made, err := claim(ctx, desk, BookRequest{Slot: beside, Patient: id, Key: fmt.Sprint(id), OverlapReason: "with her mother"})
			if err != nil || made.Appointment.OverlapReason == nil {
				t.Fatalf("%+v, %v", made, err)
			}
			return patient, made.Appointment.ID
		}
		try := func(patient Actor, slot SlotID) Code {
			_, err := service(1).Book(ctx, patient, BookRequest{Slot: slot, Key: fmt.Sprint("k", slot)})
			return code(err)
		}
		patient, _ := prepare(service(0).Book)
		for _, hold := range []bool{false, true} {
			_, err := service(0).claim(ctx, patient, BookRequest{Slot: during, Key: "k1"}, hold)
			wantCode(t, err, Overlap)
			if e := asError(t, err); e.Existing != 0 {
				t.Errorf("the refusal tells of appointment %d", e.Existing)
			}
			_, err = service(0).claim(ctx, desk, BookRequest{Slot: during, Patient: patient.PatientID, Key: fmt.Sprint(hold)}, hold)
			wantCode(t, err, Overlap)
		}
		if got := try(patient, touching); got != "" {
			t.Errorf("touching it: %s", got)
		}
		p.check()

		patient, allowed := prepare(service(0).Book)
		must(service(0).Cancel(ctx, patient, CancelRequest{Appointment: allowed}))
		if got := try(patient, during); got != "" {
			t.Errorf("after it was cancelled: %s", got)
		}
		patient, _ = prepare(service(0).Hold)
		if got := try(patient, during); got != Overlap {
			t.Errorf("a hold: %q", got)
		}
		_, err := p.like(service(0), lapse).Book(ctx, patient, BookRequest{Slot: during, Key: "later"})
		if err != nil {
			t.Errorf("a hold that has lapsed: %v", err)
		}
		p.check()

		// The control: neither road looks.
		p.without("claim", "AND x.overlap_allowed", "AND false")
		patient, _ = prepare(service(0).Book)
		if got := try(patient, during); got != "" {
			t.Errorf("the control does not bite: %s", got)
		}
	})
}
