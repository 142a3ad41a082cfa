package graph

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"

	"openslot/internal/booking"
	"openslot/internal/schedule"
)

// written is what a marshaler writes.
func written(m graphql.Marshaler) string {
	var b strings.Builder
	m.MarshalGQL(&b)
	return b.String()
}

// reads tells whether unmarshal takes each of the good values, as their marshaled form, and refuses
// each of the bad ones with INVALID.
func reads[T any](t *testing.T, unmarshal func(any) (T, error), marshal func(T) graphql.Marshaler, good map[any]string, bad ...any) {
	t.Helper()
	for in, want := range good {
		v, err := unmarshal(in)
		if err != nil || written(marshal(v)) != want {
			t.Errorf("%T %v: %v %v, want %s", in, in, v, err, want)
		}
	}
	for _, in := range bad {
		v, err := unmarshal(in)
		var known *booking.Error
		if !errors.As(err, &known) || known.Code != booking.Invalid {
			t.Errorf("%T %v: %v %v, want INVALID", in, in, v, err)
		}
	}
}

func TestScalars(t *testing.T) {
	t.Parallel()
	t.Run("ID", func(t *testing.T) {
		reads(t, UnmarshalSlotID, MarshalSlotID,
			map[any]string{"1": `"1"`, "9223372036854775807": `"9223372036854775807"`, int64(42): `"42"`, json.Number("7"): `"7"`},
			"", "0", "-1", "+1", "01", " 1", "1 ", "1\x00", "1.0", "1e3", "0x1", "1_000", "one", "9223372036854775808", "１",
			int64(0), int64(-1), json.Number("1.5"), json.Number("1e2"), 1.0, true, []any{"1"}, map[string]any{})
	})
	t.Run("Int", func(t *testing.T) {
		reads(t, UnmarshalInt, MarshalInt,
			map[any]string{int64(0): "0", int64(math.MaxInt32): "2147483647", json.Number("-2147483648"): "-2147483648"},
			"2", "", int64(math.MaxInt32+1), json.Number("3000000000"), json.Number("1.0"), json.Number("1e3"), 2.0, false, []any{1})
	})
	t.Run("String", func(t *testing.T) {
		reads(t, UnmarshalString, MarshalString,
			map[any]string{"": `""`, "naïve \"q\" \U0001F600\n": `"naïve \"q\" ` + "\U0001F600" + `\n"`},
			json.Number("1"), int64(1), true, "\xff", []any{"x"})
	})
	t.Run("DateTime", func(t *testing.T) {
		reads(t, UnmarshalDateTime, MarshalDateTime, map[any]string{
			"2026-10-12T07:00:00Z":           `"2026-10-12T07:00:00Z"`,
			"2026-10-12T09:00:00+02:00":      `"2026-10-12T07:00:00Z"`,
			"2026-10-12T07:00:00.123456789Z": `"2026-10-12T07:00:00.123456Z"`,
			"0001-01-01T00:00:00Z":           `"0001-01-01T00:00:00Z"`,
		}, "", "2026-10-12", "2026-10-12T07:00:00", "2026-10-12 07:00:00Z", "2026-10-12T07:00Z", "2026-02-30T00:00:00Z",
			"2026-10-12T24:00:00Z", "2026-10-12T07:00:60Z", "2026-10-12T07:00:00,5Z", "0000-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00",
			"1760252400", int64(1760252400), json.Number("1760252400"), true)
		if got := written(MarshalDateTime(time.Date(2026, 3, 29, 3, 0, 0, 0, time.FixedZone("", 7200)))); got != `"2026-03-29T01:00:00Z"` {
			t.Errorf("not in UTC: %s", got)
		}
	})
	t.Run("Date", func(t *testing.T) {
		reads(t, UnmarshalDate, MarshalDate,
			map[any]string{"2028-02-29": `"2028-02-29"`, "0001-01-01": `"0001-01-01"`, "9999-12-31": `"9999-12-31"`},
			"", "2026-02-29", "2026-13-01", "2026-1-1", "20260101", "2026-01-01T00:00:00Z", " 2026-01-01", "2026-01-01\x00",
			"0000-01-01", "10000-01-01", "-2026-01-01", int64(20260101), true)
	})
	t.Run("Enums", func(t *testing.T) {
		reads(t, UnmarshalSlotStatus, MarshalSlotStatus, map[any]string{"OPEN": `"OPEN"`, "CLOSED": `"CLOSED"`}, "", "open", "HELD", int64(1), nil)
		reads(t, UnmarshalPlacesReturn, MarshalPlacesReturn, map[any]string{"AT_ONCE": `"AT_ONCE"`, "NEXT_RELEASE": `"NEXT_RELEASE"`}, "", "at_once", int64(1), nil)
		reads(t, UnmarshalWeekday, MarshalWeekday, map[any]string{"MONDAY": `"MONDAY"`, "SUNDAY": `"SUNDAY"`}, "", "monday", int64(1), nil)
		if d, _ := UnmarshalWeekday("SUNDAY"); d != schedule.Sunday {
			t.Errorf("SUNDAY is %d", d)
		}
	})
}

func FuzzScalars(f *testing.F) {
	for _, s := range []string{"1", "9223372036854775807", "2026-10-12", "2026-10-12T07:00:00.5+02:00", "\x00", "OPEN"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		// What is read is written as something that reads the same.
		if v, err := UnmarshalDoctorID(s); err == nil && written(MarshalDoctorID(v)) != `"`+s+`"` {
			t.Errorf("id %q became %d", s, v)
		}
		if v, err := UnmarshalDate(s); err == nil && written(MarshalDate(v)) != `"`+s+`"` {
			t.Errorf("date %q became %v", s, v)
		}
		if v, err := UnmarshalDateTime(s); err == nil {
			again, err := UnmarshalDateTime(strings.Trim(written(MarshalDateTime(v)), `"`))
			if err != nil || !again.Equal(v.Truncate(time.Microsecond)) {
				t.Errorf("instant %q became %v, then %v %v", s, v, again, err)
			}
		}
		if v, err := UnmarshalInt(json.Number(s)); err == nil && (v > math.MaxInt32 || v < math.MinInt32) {
			t.Errorf("int %q became %d", s, v)
		}
	})
}
