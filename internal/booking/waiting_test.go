package booking

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// today is the day of now, in Berlin.
var today = Date{2026, 10, 5}

// join puts a patient on the waiting list for today and the 30 days after.
func (p *practice) join(who Actor) WaitingEntry {
	p.t.Helper()
	return p.joinAt(p.service, who)
}

func (p *practice) joinAt(s *Service, who Actor) WaitingEntry {
	p.t.Helper()
	entry, joined, err := s.JoinWaitingList(context.Background(), who, WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(30)})
	if err != nil || !joined {
		p.t.Fatalf("%+v, %v, %v", entry, joined, err)
	}
	return entry
}

// entry is the entry as it is at the service's time.
func entry(t testing.TB, s *Service, id WaitingID) WaitingEntry {
	t.Helper()
	w, err := s.WaitingEntry(context.Background(), SystemActor, id)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// offered is the offer that the entry has at the service's time.
func offered(t testing.TB, s *Service, id WaitingID) Appointment {
	t.Helper()
	w := entry(t, s, id)
	if w.Status != WaitingOffered || w.Offer == nil || w.Offer.Status != AppointmentHeld || w.Offer.PatientID != w.PatientID {
		t.Fatalf("no offer: %+v", w)
	}
	return *w.Offer
}

func wantStatus(t testing.TB, s *Service, id WaitingID, want WaitingStatus) {
	t.Helper()
	if w := entry(t, s, id); w.Status != want {
		t.Fatalf("%+v, want %s", w, want)
	}
}

// full books all places of a new slot of the day and gives who has them.
func (p *practice) full(after time.Duration, capacity int) (SlotID, []Booking) {
	p.t.Helper()
	slot := p.slot(after, capacity)
	var all []Booking
	for _, who := range p.patients(capacity) {
		all = append(all, p.book(who, slot, "k"))
	}
	return slot, all
}

func (b Booking) by() Actor { return Actor{Kind: Patient, PatientID: b.Appointment.PatientID} }

func (p *practice) cancel(b Booking) {
	p.t.Helper()
	if _, err := p.service.Cancel(context.Background(), b.by(), CancelRequest{Appointment: b.Appointment.ID}); err != nil {
		p.t.Fatal(err)
	}
}

func TestWaitingList(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	who, staff := p.patient(), p.staff()
	r := WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(2)}

	t.Run("JoinAndLeave", func(t *testing.T) {
		entry, joined, err := p.service.JoinWaitingList(ctx, who, r)
		want := WaitingEntry{ID: entry.ID, DoctorID: p.doctor, PatientID: who.PatientID, From: r.From, To: r.To, Status: WaitingForPlace, CreatedAt: now}
		if diff := cmp.Diff(want, entry); err != nil || !joined || diff != "" {
			t.Errorf("%v %v %s", joined, err, diff)
		}
		again, joined, err := p.at(now.Add(time.Minute)).JoinWaitingList(ctx, who, r)
		if diff := cmp.Diff(want, again); err != nil || joined || diff != "" {
			t.Errorf("again: %v %v %s", joined, err, diff)
		}
		if during := one[string](p, `SELECT during::text FROM waiting_entry WHERE id = $1`, entry.ID); !strings.Contains(during, "2026-10-04 22:00:00+00") ||
			!strings.Contains(during, "2026-10-07 22:00:00+00") {
			t.Errorf("the days are %s", during)
		}
		want.Status = WaitingLeft
		for _, changed := range []bool{true, false} {
			left, got, err := p.service.LeaveWaitingList(ctx, who, entry.ID)
			if diff := cmp.Diff(want, left); err != nil || got != changed || diff != "" {
				t.Errorf("%v %v %s", got, err, diff)
			}
		}
		if next, joined, err := p.service.JoinWaitingList(ctx, who, r); err != nil || !joined || next.ID == entry.ID {
			t.Errorf("%+v, %v, %v", next, joined, err)
		}
	})

	t.Run("Over", func(t *testing.T) { // at midnight in Berlin, by itself; a sweeper tidies
		for at, want := range map[time.Time]WaitingStatus{
			time.Date(2026, 10, 7, 21, 59, 59, 0, time.UTC): WaitingForPlace,
			time.Date(2026, 10, 7, 22, 0, 0, 0, time.UTC):   WaitingEnded,
		} {
			s := p.at(at)
			ids := all[WaitingID](p, `SELECT id FROM waiting_entry WHERE status = 'WAITING'`)
			wantStatus(t, s, ids[0], want)
		}
		s := p.at(time.Date(2026, 10, 7, 22, 0, 0, 0, time.UTC))
		_, _, err := s.JoinWaitingList(ctx, who, r)
		wantCode(t, err, Invalid)
		if err := s.endWaiting(ctx); err != nil {
			t.Fatal(err)
		}
		if n := one[int](p, `SELECT count(*) FROM waiting_entry WHERE status = 'WAITING'`); n != 0 {
			t.Errorf("%d entries are not tidied", n)
		}
		id := one[WaitingID](p, `SELECT max(id) FROM waiting_entry`)
		if w, changed, err := s.LeaveWaitingList(ctx, who, id); err != nil || changed || w.Status != WaitingEnded {
			t.Errorf("%+v, %v, %v", w, changed, err)
		}
	})

	own, rival := p.registered(staff, "own"), Actor{Kind: Partner, Subject: "rival"}
	rivals := p.registered(rival, "theirs")
	otherOrganization, otherDoctor := p.newDoctor("Other")
	for name, test := range map[string]struct {
		actor Actor
		r     WaitingRequest
		want  Code
	}{
		"Anonymous":         {Actor{}, r, Unauthenticated},
		"ForSomebodyElse":   {who, WaitingRequest{p.doctor, r.From, r.To, own}, NotFound},
		"StaffForNobody":    {staff, r, Invalid},
		"StaffForOwn":       {staff, WaitingRequest{p.doctor, r.From, r.To, own}, ""},
		"StaffForAStranger": {staff, WaitingRequest{p.doctor, r.From, r.To, rivals}, NotFound},
		"StaffElsewhere":    {staff, WaitingRequest{otherDoctor, r.From, r.To, own}, NotFound},
		"PartnerForTheirs":  {rival, WaitingRequest{p.doctor, r.From, r.To, rivals}, ""},
		"PartnerForOthers":  {rival, WaitingRequest{p.doctor, r.From, r.To, own}, NotFound},
		"System":            {SystemActor, WaitingRequest{p.doctor, r.From, r.To.AddDays(1), own}, ""},
		"NoDoctor":          {who, WaitingRequest{999, r.From, r.To, 0}, NotFound},
		"WrongOrder":        {who, WaitingRequest{p.doctor, r.To, r.From, 0}, Invalid},
		"TooManyDays":       {who, WaitingRequest{p.doctor, r.From, r.From.AddDays(366), 0}, Invalid},
		"AYear":             {who, WaitingRequest{p.doctor, r.From, r.From.AddDays(365), 0}, ""},
		"EndOfTheCalendar":  {who, WaitingRequest{p.doctor, Date{9999, 12, 30}, Date{9999, 12, 31}, 0}, Invalid},
		"Past":              {who, WaitingRequest{p.doctor, today.AddDays(-2), today.AddDays(-1), 0}, Invalid},
	} {
		t.Run("By/"+name, func(t *testing.T) {
			_, _, err := p.service.JoinWaitingList(ctx, test.actor, test.r)
			wantCode(t, err, test.want)
		})
	}

	t.Run("Sight", func(t *testing.T) {
		id := p.join(p.patient()).ID
		for name, test := range map[string]struct {
			actor Actor
			want  Code
		}{
			"Anonymous": {Actor{}, Unauthenticated}, "OtherPatient": {who, NotFound},
			"OtherStaff": {Actor{Kind: Staff, Organization: otherOrganization}, NotFound}, "OtherPartner": {rival, NotFound}, "Staff": {staff, ""},
		} {
			if test.want == "" || test.want == NotFound {
				_, err := p.service.WaitingEntry(ctx, test.actor, id)
				if code(err) != test.want {
					t.Errorf("%s reads: %v", name, err)
				}
			}
			if _, _, err := p.service.LeaveWaitingList(ctx, test.actor, id); code(err) != test.want {
				t.Errorf("%s leaves: %v", name, err)
			}
		}
	})

	t.Run("Pages", func(t *testing.T) {
		pages := func(list func(Page) (WaitingPage, error)) (ids []WaitingID) {
			for page := (Page{First: 2}); ; {
				got, err := list(page)
				if err != nil {
					t.Fatal(err)
				}
				for _, w := range got.Entries {
					ids = append(ids, w.ID)
				}
				if !got.HasNext {
					return ids
				}
				page.After = got.Entries[len(got.Entries)-1].Cursor()
			}
		}
		own := pages(func(page Page) (WaitingPage, error) { return p.service.PatientWaiting(ctx, who, page) })
		if want := all[WaitingID](p, `SELECT id FROM waiting_entry WHERE patient_id = $1 ORDER BY id DESC`, who.PatientID); len(want) < 3 || !slices.Equal(own, want) {
			t.Errorf("own entries %v, want %v", own, want)
		}
		list := pages(func(page Page) (WaitingPage, error) { return p.service.DoctorWaiting(ctx, staff, p.doctor, page) })
		if want := all[WaitingID](p, `SELECT id FROM waiting_entry ORDER BY id`); !slices.Equal(list, want) {
			t.Errorf("the doctor's entries %v, want %v", list, want)
		}
		elsewhere, err := p.service.DoctorWaiting(ctx, Actor{Kind: Staff, Organization: otherOrganization}, p.doctor, Page{First: 10})
		if err != nil || len(elsewhere.Entries) != 0 {
			t.Errorf("%+v, %v", elsewhere, err)
		}
		_, err = p.service.DoctorWaiting(ctx, who, p.doctor, Page{First: 10})
		wantCode(t, err, Forbidden)
		_, err = p.service.PatientWaiting(ctx, staff, Page{First: 10})
		wantCode(t, err, Forbidden)
		for _, page := range []Page{{First: 0}, {First: 101}, {First: 1, After: "?"}, {First: 1, After: "MDE"}} {
			_, err = p.service.PatientWaiting(ctx, who, page)
			wantCode(t, err, Invalid)
		}
	})

	t.Run("Limit", func(t *testing.T) {
		who := p.patient()
		for n := range 12 {
			_, _, err := p.service.JoinWaitingList(ctx, who, WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(n)})
			if n < waitingMost && err != nil || n >= waitingMost && code(err) != LimitReached {
				t.Errorf("wish %d: %v", n, err)
			}
		}
		if _, joined, err := p.service.JoinWaitingList(ctx, who, WaitingRequest{Doctor: p.doctor, From: today, To: today}); err != nil || joined { // stands
			t.Errorf("%v, %v", joined, err)
		}
	})
}

// A patient joins for the same many times at once, and for many things at once: one entry, and no more than the limit.
func TestJoinRace(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		who := p.patient()
		for _, distinct := range []int{0, 1} {
			together(24, func(i int) {
				_, _, err := service(i).JoinWaitingList(context.Background(), who, WaitingRequest{Doctor: p.doctor, From: today, To: today.AddDays(i * distinct)})
				if err = allow(err, LimitReached); err != nil {
					t.Error(err)
				}
			})
			if n, want := one[int](p, `SELECT count(*) FROM waiting_entry`), 1+distinct*(waitingMost-1); n != want {
				t.Errorf("%d entries, want %d", n, want)
			}
		}
	})
}
