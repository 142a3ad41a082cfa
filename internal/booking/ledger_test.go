package booking

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
)

// ledger is a practice in plain Go, by what its events tell: who is in each slot, and what has become of
// each appointment.
//
// Whoever writes an event has locked its slot until the commit. So those of a slot are in order by their
// ids, and if transactions are taken in the order of their last ones, so are those of all slots.
type ledger struct {
	last    int64 // event
	slots   map[SlotID]*ledgerSlot
	claims  map[AppointmentID]*ledgerClaim
	entries map[WaitingID]WaitingStatus
	due     map[string]int // events that no answer was given for, or less than none: answers without their event
	wrong   []string
}

type ledgerSlot struct {
	capacity, taken int
	flexible, gone  bool
}

type ledgerClaim struct {
	told
	status   AppointmentStatus
	referral string
}

// told is an event.
type told struct {
	ID                          int64
	Change                      string // the transaction
	Type                        string
	Root, Appointment, Replaces AppointmentID
	Slot                        SlotID
	Patient                     PatientID
	Start, End                  time.Time
	Entry                       WaitingID
}

const toldSQL = `
SELECT id, xmin::text, type, root_id, payload->'appointmentId', coalesce(payload->'from'->'appointmentId', '0'), payload->'slotId',
       payload->'patientId', (payload->>'startAt')::timestamptz, (payload->>'endAt')::timestamptz, coalesce(payload->'waitingId', '0')
  FROM outbox_event WHERE id > $1
 ORDER BY max(id) OVER (PARTITION BY xmin::text), id`

func newLedger(p *practice) *ledger {
	l := &ledger{slots: map[SlotID]*ledgerSlot{}, claims: map[AppointmentID]*ledgerClaim{}, entries: map[WaitingID]WaitingStatus{}, due: map[string]int{}}
	for _, id := range all[SlotID](p, `SELECT id FROM time_slot`) {
		l.slots[id] = &ledgerSlot{capacity: one[int](p, `SELECT capacity FROM time_slot WHERE id = $1`, id)}
	}
	return l
}

func (l *ledger) complain(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// read follows the events since the last time, and gives what is wrong with them: by themselves, and held
// against the answers of the time and the tables of a practice that is quiet now.
func (l *ledger) read(p *practice, answers []answer) (wrong []string) {
	referrals := map[AppointmentID]string{}
	for _, a := range answers {
		if a.entry != 0 {
			l.entries[a.entry] = WaitingForPlace
		}
		if a.event != "" {
			l.due[fmt.Sprint(a.event, " ", a.appointment)]--
		}
		if a.referral != "" {
			referrals[a.appointment] = a.referral
		}
	}
	rows, err := p.pool.Query(context.Background(), toldSQL, l.last)
	if err != nil {
		p.t.Fatal(err)
	}
	events, err := pgx.CollectRows(rows, pgx.RowToStructByPos[told])
	if err != nil {
		p.t.Fatal(err)
	}
	for i, e := range events {
		l.last = max(l.last, e.ID)
		l.follow(e, referrals[e.Appointment])
		if i+1 == len(events) || events[i+1].Change != e.Change {
			for id, s := range l.slots {
				if s.taken > s.capacity {
					l.complain("%+v: %d are in slot %d of %d places", e, s.taken, id, s.capacity)
				}
			}
		}
	}
	for what, n := range l.due {
		if n != 0 {
			l.complain("%s: told %+d times more often than answered", what, n)
		}
	}
	clear(l.due)
	if diff := cmp.Diff(l.standing(), p.written()); diff != "" {
		l.complain("what there is, by its events (-) and by its tables (+):\n%s", diff)
	}
	return l.wrong
}

// follow changes what an event tells of.
func (l *ledger) follow(e told, referral string) {
	switch c := l.claims[e.Appointment]; e.Type {
	case "HELD", "OFFERED":
		l.take(&ledgerClaim{e, AppointmentHeld, referral})
	case "BOOKED":
		if c == nil {
			l.take(&ledgerClaim{e, AppointmentBooked, referral})
		} else {
			l.step(e, c, AppointmentBooked, AppointmentHeld)
			l.entry(c, WaitingBooked)
		}
	case "RESCHEDULED":
		old := l.claims[e.Replaces]
		if old == nil || old.Root != e.Root {
			l.complain("%+v: of what?", e)
			return
		}
		l.step(e, old, AppointmentCancelled, AppointmentBooked)
		l.take(&ledgerClaim{e, AppointmentBooked, old.referral})
	case "RELEASED", "EXPIRED":
		l.step(e, c, map[string]AppointmentStatus{"RELEASED": AppointmentCancelled, "EXPIRED": AppointmentExpired}[e.Type], AppointmentHeld)
		l.entry(c, WaitingForPlace)
	case "CANCELLED":
		l.step(e, c, AppointmentCancelled, AppointmentBooked)
	case "UNMARKED":
		l.step(e, c, AppointmentBooked, AppointmentArrived, AppointmentFulfilled, AppointmentNoShow)
	default:
		l.step(e, c, AppointmentStatus(e.Type), AppointmentBooked, AppointmentArrived, AppointmentFulfilled, AppointmentNoShow)
	}
	switch e.Type {
	case "OFFERED":
		if l.entries[e.Entry] != WaitingForPlace {
			l.complain("%+v: entry %d is %s", e, e.Entry, l.entries[e.Entry])
		}
		l.entries[e.Entry] = WaitingOffered
	case "EXPIRED": // nobody has asked for either
	case "RELEASED", "CANCELLED":
		l.due[fmt.Sprint(gone, " ", e.Appointment)]++
	default:
		l.due[fmt.Sprint(e.Type, " ", e.Appointment)]++
	}
}

// take puts a new appointment into its slot.
func (l *ledger) take(c *ledgerClaim) {
	if l.claims[c.Appointment] != nil {
		l.complain("%+v: there is that appointment", c.told)
	}
	s := l.slots[c.Slot]
	if s == nil { // it comes with the appointment
		s = &ledgerSlot{capacity: 1, flexible: true}
		l.slots[c.Slot] = s
	}
	if s.gone {
		l.complain("%+v: the slot was withdrawn", c.told)
	}
	s.taken++
	l.alone(c)
	l.claims[c.Appointment] = c
}

// alone complains of another appointment in the way of one that is active.
func (l *ledger) alone(c *ledgerClaim) {
	for _, x := range l.claims {
		switch {
		case x == c || !slices.Contains([]AppointmentStatus{AppointmentHeld, AppointmentBooked, AppointmentArrived}, x.status):
		case x.Patient == c.Patient && x.Start.Before(c.End) && c.Start.Before(x.End):
			l.complain("%+v: at that time the patient has appointment %d", c.told, x.Appointment)
		case c.referral != "" && x.referral == c.referral:
			l.complain("%+v: its referral %s has appointment %d", c.told, c.referral, x.Appointment)
		}
	}
}

// step takes an appointment from one of some states to another.
func (l *ledger) step(e told, c *ledgerClaim, to AppointmentStatus, from ...AppointmentStatus) {
	if c == nil || c.status == to || !slices.Contains(from, c.status) {
		l.complain("%+v: of %+v", e, c)
		return
	}
	c.status = to
	switch s := l.slots[c.Slot]; to {
	case AppointmentCancelled, AppointmentExpired:
		s.taken--
		s.gone = s.flexible
	case AppointmentBooked, AppointmentArrived:
		l.alone(c)
	}
}

// entry is what becomes of the entry of the waiting list whose offer this was, if it was one.
func (l *ledger) entry(c *ledgerClaim, status WaitingStatus) {
	if c != nil && c.Entry != 0 {
		l.entries[c.Entry] = status
	}
}

// standing is what there is, a line each: slots with the places taken, appointments and entries.
func (l *ledger) standing() (lines []string) {
	for id, s := range l.slots {
		lines = append(lines, fmt.Sprintf("slot %d: %d of %d, withdrawn %t", id, s.taken, s.capacity, s.gone))
	}
	for id, c := range l.claims {
		lines = append(lines, fmt.Sprintf("appointment %d of %d in %d: %s, %s", id, c.Patient, c.Slot, c.status, c.referral))
	}
	for id, status := range l.entries {
		lines = append(lines, fmt.Sprintf("entry %d: %s", id, status))
	}
	slices.Sort(lines)
	return lines
}

// written is the same, as the database has it.
func (p *practice) written() []string {
	lines := all[string](p, `
		SELECT format('slot %s: %s of %s, withdrawn %s', id, booked_count, capacity, CASE status WHEN 'WITHDRAWN' THEN 'true' ELSE 'false' END) FROM time_slot
		UNION ALL SELECT format('appointment %s of %s in %s: %s, %s', id, patient_id, slot_id, status, referral_id) FROM appointment
		UNION ALL SELECT format('entry %s: %s', id, status) FROM waiting_entry`)
	slices.Sort(lines)
	return lines
}
