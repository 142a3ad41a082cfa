package schedule

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
)

// slot makes a slot of the doctor that begins an hour from now, offset hours later.
func (p *practice) slot(offset, capacity, booked int, status booking.SlotStatus) booking.SlotID {
	p.t.Helper()
	return one[booking.SlotID](p, `
		INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity, booked_count, status)
		SELECT $1, at, at + interval '30 min', at - interval '14 days', $3, $4, $5
		  FROM (VALUES ($2::timestamptz + $6 * interval '1 hour')) AS v (at) RETURNING id`,
		p.doctor.ID, now, capacity, booked, status, offset+1)
}

func TestUpdateSlot(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	capacity := func(n int) SlotChange { return SlotChange{Capacity: &n} }
	status := func(s booking.SlotStatus) SlotChange { return SlotChange{Status: &s} }
	both := func(n int, s booking.SlotStatus) SlotChange { return SlotChange{&n, &s} }
	const open, closed, withdrawn = booking.SlotOpen, booking.SlotClosed, booking.SlotWithdrawn

	for i, tt := range []struct {
		name     string
		was      string // capacity, booked, status
		change   SlotChange
		code     booking.Code
		is       string
		versions int64
	}{
		{"close", "3 2 OPEN", status(closed), "", "3 2 CLOSED", 1},
		{"close again", "3 2 CLOSED", status(closed), "", "3 2 CLOSED", 0},
		{"reopen", "3 2 CLOSED", status(open), "", "3 2 OPEN", 1},
		{"raise", "2 2 OPEN", capacity(5), "", "5 2 OPEN", 1},
		{"lower to what is taken", "3 2 OPEN", capacity(2), "", "2 2 OPEN", 1},
		{"lower below it", "3 2 OPEN", capacity(1), booking.CapacityInUse, "3 2 OPEN", 0},
		{"nothing of two", "3 2 OPEN", both(1, closed), booking.CapacityInUse, "3 2 OPEN", 0},
		{"both", "3 2 OPEN", both(4, closed), "", "4 2 CLOSED", 1},
		{"the largest", "3 2 OPEN", capacity(100_000), "", "100000 2 OPEN", 1},
		{"too large", "3 2 OPEN", capacity(100_001), booking.Invalid, "3 2 OPEN", 0},
		{"zero", "3 0 OPEN", capacity(0), booking.Invalid, "3 0 OPEN", 0},
		{"negative", "3 0 OPEN", capacity(-1), booking.Invalid, "3 0 OPEN", 0},
		{"nothing", "3 2 OPEN", SlotChange{}, booking.Invalid, "3 2 OPEN", 0},
		{"withdraw", "3 0 OPEN", status(withdrawn), booking.Invalid, "3 0 OPEN", 0},
		{"no status", "3 0 OPEN", status("FULL"), booking.Invalid, "3 0 OPEN", 0},
		{"withdrawn", "3 0 WITHDRAWN", status(open), booking.NotFound, "3 0 WITHDRAWN", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var was booking.Slot
			if _, err := fmt.Sscan(tt.was, &was.Capacity, &was.Booked, (*string)(&was.Status)); err != nil {
				t.Fatal(err)
			}
			id := p.slot(i, was.Capacity, was.Booked, was.Status)
			got, err := p.UpdateSlot(t.Context(), staff(p.organization), id, tt.change)
			wantCode(t, err, tt.code)
			if shown := fmt.Sprintf("%d %d %s", got.Capacity, got.Booked, got.Status); err == nil && (shown != tt.is || got.Version != tt.versions || got.ID != id) {
				t.Errorf("returned %+v, want %s", got, tt.is)
			}
			stored := one[string](p, `SELECT format('%s %s %s %s', capacity, booked_count, status, version) FROM time_slot WHERE id = $1`, id)
			if stored != fmt.Sprint(tt.is, " ", tt.versions) {
				t.Errorf("stored %s, want %s %d", stored, tt.is, tt.versions)
			}
		})
	}

	t.Run("past", func(t *testing.T) {
		id := p.slot(-1, 3, 0, closed) // begins now
		_, err := p.UpdateSlot(t.Context(), staff(p.organization), id, status(open))
		wantCode(t, err, booking.SlotPast)
	})
	t.Run("not theirs", func(t *testing.T) {
		p.t = t
		id := p.slot(100, 3, 0, open)
		p.refuses(func(actor booking.Actor) error {
			_, err := p.UpdateSlot(t.Context(), actor, id, status(closed))
			return err
		})
		_, err := p.UpdateSlot(t.Context(), booking.SystemActor, 0, status(closed))
		wantCode(t, err, booking.NotFound)
		if got, err := p.UpdateSlot(t.Context(), booking.SystemActor, id, status(closed)); err != nil || got.Version != 1 {
			t.Errorf("system: %+v, %v", got, err)
		}
	})
}

// chk_booked is what refuses: without it the same call takes places away from under appointments.
func TestUpdateSlotNeedsItsConstraint(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	id, lower := p.slot(0, 3, 2, booking.SlotOpen), 1
	p.exec(`ALTER TABLE time_slot DROP CONSTRAINT chk_booked`)
	if got, err := p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Capacity: &lower}); err != nil || got.Free() != -1 {
		t.Errorf("%+v, %v, want an oversold slot", got, err)
	}
}

// B13: more capacity reopens a full slot: it is announced, and the next booking succeeds at once.
func TestB13RaisedCapacityReopens(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	id := p.slot(0, 1, 0, booking.SlotOpen)
	core := booking.New(p.pool, booking.Config{Now: p.config.Now, AcquireWait: time.Minute, Persist: time.Minute})
	book := func() error {
		patient := one[booking.PatientID](p, `INSERT INTO patient (issuer, subject) VALUES ('test', gen_random_uuid()) RETURNING id`)
		actor := booking.Actor{Kind: booking.Patient, Subject: fmt.Sprint(patient), PatientID: patient}
		_, err := core.Book(t.Context(), actor, booking.BookRequest{Slot: id, Key: "k"})
		return err
	}
	wantCode(t, book(), "")
	wantCode(t, book(), booking.SlotFull)
	two := 2
	announced := changes(t, p.pool, func() {
		got, err := p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Capacity: &two})
		if err != nil || got.Free() != 1 {
			t.Fatalf("%+v, %v", got, err)
		}
	})
	if want := fmt.Sprintf("s %d %d 2 ", p.doctor.ID, id); !strings.HasPrefix(announced, want) {
		t.Errorf("announced %q, want it to begin with %q", announced, want)
	}
	wantCode(t, book(), "")
	wantCode(t, book(), booking.SlotFull)
}

// A hold that has lapsed takes no place: the capacity can be lowered as if it were not there.
func TestUpdateSlotPastALapsedHold(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	id, single := p.slot(0, 2, 0, booking.SlotOpen), 1
	core := booking.New(p.pool, booking.Config{Now: p.config.Now, AcquireWait: time.Minute, Persist: time.Minute})
	for i, claim := range []func(context.Context, booking.Actor, booking.BookRequest) (booking.Booking, error){core.Hold, core.Book} {
		patient := one[booking.PatientID](p, `INSERT INTO patient (issuer, subject) VALUES ('test', $1) RETURNING id`, fmt.Sprint(i))
		if _, err := claim(t.Context(), booking.Actor{Kind: booking.Patient, Subject: fmt.Sprint(patient), PatientID: patient}, booking.BookRequest{Slot: id, Key: "k"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Capacity: &single})
	wantCode(t, err, booking.CapacityInUse)
	p.exec(`UPDATE appointment SET expires_at = $1 WHERE status = 'HELD'`, p.config.Now())
	if got, err := p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Capacity: &single}); err != nil || got.Capacity != 1 || got.Booked != 1 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Nor does a place that is withheld, but no more of them come back for it than have to go.
func TestUpdateSlotPastWithheldPlaces(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	id := p.slot(48, 4, 4, booking.SlotOpen)
	p.exec(`WITH u AS (INSERT INTO patient (issuer, subject) SELECT 'test', n::text FROM generate_series(1, 4) AS n RETURNING id)
		INSERT INTO appointment (slot_id, patient_id, organization_id, status, idempotency_key, booked_by, request_hash, root_id, during, returns_at)
		SELECT t.id, u.id, $2, CASE WHEN u.id % 4 = 0 THEN 'BOOKED' ELSE 'CANCELLED' END, 'k', u.id::text, '', 0, tstzrange(t.start_at, t.end_at),
		       CASE WHEN u.id % 4 > 0 THEN t.start_at - interval '1 hour' END FROM u, time_slot t WHERE t.id = $1`, id, p.organization.ID)
	for _, capacity := range []int{3, 1} {
		got, err := p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Capacity: &capacity})
		if err != nil || got.Capacity != capacity || got.Booked != capacity {
			t.Errorf("%+v, %v", got, err)
		}
		if n := one[int](p, `SELECT count(*) FROM appointment WHERE returns_at IS NOT NULL`); n != capacity-1 {
			t.Errorf("%d places are withheld, want %d", n, capacity-1)
		}
	}
}

// Capacity lowered while the place is being booked: one of the two is refused.
func TestUpdateSlotAgainstBooking(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	core := booking.New(p.pool, booking.Config{Now: p.config.Now, AcquireWait: time.Minute, Persist: time.Minute})
	patient := one[booking.PatientID](p, `INSERT INTO patient (issuer, subject) VALUES ('test', 'x') RETURNING id`)
	actor := booking.Actor{Kind: booking.Patient, Subject: "x", PatientID: patient}
	capacity := 1
	for round := range 30 {
		id := p.slot(round, 2, 1, booking.SlotOpen)
		errs := together(2, func(i int) (err error) {
			if i == 0 {
				_, err = core.Book(t.Context(), actor, booking.BookRequest{Slot: id, Key: fmt.Sprint(round)})
			} else {
				_, err = p.UpdateSlot(t.Context(), staff(p.organization), id, SlotChange{Capacity: &capacity})
			}
			return err
		})
		booked, lowered := code(errs[0]), code(errs[1])
		if !(booked == "" && lowered == booking.CapacityInUse) && !(booked == booking.SlotFull && lowered == "") {
			t.Fatalf("round %d: booking %q, lowering %q", round, booked, lowered)
		}
	}
}

// Places that come about by a change of the slot are offered to those who wait before anybody sees them.
func TestUpdateSlotOffers(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	waits := func(slot booking.SlotID) {
		p.exec(`WITH u AS (INSERT INTO patient (issuer, subject) VALUES ('i', gen_random_uuid()::text) RETURNING id)
			INSERT INTO waiting_entry (doctor_id, organization_id, patient_id, first_day, last_day, during, turn, joined_by, created_at)
			SELECT t.doctor_id, $2, u.id, '2026-01-01', '2027-01-01', tstzrange(t.start_at, t.end_at), $3, 'test', $3
			  FROM u, time_slot t WHERE t.id = $1`, slot, p.organization.ID, now)
	}
	for name, test := range map[string]struct {
		taken, waiting int
		before         string
		change         SlotChange
		booked, offers int
	}{
		"More":         {1, 2, "OPEN", SlotChange{Capacity: new(4)}, 3, 2},
		"MoreButFew":   {1, 2, "OPEN", SlotChange{Capacity: new(2)}, 2, 1},
		"NobodyWaits":  {1, 0, "OPEN", SlotChange{Capacity: new(4)}, 1, 0},
		"Reopened":     {0, 2, "CLOSED", SlotChange{Status: new(booking.SlotOpen)}, 1, 1},
		"Closed":       {0, 2, "OPEN", SlotChange{Status: new(booking.SlotClosed)}, 0, 0},
		"ClosedBigger": {1, 2, "CLOSED", SlotChange{Capacity: new(4)}, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			slot := p.slot(48, 1, test.taken, booking.SlotStatus(test.before))
			defer p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
			defer p.exec(`DELETE FROM waiting_entry`)
			for range test.waiting {
				waits(slot)
			}
			got, err := p.UpdateSlot(t.Context(), staff(p.organization), slot, test.change)
			if err != nil || got.Booked != test.booked {
				t.Errorf("%+v, %v; want %d taken", got, err, test.booked)
			}
			if offers := one[int](p, `SELECT count(*) FROM waiting_entry WHERE status = 'OFFERED'`); offers != test.offers {
				t.Errorf("%d offers, want %d", offers, test.offers)
			}
		})
	}
}
