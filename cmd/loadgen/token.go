package main

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// secret signs the tokens. It guards nothing: the servers here live for a run, on this machine.
const secret = "load generator's own, worth nothing" //nolint:gosec // see above

// wallet has the tokens of patients, signed before they are needed. Subjects are a prefix and a
// number, so that who is registered already ("p", see data.go) can be told from who is not.
type wallet struct {
	prefix string
	tokens []string
}

// fill makes sure that there are n tokens.
func (w *wallet) fill(n int) error {
	from := len(w.tokens)
	if n <= from {
		return nil
	}
	w.tokens = append(w.tokens, make([]string, n-from)...)
	until := time.Now().Add(6 * time.Hour).Unix()
	workers := runtime.NumCPU()
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for part := range workers {
		wg.Go(func() {
			for i := from + part; i < n && errs[part] == nil; i += workers {
				w.tokens[i], errs[part] = sign(w.prefix+strconv.Itoa(i), until)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return fmt.Errorf("sign tokens: %w", err)
		}
	}
	return nil
}

func sign(subject string, until int64) (string, error) {
	return jwt.NewWithClaims(jwt.SigningMethodHS256, jwt.MapClaims{
		"iss": issuer, "aud": "openslot", "sub": subject, "role": "patient", "exp": until,
	}).SignedString([]byte(secret))
}
