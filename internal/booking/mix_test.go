package booking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
)

// mixed is what one of the callers of TestMixOfEverything does next.
type mixed struct {
	*practice
	service *Service
	who     Actor
	slots   []SlotID
	beside  DoctorID // with flexible hours
	dice    *rand.Rand
	key     string
}

// target is a slot or a time.
func (m *mixed) target() (SlotID, *TimeTarget) {
	if m.dice.IntN(3) > 0 {
		return m.slots[m.dice.IntN(len(m.slots))], nil
	}
	t := m.time(15*m.dice.IntN(8), 15+15*m.dice.IntN(3))
	t.Doctor = m.beside
	return 0, t
}

// own is one of the caller's appointments that have a place.
func (m *mixed) own(ctx context.Context) (AppointmentID, error) {
	page, err := m.service.PatientAppointments(ctx, m.who, Page{First: 100})
	var standing []AppointmentID
	for _, a := range page.Appointments {
		if a.Status != AppointmentCancelled && a.Status != AppointmentExpired {
			standing = append(standing, a.ID)
		}
	}
	if err != nil || len(standing) == 0 {
		return 1, err
	}
	return standing[m.dice.IntN(len(standing))], nil
}

// act does one of all the things that can be done.
func (m *mixed) act(ctx context.Context) error {
	own, err := m.own(ctx)
	if err != nil {
		return err
	}
	slot, at := m.target()
	request := BookRequest{Slot: slot, Time: at, Key: m.key}
	if m.dice.IntN(4) == 0 {
		request.Referral = fmt.Sprint("R", m.dice.IntN(6))
	}
	switch m.dice.IntN(12) {
	case 0, 1:
		_, err = m.service.Book(ctx, m.who, request)
	case 2, 3:
		_, err = m.service.Hold(ctx, m.who, request)
	case 4, 5:
		_, err = m.service.Confirm(ctx, m.who, own)
	case 6:
		_, err = m.service.Release(ctx, m.who, own)
	case 7:
		_, err = m.service.Cancel(ctx, m.who, CancelRequest{Appointment: own})
	case 8, 9:
		_, err = m.service.Reschedule(ctx, m.who, RescheduleRequest{Appointment: own, To: slot, ToTime: at, Key: m.key})
	case 10:
		doctor := []DoctorID{m.doctor, m.beside}[m.dice.IntN(2)]
		_, _, err = m.service.JoinWaitingList(ctx, m.who, WaitingRequest{Doctor: doctor, From: today, To: today.AddDays(1 + m.dice.IntN(3))})
	default:
		marks := []AppointmentStatus{AppointmentArrived, AppointmentBooked, AppointmentBooked, AppointmentFulfilled}
		_, err = m.service.Mark(ctx, m.staff(), own, marks[m.dice.IntN(len(marks))])
	}
	return err
}

// Sixteen callers at two instances do all that can be done, with slots and with times, under the rules
// of a practice, while a sweeper tidies and holds and offers lapse: whatever is refused has a code,
// there is no deadlock, and the invariants hold at every moment.
func TestMixOfEverything(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	beside := one[DoctorID](p, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Beside') RETURNING id`, p.organization)
	p.flexible(beside)
	p.exec(`UPDATE organization SET offer_minutes = 1, hold_minutes = 1, max_active = 4, max_holds = 2`)
	slots, patients := p.slots(4, 1, 2), p.patients(16)
	config, busy, dead := p.impatient()
	begun := time.Now()
	config.Now = func() time.Time { return now.Add(20 * time.Since(begun)) }
	services := []*Service{New(p.pool, config), New(p.pool, config)}
	var calls, late atomic.Int64
	together(len(patients)+1, func(caller int) {
		dice := rand.New(rand.NewPCG(uint64(caller), 11))
		for n := range rounds(10_000) / len(patients) {
			if caller == len(patients) { // the sweeper, and who looks
				if _, err := services[0].Expire(ctx); err != nil && !busy(err) {
					t.Error(err)
				}
				p.check()
				continue
			}
			m := &mixed{practice: p, service: services[dice.IntN(2)], who: patients[caller], slots: slots, beside: beside, dice: dice,
				key: fmt.Sprintf("%d.%d", caller, n)}
			err := m.act(ctx)
			calls.Add(1)
			if err != nil && busy(err) {
				late.Add(1)
				continue
			}
			if err := allow(err, SlotFull, SlotIsClosed, SlotPast, AlreadyBooked, Overlap, ReferralInUse, HoldExpired, InvalidState, NotFound,
				LimitReached, TooLate); err != nil {
				t.Error(err)
			}
		}
	})
	p.check()
	if n := dead.Load(); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
	t.Logf("%d calls, %d of them OVERLOADED; %s", calls.Load(), late.Load(), p.tally())
	if n := one[int](p, `SELECT count(DISTINCT type) FROM outbox_event`); n < 8 {
		t.Errorf("only %d kinds of event", n)
	}
}

// tally is how many events of each kind there were.
func (p *practice) tally() string {
	return one[string](p, `SELECT string_agg(type || ' ' || n, ', ' ORDER BY type) FROM (SELECT type, count(*) AS n FROM outbox_event GROUP BY type) AS s`)
}
