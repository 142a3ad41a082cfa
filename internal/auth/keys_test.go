package auth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/golang-jwt/jwt/v5"

	"openslot/internal/booking"
)

// provider publishes a key set, and counts who asks for it.
type provider struct {
	*httptest.Server
	mu      sync.Mutex
	body    string
	status  int
	fetches int
	stall   chan struct{} // not nil: answers wait for it
}

func newProvider(t *testing.T, keys ...map[string]any) *provider {
	t.Helper()
	p := &provider{status: http.StatusOK}
	p.publish(t, keys...)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.fetches++
		status, body, stall := p.status, p.body, p.stall
		p.mu.Unlock()
		if stall != nil {
			select {
			case <-stall:
			case <-r.Context().Done():
			}
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *provider) publish(t *testing.T, keys ...map[string]any) {
	t.Helper()
	if keys == nil {
		keys = []map[string]any{}
	}
	body, err := json.Marshal(map[string]any{"keys": keys})
	if err != nil {
		t.Fatal(err)
	}
	p.answer(http.StatusOK, string(body))
}

func (p *provider) answer(status int, body string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.status, p.body = status, body
}

func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fetches
}

// published is the public half of key as a key set has it, with more put over it.
func published(t *testing.T, key crypto.Signer, kid string, more map[string]any) map[string]any {
	t.Helper()
	jwk, err := jwkset.NewJWKFromKey(key.Public(), jwkset.JWKOptions{Metadata: jwkset.JWKMetadataOptions{KID: kid}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(jwk.Marshal())
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	for name, value := range more {
		fields[name] = value
	}
	return fields
}

var rsaKeys = sync.OnceValue(func() [3]*rsa.PrivateKey {
	var keys [3]*rsa.PrivateKey
	for i := range keys {
		keys[i], _ = rsa.GenerateKey(rand.Reader, 2048) // the error is always nil
	}
	return keys
})

// remoteDraft is good, signed by key under kid.
func remoteDraft(method jwt.SigningMethod, key any, kid string) *draft {
	d := good()
	d.method, d.key = method, key
	d.header["alg"], d.header["kid"] = method.Alg(), kid
	return d
}

func newRemote(t *testing.T, url string) *Authenticator {
	t.Helper()
	cfg := local
	cfg.Secret, cfg.JWKSURL = nil, url
	a, err := New(t.Context(), cfg, NewPatients(deadPool(t)))
	if err != nil {
		t.Fatal(err)
	}
	a.now = func() time.Time { return epoch }
	return a
}

func TestRemoteAlgorithms(t *testing.T) {
	t.Parallel()
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ec384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	p := newProvider(t, published(t, rsaKeys()[0], "r", nil), published(t, ec, "e", nil),
		published(t, ec384, "e384", nil), published(t, ed, "ed", nil))
	a := newRemote(t, p.URL)
	for _, tt := range []struct {
		method jwt.SigningMethod
		key    any
		kid    string
	}{
		{jwt.SigningMethodRS256, rsaKeys()[0], "r"}, {jwt.SigningMethodPS256, rsaKeys()[0], "r"},
		{jwt.SigningMethodES256, ec, "e"}, {jwt.SigningMethodES384, ec384, "e384"}, {jwt.SigningMethodEdDSA, ed, "ed"},
	} {
		d := remoteDraft(tt.method, tt.key, tt.kid)
		if _, err := a.Authenticate(t.Context(), d.sign(t)); err != nil {
			t.Errorf("%s: %v", tt.method.Alg(), err)
		}
		delete(d.header, "kid")
		if _, err := a.Authenticate(t.Context(), d.sign(t)); err != nil {
			t.Errorf("%s without kid: %v", tt.method.Alg(), err)
		}
	}
}

func TestBadTokensRemote(t *testing.T) {
	t.Parallel()
	ours, strange, encryption := rsaKeys()[0], rsaKeys()[1], rsaKeys()[2]
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	shared := []byte("a shared secret in a published key set")
	p := newProvider(t,
		published(t, ours, "ours", map[string]any{"alg": "RS256", "use": "sig"}),
		published(t, encryption, "encryption", map[string]any{"use": "enc"}),
		published(t, ec, "curve", nil),
		map[string]any{"kty": "oct", "kid": "shared", "k": "YSBzaGFyZWQgc2VjcmV0IGluIGEgcHVibGlzaGVkIGtleSBzZXQ"},
		map[string]any{"kty": "something new", "kid": "new"},
		map[string]any{"kty": "RSA", "kid": 7},
	)
	a := newRemote(t, p.URL)
	base := func() *draft { return remoteDraft(jwt.SigningMethodRS256, ours, "ours") }

	der := x509.MarshalPKCS1PublicKey(&ours.PublicKey)
	spki, err := x509.MarshalPKIXPublicKey(&ours.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	hmac := func(key []byte, kid string) func(*draft) {
		return func(d *draft) {
			d.method, d.key = jwt.SigningMethodHS256, key
			d.header["alg"], d.header["kid"] = "HS256", kid
		}
	}
	stranger := func(name string, value any) func(*draft) {
		return func(d *draft) { d.key, d.header[name] = strange, value }
	}
	strangeKey := published(t, strange, "ours", nil)
	for _, tt := range []badToken{
		{"HS256WithPublicDER", hmac(der, "ours"), "not one of ours"},
		{"HS256WithPublicSPKI", hmac(spki, "ours"), "not one of ours"},
		{"HS256WithPublicPEM", hmac(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}), "ours"), "not one of ours"},
		{"HS256WithModulus", hmac(ours.N.Bytes(), "ours"), "not one of ours"},
		{"HS256WithSharedKey", hmac(shared, "shared"), "not one of ours"},
		{"HS256WithNothing", hmac(nil, "ours"), "not one of ours"},
		{"None", unsigned("none"), "not one of ours"},
		{"OtherAlgorithmOfKey", func(d *draft) { d.method, d.header["alg"] = jwt.SigningMethodPS256, "PS256" }, "no key"},
		{"AlgorithmOfOtherKey", header("kid", "curve"), "key is of invalid type"},
		{"NotAllowed", func(d *draft) { d.method, d.header["alg"] = jwt.SigningMethodRS512, "RS512" }, "not one of ours"},
		{"KeyForEncryption", func(d *draft) { d.key, d.header["kid"] = encryption, "encryption" }, "no key"},
		{"OtherKey", func(d *draft) { d.key = strange }, "signature is invalid"},
		{"OtherKeyWithoutKid", func(d *draft) { d.key = strange; delete(d.header, "kid") }, "signature is invalid"},
		{"UnknownKid", header("kid", "unknown"), "no key"},
		{"EmptyKid", header("kid", ""), "no key"},
		{"KidIsPath", header("kid", "../../dev/null"), "no key"},
		{"KidIsSQL", header("kid", "' OR 1=1"), "no key"},
		{"KidIsNumber", header("kid", 7), "no key"},
		{"KidIsArray", header("kid", []string{"ours"}), "no key"},
		{"KidOf5kB", header("kid", strings.Repeat("k", 5000)), "no key"},
		{"KidOf10kB", header("kid", strings.Repeat("k", 10_000)), "too long"},
		{"BringsItsKey", stranger("jwk", strangeKey), "signature is invalid"},
		{"PointsToItsKey", stranger("jku", p.URL), "signature is invalid"},
		{"PointsToItsCertificate", stranger("x5u", p.URL), "signature is invalid"},
		{"BringsItsCertificate", stranger("x5c", []string{"MIIB"}), "signature is invalid"},
		{"OtherAudience", claim("aud", "another service"), "invalid audience"},
	} {
		t.Run(tt.name, func(t *testing.T) { checkBad(t, a, base, tt) })
	}

	// What such a header says is ignored, not refused.
	d := base()
	d.header["jwk"], d.header["jku"], d.header["x5u"] = strangeKey, p.URL, p.URL
	if _, err := a.Authenticate(t.Context(), d.sign(t)); err != nil {
		t.Errorf("our own key with jwk, jku and x5u: %v", err)
	}
	if n := p.count(); n != 1 {
		t.Errorf("the key set was fetched %d times, want once, at start: no token may cause a call", n)
	}
}

func TestRotation(t *testing.T) {
	t.Parallel()
	p := newProvider(t, published(t, rsaKeys()[0], "first", nil))
	a := newRemote(t, p.URL)
	a.remote.every = 20 * time.Millisecond
	first := remoteDraft(jwt.SigningMethodRS256, rsaKeys()[0], "first").sign(t)
	second := remoteDraft(jwt.SigningMethodRS256, rsaKeys()[1], "second").sign(t)
	check := func(token string) error {
		_, err := a.Authenticate(t.Context(), token)
		return err
	}
	if err := check(first); err != nil {
		t.Fatal(err)
	}
	wantCode(t, check(second), booking.Unauthenticated)

	p.publish(t, published(t, rsaKeys()[1], "second", nil))
	wantCode(t, check(second), booking.Unauthenticated) // nobody has fetched it: the control
	stop := start(t, a)
	eventually(t, "the new key works", func() bool { return check(second) == nil })
	if err := check(first); err != nil {
		t.Errorf("a token that was verified just now: %v", err)
	}
	stop() // Run must not read the clock while it moves
	a.now = func() time.Time { return epoch.Add(trustFor) }
	wantCode(t, check(first), booking.Unauthenticated)
	if keysEvery > time.Minute || keysEvery+trustFor > 5*time.Minute {
		t.Errorf("keys every %v, trusted for %v: a new key must work within 1 min, a withdrawn one stop within 5", keysEvery, trustFor)
	}
}

// Whatever the provider answers instead of a key set, the keys at hand go on working.
func TestProviderTrouble(t *testing.T) {
	t.Parallel()
	key := published(t, rsaKeys()[0], "ours", nil)
	many := make([]map[string]any, maxKeys+1)
	for i := range many {
		many[i] = key
	}
	tooMany, err := json.Marshal(map[string]any{"keys": many})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		status int
		body   string
		works  bool
	}{
		{"Error", 500, "{}", true},
		{"Gone", 404, `{"keys":[]}`, true},
		{"NotJSON", 200, "<html>", true},
		{"NoKeys", 200, "{}", true},
		{"NullKeys", 200, `{"keys":null}`, true},
		{"TooLarge", 200, `{"keys":[],"x":"` + strings.Repeat("x", maxKeySet) + `"}`, true},
		{"TooMany", 200, string(tooMany), true},
		{"Withdrawn", 200, `{"keys":[]}`, false}, // a set, and obeyed
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newProvider(t, key)
			a := newRemote(t, p.URL)
			p.answer(tt.status, tt.body)
			a.remote.refresh(t.Context())
			if n := p.count(); n != 2 {
				t.Fatalf("fetched %d times, want 2", n)
			}
			_, err := a.Authenticate(t.Context(), remoteDraft(jwt.SigningMethodRS256, rsaKeys()[0], "ours").sign(t))
			if !tt.works {
				wantCode(t, err, booking.Unauthenticated)
			} else if err != nil {
				t.Errorf("error = %v, want none", err)
			}
		})
	}
	t.Run("Redirect", func(t *testing.T) { // followed, it would withdraw the key
		p, elsewhere := newProvider(t, key), newProvider(t)
		redirect := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
		defer redirect.Close()
		a := newRemote(t, p.URL)
		a.remote.url = redirect.URL
		a.remote.refresh(t.Context())
		if n := elsewhere.count(); n != 0 {
			t.Errorf("the redirect was followed %d times", n)
		}
	})
	t.Run("Away", func(t *testing.T) {
		p := newProvider(t, key)
		a := newRemote(t, p.URL)
		p.Close()
		a.remote.refresh(t.Context())
		if _, err := a.Authenticate(t.Context(), remoteDraft(jwt.SigningMethodRS256, rsaKeys()[0], "ours").sign(t)); err != nil {
			t.Errorf("error = %v, want none", err)
		}
	})
}

// Without keys nobody gets in, but whoever holds a token is told to come back, not to throw it
// away; and the start doesn't wait for the provider.
func TestProviderAwayAtStart(t *testing.T) {
	t.Parallel()
	p := newProvider(t, published(t, rsaKeys()[0], "ours", nil))
	stall := make(chan struct{})
	p.stall = stall
	cfg := local
	cfg.Secret, cfg.JWKSURL = nil, p.URL
	began := time.Now()
	a, err := New(t.Context(), cfg, NewPatients(deadPool(t)))
	if took := time.Since(began); err != nil || took > keysTimeout+10*time.Second {
		t.Fatalf("New: %v after %v, want no error within %v", err, took, keysTimeout)
	}
	a.now = func() time.Time { return epoch }
	a.remote.first = 20 * time.Millisecond
	token := remoteDraft(jwt.SigningMethodRS256, rsaKeys()[0], "ours").sign(t)
	_, err = a.Authenticate(t.Context(), token)
	if refusal := wantCode(t, err, booking.Unavailable); refusal.RetryAfter == 0 {
		t.Error("no RetryAfter")
	}
	_, err = a.Authenticate(t.Context(), "no.token.atall")
	wantCode(t, err, booking.Unauthenticated)

	start(t, a)
	p.mu.Lock()
	p.stall = nil
	p.mu.Unlock()
	close(stall)
	eventually(t, "the keys are fetched", func() bool {
		_, err := a.Authenticate(t.Context(), token)
		return err == nil
	})
}

// However many unknown kids come, the keys are fetched by the clock only.
func TestUnknownKidFlood(t *testing.T) {
	t.Parallel()
	p := newProvider(t, published(t, rsaKeys()[0], "ours", nil))
	a := newRemote(t, p.URL)
	start(t, a)
	var flood sync.WaitGroup
	for range 8 {
		flood.Go(func() {
			for range 50 {
				token := remoteDraft(jwt.SigningMethodRS256, rsaKeys()[1], rand.Text()).sign(t)
				if _, err := a.Authenticate(t.Context(), token); err == nil {
					t.Error("an unknown kid was accepted")
				}
			}
		})
	}
	flood.Wait()
	if n := p.count(); n != 1 {
		t.Errorf("fetched %d times, want once, at start", n)
	}
	a.remote.refresh(t.Context()) // the control: a fetch is counted
	if n := p.count(); n != 2 {
		t.Errorf("fetched %d times after one more, want 2", n)
	}
}

// start runs a until the test ends or stop is called; both wait for it.
func start(t *testing.T, a *Authenticator) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// eventually asks until the answer is yes.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}
