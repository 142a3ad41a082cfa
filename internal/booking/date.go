package booking

import (
	"fmt"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // zones are known where the host has no files of them

	"github.com/jackc/pgx/v5/pgtype"
)

// Date is a calendar day, in no time zone until it meets one. Dates compare with ==, and are
// read from and written to columns of type date. The zero Date is no day.
type Date struct {
	Year  int // 1 to 9999 when it was parsed
	Month time.Month
	Day   int
}

// ParseDate reads "2006-01-02", strictly: four, two and two digits, a day that exists, the
// years 1 to 9999. Anything else is INVALID.
func ParseDate(s string) (Date, error) {
	t, err := time.Parse(time.DateOnly, s)
	// time.Parse is strict about digits and days of the month, but knows a year 0.
	if err != nil || t.Year() < 1 {
		return Date{}, &Error{Code: Invalid, Message: "Not a date: use YYYY-MM-DD, such as 2026-10-05.", Cause: err}
	}
	return DateOf(t, time.UTC), nil
}

// DateOf is the day that calendars in loc show at t.
func DateOf(t time.Time, loc *time.Location) Date {
	y, m, d := t.In(loc).Date()
	return Date{y, m, d}
}

func (d Date) String() string { return fmt.Sprintf("%04d-%02d-%02d", d.Year, int(d.Month), d.Day) }

// IsZero reports whether d is the zero Date.
func (d Date) IsZero() bool { return d == Date{} }

// Before reports whether d is an earlier day than e.
func (d Date) Before(e Date) bool { return d.utc().Before(e.utc()) }

// AddDays is the day n days later; n may be negative. It may leave the years that ParseDate reads.
func (d Date) AddDays(n int) Date { return DateOf(d.utc().AddDate(0, 0, n), time.UTC) }

// Weekday is the day of the week.
func (d Date) Weekday() time.Weekday { return d.utc().Weekday() }

// In is the day in loc as an interval of time, from its midnight to the next, both UTC. It is as
// long as the day really is: 23 or 25 hours when clocks change, empty when a zone left the day out.
func (d Date) In(loc *time.Location) (from, to time.Time) {
	return d.At(0, loc), d.AddDays(1).At(0, loc)
}

// At is the first instant, in UTC, at which clocks in loc have reached the given minute of wall
// clock after the day's midnight; minutes above 1440 are on the next days. A time that a clock
// change leaves out is the moment of the change, one that comes twice is the first of the two.
// (time.Date promises neither.)
func (d Date) At(minute int, loc *time.Location) time.Time {
	wall := d.utc().Add(time.Duration(minute) * time.Minute)
	// No zone is further from UTC than this, so clocks have not got there yet; within one
	// period of constant offset they only go forward.
	for from := wall.Add(-26 * time.Hour).In(loc); ; {
		_, offset := from.Zone()
		_, until := from.ZoneBounds()
		if !until.IsZero() && !until.After(from) {
			// On the last day of leap years past the end of a zone's table, ZoneBounds gives an end
			// that is over (seen in Go 1.26). No rule changes clocks there.
			until = from.Add(24 * time.Hour)
		}
		at := wall.Add(-time.Duration(offset) * time.Second)
		if at.Before(from) {
			at = from
		}
		if until.IsZero() || at.Before(until) {
			return at.UTC()
		}
		from = until
	}
}

func (d Date) utc() time.Time { return time.Date(d.Year, d.Month, d.Day, 0, 0, 0, 0, time.UTC) }

// ScanDate implements pgtype.DateScanner. NULL is the zero Date.
func (d *Date) ScanDate(v pgtype.Date) error {
	if v.InfinityModifier != pgtype.Finite {
		return fmt.Errorf("booking: an infinite date is no day")
	}
	*d = Date{}
	if v.Valid {
		*d = DateOf(v.Time, time.UTC)
	}
	return nil
}

// DateValue implements pgtype.DateValuer. The zero Date is NULL.
func (d Date) DateValue() (pgtype.Date, error) {
	return pgtype.Date{Time: d.utc(), Valid: !d.IsZero()}, nil
}

// zones are those that LoadZone found, by name: time.LoadLocation reads a file on every call.
var zones sync.Map // string → *time.Location

// LoadZone finds a time zone by its IANA name, such as "Europe/Berlin". Names that mean another
// zone on another machine ("Local", "") or that count leap seconds are no zones here.
func LoadZone(name string) (*time.Location, error) {
	if loc, ok := zones.Load(name); ok {
		return loc.(*time.Location), nil
	}
	switch folder, _, _ := strings.Cut(name, "/"); folder {
	case "", "Local", "localtime", "posix", "posixrules", "right":
		return nil, fmt.Errorf("booking: %q is not the name of a time zone", name)
	}
	loc, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("booking: time zone: %w", err)
	}
	zones.Store(name, loc)
	return loc, nil
}
