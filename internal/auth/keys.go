package auth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/MicahParks/jwkset"
	"github.com/MicahParks/keyfunc/v3"
	"github.com/golang-jwt/jwt/v5"
)

const (
	// A new key works, and a withdrawn one stops, this long after it was published, at most (and
	// the time that a verified token is trusted, for the latter).
	keysEvery = time.Minute
	// Until the first keys are here, tokens wait for nothing else.
	firstKeysEvery = 5 * time.Second
	keysTimeout    = 3 * time.Second
	maxKeySet      = 1 << 20 // bytes
	maxKeys        = 100
)

// remoteMethods are the algorithms for keys that were fetched: none with a shared secret.
var remoteMethods = []string{"RS256", "PS256", "ES256", "ES384", "EdDSA"}

var (
	errNoKeys     = errors.New("no key set has been fetched yet")
	errUnknownKey = errors.New("no key for this token")
)

// remoteKeys holds the key set of a URL. A fetch replaces all of them, one that fails none.
type remoteKeys struct {
	url    string
	client *http.Client
	log    *slog.Logger
	every  time.Duration
	first  time.Duration // every, as long as nothing has been fetched
	stored jwkset.Storage
	find   keyfunc.Keyfunc
	loaded atomic.Bool
}

func checkKeysURL(text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return errors.New("the URL of the key set must begin with https:// or http:// and a host")
	}
	return nil
}

func newRemoteKeys(url string, log *slog.Logger) *remoteKeys {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // one request a minute
	r := &remoteKeys{url: url, log: log, every: keysEvery, first: firstKeysEvery,
		client: &http.Client{Transport: transport, Timeout: keysTimeout, CheckRedirect: noRedirect}, stored: jwkset.NewMemoryStorage()}
	// A key for encryption is no key to verify with. The options are complete: no error.
	r.find, _ = keyfunc.New(keyfunc.Options{Storage: r.stored, UseWhitelist: []jwkset.USE{"", jwkset.UseSig}})
	return r
}

// noRedirect takes the keys from the address that was configured and from nowhere else: a
// redirect could lead from https to http.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// keyFor finds the token's key among those at hand, by kid where the token has one.
func (r *remoteKeys) keyFor(token *jwt.Token) (any, error) {
	if !r.loaded.Load() {
		return nil, errNoKeys
	}
	key, err := r.find.Keyfunc(token)
	if err != nil {
		return nil, errUnknownKey // the library's error has the kid in it, as long as it is
	}
	return key, nil
}

// run fetches the keys by the clock until ctx ends.
func (r *remoteKeys) run(ctx context.Context) {
	for {
		wait := r.every
		if !r.loaded.Load() {
			wait = r.first
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			r.refresh(ctx)
		}
	}
}

// refresh fetches the keys once. A well-formed set is obeyed, an empty one included: that is how a
// provider in trouble withdraws all of them. Anything else leaves the keys as they are.
func (r *remoteKeys) refresh(ctx context.Context) {
	keys, skipped, err := r.fetch(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return
	case err != nil:
		r.log.WarnContext(ctx, "fetching the key set failed, the keys at hand stay in use",
			"error", err, "haveKeys", r.loaded.Load())
		return
	case len(keys) == 0 || skipped > 0:
		r.log.WarnContext(ctx, "the key set has keys that can't be used", "usable", len(keys), "unusable", skipped)
	}
	if err := r.stored.KeyReplaceAll(ctx, keys); err != nil {
		r.log.ErrorContext(ctx, "storing the key set failed", "error", err)
		return
	}
	r.loaded.Store(true)
}

func (r *remoteKeys) fetch(ctx context.Context) (keys []jwkset.JWK, skipped int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, 0, fmt.Errorf("status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxKeySet+1))
	if err != nil {
		return nil, 0, err
	}
	var set struct {
		Keys *[]json.RawMessage `json:"keys"`
	}
	switch {
	case len(body) > maxKeySet:
		return nil, 0, errors.New("the key set is too large")
	case json.Unmarshal(body, &set) != nil || set.Keys == nil:
		return nil, 0, errors.New("the answer is no key set")
	case len(*set.Keys) > maxKeys:
		return nil, 0, fmt.Errorf("the key set has more than %d keys", maxKeys)
	}
	// One by one: a key of an unknown kind doesn't spoil the others. Private parts and shared
	// secrets are not read.
	for _, raw := range *set.Keys {
		key, err := jwkset.NewJWKFromRawJSON(raw, jwkset.JWKMarshalOptions{}, jwkset.JWKValidateOptions{})
		if err != nil {
			skipped++
			continue
		}
		keys = append(keys, key)
	}
	return keys, skipped, nil
}
