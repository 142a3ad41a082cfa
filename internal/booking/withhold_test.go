package booking

import (
	"context"
	"testing"
	"time"
)

// At 11:00 of a Monday, the practice's next release is at 7:00 on Tuesday.
var nextRelease = time.Date(2026, 10, 6, 5, 0, 0, 0, time.UTC)

// B85: with the policy, what was cancelled comes back to everybody at the next release and not before;
// without it, at once.
func TestWithheldUntilTheRelease(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	onEachRoad(t, func(t *testing.T, p *practice, service func(int) *Service) {
		slot, booked := p.full(48*time.Hour, 1)
		p.cancel(booked[0])
		if n := p.booked(slot); n != 0 {
			t.Errorf("without the policy: booked_count = %d, want 0", n)
		}
		p.exec(`UPDATE organization SET cancelled_returns = 'NEXT_RELEASE'`)

		slot, booked = p.full(49*time.Hour, 1)
		version := one[int64](p, `SELECT version FROM time_slot WHERE id = $1`, slot)
		p.cancel(booked[0])
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
		if v := one[int64](p, `SELECT version FROM time_slot WHERE id = $1`, slot); v <= version {
			t.Errorf("version %d after %d", v, version) // lists must learn when to end
		}
		before, at := p.like(service(0), nextRelease.Add(-time.Microsecond)), p.like(service(0), nextRelease)
		for name, s := range map[string]*Service{"atOnce": service(0), "justBefore": before} {
			for _, who := range []Actor{p.patient(), booked[0].by()} { // whoever gave it back included
				_, err := s.Book(ctx, who, BookRequest{Slot: slot, Key: name})
				wantCode(t, err, SlotFull)
				_, err = s.Hold(ctx, who, BookRequest{Slot: slot, Key: name})
				wantCode(t, err, SlotFull)
			}
			if n, err := s.Expire(ctx); n != 0 || err != nil {
				t.Errorf("%s: %d came back, %v", name, n, err)
			}
		}
		if again, err := service(0).Cancel(ctx, booked[0].by(), CancelRequest{Appointment: booked[0].Appointment.ID}); err != nil || again.Changed {
			t.Errorf("cancelled again: %+v, %v", again, err)
		}
		p.check()
		if _, err := at.Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"}); err != nil { // though no sweeper has been there
			t.Error(err)
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}

		// What moves away is withheld as well, where it was.
		left, moving := p.full(52*time.Hour, 1)
		to := p.slot(53*time.Hour, 1)
		if _, err := service(0).Reschedule(ctx, moving[0].by(), RescheduleRequest{Appointment: moving[0].Appointment.ID, To: to, Key: "m"}); err != nil {
			t.Fatal(err)
		}
		if a, b := p.booked(left), p.booked(to); a != 1 || b != 1 {
			t.Errorf("booked_count = %d and %d, want 1 and 1", a, b)
		}
		_, err := before.Book(ctx, p.patient(), BookRequest{Slot: left, Key: "k"})
		wantCode(t, err, SlotFull)
		if _, err := at.Reschedule(ctx, moving[0].by(), RescheduleRequest{Appointment: one[AppointmentID](p,
			`SELECT id FROM appointment WHERE slot_id = $1`, to), To: left, Key: "n"}); err != nil { // and back, when it is due
			t.Error(err)
		}
		p.check()

		// The sweeper, and a gate that believes the slot is full.
		swept, first := p.full(50*time.Hour, 1)
		gated, second := p.full(51*time.Hour, 1)
		p.cancel(first[0])
		p.cancel(second[0])
		full := &gate{admit: func(BookRequest) error { return Refuse(SlotFull, "as far as I know") }}
		config := patient(nextRelease)
		config.Plain, config.Gate = service(0).batcher == nil, full
		if _, err := New(p.pool, config).Book(ctx, p.patient(), BookRequest{Slot: gated, Key: "k"}); err != nil {
			t.Error(err)
		}
		for _, want := range []int{1, 0} {
			if n, err := at.Expire(ctx, p.doctor); n != want || err != nil {
				t.Errorf("%d came back, want %d; %v", n, want, err)
			}
		}
		if n := p.booked(swept); n != 0 {
			t.Errorf("booked_count = %d, want 0", n)
		}
	})
}

// What the policy leaves alone: holds, which were nobody's for longer than minutes; what begins before
// the next release, which would be nobody's; and those who wait, who can't be told in advance.
func TestNotWithheld(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	p := newPractice(t)
	p.exec(`UPDATE organization SET cancelled_returns = 'NEXT_RELEASE'`)

	t.Run("Holds", func(t *testing.T) {
		slot := p.slot(48*time.Hour, 2)
		released, cancelled := p.hold(p.patient(), slot, "k"), p.hold(p.patient(), slot, "k")
		if _, err := p.service.Release(ctx, released.by(), released.Appointment.ID); err != nil {
			t.Fatal(err)
		}
		p.cancel(cancelled)
		if n := p.booked(slot); n != 0 {
			t.Errorf("booked_count = %d, want 0", n)
		}
	})

	t.Run("BeginsBefore", func(t *testing.T) {
		for start, want := range map[time.Time]int{nextRelease: 0, nextRelease.Add(time.Minute): 1} {
			slot, booked := p.full(start.Sub(now), 1)
			p.cancel(booked[0])
			if n := p.booked(slot); n != want {
				t.Errorf("begins at %s: booked_count = %d, want %d", start, n, want)
			}
			p.exec(`UPDATE time_slot SET status = 'WITHDRAWN' WHERE id = $1`, slot)
		}
	})

	t.Run("Awaited", func(t *testing.T) { // an offer at once; if it comes to nothing the place is everybody's
		slot, booked := p.full(50*time.Hour, 1)
		who := p.patient()
		w := p.join(who)
		p.cancel(booked[0])
		offer := offered(t, p.service, w.ID)
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
		if _, err := p.service.Release(ctx, who, offer.ID); err != nil {
			t.Fatal(err)
		}
		if n := p.booked(slot); n != 0 {
			t.Errorf("booked_count = %d, want 0", n)
		}
	})

	t.Run("JoinedMeanwhile", func(t *testing.T) { // the release offers it to them first
		slot, booked := p.full(51*time.Hour, 1)
		p.cancel(booked[0])
		w := p.join(p.patient())
		at := p.at(nextRelease)
		_, err := at.Book(ctx, p.patient(), BookRequest{Slot: slot, Key: "k"})
		wantCode(t, err, SlotFull)
		if offer := offered(t, at, w.ID); offer.SlotID != slot {
			t.Errorf("%+v", offer)
		}
		if n := p.booked(slot); n != 1 {
			t.Errorf("booked_count = %d, want 1", n)
		}
	})
}
