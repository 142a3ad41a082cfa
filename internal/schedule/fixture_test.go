package schedule

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

// now is a Monday, 06:00 in Berlin.
var now = time.Date(2026, 10, 5, 4, 0, 0, 0, time.UTC)

// practice is a database with an organization in Berlin and one doctor, and a clock that stands
// at now.
type practice struct {
	*Service
	t            testing.TB
	organization Organization
	doctor       Doctor
}

func newPractice(t testing.TB) *practice {
	t.Helper()
	pool := devenv.NewDB(t).Pool
	p := &practice{t: t, Service: New(pool, Config{Now: func() time.Time { return now }})}
	p.organization = p.newOrganization("Practice", "Europe/Berlin")
	p.doctor = p.newDoctor(p.organization, "Dr. Ada")
	return p
}

func (p *practice) newOrganization(name, zone string) Organization {
	p.t.Helper()
	o, err := p.CreateOrganization(p.t.Context(), booking.SystemActor, name, zone)
	if err != nil {
		p.t.Fatal(err)
	}
	return o
}

func (p *practice) newDoctor(o Organization, name string) Doctor {
	p.t.Helper()
	d, err := p.CreateDoctor(p.t.Context(), staff(o), o.ID, name, "")
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// schedule gives the doctor a template for ever.
func (p *practice) schedule(d Doctor, s Shift) {
	p.t.Helper()
	if _, err := p.CreateSchedule(p.t.Context(), booking.SystemActor, d.ID, daily(s)[0]); err != nil {
		p.t.Fatal(err)
	}
}

// generate makes slots by a service and returns how many.
func (p *practice) generate(s *Service, days int) int {
	p.t.Helper()
	n, err := s.Generate(p.t.Context(), booking.SystemActor, p.doctor.ID, days)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// at is the practice's service at another time.
func (p *practice) at(now time.Time) *Service {
	return New(p.pool, Config{Now: func() time.Time { return now }})
}

func (p *practice) exec(sql string, args ...any) {
	p.t.Helper()
	if _, err := p.pool.Exec(p.t.Context(), sql, args...); err != nil {
		p.t.Fatal(err)
	}
}

func one[T any](p *practice, sql string, args ...any) T {
	p.t.Helper()
	var v T
	if err := p.pool.QueryRow(p.t.Context(), sql, args...).Scan(&v); err != nil {
		p.t.Fatal(err)
	}
	return v
}

// starts are the doctor's slots as clocks in Berlin show them, by start.
func (p *practice) starts() []string {
	p.t.Helper()
	rows, err := p.pool.Query(p.t.Context(), `
		SELECT to_char(start_at AT TIME ZONE 'Europe/Berlin', 'MM-DD HH24:MI') FROM time_slot
		 WHERE doctor_id = $1 AND status <> 'WITHDRAWN' ORDER BY start_at`, p.doctor.ID)
	if err != nil {
		p.t.Fatal(err)
	}
	shown, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		p.t.Fatal(err)
	}
	return shown
}

func staff(o Organization) booking.Actor {
	return booking.Actor{Kind: booking.Staff, Subject: "desk", Organization: o.ID}
}

// strangers are the actors that may change nothing of the organization, with what they are told.
func (p *practice) strangers() map[booking.Code][]booking.Actor {
	elsewhere := p.newOrganization("Elsewhere", "Asia/Tokyo")
	return map[booking.Code][]booking.Actor{
		booking.Unauthenticated: {{}},
		booking.Forbidden:       {{Kind: booking.Patient, Subject: "1", PatientID: 1}, {Kind: booking.Partner, Subject: "portal"}},
		booking.NotFound:        {staff(elsewhere), {Kind: booking.Staff, Subject: "nowhere"}},
	}
}

// refuses checks that a call is refused to every stranger, each with their own code.
func (p *practice) refuses(call func(actor booking.Actor) error) {
	p.t.Helper()
	for want, actors := range p.strangers() {
		for _, actor := range actors {
			if got := code(call(actor)); got != want {
				p.t.Errorf("%v: %q, want %q", actor, got, want)
			}
		}
	}
}

// code is the refusal's code; "" = no error; INTERNAL for an error without a code.
func code(err error) booking.Code {
	var refused *booking.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &refused):
		return refused.Code
	default:
		return booking.Internal
	}
}

func wantCode(t testing.TB, err error, want booking.Code) {
	t.Helper()
	if got := code(err); got != want {
		t.Fatalf("got code %q (%v), want %q", got, err, want)
	}
}

// together runs n calls at once, none before all are ready, and returns their errors.
func together(n int, call func(i int) error) []error {
	errs := make([]error, n)
	ready, done := make(chan struct{}), make(chan struct{})
	for i := range n {
		go func() {
			<-ready
			errs[i] = call(i)
			done <- struct{}{}
		}()
	}
	close(ready)
	for range n {
		<-done
	}
	return errs
}

// changes runs do and returns the payloads that the database announced meanwhile, as one text.
func changes(t testing.TB, pool *pgxpool.Pool, do func()) (announced string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(ctx, "LISTEN slot_change; LISTEN over"); err != nil {
		t.Fatal(err)
	}
	do()
	if _, err := pool.Exec(ctx, "NOTIFY over"); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := conn.Conn().WaitForNotification(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if n.Channel == "over" {
			return announced
		}
		announced += fmt.Sprintln(n.Payload)
	}
}
