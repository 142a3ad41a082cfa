package booking

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

func TestRetrySeconds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		refused     Error
		least, most int
	}{
		"NotSaid":     {Error{}, 0, 0},
		"RoundedUp":   {Error{RetryAfter: time.Nanosecond}, 1, 1},
		"Whole":       {Error{RetryAfter: 2 * time.Second}, 2, 2},
		"Opens":       {Error{OpensAt: time.Now().Add(90 * time.Second)}, 30, 90}, // a slow machine
		"Open":        {Error{OpensAt: time.Now().Add(-time.Hour)}, 0, 0},
		"OpensLongOf": {Error{OpensAt: time.Now().AddDate(73, 0, 0)}, math.MaxInt32, math.MaxInt32},
		"OpensNever":  {Error{OpensAt: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)}, math.MaxInt32, math.MaxInt32},
	} {
		if got := tt.refused.RetrySeconds(); got < tt.least || got > tt.most {
			t.Errorf("%s: %d, want %d to %d", name, got, tt.least, tt.most)
		}
	}
}

func TestTold(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	row := &pgconn.PgError{Code: "23514", ConstraintName: "chk_x", Message: "secret", Detail: "Failing row contains (Ada)"}
	for name, tt := range map[string]struct {
		ctx    context.Context
		err    error
		want   Code
		logged string
	}{
		"Refusal":         {t.Context(), fmt.Errorf("x: %w", Refuse(SlotFull, "Full.")), SlotFull, ""},
		"RefusalOfGone":   {gone, Refuse(SlotFull, "Full."), SlotFull, ""},
		"Gone":            {gone, errors.New("secret"), Unavailable, ""},
		"Cancelled":       {t.Context(), fmt.Errorf("x: %w", context.Canceled), Unavailable, ""},
		"Deadline":        {t.Context(), fmt.Errorf("x: %w", context.DeadlineExceeded), Overloaded, "x: context deadline exceeded"},
		"Away":            {t.Context(), &pgconn.PgError{Code: "57P01", Message: "secret"}, Unavailable, `SQLSTATE 57P01, constraint ""`},
		"Unexpected":      {t.Context(), errors.New("secret"), Internal, "secret"},
		"UnexpectedInSQL": {t.Context(), fmt.Errorf("x: %w", row), Internal, `SQLSTATE 23514, constraint "chk_x"`},
		"Internal":        {t.Context(), Refuse(Internal, "secret"), Internal, "INTERNAL: secret"},
	} {
		told := Told(tt.ctx, tt.err)
		if told.Code != tt.want || told.Message == "" || strings.Contains(told.Message, "secret") {
			t.Errorf("%s: %+v, want %s", name, told, tt.want)
		}
		if soon := told.Code == Unavailable || told.Code == Overloaded; soon != (told.RetrySeconds() > 0) {
			t.Errorf("%s: %+v says when to try again: %v", name, told, !soon)
		}
		logged := ""
		if told.Cause != nil {
			logged = LogText(told.Cause)
		}
		if logged != tt.logged {
			t.Errorf("%s: logged %q, want %q", name, logged, tt.logged)
		}
	}
}
