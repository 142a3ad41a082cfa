package auth

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"

	"openslot/internal/booking"
)

// badToken is a token with one fault. Without the fault it is accepted, and the cause names the
// guard that found it: so no case is refused for another reason than its own.
type badToken struct {
	name  string
	fault func(*draft)
	cause string
}

func claim(name string, value any) func(*draft) {
	return func(d *draft) {
		if d.claims[name] = value; value == nil {
			delete(d.claims, name)
		}
	}
}

func header(name string, value any) func(*draft) {
	return func(d *draft) { d.header[name] = value }
}

func finish(f func(string) string) func(*draft) { return func(d *draft) { d.finish = f } }

// inPayload puts text before the closing brace of the claims.
func inPayload(text string) func(*draft) {
	return func(d *draft) {
		d.payload = fmt.Sprintf(`{"iss":%q,"aud":%q,"sub":"mina","role":"staff","org":7,"exp":%d%s}`,
			local.Issuer, local.Audience, epoch.Unix()+600, text)
	}
}

func unsigned(alg string) func(*draft) {
	return func(d *draft) {
		d.header["alg"] = alg
		d.finish = func(s string) string { return s[:strings.LastIndex(s, ".")+1] }
	}
}

var badTokens = []badToken{
	{"Empty", finish(func(string) string { return "" }), "number of segments"},
	{"None", unsigned("none"), "not one of ours"},
	{"NoneTitle", unsigned("None"), "not one of ours"},
	{"NoneUpper", unsigned("NONE"), "not one of ours"},
	{"NoneMixed", unsigned("nOnE"), "not one of ours"},
	{"NoneSigned", header("alg", "none"), "not one of ours"},
	{"NoAlg", func(d *draft) { delete(d.header, "alg") }, "header alg: not a text"},
	{"AlgIsNumber", header("alg", 256), "header alg: not a text"},
	{"AlgLower", header("alg", "hs256"), "not one of ours"},
	{"HS512", func(d *draft) { d.method, d.header["alg"] = jwt.SigningMethodHS512, "HS512" }, "not one of ours"},
	{"RS256WithoutKey", header("alg", "RS256"), "not one of ours"},
	{"OtherSecret", func(d *draft) { d.key = []byte("another secret, of 32 bytes or more") }, "signature is invalid"},
	{"EmptySecret", func(d *draft) { d.key = []byte{} }, "signature is invalid"},
	{"NoSignature", finish(func(s string) string { return s[:strings.LastIndex(s, ".")+1] }), "signature is invalid"},
	{"SignatureOfAnother", finish(func(s string) string {
		return s[:strings.LastIndex(s, ".")+1] + "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	}), "signature is invalid"},
	{"MissingSegment", finish(func(s string) string { return s[:strings.LastIndex(s, ".")] }), "number of segments"},
	{"ExtraSegment", finish(func(s string) string { return s + ".e30" }), "number of segments"},
	{"ExtraDot", finish(func(s string) string { return s + "." }), "number of segments"},
	{"Dots", finish(func(string) string { return strings.Repeat(".", 1<<20) }), "too long"},
	{"FewerDots", finish(func(string) string { return strings.Repeat(".", maxToken) }), "number of segments"},
	{"TooLong", claim("extra", strings.Repeat("x", maxToken)), "too long"},
	{"LineBreak", finish(func(s string) string { return s[:9] + "\n" + s[9:] }), "character"},
	{"Padding", finish(func(s string) string { return s + "=" }), "character"},
	{"StandardAlphabet", finish(func(s string) string { return s[:9] + "/" + s[10:] }), "character"},
	{"LooseBits", finish(loosen), "signature: not base64"},
	{"HeaderIsNull", func(d *draft) { d.head = "null" }, "header alg: not a text"},
	{"HeaderIsText", func(d *draft) { d.head = "alg: HS256" }, "not an object"},
	{"HeaderTwice", func(d *draft) { d.head = `{"alg":"none","alg":"HS256"}` }, "each name once"},
	{"Critical", header("crit", []string{"exp"}), "critical"},
	{"TypeOther", header("typ", "logout+jwt"), "not an access token"},
	{"TypeIsNumber", header("typ", 1), "not an access token"},
	{"KidOf10kB", header("kid", strings.Repeat("k", 10_000)), "too long"},

	{"PayloadIsNull", func(d *draft) { d.payload = "null" }, "exp claim is required"},
	{"PayloadIsArray", func(d *draft) { d.payload = "[]" }, "not an object"},
	{"PayloadIsDeep", func(d *draft) { d.payload = strings.Repeat("[", 5000) }, "not an object"},
	{"PayloadNotUTF8", inPayload(",\"x\":\"\xff\""), "in UTF-8"},
	{"PayloadWithTail", inPayload(`}{"a":1`), "not an object"},
	{"SubjectTwice", inPayload(`,"sub":"someone else"`), "each name once"},
	{"RoleTwiceEscaped", inPayload(`,"\u0072ole":"system"`), "each name once"},

	{"NoAudience", claim("aud", nil), "aud claim is required"},
	{"OtherAudience", claim("aud", "another service"), "invalid audience"},
	{"OtherAudiences", claim("aud", []string{"a", "b"}), "invalid audience"},
	{"EmptyAudience", claim("aud", ""), "aud claim is required"},
	{"EmptyAudiences", claim("aud", []string{}), "aud claim is required"},
	{"AudienceOfNumbers", claim("aud", []any{1, local.Audience}), "claim aud has the wrong type"},
	{"AudienceIsObject", claim("aud", map[string]any{local.Audience: true}), "claim aud has the wrong type"},
	{"AudienceLonger", claim("aud", local.Audience+"2"), "invalid audience"},
	{"NoIssuer", claim("iss", nil), "iss claim is required"},
	{"OtherIssuer", claim("iss", local.Issuer+"/tenants/2"), "invalid issuer"},
	{"IssuerSlash", claim("iss", local.Issuer+"/"), "invalid issuer"},
	{"IssuerIsArray", claim("iss", []string{local.Issuer}), "claim iss has the wrong type"},
	{"IssuerUpper", func(d *draft) { d.claims["ISS"] = d.claims["iss"]; delete(d.claims, "iss") }, "iss claim is required"},

	{"NoExpiry", claim("exp", nil), "exp claim is required"},
	{"Expired", claim("exp", epoch.Unix()-30), "token is expired"},
	{"ExpiredLong", claim("exp", 0), "token is expired"},
	{"ExpiryNegative", claim("exp", -1), "not a date"},
	{"ExpiryTooFar", claim("exp", math.MaxInt64), "not a date"},
	{"ExpiryIsFloat", claim("exp", float64(epoch.Unix())+600.5), "not a date"},
	{"ExpiryIsExponent", inPayload(`,"nbf":1e3`), "not a date"},
	{"ExpiryIsText", claim("exp", fmt.Sprint(epoch.Unix()+600)), "not a date"},
	{"ExpiryIsNull", func(d *draft) { d.claims["exp"] = (*int)(nil) }, "not a date"},
	{"NotYet", claim("nbf", epoch.Unix()+31), "not valid yet"},
	{"NotBeforeIsText", claim("nbf", "0"), "not a date"},
	{"IssuedLater", claim("iat", epoch.Unix()+31), "used before issued"},
	{"IssuedIsFloat", claim("iat", 1.5), "not a date"},

	{"NoSubject", claim("sub", nil), "claim sub"},
	{"EmptySubject", claim("sub", ""), "claim sub"},
	{"SubjectTooLong", claim("sub", strings.Repeat("é", 256)), "claim sub"},
	{"SubjectWithNUL", claim("sub", "mina\x00"), "claim sub"},
	{"SubjectWithLine", claim("sub", "mina\r\nrole: system"), "claim sub"},
	{"SubjectUnreadable", inUnreadable, "in UTF-8"},
	{"SubjectIsNumber", claim("sub", 7), "claim sub has the wrong type"},
	{"PartnerTooLong", func(d *draft) { d.claims["role"], d.claims["sub"] = "partner", strings.Repeat("p", 248) }, "too long for a partner"},
	{"NoRole", claim("role", nil), "claim role"},
	{"OtherRole", claim("role", "admin"), "claim role"},
	{"RoleUpper", claim("role", "STAFF"), "claim role"},
	{"Roles", claim("role", []string{"staff"}), "claim role has the wrong type"},
	{"StaffOfNowhere", claim("org", nil), "claim org is missing"},
	{"OrganizationZero", claim("org", 0), "claim org"},
	{"OrganizationNegative", claim("org", "-7"), "claim org"},
	{"OrganizationFloat", claim("org", 7.5), "claim org"},
	{"OrganizationPadded", claim("org", "007"), "claim org"},
	{"OrganizationText", claim("org", "7 OR 1=1"), "claim org"},
	{"OrganizationHuge", claim("org", "9223372036854775808"), "claim org"},
	{"OrganizationIsArray", claim("org", []int{7}), "claim org"},
}

func inUnreadable(d *draft) {
	d.payload = fmt.Sprintf(`{"iss":%q,"aud":%q,"sub":"\ud800","role":"staff","org":7,"exp":%d}`,
		local.Issuer, local.Audience, epoch.Unix()+600)
}

// loosen sets bits of the last character that carry nothing.
func loosen(token string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := len(token) - 1
	return token[:last] + string(alphabet[strings.IndexByte(alphabet, token[last])|1])
}

func TestBadTokens(t *testing.T) {
	t.Parallel()
	for _, tt := range badTokens {
		t.Run(tt.name, func(t *testing.T) {
			a := newLocal(t, nil)
			checkBad(t, a, good, tt)
		})
	}
}

// checkBad checks that the token is refused with its fault, in the words of every other, and
// accepted without.
func checkBad(t *testing.T, a *Authenticator, base func() *draft, tt badToken) {
	t.Helper()
	if _, err := a.Authenticate(t.Context(), base().sign(t)); err != nil {
		t.Fatalf("refused without its fault: %v", err)
	}
	d := base()
	tt.fault(d)
	token := d.sign(t)
	fastest := time.Hour // of some: other tests are running
	for tries := 0; tries < 5 || tries < 50 && fastest > 5*time.Millisecond; tries++ {
		began := time.Now()
		identity, err := a.Authenticate(t.Context(), token)
		fastest = min(fastest, time.Since(began))
		refusal := wantCode(t, err, booking.Unauthenticated)
		if identity != (Identity{}) {
			t.Errorf("identity = %v, want none", identity)
		}
		if want := "The access token is not valid. Sign in again."; refusal.Message != want {
			t.Errorf("message = %q, want %q", refusal.Message, want)
		}
		if cause := fmt.Sprint(refusal.Cause); !strings.Contains(cause, tt.cause) || len(cause) > 300 {
			t.Errorf("cause = %q, want one with %q", cause, tt.cause)
		}
	}
	if fastest > 5*time.Millisecond {
		t.Errorf("the refusal took %v, want 5 ms at most", fastest)
	}
}

func TestGoodTokens(t *testing.T) {
	t.Parallel()
	staff := booking.Actor{Kind: booking.Staff, Subject: "mina", Organization: 7}
	expires := time.Unix(epoch.Unix()+600, 0).Add(30 * time.Second)
	tests := []struct {
		name   string
		change func(*draft)
		want   booking.Actor
		until  time.Time
	}{
		{"Plain", func(*draft) {}, staff, expires},
		{"OrganizationAsText", claim("org", "7"), staff, expires},
		{"NoType", func(d *draft) { delete(d.header, "typ") }, staff, expires},
		{"AccessTokenType", header("typ", "application/AT+jwt"), staff, expires},
		{"Kid", header("kid", "' OR 1=1"), staff, expires},
		{"AmongAudiences", claim("aud", []string{"a", local.Audience}), staff, expires},
		{"OtherClaims", claim("SUB", "someone else"), staff, expires},
		{"ExpiredWithinLeeway", claim("exp", epoch.Unix()-29), staff, epoch.Add(time.Second)},
		{"NotYetWithinLeeway", claim("nbf", epoch.Unix()+30), staff, expires},
		{"IssuedLaterWithinLeeway", claim("iat", epoch.Unix()+30), staff, expires},
		{"NoIssuedAt", claim("iat", nil), staff, expires},
		{"Partner", claim("role", "partner"), booking.Actor{Kind: booking.Partner, Subject: "mina"}, expires},
		{"PartnerLongest", func(d *draft) { d.claims["role"], d.claims["sub"] = "partner", strings.Repeat("p", 247) },
			booking.Actor{Kind: booking.Partner, Subject: strings.Repeat("p", 247)}, expires},
		{"System", claim("role", "system"), booking.Actor{Kind: booking.System, Subject: "mina"}, expires},
		{"SubjectLongest", claim("sub", strings.Repeat("é", 255)),
			booking.Actor{Kind: booking.Staff, Subject: strings.Repeat("é", 255), Organization: 7}, expires},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := good()
			tt.change(d)
			got, err := newLocal(t, nil).Authenticate(t.Context(), d.sign(t))
			if err != nil {
				t.Fatal(err)
			}
			want := Identity{Actor: tt.want, ExpiresAt: tt.until}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("identity (-want +got):\n%s", diff)
			}
		})
	}
}

// A token that was verified is remembered, but not past its expiry.
func TestTrusted(t *testing.T) {
	t.Parallel()
	a := newLocal(t, nil)
	keyAsked := 0
	keyFor := a.keyFor
	a.keyFor = func(token *jwt.Token) (any, error) { keyAsked++; return keyFor(token) }
	token := good().sign(t)
	at := func(d time.Duration) error {
		a.now = func() time.Time { return epoch.Add(d) }
		_, err := a.Authenticate(t.Context(), token)
		return err
	}
	for _, step := range []struct {
		after time.Duration
		asked int // how often the token has been verified by then
	}{{0, 1}, {time.Second, 1}, {trustFor - 1, 1}, {trustFor, 2}, {629 * time.Second, 3}, {629999 * time.Millisecond, 3}} {
		if err := at(step.after); err != nil || keyAsked != step.asked {
			t.Fatalf("after %v: error %v, verified %d times, want %d", step.after, err, keyAsked, step.asked)
		}
	}
	wantCode(t, at(630*time.Second), booking.Unauthenticated)
}

func TestConfigCheck(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change func(*Config)
		want   string // part of the error; "" = none
	}{
		{"Local", func(*Config) {}, ""},
		{"NoIssuer", func(c *Config) { c.Issuer = "" }, "issuer"},
		{"IssuerTooLong", func(c *Config) { c.Issuer = strings.Repeat("i", 256) }, "issuer"},
		{"IssuerLikeOrganization", func(c *Config) { c.Issuer = "organization:7" }, "must not begin"},
		{"IssuerLikePartner", func(c *Config) { c.Issuer = "partner:acme" }, "must not begin"},
		{"NoAudience", func(c *Config) { c.Audience = "" }, "audience"},
		{"NoKeys", func(c *Config) { c.Secret = nil }, "neither is set"},
		{"BothKeys", func(c *Config) { c.JWKSURL = "https://id.example.org/keys" }, "both a secret"},
		{"ShortSecret", func(c *Config) { c.Secret = c.Secret[:31] }, "32 bytes"},
		{"LeewayTooLong", func(c *Config) { c.Leeway = 61 * time.Second }, "leeway"},
		{"LeewayNegative", func(c *Config) { c.Leeway = -1 }, "leeway"},
		{"URLOfFile", func(c *Config) { c.Secret, c.JWKSURL = nil, "file:///etc/keys" }, "https://"},
		{"URLWithoutHost", func(c *Config) { c.Secret, c.JWKSURL = nil, "https:///keys" }, "https://"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := local
			tt.change(&cfg)
			_, err := New(t.Context(), cfg, nil)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want one with %q", err, tt.want)
			}
		})
	}
}

func TestSign(t *testing.T) {
	t.Parallel()
	a, err := New(t.Context(), local, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := local.Sign(Grant{Subject: "mina", Role: booking.Staff, Organization: 7, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	got, err := a.Authenticate(t.Context(), token)
	if want := (booking.Actor{Kind: booking.Staff, Subject: "mina", Organization: 7}); err != nil || got.Actor != want {
		t.Errorf("Authenticate = %v, %v, want %v", got.Actor, err, want)
	}
	if left := time.Until(got.ExpiresAt); left < time.Hour-time.Minute || left > time.Hour+time.Minute {
		t.Errorf("expires in %v, want about 1 h", left)
	}
	remote := local
	remote.Secret, remote.JWKSURL = nil, "https://id.example.org/keys"
	for name, sign := range map[string]func() (string, error){
		"NoRole":       func() (string, error) { return local.Sign(Grant{Subject: "mina", TTL: 1}) },
		"NoSubject":    func() (string, error) { return local.Sign(Grant{Role: booking.System, TTL: 1}) },
		"StaffNowhere": func() (string, error) { return local.Sign(Grant{Subject: "mina", Role: booking.Staff, TTL: 1}) },
		"NoTime":       func() (string, error) { return local.Sign(Grant{Subject: "mina", Role: booking.System}) },
		"NoSecret":     func() (string, error) { return remote.Sign(Grant{Subject: "mina", Role: booking.System, TTL: 1}) },
	} {
		if token, err := sign(); err == nil || token != "" {
			t.Errorf("%s: Sign = %q, %v, want an error", name, token, err)
		}
	}
}

// FuzzToken: nothing but the very token that was signed is accepted.
func FuzzToken(f *testing.F) {
	a := newLocal(f, nil)
	signed := good().sign(f)
	f.Add(signed)
	for _, tt := range badTokens {
		d := good()
		tt.fault(d)
		if token := d.sign(f); len(token) < 2*maxToken {
			f.Add(token)
		}
	}
	f.Fuzz(func(t *testing.T, token string) {
		_, err := a.Authenticate(t.Context(), token)
		if (err == nil) != (token == signed) {
			t.Fatalf("error = %v for %q", err, token)
		}
		var refusal *booking.Error
		if err != nil && (!errors.As(err, &refusal) || refusal.Code != booking.Unauthenticated) {
			t.Fatalf("error = %v, want %s", err, booking.Unauthenticated)
		}
	})
}

// Tokens never seen before, as a crowd brings them.
func BenchmarkAuthenticate(b *testing.B) {
	a := newLocal(b, nil)
	token := good()
	token.claims["exp"] = int64(253_402_300_799)
	signed := token.sign(b)
	now := epoch
	a.now = func() time.Time { return now }
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(trustFor) // and what was verified before is forgotten
		if _, err := a.Authenticate(b.Context(), signed); err != nil {
			b.Fatal(err)
		}
	}
}
