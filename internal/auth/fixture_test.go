package auth

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"go.uber.org/goleak"

	"openslot/internal/booking"
)

func TestMain(m *testing.M) {
	// The shared PostgreSQL lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("openslot/internal/devenv.start"))
}

var local = Config{Issuer: "https://id.example.org", Audience: "openslot",
	Secret: []byte("a secret of the tests, 32 bytes and more"), Log: slog.New(slog.DiscardHandler)}

// epoch is now for tests of tokens.
var epoch = time.Date(2026, 10, 12, 8, 0, 0, 0, time.UTC)

// newLocal returns an Authenticator with a secret; its clock stands at epoch.
func newLocal(t testing.TB, patients *Patients) *Authenticator {
	t.Helper()
	a, err := New(t.Context(), local, patients)
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return epoch }
	return a
}

// draft is a token before it is signed. What comes later in the list wins over what it was made of.
type draft struct {
	method  jwt.SigningMethod
	key     any
	header  map[string]any
	claims  map[string]any
	head    string              // the header as text
	payload string              // the claims as text
	finish  func(string) string // what happens to the signed token
}

// good is a draft that is accepted at epoch: of staff, who need no row.
func good() *draft {
	return &draft{
		method: jwt.SigningMethodHS256,
		key:    local.Secret,
		header: map[string]any{"typ": "JWT", "alg": "HS256"},
		claims: map[string]any{"iss": local.Issuer, "aud": local.Audience, "sub": "mina", "role": "staff", "org": 7,
			"iat": epoch.Unix() - 60, "exp": epoch.Unix() + 600},
	}
}

func (d *draft) sign(t testing.TB) string {
	t.Helper()
	part := func(text string, fields map[string]any) string {
		if text == "" {
			var b bytes.Buffer
			if err := json.NewEncoder(&b).Encode(fields); err != nil {
				t.Fatal(err)
			}
			text = strings.TrimSpace(b.String())
		}
		return base64.RawURLEncoding.EncodeToString([]byte(text))
	}
	text := part(d.head, d.header) + "." + part(d.payload, d.claims)
	signature, err := d.method.Sign(text, d.key)
	if err != nil {
		t.Fatal(err)
	}
	token := text + "." + base64.RawURLEncoding.EncodeToString(signature)
	if d.finish != nil {
		token = d.finish(token)
	}
	return token
}

// wantCode checks that err is a refusal with code, and returns it.
func wantCode(t testing.TB, err error, code booking.Code) *booking.Error {
	t.Helper()
	var known *booking.Error
	if !errors.As(err, &known) || known.Code != code {
		t.Fatalf("error = %v, want %s", err, code)
	}
	return known
}

func ptr(s string) *string { return &s }

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// untold is the contact of whoever tells none.
func untold() contact { return contact{} }
