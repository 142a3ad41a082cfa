package schedule

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"openslot/internal/booking"
)

// createOrganizationSQL has the database try the zone as well: a zone that only we know would
// fail every later question about a day.
const createOrganizationSQL = `
INSERT INTO organization (name, time_zone)
SELECT $1, $2 WHERE now() AT TIME ZONE $2 IS NOT NULL
RETURNING ` + organizationColumns

// CreateOrganization makes an organization, for the operators. It refuses with INVALID a name
// that is taken or not of 1 to 200 characters, and a zone that is not known by its IANA name.
func (s *Service) CreateOrganization(ctx context.Context, actor booking.Actor, name, timeZone string) (Organization, error) {
	switch actor.Kind {
	case booking.System:
	case booking.Anonymous:
		return Organization{}, booking.Refuse(booking.Unauthenticated, "Use the operators' system token.")
	default:
		return Organization{}, booking.Refuse(booking.Forbidden, "Only the operators may create an organization.")
	}
	name, err := text("name", name, 1, 200)
	if err != nil {
		return Organization{}, err
	}
	noZone := booking.Refuse(booking.Invalid, "timeZone is not known: use an IANA name, such as Europe/Berlin.")
	if _, err := booking.LoadZone(timeZone); err != nil {
		noZone.Cause = err
		return Organization{}, noZone
	}
	var o Organization
	rows, err := s.pool.Query(ctx, createOrganizationSQL, name, timeZone)
	if err == nil {
		o, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Organization])
	}
	var pg *pgconn.PgError
	switch {
	case booking.Constraint(err) == "uq_organization_name":
		return Organization{}, booking.Refuse(booking.Invalid, "name is taken by another organization.")
	case errors.As(err, &pg) && pg.Code == "22023": // invalid_parameter_value
		noZone.Cause = err
		return Organization{}, noZone
	case err != nil:
		return Organization{}, wrap(err, "create organization")
	}
	return o, nil
}

const createDoctorSQL = `
WITH o AS (SELECT id, time_zone FROM organization WHERE id = $1),
     d AS (INSERT INTO doctor (organization_id, name, specialty) SELECT id, $2, $3 FROM o RETURNING id)
SELECT d.id, o.time_zone FROM d, o`

// CreateDoctor adds a doctor to an organization, for its staff. It refuses with INVALID a name
// that is not of 1 to 200 characters or a specialty of more than 200; NOT_FOUND for an
// organization that is not there or not the actor's.
func (s *Service) CreateDoctor(ctx context.Context, actor booking.Actor, organization booking.OrganizationID, name, specialty string) (Doctor, error) {
	own, err := scope(actor)
	if err != nil {
		return Doctor{}, err
	}
	if name, err = text("name", name, 1, 200); err != nil {
		return Doctor{}, err
	}
	if specialty, err = text("specialty", specialty, 0, 200); err != nil {
		return Doctor{}, err
	}
	if own != nil && *own != organization {
		return Doctor{}, noOrganization()
	}
	d := Doctor{OrganizationID: organization, Name: name, Specialty: specialty}
	err = s.pool.QueryRow(ctx, createDoctorSQL, organization, name, specialty).Scan(&d.ID, &d.TimeZone)
	if err != nil {
		return Doctor{}, wrap(orElse(err, noOrganization()), "create doctor")
	}
	return d, nil
}

// Organization reads one organization, or refuses with NOT_FOUND.
func (s *Service) Organization(ctx context.Context, id booking.OrganizationID) (Organization, error) {
	found, err := s.OrganizationsByID(ctx, []booking.OrganizationID{id})
	if err != nil {
		return Organization{}, err
	}
	o, ok := found[id]
	if !ok {
		return Organization{}, noOrganization()
	}
	return o, nil
}

// organizationColumns selects the fields of Organization in their order.
const organizationColumns = `id, name, time_zone, ` + rulesColumns

const organizationsSQL = `SELECT ` + organizationColumns + ` FROM organization WHERE id = ANY ($1)`

// OrganizationsByID reads many organizations with one query. Ids that name none are left out.
func (s *Service) OrganizationsByID(ctx context.Context, ids []booking.OrganizationID) (map[booking.OrganizationID]Organization, error) {
	rows, err := s.pool.Query(ctx, organizationsSQL, ids)
	if err != nil {
		return nil, wrap(err, "read organizations")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Organization])
	if err != nil {
		return nil, wrap(err, "read organizations")
	}
	found := make(map[booking.OrganizationID]Organization, len(list))
	for _, o := range list {
		found[o.ID] = o
	}
	return found, nil
}

// Doctor reads one doctor, or refuses with NOT_FOUND.
func (s *Service) Doctor(ctx context.Context, id booking.DoctorID) (Doctor, error) {
	found, err := s.DoctorsByID(ctx, []booking.DoctorID{id})
	if err != nil {
		return Doctor{}, err
	}
	d, ok := found[id]
	if !ok {
		return Doctor{}, noDoctor()
	}
	return d, nil
}

// doctorSQL selects the fields of Doctor in their order.
const doctorSQL = `
SELECT d.id, d.organization_id, d.name, d.specialty, o.time_zone
  FROM doctor d JOIN organization o ON o.id = d.organization_id`

// DoctorsByID reads many doctors with one query. Ids that name none are left out.
func (s *Service) DoctorsByID(ctx context.Context, ids []booking.DoctorID) (map[booking.DoctorID]Doctor, error) {
	list, err := s.doctors(ctx, doctorSQL+` WHERE d.id = ANY ($1)`, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[booking.DoctorID]Doctor, len(list))
	for _, d := range list {
		found[d.ID] = d
	}
	return found, nil
}

func (s *Service) doctors(ctx context.Context, sql string, args ...any) ([]Doctor, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, wrap(err, "read doctors")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Doctor])
	return list, wrap(err, "read doctors")
}

// DoctorQuery asks for part of the list of doctors.
type DoctorQuery struct {
	Search         string                  // part of the name or specialty, in any case; "" = all
	OrganizationID *booking.OrganizationID // only this one's
	First          int                     // how many at most, 1 to 100
	After          string                  // cursor of the last one seen; "" = from the beginning
}

// DoctorPage is part of the list of doctors.
type DoctorPage struct {
	Doctors []Doctor // by name, then id
	HasNext bool
}

// place is what the list is sorted by.
type place struct {
	Name string
	ID   booking.DoctorID
}

// Cursor marks the doctor's place in the list; pass it as DoctorQuery.After.
func (d Doctor) Cursor() string {
	text, _ := json.Marshal(place{d.Name, d.ID}) // a string and a number: it can't fail
	return base64.RawURLEncoding.EncodeToString(text)
}

// place is where the page goes on from; nil = the beginning.
func (q DoctorQuery) place() (*place, error) {
	if q.After == "" {
		return nil, nil
	}
	var p place
	text, err := base64.RawURLEncoding.DecodeString(q.After)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	// Writing it again finds whatever else decodes to a place: it isn't a cursor of ours.
	if err != nil || strings.ContainsRune(p.Name, 0) || (Doctor{Name: p.Name, ID: p.ID}).Cursor() != q.After {
		return nil, booking.Refuse(booking.Invalid, "after is not a cursor of this list.")
	}
	return &p, nil
}

// searchSQL goes on from a place by comparing with it, not by counting rows: doctors who come
// and go between two pages shift nobody across the border.
const searchSQL = doctorSQL + `
 WHERE ($1 = '' OR d.name ILIKE $1 OR d.specialty ILIKE $1)
   AND ($2::bigint IS NULL OR d.organization_id = $2)
   AND ($3::text IS NULL OR (d.name, d.id) > ($3, $4))
 ORDER BY d.name, d.id
 LIMIT $5`

// likeEscape makes every character stand for itself in a pattern.
var likeEscape = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`)

// Doctors lists doctors by name. It refuses with INVALID a First outside 1 to 100, a cursor that
// is not of this list, and a search of more than 200 characters.
func (s *Service) Doctors(ctx context.Context, q DoctorQuery) (DoctorPage, error) {
	switch {
	case q.First < 1 || q.First > 100:
		return DoctorPage{}, booking.Refuse(booking.Invalid, "first must be between 1 and 100.")
	case !utf8.ValidString(q.Search) || strings.ContainsRune(q.Search, 0) || utf8.RuneCountInString(q.Search) > 200:
		return DoctorPage{}, booking.Refuse(booking.Invalid, "search must be text of at most 200 characters.")
	}
	after, err := q.place()
	if err != nil {
		return DoctorPage{}, err
	}
	var (
		pattern string
		name    *string
		id      booking.DoctorID
	)
	if search := strings.TrimSpace(q.Search); search != "" {
		pattern = "%" + likeEscape.Replace(search) + "%"
	}
	if after != nil {
		name, id = &after.Name, after.ID
	}
	// One more than asked for tells whether there is more.
	found, err := s.doctors(ctx, searchSQL, pattern, q.OrganizationID, name, id, q.First+1)
	if err != nil {
		return DoctorPage{}, err
	}
	if len(found) > q.First {
		return DoctorPage{Doctors: found[:q.First], HasNext: true}, nil
	}
	return DoctorPage{Doctors: found}, nil
}
