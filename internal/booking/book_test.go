package booking

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBook(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)

	t.Run("Won", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(time.Hour, 2)
		got := p.book(patient, slot, "k1")
		want := Booking{Appointment: Appointment{
			ID: got.Appointment.ID, SlotID: slot, DoctorID: p.doctor, OrganizationID: p.organization,
			PatientID: patient.PatientID, Status: AppointmentBooked, StartAt: now.Add(time.Hour),
			EndAt: now.Add(90 * time.Minute), CreatedAt: now,
		}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
		event := one[string](p, `SELECT type || ' ' || (payload ->> 'slotId') || ' ' || (payload ->> 'patientId')
			FROM outbox_event WHERE root_id = $1`, got.Appointment.ID)
		if want := "BOOKED " + one[string](p, `SELECT $1::bigint || ' ' || $2::bigint`, slot, patient.PatientID); event != want {
			t.Errorf("event %q, want %q", event, want)
		}
	})

	full := p.slot(2*time.Hour, 1)
	p.book(p.patient(), full, "first")
	closed := p.slot(3*time.Hour, 1)
	p.exec(`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, closed)
	withdrawn := p.slot(4*time.Hour, 1)
	p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, withdrawn)
	early := p.slot(15*24*time.Hour, 1)
	for name, test := range map[string]struct {
		slot SlotID
		want Code
	}{
		"Full":      {full, SlotFull},
		"Closed":    {closed, SlotIsClosed},
		"Past":      {p.slot(-time.Hour, 1), SlotPast},
		"BeginsNow": {p.slot(0, 1), SlotPast},
		"NotOpen":   {early, SlotNotOpen},
		"Withdrawn": {withdrawn, NotFound},
		"Unknown":   {1 << 40, NotFound},
		"Zero":      {0, Invalid},
		"Negative":  {-7, NotFound},
	} {
		t.Run("Refused/"+name, func(t *testing.T) {
			_, err := p.service.Book(ctx, p.patient(), BookRequest{Slot: test.slot, Key: "k"})
			wantCode(t, err, test.want)
			p.check()
		})
	}

	t.Run("OpensToTheMicrosecond", func(t *testing.T) {
		opens := one[time.Time](p, `SELECT opens_at FROM time_slot WHERE id = $1`, early)
		_, err := p.at(opens.Add(-time.Microsecond)).Book(ctx, p.patient(), BookRequest{Slot: early, Key: "k"})
		wantCode(t, err, SlotNotOpen)
		if _, err := p.at(opens).Book(ctx, p.patient(), BookRequest{Slot: early, Key: "k"}); err != nil {
			t.Error(err)
		}
	})

	t.Run("AlreadyBooked", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(5*time.Hour, 1)
		first := p.book(patient, slot, "k1")
		_, err := p.service.Book(ctx, patient, BookRequest{Slot: slot, Key: "k2"})
		wantCode(t, err, AlreadyBooked) // and not SLOT_FULL, which it is too
		if got := asError(t, err).Existing; got != first.Appointment.ID {
			t.Errorf("existing appointment %d, want %d", got, first.Appointment.ID)
		}
	})

	t.Run("Overlap", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(6*time.Hour, 1)
		p.book(patient, slot, "k1")
		_, elsewhere := p.newDoctor("Elsewhere")
		at := func(after time.Duration) SlotID {
			return one[SlotID](p, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
				VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 min', 1, '2026-10-01') RETURNING id`,
				elsewhere, now.Add(after))
		}
		_, err := p.service.Book(ctx, patient, BookRequest{Slot: at(6*time.Hour + 29*time.Minute), Key: "k2"})
		wantCode(t, err, Overlap)
		touching := at(6*time.Hour + 30*time.Minute)
		p.book(patient, touching, "k3")
		if n := p.booked(touching); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})
}

func TestBookForOthers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	partner := Actor{Kind: Partner, Subject: "portal"}
	other := Actor{Kind: Partner, Subject: "rival"}
	otherOrganization, _ := p.newDoctor("Other")
	otherStaff := Actor{Kind: Staff, Subject: "desk", Organization: otherOrganization}
	known := p.patient() // signed in themselves, and known to the practice by an appointment
	p.book(known, p.slot(time.Hour, 1), "k")

	for name, test := range map[string]struct {
		actor   Actor
		patient PatientID
		want    Code
	}{
		"Anonymous":                   {Actor{}, 1, Unauthenticated},
		"Patient/ThemselvesByName":    {known, known.PatientID, ""},
		"Patient/SomebodyElse":        {p.patient(), known.PatientID, NotFound},
		"Staff/Registered":            {p.staff(), p.registered(p.staff(), "s"), ""},
		"Staff/Known":                 {p.staff(), known.PatientID, ""},
		"Staff/Stranger":              {p.staff(), p.patient().PatientID, NotFound},
		"Staff/Nobody":                {p.staff(), 0, Invalid},
		"Staff/Negative":              {p.staff(), -1, NotFound},
		"Staff/Unknown":               {p.staff(), 1 << 40, NotFound},
		"OtherStaff/TheirOwnPatient":  {otherStaff, p.registered(otherStaff, "o"), NotFound}, // the slot is not theirs
		"OtherStaff/OurPatient":       {otherStaff, known.PatientID, NotFound},
		"Partner/Registered":          {partner, p.registered(partner, "p"), ""},
		"Partner/AnothersPatient":     {partner, p.registered(other, "p"), NotFound},
		"Partner/PatientOfPractice":   {partner, known.PatientID, NotFound},
		"System/Anybody":              {SystemActor, p.patient().PatientID, ""},
		"Patient/TokenWithoutPatient": {Actor{Kind: Patient, Subject: "x"}, 0, Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			slot := p.slot(time.Duration(2+len(name))*time.Hour, 1)
			defer p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
			_, err := p.service.Book(ctx, test.actor, BookRequest{Slot: slot, Patient: test.patient, Key: name})
			wantCode(t, err, test.want)
		})
	}
}

func TestBookKey(t *testing.T) {
	t.Parallel()
	for key, ok := range map[string]bool{
		"a": true, strings.Repeat("k", 64): true, "!~": true, "550e8400-e29b-41d4-a716-446655440000": true,
		"": false, strings.Repeat("k", 65): false, " ": false, "a b": false, "a\x00": false, "a\n": false, "\x7f": false,
		"schlüssel": false, "\xff": false,
	} {
		_, err := admit(Actor{Kind: Patient, PatientID: 1}, BookRequest{Slot: 1, Key: key})
		if (err == nil) != ok || err != nil && code(err) != Invalid {
			t.Errorf("key %q: %v", key, err)
		}
	}
}

// A replay beats every refusal: what became of the slot since does not matter.
func TestReplay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	for name, then := range map[string]struct {
		sql string
		at  time.Time
	}{
		"Full":      {`SELECT $1::bigint`, now},
		"Closed":    {`UPDATE time_slot SET status = 'CLOSED' WHERE id = $1`, now},
		"Withdrawn": {`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, now},
		"Past":      {`SELECT $1::bigint`, now.Add(1000 * time.Hour)},
		"NotOpen":   {`UPDATE time_slot SET opens_at = start_at WHERE id = $1`, now},
	} {
		t.Run(name, func(t *testing.T) {
			patient, slot := p.patient(), p.slot(time.Hour, 1)
			defer p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
			first := p.book(patient, slot, "k")
			p.exec(then.sql, slot)
			again, err := p.at(then.at).Book(ctx, patient, BookRequest{Slot: slot, Key: "k"})
			if err != nil {
				t.Fatal(err)
			}
			first.Replayed = true
			if diff := cmp.Diff(first, again); diff != "" {
				t.Error(diff)
			}
			p.check()
		})
	}

	t.Run("B35 OtherRequest", func(t *testing.T) {
		patient, slot, other := p.patient(), p.slot(20*time.Hour, 1), p.slot(21*time.Hour, 1)
		p.book(patient, slot, "k")
		_, err := p.service.Book(ctx, patient, BookRequest{Slot: other, Key: "k"})
		wantCode(t, err, IdempotencyKeyReused)
		if n := p.booked(other); n != 0 {
			t.Errorf("booked_count = %d, want 0", n)
		}
	})

	t.Run("B35 OtherCaller", func(t *testing.T) {
		slot := p.slot(22*time.Hour, 2)
		first, second := p.book(p.patient(), slot, "k"), p.book(p.patient(), slot, "k")
		if first.Appointment.ID == second.Appointment.ID || second.Replayed {
			t.Errorf("the second caller got the first one's: %+v", second)
		}
	})

	t.Run("RefusedThenFree", func(t *testing.T) { // only successes are remembered
		winner, waiting, slot := p.patient(), p.patient(), p.slot(23*time.Hour, 1)
		won := p.book(winner, slot, "k")
		_, err := p.service.Book(ctx, waiting, BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, SlotFull)
		if _, err := p.service.Cancel(ctx, winner, CancelRequest{Appointment: won.Appointment.ID}); err != nil {
			t.Fatal(err)
		}
		if got := p.book(waiting, slot, "k"); got.Replayed {
			t.Error("a refusal was remembered as a booking")
		}
	})

	t.Run("B33 AfterCancel", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(24*time.Hour, 1)
		first := p.book(patient, slot, "k1")
		if _, err := p.service.Cancel(ctx, patient, CancelRequest{Appointment: first.Appointment.ID}); err != nil {
			t.Fatal(err)
		}
		second := p.book(patient, slot, "k2")
		if second.Replayed || second.Appointment.ID == first.Appointment.ID {
			t.Errorf("the cancelled booking came back: %+v", second)
		}
		replay := p.book(patient, slot, "k1")
		if !replay.Replayed || replay.Appointment.ID != first.Appointment.ID || replay.Appointment.Status != AppointmentCancelled {
			t.Errorf("replay of the first key: %+v", replay)
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})

	t.Run("SlotHeldElsewhere", func(t *testing.T) { // a retry need not wait for the slot's lock
		patient, slot := p.patient(), p.slot(25*time.Hour, 2)
		p.book(patient, slot, "k")
		tx, err := p.pool.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(ctx)
		if _, err := tx.Exec(ctx, `SELECT FROM time_slot WHERE id = $1 FOR UPDATE`, slot); err != nil {
			t.Fatal(err)
		}
		if got := p.book(patient, slot, "k"); !got.Replayed {
			t.Errorf("%+v is no replay", got)
		}
		_, err = p.service.Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, Overloaded)
	})
}

func asError(t testing.TB, err error) *Error {
	t.Helper()
	var refused *Error
	if !errors.As(err, &refused) {
		t.Fatalf("%v is not a refusal", err)
	}
	return refused
}

// Who gives up while their call is in a transaction is not told that nothing has happened.
func TestGivenUpInFlight(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	patient, slot := p.patient(), p.slot(time.Hour, 1)
	tx, err := p.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // it was committed, if all went well
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock(patient_lock_key($1))`, patient.PatientID); err != nil {
		t.Fatal(err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	outcome := make(chan error, 1)
	go func() {
		_, err := p.service.Book(ctx, patient, BookRequest{Slot: slot, Key: "k"})
		outcome <- err
	}()
	p.await("the call waits for its patient", `SELECT EXISTS (SELECT FROM pg_locks
		 WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`)
	giveUp()
	err = <-outcome
	if told := Told(ctx, err); told.Code != OutcomeUnknown {
		t.Errorf("told %+v (%v)", told, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.await("it was booked all the same", `SELECT EXISTS (SELECT FROM appointment)`)
	if b := p.book(patient, slot, "k"); !b.Replayed {
		t.Errorf("the retry: %+v", b)
	}
}

// await polls until a question is answered with yes.
func (p *practice) await(what, sql string) {
	p.t.Helper()
	look, deadline := time.NewTicker(2*time.Millisecond), time.After(20*time.Second)
	defer look.Stop()
	for !one[bool](p, sql) {
		select {
		case <-look.C:
		case <-deadline:
			p.t.Fatalf("waited in vain: %s", what)
		}
	}
}
