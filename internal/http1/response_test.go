package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// What is flushed arrives before the handler ends; what is long does not wait in memory.
func TestFlush(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	s := &Server{HTTP: newHTTP(t, func(w http.ResponseWriter, _ *http.Request) {
		control := http.NewResponseController(w)
		err := errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Now().Add(time.Minute)))
		w.Header().Set("Content-Length", "8")
		io.WriteString(w, "one,") //nolint:errcheck // found out by Flush
		if err = errors.Join(err, control.Flush()); err != nil {
			t.Error(err)
		}
		<-goOn
		io.WriteString(w, "two,") //nolint:errcheck // found out by the client
		w.Write(bytes.Repeat([]byte("x"), flushFrom))
		<-goOn
		io.WriteString(w, "end") //nolint:errcheck // found out by the client
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, s, l)
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, get) //nolint:errcheck // a pipe
	in := bufio.NewReader(c)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != want {
			t.Fatalf("%.20q, %v", got, err)
		}
	}
	expect("one,")
	goOn <- struct{}{}
	expect("two," + strings.Repeat("x", flushFrom))
	goOn <- struct{}{}
	expect("end")
	if rest, err := io.ReadAll(response.Body); len(rest) > 0 || err != nil || response.ContentLength >= 0 {
		t.Errorf("then %q, %v, with a length of %d", rest, err, response.ContentLength)
	}
	go io.WriteString(c, get) //nolint:errcheck // a pipe
	if response, err = http.ReadResponse(in, nil); err != nil {
		t.Fatalf("the next request: %v", err)
	}
	expect("one,")
	close(goOn)
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Error(err)
	}
}

// A client that has gone is told to who goes on writing.
func TestFlushGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testFlushGone)
}

func testFlushGone(t *testing.T) {
	failed := make(chan error)
	_, l := ours(t, func(w http.ResponseWriter, _ *http.Request) {
		for {
			if err := http.NewResponseController(w).Flush(); err != nil {
				_, again := w.Write([]byte("x"))
				failed <- errors.Join(again, err)
				return
			}
			w.Write([]byte("x")) //nolint:errcheck // Flush finds out
		}
	})
	c := l.dial()
	io.WriteString(c, get) //nolint:errcheck // a pipe
	c.Read(make([]byte, 1))
	c.Close()
	if err := <-failed; !errors.Is(err, io.ErrClosedPipe) {
		t.Error(err)
	}
}

// An answer that has no body gets none, and says nothing of its length.
func TestNoBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testNoBody)
}

func testNoBody(t *testing.T) {
	_, l := ours(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(map[string]int{"/204": 204, "/304": 304}[r.URL.Path])
		if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) {
			t.Error(err)
		}
	})
	c := l.dial()
	for _, status := range []string{"204", "304"} {
		response := ask(t, c, strings.Replace(get, "/", "/"+status, 1))
		if !strings.HasPrefix(response.Status, status) || len(response.Header) != 1 {
			t.Errorf("%s %v", response.Status, response.Header)
		}
	}
}

func BenchmarkRequest(b *testing.B) {
	const request = "POST /graphql HTTP/1.1\r\nHost: localhost:8080\r\nUser-Agent: app/1.0\r\nAccept: application/json\r\n" +
		"Content-Type: application/json\r\nAuthorization: Bearer abcdefghijklmnopqrstuvwxyz\r\nContent-Length: 300\r\n\r\n"
	in := append([]byte(request), make([]byte, 300)...)
	b.ReportAllocs()
	for b.Loop() {
		if m, v := parse(in); v != plain || m.request(b.Context(), "") == nil {
			b.Fatal(v)
		}
	}
}
