package booking

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAppointment(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	partner := Actor{Kind: Partner, Subject: "portal"}
	own := p.registered(partner, "p")
	b, err := p.service.Book(ctx, partner, BookRequest{Slot: p.slot(time.Hour, 1), Key: "k", Patient: own})
	if err != nil {
		t.Fatal(err)
	}
	other, _ := p.newDoctor("Other")
	for name, test := range map[string]struct {
		actor Actor
		want  Code
	}{
		"Anonymous":    {Actor{}, NotFound},
		"Patient":      {Actor{Kind: Patient, Subject: "1", PatientID: own}, ""},
		"OtherPatient": {p.patient(), NotFound},
		"Staff":        {p.staff(), ""},
		"OtherStaff":   {Actor{Kind: Staff, Organization: other}, NotFound},
		"Partner":      {partner, ""},
		"OtherPartner": {Actor{Kind: Partner, Subject: "rival"}, NotFound},
		"System":       {SystemActor, ""},
	} {
		got, err := p.service.Appointment(ctx, test.actor, b.Appointment.ID)
		if code(err) != test.want || err == nil && got != b.Appointment {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
		if _, err := p.service.Appointment(ctx, test.actor, 1<<50); code(err) != NotFound {
			t.Errorf("%s: unknown id: %v", name, err)
		}
	}
}

// B80: 25 visits with one start, read in pages while others come and go: each that was there
// throughout appears exactly once.
func TestPagesNeitherRepeatNorSkip(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	slot := p.slot(time.Hour, 100)
	throughout := map[AppointmentID]int{}
	var leaving []Booking
	for i, patient := range p.patients(30) {
		if b := p.book(patient, slot, "k"); i%6 == 5 {
			leaving = append(leaving, b)
		} else {
			throughout[b.Appointment.ID] = 0
		}
	}
	page := Page{First: 10}
	for turn := 0; ; turn++ {
		got, err := p.service.DoctorAppointments(ctx, p.staff(), p.doctor, DateOf(now, time.UTC), page)
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range got.Appointments {
			if _, ok := throughout[a.ID]; ok {
				throughout[a.ID]++
			}
			page.After = a.Cursor()
		}
		if !got.HasNext {
			break
		}
		if turn < len(leaving) {
			p.exec(`DELETE FROM appointment WHERE id = $1`, leaving[turn].Appointment.ID)
		}
		p.book(p.patient(), slot, fmt.Sprint("late", turn))
	}
	if len(throughout) != 25 {
		t.Fatalf("%d visits, want 25", len(throughout))
	}
	for id, n := range throughout {
		if n != 1 {
			t.Errorf("appointment %d appeared %d times", id, n)
		}
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	patient := p.patient()
	var ids []AppointmentID
	for i := range 5 {
		ids = append(ids, p.book(patient, p.slot(time.Duration(i+1)*time.Hour, 1), fmt.Sprint(i)).Appointment.ID)
	}
	today := DateOf(now, time.UTC)

	t.Run("OwnLatestFirst", func(t *testing.T) {
		var got []AppointmentID
		page := Page{First: 2}
		for more := true; more; {
			part, err := p.service.PatientAppointments(ctx, patient, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range part.Appointments {
				got = append(got, a.ID)
				page.After = a.Cursor()
			}
			more = part.HasNext
		}
		if want := []AppointmentID{ids[4], ids[3], ids[2], ids[1], ids[0]}; fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})

	t.Run("DayInThePracticesZone", func(t *testing.T) {
		// 23:30 in Berlin is the 5th there, and 21:30 of it in UTC; 00:30 is the 6th, 22:30 of the 5th in UTC.
		for at, day := range map[time.Duration]int{14*time.Hour + 30*time.Minute: 0, 15*time.Hour + 30*time.Minute: 1} {
			b := p.book(p.patient(), p.slot(at, 1), "k")
			got, err := p.service.DoctorAppointments(ctx, p.staff(), p.doctor, today.AddDays(day), Page{First: 100})
			if err != nil {
				t.Fatal(err)
			}
			if last := got.Appointments[len(got.Appointments)-1]; last.ID != b.Appointment.ID {
				t.Errorf("day %d ends with %+v, want %+v", day, last, b.Appointment)
			}
		}
	})

	t.Run("Access", func(t *testing.T) {
		other, _ := p.newDoctor("Other")
		got, err := p.service.DoctorAppointments(ctx, Actor{Kind: Staff, Organization: other}, p.doctor, today, Page{First: 10})
		if err != nil || len(got.Appointments) != 0 {
			t.Errorf("another practice's staff: %+v, %v", got, err)
		}
		for actor, want := range map[Actor]Code{{}: Unauthenticated, patient: Forbidden, {Kind: Partner}: Forbidden} {
			_, err := p.service.DoctorAppointments(ctx, actor, p.doctor, today, Page{First: 10})
			wantCode(t, err, want)
		}
		for actor, want := range map[Actor]Code{{}: Unauthenticated, p.staff(): Forbidden, {Kind: Partner}: Forbidden} {
			_, err := p.service.PatientAppointments(ctx, actor, Page{First: 10})
			wantCode(t, err, want)
		}
	})

	t.Run("BadPages", func(t *testing.T) {
		for _, page := range []Page{
			{First: 0}, {First: -1}, {First: 101}, {First: 1, After: "x"}, {First: 1, After: "é"},
			{First: 1, After: strings.Repeat("A", 10_000)}, {First: 1, After: Appointment{StartAt: time.Unix(1<<40, 0)}.Cursor()},
		} {
			_, err := p.service.PatientAppointments(ctx, patient, page)
			wantCode(t, err, Invalid)
		}
	})
}

// The practice's day has what was given back, where there are slots and where hours are flexible.
func TestDoctorAppointmentsGivenBack(t *testing.T) {
	t.Parallel()
	p := newFlexible(t)
	ctx := context.Background()
	patient := p.patient()
	fixed := p.book(patient, p.slot(11*time.Hour, 1), "fixed")
	booked, err := p.bookTime(patient, "time", p.time(0, 30))
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []Appointment{fixed.Appointment, booked.Appointment} {
		if _, err := p.service.Cancel(ctx, patient, CancelRequest{Appointment: a.ID}); err != nil {
			t.Fatal(err)
		}
	}
	p.wantTaken("")
	page, err := p.service.DoctorAppointments(ctx, p.staff(), p.doctor, today, Page{First: 10})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range page.Appointments {
		got = append(got, fmt.Sprint(a.ID, a.Status))
	}
	want := []string{fmt.Sprint(booked.Appointment.ID, AppointmentCancelled), fmt.Sprint(fixed.Appointment.ID, AppointmentCancelled)}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Where clocks go back to midnight, a day begins the first time they show it: in Havana on 1 November 2026
// at 04:00 UTC, and at 05:00 again.
func TestDoctorAppointmentsMidnightTwice(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	p.exec(`UPDATE organization SET time_zone = 'America/Havana'`)
	first := time.Date(2026, 11, 1, 4, 0, 0, 0, time.UTC)
	service := p.at(first.AddDate(0, 0, -1))
	for _, after := range []time.Duration{-30 * time.Minute, 0, 30 * time.Minute, time.Hour, 24*time.Hour + 30*time.Minute, 25 * time.Hour} {
		slot := p.slot(first.Add(after).Sub(now), 1)
		if _, err := service.Book(t.Context(), p.patient(), BookRequest{Slot: slot, Key: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	for day, want := range map[Date][]string{
		{2026, 10, 31}: {"03:30"}, {2026, 11, 1}: {"04:00", "04:30", "05:00", "04:30"}, {2026, 11, 2}: {"05:00"},
	} {
		page, err := service.DoctorAppointments(t.Context(), p.staff(), p.doctor, day, Page{First: 10})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range page.Appointments {
			got = append(got, a.StartAt.Format("15:04"))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", day, got, want)
		}
	}
}
