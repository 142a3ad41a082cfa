package booking

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// model is the rules in plain Go, for one caller after the other: what the database has to answer.
type model struct {
	now      time.Time
	fixed    int         // how many slots there are from the beginning
	slots    []modelSlot // and those that have come with their appointments
	flexible DoctorID    // who has hours
	claims   []*modelClaim
	rules    modelRules
	told     []string // the events, but for those of holds that lapse
}

type modelSlot struct {
	id         SlotID
	doctor     DoctorID
	start, end time.Time
	capacity   int
	flexible   bool
}

func (s modelSlot) overlaps(o modelSlot) bool { return s.start.Before(o.end) && o.start.Before(s.end) }

type modelClaim struct {
	id       AppointmentID
	request  BookRequest
	hold     bool // as which it was asked for
	slot     int
	owner    Actor
	referral string
	status   AppointmentStatus
	expires  time.Time
	move     RescheduleRequest // if it came about by one
}

// again makes the call that the claim came about by.
func (c *modelClaim) again(ctx context.Context, s *Service) (Booking, error) {
	if c.move.Key != "" {
		return s.Reschedule(ctx, c.owner, c.move)
	}
	return s.claim(ctx, c.owner, c.request, c.hold)
}

func (m *model) ids() (ids []SlotID) {
	for _, s := range m.slots {
		ids = append(ids, s.id)
	}
	return ids
}

// state is what the claim has come to by now.
func (m *model) state(c *modelClaim) AppointmentStatus {
	if c.status == AppointmentHeld && !c.expires.After(m.now) {
		return AppointmentExpired
	}
	return c.status
}

func (m *model) active(c *modelClaim) bool {
	return slices.Contains([]AppointmentStatus{AppointmentHeld, AppointmentBooked, AppointmentArrived}, m.state(c))
}

// find is an active claim of which something is true, or nil.
func (m *model) find(is func(*modelClaim) bool) *modelClaim {
	i := slices.IndexFunc(m.claims, func(c *modelClaim) bool { return m.active(c) && is(c) })
	if i < 0 {
		return nil
	}
	return m.claims[i]
}

func (m *model) free(slot int) int {
	free := m.slots[slot].capacity
	for _, c := range m.claims {
		if c.slot == slot && m.state(c) != AppointmentCancelled && m.state(c) != AppointmentExpired {
			free--
		}
	}
	return free
}

// claim is what a new request comes to; "" with a claim: that hold stands, "" with nil: won.
func (m *model) claim(owner Actor, slot int, hold bool, referral string) (Code, *modelClaim) {
	if !m.slots[slot].start.After(m.now) {
		return SlotPast, nil
	}
	own := m.find(func(c *modelClaim) bool { return c.slot == slot && c.owner == owner })
	switch {
	case own != nil && own.status == AppointmentHeld && hold && own.referral == referral:
		return "", own
	case own != nil:
		return AlreadyBooked, own
	case m.free(slot) == 0:
		return SlotFull, nil
	case m.forbidden(owner, slot, hold) != "":
		return m.forbidden(owner, slot, hold), nil
	case m.find(func(c *modelClaim) bool { return referral != "" && c.referral == referral }) != nil:
		return ReferralInUse, nil
	case m.find(func(c *modelClaim) bool { return c.owner == owner && m.slots[c.slot].overlaps(m.slots[slot]) }) != nil:
		return Overlap, nil
	}
	return "", nil
}

// step is what a step comes to.
func (m *model) step(step string, c *modelClaim) (Code, bool) {
	goal := AppointmentCancelled
	if step == stepConfirm {
		goal = AppointmentBooked
	}
	switch state := m.state(c); {
	case state == goal:
		return "", false
	case state == AppointmentExpired:
		return HoldExpired, false
	case state != AppointmentHeld && (state != AppointmentBooked || step != stepCancel):
		return InvalidState, false
	case !m.slots[c.slot].start.After(m.now):
		return TooLate, false
	case state == AppointmentBooked && m.cutOff(c):
		return TooLate, false
	}
	c.status = goal
	return "", true
}

// Whatever is asked, in whatever order, of two instances, with sweepers in between: the answers are
// those of the model, and so is what stands afterwards.
func TestModel(t *testing.T) {
	for name, n := range map[string]int{"rapid.checks": rounds(300), "rapid.steps": 100} { // a run is 100 calls on average
		if err := flag.Set(name, strconv.Itoa(n)); err != nil {
			t.Fatal(err)
		}
	}
	t.Parallel()
	p := newPractice(t)
	times := 0
	rapid.Check(t, func(t *rapid.T) {
		m := p.model()
		play(t, p, m)
		p.check()
		times += len(m.slots) - m.fixed
	})
	t.Logf("%d times were taken; %s", times, p.tally())
}

// model makes slots, and a doctor who has hours, for one run: two doctors with three slots each, and a slot in
// the hours of the third.
func (p *practice) model() *model {
	doctor := func() DoctorID {
		return one[DoctorID](p, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Model') RETURNING id`, p.organization)
	}
	m := &model{now: now, flexible: doctor()}
	p.flexible(m.flexible)
	add := func(doctor DoctorID, after, minutes, capacity int) {
		s := modelSlot{doctor: doctor, start: now.Add(time.Duration(after) * time.Minute), capacity: capacity}
		s.end = s.start.Add(time.Duration(minutes) * time.Minute)
		s.id = one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			VALUES ($1, $2, $3, $4, '2026-01-01') RETURNING id`, doctor, s.start, s.end, capacity)
		m.slots = append(m.slots, s)
	}
	for range 2 {
		doctor := doctor()
		for at := range 3 {
			add(doctor, 15+45*at, 20, 1+at%2)
		}
	}
	add(m.flexible, 90, 30, 1)
	m.fixed = len(m.slots)
	return m
}

// play makes random calls and holds the answers against the model.
func play(t *rapid.T, p *practice, m *model) {
	ctx := context.Background()
	config := patient(now)
	config.Now = func() time.Time { return m.now }
	services := []*Service{New(p.pool, config), New(p.pool, config)}
	patients := p.patients(4)
	run := fmt.Sprint(m.slots[0].id)
	before := one[int64](p, `SELECT coalesce(max(id), 0) FROM outbox_event`)
	m.setRules(p) // none so far
	any := func() *Service { return rapid.SampledFrom(services).Draw(t, "instance") }
	some := func() *modelClaim {
		if len(m.claims) == 0 {
			t.Skip("nothing to act on")
		}
		active := slices.DeleteFunc(slices.Clone(m.claims), func(c *modelClaim) bool { return !m.active(c) })
		if len(active) > 0 && rapid.Bool().Draw(t, "active") {
			return rapid.SampledFrom(active).Draw(t, "active appointment")
		}
		return rapid.SampledFrom(m.claims).Draw(t, "appointment")
	}
	claim := func(hold bool) {
		to, owner := m.draw(t), rapid.SampledFrom(patients).Draw(t, "patient")
		r := BookRequest{Time: to.time, Key: fmt.Sprint(len(m.claims), "-", rapid.Uint64().Draw(t, "key"))}
		if to.time == nil {
			r.Slot = m.slots[to.slot].id
		}
		if n := rapid.IntRange(0, 3).Draw(t, "referral"); n > 0 {
			r.Referral = fmt.Sprint("R", n, "-", run)
		}
		want, slot, stands := m.claimAt(owner, to, hold, r.Referral)
		b, err := any().claim(ctx, owner, r, hold)
		got := b.Appointment.ID
		if err != nil && want == AlreadyBooked {
			got = asError(p.t, err).Existing
		}
		if code(err) != want || stands != nil && got != stands.id || want == "" && b.Replayed != (stands != nil) {
			t.Fatalf("hold %v of %v for patient %d with %q: %+v, %v; want %q, %+v", hold, to, owner.PatientID, r.Referral, b, err, want, stands)
		}
		if want == "" && stands == nil {
			c := &modelClaim{id: got, request: r, hold: hold, slot: slot, owner: owner, referral: r.Referral, status: AppointmentBooked}
			if hold {
				c.status, c.expires = AppointmentHeld, m.now.Add(10*time.Minute)
			}
			m.won(c, b, string(c.status))
		}
	}
	step := func(step string) {
		c := some()
		event := map[string]string{stepConfirm: "BOOKED", stepRelease: "RELEASED", stepCancel: "CANCELLED"}[step]
		if c.status == AppointmentHeld && step == stepCancel {
			event = "RELEASED"
		}
		want, changed := m.step(step, c)
		s, err := any().step(ctx, c.owner, step, c.id, "")
		if code(err) != want || want == "" && (s.Changed != changed || s.Appointment.Status != c.status) {
			t.Fatalf("%s appointment %d: %+v, %v; want %q, %v, %s", step, c.id, s, err, want, changed, c.status)
		}
		if changed {
			m.tell(event, c)
		}
	}
	wait := func(*rapid.T) {
		m.now = m.now.Add(time.Duration(rapid.IntRange(1, 11).Draw(t, "minutes")) * time.Minute)
	}
	t.Repeat(map[string]func(*rapid.T){
		"book":    func(*rapid.T) { claim(false) },
		"hold":    func(*rapid.T) { claim(true) },
		"hold 2":  func(*rapid.T) { claim(true) },
		"hold 3":  func(*rapid.T) { claim(true) },
		"confirm": func(*rapid.T) { step(stepConfirm) },
		"release": func(*rapid.T) { step(stepRelease) },
		"cancel":  func(*rapid.T) { step(stepCancel) },
		"move":    func(*rapid.T) { m.playMove(t, p, any(), some) },
		"mark":    func(*rapid.T) { m.playMark(t, p, any(), some) },
		"mark 2":  func(*rapid.T) { m.playMark(t, p, any(), some) },
		"move 2":  func(*rapid.T) { m.playMove(t, p, any(), some) },
		"rules":   func(t *rapid.T) { m.playRules(t, p) },
		"retry": func(*rapid.T) {
			c := some()
			b, err := c.again(ctx, any())
			if err != nil || !b.Replayed || b.Appointment.ID != c.id || b.Appointment.Status != m.state(c) {
				t.Fatalf("retry of %+v: %+v, %v", c, b, err)
			}
		},
		"sweep": func(*rapid.T) {
			if rapid.IntRange(0, 3).Draw(t, "seldom") == 3 { // so that many holds are met that nobody has tidied
				if _, err := any().Expire(ctx); err != nil {
					t.Fatal(err)
				}
			}
		},
		"wait":   wait,
		"wait 2": wait,
		"": func(*rapid.T) {
			if got, want := p.standing(m, before), m.standing(); got != want {
				t.Fatalf("free places, states, times taken and events\n%s\nwant\n%s", got, want)
			}
		},
	})
}

// won keeps a claim that was answered with a booking, and what is told of it.
func (m *model) won(c *modelClaim, b Booking, event string) {
	if m.slots[c.slot].id == 0 { // it has come with the appointment
		m.slots[c.slot].id = b.Appointment.SlotID
	}
	m.claims = append(m.claims, c)
	m.tell(event, c)
}

func (m *model) tell(event string, c *modelClaim) {
	m.told = append(m.told, fmt.Sprint(event, " ", c.id))
}

// standing is the free places of each slot, the state of each appointment, the slots of times that are
// taken, and the events.
func (m *model) standing() string {
	var s strings.Builder
	for i := range m.slots {
		fmt.Fprint(&s, m.free(i), " ")
	}
	for _, c := range m.claims {
		fmt.Fprint(&s, c.id, "=", m.state(c), " ")
	}
	for i, slot := range m.slots {
		if slot.flexible && m.free(i) == 0 {
			fmt.Fprint(&s, slot.id, " ")
		}
	}
	return s.String() + strings.Join(m.told, ", ")
}

// standing is the same, as the database has it.
func (p *practice) standing(m *model, before int64) string {
	return one[string](p, `
		SELECT concat((SELECT string_agg((capacity - booked_count + (SELECT count(*) FROM appointment x
		                   WHERE x.slot_id = s.id AND x.status = 'HELD' AND x.expires_at <= $2)) || ' ', '' ORDER BY id)
		                 FROM time_slot s WHERE id = ANY ($1)),
		              (SELECT string_agg(id || '=' || CASE WHEN status = 'HELD' AND expires_at <= $2 THEN 'EXPIRED' ELSE status END || ' ', '' ORDER BY id)
		                 FROM appointment WHERE slot_id = ANY ($1)),
		              (SELECT string_agg(id || ' ', '' ORDER BY id) FROM time_slot s
		                WHERE doctor_id = $3 AND kind = 'FLEXIBLE' AND status <> 'WITHDRAWN'
		                  AND NOT EXISTS (SELECT FROM appointment x WHERE x.slot_id = s.id AND x.status = 'HELD' AND x.expires_at <= $2)),
		              (SELECT string_agg(concat(type, ' ', payload->'appointmentId'), ', ' ORDER BY id)
		                 FROM outbox_event WHERE id > $4 AND type <> 'EXPIRED'))`, m.ids(), m.now, m.flexible, before)
}
