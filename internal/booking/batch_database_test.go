package booking

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"openslot/internal/devenv"
)

// gated lets the test hold the service's next transactions until release: what is queued in
// between comes in one batch.
func (p *practice) gated(s *Service) (release func()) {
	execute, hold := s.batcher.execute, make(chan struct{})
	s.batcher.execute = func(calls []*call, wait bool) error {
		<-hold
		return execute(calls, wait)
	}
	return func() { close(hold) }
}

type actorRequest struct {
	actor Actor
	slot  SlotID
	key   string
}

// line puts requests in line in this order, and gives their answers when they are there.
func (p *practice) line(s *Service, requests ...actorRequest) (answers func() []Code) {
	p.t.Helper()
	var calls []*call
	for _, r := range requests {
		request, err := admit(r.actor, BookRequest{Slot: r.slot, Key: r.key})
		if err != nil {
			p.t.Fatal(err)
		}
		c, _, err := s.batcher.enqueue(&call{request: request, actor: r.actor, hash: request.hash(false), done: make(chan struct{})})
		if err != nil {
			p.t.Fatal(err)
		}
		calls = append(calls, c)
	}
	return func() (codes []Code) {
		for _, c := range calls {
			<-c.done
			codes = append(codes, code(c.err))
		}
		return codes
	}
}

// What one batch holds is decided call by call, in order of arrival; whoever fails by their own
// fault leaves the place to the next.
func TestBatchDecidesCallByCall(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	service := p.at(now)
	free, other, busy := p.slot(time.Hour, 1), p.slot(24*time.Hour, 5), p.patient()
	_, elsewhere := p.newDoctor("Elsewhere")
	same := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT $2, start_at, end_at, 1, opens_at FROM time_slot WHERE id = $1 RETURNING id`, free, elsewhere)
	p.book(busy, same, "elsewhere")
	first, second, third := p.patient(), p.patient(), p.patient()
	known := p.book(first, other, "known")

	release := p.gated(service)
	answers := p.line(service,
		actorRequest{third, other, "warm-up"},  // a batch of its own
		actorRequest{busy, free, "k"},          // has another appointment then: takes no place
		actorRequest{first, free, "known"},     // the key stands for another slot
		actorRequest{second, free, "k"},        // wins the only place
		actorRequest{second, free, "k2"},       // has it already
		actorRequest{third, free, "k"},         // too late
		actorRequest{first, other, "known"},    // replay
		actorRequest{third, free + 1000, "k3"}, // no such slot
		actorRequest{second, other, "k4"},      // wins elsewhere, in the same batch
	)
	release()
	want := []Code{"", Overlap, IdempotencyKeyReused, "", AlreadyBooked, SlotFull, "", NotFound, ""}
	if got := answers(); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if n := p.booked(free); n != 1 {
		t.Errorf("booked_count = %d, want 1", n)
	}
	if again := p.book(first, other, "known"); again.Appointment.ID != known.Appointment.ID {
		t.Errorf("replay gives %+v", again)
	}
}

// A request that makes the database fail harms no neighbour in its batch.
func TestBatchPoison(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	service, patients, slots := p.at(now), p.patients(40), p.slots(10, 10)
	p.exec(fmt.Sprintf(`CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF NEW.patient_id = %d THEN RAISE EXCEPTION 'poison'; END IF; RETURN NEW; END $$`, patients[17].PatientID))
	p.exec(`CREATE TRIGGER poison BEFORE INSERT ON appointment FOR EACH ROW EXECUTE FUNCTION poison()`)
	release := p.gated(service)
	var requests []actorRequest
	for i, patient := range patients {
		requests = append(requests, actorRequest{patient, slots[i%10], "k"})
	}
	answers := p.line(service, requests...)
	release()
	for i, got := range answers() {
		if want := map[bool]Code{true: Internal, false: ""}[i == 17]; got != want {
			t.Errorf("call %d: %q, want %q", i, got, want)
		}
	}
	p.check()
}

// The connection breaks after the COMMIT of a whole batch: everybody gets what they won.
func TestBatchCutAfterCommit(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	p := &practice{t: t, pool: db.Pool}
	p.organization, p.doctor = p.newDoctor("Practice")
	cutter, url := newCutter(t, db)
	service := New(open(t, url), patient(now))
	slot, patients := p.slot(time.Hour, 10), p.patients(30)
	for round := range 10 {
		cutter.cuts.Store(2) // and once more at the rerun
		var replayed, won, full atomic.Int32
		together(len(patients), func(i int) {
			b, err := service.Book(context.Background(), patients[i], BookRequest{Slot: slot, Key: fmt.Sprint(round)})
			switch code(err) {
			case "":
				won.Add(1)
				if b.Replayed {
					replayed.Add(1)
				}
			case SlotFull:
				full.Add(1)
			default:
				t.Error(err)
			}
		})
		if won.Load() != 10 || full.Load() != 20 || replayed.Load() != 0 {
			t.Errorf("%d won, %d full, %d were told of a replay; want 10, 20, 0", won.Load(), full.Load(), replayed.Load())
		}
		p.check()
		p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
		slot = p.slot(time.Duration(round+2)*time.Hour, 10)
	}
}

// While somebody sits on a slot's row, bookings of other slots go on, and that slot's callers
// are refused in time; afterwards it can be booked.
func TestBatchStuckSlot(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	service, stuck, slots, patients := p.at(now), p.slot(time.Hour, 50), p.slots(20, 20), p.patients(20)
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `SELECT FROM time_slot WHERE id = $1 FOR UPDATE`, stuck); err != nil {
		t.Fatal(err)
	}
	var waiting sync.WaitGroup
	for _, patient := range patients {
		waiting.Go(func() {
			_, err := service.Book(ctx, patient, BookRequest{Slot: stuck, Key: "stuck"})
			if code(err) != Overloaded {
				t.Errorf("the stuck slot's caller got %v", err)
			}
		})
	}
	stillStuck := make(chan struct{})
	go func() { waiting.Wait(); close(stillStuck) }()
	elsewhere := 0
	for ; elsewhere < len(slots); elsewhere++ {
		if _, err := service.Book(ctx, patients[elsewhere], BookRequest{Slot: slots[elsewhere], Key: "other"}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-stillStuck:
			t.Fatalf("only %d bookings went by while the slot was stuck", elsewhere)
		default:
		}
	}
	<-stillStuck
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := service.Book(ctx, patients[0], BookRequest{Slot: stuck, Key: "stuck"}); err != nil {
		t.Error(err)
	}
	p.check()
}

// Somebody sits on what many calls of one batch need besides their slots: all are answered in
// bounded time, and those who need nothing of it win.
func TestBatchStuckPatients(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	service, slots, patients := p.at(now), p.slots(40, 1), p.patients(40)
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, patient := range patients[20:] { // the last twenty, so that the others come first
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(patient_lock_key($1))`, patient.PatientID); err != nil {
			t.Fatal(err)
		}
	}
	release := p.gated(service)
	var requests []actorRequest
	for i, patient := range patients {
		requests = append(requests, actorRequest{patient, slots[i], "k"})
	}
	answers := p.line(service, requests...)
	start := time.Now()
	release()
	for i, got := range answers() {
		if want := map[bool]Code{true: "", false: Overloaded}[i < 20]; got != want {
			t.Errorf("call %d: %q, want %q", i, got, want)
		}
	}
	if took := time.Since(start); took > 15*time.Second { // twenty waits of a second would be more
		t.Errorf("answered after %s", took)
	}
	p.check()
}
