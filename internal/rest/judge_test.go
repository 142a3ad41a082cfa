package rest

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	"github.com/pb33f/libopenapi-validator/errors"
)

// judge holds requests and answers against the document, by a library that knows OpenAPI 3.1. It is
// the transport of the tests' clients: nothing in these tests is sent or answered without it.
type judge struct {
	t testing.TB
	validator.Validator
	next http.RoundTripper
}

// newValidator reads the document. Building one takes a while, and it may be used by all tests at once.
func newValidator(text []byte) (validator.Validator, error) {
	parsed, err := libopenapi.NewDocument(text)
	if err != nil {
		return nil, err
	}
	v, errs := validator.NewValidator(parsed, config.WithFormatAssertions(), config.WithStrictMode(),
		config.WithStrictIgnoredHeadersExtra("Accept", "Content-Encoding", "Origin", "If-None-Match", requestIDHeader, "Access-Control-Request-Method",
			"Vary", "X-Content-Type-Options", "Cache-Control", "Www-Authenticate", "Allow", "X-Accel-Buffering", "Transfer-Encoding",
			"Access-Control-Allow-Origin", "Access-Control-Expose-Headers"),
		config.WithoutSecurityValidation())
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return v, nil
}

var ourValidator = sync.OnceValues(func() (validator.Validator, error) { return newValidator(document) })

func newJudge(t testing.TB, next http.RoundTripper) *judge {
	t.Helper()
	v, err := ourValidator()
	if err != nil {
		t.Fatal(err)
	}
	return &judge{t, v, next}
}

// unjudged are answers that the document leaves to HTTP, or that are no operation's.
func unjudged(r *http.Request, status int) bool {
	return r.Method == http.MethodHead || r.Method == http.MethodOptions || status == http.StatusMethodNotAllowed ||
		strings.HasPrefix(r.URL.Path, "/api/openapi") || r.URL.Path == "/api/"
}

// RoundTrip sends a request. What the document forbids must be refused, what is taken must be as the
// document says, and so must be every answer.
func (j *judge) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	asked := r.Clone(r.Context())
	asked.Body = io.NopCloser(bytes.NewReader(body))
	if len(body) == 0 {
		asked.Body = nil
	}
	response, err := j.next.RoundTrip(r)
	if err != nil || unjudged(r, response.StatusCode) {
		return response, err
	}
	if strings.HasPrefix(response.Header.Get("Content-Type"), mediaEvents) {
		return response, nil // its events are checked by their test
	}
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(answer))
	valid, faults := j.ValidateHttpRequestSync(asked)
	taken := response.StatusCode < 300 || response.StatusCode == http.StatusNotModified
	if taken && !valid {
		j.t.Errorf("%s %s (%s) was taken, and the document forbids it: %s", r.Method, r.URL, body, words(faults))
	}
	if unknownPath(faults) {
		return response, nil
	}
	copied := *response
	copied.Body = io.NopCloser(bytes.NewReader(answer))
	asked.Body = io.NopCloser(bytes.NewReader(body))
	if valid, faults := j.ValidateHttpResponse(asked, &copied); !valid {
		j.t.Errorf("%s %s (%s) was answered by %d %.500s, which the document does not know: %s", r.Method, r.URL, body, response.StatusCode, answer, words(faults))
	}
	return response, nil
}

func unknownPath(faults []*errors.ValidationError) bool {
	for _, f := range faults {
		if f.ValidationType == "path" {
			return true
		}
	}
	return false
}

func words(faults []*errors.ValidationError) string {
	var all []string
	for _, f := range faults {
		all = append(all, f.Message+": "+f.Reason)
		for _, s := range f.SchemaValidationErrors {
			all = append(all, s.Reason)
		}
	}
	return strings.Join(all, "; ")
}

// The document is a good one, and a fault in it is found.
func TestDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		change func(string) string
		valid  bool
	}{
		"AsItIs":    {func(s string) string { return s }, true},
		"NoVersion": {func(s string) string { return strings.Replace(s, `version: "1"`, `x-version: "1"`, 1) }, false},
		"BadPlace":  {func(s string) string { return strings.Replace(s, "in: path", "in: nowhere", 1) }, false},
	} {
		v, err := newValidator([]byte(tt.change(string(text))))
		valid, why := err == nil, fmt.Sprint(err)
		if valid {
			var faults []*errors.ValidationError
			valid, faults = v.ValidateDocument()
			why = words(faults)
		}
		if valid != tt.valid {
			t.Errorf("%s: valid = %v: %s", name, valid, why)
		}
	}
}
