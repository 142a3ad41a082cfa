package http1

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"
)

// echo answers with all that a handler can know of a request.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	w.Header().Set("X-Seen", r.Method)
	switch r.Header.Get("X-Answer") {
	case "304":
		w.WriteHeader(http.StatusNotModified)
		return
	case "nothing":
		return
	case "refused":
		w.Header()["Content-Type"] = []string{"text/x"}
		w.Header().Set("X-Lines", "one\r\nTwo: 2")
		w.WriteHeader(499)
		w.Header().Set("X-Late", "is not sent")
	}
	fmt.Fprintf(w, "%s %s %s %q %+v\n", r.Method, r.RequestURI, r.Proto, r.Host, *r.URL)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(w, "%s: %q\n", name, r.Header[name])
	}
	fmt.Fprintf(w, "%d %q %v\n", r.ContentLength, body, err)
}

// talk sends pieces, one after the other, and returns the answers up to the end of the connection.
func talk(l *handover, pieces ...string) (answers []string) {
	c := l.dial()
	defer c.Close()
	go func() {
		for _, p := range pieces {
			if _, err := io.WriteString(c, p); err != nil {
				return // it is closed already
			}
		}
	}()
	for in := bufio.NewReader(c); ; {
		response, err := http.ReadResponse(in, nil)
		if err != nil { // the end, whatever it is called
			return answers
		}
		var body []byte
		if response.Header.Get("X-Seen") != http.MethodHead {
			body, err = io.ReadAll(response.Body)
		}
		for _, name := range []string{"Date", "Content-Length"} {
			if name == "Date" || len(body) > 0 { // of a long answer net/http says no length
				response.Header.Del(name)
			}
		}
		answers = append(answers, fmt.Sprintf("%s %v %v %v\n%s", response.Status, response.Header, response.Close, err, body))
	}
}

var errNotSame = errors.New("the answers are not those of net/http")

// same sends the same to both and compares the answers.
func same(theirs, ours *handover, pieces ...string) error {
	want, got := talk(theirs, pieces...), talk(ours, pieces...)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%w: to %q\n%q\nnet/http says\n%q", errNotSame, pieces, got, want)
	}
	return nil
}

// draw makes something like a request: right, or wrong in one of the ways that have been used to have
// two servers read two things.
func draw(t *rapid.T) string {
	pick := func(label string, usual string, others ...string) string {
		if rapid.IntRange(0, 15).Draw(t, label+"?") > 0 {
			return usual
		}
		return rapid.SampledFrom(others).Draw(t, label)
	}
	end := pick("end", "\r\n", "\n", "\r", "\r\n ", "\r\n\t", "\r\r\n")
	body := rapid.SampledFrom([]string{"", "x", `{"query":"{ a }"}`, "GET /smuggled HTTP/1.1\r\nHost: b\r\n\r\n", strings.Repeat("long", 2100)}).Draw(t, "body")
	head := pick("method", "POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "post", "BREW", "", " GET", "\r\nPOST") + pick("gap", " ", "  ", "\t", "") +
		pick("target", "/graphql?query=%7B+a+%7D", "/", "//a/b", "/a//b", "/a/../b", "*", "http://h/p?q", "/%41", "/a?b#c", "/a?", "/a??b=/", "/ä", "a", "/a;b:c@d", "/a b", "") +
		pick("gap", " ", "  ", "") + pick("version", "HTTP/1.1", "HTTP/1.0", "HTTP/2.0", "HTTP/1.2", "HTTP/01.1", "http/1.1", "HTTP/1.1 ", "") + end +
		pick("host", "Host: a.example:80\r\n", "host: [::1]:80\r\n", "", "Host: a\r\nHost: b\r\n", "Host:\r\n", "Host: a b\r\n", "Host: a\r\nHost: a\r\n", "Host : a\r\n", "Host: a,b\r\n")
	for range rapid.IntRange(0, 4).Draw(t, "fields") {
		head += pick("name", "X-Some-Thing", "x-SOME-thing", "Content-Type", "Connection", "Upgrade", "Expect", "Pragma", "Trailer", "TE",
			"Proxy-Connection", "Keep-Alive", "X-Answer", "X Y", "", " X", "X\x00", "Ä", "Content-Length ", "X_y", "Authorization") +
			pick("colon", ": ", ":", " : ", ":  \t", "") +
			pick("value", "something", "", "keep-alive", "Keep-Alive", "close", "keep-alive, close", "websocket", "100-continue", "no-cache", "304", "nothing",
				"refused", "a\tb", "ä", "\x00", "a\rb", "  a  ", "trailers", "a, b") + end
	}
	length := len(body)
	head += pick("length", fmt.Sprintf("Content-Length: %d\r\n", length), "", fmt.Sprintf("content-length:%d\r\n", length), fmt.Sprintf("Content-Length: +%d\r\n", length),
		fmt.Sprintf("Content-Length: 0%d\r\n", length), fmt.Sprintf("Content-Length: %d\r\nContent-Length: %d\r\n", length, length),
		fmt.Sprintf("Content-Length: %d\r\nContent-Length: 0\r\n", length), fmt.Sprintf("Content-Length: 0\r\nContent-Length: %d\r\n", length),
		fmt.Sprintf("Content-Length: %d\r\n", length+1), fmt.Sprintf("Content-Length: %d, %d\r\n", length, length), "Content-Length: -1\r\n", "Content-Length:\r\n",
		"Content-Length: 99999999999999999999\r\n", "Transfer-Encoding: chunked\r\n", fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n", length),
		"Transfer-Encoding: xchunked\r\n", "Transfer-Encoding:\tchunked\r\n", "Transfer-Encoding: identity\r\n", "Transfer-Encoding : chunked\r\n")
	return head + pick("end", "\r\n", "\n", "", "\r\n\r\n", "\r") + body
}

// Whatever comes, the answers are those that net/http gives alone, from a handler that has seen the same:
// several requests in a row, in pieces as they may arrive, up to the first that ends the connection.
func TestSame(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.Custom(draw), 1, 3).Draw(r, "requests"), "")
		at := rapid.IntRange(1, len(text)-1).Draw(r, "cut")
		var err error
		synctest.Test(t, func(t *testing.T) {
			theirs, ours := serve(t, newHTTP(t, echo)), serve(t, &Server{HTTP: newHTTP(t, echo)})
			err = same(theirs, ours, text[:at], text[at:])
		})
		if err != nil {
			r.Fatal(err)
		}
	})
}

// The comparison above sees a handler that has seen something else, and an answer that is another.
func TestSameControl(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]http.HandlerFunc{
		"a field is lost": func(w http.ResponseWriter, r *http.Request) { r.Header.Del("X-A"); echo(w, r) },
		"a body is cut":   func(w http.ResponseWriter, r *http.Request) { r.Body = http.NoBody; echo(w, r) },
		"a field more":    func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X-B", "1"); echo(w, r) },
		"no answer":       func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, ours := serve(t, newHTTP(t, echo)), serve(t, &Server{HTTP: newHTTP(t, other)})
			err := same(theirs, ours, "POST / HTTP/1.1\r\nHost: a\r\nX-A: 1\r\nContent-Length: 1\r\n\r\nx")
			if !errors.Is(err, errNotSame) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// What is usual is plain, or nothing would be gained; what has two readings never is.
func TestPlain(t *testing.T) {
	t.Parallel()
	const get, post = "GET /graphql HTTP/1.1\r\nHost: a\r\n", "POST /graphql HTTP/1.1\r\nHost: a\r\n"
	for text, want := range map[string]verdict{
		get + "\r\n": plain,
		get + "accept-encoding: gzip, deflate, br\r\nConnection: keep-alive\r\n\r\n":                            plain,
		"GET /api/doctors/1/slots?date=2026-10-12&x=%20 HTTP/1.1\r\nhost: localhost:8080\r\n\r\n":               plain,
		"DELETE /api/appointments/1 HTTP/1.1\r\nHost: a\r\n\r\n":                                                plain,
		post + "Authorization: Bearer a.b-c_d\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}": plain,
		post + "Content-Length: 2\r\n\r\n{}GET":                                                                 plain,
		post + "Content-Length: 2\r\n\r\n{":                                                                     incomplete,
		post:                                                                                                    incomplete,
		post[:30]:                                                                                               incomplete,
		"":                                                                                                      incomplete,
		post + "Content-Length: 0\r\n\r\n":                                                                      plain,
		post + "Content-Length: 00\r\n\r\n":                                                                     other,
		post + "Content-Length: +2\r\n\r\n":                                                                     other,
		post + "Content-Length: 2 2\r\n\r\n":                                                                    other,
		post + "Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}":                                               other,
		post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0":                                       other,
		post + "Transfer-Encoding : chunked\r\n\r\n":                                                            other,
		post + "Expect: 100-continue\r\nContent-Length: 2\r\n\r\n":                                              other,
		get + "Connection: close\r\n\r\n":                                                                       other,
		get + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n":                                               other,
		get + "Host: b\r\n\r\n":                                                                                 other,
		get + " folded: 1\r\n\r\n":                                                                              other,
		get + "X: a\nTransfer-Encoding: chunked\r\n\r\n":                                                        other,
		get + "X: a\r\n\n":                                                                                      other,
		"\x16\x03\x01\x00":                                                                                      other,
		"GET / HTTP/1.1\n":                                                                                      other,
		"GET / HTTP/1.0\r\nHost: a\r\n\r\n":                                                                     other,
		"GET / HTTP/1.1\r\n\r\n":                                                                                other,
		"PRI * HTTP/2.0\r\n\r\n":                                                                                other,
	} {
		if _, got := parse([]byte(text)); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}
