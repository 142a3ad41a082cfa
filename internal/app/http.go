package app

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime/debug"
	"strings"
	"time"

	"openslot/internal/booking"
	"openslot/internal/rest"
)

// requestIDHeader names one request, from the client through every log line to the answer.
const requestIDHeader = "X-Request-Id"

// saneID is what is accepted as a request id of a client: it goes into logs and answers.
var saneID = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// withRequestID makes sure that a request has an id, its own if that is sane, in its header and
// in the answer's.
func withRequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(requestIDHeader)
		if !saneID.MatchString(id) {
			id = rand.Text()
			r.Header.Set(requestIDHeader, id)
		}
		w.Header().Set(requestIDHeader, id)
		next.ServeHTTP(w, r)
	})
}

// requestLine is the message of the line that every request has in the log.
const requestLine = "request"

// withLog logs every request once it is answered, and answers those that panicked. The line has
// no query string, no body and nothing of the token: they can say who someone is. For the same
// reason a path is logged only where it is one of ours.
func withLog(log *slog.Logger, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		answer := &answer{ResponseWriter: w}
		defer func() {
			level := slog.LevelInfo
			if problem := recover(); problem != nil {
				if problem == http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
					panic(problem)
				}
				level = slog.LevelError
				log.Error("panic", "panic", problem, "requestId", r.Header.Get(requestIDHeader), "stack", string(debug.Stack()))
				answer.fail(r)
			}
			if !log.Enabled(r.Context(), level) {
				return
			}
			line := slog.NewRecord(time.Now(), level, requestLine, 0) // without the place in our source, which nobody is told
			line.AddAttrs(
				slog.String("method", method(r)),
				slog.String("path", route(r)),
				slog.Int("status", answer.code()),
				slog.Int64("bytes", answer.bytes),
				slog.Int64("us", line.Time.Sub(start).Microseconds()),
				slog.String("requestId", r.Header.Get(requestIDHeader)))
			_ = log.Handler().Handle(r.Context(), line)
		}()
		next.ServeHTTP(answer, r)
	})
}

// route is the path of a request that the mux knew, else "other". Below /api/ it is the pattern that
// it matched: the path names things, a partner's patient among them.
func route(r *http.Request) string {
	switch {
	case r.Pattern == "":
		return "other"
	case strings.HasPrefix(r.Pattern, "/api/"):
		return r.Pattern
	}
	return r.URL.Path
}

// method is the request's method, if it is one that anybody uses: it may be any word.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodOptions, http.MethodConnect, http.MethodTrace:
		return r.Method
	}
	return "other"
}

// answer remembers what was answered.
type answer struct {
	http.ResponseWriter
	status int // 0 = not written yet
	bytes  int64
}

// WriteHeader remembers the status.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= 200 {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (a *answer) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

// Hijack hands the connection over, to a websocket.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err == nil {
		a.status = http.StatusSwitchingProtocols
	}
	return conn, rw, err
}

// Unwrap lets http.ResponseController reach the rest.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) code() int {
	if a.status == 0 {
		return http.StatusOK // what net/http sends for a handler that wrote nothing
	}
	return a.status
}

// fail answers INTERNAL, unless the answer has begun.
func (a *answer) fail(r *http.Request) {
	if a.status == 0 {
		refuse(a, r, http.StatusInternalServerError, booking.Internal, "Something went wrong on our side.")
	}
}

// refuse answers a request that never comes as far as its transport, in the transport's shape.
func refuse(w http.ResponseWriter, r *http.Request, status int, code booking.Code, message string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		rest.Refuse(w, r, booking.Refuse(code, "%s", message))
		return
	}
	body, err := json.Marshal(map[string]any{"errors": []any{map[string]any{"message": message, "extensions": map[string]any{
		"code": code, "requestId": r.Header.Get(requestIDHeader)}}}})
	if err != nil {
		panic(err) // strings alone
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
