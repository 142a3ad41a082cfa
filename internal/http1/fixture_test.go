package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"
)

func newHTTP(t *testing.T, handler http.HandlerFunc) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       15 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(t.Output(), "", 0),
	}
}

// server is what http.Server and Server have in common.
type server interface {
	Serve(net.Listener) error
	Close() error
}

// serve lets s serve connections of the process until the test ends; call it in a bubble, where waiting
// for time takes none.
func serve(t *testing.T, s server) *handover {
	t.Helper()
	l := newHandover(&net.UnixAddr{Name: "pipe"})
	serveOn(t, s, l)
	return l
}

// serveOn lets s serve until the test ends.
func serveOn(t *testing.T, s server, l net.Listener) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve ended with %v", err)
		}
	})
}

// ours is a server of ours that serves until the test ends.
func ours(t *testing.T, handler http.HandlerFunc) (*Server, *handover) {
	t.Helper()
	s := &Server{HTTP: newHTTP(t, handler)}
	return s, serve(t, s)
}

// dial is a connection to the server.
func (h *handover) dial() net.Conn {
	client, server := net.Pipe()
	h.conns <- server
	return client
}

// ask sends a request and reads the answer.
func ask(t *testing.T, c net.Conn, request string) *http.Response {
	t.Helper()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	return read(t, bufio.NewReader(c))
}

// read reads an answer and its body.
func read(t *testing.T, in *bufio.Reader) *http.Response {
	t.Helper()
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	response.Body = io.NopCloser(bytes.NewReader(body))
	return response
}
