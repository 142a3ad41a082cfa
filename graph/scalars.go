package graph

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/99designs/gqlgen/graphql"

	"openslot/internal/booking"
	"openslot/internal/schedule"
)

// The scalars of the contract, read strictly: what a client sends is what they say or INVALID.
// gqlgen's own take "" and null for a zero time, a number for a string, and a string for a
// number. An Unmarshal function sees nil only where the contract allows null, and answers with
// the zero value.

// ID is an id whose kind the field or argument it came by tells.
type ID int64

// MarshalID writes an id as the contract has it: a string of decimal digits.
func MarshalID(id ID) graphql.Marshaler { return marshalID(id) }

// UnmarshalID reads an id.
func UnmarshalID(v any) (ID, error) { return unmarshalID[ID](v) }

// The typed ids of the core, for fields that hold them.

// MarshalOrganizationID writes the id of an organization.
func MarshalOrganizationID(id booking.OrganizationID) graphql.Marshaler { return marshalID(id) }

// UnmarshalOrganizationID reads the id of an organization.
func UnmarshalOrganizationID(v any) (booking.OrganizationID, error) {
	return unmarshalID[booking.OrganizationID](v)
}

// MarshalDoctorID writes the id of a doctor.
func MarshalDoctorID(id booking.DoctorID) graphql.Marshaler { return marshalID(id) }

// UnmarshalDoctorID reads the id of a doctor.
func UnmarshalDoctorID(v any) (booking.DoctorID, error) { return unmarshalID[booking.DoctorID](v) }

// MarshalSlotID writes the id of a slot.
func MarshalSlotID(id booking.SlotID) graphql.Marshaler { return marshalID(id) }

// UnmarshalSlotID reads the id of a slot.
func UnmarshalSlotID(v any) (booking.SlotID, error) { return unmarshalID[booking.SlotID](v) }

// MarshalPatientID writes the id of a patient.
func MarshalPatientID(id booking.PatientID) graphql.Marshaler { return marshalID(id) }

// UnmarshalPatientID reads the id of a patient.
func UnmarshalPatientID(v any) (booking.PatientID, error) { return unmarshalID[booking.PatientID](v) }

// MarshalAppointmentID writes the id of an appointment.
func MarshalAppointmentID(id booking.AppointmentID) graphql.Marshaler { return marshalID(id) }

// UnmarshalAppointmentID reads the id of an appointment.
func UnmarshalAppointmentID(v any) (booking.AppointmentID, error) {
	return unmarshalID[booking.AppointmentID](v)
}

// MarshalWaitingID writes the id of an entry of a waiting list.
func MarshalWaitingID(id booking.WaitingID) graphql.Marshaler { return marshalID(id) }

// UnmarshalWaitingID reads the id of an entry of a waiting list.
func UnmarshalWaitingID(v any) (booking.WaitingID, error) { return unmarshalID[booking.WaitingID](v) }

func marshalID[T ~int64](id T) graphql.Marshaler {
	return graphql.WriterFunc(func(w io.Writer) {
		w.Write(appendID(make([]byte, 0, 22), id)) //nolint:errcheck // a buffer
	})
}

func appendID[T ~int64](b []byte, id T) []byte {
	return append(strconv.AppendInt(append(b, '"'), int64(id), 10), '"')
}

// unmarshalID takes decimal digits without a leading zero, as a string or, as GraphQL wants it,
// as a whole number: 1 to 2^63-1.
func unmarshalID[T ~int64](v any) (T, error) {
	var digits string
	switch v := v.(type) {
	case nil:
		return 0, nil
	case string:
		digits = v
	case json.Number:
		digits = v.String()
	case int64:
		digits = strconv.FormatInt(v, 10)
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != digits {
		return 0, booking.Refuse(booking.Invalid, "Not an id: use one as it was given out, such as \"42\".")
	}
	return T(n), nil
}

// MarshalInt writes a whole number.
func MarshalInt(n int) graphql.Marshaler { return graphql.MarshalInt(n) }

// UnmarshalInt reads a whole number of 32 bits.
func UnmarshalInt(v any) (int, error) {
	var digits string
	switch v := v.(type) {
	case nil:
		return 0, nil
	case json.Number:
		digits = v.String()
	case int64:
		digits = strconv.FormatInt(v, 10)
	case int: // a default of the contract's
		digits = strconv.Itoa(v)
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil {
		return 0, booking.Refuse(booking.Invalid, "Not an Int: use a whole number from %d to %d.", math.MinInt32, math.MaxInt32)
	}
	return int(n), nil
}

// MarshalInt64 writes a whole number that the contract calls an Int although it may, in theory,
// outgrow 32 bits: one that only ever counts up.
func MarshalInt64(n int64) graphql.Marshaler { return graphql.MarshalInt64(n) }

// UnmarshalInt64 reads what [UnmarshalInt] reads.
func UnmarshalInt64(v any) (int64, error) {
	n, err := UnmarshalInt(v)
	return int64(n), err
}

// MarshalString writes text.
func MarshalString(s string) graphql.Marshaler { return graphql.MarshalString(s) }

// UnmarshalString reads text. A number is no text.
func UnmarshalString(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		if utf8.ValidString(v) {
			return v, nil
		}
	}
	return "", booking.Refuse(booking.Invalid, "Not a String: use text in UTF-8.")
}

// MarshalDateTime writes an instant in UTC, to the microsecond at most, as the database keeps it.
func MarshalDateTime(t time.Time) graphql.Marshaler {
	return graphql.WriterFunc(func(w io.Writer) {
		w.Write(appendDateTime(make([]byte, 0, 40), t)) //nolint:errcheck // a buffer
	})
}

func appendDateTime(b []byte, t time.Time) []byte {
	return append(t.UTC().Truncate(time.Microsecond).AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// UnmarshalDateTime reads an instant in RFC 3339, of the years 1 to 9999 in UTC.
func UnmarshalDateTime(v any) (time.Time, error) {
	s, ok := v.(string)
	if v == nil {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	t = t.UTC()
	// time.Parse also takes a comma before the fraction.
	if !ok || err != nil || strings.Contains(s, ",") || t.Year() < 1 || t.Year() > 9999 {
		return time.Time{}, booking.Refuse(booking.Invalid, "Not a DateTime: use RFC 3339 with an offset, such as 2026-10-12T07:00:00Z.")
	}
	return t, nil
}

// MarshalDate writes a calendar day.
func MarshalDate(d booking.Date) graphql.Marshaler {
	return graphql.WriterFunc(func(w io.Writer) { fmt.Fprintf(w, `"%s"`, d) }) //nolint:errcheck // a buffer
}

// UnmarshalDate reads a calendar day, YYYY-MM-DD.
func UnmarshalDate(v any) (booking.Date, error) {
	if v == nil {
		return booking.Date{}, nil
	}
	s, _ := v.(string)
	return booking.ParseDate(s)
}

// MarshalSlotStatus writes a slot's status.
func MarshalSlotStatus(s booking.SlotStatus) graphql.Marshaler {
	return graphql.MarshalString(string(s))
}

// UnmarshalSlotStatus reads a slot's status.
func UnmarshalSlotStatus(v any) (booking.SlotStatus, error) {
	s, _ := v.(string)
	switch status := booking.SlotStatus(s); status {
	case booking.SlotOpen, booking.SlotClosed, booking.SlotWithdrawn:
		return status, nil
	}
	return "", booking.Refuse(booking.Invalid, "Not a SlotStatus: use OPEN, CLOSED or WITHDRAWN.")
}

// MarshalPlacesReturn writes when places come back.
func MarshalPlacesReturn(r schedule.PlacesReturn) graphql.Marshaler {
	return graphql.MarshalString(string(r))
}

// UnmarshalPlacesReturn reads when places come back.
func UnmarshalPlacesReturn(v any) (schedule.PlacesReturn, error) {
	s, _ := v.(string)
	switch r := schedule.PlacesReturn(s); r {
	case schedule.AtOnce, schedule.NextRelease:
		return r, nil
	}
	return "", booking.Refuse(booking.Invalid, "Not a PlacesReturn: use AT_ONCE or NEXT_RELEASE.")
}

// MarshalAttendance writes what is noted of an appointment.
func MarshalAttendance(s booking.AppointmentStatus) graphql.Marshaler {
	return graphql.MarshalString(string(s))
}

// UnmarshalAttendance reads what is to be noted of an appointment.
func UnmarshalAttendance(v any) (booking.AppointmentStatus, error) {
	s, _ := v.(string)
	switch status := booking.AppointmentStatus(s); status {
	case booking.AppointmentBooked, booking.AppointmentArrived, booking.AppointmentFulfilled, booking.AppointmentNoShow:
		return status, nil
	}
	return "", booking.Refuse(booking.Invalid, "Not an Attendance: use BOOKED, ARRIVED, FULFILLED or NO_SHOW.")
}

// weekdays are the names of the days, by their number.
var weekdays = [...]string{
	schedule.Monday: "MONDAY", schedule.Tuesday: "TUESDAY", schedule.Wednesday: "WEDNESDAY", schedule.Thursday: "THURSDAY",
	schedule.Friday: "FRIDAY", schedule.Saturday: "SATURDAY", schedule.Sunday: "SUNDAY",
}

// MarshalWeekday writes a day of the week.
func MarshalWeekday(d schedule.Weekday) graphql.Marshaler { return graphql.MarshalString(weekdays[d]) }

// UnmarshalWeekday reads a day of the week.
func UnmarshalWeekday(v any) (schedule.Weekday, error) {
	s, _ := v.(string)
	if i := slices.Index(weekdays[:], s); i > 0 {
		return schedule.Weekday(i), nil
	}
	return 0, booking.Refuse(booking.Invalid, "Not a Weekday: use MONDAY to SUNDAY.")
}
