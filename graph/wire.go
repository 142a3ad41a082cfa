package graph

import (
	"bufio"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// wire is a websocket's connection, and decides who writes to it: one at a time, a whole frame each.
// Frames of messages are written here; control frames and the handshake by gorilla, through Write.
//
// Nobody waits for the network unless it is full. A frame for which there is room leaves at once,
// in the goroutine of whoever has it. For what doesn't fit somebody waits with a deadline; whoever
// can't wait (courier) is told when the wire is free again.
type wire struct {
	net.Conn
	raw      syscall.RawConn // nil: the connection can't be asked whether it has room
	patience time.Duration   // for one frame to leave
	attempt  func(uintptr) bool
	out      []byte // what attempt writes, and what came of it
	n        int
	err      error

	mu     sync.Mutex
	free   sync.Cond
	busy   bool     // somebody writes
	last   bool     // a close frame was written: nothing may follow
	closed bool     // nothing may be written
	parked []*watch // to be told when the wire is free
}

var errClosing = errors.New("graph: the socket is closing")

func newWire(conn net.Conn, patience time.Duration) *wire {
	w := &wire{Conn: conn, patience: patience}
	w.free.L = &w.mu
	w.attempt = w.try
	if c, ok := conn.(syscall.Conn); ok {
		w.raw, _ = c.SyscallConn() // nil with an error
	}
	return w
}

// acquire waits for the right to write; false if nothing may be written any more.
func (w *wire) acquire() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.busy && !w.closed {
		w.free.Wait()
	}
	if w.closed || w.last {
		return false
	}
	w.busy = true
	return true
}

// acquireOr takes the right to write if it is free. Otherwise o is woken when it is.
func (w *wire) acquireOr(o *watch) (mine, later bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed || w.last:
		return false, false
	case w.busy:
		w.parked = append(w.parked, o)
		return false, true
	}
	w.busy = true
	return true, false
}

// release gives the right to write back.
func (w *wire) release() {
	w.mu.Lock()
	w.busy = false
	parked := w.parked
	w.parked = nil
	w.free.Signal()
	w.mu.Unlock()
	for _, o := range parked {
		o.operation.socket.courier.take(o)
	}
}

// close waits until nobody writes, and lets nobody again. The connection must have been closed.
func (w *wire) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.free.Broadcast()
	for w.busy {
		w.free.Wait()
	}
	w.parked = nil
}

// now writes as much as there is room for. It needs the right to write.
func (w *wire) now(frame []byte) (rest []byte, err error) {
	if w.raw == nil {
		return frame, nil
	}
	w.out, w.n, w.err = frame, 0, nil
	err = w.raw.Write(w.attempt)
	if err == nil {
		err = w.err
	}
	w.out = nil
	return frame[w.n:], err
}

func (w *wire) try(fd uintptr) bool {
	for {
		n, err := syscall.Write(int(fd), w.out)
		switch {
		case err == syscall.EINTR: //nolint:errorlint // system calls don't wrap
			continue
		case err == syscall.EAGAIN: //nolint:errorlint // same
		case err != nil:
			w.err = err
		default:
			w.n = n
		}
		return true
	}
}

// wait writes what there was no room for. It needs the right to write.
func (w *wire) wait(rest []byte) error {
	w.Conn.SetWriteDeadline(time.Now().Add(w.patience)) //nolint:errcheck // the write finds out
	_, err := w.Conn.Write(rest)
	if err == nil {
		err = w.Conn.SetWriteDeadline(time.Time{})
	}
	return err
}

// Write writes a frame, or gorilla's handshake, and waits until it has left.
func (w *wire) Write(frame []byte) (int, error) {
	if !w.acquire() {
		return 0, errClosing
	}
	defer w.release()
	if len(frame) > 0 && frame[0] == closeFrame {
		w.mu.Lock()
		w.last = true
		w.mu.Unlock()
	}
	rest, err := w.now(frame)
	if err == nil && len(rest) > 0 {
		err = w.wait(rest)
	}
	if err != nil {
		return 0, err
	}
	return len(frame), nil
}

// SetWriteDeadline does nothing: Write has its own.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// hijacker hands gorilla a wire instead of the connection.
type hijacker struct {
	http.ResponseWriter
	patience time.Duration
	wire     *wire
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	h.wire = newWire(conn, h.patience)
	return h.wire, rw, nil
}

// First bytes of frames: a whole one, of text or of a close.
const (
	textFrame  = 0x81
	closeFrame = 0x88
)

// maxFrameHead is how long the head of a frame is at most.
const maxFrameHead = 10

// appendHead begins a frame of n bytes of text. A server does not mask.
func appendHead(b []byte, n int) []byte {
	switch {
	case n < 126:
		return append(b, textFrame, byte(n))
	case n < 1<<16:
		return append(b, textFrame, 126, byte(n>>8), byte(n))
	default:
		return append(b, textFrame, 127, 0, 0, 0, 0, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
}
