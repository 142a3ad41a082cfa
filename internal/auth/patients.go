package auth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

// Patients owns the table patient. Make it with [NewPatients].
type Patients struct {
	pool   *pgxpool.Pool
	known  *cache[identity, booking.PatientID] // who signed in lately
	limit  time.Duration                       // for one insert of newcomers
	blocks *blocks

	mu      sync.Mutex
	waiting map[identity]*newcomer // for the next insert
	busy    bool                   // an insert is in flight
}

// NewPatients makes a Patients on pool.
func NewPatients(pool *pgxpool.Pool) *Patients {
	return &Patients{pool: pool, known: newCache[identity, booking.PatientID](knownSize),
		limit: signInLimit, blocks: newBlocks(pool), waiting: make(map[identity]*newcomer)}
}

// Patient is somebody for whom appointments are booked. Contact data is nil where it is not known.
type Patient struct {
	ID     booking.PatientID
	Name   *string // up to 200 characters
	Email  *string // a bare address
	Phone  *string // digits, spaces and + - ( ) . /
	Locale *string // BCP 47

	BlockedAt *time.Time // since when their own access is refused; nil: it is not
}

// Registration is what staff or a partner tell of a patient. What is nil is left as it is.
type Registration struct {
	Subject string // the caller's own stable id of the patient: 1 to 255 characters
	Name    *string
	Email   *string
	Phone   *string
	Locale  *string
}

// Two callers with the same subject at once make one row: the later waits for the earlier and
// updates it. Updating after a conflict locks the row first, which leaves its mark in xmax; a row
// just made has none.
const registerSQL = `
INSERT INTO patient AS p (issuer, subject, name, email, phone, locale)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (issuer, subject) DO UPDATE SET
       name   = coalesce(excluded.name,   p.name),
       email  = coalesce(excluded.email,  p.email),
       phone  = coalesce(excluded.phone,  p.phone),
       locale = coalesce(excluded.locale, p.locale)
RETURNING id, name, email, phone, locale, blocked_at, xmax = 0 AS created`

// Register makes the patient that actor knows by r.Subject, or brings their contact data up to
// date. For staff, whose patients are their organization's, and partners; the same subject of
// another registrar is another patient. created is false for one who was known. The refusals:
// INVALID with the field's name, FORBIDDEN, UNAUTHENTICATED, UNAVAILABLE, OVERLOADED.
func (p *Patients) Register(ctx context.Context, actor booking.Actor, r Registration) (patient Patient, created bool, err error) {
	registrar := actor.Registrar()
	switch {
	case actor.Kind == booking.Anonymous:
		return Patient{}, false, booking.Refuse(booking.Unauthenticated, "Sign in to register patients.")
	case registrar == "":
		return Patient{}, false, booking.Refuse(booking.Forbidden, "Only staff and partners can register patients.")
	}
	if fault := subjectFault(r.Subject); fault != "" {
		return Patient{}, false, booking.Refuse(booking.Invalid, "subject: %s.", fault)
	}
	given := contact{Name: r.Name, Email: r.Email, Phone: r.Phone, Locale: r.Locale}
	if err := given.check(); err != nil {
		return Patient{}, false, err
	}
	err = p.pool.QueryRow(ctx, registerSQL, registrar, r.Subject, r.Name, r.Email, r.Phone, r.Locale).
		Scan(&patient.ID, &patient.Name, &patient.Email, &patient.Phone, &patient.Locale, &patient.BlockedAt, &created)
	if err != nil {
		return Patient{}, false, failed("register a patient", err)
	}
	return patient, created, nil
}

const byIDSQL = `SELECT id, name, email, phone, locale, blocked_at FROM patient WHERE id = ANY ($1)`

// ByID reads patients; ids that are not there are missing from the answer. It asks nobody's
// permission: contact data is for callers who may see an appointment of the patient.
func (p *Patients) ByID(ctx context.Context, ids []booking.PatientID) (map[booking.PatientID]Patient, error) {
	rows, err := p.pool.Query(ctx, byIDSQL, ids)
	if err != nil {
		return nil, failed("read patients", err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Patient])
	if err != nil {
		return nil, failed("read patients", err)
	}
	patients := make(map[booking.PatientID]Patient, len(found))
	for _, patient := range found {
		patients[patient.ID] = patient
	}
	return patients, nil
}

func failed(doing string, err error) error {
	return fmt.Errorf("auth: %s: %w", doing, booking.DatabaseError(err))
}
