package http1

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync/atomic"
	"time"
)

const (
	bufferSize = 8 << 10 // for a request; a larger one is not plain
	// watchAfter is how long after the beginning of a request somebody looks whether the client is
	// still there.
	watchAfter = 500 * time.Millisecond
)

// States of a connection.
const (
	waiting int32 = iota // for the first byte of a request
	serving
	closed
)

// conn is a connection whose requests have all been plain so far.
type conn struct {
	server *Server
	socket net.Conn
	ctx    context.Context // of all its requests
	remote string
	state  atomic.Int32

	in       []byte // what has been read and not been answered
	blanks   int    // how many CR and LF may come before the next request
	response response
	readBy   time.Time // the deadlines of the socket; zero = not known
	writeBy  time.Time

	watch  *time.Timer // runs look
	cancel context.CancelFunc
	looked chan struct{} // gets one when look is over
	early  []byte        // what the client has sent meanwhile
}

func newConn(ctx context.Context, s *Server, socket net.Conn) *conn {
	c := &conn{server: s, socket: socket, ctx: ctx, in: make([]byte, 0, bufferSize), looked: make(chan struct{}, 1)}
	c.response = response{conn: c, header: http.Header{}}
	if address := socket.RemoteAddr(); address != nil {
		c.remote = address.String()
	}
	return c
}

// closeIdle closes the connection if no request is on its way.
func (c *conn) closeIdle() {
	if c.state.CompareAndSwap(waiting, closed) {
		_ = c.socket.Close()
	}
}

// serve answers requests until the connection ends or one of them is not plain.
func (c *conn) serve() {
	patience := c.server.HTTP.ReadHeaderTimeout // a new connection has something to say
	for c.receive(patience) {
		m, ok := c.read()
		switch {
		case ok:
		case len(c.in) < leastRequest:
			_ = c.socket.Close()
			return
		default:
			c.server.handover.give(c.socket, c.in)
			return
		}
		if !c.answer(&m) {
			break
		}
		c.in = append(c.in[:copy(c.in, c.in[m.size:])], c.early...)
		c.early, c.blanks = nil, 0
		if m.method == http.MethodPost {
			c.blanks = 4
		}
		patience = c.server.HTTP.IdleTimeout
	}
	_ = c.socket.Close()
}

// receive waits for the beginning of a request. It reports false if none comes, or if the server is
// being shut down.
func (c *conn) receive(patience time.Duration) bool {
	for c.skipBlanks(); len(c.in) == 0; c.skipBlanks() {
		c.state.Store(waiting)
		if c.server.closing.Load() {
			return false
		}
		now := time.Now()
		// Deadlines cost more than most of what is done here: one that is nearly right is left.
		if left := c.readBy.Sub(now); left > patience || left < patience-patience/8 {
			c.readBy = now.Add(patience)
			if c.socket.SetReadDeadline(c.readBy) != nil {
				return false
			}
		}
		n, _ := c.socket.Read(c.in[:cap(c.in)])
		c.in = c.in[:n]
		if n == 0 || !c.state.CompareAndSwap(waiting, serving) {
			return false
		}
	}
	return true
}

// skipBlanks forgives what old clients send after the body of a POST, as net/http does.
func (c *conn) skipBlanks() {
	n := 0
	for n < min(c.blanks, len(c.in)) && (c.in[n] == '\r' || c.in[n] == '\n') {
		n++
	}
	c.blanks -= n
	c.in = c.in[:copy(c.in, c.in[n:])]
}

// read reads the rest of a request that has begun. It reports false if net/http is to go on with it:
// it is not plain, or not whole in time.
func (c *conn) read() (m message, ok bool) {
	m, v := parse(c.in)
	if v == incomplete {
		c.readBy = time.Now().Add(c.server.HTTP.ReadHeaderTimeout)
		_ = c.socket.SetReadDeadline(c.readBy) // the read finds out
	}
	for v == incomplete && len(c.in) < cap(c.in) {
		n, err := c.socket.Read(c.in[len(c.in):cap(c.in)])
		if err != nil {
			return m, false
		}
		c.in = c.in[:len(c.in)+n]
		m, v = parse(c.in)
	}
	return m, v == plain
}

// answer lets the handler answer. It reports false if the connection is at its end.
func (c *conn) answer(m *message) (goOn bool) {
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	defer func() {
		if problem := recover(); problem != nil {
			goOn = false
			if problem != http.ErrAbortHandler { //nolint:errorlint // compared as net/http does
				c.server.logf("panic serving %s: %v\n%s", c.remote, problem, debug.Stack())
			}
		}
	}()
	c.startWatch(cancel)
	defer c.endWatch()
	w := &c.response
	w.begin()
	defer w.end()
	c.server.HTTP.Handler.ServeHTTP(w, m.request(ctx, c.remote))
	return w.finish() == nil && !w.last
}

// startWatch lets cancel be called if the client goes away and the answer takes long enough for
// that to matter.
func (c *conn) startWatch(cancel context.CancelFunc) {
	c.cancel = cancel
	if c.watch == nil {
		c.watch = time.AfterFunc(watchAfter, c.look)
	} else {
		c.watch.Reset(watchAfter)
	}
}

// look finds out that the client has gone by reading. What it reads is the next request's.
func (c *conn) look() {
	early := make([]byte, 512)
	n, err := c.socket.Read(early)
	c.early = early[:n]
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.cancel()
	}
	c.looked <- struct{}{}
}

func (c *conn) endWatch() {
	if c.watch.Stop() {
		return
	}
	_ = c.socket.SetReadDeadline(time.Unix(1, 0)) // a read that is on its way ends now
	<-c.looked
	c.readBy = time.Time{}
}

// write sends a piece of an answer.
func (c *conn) write(p []byte) error {
	patience := c.server.HTTP.WriteTimeout
	now := time.Now()
	if c.writeBy.Sub(now) < patience {
		c.writeBy = now.Add(2 * patience)
		if err := c.socket.SetWriteDeadline(c.writeBy); err != nil {
			return err
		}
	}
	_, err := c.socket.Write(p)
	return err
}
