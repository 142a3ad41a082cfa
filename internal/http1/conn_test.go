package http1

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

// isClosed waits for the end of a connection, whatever is said before it.
func isClosed(c net.Conn) bool {
	_, err := io.ReadAll(c)
	return err == nil || errors.Is(err, io.ErrClosedPipe)
}

// A handler hears of a client who has gone, and not of one who waits.
func TestClientGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testClientGone)
}

func testClientGone(t *testing.T) {
	gone := make(chan error, 1)
	_, l := ours(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Second):
		}
		gone <- r.Context().Err()
	})
	c := l.dial()
	ask(t, c, get)
	if err := <-gone; err != nil {
		t.Errorf("a client who waits: %v", err)
	}
	io.WriteString(c, get) //nolint:errcheck // a pipe
	c.Close()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("a client who has gone: %v", err)
	}
}

// What a client sends before it is answered is its next request, nothing of it is lost, and none is
// answered before its turn.
func TestEarly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testEarly)
}

func testEarly(t *testing.T) {
	_, l := ours(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			time.Sleep(5 * watchAfter)
		}
		io.WriteString(w, r.URL.Path) //nolint:errcheck // to a buffer
	})
	c := l.dial()
	go func() {
		for i := range 20 {
			time.Sleep(watchAfter / 3)
			fmt.Fprintf(c, "POST /%d/%s HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}", i, strings.Repeat("x", 100*i))
		}
	}()
	in := bufio.NewReader(c)
	for i := range 20 {
		body, _ := io.ReadAll(read(t, in).Body)
		if want := fmt.Sprintf("/%d/%s", i, strings.Repeat("x", 100*i)); string(body) != want {
			t.Fatalf("%s instead of %s", body, want)
		}
	}
}

// A connection on which nobody says anything ends: at first soon, later after a while. So does one that
// does not come to the end of a request, or does not take its answer.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDeadlines)
}

func testDeadlines(t *testing.T) {
	s, l := ours(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Write(make([]byte, 1000)) //nolint:errcheck // to a buffer
	})
	for name, test := range map[string]struct {
		send        string
		answers     int
		least, most time.Duration // until the connection ends
	}{
		"nothing":       {"", 0, s.HTTP.ReadHeaderTimeout, s.HTTP.ReadHeaderTimeout},
		"a beginning":   {get[:10], 0, s.HTTP.ReadHeaderTimeout, 2 * s.HTTP.ReadHeaderTimeout},
		"half a body":   {"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf", 1, s.HTTP.ReadTimeout, 2 * s.HTTP.ReadTimeout},
		"one request":   {get, 1, s.HTTP.IdleTimeout * 3 / 4, s.HTTP.IdleTimeout},
		"two requests":  {get + get, 2, s.HTTP.IdleTimeout * 3 / 4, s.HTTP.IdleTimeout},
		"takes nothing": {get, 0, s.HTTP.WriteTimeout, 2*s.HTTP.WriteTimeout + time.Second},
	} {
		c, start := l.dial(), time.Now()
		if test.send != "" {
			io.WriteString(c, test.send) //nolint:errcheck // a pipe
		}
		in := bufio.NewReader(c)
		for range test.answers {
			read(t, in)
		}
		if name == "takes nothing" {
			time.Sleep(test.most)
		}
		if !isClosed(c) {
			t.Errorf("%s: goes on", name)
		}
		if took := time.Since(start); took < test.least || took > test.most {
			t.Errorf("%s: ends after %v", name, took)
		}
	}
}

// Who says a little now and then is not waited for longer than who says nothing.
func TestDrip(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testDrip)
}

func testDrip(t *testing.T) {
	s, l := ours(t, func(http.ResponseWriter, *http.Request) {})
	c, start := l.dial(), time.Now()
	dripped := make(chan struct{})
	go func() {
		defer close(dripped)
		for _, letter := range []byte("GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 1000)) {
			if _, err := c.Write([]byte{letter}); err != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}()
	if !isClosed(c) || time.Since(start) > 2*s.HTTP.ReadHeaderTimeout {
		t.Errorf("it has dripped for %v", time.Since(start))
	}
	<-dripped
}

// Shutdown closes who waits, lets who is being answered have the answer, says that it is the last, and
// returns after it.
func TestShutdown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testShutdown)
}

func testShutdown(t *testing.T) {
	begun, finish := make(chan struct{}, 1), make(chan struct{})
	s, l := ours(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			begun <- struct{}{}
			<-finish
		}
	})
	idle, fresh, busy := l.dial(), l.dial(), l.dial()
	ask(t, idle, get)
	io.WriteString(busy, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n") //nolint:errcheck // a pipe
	<-begun

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown while one is being answered: %v", err)
	}
	if !isClosed(idle) || !isClosed(fresh) {
		t.Error("one that waited was not closed")
	}
	done := make(chan error, 1)
	go func() { done <- s.Shutdown(t.Context()) }()
	synctest.Wait()
	select {
	case err := <-done:
		t.Fatalf("Shutdown did not wait: %v", err)
	default:
	}
	close(finish)
	if response := read(t, bufio.NewReader(busy)); !response.Close {
		t.Error("the last answer does not say so")
	}
	if !isClosed(busy) {
		t.Error("the last answer was not the last")
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Close waits for nobody.
func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testClose)
}

func testClose(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	s, l := ours(t, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(ended)
	})
	c := l.dial()
	io.WriteString(c, get) //nolint:errcheck // a pipe
	<-begun
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if !isClosed(c) {
		t.Error("a connection is open")
	}
	<-ended
}

// A handler that panics costs its own connection alone.
func TestPanic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testPanic)
}

func testPanic(t *testing.T) {
	_, l := ours(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/panic" {
			panic("at the disco")
		}
	})
	c, other := l.dial(), l.dial()
	ask(t, other, get)
	io.WriteString(c, strings.Replace(get, "/", "/panic", 1)) //nolint:errcheck // a pipe
	if !isClosed(c) {
		t.Error("it was answered")
	}
	ask(t, other, get)
}

// A connection is upgraded by net/http, after plain requests as well.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testUpgrade)
}

func testUpgrade(t *testing.T) {
	_, l := ours(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			return
		}
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n\r\nhello") //nolint:errcheck // a pipe
	})
	for _, before := range []int{0, 1, 3} {
		c := l.dial()
		for range before {
			ask(t, c, get)
		}
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: hello\r\n\r\n") //nolint:errcheck // a pipe
		all, _ := io.ReadAll(c)
		if !strings.HasSuffix(string(all), "\r\n\r\nhello") {
			t.Errorf("after %d requests: %q", before, all)
		}
	}
}
