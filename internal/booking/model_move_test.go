package booking

import (
	"context"
	"fmt"

	"pgregory.net/rapid"
)

// reschedule is what a move comes to, and the slot it leads to; "" and false: it is there already.
func (m *model) reschedule(c *modelClaim, to modelTarget) (code Code, slot int, changed bool) {
	switch state := m.state(c); {
	case state == AppointmentBooked && m.is(c, to):
		return "", 0, false
	case state == AppointmentExpired:
		return HoldExpired, 0, false
	case state != AppointmentBooked:
		return InvalidState, 0, false
	case !m.slots[c.slot].start.After(m.now), m.cutOff(c):
		return TooLate, 0, false
	}
	c.status = AppointmentCancelled // so that it is in nobody's way
	code, slot, _ = m.claimAt(c.owner, to, false, c.referral)
	if code != "" {
		c.status = AppointmentBooked
	}
	return code, slot, code == ""
}

// playMove moves an appointment, named in one way or the other, to some slot or time.
func (m *model) playMove(t *rapid.T, p *practice, s *Service, some func() *modelClaim) {
	c, to := some(), m.draw(t)
	r := RescheduleRequest{Appointment: c.id, ToTime: to.time, Key: fmt.Sprint(len(m.claims), "-", rapid.Uint64().Draw(t, "key"))}
	if to.time == nil {
		r.To = m.slots[to.slot].id
	}
	if c.referral != "" && m.active(c) && rapid.Bool().Draw(t, "by referral") {
		r.Appointment, r.Referral, r.From = 0, c.referral, m.slots[c.slot].id
	}
	want, slot, changed := m.reschedule(c, to)
	b, err := s.Reschedule(context.Background(), c.owner, r)
	if code(err) != want || want == "" && b.Replayed == changed {
		t.Fatalf("move of appointment %d to %v: %+v, %v; want %q, %v", c.id, to, b, err, want, changed)
	}
	if !changed {
		return
	}
	if *b.Appointment.Replaces != c.id {
		t.Fatalf("%+v does not replace appointment %d", b.Appointment, c.id)
	}
	m.won(&modelClaim{id: b.Appointment.ID, slot: slot, owner: c.owner, referral: c.referral, status: AppointmentBooked, move: r}, b, "RESCHEDULED")
}

// mark is what a mark comes to.
func (m *model) mark(c *modelClaim, status AppointmentStatus) (Code, bool) {
	begun := !m.slots[c.slot].start.After(m.now)
	switch state := m.state(c); {
	case state == status:
		return "", false
	case state == AppointmentExpired:
		return HoldExpired, false
	case state == AppointmentHeld || state == AppointmentCancelled,
		!begun && (status == AppointmentNoShow || status == AppointmentFulfilled && state != AppointmentArrived):
		return InvalidState, false
	}
	if (status == AppointmentBooked || status == AppointmentArrived) && !m.active(c) { // what has been booked since?
		other := func(is func(*modelClaim) bool) bool {
			return m.find(func(x *modelClaim) bool { return x != c && is(x) }) != nil
		}
		switch {
		case other(func(x *modelClaim) bool { return x.slot == c.slot && x.owner == c.owner }):
			return AlreadyBooked, false
		case other(func(x *modelClaim) bool { return c.referral != "" && x.referral == c.referral }):
			return ReferralInUse, false
		case other(func(x *modelClaim) bool {
			return x.owner == c.owner && m.slots[x.slot].overlaps(m.slots[c.slot])
		}):
			return Overlap, false
		}
	}
	c.status = status
	return "", true
}

// playMark has the desk note something of an appointment.
func (m *model) playMark(t *rapid.T, p *practice, s *Service, some func() *modelClaim) {
	c := some()
	status := rapid.SampledFrom([]AppointmentStatus{AppointmentBooked, AppointmentArrived, AppointmentFulfilled, AppointmentNoShow}).Draw(t, "mark")
	want, changed := m.mark(c, status)
	got, err := s.Mark(context.Background(), p.staff(), c.id, status)
	if code(err) != want || want == "" && (got.Changed != changed || got.Appointment.Status != status) {
		t.Fatalf("mark of appointment %d as %s: %+v, %v; want %q, %v", c.id, status, got, err, want, changed)
	}
	if event := string(status); changed {
		if status == AppointmentBooked {
			event = "UNMARKED"
		}
		m.tell(event, c)
	}
}
