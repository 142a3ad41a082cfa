// Package schedule says when doctors work, and makes slots of it.
//
// An organization has a time zone and doctors; a doctor has a weekly template for any one day:
// shifts on the wall clock of the organization's zone. [Slots] is the pure part, from templates
// to slots in real time; [Service.Generate] and [Service.GenerateAll] write what is missing:
//
//	organization ── doctor ── template ── shift
//	                  │                     │  Slots: wall clock → real time, day by day
//	                  └───── time_slot ◀────┘  Generate: adds what is not there, never changes a slot
//
// A template of flexible hours has windows instead of shifts. Nothing is generated from them:
// [Service.FreeStarts] says when an appointment can begin, and its slot comes with it.
//
// Slots that exist are changed by [Service.UpdateSlot], within what their appointments allow.
//
// A [Service] may be used by any number of goroutines and processes at once. Whoever writes a
// doctor's calendar holds the advisory lock of that doctor until the end of the transaction, so
// two that generate the same days wait for each other and the second one finds nothing to do.
package schedule

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/booking"
)

// Organization is a practice or clinic.
type Organization struct {
	ID       booking.OrganizationID
	Name     string // unique
	TimeZone string // IANA name; the dates of its doctors are in it
	BookingRules
}

// Doctor is somebody who sees patients.
type Doctor struct {
	ID             booking.DoctorID
	OrganizationID booking.OrganizationID
	Name           string
	Specialty      string // may be empty
	TimeZone       string // that of the organization
}

// Config holds what a [Service] can be told. The zero value is right for production.
type Config struct {
	// Now is what time it is; nil = the database's clock, which all instances share.
	Now func() time.Time
}

// Service keeps organizations, doctors, their templates and their slots.
type Service struct {
	pool   *pgxpool.Pool
	config Config
}

// New makes a service on a pool that reaches the primary.
func New(pool *pgxpool.Pool, config Config) *Service {
	return &Service{pool: pool, config: config}
}

// now is the time to decide by; nil lets the database read its own clock.
func (s *Service) now() *time.Time {
	if s.config.Now == nil {
		return nil
	}
	now := s.config.Now()
	return &now
}

// scope is the organization whose doctors and slots the actor may change; nil = any.
func scope(actor booking.Actor) (*booking.OrganizationID, error) {
	switch actor.Kind {
	case booking.System:
		return nil, nil
	case booking.Staff:
		return &actor.Organization, nil
	case booking.Anonymous:
		return nil, booking.Refuse(booking.Unauthenticated, "Sign in as staff of the organization.")
	default:
		return nil, booking.Refuse(booking.Forbidden, "Only staff of the organization may do this.")
	}
}

func noOrganization() error {
	return booking.Refuse(booking.NotFound, "There is no such organization.")
}

func noDoctor() error { return booking.Refuse(booking.NotFound, "There is no such doctor.") }

// lockSQL takes the locks of doctors' calendars, in the order of the keys, until the end of
// the transaction. They come before all other locks.
const lockSQL = `
SELECT pg_advisory_xact_lock(d.k)
  FROM (SELECT DISTINCT hashtextextended('doctor:' || u, 0) AS k FROM unnest($1::bigint[]) AS u ORDER BY k) AS d`

// waitSQL lets the transaction wait longer than calls of people may: writing a calendar is
// bulk work, and stopping for another who writes the same one is normal.
const waitSQL = `SELECT set_config('statement_timeout', '60s', true), set_config('lock_timeout', '30s', true)`

// write runs a transaction that holds the calendars of the given doctors.
func (s *Service) write(ctx context.Context, doctors []booking.DoctorID, transact func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(waitSQL)
		batch.Queue(lockSQL, doctors)
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return err
		}
		return transact(tx)
	})
}

// wrap names what failed. Refusals pass through it with their code.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("schedule: %s: %w", fmt.Sprintf(format, args...), booking.DatabaseError(err))
}

// orElse is err, or refusal where err says that there was no row.
func orElse(err, refusal error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return refusal
	}
	return err
}

// text checks input that people will read: one line, at least least and at most most characters
// after surrounding space is cut off.
func text(field, s string, least, most int) (string, error) {
	s = strings.TrimSpace(s)
	switch n := utf8.RuneCountInString(s); {
	case !utf8.ValidString(s):
		return "", booking.Refuse(booking.Invalid, "%s is not valid UTF-8.", field)
	case strings.ContainsFunc(s, unicode.IsControl):
		return "", booking.Refuse(booking.Invalid, "%s must be one line without control characters.", field)
	case n < least || n > most:
		return "", booking.Refuse(booking.Invalid, "%s must have %d to %d characters.", field, least, most)
	}
	return s, nil
}
