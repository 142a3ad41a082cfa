package booking

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// sight is which appointments an actor may see; nil = no limit of that kind. Whatever lies
// outside looks as if it did not exist.
type sight struct {
	patient      *PatientID
	organization *OrganizationID
	registrar    *string
}

func (a Actor) sees() sight {
	switch a.Kind {
	case System:
		return sight{}
	case Staff:
		return sight{organization: &a.Organization}
	case Partner:
		registrar := a.Registrar()
		return sight{registrar: &registrar}
	default:
		return sight{patient: &a.PatientID} // the anonymous have patient 0, who does not exist
	}
}

// appointmentColumns selects what scanAppointment reads, from an appointment row a and the
// doctor_id of its slot. A hold is over when its time is, whether that was written down or not; $1
// is the time or NULL.
const appointmentColumns = `doctor_id, (a).id, (a).slot_id, (a).organization_id, (a).patient_id,
       CASE WHEN (a).status = 'HELD' AND (a).expires_at <= coalesce($1::timestamptz, clock_timestamp())
            THEN 'EXPIRED' ELSE (a).status END,
       lower((a).during), upper((a).during), (a).created_at, (a).expires_at, (a).cancelled_at, (a).cancel_reason,
       (a).referral_id, (a).overlap_reason, (a).replaces, (a).replaced_by`

// scanAppointment reads appointmentColumns, after the columns of before. An absent appointment
// (all columns NULL) leaves the zero value.
func scanAppointment(row pgx.Row, a *Appointment, before ...any) error {
	var (
		doctor                    *DoctorID
		id                        *AppointmentID
		slot                      *SlotID
		organization              *OrganizationID
		patient                   *PatientID
		status                    *AppointmentStatus
		start, end, created       *time.Time
		expires, stopped          *time.Time
		reason, referral, overlap *string
		replaces, replacedBy      *AppointmentID
	)
	err := row.Scan(append(before, &doctor, &id, &slot, &organization, &patient, &status,
		&start, &end, &created, &expires, &stopped, &reason, &referral, &overlap, &replaces, &replacedBy)...)
	if err != nil || id == nil {
		return err
	}
	*a = Appointment{
		ID: *id, SlotID: *slot, OrganizationID: *organization, PatientID: *patient, Status: *status,
		StartAt: start.UTC(), EndAt: end.UTC(), CreatedAt: created.UTC(), ExpiresAt: utc(expires), CancelledAt: utc(stopped),
		CancelReason: reason, ReferralID: referral, OverlapReason: overlap,
		Replaces: replaces, ReplacedBy: replacedBy,
	}
	if doctor != nil {
		a.DoctorID = *doctor
	}
	return nil
}

func utc(t *time.Time) *time.Time {
	if t == nil {
		return nil
	}
	return new(t.UTC())
}

// readSQL selects appointments within an actor's sight ($2, $3, $4).
const readSQL = `
SELECT ` + appointmentColumns + `
  FROM appointment a
  JOIN time_slot s ON s.id = a.slot_id
  JOIN patient p ON p.id = a.patient_id
 WHERE ($2::bigint IS NULL OR a.patient_id = $2)
   AND ($3::bigint IS NULL OR a.organization_id = $3)
   AND ($4::text IS NULL OR p.issuer = $4)`

// Appointment reads one appointment, or refuses with NOT_FOUND if there is none that the actor
// may see.
func (s *Service) Appointment(ctx context.Context, actor Actor, id AppointmentID) (Appointment, error) {
	found, err := s.read(ctx, actor, readSQL+` AND a.id = $5`, id)
	if err != nil {
		return Appointment{}, err
	}
	if len(found) == 0 {
		return Appointment{}, refusal(outcome{code: string(NotFound)})
	}
	return found[0], nil
}

// Page asks for part of a list.
type Page struct {
	First int    // how many at most, 1 to 100
	After string // cursor of the last one seen; "" = from the beginning
}

// AppointmentPage is part of a list of appointments.
type AppointmentPage struct {
	Appointments []Appointment
	HasNext      bool
}

// Cursor marks the appointment's place in a page's list; pass it as Page.After.
func (a Appointment) Cursor() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%d", a.StartAt.UnixMicro(), a.ID))
}

// position is the place that the page goes on from.
func (p Page) position() (start *time.Time, id AppointmentID, err error) {
	if p.First < 1 || p.First > 100 {
		return nil, 0, Refuse(Invalid, "first must be between 1 and 100.")
	}
	if p.After == "" {
		return nil, 0, nil
	}
	var micros int64
	text, err := base64.RawURLEncoding.DecodeString(p.After)
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d.%d", &micros, &id)
	}
	at := time.UnixMicro(micros).UTC()
	if err != nil || at.Year() < 1 || at.Year() > 9999 || (Appointment{StartAt: at, ID: id}).Cursor() != p.After {
		return nil, 0, Refuse(Invalid, "after is not a cursor of this list.")
	}
	return &at, id, nil
}

// PatientAppointments lists the actor's own appointments, whatever their state, the latest
// start first. It is for patients: anybody else is refused with FORBIDDEN.
func (s *Service) PatientAppointments(ctx context.Context, actor Actor, page Page) (AppointmentPage, error) {
	if err := actor.require(Patient, "Only patients have appointments of their own."); err != nil {
		return AppointmentPage{}, err
	}
	return s.page(ctx, actor, page, readSQL+`
   AND ($5::timestamptz IS NULL OR (lower(a.during), a.id) < ($5, $6))
 ORDER BY lower(a.during) DESC, a.id DESC
 LIMIT $7`)
}

// dayAppointmentsSQL goes on from readSQL with those of the doctor $8 on the day $9. Slots that stand and
// those that were withdrawn have an index each.
const dayAppointmentsSQL = `
   AND s.doctor_id = $8 AND (s.status <> 'WITHDRAWN' OR s.status = 'WITHDRAWN')
   AND s.start_at >= (SELECT wall_time($9::date::timestamp, o.time_zone)
                        FROM doctor d JOIN organization o ON o.id = d.organization_id WHERE d.id = $8)
   AND s.start_at < (SELECT wall_time(($9::date + 1)::timestamp, o.time_zone)
                       FROM doctor d JOIN organization o ON o.id = d.organization_id WHERE d.id = $8)
   AND ($5::timestamptz IS NULL OR (lower(a.during), a.id) > ($5, $6))
 ORDER BY lower(a.during), a.id
 LIMIT $7`

// DoctorAppointments lists all appointments of a doctor's day, whatever their state, by start. It is for
// staff of the doctor's organization; the day of another's doctor looks empty.
func (s *Service) DoctorAppointments(ctx context.Context, actor Actor, doctor DoctorID, day Date, page Page) (AppointmentPage, error) {
	if err := actor.require(Staff, "Only staff see a doctor's appointments."); err != nil {
		return AppointmentPage{}, err
	}
	return s.page(ctx, actor, page, readSQL+dayAppointmentsSQL, doctor, day.String())
}

// page reads one more than asked for, to learn whether there is more.
func (s *Service) page(ctx context.Context, actor Actor, page Page, sql string, args ...any) (AppointmentPage, error) {
	start, id, err := page.position()
	if err != nil {
		return AppointmentPage{}, err
	}
	found, err := s.read(ctx, actor, sql, append([]any{start, id, page.First + 1}, args...)...)
	if err != nil {
		return AppointmentPage{}, err
	}
	if len(found) > page.First {
		return AppointmentPage{Appointments: found[:page.First], HasNext: true}, nil
	}
	return AppointmentPage{Appointments: found}, nil
}

func (s *Service) read(ctx context.Context, actor Actor, sql string, args ...any) ([]Appointment, error) {
	sees := actor.sees()
	var found []Appointment
	err := s.run(ctx, func(ctx context.Context, conn *pgx.Conn, _ bool) error {
		rows, err := conn.Query(ctx, sql, append([]any{s.now(), sees.patient, sees.organization, sees.registrar}, args...)...)
		if err != nil {
			return err
		}
		found, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Appointment, err error) {
			err = scanAppointment(row, &a)
			return a, err
		})
		return err
	})
	if err != nil { // a read has no outcome to be unsure of
		return nil, fmt.Errorf("booking: read appointments: %w", withoutEffect(err))
	}
	return found, nil
}

// require refuses everybody but actors of one kind.
func (a Actor) require(kind ActorKind, message string) error {
	switch a.Kind {
	case kind:
		return nil
	case Anonymous:
		return Refuse(Unauthenticated, "Sign in first.")
	default:
		return Refuse(Forbidden, "%s", message)
	}
}
