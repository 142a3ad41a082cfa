package booking

import (
	"context"
	"strings"
	"testing"
	"time"
)

// ruleProbe is a question about the rules of a practice of its own.
type ruleProbe struct {
	name   string
	rules  string        // of the practice
	has    string        // what there is: words of given
	ask    string        // book, hold, cancel or move
	before time.Duration // the start that it is asked, by a patient
	want   Code

	*practice
	patient Actor
	own     AppointmentID // cancel, move: what
	slot    SlotID        // book, hold, move: where
}

const aDay, aMinute = 24 * time.Hour, time.Minute

// start is that of the slots that probes ask about: 09:00 in Berlin.
var start = now.Add(2 * aDay)

func (b *ruleProbe) at() time.Time { return start.Add(-b.before) }

// ruleProbes have a row just within each bound and one just beyond it.
func ruleProbes() []*ruleProbe {
	return []*ruleProbe{
		{name: "at the horizon", rules: "horizon_days = 1", ask: "book", before: aDay},
		{name: "beyond the horizon", rules: "horizon_days = 1", ask: "book", before: aDay + time.Microsecond, want: TooEarly},
		{name: "at the notice", rules: "notice_minutes = 60", ask: "book", before: 60 * aMinute},
		{name: "within the notice", rules: "notice_minutes = 60", ask: "book", before: 60*aMinute - time.Microsecond, want: TooLate},
		{name: "cancelled at the cut-off", rules: "cutoff_minutes = 60", ask: "cancel", before: 60 * aMinute},
		{name: "cancelled after the cut-off", rules: "cutoff_minutes = 60", ask: "cancel", before: 60*aMinute - time.Microsecond, want: TooLate},
		{name: "moved at the cut-off", rules: "cutoff_minutes = 60", ask: "move", before: 60 * aMinute},
		{name: "moved after the cut-off", rules: "cutoff_minutes = 60", ask: "move", before: 60*aMinute - time.Microsecond, want: TooLate},

		{name: "a hold is left", rules: "max_holds = 2", has: "held booked", ask: "hold", before: aDay},
		{name: "no hold is left", rules: "max_holds = 2", has: "held held", ask: "hold", before: aDay, want: LimitReached},
		{name: "no hold is left to book", rules: "max_holds = 2", has: "held held", ask: "book", before: aDay},
		{name: "holds: one lapses", rules: "max_holds = 2", has: "held lapsing", ask: "hold", before: aDay},
		{name: "holds: another's", rules: "max_holds = 2", has: "held another's-held", ask: "hold", before: aDay},
		{name: "holds: elsewhere", rules: "max_holds = 2", has: "held elsewhere-held", ask: "hold", before: aDay},

		{name: "the day has one", rules: "max_per_day = 2", has: "booked", ask: "book", before: aDay},
		{name: "the day has two", rules: "max_per_day = 2", has: "booked held", ask: "book", before: aDay, want: LimitReached},
		{name: "the day had two", rules: "max_per_day = 2", has: "fulfilled missed", ask: "book", before: aDay, want: LimitReached},
		{name: "day: one is given up", rules: "max_per_day = 2", has: "booked cancelled", ask: "book", before: aDay},
		{name: "day: one lapses", rules: "max_per_day = 2", has: "booked lapsing", ask: "book", before: aDay},
		{name: "day: one is of another", rules: "max_per_day = 2", has: "booked next-day", ask: "book", before: aDay},
		{name: "day: another's", rules: "max_per_day = 2", has: "booked another's-booked", ask: "book", before: aDay},
		{name: "day: elsewhere", rules: "max_per_day = 2", has: "booked elsewhere-booked", ask: "book", before: aDay},

		{name: "has one", rules: "max_active = 2", has: "booked", ask: "book", before: aDay},
		{name: "has two", rules: "max_active = 2", has: "arrived held", ask: "book", before: aDay, want: LimitReached},
		{name: "one was missed", rules: "max_active = 2", has: "booked missed", ask: "book", before: aDay},
		{name: "one is over", rules: "max_active = 2", has: "booked over", ask: "book", before: aDay},
		{name: "one lapses", rules: "max_active = 2", has: "booked lapsing", ask: "book", before: aDay},
		{name: "another's", rules: "max_active = 2", has: "booked another's-booked", ask: "book", before: aDay},
		{name: "elsewhere", rules: "max_active = 2", has: "booked elsewhere-booked", ask: "book", before: aDay},
	}
}

// given makes one of the things that there are before somebody asks, n hours after the start.
func (b *ruleProbe) given(n int, word string) AppointmentID {
	b.t.Helper()
	at, patient, organization, doctor := start.Add(time.Duration(n)*time.Hour), b.patient, b.organization, b.doctor
	if rest, other := strings.CutPrefix(word, "another's-"); other {
		patient, word = b.practice.patient(), rest
	} else if rest, other := strings.CutPrefix(word, "elsewhere-"); other {
		organization, doctor = b.newDoctor("beside " + b.name)
		word = rest
	}
	status, expires := strings.ToUpper(word), at
	switch word {
	case "lapsing":
		status, expires = "HELD", b.at()
	case "missed":
		status = "NO_SHOW"
	case "next-day":
		status, at = "BOOKED", at.Add(aDay)
	case "over":
		status, at = "BOOKED", b.at().Add(-30*time.Minute)
	}
	return one[AppointmentID](b.practice, `
		WITH slot AS (INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, booked_count, opens_at)
		              VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', 9, 1, '2026-01-01') RETURNING *)
		INSERT INTO appointment (slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, root_id, during, expires_at)
		SELECT id, $3, $4, $5, id::text, 'given', '', 0, tstzrange(start_at, end_at), $6 FROM slot RETURNING id`,
		doctor, at, patient.PatientID, organization, status, expires)
}

// prepare makes the probe's practice and what there is in it.
func (b *ruleProbe) prepare(p *practice) {
	b.practice = &practice{t: p.t, pool: p.pool}
	b.organization, b.doctor = p.newDoctor(b.name)
	b.patient = p.patient()
	b.practice.rules(b.rules)
	for n, word := range strings.Fields(b.has) {
		b.given(n+1, word)
	}
	if b.ask == "cancel" || b.ask == "move" {
		b.own = b.given(0, "booked")
		b.slot = b.slotAt(start.Add(8 * time.Hour))
	} else {
		b.slot = b.slotAt(start)
	}
}

// rule is what the functions say that decide.
func (b *ruleProbe) rule() Code {
	if b.own != 0 {
		return one[Code](b.practice, `SELECT coalesce((cutoff_rule($1, $2, $3)).code, '')`, b.at(), b.organization, start)
	}
	return one[Code](b.practice, `SELECT coalesce((forbidding_rule($1, $2, $3, $4, $5)).code, '')`,
		b.at(), b.organization, b.patient.PatientID, start, b.ask == "hold")
}

// call is what the patient hears.
func (b *ruleProbe) call() (err error) {
	ctx, s := context.Background(), b.practice.at(b.at())
	switch b.ask {
	case "cancel":
		_, err = s.Cancel(ctx, b.patient, CancelRequest{Appointment: b.own})
	case "move":
		_, err = s.Reschedule(ctx, b.patient, RescheduleRequest{Appointment: b.own, To: b.slot, Key: "k"})
	default:
		_, err = s.claim(ctx, b.patient, BookRequest{Slot: b.slot, Key: "k"}, b.ask == "hold")
	}
	return err
}

// Each comparison of the rules is left out or moved by one step, alone: just the answers change that hang
// on it. As they are, the functions say what patients hear.
func TestRuleControls(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	probes := ruleProbes()
	for _, b := range probes {
		b.prepare(p)
		if got := b.rule(); got != b.want {
			t.Errorf("%s: %q, want %q", b.name, got, b.want)
		}
	}
	for _, tt := range []struct{ guard, instead, changes string }{
		{"IF p_now < v_moment", "IF false", "beyond the horizon"},
		{"IF p_now < v_moment", "IF p_now <= v_moment", "at the horizon"},
		{"IF p_now > v_moment", "IF false", "within the notice"},
		{"IF p_now > v_moment", "IF p_now >= v_moment", "at the notice"},
		{"p_now > p_start", "false AND p_now > p_start", "cancelled after the cut-off, moved after the cut-off"},
		{"p_now > p_start", "p_now >= p_start", "cancelled at the cut-off, moved at the cut-off"},

		{"cardinality(ends) >= o.max_holds", "false", "no hold is left"},
		{"cardinality(ends) >= o.max_holds", "cardinality(ends) > o.max_holds", "no hold is left"},
		{"cardinality(ends) >= o.max_holds", "cardinality(ends) + 1 >= o.max_holds",
			"a hold is left, holds: one lapses, holds: another's, holds: elsewhere"},
		{"IF p_hold AND", "IF", "no hold is left to book"},
		{"x.status = 'HELD' AND x.expires_at > p_now ORDER", "x.status = 'HELD' AND x.expires_at >= p_now ORDER", "holds: one lapses"},
		{"x.status = 'HELD' AND x.expires_at > p_now ORDER", "x.expires_at > p_now ORDER", "a hold is left"},

		{"o.max_per_day <= (", "false AND o.max_per_day <= (", "the day has two, the day had two"},
		{"o.max_per_day <= (", "o.max_per_day < (", "the day has two, the day had two"},
		{"o.max_per_day <= (", "o.max_per_day <= 1 + (",
			"the day has one, day: one is given up, day: one lapses, day: one is of another, day: another's, day: elsewhere"},
		{"::date = v_day", "::date IS NOT NULL", "day: one is of another"},
		{", 'FULFILLED', 'NO_SHOW'", "", "the day had two"},
		{"(x.status IN ('BOOKED', 'ARRIVED', 'FULFILLED', 'NO_SHOW')", "(x.status <> 'HELD'", "day: one is given up"},
		{"x.status = 'HELD' AND x.expires_at > p_now))", "x.status = 'HELD' AND x.expires_at >= p_now))", "day: one lapses"},
		{"x.status = 'HELD' AND x.expires_at > p_now))", "false))", "the day has two"},

		{"cardinality(ends) >= o.max_active", "false", "has two"},
		{"cardinality(ends) >= o.max_active", "cardinality(ends) > o.max_active", "has two"},
		{"cardinality(ends) >= o.max_active", "cardinality(ends) + 1 >= o.max_active",
			"has one, one was missed, one is over, one lapses, another's, elsewhere"},
		{"upper(x.during) > p_now", "upper(x.during) >= p_now", "one is over"},
		{"(x.status IN ('BOOKED', 'ARRIVED')", "(x.status IN ('BOOKED', 'ARRIVED', 'NO_SHOW')", "one was missed"},
		{"(x.status IN ('BOOKED', 'ARRIVED')", "(x.status IN ('BOOKED')", "has two"},
		{"x.status = 'HELD' AND x.expires_at > p_now) ORDER", "x.status = 'HELD' AND x.expires_at >= p_now) ORDER", "one lapses"},
		{"x.status = 'HELD' AND x.expires_at > p_now) ORDER", "false) ORDER", "has two"},

		{"x.patient_id = p_patient", "true", "holds: another's, day: another's, another's"},
		{"AND x.organization_id = p_organization", "", "holds: elsewhere, day: elsewhere, elsewhere"},
	} {
		function := "forbidding_rule"
		if strings.Contains(tt.guard, "p_start") {
			function = "cutoff_rule"
		}
		whole := one[string](p, `SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname = $1`, function)
		p.without(function, tt.guard, tt.instead)
		var changed []string
		for _, b := range probes {
			if b.rule() != b.want {
				changed = append(changed, b.name)
			}
		}
		if got := strings.Join(changed, ", "); got != tt.changes {
			t.Errorf("%s instead of %s changes %s; want %s", tt.instead, tt.guard, got, tt.changes)
		}
		p.exec(whole)
	}
	for _, b := range probes {
		if err := b.call(); code(err) != b.want {
			t.Errorf("%s: %v, want %q", b.name, err, b.want)
		}
	}
}
