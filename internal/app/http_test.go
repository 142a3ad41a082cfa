package app

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"openslot/internal/devenv"
)

// through sends a request through the outer handlers to a mux that has handler at /known, and
// returns the answer and the lines that were logged.
func through(t *testing.T, handler http.HandlerFunc, request *http.Request) (*http.Response, []map[string]any) {
	t.Helper()
	var log bytes.Buffer
	mux := http.NewServeMux()
	mux.HandleFunc("/known", handler)
	recorder := httptest.NewRecorder()
	withRequestID(withLog(slog.New(slog.NewJSONHandler(&log, nil)), mux)).ServeHTTP(recorder, request)
	var lines []map[string]any
	for line := range strings.Lines(log.String()) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("log line %q: %v", line, err)
		}
		lines = append(lines, fields)
	}
	return recorder.Result(), lines
}

func TestRequestID(t *testing.T) {
	tests := []struct {
		name, sent string
		kept       bool
	}{
		{"Sane", "abc-1.2_3", true},
		{"Longest", strings.Repeat("a", 64), true},
		{"TooLong", strings.Repeat("a", 65), false},
		{"None", "", false},
		{"LineBreak", "a\r\nSet-Cookie: b", false},
		{"Quote", `a"b`, false},
		{"Unicode", "ä", false},
		{"Spaces", "a b", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			request := httptest.NewRequest(http.MethodGet, "/known", nil)
			request.Header.Set("X-Request-Id", tt.sent)
			var inside string
			answer, lines := through(t, func(_ http.ResponseWriter, r *http.Request) { inside = r.Header.Get("X-Request-Id") }, request)
			got := answer.Header.Get("X-Request-Id")
			if (got == tt.sent) != tt.kept || !saneID.MatchString(got) {
				t.Errorf("sent %q, answered %q; kept should be %v", tt.sent, got, tt.kept)
			}
			if inside != got || len(lines) != 1 || lines[0]["requestId"] != got {
				t.Errorf("answered %q, but the handler saw %q and the log has %v", got, inside, lines)
			}
		})
	}
}

func TestLog(t *testing.T) {
	request := httptest.NewRequest(http.MethodPost, "/known?email=canary@example.org", strings.NewReader("canary"))
	request.Header.Set("Authorization", "Bearer canary")
	request.Header.Set("X-Request-Id", "r1")
	_, lines := through(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "canary")
	}, request)
	if len(lines) != 1 {
		t.Fatalf("logged %v", lines)
	}
	for _, key := range []string{"time", "us"} {
		if _, there := lines[0][key]; !there {
			t.Errorf("no %s in %v", key, lines[0])
		}
		delete(lines[0], key)
	}
	want := map[string]any{"level": "INFO", "msg": "request", "method": "POST", "path": "/known", "status": 418.0, "bytes": 6.0, "requestId": "r1"}
	if diff := cmp.Diff(want, lines[0]); diff != "" {
		t.Errorf("log line (-want +got):\n%s", diff)
	}
}

// TestLogForeign: what a stranger makes up does not get into the log.
func TestLogForeign(t *testing.T) {
	_, lines := through(t, http.NotFound, httptest.NewRequest("CANARY", "/canary@example.org", nil))
	if len(lines) != 1 || lines[0]["path"] != "other" || lines[0]["method"] != "other" || lines[0]["status"] != 404.0 {
		t.Errorf("logged %v", lines)
	}
}

func TestPanic(t *testing.T) {
	t.Run("BeforeAnswer", func(t *testing.T) {
		request := httptest.NewRequest(http.MethodGet, "/known", nil)
		request.Header.Set("X-Request-Id", "r1")
		answer, lines := through(t, func(http.ResponseWriter, *http.Request) { panic("secret") }, request)
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		var told struct {
			Errors []struct {
				Message    string
				Extensions struct{ Code, RequestID string }
			}
		}
		if err := json.Unmarshal(body, &told); err != nil || len(told.Errors) != 1 {
			t.Fatalf("answer %s: %v", body, err)
		}
		if answer.StatusCode != 500 || told.Errors[0].Extensions.Code != "INTERNAL" || told.Errors[0].Extensions.RequestID != "r1" ||
			strings.Contains(string(body), "secret") {
			t.Errorf("answer %d %s", answer.StatusCode, body)
		}
		if len(lines) != 2 || lines[0]["panic"] != "secret" || lines[1]["status"] != 500.0 {
			t.Errorf("logged %v", lines)
		}
	})
	t.Run("InAnswer", func(t *testing.T) {
		answer, lines := through(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "begun")
			panic("late")
		}, httptest.NewRequest(http.MethodGet, "/known", nil))
		body, err := io.ReadAll(answer.Body)
		if err != nil || string(body) != "begun" || len(lines) != 2 {
			t.Errorf("answer %q, %v; logged %v", body, err, lines)
		}
	})
	t.Run("Abort", func(t *testing.T) {
		defer func() {
			if recover() != http.ErrAbortHandler { //nolint:errorlint // as net/http does
				t.Error("http.ErrAbortHandler did not get through to the server")
			}
		}()
		through(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, httptest.NewRequest(http.MethodGet, "/known", nil))
	})
}

// Below /api/ a request is logged by its pattern: the path may name a patient. Who is refused before
// REST sees the request hears of it in the shape of REST.
func TestREST(t *testing.T) {
	t.Parallel()
	i := serve(t, devenv.NewDB(t).URL, nil)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, i.url+"/api/patients/anna-secret", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	send := func() (status int, kind string) {
		t.Helper()
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		return response.StatusCode, response.Header.Get("Content-Type")
	}
	const problem = "application/problem+json; charset=utf-8"
	if status, kind := send(); status != 401 || kind != problem {
		t.Errorf("without a token: %d %s", status, kind)
	}
	request.Body = io.NopCloser(strings.NewReader("{}"))
	request.Header.Set("Origin", "https://evil.example")
	if status, kind := send(); status != 403 || kind != problem {
		t.Errorf("from a foreign page: %d %s", status, kind)
	}
	waitFor(t, "the log", func() bool { return strings.Count(i.log.String(), `"path":"/api/`) == 2 })
	if log := i.log.String(); strings.Contains(log, "anna-secret") || !strings.Contains(log, `"path":"/api/patients/{subject}"`) {
		t.Errorf("logged: %s", log)
	}
}
