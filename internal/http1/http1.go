// Package http1 is the way in for HTTP/1.1: it answers plain requests at a fraction of what net/http
// takes for one, and leaves every other connection to net/http.
//
//	listener ─▶ Server.Serve ─▶ conn: read ─ plain? ─▶ Handler ─▶ one write
//	                                         └ no, with all that was read ─▶ net/http, for good
//
// A request is plain if there is only one way to read it: see [parse]. What is doubtful, malformed,
// large, upgraded, of another version or not to be kept alive is net/http's to judge, so nothing is
// refused here. Handlers see the same requests on both ways and write to the same kind of
// [http.ResponseWriter]; what differs is what nobody should rely on: answers have a Content-Length
// unless they are flushed on the way, and of a client that goes away the request's context hears after
// half a second, not at once.
//
// Most of net/http's cost is what it does for requests that are not plain: a goroutine that reads
// beside each handler, six changes of deadlines, headers that are copied. The idea, and what it saves,
// are those of other servers of this kind; the code is as small as our requests allow.
//
// Every connection has one goroutine, which ends with it or when net/http takes it over.
package http1

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Server serves one listener. Its zero value with HTTP set is ready; it serves once.
type Server struct {
	// HTTP serves the connections whose requests are not plain. Its Handler, its timeouts and its
	// ErrorLog hold for all; they must be set, but for the log.
	HTTP *http.Server

	mu       sync.Mutex
	conns    map[*conn]struct{}
	listener net.Listener
	closing  atomic.Bool
	idle     sync.Cond // signalled, with mu, when a connection has gone
	handover *handover
}

// Serve accepts connections until Shutdown or Close, and then returns [http.ErrServerClosed]; or
// until the listener fails, and then returns why.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	s.conns, s.listener, s.idle.L = map[*conn]struct{}{}, l, &s.mu
	s.handover = newHandover(l.Addr())
	s.mu.Unlock()
	defer l.Close()
	if s.closing.Load() {
		return http.ErrServerClosed
	}
	others := make(chan error, 1)
	go func() { others <- s.HTTP.Serve(s.handover) }()
	err := s.accept(l)
	if s.closing.Load() {
		<-others
		return http.ErrServerClosed
	}
	return errors.Join(err, s.Close())
}

// accept starts a goroutine for each connection. Like net/http it sits out what passes by, such as too
// many open files.
func (s *Server) accept(l net.Listener) error {
	ctx := context.WithValue(context.Background(), http.ServerContextKey, s.HTTP)
	rest := time.Duration(0)
	for {
		socket, err := l.Accept()
		var passing interface{ Temporary() bool }
		switch {
		case err == nil:
			rest = 0
			s.start(context.WithValue(ctx, http.LocalAddrContextKey, socket.LocalAddr()), socket)
		case errors.As(err, &passing) && passing.Temporary() && !s.closing.Load():
			rest = min(max(2*rest, 5*time.Millisecond), time.Second)
			s.logf("accept: %v; again in %v", err, rest)
			time.Sleep(rest)
		default:
			return err
		}
	}
}

func (s *Server) start(ctx context.Context, socket net.Conn) {
	c := newConn(ctx, s, socket)
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.mu.Unlock()
	go func() {
		defer s.forget(c)
		c.serve()
	}()
}

func (s *Server) forget(c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.idle.Broadcast()
}

// Shutdown takes no more connections, closes those that wait for a request, and returns when all
// others have been answered; or, with ctx's error, when ctx is over.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop((*conn).closeIdle)
	err := s.HTTP.Shutdown(ctx)
	defer context.AfterFunc(ctx, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.idle.L != nil {
			s.idle.Broadcast()
		}
	})()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.conns) > 0 && ctx.Err() == nil {
		s.idle.Wait()
	}
	if len(s.conns) > 0 {
		return errors.Join(err, ctx.Err())
	}
	return err
}

// Close closes all connections at once, those that are being answered too.
func (s *Server) Close() error {
	s.stop(func(c *conn) { _ = c.socket.Close() })
	return s.HTTP.Close()
}

// stop takes no more connections and ends those that there are.
func (s *Server) stop(end func(*conn)) {
	s.closing.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for c := range s.conns {
		end(c)
	}
}

func (s *Server) logf(format string, args ...any) {
	if s.HTTP.ErrorLog != nil {
		s.HTTP.ErrorLog.Printf("http1: "+format, args...)
	} else {
		log.Printf("http1: "+format, args...)
	}
}

// handover is the listener on which net/http gets its connections.
type handover struct {
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
	address net.Addr
}

func newHandover(address net.Addr) *handover {
	return &handover{conns: make(chan net.Conn), closed: make(chan struct{}), address: address}
}

// give hands a connection over, with what has been read of it.
func (h *handover) give(socket net.Conn, read []byte) {
	select {
	case h.conns <- &unread{socket, read}:
	case <-h.closed:
		_ = socket.Close()
	}
}

// Accept implements [net.Listener].
func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (h *handover) Close() error {
	h.once.Do(func() { close(h.closed) })
	return nil
}

// Addr implements [net.Listener].
func (h *handover) Addr() net.Addr { return h.address }

// unread is a connection of which something has been read that counts as not read.
type unread struct {
	net.Conn
	read []byte
}

// Read implements [net.Conn].
func (u *unread) Read(p []byte) (int, error) {
	if len(u.read) == 0 {
		return u.Conn.Read(p)
	}
	n := copy(p, u.read)
	if u.read = u.read[n:]; len(u.read) == 0 {
		u.read = nil
	}
	return n, nil
}
