package booking

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// modelTarget is what is asked for: one of the slots that there are from the beginning, or a time.
type modelTarget struct {
	slot int
	time *TimeTarget
}

func (to modelTarget) String() string {
	if to.time != nil {
		return fmt.Sprintf("%+v", *to.time)
	}
	return fmt.Sprint("slot ", to.slot)
}

// draw gives a slot or a time, seldom one that is not offered.
func (m *model) draw(t *rapid.T) modelTarget {
	if rapid.Bool().Draw(t, "at a slot") {
		return modelTarget{slot: rapid.IntRange(0, m.fixed-1).Draw(t, "slot")}
	}
	after := int(m.now.Sub(now).Minutes())/15*15 + // 0 quarters from there: it has begun
		15*rapid.SampledFrom([]int{0, 1, 1, 2, 2, 3, 3, 4, 5, 6}).Draw(t, "quarters") + rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 5}).Draw(t, "off the grid")
	minutes := rapid.SampledFrom([]int{15, 15, 15, 15, 30, 30, 30, 45, 60, 20}).Draw(t, "minutes")
	return modelTarget{time: &TimeTarget{Doctor: m.flexible, StartAt: now.Add(time.Duration(after) * time.Minute), Minutes: minutes}}
}

// is reports whether the claim is at the target.
func (m *model) is(c *modelClaim, to modelTarget) bool {
	if to.time == nil {
		return c.slot == to.slot
	}
	at, slot := m.place(to.time), m.slots[c.slot]
	return slot.doctor == at.doctor && slot.start.Equal(at.start) && slot.end.Equal(at.end)
}

// place is the slot that a time would come with.
func (m *model) place(t *TimeTarget) modelSlot {
	return modelSlot{doctor: t.Doctor, start: t.StartAt, end: t.StartAt.Add(time.Duration(t.Minutes) * time.Minute), capacity: 1, flexible: true}
}

// claimAt is claim for any target, and gives the slot as well. Where a time is won, its slot is there
// from now on.
func (m *model) claimAt(owner Actor, to modelTarget, hold bool, referral string) (code Code, slot int, stands *modelClaim) {
	if to.time == nil {
		code, stands = m.claim(owner, to.slot, hold, referral)
		return code, to.slot, stands
	}
	place := m.place(to.time)
	for i, s := range m.slots {
		switch {
		case !s.flexible || m.free(i) > 0 || !s.overlaps(place):
		case s.start.Equal(place.start) && s.end.Equal(place.end): // perhaps their own
			code, stands = m.claim(owner, i, hold, referral)
			return code, i, stands
		default:
			return SlotFull, 0, nil
		}
	}
	if !m.offers(place) {
		return SlotIsClosed, 0, nil
	}
	m.slots = append(m.slots, place)
	slot = len(m.slots) - 1
	if code, _ = m.claim(owner, slot, hold, referral); code != "" {
		m.slots = m.slots[:slot]
	}
	return code, slot, nil
}

// offers reports whether the doctor's hours have such a place: from an hour before now on, for ten, each day.
func (m *model) offers(place modelSlot) bool {
	after, length := place.start.Sub(now.Add(-time.Hour))%aDay, place.end.Sub(place.start)
	return after%(15*time.Minute) == 0 && length%(15*time.Minute) == 0 && after+length <= 10*time.Hour &&
		!slices.ContainsFunc(m.slots[:m.fixed], func(s modelSlot) bool { return s.doctor == place.doctor && s.overlaps(place) })
}

// The controls of the model: of each thing that is left out it knows.
func TestModelControls(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ function, guard, instead string }{
		"a time that is given back stays":      {"flexible_slot", "NEW.status := 'WITHDRAWN'", "NEW.status := 'OPEN'"}, // whatever give_back says
		"what is refused leaves a slot":        {"claim_time", "IF outcome <> 'WON' THEN", "IF false THEN"},
		"a lapsed hold is in the way":          {"open_time", "THEN 'LAPSED' ELSE 'TIME_TAKEN' END", "THEN 'TIME_TAKEN' ELSE 'TIME_TAKEN' END"},
		"its own time is in the way of a move": {"reschedule", "PERFORM give_back(v_now, ARRAY[slot.id], ARRAY[1], waiting, ARRAY[moved.id]);", ""},
		"times over slots":                     {"times_offered", "t.kind = 'FIXED' AND", "false AND"},
		"times off the grid":                   {"times_offered", "w.every)", "interval '5 min')"},
		"times of any length":                  {"times_offered", "p_minutes = ANY (w.durations) AND", ""},
		"a move is not told":                   {"reschedule", "INSERT INTO outbox_event (root_id, type, payload)\n        VALUES (a.root_id, 'RESCHEDULED'", "PERFORM (a.root_id, 'RESCHEDULED'"},
		"a time's overlaps are not seen":       {"claim", "ON CONFLICT DO NOTHING", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPractice(t)
			p.without(tt.function, tt.guard, tt.instead)
			if seed := p.complaint(); seed < 0 {
				t.Error("the model does not see it")
			} else {
				t.Logf("seen in run %d", seed)
			}
		})
	}
}

// complaint is the first of many runs in which the model sees that something is wrong, or -1.
func (p *practice) complaint() int {
	for seed := range 100 {
		wrong := false
		rapid.Custom(func(t *rapid.T) bool {
			defer func() { wrong = recover() != nil }()
			play(t, p, p.model())
			return true
		}).Example(seed)
		if wrong {
			return seed
		}
	}
	return -1
}
