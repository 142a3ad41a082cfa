package booking

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// flexible gives a doctor flexible hours: 08:00 to 18:00 in Berlin, every day from today on, a start
// every 15 minutes, appointments of 15, 30, 45 and 60 minutes.
func (p *practice) flexible(doctor DoctorID) {
	p.t.Helper()
	p.exec(`
		WITH s AS (INSERT INTO schedule (doctor_id, valid_from, kind) VALUES ($1, '2026-10-05', 'FLEXIBLE') RETURNING id)
		INSERT INTO schedule_window (schedule_id, weekday, start_minute, end_minute, every_minutes, durations)
		SELECT s.id, d, 480, 1080, 15, '{15, 30, 45, 60}' FROM s, generate_series(1, 7) AS d`, doctor)
}

// newFlexible is a practice whose doctor has flexible hours.
func newFlexible(t testing.TB) *practice {
	p := newPractice(t)
	p.flexible(p.doctor)
	return p
}

// time asks for a time of the practice's doctor, so many minutes after 10:00.
func (p *practice) time(after, minutes int) *TimeTarget {
	return &TimeTarget{Doctor: p.doctor, StartAt: now.Add(time.Hour + time.Duration(after)*time.Minute), Minutes: minutes}
}

func (p *practice) bookTime(actor Actor, key string, target *TimeTarget) (Booking, error) {
	return p.service.Book(context.Background(), actor, BookRequest{Time: target, Key: key})
}

// taken are the FLEXIBLE slots that stand, as clocks in Berlin show them.
func (p *practice) taken() string {
	p.t.Helper()
	p.check()
	return one[string](p, `
		SELECT coalesce(string_agg(concat(to_char(start_at AT TIME ZONE 'Europe/Berlin', 'HH24:MI-'),
		                                  to_char(end_at AT TIME ZONE 'Europe/Berlin', 'HH24:MI')), ' ' ORDER BY start_at), '')
		  FROM time_slot WHERE kind = 'FLEXIBLE' AND status <> 'WITHDRAWN'`)
}

func (p *practice) wantTaken(want string) {
	p.t.Helper()
	if got := p.taken(); got != want {
		p.t.Errorf("taken: %q, want %q", got, want)
	}
}

func TestBookTime(t *testing.T) {
	t.Parallel()
	p := newFlexible(t)
	ctx := context.Background()
	patient := p.patient()
	b, err := p.bookTime(patient, "k", p.time(0, 45))
	if err != nil {
		t.Fatal(err)
	}
	want := Appointment{ID: b.Appointment.ID, SlotID: b.Appointment.SlotID, DoctorID: p.doctor, OrganizationID: p.organization,
		PatientID: patient.PatientID, Status: AppointmentBooked, StartAt: now.Add(time.Hour), EndAt: now.Add(105 * time.Minute), CreatedAt: now}
	if b.Appointment != want || b.Replayed {
		t.Errorf("got %+v, want %+v", b, want)
	}
	p.wantTaken("10:00-10:45")

	_, elsewhere := p.newDoctor("Elsewhere") // without flexible hours
	p.exec(`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at, status)
		VALUES ($1, $2::timestamptz + interval '3 h', $2::timestamptz + interval '3 h 20 min', 5, '2026-01-01', 'OPEN'),
		       ($1, $2::timestamptz + interval '4 h', $2::timestamptz + interval '4 h 20 min', 5, '2026-01-01', 'CLOSED'),
		       ($1, $2::timestamptz + interval '5 h', $2::timestamptz + interval '5 h 20 min', 5, '2026-01-01', 'WITHDRAWN')`, p.doctor, now)
	stranger := Actor{Kind: Staff, Subject: "desk", Organization: p.organization + 1}
	other := func(change func(*TimeTarget)) *TimeTarget { target := p.time(60, 30); change(target); return target }
	for name, tt := range map[string]struct {
		actor  Actor
		target *TimeTarget
		want   Code
	}{
		"OffTheGrid":        {patient, p.time(65, 30), SlotIsClosed},
		"OddLength":         {patient, p.time(60, 20), SlotIsClosed},
		"BeforeTheWindow":   {patient, p.time(22*60-15, 30), SlotIsClosed}, // 07:45 tomorrow
		"BeyondTheWindow":   {patient, p.time(7*60+45, 30), SlotIsClosed},  // until 18:15
		"OverFixed":         {patient, p.time(2*60-15, 30), SlotIsClosed},
		"OverFixedAndBegun": {patient, p.time(2*60+15, 15), SlotIsClosed},
		"OverClosed":        {patient, p.time(3*60, 15), SlotIsClosed},
		"Past":              {patient, p.time(-105, 15), SlotPast}, // 08:15
		"Now":               {patient, p.time(-60, 15), SlotPast},
		"NotOpen":           {patient, p.time(15*24*60, 15), SlotNotOpen},
		"NoWindows":         {patient, other(func(t *TimeTarget) { t.Doctor = elsewhere }), SlotIsClosed},
		"NoDoctor":          {patient, other(func(t *TimeTarget) { t.Doctor = 1 << 40 }), NotFound},
		"NoDoctor0":         {patient, other(func(t *TimeTarget) { t.Doctor = 0 }), NotFound},
		"NotTheirs":         {stranger, p.time(60, 30), NotFound},
		"NoPatient":         {p.staff(), p.time(60, 30), NotFound},
		"Anonymous":         {Actor{}, p.time(60, 30), Unauthenticated},
		"NoMinutes":         {patient, p.time(60, 0), Invalid},
		"ManyMinutes":       {patient, p.time(60, 1441), Invalid},
		"Year0":             {patient, other(func(t *TimeTarget) { t.StartAt = time.Time{}.AddDate(-1, 0, 0) }), Invalid},
		"Fraction":          {patient, other(func(t *TimeTarget) { t.StartAt = t.StartAt.Add(time.Nanosecond) }), Invalid},
		"TheEndOfTime":      {patient, other(func(t *TimeTarget) { t.StartAt = time.Date(9999, 12, 31, 23, 45, 0, 0, time.UTC) }), SlotIsClosed},
		"Taken":             {p.patient(), p.time(0, 45), SlotFull},
		"PartlyTaken":       {p.patient(), p.time(30, 30), SlotFull},
		"Own":               {patient, p.time(0, 45), AlreadyBooked},
	} {
		r := BookRequest{Time: tt.target, Key: name}
		if tt.actor.Kind == Staff {
			r.Patient = 1 << 40
		}
		if _, err := p.service.Book(ctx, tt.actor, r); code(err) != tt.want {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	_, err = p.service.Book(ctx, patient, BookRequest{Slot: 1, Time: p.time(60, 30), Key: "both"})
	wantCode(t, err, Invalid)
	p.wantTaken("10:00-10:45") // and no refused call has left a row
	if n := one[int](p, `SELECT count(*) FROM time_slot WHERE kind = 'FLEXIBLE'`); n != 1 {
		t.Errorf("%d FLEXIBLE slots, want 1", n)
	}
	for name, target := range map[string]*TimeTarget{
		"TouchesTaken": p.time(45, 15), "TouchesFixed": p.time(2*60-15, 15), "OverWithdrawn": p.time(4*60, 60), "ToTheEnd": p.time(7*60+45, 15),
	} {
		if _, err := p.bookTime(p.patient(), name, target); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.wantTaken("10:00-10:45 10:45-11:00 11:45-12:00 14:00-15:00 17:45-18:00")
}

// The conditions are those of every other way in.
func TestTimeConditions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newFlexible(t)
	_, elsewhere := p.newDoctor("Elsewhere")
	p.flexible(elsewhere)
	patient := p.patient()
	there := func(after, minutes int) *TimeTarget {
		target := p.time(after, minutes)
		target.Doctor = elsewhere
		return target
	}
	first, err := p.service.Book(ctx, patient, BookRequest{Time: p.time(0, 30), Key: "k", Referral: "R"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.bookTime(patient, "overlap", there(15, 30))
	wantCode(t, err, Overlap)
	_, err = p.service.Hold(ctx, patient, BookRequest{Time: p.time(60, 30), Key: "referral", Referral: "R"})
	wantCode(t, err, ReferralInUse)
	if got := asError(t, err).Existing; got != first.Appointment.ID {
		t.Errorf("existing appointment %d, want %d", got, first.Appointment.ID)
	}
	_, err = p.service.Book(ctx, patient, BookRequest{Slot: first.Appointment.SlotID, Key: "by-its-slot"})
	wantCode(t, err, AlreadyBooked)
	_, err = p.service.Book(ctx, p.patient(), BookRequest{Slot: first.Appointment.SlotID, Key: "by-its-slot"})
	wantCode(t, err, SlotFull)

	for name, again := range map[string]struct {
		r    BookRequest
		want Code
	}{
		"replay":         {BookRequest{Time: p.time(0, 30), Key: "k", Referral: "R"}, ""},
		"another start":  {BookRequest{Time: p.time(15, 30), Key: "k", Referral: "R"}, IdempotencyKeyReused},
		"another length": {BookRequest{Time: p.time(0, 15), Key: "k", Referral: "R"}, IdempotencyKeyReused},
		"another doctor": {BookRequest{Time: there(0, 30), Key: "k", Referral: "R"}, IdempotencyKeyReused},
		"its slot":       {BookRequest{Slot: first.Appointment.SlotID, Key: "k", Referral: "R"}, IdempotencyKeyReused},
	} {
		b, err := p.service.Book(ctx, patient, again.r)
		if code(err) != again.want || again.want == "" && (!b.Replayed || b.Appointment.ID != first.Appointment.ID) {
			t.Errorf("%s: %+v, %v, want %q", name, b, err, again.want)
		}
	}
	p.exec(`UPDATE schedule_window SET durations = '{60}'`) // a replay beats what is offered now
	if b, err := p.service.Book(ctx, patient, BookRequest{Time: p.time(0, 30), Key: "k", Referral: "R"}); err != nil || !b.Replayed {
		t.Errorf("%+v, %v", b, err)
	}
	desk := p.staff()
	r := BookRequest{Time: there(0, 60), Key: "desk", Patient: patient.PatientID, OverlapReason: "both at once"}
	b, err := p.service.Book(ctx, Actor{Kind: Staff, Subject: "desk", Organization: p.organization + 1}, r)
	if code(err) != NotFound { // the patient is not theirs
		t.Errorf("%+v, %v", b, err)
	}
	p.exec(`UPDATE doctor SET organization_id = $1`, p.organization)
	if b, err = p.service.Book(ctx, desk, r); err != nil || b.Appointment.OverlapReason == nil {
		t.Errorf("%+v, %v", b, err)
	}
	p.wantTaken("10:00-10:30 10:00-11:00")
}

// A time that is given back is gone as if it had never been taken, on every way.
func TestTimeComesBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newFlexible(t)
	patient := p.patient()
	hold := func(key string, target *TimeTarget) Booking {
		b, err := p.service.Hold(ctx, patient, BookRequest{Time: target, Key: key})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}

	// B15: a longer visit on a shorter grid.
	booked, err := p.bookTime(patient, "b15", p.time(0, 30))
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.bookTime(p.patient(), "k", p.time(15, 15))
	wantCode(t, err, SlotFull)
	if _, err := p.service.Cancel(ctx, patient, CancelRequest{Appointment: booked.Appointment.ID}); err != nil {
		t.Fatal(err)
	}
	p.wantTaken("")
	for after := range 2 {
		if _, err := p.bookTime(p.patient(), "k", p.time(15*after, 15)); err != nil {
			t.Error(err)
		}
	}
	p.wantTaken("10:00-10:15 10:15-10:30")
	_, err = p.service.Book(ctx, p.patient(), BookRequest{Slot: booked.Appointment.SlotID, Key: "gone"})
	wantCode(t, err, NotFound)

	held := hold("h", p.time(60, 45))
	if again := hold("h2", p.time(60, 45)); again.Appointment.ID != held.Appointment.ID || !again.Replayed {
		t.Errorf("held again: %+v", again)
	}
	_, err = p.bookTime(patient, "held", p.time(60, 45))
	wantCode(t, err, AlreadyBooked)
	if got := asError(t, err).Existing; got != held.Appointment.ID {
		t.Errorf("existing appointment %d, want %d", got, held.Appointment.ID)
	}
	if _, err := p.service.Release(ctx, patient, held.Appointment.ID); err != nil {
		t.Fatal(err)
	}
	p.wantTaken("10:00-10:15 10:15-10:30")

	lapsing := hold("h3", p.time(60, 45))
	if n, err := p.at(lapse).Expire(ctx, p.doctor); n != 1 || err != nil {
		t.Errorf("expired %d, %v", n, err)
	}
	p.wantTaken("10:00-10:15 10:15-10:30")
	_, err = p.at(lapse).Confirm(ctx, patient, lapsing.Appointment.ID)
	wantCode(t, err, HoldExpired)

	kept := hold("h4", p.time(60, 45))
	if _, err := p.service.Confirm(ctx, patient, kept.Appointment.ID); err != nil {
		t.Fatal(err)
	}
	p.wantTaken("10:00-10:15 10:15-10:30 11:00-11:45")
}

// A hold that has lapsed hinders nobody, whether or not anybody has written that down: however many
// of them are in the way, of others or one's own.
func TestLapsedTimes(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for name, ask := range map[string]struct{ after, minutes, holds int }{
		"Same": {0, 15, 1}, "Across": {0, 60, 4}, "Within": {0, 15, 1}, "Shifted": {15, 45, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newFlexible(t)
			patient := p.patient()
			for i := range ask.holds {
				minutes := 15
				if name == "Within" {
					minutes = 30
				}
				if _, err := p.service.Hold(ctx, patient, BookRequest{Time: p.time(15*i, minutes), Key: fmt.Sprint(i)}); err != nil {
					t.Fatal(err)
				}
			}
			_, err := p.at(lapse.Add(-time.Microsecond)).Book(ctx, p.patient(), BookRequest{Time: p.time(ask.after, ask.minutes), Key: "soon"})
			wantCode(t, err, SlotFull)
			for who, actor := range map[string]Actor{"own": patient, "another's": p.patient()} {
				b, err := p.at(lapse).Book(ctx, actor, BookRequest{Time: p.time(ask.after, ask.minutes), Key: "k"})
				if err != nil {
					t.Fatalf("%s: %v", who, err)
				}
				if _, err := p.at(lapse).Cancel(ctx, actor, CancelRequest{Appointment: b.Appointment.ID}); err != nil {
					t.Fatal(err)
				}
			}
			p.check()
		})
	}
}

// While one lapsed hold is in the way beside an appointment that stands, nothing is expired for it.
func TestLapsedBesideTaken(t *testing.T) {
	t.Parallel()
	p := newFlexible(t)
	if _, err := p.service.Hold(context.Background(), p.patient(), BookRequest{Time: p.time(0, 15), Key: "k"}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.bookTime(p.patient(), "k", p.time(15, 15)); err != nil {
		t.Fatal(err)
	}
	_, err := p.at(lapse).Book(context.Background(), p.patient(), BookRequest{Time: p.time(0, 30), Key: "k"})
	wantCode(t, err, SlotFull)
	p.wantTaken("10:00-10:15 10:15-10:30")
}
