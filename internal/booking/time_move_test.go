package booking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func (p *practice) moveTo(s *Service, actor Actor, id AppointmentID, key string, target *TimeTarget) (Booking, error) {
	return s.Reschedule(context.Background(), actor, RescheduleRequest{Appointment: id, ToTime: target, Key: key})
}

// Whatever refuses the new time, the old one is kept; and one's own old time is never in the way.
func TestMoveToTime(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newFlexible(t)
	elsewhere, strange := p.newDoctor("Elsewhere")
	p.flexible(strange)
	beside := one[DoctorID](p, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Beside') RETURNING id`, p.organization)
	p.flexible(beside)
	patient := p.patient()
	book := func(key string, target *TimeTarget) Booking {
		b, err := p.service.Book(ctx, patient, BookRequest{Time: target, Key: key, Referral: "R-" + key})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	// B28, on the grid: 11:30 to 12:30, moved to 11:45.
	a := book("a", p.time(90, 60))
	p.wantTaken("11:30-12:30")
	b, err := p.moveTo(p.service, patient, a.Appointment.ID, "m", p.time(105, 60))
	if err != nil || *b.Appointment.Replaces != a.Appointment.ID || *b.Appointment.ReferralID != "R-a" || b.Replayed {
		t.Fatalf("%+v, %v", b, err)
	}
	p.wantTaken("11:45-12:45")
	again, err := p.moveTo(p.service, patient, a.Appointment.ID, "m", p.time(105, 60))
	if err != nil || !again.Replayed || again.Appointment.ID != b.Appointment.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	_, err = p.moveTo(p.service, patient, a.Appointment.ID, "m", p.time(120, 60))
	wantCode(t, err, IdempotencyKeyReused)
	same, err := p.moveTo(p.service, patient, b.Appointment.ID, "same", p.time(105, 60))
	if err != nil || !same.Replayed || same.Appointment.ID != b.Appointment.ID {
		t.Errorf("B29, to its own time: %+v, %v", same, err)
	}
	c, err := p.moveTo(p.service, patient, b.Appointment.ID, "shorter", p.time(105, 15)) // within its own
	if err != nil {
		t.Fatal(err)
	}
	p.wantTaken("11:45-12:00")

	if _, err := p.bookTime(p.patient(), "k", p.time(120, 15)); err != nil {
		t.Fatal(err)
	}
	held, err := p.service.Hold(ctx, patient, BookRequest{Time: p.time(300, 15), Key: "held"})
	if err != nil {
		t.Fatal(err)
	}
	other := func(d DoctorID) *TimeTarget { target := p.time(105, 30); target.Doctor = d; return target }
	desk := Actor{Kind: Staff, Subject: "desk", Organization: elsewhere}
	for name, tt := range map[string]struct {
		actor  Actor
		id     AppointmentID
		target *TimeTarget
		want   Code
	}{
		"Taken":             {patient, c.Appointment.ID, p.time(105, 30), SlotFull},
		"JustTaken":         {patient, c.Appointment.ID, p.time(120, 15), SlotFull},
		"NotOffered":        {patient, c.Appointment.ID, p.time(151, 15), SlotIsClosed},
		"Past":              {patient, c.Appointment.ID, p.time(-105, 15), SlotPast},
		"NotOpen":           {patient, c.Appointment.ID, p.time(15*24*60, 15), SlotNotOpen},
		"OtherOrganization": {patient, c.Appointment.ID, other(strange), Invalid},
		"NoDoctor":          {patient, c.Appointment.ID, other(1 << 40), NotFound},
		"NotTheirs":         {p.patient(), c.Appointment.ID, p.time(150, 15), NotFound},
		"StaffElsewhere":    {desk, c.Appointment.ID, p.time(150, 15), NotFound},
		"StaffOtherDoctor":  {p.staff(), c.Appointment.ID, other(strange), NotFound},
		"Gone":              {patient, a.Appointment.ID, p.time(150, 15), InvalidState},
		"Held":              {patient, held.Appointment.ID, p.time(150, 15), InvalidState},
		"OverlapOwn":        {patient, c.Appointment.ID, func() *TimeTarget { t := p.time(300, 30); t.Doctor = beside; return t }(), Overlap},
		"Invalid":           {patient, c.Appointment.ID, p.time(150, 0), Invalid},
	} {
		if _, err := p.moveTo(p.service, tt.actor, tt.id, name, tt.target); code(err) != tt.want {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
	p.wantTaken("11:45-12:00 12:00-12:15 15:00-15:15")

	d, err := p.moveTo(p.service, patient, c.Appointment.ID, "beside", other(beside)) // of the same practice
	if err != nil || d.Appointment.DoctorID != beside {
		t.Fatalf("%+v, %v", d, err)
	}
	fixed := p.slot(3*24*time.Hour, 1)
	e, err := p.move(patient, d, fixed, "fixed") // to a slot, and back
	if err != nil {
		t.Fatal(err)
	}
	p.wantTaken("12:00-12:15 15:00-15:15")
	if _, err = p.moveTo(p.service, patient, e.Appointment.ID, "back", p.time(0, 45)); err != nil || p.booked(fixed) != 0 {
		t.Errorf("%v, %d places of the slot it left are taken", err, p.count(fixed))
	}
	// Holds that have lapsed are in nobody's way, however many.
	for i := range 3 {
		if _, err := p.service.Hold(ctx, p.patient(), BookRequest{Time: p.time(45+15*i, 15), Key: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	f, err := p.bookTime(p.patient(), "k", p.time(240, 15))
	if err != nil {
		t.Fatal(err)
	}
	owner := Actor{Kind: Patient, Subject: fmt.Sprint(f.Appointment.PatientID), PatientID: f.Appointment.PatientID}
	if _, err := p.moveTo(p.service, owner, f.Appointment.ID, "early", p.time(45, 45)); code(err) != SlotFull {
		t.Error(err)
	}
	if _, err := p.moveTo(p.at(lapse), owner, f.Appointment.ID, "lapsed", p.time(45, 45)); err != nil {
		t.Error(err)
	}
	p.check()
}

// The control of B28: were the old row withdrawn after the new one is made, it would be in the way.
func TestMoveToTimeControl(t *testing.T) {
	t.Parallel()
	p := newFlexible(t)
	patient := p.patient()
	a, err := p.bookTime(patient, "a", p.time(90, 60))
	if err != nil {
		t.Fatal(err)
	}
	p.without("reschedule", "PERFORM give_back(v_now, ARRAY[slot.id], ARRAY[1], waiting, ARRAY[moved.id]);", "")
	_, err = p.moveTo(p.service, patient, a.Appointment.ID, "m", p.time(105, 60))
	wantCode(t, err, SlotFull)
	p.wantTaken("11:30-12:30")
}

// Crossing moves of two doctors' times: each patient has one appointment all the while, no time is
// taken twice, and nobody hears of a deadlock.
func TestRaceOfMovesToTimes(t *testing.T) {
	t.Parallel()
	p := newFlexible(t)
	beside := one[DoctorID](p, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Beside') RETURNING id`, p.organization)
	p.flexible(beside)
	config, busy, dead := p.impatient()
	services := []*Service{New(p.pool, config), New(p.pool, config)}
	patients := p.patients(12)
	var crowd errgroup.Group
	var moved atomic.Int64
	booked := make([]Booking, len(patients)) // before anybody moves into their times
	for i, actor := range patients {
		var err error
		if booked[i], err = p.bookTime(actor, "b", p.time(15*i, 15)); err != nil {
			t.Fatal(err)
		}
	}
	for i, actor := range patients {
		crowd.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(i), 2))
			b := booked[i]
			for n := range rounds(800) {
				target := p.time(15*random.IntN(12), 15+15*random.IntN(3))
				target.Doctor = []DoctorID{p.doctor, beside}[random.IntN(2)]
				next, err := p.moveTo(services[n%2], actor, b.Appointment.ID, fmt.Sprint(n), target)
				switch {
				case err == nil && !next.Replayed:
					b = next
					moved.Add(1)
				case busy(err):
				case allow(err, SlotFull) != nil:
					return err
				}
			}
			return nil
		})
	}
	if err := crowd.Wait(); err != nil || moved.Load() == 0 {
		t.Errorf("%d moves, %v", moved.Load(), err)
	}
	p.check()
	if n := one[int](p, `SELECT count(DISTINCT patient_id) * 100 + count(*) FROM appointment WHERE status = 'BOOKED'`); n != 1212 {
		t.Errorf("patients * 100 + appointments = %d, want 1212", n)
	}
	if n := dead.Load(); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}
