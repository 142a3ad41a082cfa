package booking

import (
	"time"

	"pgregory.net/rapid"
)

// modelRules are those of the practice; nil = none. All slots of a run are of one day.
type modelRules struct {
	notice, cutoff        *int // minutes
	active, holds, perDay *int
}

func (m *model) count(is func(*modelClaim) bool) (n int) {
	for _, c := range m.claims {
		if m.active(c) && is(c) {
			n++
		}
	}
	return n
}

// stand is how many claims of the owner were not given up, those that are over included.
func (m *model) stand(owner Actor) (n int) {
	for _, c := range m.claims {
		if state := m.state(c); c.owner == owner && state != AppointmentCancelled && state != AppointmentExpired {
			n++
		}
	}
	return n
}

// forbidden is why the practice's rules forbid a claim, or "".
func (m *model) forbidden(owner Actor, slot int, hold bool) Code {
	reached := func(most *int, counts func(*modelClaim) bool) bool {
		return most != nil && m.count(func(c *modelClaim) bool { return c.owner == owner && counts(c) }) >= *most
	}
	switch r := m.rules; {
	case r.notice != nil && m.slots[slot].start.Sub(m.now) < time.Duration(*r.notice)*time.Minute:
		return TooLate
	case hold && reached(r.holds, func(c *modelClaim) bool { return c.status == AppointmentHeld }),
		r.perDay != nil && m.stand(owner) >= *r.perDay,
		reached(r.active, func(c *modelClaim) bool { return m.slots[c.slot].end.After(m.now) }):
		return LimitReached
	}
	return ""
}

// cutOff reports whether it is too late for the patient to give up what is booked.
func (m *model) cutOff(c *modelClaim) bool {
	return m.rules.cutoff != nil && m.slots[c.slot].start.Sub(m.now) < time.Duration(*m.rules.cutoff)*time.Minute
}

// playRules gives the practice other rules.
func (m *model) playRules(t *rapid.T, p *practice) {
	some := func(name string, values ...int) *int {
		if n := rapid.IntRange(0, 4*len(values)).Draw(t, name); n < len(values) {
			return &values[n]
		}
		return nil
	}
	m.rules = modelRules{some("notice", 10, 20), some("cutoff", 10, 20), some("active", 1, 2), some("holds", 1, 2), some("per day", 1, 2)}
	m.setRules(p)
}

func (m *model) setRules(p *practice) {
	r := m.rules
	p.exec(`UPDATE organization SET notice_minutes = $2, cutoff_minutes = $3, max_active = $4, max_holds = $5, max_per_day = $6
		WHERE id = $1`, p.organization, r.notice, r.cutoff, r.active, r.holds, r.perDay)
}
