package booking_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"openslot/internal/booking"
)

func TestParseDate(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"0001-01-01", "2026-02-28", "2028-02-29", "9999-12-31"} {
		d, err := booking.ParseDate(s)
		if err != nil || d.String() != s {
			t.Errorf("ParseDate(%q) = %v, %v", s, d, err)
		}
	}
	for _, s := range []string{"", "0000-01-01", "2026-02-29", "2026-13-01", "2026-00-10", "2026-1-01", "2026-01-1",
		"10000-01-01", "-001-01-01", "2026-01-01 ", " 2026-01-01", "2026-01-01T00:00:00Z", "today", "２０２６-01-01", "2026-01-01\x00"} {
		if d, err := booking.ParseDate(s); err == nil {
			t.Errorf("ParseDate(%q) = %v, want an error", s, d)
		}
	}
}

// Clock changes at and around midnight, where a day's bounds are not what they seem.
func TestDateIn(t *testing.T) {
	t.Parallel()
	tests := []struct{ zone, date, from, to string }{
		{"UTC", "2026-01-01", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"},
		{"Asia/Tokyo", "2026-10-05", "2026-10-04T15:00:00Z", "2026-10-05T15:00:00Z"},
		{"Europe/Berlin", "2026-03-29", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"},    // 23 hours
		{"Europe/Berlin", "2026-10-25", "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"},    // 25 hours
		{"America/Havana", "2026-03-08", "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"},   // no 00:00
		{"America/Havana", "2026-11-01", "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"},   // 00:00 twice
		{"America/Santiago", "2026-09-06", "2026-09-06T04:00:00Z", "2026-09-07T03:00:00Z"}, // no 00:00
		{"America/Santiago", "2026-04-04", "2026-04-04T03:00:00Z", "2026-04-05T04:00:00Z"}, // 23:00 twice
		{"Australia/Lord_Howe", "2026-10-04", "2026-10-03T13:30:00Z", "2026-10-04T13:00:00Z"},
		{"Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z"},  // left out
		{"Europe/Berlin", "2040-12-31", "2040-12-30T23:00:00Z", "2040-12-31T23:00:00Z"}, // a leap year's end, beyond the table
		{"America/Santiago", "2096-12-31", "2096-12-31T03:00:00Z", "2097-01-01T03:00:00Z"},
		{"Pacific/Kiritimati", "2026-06-01", "2026-05-31T10:00:00Z", "2026-06-01T10:00:00Z"},
	}
	for _, tt := range tests {
		from, to := date(t, tt.date).In(zone(t, tt.zone))
		if got := from.Format(time.RFC3339); got != tt.from {
			t.Errorf("%s %s from %s, want %s", tt.zone, tt.date, got, tt.from)
		}
		if got := to.Format(time.RFC3339); got != tt.to {
			t.Errorf("%s %s to %s, want %s", tt.zone, tt.date, got, tt.to)
		}
	}
}

func TestDateAt(t *testing.T) {
	t.Parallel()
	tests := []struct {
		zone, date string
		minute     int
		want       string
	}{
		{"Europe/Berlin", "2026-03-29", 2 * 60, "2026-03-29T01:00:00Z"},
		{"Europe/Berlin", "2026-03-29", 2*60 + 30, "2026-03-29T01:00:00Z"}, // left out: the change itself
		{"Europe/Berlin", "2026-03-29", 3*60 + 15, "2026-03-29T01:15:00Z"},
		{"Europe/Berlin", "2026-10-25", 2*60 + 30, "2026-10-25T00:30:00Z"}, // twice: the first
		{"Europe/Berlin", "2026-10-25", 3 * 60, "2026-10-25T02:00:00Z"},
		{"Europe/Berlin", "2026-03-28", 26 * 60, "2026-03-29T01:00:00Z"}, // counted through the day after
		{"America/New_York", "2026-11-01", 9 * 60, "2026-11-01T14:00:00Z"},
	}
	for _, tt := range tests {
		if got := date(t, tt.date).At(tt.minute, zone(t, tt.zone)).Format(time.RFC3339); got != tt.want {
			t.Errorf("%s %s +%d = %s, want %s", tt.zone, tt.date, tt.minute, got, tt.want)
		}
	}
}

// Whatever the zone and year: days follow each other without gap or overlap, and hold the
// instants that clocks show under their date.
func TestDateProperties(t *testing.T) {
	t.Parallel()
	names := []string{"UTC", "Europe/Berlin", "America/New_York", "America/Havana", "America/Santiago", "America/Scoresbysund",
		"Atlantic/Azores", "Africa/Cairo", "Asia/Beirut", "Asia/Kathmandu", "Australia/Lord_Howe", "Antarctica/Troll", "Pacific/Apia"}
	rapid.Check(t, func(t *rapid.T) {
		loc, err := booking.LoadZone(rapid.SampledFrom(names).Draw(t, "zone"))
		if err != nil {
			t.Fatal(err)
		}
		instant := time.Unix(rapid.Int64Range(0, 4102444800).Draw(t, "unix"), 0) // 1970 to 2100
		d := booking.DateOf(instant, loc)
		from, to := d.In(loc)
		if instant.Before(from) || !instant.Before(to) {
			t.Fatalf("%s is %s there, which lasts from %s to %s", instant.UTC(), d, from, to)
		}
		if next, _ := d.AddDays(1).In(loc); !next.Equal(to) {
			t.Fatalf("%s ends at %s, the next day begins at %s", d, to, next)
		}
		if before := booking.DateOf(from.Add(-time.Nanosecond), loc); !before.Before(d) {
			t.Fatalf("an instant before the begin of %s is %s", d, before)
		}
		if again, err := booking.ParseDate(d.String()); err != nil || again != d {
			t.Fatalf("ParseDate(%q) = %s, %v", d, again, err)
		}
		n := rapid.IntRange(-1000, 1000).Draw(t, "n")
		if back := d.AddDays(n).AddDays(-n); back != d {
			t.Fatalf("%s + %d - %d = %s", d, n, n, back)
		}
	})
}

func TestLoadZone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"UTC", "Europe/Berlin", "America/Argentina/Buenos_Aires"} {
		if loc, err := booking.LoadZone(name); err != nil || loc.String() != name {
			t.Errorf("LoadZone(%q) = %v, %v", name, loc, err)
		}
	}
	for _, name := range []string{"", "Local", "localtime", "right/Europe/Berlin", "posix/UTC", "Mars/Olympus", "../etc/passwd",
		"/etc/localtime", "Europe/Berlin\x00", "+02:00", "europe"} {
		if loc, err := booking.LoadZone(name); err == nil {
			t.Errorf("LoadZone(%q) = %v, want an error", name, loc)
		}
	}
}

func date(t *testing.T, s string) booking.Date {
	t.Helper()
	d, err := booking.ParseDate(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func zone(t *testing.T, name string) *time.Location {
	t.Helper()
	loc, err := booking.LoadZone(name)
	if err != nil {
		t.Fatal(err)
	}
	return loc
}
