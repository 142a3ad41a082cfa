package graph

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/vektah/gqlparser/v2/gqlerror"

	"openslot/internal/booking"
)

// codes are the constants of type Code in the core's source: one that is new fails the tests below
// until it has its row.
func codes(t *testing.T) (found []booking.Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/booking/error.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && fmt.Sprint(spec.Type) == "Code" {
			text, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			found = append(found, booking.Code(text))
		}
		return true
	})
	if len(found) < 15 {
		t.Fatalf("found only %v", found)
	}
	return found
}

func TestEveryCodeHasItsPlace(t *testing.T) {
	t.Parallel()
	schema := NewExecutableSchema(Config{}).Schema()
	known := codes(t)
	for _, code := range known {
		place, ok := places[code]
		if !ok {
			t.Errorf("%s has no place in the table", code)
		}
		if (place == inData) != code.Business() {
			t.Errorf("%s: place %d, business %t", code, place, code.Business())
		}
		if inContract := schema.Types["RefusalCode"].EnumValues.ForName(string(code)) != nil; inContract != code.Business() {
			t.Errorf("%s: among the contract's refusals: %t", code, inContract)
		}
	}
	if len(places) != len(known) {
		t.Errorf("the table has %d rows for %d codes", len(places), len(known))
	}
}

// present is what clients see of an error, as JSON, and what the log got.
func present(t *testing.T, ctx context.Context, err error) (shown, logged string) {
	t.Helper()
	var log strings.Builder
	ctx = graphql.WithOperationContext(ctx, &graphql.OperationContext{Headers: http.Header{"X-Request-Id": {"r-1"}}})
	text, jerr := json.Marshal(presenter{slog.New(slog.NewJSONHandler(&log, nil))}.present(ctx, err))
	if jerr != nil {
		t.Fatal(jerr)
	}
	return string(text), log.String()
}

func TestPresent(t *testing.T) {
	t.Parallel()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	const withheld = `{"message":"Something went wrong on our side. Ask us with the request id if it stays.","extensions":{"code":"INTERNAL","requestId":"r-1"}}`
	for name, c := range map[string]struct {
		ctx    context.Context
		err    error
		want   string
		logged string // part of the log; "" = nothing is logged
	}{
		"refusal":          {t.Context(), booking.Refuse(booking.NotFound, "There is none."), `{"message":"There is none.","extensions":{"code":"NOT_FOUND"}}`, ""},
		"wrapped refusal":  {t.Context(), fmt.Errorf("inner detail: %w", booking.Refuse(booking.Forbidden, "No.")), `{"message":"No.","extensions":{"code":"FORBIDDEN"}}`, ""},
		"with cause":       {t.Context(), &booking.Error{Code: booking.Unavailable, Message: "Later.", RetryAfter: 1500 * time.Millisecond, Cause: errors.New("secret")}, `{"message":"Later.","extensions":{"code":"UNAVAILABLE","retryAfter":2}}`, "secret"},
		"on its path":      {t.Context(), gqlerror.WrapPath(nil, booking.Refuse(booking.Invalid, "Bad.")), `{"message":"Bad.","extensions":{"code":"INVALID"}}`, ""},
		"of the document":  {t.Context(), &gqlerror.Error{Message: "Unknown.", Extensions: map[string]any{"code": "GRAPHQL_VALIDATION_FAILED", "file": "x"}}, `{"message":"Unknown.","extensions":{"code":"INVALID"}}`, ""},
		"unexpected":       {t.Context(), errors.New("secret detail"), withheld, "secret detail"},
		"of the database":  {t.Context(), fmt.Errorf("x: %w", &pgconn.PgError{Code: "23514", ConstraintName: "chk_x", Message: "secret", Detail: "Failing row contains (Ada)"}), withheld, `SQLSTATE 23514, constraint \"chk_x\"`},
		"database is away": {t.Context(), fmt.Errorf("x: %w", &pgconn.PgError{Code: "57P01"}), `{"message":"The service is not available right now. Try again in a moment.","extensions":{"code":"UNAVAILABLE","retryAfter":1}}`, "SQLSTATE 57P01"},
		"deadline":         {t.Context(), context.DeadlineExceeded, "OVERLOADED", "deadline exceeded"},
		"panic":            {t.Context(), recovered(t.Context(), "secret value"), withheld, "errors_test.go"},
		"client has gone":  {gone, context.Canceled, "UNAVAILABLE", ""},
		"internal by code": {t.Context(), booking.Refuse(booking.Internal, "secret"), withheld, "secret"},
	} {
		shown, logged := present(t, c.ctx, c.err)
		if shown != c.want && (strings.HasPrefix(c.want, "{") || !strings.Contains(shown, `"`+c.want+`"`)) {
			t.Errorf("%s: %s, want %s", name, shown, c.want)
		}
		if strings.Contains(shown, "secret") || strings.Contains(logged, "Ada") {
			t.Errorf("%s: tells too much: %s %s", name, shown, logged)
		}
		if (c.logged == "") != (logged == "") || !strings.Contains(logged, c.logged) {
			t.Errorf("%s: logged %q", name, logged)
		}
		if c.logged != "" && !strings.Contains(logged, `"requestId":"r-1"`) {
			t.Errorf("%s: the log has no request id: %s", name, logged)
		}
	}
}

func TestWrite(t *testing.T) {
	t.Parallel()
	failure := func(code booking.Code, more ...any) *gqlerror.Error {
		e := &gqlerror.Error{Message: "m", Extensions: map[string]any{"code": code}}
		if len(more) > 0 {
			e.Extensions["retryAfter"] = more[0]
		}
		return e
	}
	for name, c := range map[string]struct {
		media    string
		response *graphql.Response
		status   int
		retry    string
		body     string
	}{
		"data":               {mediaResponse, &graphql.Response{Data: []byte(`{"a":1}`)}, 200, "", `{"data":{"a":1}}`},
		"partial":            {mediaResponse, &graphql.Response{Data: []byte(`{"a":null}`), Errors: gqlerror.List{failure(booking.NotFound)}}, 200, "", `{"errors":[{"message":"m","extensions":{"code":"NOT_FOUND"}}],"data":{"a":null}}`},
		"nothing":            {mediaResponse, &graphql.Response{Data: []byte(`null`), Errors: gqlerror.List{failure(booking.Internal)}}, 200, "", `{"errors":[{"message":"m","extensions":{"code":"INTERNAL"}}],"data":null}`},
		"request error":      {mediaResponse, &graphql.Response{Errors: gqlerror.List{failure(booking.Invalid)}}, 400, "", `{"errors":[{"message":"m","extensions":{"code":"INVALID"}}]}`},
		"request error, old": {mediaJSON, &graphql.Response{Errors: gqlerror.List{failure(booking.Invalid)}}, 200, "", `{"errors":[{"message":"m","extensions":{"code":"INVALID"}}]}`},
		"overloaded":         {mediaJSON, &graphql.Response{Data: []byte(`{"a":1,"b":null}`), Errors: gqlerror.List{failure(booking.NotFound), failure(booking.Overloaded, 2)}}, 503, "2", `{"errors":[{"message":"m","extensions":{"code":"OVERLOADED","retryAfter":2}}]}`},
		"unknown outcome":    {mediaResponse, &graphql.Response{Data: []byte(`null`), Errors: gqlerror.List{failure(booking.OutcomeUnknown, 1)}}, 503, "1", `{"errors":[{"message":"m","extensions":{"code":"OUTCOME_UNKNOWN","retryAfter":1}}]}`},
	} {
		w := httptest.NewRecorder()
		write(w, c.media, c.response)
		if w.Code != c.status || w.Header().Get("Retry-After") != c.retry || w.Body.String() != c.body {
			t.Errorf("%s: %d %q %s", name, w.Code, w.Header().Get("Retry-After"), w.Body)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for _, code := range codes(t) {
		list, err := refusals(fmt.Errorf("wrapped: %w", booking.Refuse(code, "Because.")))
		if (err == nil) != code.Business() || (len(list) == 1) != code.Business() || list == nil {
			t.Errorf("%s: %v %v", code, list, err)
		}
	}
	list, _ := refusals(&booking.Error{Code: booking.SlotNotOpen, Message: "Later.", OpensAt: time.Now().Add(90 * time.Second)})
	if len(list) != 1 || list[0].RetryAfter == nil || *list[0].RetryAfter < 80 || *list[0].RetryAfter > 90 {
		t.Errorf("opens in 90 s: %+v", list)
	}
}

func TestBounded(t *testing.T) {
	t.Parallel()
	var many gqlerror.List
	for range 100 {
		many = append(many, &gqlerror.Error{Message: strings.Repeat("é", 10_000), Locations: make([]gqlerror.Location, 100)})
	}
	text, err := json.Marshal(bounded(many))
	if err != nil || len(text) > 4<<10 || strings.Contains(string(text), "\ufffd") {
		t.Errorf("%d bytes: %v", len(text), err)
	}
}
