package booking

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// gate is a Gate played by the test.
type gate struct {
	admit func(r BookRequest) error
	mu    sync.Mutex
	full  []FullMark
}

func (g *gate) Admit(_ context.Context, _ Actor, r BookRequest) error { return g.admit(r) }

func (g *gate) Full(mark FullMark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.full = append(g.full, mark)
}

func (p *practice) gatedBy(g Gate, plain bool) *Service {
	config := patient(now)
	config.Gate, config.Plain = g, plain
	return New(p.pool, config)
}

// The commonest retry is that of whoever won the last place: no gate stands before a replay.
func TestGateReplayBeatsRefusal(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	for _, refused := range []Code{SlotFull, RateLimited} {
		shut := p.gatedBy(&gate{admit: func(BookRequest) error { return Refuse(refused, "no") }}, false)
		winner, slot := p.patient(), p.slot(time.Duration(len(refused))*time.Hour, 2)
		won := p.book(winner, slot, "k")
		p.book(p.patient(), slot, "k")

		again, err := shut.Book(ctx, winner, BookRequest{Slot: slot, Key: "k"})
		if err != nil || !again.Replayed || again.Appointment != won.Appointment {
			t.Errorf("replay: %+v, %v", again, err)
		}
		_, err = shut.Book(ctx, winner, BookRequest{Slot: slot + 1, Key: "k"})
		wantCode(t, err, IdempotencyKeyReused)
		_, err = shut.Book(ctx, winner, BookRequest{Slot: slot, Key: "new"}) // as without a gate
		wantCode(t, err, AlreadyBooked)
		if existing := asError(t, err).Existing; existing != won.Appointment.ID {
			t.Errorf("existing appointment %d, want %d", existing, won.Appointment.ID)
		}
		_, err = shut.Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, refused)
		// A partner who names somebody else's patient learns nothing of them.
		_, err = shut.Book(ctx, Actor{Kind: Partner, Subject: "portal"}, BookRequest{Slot: slot, Patient: winner.PatientID, Key: "k"})
		wantCode(t, err, refused)
		if n := p.booked(slot); n != 2 {
			t.Errorf("booked_count = %d, want 2", n)
		}
	}
}

// B21: a place that was given back can be booked at once, whatever the gate still believes; one
// that was not is refused without the core. The rate limit is not a matter of room.
func TestGateGivenBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	refused := SlotFull
	late := p.gatedBy(&gate{admit: func(BookRequest) error { return Refuse(refused, "as far as I know") }}, false)
	slot, first, next := p.slot(time.Hour, 1), p.patient(), p.patient()
	won := p.book(first, slot, "k")
	_, err := late.Book(ctx, next, BookRequest{Slot: slot, Key: "k"})
	wantCode(t, err, SlotFull)
	if message := asError(t, err).Message; message != "as far as I know" {
		t.Errorf("the core was asked: %q", message)
	}
	if _, err := p.service.Cancel(ctx, first, CancelRequest{Appointment: won.Appointment.ID}); err != nil {
		t.Fatal(err)
	}
	refused = RateLimited
	_, err = late.Book(ctx, next, BookRequest{Slot: slot, Key: "k"})
	wantCode(t, err, RateLimited)
	refused = SlotFull
	if _, err := late.Book(ctx, next, BookRequest{Slot: slot, Key: "k"}); err != nil {
		t.Error(err)
	}
	p.check()
}

// Look-ups that come together are answered each with its own.
func TestGateLookupsTogether(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	shut := p.gatedBy(&gate{admit: func(BookRequest) error { return Refuse(SlotFull, "no") }}, false)
	slot, patients := p.slot(time.Hour, 600), p.patients(1200)
	for i := range 600 {
		p.exec(`SELECT FROM claim($1, true, ARRAY[$2::bigint], ARRAY[$3::bigint], ARRAY['k'], ARRAY[$4], ARRAY[$5::bytea], ARRAY[0::bigint], ARRAY[''], NULL, NULL, NULL, NULL)`,
			now, slot, patients[i].PatientID, patients[i].Caller(), BookRequest{Slot: slot, Patient: patients[i].PatientID}.hash(false))
	}
	together(len(patients), func(i int) {
		b, err := shut.Book(context.Background(), patients[i], BookRequest{Slot: slot, Key: "k"})
		if won := i < 600; won && (err != nil || b.Appointment.PatientID != patients[i].PatientID) || !won && code(err) != SlotFull {
			t.Errorf("caller %d: %+v, %v", i, b, err)
		}
	})
}

// A caller who leaves while the look-up is under way leaves the call to it.
func TestGateCallerLeavesLookup(t *testing.T) {
	t.Parallel()
	for range 50 {
		ctx, leave := context.WithCancel(context.Background())
		s := New(nil, Config{Gate: &gate{admit: func(BookRequest) error { return Refuse(SlotFull, "no") }}})
		looking := make(chan struct{})
		s.lookups.find = func(calls []*call) {
			close(looking)
			<-ctx.Done()
			calls[0].answer(Booking{Replayed: true}, nil) // at the moment at which the caller leaves
		}
		go func() { <-looking; leave() }()
		b, err := s.Book(ctx, Actor{Kind: Patient, Subject: "1", PatientID: 1}, BookRequest{Slot: 1, Key: "k"})
		if b.Replayed != (err == nil) || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("%+v, %v", b, err)
		}
	}
}

// Look-ups that wait are bounded in number.
func TestGateLookupsBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		l := lookups{find: func([]*call) { <-hold }}
		var done sync.WaitGroup
		ask := func() {
			if known, err := l.known(context.Background(), newCall(1, "k")); known || err != nil {
				t.Errorf("%t, %v", known, err)
			}
		}
		done.Go(ask)
		synctest.Wait() // under way
		for range queueMost {
			done.Go(ask)
		}
		synctest.Wait()
		_, err := l.known(context.Background(), newCall(1, "one too many"))
		wantCode(t, err, Overloaded)
		close(hold)
		done.Wait()
		time.Sleep(lookupRest)
	})
}

// A crowd is looked up by few statements; whoever comes alone does not wait.
func TestGateLookupsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const takes = time.Millisecond
		var sizes []int
		l := lookups{find: func(calls []*call) {
			sizes = append(sizes, len(calls))
			time.Sleep(takes)
		}}
		began := time.Now()
		ask := func() {
			if known, err := l.known(context.Background(), newCall(1, "k")); known || err != nil {
				t.Errorf("%t, %v", known, err)
			}
		}
		for range 3 {
			ask()
		}
		if took := time.Since(began); took != 3*takes {
			t.Errorf("three, one after the other, took %v", took)
		}
		var done sync.WaitGroup
		for range 80 {
			done.Go(ask)
			time.Sleep(takes/10 + 1)
		}
		done.Wait()
		// The first alone, those who came meanwhile, and then whoever came within the rest.
		if want := []int{1, 1, 1, 1, 9, 40, 30}; !slices.Equal(sizes, want) {
			t.Errorf("looked up together: %d, want %d", sizes, want)
		}
		time.Sleep(lookupRest)
	})
}

// A mark names the version that the slot has once it is full, whether the call filled it or
// found it so.
func TestGateHearsOfFullSlots(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	for _, plain := range []bool{true, false} {
		g := &gate{admit: func(BookRequest) error { return nil }}
		service := p.gatedBy(g, plain)
		slot, patients := p.slots(1, 3)[0], p.patients(4)
		for i, patient := range patients {
			_, err := service.Book(context.Background(), patient, BookRequest{Slot: slot, Key: "k"})
			if want := map[bool]Code{true: SlotFull, false: ""}[i == 3]; code(err) != want {
				t.Fatal(err)
			}
		}
		if len(g.full) != 2 { // the one who took the last place, and the one who came too late
			t.Fatalf("marks %+v", g.full)
		}
		version := one[int64](p, `SELECT version FROM time_slot WHERE id = $1`, slot)
		for _, mark := range g.full {
			if mark.Slot != slot || mark.Version != version || time.Since(mark.At).Abs() > time.Hour {
				t.Errorf("mark %+v, want slot %d at version %d", mark, slot, version)
			}
		}
		p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
	}
}

// Whatever a gate says, it can only refuse: no rule breaks with one that answers at random, and
// whoever keeps asking gets what is there.
func TestLyingGate(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		lies := &gate{admit: func(BookRequest) error {
			switch rand.IntN(3) {
			case 0:
				return Refuse(SlotFull, "a lie")
			case 1:
				return Refuse(RateLimited, "a lie")
			default:
				return nil
			}
		}}
		services := []*Service{p.gatedBy(lies, false), p.gatedBy(lies, true)}
		slots, patients := p.slots(20, 1, 3), p.patients(24)
		together(len(patients), func(i int) {
			for try := range 30 {
				for _, slot := range slots {
					b, err := services[(i+try)%2].Book(context.Background(), patients[i], BookRequest{Slot: slot, Key: fmt.Sprint(slot)})
					if err != nil && code(err) != SlotFull && code(err) != RateLimited && code(err) != AlreadyBooked {
						t.Error(err)
					}
					if err == nil && i%3 == 0 {
						if _, err := service(i).Cancel(context.Background(), patients[i], CancelRequest{Appointment: b.Appointment.ID}); err != nil {
							t.Error(err)
						}
					}
				}
			}
		})
		for _, slot := range slots { // a last cancel may have come after everybody's last try
			for _, patient := range p.patients(3) {
				if _, err := p.service.Book(context.Background(), patient, BookRequest{Slot: slot, Key: "k"}); err != nil && code(err) != SlotFull {
					t.Error(err)
				}
			}
		}
		p.check()
		if free := one[int](p, `SELECT sum(capacity - booked_count) FROM time_slot`); free != 0 {
			t.Errorf("%d places are left, though more wanted them", free)
		}
	})
}
