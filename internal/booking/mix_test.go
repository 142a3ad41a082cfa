package booking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// mix is sixteen callers at two instances who do all that can be done, with slots and with times, under
// the rules of a practice, while a sweeper tidies and holds and offers lapse.
type mix struct {
	*practice
	services []*Service
	patients []Actor
	slots    []SlotID
	beside   DoctorID // with flexible hours
	busy     func(error) bool
	watch    func() // what the sweeper does besides
	ledger   *ledger
	rounds   int

	mu      sync.Mutex
	answers []answer // since the last quiet moment
	errs    []error  // what nobody may hear
	took    []time.Duration
	late    int // calls that were OVERLOADED
}

// answer is that a call has changed something: the event that has to tell of it, "" = none.
type answer struct {
	event       string // gone: RELEASED or CANCELLED
	appointment AppointmentID
	referral    string    // of one that was booked or held
	entry       WaitingID // of the waiting list, new
}

const gone = "gone"

// newMix gives the practice a crowd; dead counts deadlocks.
func newMix(p *practice) (m *mix, dead func() int64) {
	m = &mix{practice: p, patients: p.patients(16), watch: func() {}}
	m.beside = one[DoctorID](p, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Beside') RETURNING id`, p.organization)
	p.flexible(m.beside)
	p.exec(`UPDATE organization SET offer_minutes = 1, hold_minutes = 1, max_active = 4, max_holds = 2`)
	m.slots = append(p.slots(5, 2, 1, 3), p.slot(3*time.Minute, 2)) // which begins after three seconds
	config, busy, deadlocks := p.impatient()
	begun := time.Now()
	config.Now = func() time.Time { return now.Add(60 * time.Since(begun)) }
	m.services, m.busy = []*Service{New(p.pool, config), New(p.pool, config)}, busy
	m.ledger = newLedger(p)
	return m, deadlocks.Load
}

// run has each caller make some calls, all of them at once, and then compares what the events tell with
// what there is and what the callers were told. It gives what is wrong.
func (m *mix) run(calls int) []string {
	m.rounds++
	together(len(m.patients)+1, func(caller int) {
		dice := rand.New(rand.NewPCG(uint64(caller), uint64(m.rounds)))
		for n := range calls {
			if caller == len(m.patients) {
				_, err := m.services[0].Expire(context.Background())
				m.note(answer{}, err)
				m.watch()
				continue
			}
			c := &mixed{mix: m, service: m.services[dice.IntN(2)], who: m.patients[caller], dice: dice, key: fmt.Sprint(m.rounds, ".", n)}
			begun := time.Now()
			made, err := c.act(context.Background())
			m.note(made, err)
			m.mu.Lock()
			m.took = append(m.took, time.Since(begun))
			m.mu.Unlock()
		}
	})
	answers := m.answers
	m.answers = nil
	return m.ledger.read(m.practice, answers)
}

// note keeps what a call came to.
func (m *mix) note(made answer, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.answers = append(m.answers, made)
	case m.busy(err):
		m.late++
	case allow(err, SlotFull, SlotIsClosed, SlotPast, AlreadyBooked, Overlap, ReferralInUse, HoldExpired, InvalidState, NotFound,
		LimitReached, TooLate) != nil:
		m.errs = append(m.errs, err)
	}
}

// mixed is one call of one of them.
type mixed struct {
	*mix
	service *Service
	who     Actor
	dice    *rand.Rand
	key     string
}

// target is a slot or a time: of tomorrow, both.
func (c *mixed) target() (SlotID, *TimeTarget) {
	if c.dice.IntN(2) > 0 {
		return c.slots[c.dice.IntN(len(c.slots))], nil
	}
	t := c.time(23*60+15*c.dice.IntN(8), 15+15*c.dice.IntN(3))
	t.Doctor = c.beside
	return 0, t
}

// own is one of the caller's appointments that have a place.
func (c *mixed) own(ctx context.Context) (AppointmentID, error) {
	page, err := c.service.PatientAppointments(ctx, c.who, Page{First: 100})
	standing := slices.DeleteFunc(page.Appointments, func(a Appointment) bool {
		return a.Status == AppointmentCancelled || a.Status == AppointmentExpired
	})
	if err != nil || len(standing) == 0 {
		return 1, err
	}
	return standing[c.dice.IntN(len(standing))].ID, nil
}

// act does one of all the things that can be done.
func (c *mixed) act(ctx context.Context) (answer, error) {
	own, err := c.own(ctx)
	if err != nil {
		return answer{}, err
	}
	slot, at := c.target()
	request := BookRequest{Slot: slot, Time: at, Key: c.key}
	if c.dice.IntN(4) == 0 {
		request.Referral = fmt.Sprint("R", c.dice.IntN(6))
	}
	won := func(event, referral string, b Booking, err error) (answer, error) {
		if err != nil || b.Replayed {
			return answer{}, err
		}
		return answer{event: event, appointment: b.Appointment.ID, referral: referral}, nil
	}
	stepped := func(event string, s Step, err error) (answer, error) {
		if err != nil || !s.Changed {
			return answer{}, err
		}
		return answer{event: event, appointment: s.Appointment.ID}, nil
	}
	switch c.dice.IntN(16) {
	case 0, 1, 2:
		b, err := c.service.Book(ctx, c.who, request)
		return won("BOOKED", request.Referral, b, err)
	case 3, 4, 5:
		b, err := c.service.Hold(ctx, c.who, request)
		return won("HELD", request.Referral, b, err)
	case 6, 7:
		s, err := c.service.Confirm(ctx, c.who, own)
		return stepped("BOOKED", s, err)
	case 8:
		s, err := c.service.Release(ctx, c.who, own)
		return stepped(gone, s, err)
	case 9, 10:
		s, err := c.service.Cancel(ctx, c.who, CancelRequest{Appointment: own})
		return stepped(gone, s, err)
	case 11, 12, 13:
		b, err := c.service.Reschedule(ctx, c.who, RescheduleRequest{Appointment: own, To: slot, ToTime: at, Key: c.key})
		return won("RESCHEDULED", "", b, err)
	case 14:
		doctor := []DoctorID{c.doctor, c.beside}[c.dice.IntN(2)]
		e, joined, err := c.service.JoinWaitingList(ctx, c.who, WaitingRequest{Doctor: doctor, From: today, To: today.AddDays(1 + c.dice.IntN(3))})
		if !joined {
			return answer{}, err
		}
		return answer{entry: e.ID}, err
	default:
		marks := []AppointmentStatus{AppointmentArrived, AppointmentBooked, AppointmentBooked, AppointmentBooked, AppointmentFulfilled, AppointmentNoShow}
		status := marks[c.dice.IntN(len(marks))]
		event := string(status)
		if status == AppointmentBooked {
			event = "UNMARKED"
		}
		s, err := c.service.Mark(ctx, c.staff(), own, status)
		return stepped(event, s, err)
	}
}

// Whatever is refused has a code, there is no deadlock, and the invariants hold at every moment; at each
// quiet one the events, told one after the other, come to what there is, and every change that a caller
// was told of has its one event, and no event is without.
func TestMixOfEverything(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	m, dead := newMix(p)
	m.watch = p.check
	const each = 25
	for range rounds(10_000) / len(m.patients) / each {
		if wrong := m.run(each); wrong != nil {
			t.Error(strings.Join(wrong, "\n"))
			break
		}
		p.check()
	}
	for _, err := range m.errs {
		t.Error(err)
	}
	if n := dead(); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
	slices.Sort(m.took)
	t.Logf("%d calls, %d of them OVERLOADED, %d refused without a code, median %v, p99 %v; %s", len(m.took), m.late, len(m.errs),
		m.took[len(m.took)/2], m.took[len(m.took)*99/100], p.tally())
	if n := one[int](p, `SELECT count(DISTINCT type) FROM outbox_event`); n < 7 {
		t.Errorf("only %d kinds of event", n)
	}
}

// The controls: of whatever goes wrong, the comparison knows.
func TestMixControls(t *testing.T) {
	t.Parallel()
	const event = "INSERT INTO outbox_event (root_id, type, payload)"
	for name, without := range map[string]func(p *practice){
		"a confirmation is not told": func(p *practice) {
			p.without("step", event+" VALUES (a.root_id, 'BOOKED', booking_payload(a, slot));", "")
		},
		"a confirmation is told as a hold": func(p *practice) {
			p.without("step", "VALUES (a.root_id, 'BOOKED', booking_payload(a, slot));", "VALUES (a.root_id, 'HELD', booking_payload(a, slot));")
		},
		"a move is told of another slot": func(p *practice) {
			p.without("reschedule", "booking_payload(a, target) ||", "booking_payload(a, slot) ||")
		},
		"an offer is told as a hold": func(p *practice) {
			p.without("offer_places", "'OFFERED', booking_payload(offer, slot)", "'HELD', booking_payload(offer, slot)")
		},
		"a place never comes back": func(p *practice) { p.without("give_back", "t.booked_count - g.places,", "t.booked_count,") },
		"a lapse is told twice": func(p *practice) {
			p.without("release_due", "FROM lapsed l JOIN time_slot t ON t.id = l.slot_id", "FROM lapsed l JOIN time_slot t ON t.id = l.slot_id, generate_series(1, 2)")
		},
		"places beyond the last": func(p *practice) {
			p.without("claim", `slot.booked_count + won[i] < slot.capacity`, `true`)
			p.without("claim", `AND t.booked_count + w.places <= t.capacity`, ``)
			p.exec(`ALTER TABLE time_slot DROP CONSTRAINT chk_booked`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t)
			without(p)
			m, _ := newMix(p)
			for range 100 {
				if wrong := m.run(5); wrong != nil {
					t.Logf("round %d: %s", m.rounds, wrong[0])
					return
				}
			}
			t.Error("the control does not bite")
		})
	}
}

// tally is how many events of each kind there were.
func (p *practice) tally() string {
	return one[string](p, `SELECT string_agg(type || ' ' || n, ', ' ORDER BY type) FROM (SELECT type, count(*) AS n FROM outbox_event GROUP BY type) AS s`)
}
