package booking

import (
	"context"
	"testing"
	"time"
)

// Instances of the versions before go on with the functions of their time while this one takes their
// place. They know neither that a FLEXIBLE slot goes with its appointment nor that an entry of the
// waiting list follows its offer; the database sees to that.
func TestOlderInstances(t *testing.T) {
	t.Parallel()
	const (
		cancel  = `SELECT FROM cancel($1, $2, NULL, NULL, NULL, 'system:older', NULL)`
		stepTo  = `SELECT FROM step($1, 'CANCEL', $2, NULL, NULL, NULL, 'system:older', NULL)`
		confirm = `SELECT FROM step($1, 'CONFIRM', $2, NULL, NULL, NULL, 'system:older', NULL)`
		release = `SELECT FROM step($1, 'RELEASE', $2, NULL, NULL, NULL, 'system:older', NULL)`
		expire  = `SELECT expire($1, true, ARRAY(SELECT slot_id FROM appointment WHERE id = $2))`
		wrong   = `SELECT (SELECT count(*) FROM time_slot WHERE kind = 'FLEXIBLE' AND (status = 'WITHDRAWN') <> (booked_count = 0))
		                + (SELECT count(*) FROM waiting_entry w JOIN appointment a ON a.id = w.appointment_id
		                    WHERE w.status = 'OFFERED' AND a.status <> 'HELD')`
	)
	ctx := context.Background()
	booked := func(p *practice) AppointmentID {
		b, err := p.bookTime(p.patient(), "k", p.time(0, 30))
		if err != nil {
			t.Fatal(err)
		}
		return b.Appointment.ID
	}
	held := func(p *practice) AppointmentID {
		b, err := p.service.Hold(ctx, p.patient(), BookRequest{Time: p.time(0, 30), Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		return b.Appointment.ID
	}
	offer := func(p *practice) AppointmentID {
		_, holders := p.full(24*time.Hour, 1)
		waiting := p.join(p.patient())
		if _, err := p.service.Cancel(ctx, SystemActor, CancelRequest{Appointment: holders[0].Appointment.ID}); err != nil {
			t.Fatal(err)
		}
		return offered(t, p.service, waiting.ID).ID
	}
	for name, tt := range map[string]struct {
		make    func(*practice) AppointmentID
		older   string
		trigger string // without which something is wrong
		table   string
		want    WaitingStatus // of the only entry; "": there is none
	}{
		"CancelATime":     {booked, cancel, "slot_flexible_emptied", "time_slot", ""},
		"StepATime":       {booked, stepTo, "slot_flexible_emptied", "time_slot", ""},
		"ExpireATime":     {held, expire, "slot_flexible_emptied", "time_slot", ""},
		"ConfirmAnOffer":  {offer, confirm, "appointment_offer", "appointment", WaitingBooked},
		"GiveAnOfferBack": {offer, release, "appointment_offer", "appointment", WaitingForPlace},
		"ExpireAnOffer":   {offer, expire, "appointment_offer", "appointment", WaitingForPlace},
	} {
		for _, without := range []bool{false, true} {
			p := newFlexible(t)
			id := tt.make(p)
			if without {
				p.exec(`ALTER TABLE ` + tt.table + ` DISABLE TRIGGER ` + tt.trigger)
			}
			at := now
			if tt.older == expire {
				at = now.Add(time.Hour)
			}
			p.exec(tt.older, at, id)
			if n := one[int](p, wrong); (n != 0) != without {
				t.Errorf("%s, without its trigger %v: wrong in %d places", name, without, n)
			}
			if without {
				continue
			}
			p.check()
			if tt.want != "" {
				wantStatus(t, p.service, one[WaitingID](p, `SELECT id FROM waiting_entry`), tt.want)
				continue
			}
			if _, err := p.bookTime(p.patient(), "another", p.time(15, 30)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
