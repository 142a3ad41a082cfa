// Package auth tells who asks: from a signed token to a [booking.Actor].
//
//	Authorization: Bearer … ──▶ Middleware ──▶ Authenticate ──▶ Identity in the context
//	                                             │   keys: a secret, or a key set fetched by URL
//	                                             └─▶ Patients: the row of whoever signs in
//
// No token is anonymous; a token that is sent must be valid. Every refusal of a token looks the
// same to the caller, so that nobody learns by trying; the cause is in the error for the log and
// carries nothing of the token.
//
// The package owns the table patient: one row per (issuer, subject). Patients who sign in get
// theirs before the first request goes on; staff and partners register others. One who is blocked
// is refused with every token, good as it may be: see [Patients.Block].
//
// Keys are fetched by a clock, never because a token asks for it: no token causes a call to
// anybody, and with the provider away the keys at hand go on working.
//
// An [Authenticator] and a [Patients] may be used by any number of goroutines at once.
package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/golang-jwt/jwt/v5"
	lru "github.com/hashicorp/golang-lru/v2"

	"openslot/internal/booking"
)

const (
	minSecret     = 32 // bytes, as long as the hash
	maxLeeway     = time.Minute
	defaultLeeway = 30 * time.Second

	// A verified token is taken at its word for so long, then verified again: a key that was
	// withdrawn stops working after this and one fetch of the keys.
	trustFor    = time.Minute
	trustedSize = 10_000 // tokens, times two
)

// Config says which tokens are good.
type Config struct {
	Issuer   string        // iss, exactly; not of the form that registered patients have
	Audience string        // must be among aud
	Secret   []byte        // for development: verifies HS256; at least 32 bytes. Or:
	JWKSURL  string        // where the key set is; verifies RS256, PS256, ES256, ES384, EdDSA
	Leeway   time.Duration // for clocks that differ; 0 = 30 s, at most 60 s
	Log      *slog.Logger  // nil = the default
}

// Identity is who asks, and until when that holds.
type Identity struct {
	Actor     booking.Actor
	ExpiresAt time.Time // from here on the token is refused; zero for nobody
}

// Authenticator verifies tokens. Make it with [New]; [Authenticator.Run] keeps its keys fresh.
type Authenticator struct {
	cfg      Config
	now      func() time.Time
	methods  []string // algorithms
	rules    *jwt.Validator
	heads    *lru.Cache[string, *jwt.Token] // headers of tokens that were good
	keyFor   jwt.Keyfunc
	remote   *remoteKeys // nil with a secret
	patients *Patients
	trusted  *cache[[sha256.Size]byte, Identity]
}

// New makes an Authenticator whose patients have their rows in patients. With a JWKSURL it tries
// to fetch the keys, for 3 s at most: without them it starts all the same, and answers UNAVAILABLE
// to tokens until Run has got them. The error says what is wrong with cfg.
func New(ctx context.Context, cfg Config, patients *Patients) (*Authenticator, error) {
	cfg.Leeway = cmp.Or(cfg.Leeway, defaultLeeway)
	cfg.Log = cmp.Or(cfg.Log, slog.Default())
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	a := &Authenticator{cfg: cfg, now: time.Now, patients: patients}
	a.trusted = newCache[[sha256.Size]byte, Identity](trustedSize)
	var err error
	if a.heads, err = lru.New[string, *jwt.Token](headsSize); err != nil {
		panic(err) // of a size below 1
	}
	a.methods = []string{jwt.SigningMethodHS256.Name} // per source of keys: a public key must never verify an HMAC
	a.keyFor = func(*jwt.Token) (any, error) { return cfg.Secret, nil }
	if cfg.JWKSURL != "" {
		a.methods = remoteMethods
		a.remote = newRemoteKeys(cfg.JWKSURL, cfg.Log)
		a.keyFor = a.remote.keyFor
		a.remote.refresh(ctx)
	}
	a.rules = jwt.NewValidator(
		jwt.WithIssuer(cfg.Issuer),
		jwt.WithAudience(cfg.Audience),
		jwt.WithLeeway(cfg.Leeway),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithTimeFunc(func() time.Time { return a.now() }),
	)
	return a, nil
}

func (c Config) check() error {
	switch {
	case c.Issuer == "" || utf8.RuneCountInString(c.Issuer) > maxIdentity:
		return fmt.Errorf("the token issuer needs 1 to %d characters", maxIdentity)
	case strings.HasPrefix(c.Issuer, "organization:") || strings.HasPrefix(c.Issuer, "partner:"):
		return errors.New("the token issuer must not begin with organization: or partner:, which name whoever registered a patient")
	case c.Audience == "":
		return errors.New("the token audience is missing")
	case len(c.Secret) == 0 && c.JWKSURL == "":
		return errors.New("a secret or the URL of a key set is needed, and neither is set")
	case len(c.Secret) > 0 && c.JWKSURL != "":
		return errors.New("both a secret and the URL of a key set are set: take one away")
	case c.JWKSURL == "" && len(c.Secret) < minSecret:
		return fmt.Errorf("the secret needs %d bytes at least, it has %d", minSecret, len(c.Secret))
	case c.Leeway < 0 || c.Leeway > maxLeeway:
		return fmt.Errorf("the leeway must be between 0 and %v", maxLeeway)
	}
	return checkKeysURL(c.JWKSURL)
}

// Run keeps the keys fresh, and what is known of blocked patients, until ctx ends; then it returns nil.
func (a *Authenticator) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	if a.remote != nil {
		parts.Go(func() { a.remote.run(ctx) })
	}
	a.patients.blocks.run(ctx, func(err error) {
		a.cfg.Log.WarnContext(ctx, "blocked patients could not be read, trying again", "error", err)
	})
	parts.Wait()
	return nil
}

// Authenticate tells who holds token, a bare JWT. A patient who is new gets their row first. The
// refusals: UNAUTHENTICATED, always in the same words; FORBIDDEN for a patient who is blocked;
// UNAVAILABLE where there are no keys yet or the database is away, OVERLOADED.
func (a *Authenticator) Authenticate(ctx context.Context, token string) (Identity, error) {
	if err := checkForm(token); err != nil {
		return Identity{}, refused(err)
	}
	hash := sha256.Sum256([]byte(token))
	now := a.now()
	if identity, ok := a.trusted.at(hash, now); ok {
		return a.admitted(identity)
	}
	c, err := a.verify(token)
	if err != nil {
		return Identity{}, refused(err)
	}
	actor, err := c.actor()
	if err != nil {
		return Identity{}, refused(err)
	}
	if actor.Kind == booking.Patient {
		actor.PatientID, err = a.patients.signIn(ctx, identity{a.cfg.Issuer, actor.Subject}, c.contact)
		if err != nil {
			return Identity{}, err
		}
	}
	known := Identity{Actor: actor, ExpiresAt: c.ExpiresAt.Add(a.cfg.Leeway)}
	until := now.Add(trustFor)
	if known.ExpiresAt.Before(until) {
		until = known.ExpiresAt
	}
	a.trusted.put(hash, known, until)
	return a.admitted(known)
}

// refused is the one answer to every token that is not good.
func refused(cause error) error {
	if errors.Is(cause, errNoKeys) {
		return &booking.Error{Code: booking.Unavailable, RetryAfter: 5 * time.Second, Cause: errNoKeys,
			Message: "Sign-in can't be checked right now. Try again in a moment."}
	}
	return &booking.Error{Code: booking.Unauthenticated, Cause: cause,
		Message: "The access token is not valid. Sign in again."}
}

type identityKey struct{}

// WithIdentity returns a context in which identity asks.
func WithIdentity(ctx context.Context, identity Identity) context.Context {
	return context.WithValue(ctx, identityKey{}, identity)
}

// IdentityFrom is who asks in ctx; the zero Identity is nobody.
func IdentityFrom(ctx context.Context) Identity {
	identity, _ := ctx.Value(identityKey{}).(Identity)
	return identity
}

// ActorFrom is who asks in ctx; the zero Actor is anonymous.
func ActorFrom(ctx context.Context) booking.Actor { return IdentityFrom(ctx).Actor }
