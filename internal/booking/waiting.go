package booking

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// The waiting list: a place that comes free is offered to whoever waits for it, in the transaction
// that frees it, and so never seen free by anybody else. An offer is a hold of its own, made by the
// program itself and told by an OFFERED event: it is confirmed, given back and lapses as any hold.
//
//	(none) ── Join ──▶ WAITING ◀──────────────────┐ given back, or lapsed: WAITING again,
//	                     │  │                      │ but never for that slot
//	                     │  └── a place is free ──▶ OFFERED ── Confirm ──▶ BOOKED
//	                     │                         │
//	                     ├── Leave ────────────────┴──▶ LEFT     (an offer stands)
//	                     └── its days are over ───────▶ ENDED
//
//   - It is the turn of whoever joined first among those who fit: the slot is on their days and begins
//     in more than a minute, they have no other appointment at that time, have not given up or declined
//     this slot since they joined, and are not blocked. Whoever was offered a place and did not take it
//     stands behind those who came before that.
//   - An entry is offered one place at a time, for the minutes that the organization grants, and never
//     beyond the slot's start.
//   - If nobody fits, the place is everybody's.
//
// Who joins while a place is being freed is offered the next one; so is who stands behind a hold of
// their own that has lapsed a moment ago at the same time, unless somebody has written that down.

// WaitingID names an entry of the waiting list.
type WaitingID int64

// WaitingStatus is where an entry of the waiting list stands.
type WaitingStatus string

// The states of an entry.
const (
	WaitingForPlace WaitingStatus = "WAITING"
	WaitingOffered  WaitingStatus = "OFFERED"
	WaitingBooked   WaitingStatus = "BOOKED" // the offer was confirmed; what becomes of the appointment is another matter
	WaitingLeft     WaitingStatus = "LEFT"
	WaitingEnded    WaitingStatus = "ENDED" // the days are over
)

// WaitingEntry is a patient's wish for a place with a doctor on some days.
type WaitingEntry struct {
	ID        WaitingID
	DoctorID  DoctorID
	PatientID PatientID
	From, To  Date // both inclusive, in the doctor's zone
	Status    WaitingStatus
	CreatedAt time.Time
	Offer     *Appointment // OFFERED: to be confirmed; BOOKED: what it became
}

// WaitingRequest asks for a place on the waiting list.
type WaitingRequest struct {
	Doctor   DoctorID
	From, To Date      // the days that would suit, both inclusive; at most waitingDays
	Patient  PatientID // for whom: as in [BookRequest]
}

const (
	waitingMost = 10  // wishes of one patient at a time
	waitingDays = 366 // of one wish
)

// waitingColumns selects what scanWaiting reads, from an entry w, its offer a, and the doctor_id of the
// offer's slot. $1 is the time or NULL.
const waitingColumns = `(w).id, (w).doctor_id, (w).patient_id, (w).first_day, (w).last_day, (w).created_at,
       CASE WHEN (w).status = 'OFFERED' AND (a).expires_at > coalesce($1::timestamptz, clock_timestamp()) THEN 'OFFERED'
            WHEN (w).status NOT IN ('WAITING', 'OFFERED') THEN (w).status
            WHEN upper((w).during) <= coalesce($1::timestamptz, clock_timestamp()) THEN 'ENDED' ELSE 'WAITING' END,
       ` + appointmentColumns

// offerSQL joins its offer to an entry w.
const offerSQL = `
  LEFT JOIN appointment a ON a.id = (w).appointment_id
  LEFT JOIN time_slot t ON t.id = a.slot_id`

// scanWaiting reads waitingColumns, after the columns of before.
func scanWaiting(row pgx.Row, w *WaitingEntry, before ...any) error {
	var (
		id      *WaitingID
		doctor  *DoctorID
		patient *PatientID
		created *time.Time
		status  *WaitingStatus
		offer   Appointment
	)
	err := scanAppointment(row, &offer, append(before, &id, &doctor, &patient, &w.From, &w.To, &created, &status)...)
	if err != nil || id == nil {
		return err
	}
	w.ID, w.DoctorID, w.PatientID, w.Status, w.CreatedAt = *id, *doctor, *patient, *status, created.UTC()
	if w.Status == WaitingOffered || w.Status == WaitingBooked {
		w.Offer = &offer
	}
	return nil
}

const zoneSQL = `SELECT o.time_zone FROM doctor d JOIN organization o ON o.id = d.organization_id WHERE d.id = $1`

const joinSQL = `
SELECT outcome, ` + waitingColumns + `
  FROM (SELECT j.outcome, j.w, a, t.doctor_id
          FROM join_waiting($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) AS j` + offerSQL + `) AS e`

// JoinWaitingList puts a patient on the waiting list for a doctor. Joining again for the same days
// changes nothing: the answer is then the entry that stands, and joined is false. It refuses with
// INVALID days that are over, in the wrong order or too many; NOT_FOUND for a doctor or patient that
// is not there or not the actor's; LIMIT_REACHED for a patient with ten wishes; UNAUTHENTICATED.
func (s *Service) JoinWaitingList(ctx context.Context, actor Actor, r WaitingRequest) (_ WaitingEntry, joined bool, _ error) {
	switch {
	case actor.Kind == Anonymous:
		return WaitingEntry{}, false, Refuse(Unauthenticated, "Sign in first.")
	case actor.Kind == Patient && r.Patient != 0 && r.Patient != actor.PatientID:
		return WaitingEntry{}, false, Refuse(NotFound, "There is no such patient.")
	case actor.Kind == Patient:
		r.Patient = actor.PatientID
	case r.Patient == 0:
		return WaitingEntry{}, false, Refuse(Invalid, "patientId is required: say who waits.")
	}
	switch {
	case r.To.Before(r.From):
		return WaitingEntry{}, false, Refuse(Invalid, "to must not be before from.")
	case !r.To.Before(r.From.AddDays(waitingDays)):
		return WaitingEntry{}, false, Refuse(Invalid, "from and to may be %d days at most.", waitingDays)
	case r.To.AddDays(1).Year > 9999:
		return WaitingEntry{}, false, Refuse(Invalid, "The calendar ends with 9999-12-31.")
	}
	var entry WaitingEntry
	var came string
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, rerun bool) error {
		during, err := days(ctx, conn, r)
		if err != nil {
			return err
		}
		row := conn.QueryRow(ctx, joinSQL, s.now(), r.Doctor, r.Patient, r.From, r.To, during,
			actor.Organization, actor.Registrar(), actor.Caller(), waitingMost)
		if err := scanWaiting(row, &entry, &came); err != nil {
			return err
		}
		joined = came == outcomeChanged || came == outcomeUnchanged && rerun
		return nil
	})
	if err != nil {
		return WaitingEntry{}, false, fmt.Errorf("booking: join the waiting list of doctor %d: %w", r.Doctor, err)
	}
	switch came {
	case outcomeChanged, outcomeUnchanged:
		return entry, joined, nil
	case "DOCTOR_NOT_FOUND":
		return WaitingEntry{}, false, noDoctor()
	case "WAITING_PAST":
		return WaitingEntry{}, false, Refuse(Invalid, "These days are over: to must be today or later.")
	case "WAITING_LIMIT":
		return WaitingEntry{}, false, Refuse(LimitReached,
			"The patient is on %d waiting lists, and may be on no more at a time. Leave one first.", waitingMost)
	default:
		return WaitingEntry{}, false, refusal(outcome{code: came})
	}
}

func noDoctor() error { return Refuse(NotFound, "There is no such doctor.") }

// days is the request's days as time.
func days(ctx context.Context, conn *pgx.Conn, r WaitingRequest) (pgtype.Range[time.Time], error) {
	var (
		during pgtype.Range[time.Time]
		zone   string
	)
	err := conn.QueryRow(ctx, zoneSQL, r.Doctor).Scan(&zone)
	if errors.Is(err, pgx.ErrNoRows) {
		return during, noDoctor()
	}
	if err != nil {
		return during, err
	}
	loc, err := LoadZone(zone)
	if err != nil {
		return during, err
	}
	return pgtype.Range[time.Time]{
		Lower: r.From.At(0, loc), LowerType: pgtype.Inclusive,
		Upper: r.To.AddDays(1).At(0, loc), UpperType: pgtype.Exclusive, Valid: true,
	}, nil
}

const leaveSQL = `
SELECT outcome, ` + waitingColumns + `
  FROM (SELECT j.outcome, j.w, a, t.doctor_id FROM leave_waiting($1, $2, $3, $4, $5) AS j` + offerSQL + `) AS e`

// LeaveWaitingList takes an entry off the waiting list. An offer that was made stands until it is
// given back or lapses. What is over already is left as it is, and changed is false. It refuses with
// NOT_FOUND, also for an entry that is not the actor's; UNAUTHENTICATED.
func (s *Service) LeaveWaitingList(ctx context.Context, actor Actor, id WaitingID) (entry WaitingEntry, changed bool, _ error) {
	if actor.Kind == Anonymous {
		return WaitingEntry{}, false, Refuse(Unauthenticated, "Sign in first.")
	}
	var outcome string
	sees := actor.sees()
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, rerun bool) error {
		row := conn.QueryRow(ctx, leaveSQL, s.now(), id, sees.patient, sees.organization, sees.registrar)
		if err := scanWaiting(row, &entry, &outcome); err != nil {
			return err
		}
		changed = outcome == outcomeChanged || rerun && entry.Status == WaitingLeft
		return nil
	})
	if err != nil {
		return WaitingEntry{}, false, fmt.Errorf("booking: leave the waiting list, entry %d: %w", id, err)
	}
	if outcome != outcomeChanged && outcome != outcomeUnchanged {
		return WaitingEntry{}, false, noEntry()
	}
	return entry, changed, nil
}

func noEntry() error { return Refuse(NotFound, "There is no such entry of a waiting list.") }

// WaitingPage is part of a list of entries.
type WaitingPage struct {
	Entries []WaitingEntry
	HasNext bool
}

// Cursor marks the entry's place in a page's list; pass it as Page.After.
func (w WaitingEntry) Cursor() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d", w.ID))
}

// entry is the entry that the page goes on from.
func (p Page) entry() (*WaitingID, error) {
	if p.First < 1 || p.First > 100 {
		return nil, Refuse(Invalid, "first must be between 1 and 100.")
	}
	if p.After == "" {
		return nil, nil
	}
	var id WaitingID
	text, err := base64.RawURLEncoding.DecodeString(p.After)
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d", &id)
	}
	if err != nil || (WaitingEntry{ID: id}).Cursor() != p.After {
		return nil, Refuse(Invalid, "after is not a cursor of this list.")
	}
	return &id, nil
}

// waitingSQL selects entries within an actor's sight ($2, $3, $4); what is put for %s limits and
// orders them.
const waitingSQL = `
SELECT ` + waitingColumns + `
  FROM (SELECT w, a, t.doctor_id
          FROM waiting_entry w JOIN patient p ON p.id = w.patient_id` + offerSQL + `
         WHERE ($2::bigint IS NULL OR w.patient_id = $2)
           AND ($3::bigint IS NULL OR w.organization_id = $3)
           AND ($4::text IS NULL OR p.issuer = $4)
           AND %s) AS e`

var (
	waitingEntrySQL   = fmt.Sprintf(waitingSQL, `w.id = $5`)
	waitingPatientSQL = fmt.Sprintf(waitingSQL, `($5::bigint IS NULL OR w.id < $5) ORDER BY w.id DESC LIMIT $6`)
	waitingDoctorSQL  = fmt.Sprintf(waitingSQL, `w.doctor_id = $7 AND upper(w.during) > coalesce($1, clock_timestamp())
           AND ($5::bigint IS NULL OR w.id > $5) ORDER BY w.id LIMIT $6`)
)

// WaitingEntry reads one entry, or refuses with NOT_FOUND if there is none that the actor may see.
func (s *Service) WaitingEntry(ctx context.Context, actor Actor, id WaitingID) (WaitingEntry, error) {
	found, err := s.readWaiting(ctx, actor, waitingEntrySQL, id)
	if err != nil {
		return WaitingEntry{}, err
	}
	if len(found) == 0 {
		return WaitingEntry{}, noEntry()
	}
	return found[0], nil
}

// PatientWaiting lists the actor's own entries, whatever their state, the latest first. It is for
// patients: anybody else is refused with FORBIDDEN.
func (s *Service) PatientWaiting(ctx context.Context, actor Actor, page Page) (WaitingPage, error) {
	if err := actor.require(Patient, "Only patients have entries of their own."); err != nil {
		return WaitingPage{}, err
	}
	return s.pageWaiting(ctx, actor, page, waitingPatientSQL)
}

// DoctorWaiting lists the entries for a doctor whose days are not over, whatever has become of them,
// in order of arrival. It is for staff of the doctor's organization; another's list looks empty.
func (s *Service) DoctorWaiting(ctx context.Context, actor Actor, doctor DoctorID, page Page) (WaitingPage, error) {
	if err := actor.require(Staff, "Only staff see a doctor's waiting list."); err != nil {
		return WaitingPage{}, err
	}
	return s.pageWaiting(ctx, actor, page, waitingDoctorSQL, doctor)
}

// pageWaiting reads one more than asked for, to learn whether there is more.
func (s *Service) pageWaiting(ctx context.Context, actor Actor, page Page, sql string, args ...any) (WaitingPage, error) {
	after, err := page.entry()
	if err != nil {
		return WaitingPage{}, err
	}
	found, err := s.readWaiting(ctx, actor, sql, append([]any{after, page.First + 1}, args...)...)
	if err != nil {
		return WaitingPage{}, err
	}
	if len(found) > page.First {
		return WaitingPage{Entries: found[:page.First], HasNext: true}, nil
	}
	return WaitingPage{Entries: found}, nil
}

func (s *Service) readWaiting(ctx context.Context, actor Actor, sql string, args ...any) ([]WaitingEntry, error) {
	sees := actor.sees()
	var found []WaitingEntry
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		rows, err := conn.Query(ctx, sql, append([]any{s.now(), sees.patient, sees.organization, sees.registrar}, args...)...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w WaitingEntry, err error) {
			err = scanWaiting(row, &w)
			return w, err
		})
		return err
	})
	if err != nil { // a read has no outcome to be unsure of
		return nil, fmt.Errorf("booking: read the waiting list: %w", withoutEffect(err))
	}
	return found, nil
}
