package booking

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

// raceForOnePlace has a booking, a hold and two moves race for each of the slots, and gives how many
// won a place each time. The moves come from places of their own, which whoever fails keeps.
func raceForOnePlace(p *practice, service func(i int) *Service, targets []SlotID) ([]int, error) {
	ctx := context.Background()
	patients := p.patients(4)
	from := p.beside(time.Hour, 2)
	wins := make([]int, len(targets))
	for n, to := range targets {
		movers := make([]AppointmentID, 4)
		for i := 2; i < 4; i++ {
			b, err := service(i).Book(ctx, patients[i], BookRequest{Slot: from, Key: fmt.Sprint("from", n)})
			if err != nil {
				return nil, err
			}
			movers[i] = b.Appointment.ID
		}
		key := fmt.Sprint("to", n)
		errs := make([]error, 4)
		won := make([]Booking, 4)
		together(4, func(i int) {
			s := service(i)
			switch i {
			case 0:
				won[i], errs[i] = s.Book(ctx, patients[i], BookRequest{Slot: to, Key: key})
			case 1:
				won[i], errs[i] = s.Hold(ctx, patients[i], BookRequest{Slot: to, Key: key})
			default:
				won[i], errs[i] = s.Reschedule(ctx, patients[i], RescheduleRequest{Appointment: movers[i], To: to, Key: key})
			}
		})
		kept := 0
		for i, err := range errs {
			if err == nil {
				wins[n]++
			} else if code(err) != SlotFull {
				return nil, fmt.Errorf("call %d: %w", i, err)
			} else if i >= 2 {
				kept++
			}
		}
		if count := p.count(from); count != kept {
			return nil, fmt.Errorf("%d places are kept, want %d", count, kept)
		}
		for i := 2; i < 4; i++ { // make room for the next round
			id := movers[i]
			if errs[i] == nil {
				id = won[i].Appointment.ID
			}
			if _, err := service(i).Cancel(ctx, patients[i], CancelRequest{Appointment: id}); err != nil {
				return nil, err
			}
		}
		for i := range 2 {
			if errs[i] == nil {
				if _, err := service(i).Cancel(ctx, patients[i], CancelRequest{Appointment: won[i].Appointment.ID}); err != nil {
					return nil, err
				}
			}
		}
	}
	return wins, nil
}

// B04: a booking, a hold and moves race for a slot: every entry path obeys the same conditions.
func TestRaceOfBookHoldAndMove(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		wins, err := raceForOnePlace(p, service, p.slots(rounds(1000), 1))
		if i := slices.IndexFunc(wins, func(n int) bool { return n != 1 }); err != nil || i >= 0 {
			t.Errorf("%v: wins %v", err, wins)
		}
		p.check()
	})
	t.Run("Control", func(t *testing.T) { // the condition left out, and what stands behind it
		t.Parallel()
		p := newPractice(t)
		p.without("claim", `slot.booked_count + won[i] < slot.capacity`, `true`)
		p.without("claim", `AND t.booked_count + w.places <= t.capacity`, ``)
		p.exec(`ALTER TABLE time_slot DROP CONSTRAINT chk_booked`)
		wins, err := raceForOnePlace(p, func(int) *Service { return p.service }, p.slots(10, 1))
		if err == nil && slices.Max(wins) <= 1 {
			t.Errorf("wins %v: the control does not bite", wins)
		}
	})
}

// B30: two moves converge on one place: one moves, the other keeps its own.
func TestMovesConverge(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		n := rounds(1000)
		slots, patients := p.slots(3*n, 1), p.patients(2)
		var crowd errgroup.Group
		crowd.SetLimit(4)
		for round := range n {
			crowd.Go(func() error {
				ctx, three := context.Background(), slots[3*round:3*round+3]
				var codes [2]Code
				var ids [2]AppointmentID
				for i := range 2 {
					b, err := service(i).Book(ctx, patients[i], BookRequest{Slot: three[i], Key: fmt.Sprint("b", round)})
					if err != nil {
						return err
					}
					ids[i] = b.Appointment.ID
				}
				together(2, func(i int) {
					_, err := service(i).Reschedule(ctx, patients[i], RescheduleRequest{Appointment: ids[i], To: three[2], Key: fmt.Sprint("m", round)})
					codes[i] = code(err)
				})
				counts := [3]int{p.count(three[0]), p.count(three[1]), p.count(three[2])}
				if codes == [2]Code{"", SlotFull} && counts == [3]int{0, 1, 1} || codes == [2]Code{SlotFull, ""} && counts == [3]int{1, 0, 1} {
					return nil
				}
				return fmt.Errorf("round %d: %q, counts %v", round, codes, counts)
			})
		}
		if err := crowd.Wait(); err != nil {
			t.Error(err)
		}
		p.check()
	})
}

// One appointment is asked to go to several slots at once, each a few times: it goes to one of them,
// and whoever asked for that with the same key hears so.
func TestMovesOfOne(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		patient := p.patient()
		for n := range rounds(300) {
			slots := []SlotID{p.slot(time.Hour, 1), p.slot(2*time.Hour, 1), p.slot(3*time.Hour, 1)}
			b := must(service(n).Book(context.Background(), patient, BookRequest{Slot: slots[0], Key: fmt.Sprint("b", n)}))
			var mu sync.Mutex
			won := map[AppointmentID]int{}
			fresh := 0
			together(8, func(i int) {
				got, err := service(i/2).Reschedule(context.Background(), patient, RescheduleRequest{
					Appointment: b.Appointment.ID, To: slots[1+i%2], Key: fmt.Sprint("m", n, "-", i%2)})
				if allow(err, InvalidState) != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won[got.Appointment.ID]++
					if !got.Replayed {
						fresh++
					}
				}
			})
			if len(won) != 1 || fresh != 1 || p.count(slots[0]) != 0 || p.count(slots[1])+p.count(slots[2]) != 1 {
				t.Fatalf("%v won, %d by themselves; counts %d %d %d", won, fresh, p.count(slots[0]), p.count(slots[1]), p.count(slots[2]))
			}
			p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = ANY ($1)`, slots)
			for id := range won {
				must(p.service.Cancel(context.Background(), patient, CancelRequest{Appointment: id}))
			}
		}
		p.check()
	})
}

// crossing has patients move to and fro between two slots, in both directions at once. It gives how
// long each move took, and the first error: a move that was sacrificed to another's is one.
func crossing(p *practice, service func(i int) *Service, moves int) ([]time.Duration, error) {
	const movers = 8
	slots, patients := p.slots(2, movers), p.patients(movers)
	var mu sync.Mutex
	var took []time.Duration
	var first error
	var failed atomic.Bool
	together(movers, func(i int) {
		ctx, s := context.Background(), service(i)
		at := i % 2
		b, err := s.Book(ctx, patients[i], BookRequest{Slot: slots[at], Key: "b", Referral: fmt.Sprint("R", i)})
		var mine []time.Duration
		for n := 0; n < moves/movers && err == nil && !failed.Load(); n++ {
			at = 1 - at
			r := RescheduleRequest{Appointment: b.Appointment.ID, To: slots[at], Key: fmt.Sprint(n)}
			began := time.Now()
			b, err = s.Reschedule(ctx, patients[i], r)
			for isGivenUp(err) { // the machine is slow
				b, err = s.Reschedule(ctx, patients[i], r)
			}
			mine = append(mine, time.Since(began))
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, mine...)
		if err != nil && first == nil {
			first = err
			failed.Store(true)
		}
	})
	slices.Sort(took)
	return took, first
}

// Moves that cross deadlock nowhere, so none takes much longer than another.
func TestCrossingMoves(t *testing.T) {
	t.Parallel()
	impatient := func(p *practice, unkeyed bool) *Service { // hears of the first collision
		config := patient(now)
		config.unkeyed, config.Persist = unkeyed, time.Nanosecond
		return New(p.pool, config)
	}
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		services := []*Service{impatient(p, service(0).stripes == nil), impatient(p, service(1).stripes == nil)}
		if service(0) == service(1) {
			services[1] = services[0]
		}
		took, err := crossing(p, func(i int) *Service { return services[i/2%2] }, rounds(10_000))
		if err != nil {
			t.Fatal(err)
		}
		median, p99 := took[len(took)/2], took[len(took)*99/100]
		t.Logf("%d moves: median %v, p99 %v", len(took), median, p99)
		if os.Getenv("OPENSLOT_LONG") != "" && p99 > 10*median {
			t.Errorf("p99 %v is more than ten times the median, %v", p99, median)
		}
		p.check()
	})
	t.Run("Control", func(t *testing.T) { // each its own slot first
		t.Parallel()
		p := newPractice(t)
		p.without("reschedule", `ORDER BY t.id FOR NO KEY UPDATE;`, `AND t.id <> p_slot FOR NO KEY UPDATE; PERFORM FROM time_slot t WHERE t.id = p_slot FOR NO KEY UPDATE;`)
		p.exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''20ms''', current_database()); END $$`)
		p.pool.Reset()
		s := impatient(p, true)
		if _, err := crossing(p, func(int) *Service { return s }, 10_000); sqlState(err) != "40P01" {
			t.Errorf("%v: the control does not bite", err)
		}
	})
}

// What has lapsed is in no move's way: neither in the slot, nor where the patient held another at
// that time, nor as the slot's own hold of the patient.
func TestMovePastLapsedHolds(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	later := p.at(lapse)
	for name, hold := range map[string]func(patient Actor, to SlotID){
		"Full": func(_ Actor, to SlotID) { p.hold(p.patient(), to, "h") },
		"Own":  func(patient Actor, to SlotID) { p.hold(patient, to, "h") },
		"AtThatTime": func(patient Actor, to SlotID) {
			start := one[time.Time](p, `SELECT start_at FROM time_slot WHERE id = $1`, to)
			p.hold(patient, p.beside(start.Sub(now)+10*time.Minute, 1), "h")
		},
	} {
		patient, from, to := p.patient(), p.slot(time.Duration(len(name))*time.Hour, 1), p.slot(time.Duration(len(name))*time.Hour+30*time.Minute, 1)
		b := p.book(patient, from, "b")
		hold(patient, to)
		if _, err := p.move(patient, b, to, "m"); allow(err, SlotFull, Overlap, AlreadyBooked) != nil || err == nil {
			t.Errorf("%s: %v before it lapses", name, err)
		}
		if _, err := later.Reschedule(ctx, patient, RescheduleRequest{Appointment: b.Appointment.ID, To: to, Key: "m"}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if f, n := p.booked(from), p.booked(to); f != 0 || n != 1 {
			t.Errorf("%s: %d and %d places are taken, want 0 and 1", name, f, n)
		}
	}
}

// The gate is asked for the new slot, as for a booking by the patient; it hears what is full; and
// neither a retry nor a place that it knows nothing of is refused by it.
func TestGateOfMoves(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	var asked []BookRequest
	var refuse error
	g := &gate{admit: func(r BookRequest) error {
		asked = append(asked, r)
		return refuse
	}}
	s := p.gatedBy(g, false)
	patient, from, to, third := p.patient(), p.slot(time.Hour, 1), p.slot(2*time.Hour, 1), p.slot(3*time.Hour, 2)
	b := p.book(patient, from, "b")
	r := RescheduleRequest{Appointment: b.Appointment.ID, To: to, Key: "m"}
	want := []BookRequest{{Slot: to, Patient: patient.PatientID, Key: "m"}}

	refuse = Refuse(RateLimited, "Slower.")
	_, err := s.Reschedule(ctx, p.staff(), r)
	wantCode(t, err, RateLimited)
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
	refuse = Refuse(SlotFull, "Full.") // a mark from before a place was given back
	got, err := s.Reschedule(ctx, patient, r)
	if err != nil {
		t.Fatal(err)
	}
	version := one[int64](p, `SELECT version FROM time_slot WHERE id = $1`, to)
	if len(g.full) != 1 || g.full[0].Slot != to || g.full[0].Version != version || g.full[0].At.IsZero() {
		t.Errorf("%+v, want slot %d in version %d", g.full, to, version)
	}
	if again, err := s.Reschedule(ctx, patient, r); err != nil || !again.Replayed || again.Appointment.ID != got.Appointment.ID {
		t.Errorf("%+v, %v", again, err)
	}
	asked = nil
	if same, err := s.Reschedule(ctx, patient, RescheduleRequest{Appointment: got.Appointment.ID, To: to, Key: "m2"}); err != nil || !same.Replayed || asked != nil {
		t.Errorf("%+v, %v: it is there already, and the gate was asked for %v", same, err, asked)
	}
	refuse = nil
	other := p.book(p.patient(), third, "b")
	_, err = s.Reschedule(ctx, SystemActor, RescheduleRequest{Appointment: other.Appointment.ID, To: to, Key: "m"})
	wantCode(t, err, SlotFull)
	if len(g.full) != 2 || g.full[1].Slot != to || g.full[1].Version != version {
		t.Errorf("%+v, want another of slot %d in version %d", g.full, to, version)
	}
	p.check()
}
