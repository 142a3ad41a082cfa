package booking

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
)

func TestReferral(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	hours := 0
	slot := func() SlotID { hours++; return p.slot(time.Duration(hours)*time.Hour, 5) }
	book := func(actor Actor, referral string) (Booking, error) {
		return p.service.Book(ctx, actor, BookRequest{Slot: slot(), Key: fmt.Sprint("k", hours), Referral: referral})
	}

	t.Run("OneActiveAppointment", func(t *testing.T) {
		patient := p.patient()
		first, err := book(patient, " R-1 ") // blanks around it are no part of it
		if err != nil || *first.Appointment.ReferralID != "R-1" {
			t.Fatalf("%+v, %v", first, err)
		}
		_, err = book(patient, "R-1")
		wantCode(t, err, ReferralInUse)
		if got := asError(t, err).Existing; got != first.Appointment.ID {
			t.Errorf("existing appointment %d, want %d", got, first.Appointment.ID)
		}
		_, err = book(p.patient(), "R-1")
		wantCode(t, err, ReferralInUse)
		if got := asError(t, err).Existing; got != 0 {
			t.Errorf("somebody else is told of appointment %d", got)
		}
		_, err = p.service.Hold(ctx, patient, BookRequest{Slot: slot(), Key: "h", Referral: "R-1"})
		wantCode(t, err, ReferralInUse)
		if _, err := p.service.Cancel(ctx, patient, CancelRequest{Appointment: first.Appointment.ID}); err != nil {
			t.Fatal(err)
		}
		if _, err := book(p.patient(), "R-1"); err != nil {
			t.Error(err)
		}
		p.check()
	})

	t.Run("Absent", func(t *testing.T) { // and never a text that stands for it
		for _, none := range []string{"", "", " ", "\t\n"} {
			b, err := book(p.patient(), none)
			if err != nil || b.Appointment.ReferralID != nil {
				t.Errorf("%q: %+v, %v", none, b.Appointment, err)
			}
		}
		if n := one[int](p, `SELECT count(*) FROM appointment WHERE btrim(referral_id) IN ('', 'null')`); n != 0 {
			t.Errorf("%d appointments with a referral that is none", n)
		}
	})

	t.Run("OfAnotherOrganization", func(t *testing.T) { // is another referral
		_, doctor := p.newDoctor("Other")
		other := one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', 1, '2026-10-01') RETURNING id`, doctor, now.Add(time.Hour))
		if _, err := book(p.patient(), "R-2"); err != nil {
			t.Fatal(err)
		}
		if _, err := p.service.Book(ctx, p.patient(), BookRequest{Slot: other, Key: "k", Referral: "R-2"}); err != nil {
			t.Error(err)
		}
	})

	t.Run("BadInput", func(t *testing.T) {
		for _, bad := range []string{strings.Repeat("x", 65), "a\x00b", "\xff"} {
			_, err := book(p.patient(), bad)
			wantCode(t, err, Invalid)
		}
		if _, err := book(p.patient(), strings.Repeat("ß", 64)); err != nil {
			t.Error(err)
		}
	})

	t.Run("PartOfTheRequest", func(t *testing.T) {
		patient, slot := p.patient(), slot()
		r := BookRequest{Slot: slot, Key: "k", Referral: "R-3"}
		if _, err := p.service.Book(ctx, patient, r); err != nil {
			t.Fatal(err)
		}
		if again, err := p.service.Book(ctx, patient, r); err != nil || !again.Replayed {
			t.Errorf("%+v, %v", again, err)
		}
		r.Referral = "R-4"
		_, err := p.service.Book(ctx, patient, r)
		wantCode(t, err, IdempotencyKeyReused)
	})
}

// One referral, two patients of a family, two slots at once: one wins, and the other's place stays free.
func raceForReferral(p *practice, service func(i int) *Service, rounds int) error {
	slots, patients := p.slots(2*rounds, 1), p.patients(2)
	var crowd errgroup.Group
	crowd.SetLimit(8)
	for n := range rounds {
		crowd.Go(func() error {
			var won, refused atomic.Int32
			together(2, func(i int) {
				claim := []func(context.Context, Actor, BookRequest) (Booking, error){service(i).Book, service(i).Hold}[(n+i)%2]
				_, err := claim(context.Background(), patients[i], BookRequest{Slot: slots[2*n+i], Key: fmt.Sprint(n), Referral: fmt.Sprint("R", n)})
				switch code(err) {
				case "":
					won.Add(1)
				case ReferralInUse:
					refused.Add(1)
				}
			})
			free := one[int](p, `SELECT sum(capacity - booked_count) FROM time_slot WHERE id IN ($1, $2)`, slots[2*n], slots[2*n+1])
			if won.Load() != 1 || refused.Load() != 1 || free != 1 {
				return fmt.Errorf("round %d: %d won, %d refused, %d free", n, won.Load(), refused.Load(), free)
			}
			return nil
		})
	}
	return crowd.Wait()
}

func TestRaceForReferral(t *testing.T) {
	t.Parallel()
	onEachRoad(t, func(t *testing.T, p *practice, service func(i int) *Service) {
		if err := raceForReferral(p, service, rounds(2000)); err != nil {
			t.Error(err)
		}
		p.check()
	})
	t.Run("Control", func(t *testing.T) {
		t.Parallel()
		p := newPractice(t)
		p.exec(`DROP INDEX uq_active_referral`)
		if err := raceForReferral(p, func(int) *Service { return p.service }, 20); err == nil {
			t.Error("nobody misses uq_active_referral")
		}
	})
}

// Staff may let appointments overlap, and say why.
func TestOverlapAllowed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	patient := p.registered(p.staff(), "s")
	early := p.slot(time.Hour, 1)
	request := func(slot SlotID, key, reason string) BookRequest {
		return BookRequest{Slot: slot, Patient: patient, Key: key, OverlapReason: reason}
	}
	half := func() SlotID {
		_, doctor := p.newDoctor(fmt.Sprint(one[int](p, `SELECT count(*) FROM doctor`)))
		p.exec(`UPDATE doctor SET organization_id = $2 WHERE id = $1`, doctor, p.organization)
		return one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
			VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', 1, '2026-10-01') RETURNING id`, doctor, now.Add(75*time.Minute))
	}
	first, err := p.service.Book(ctx, p.staff(), request(early, "k1", "in case"))
	if err != nil || first.Appointment.OverlapReason != nil {
		t.Fatalf("%+v, %v: nothing overlaps, so there is nothing to allow", first.Appointment, err)
	}
	second := half()
	_, err = p.service.Book(ctx, p.staff(), request(second, "k2", " "))
	wantCode(t, err, Overlap)
	if e := asError(t, err); e.Existing != 0 {
		t.Errorf("the refusal tells of appointment %d", e.Existing)
	}
	got, err := p.service.Book(ctx, p.staff(), request(second, "k2", " both with her mother "))
	if err != nil || got.Appointment.OverlapReason == nil || *got.Appointment.OverlapReason != "both with her mother" {
		t.Fatalf("%+v, %v", got.Appointment, err)
	}
	if by := one[string](p, `SELECT booked_by FROM appointment WHERE id = $1 AND overlap_allowed`, got.Appointment.ID); by != "staff:desk" {
		t.Errorf("allowed by %q", by)
	}
	_, err = p.service.Book(ctx, p.staff(), request(second, "k3", "twice in one slot"))
	wantCode(t, err, AlreadyBooked)
	_, err = p.service.Book(ctx, p.staff(), request(half(), "k4", strings.Repeat("x", 501)))
	wantCode(t, err, Invalid)

	for name, actor := range map[string]Actor{
		"Patient": {Kind: Patient, Subject: "1", PatientID: patient}, "Partner": {Kind: Partner, Subject: "portal"}, "System": SystemActor,
	} {
		_, err := p.service.Book(ctx, actor, request(half(), name, "please"))
		if code(err) != Forbidden {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.check()

	t.Run("Control", func(t *testing.T) { // it is the constraint that refuses
		if _, err := p.service.Cancel(ctx, p.staff(), CancelRequest{Appointment: got.Appointment.ID}); err != nil {
			t.Fatal(err)
		}
		p.exec(`ALTER TABLE appointment DROP CONSTRAINT ex_patient_overlap`)
		if _, err := p.service.Book(ctx, p.staff(), request(half(), "k9", "")); err != nil {
			t.Errorf("the control does not bite: %v", err)
		}
	})
}
