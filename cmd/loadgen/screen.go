package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"
)

// sight is a slot that a screen was shown: the version it had there before, and the new one.
type sight struct {
	slot     int64
	from, to int64 // versions
	at       int64 // µs since 1970
}

// screen is a subscriber to the first day of a doctor, that does what the schema tells clients to
// do. One goroutine reads.
type screen struct {
	doctor  int // from 0
	index   int
	slow    bool // its connection holds little
	conn    net.Conn
	in      []byte // has come, and is not understood yet
	scratch []shown
	welcome bool // the other side has answered
	keep    bool // what comes is kept, to be played to the floor
	gone    sync.WaitGroup

	mu        sync.Mutex // guards what follows
	slots     map[int64]shown
	sights    []sight
	messages  int64
	kept      []message
	leaving   bool // nobody minds an end of the connection
	stalled   bool // reads no more
	err       error
	snapshots int
}

// message is a text that a screen was sent.
type message struct {
	doctor int
	at     int64 // µs since 1970
	text   []byte
}

// host is what screens connect to.
type host struct {
	address string
	pid     int
	from    string // first day
	gorilla bool   // it is the floor, which has groups and no protocol
}

// connect opens the connection and reads until the screen shows something; of the floor, until the
// connection is there.
func (s *screen) connect(ctx context.Context, h host) (err error) {
	dialer := net.Dialer{Timeout: answerWithin}
	if runtime.GOOS == "linux" { // there, all of 127.0.0.0/8 is this machine: nobody has too many sockets
		dialer.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+s.index%250))}
	}
	if s.slow {
		dialer.Control = narrow
	}
	if s.conn, err = dialer.DialContext(ctx, "tcp", h.address); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.conn.Close()
		}
	}()
	s.in = s.in[:0]
	s.slots, s.leaving = nil, false
	path := "/graphql"
	if h.gorilla {
		path = fmt.Sprintf("/watch?group=%d", s.doctor)
	}
	out := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n\r\n", path, subprotocol)
	if err := s.conn.SetDeadline(time.Now().Add(4 * answerWithin)); err != nil { // a crowd may take its time to come
		return err
	}
	if _, err := s.conn.Write(out); err != nil {
		return err
	}
	if err := s.upgraded(); err != nil {
		return err
	}
	if h.gorilla {
		s.slots = map[int64]shown{}
		for err := s.understand(0); !s.welcome; err = s.read() {
			if err != nil {
				return err
			}
		}
		return s.conn.SetDeadline(time.Time{})
	}
	if _, err := s.conn.Write(hello(s.doctor, h.from)); err != nil {
		return err
	}
	for s.slots == nil {
		if err := s.read(); err != nil {
			return err
		}
	}
	return s.conn.SetDeadline(time.Time{})
}

// upgraded reads the answer to the handshake.
func (s *screen) upgraded() error {
	for {
		if end := bytes.Index(s.in, endOfHeader); end >= 0 {
			if !bytes.HasPrefix(s.in, []byte("HTTP/1.1 101 ")) {
				return fmt.Errorf("no websocket: %.300q", s.in)
			}
			s.in = append(s.in[:0], s.in[end+len(endOfHeader):]...)
			return nil
		}
		if err := s.fill(); err != nil {
			return err
		}
	}
}

// fill reads what comes next.
func (s *screen) fill() error {
	if cap(s.in)-len(s.in) < 512 {
		s.in = append(make([]byte, 0, 2*cap(s.in)+1024), s.in...)
	}
	n, err := s.conn.Read(s.in[len(s.in):cap(s.in)])
	s.in = s.in[:len(s.in)+n]
	return err
}

// read reads once and does what it says.
func (s *screen) read() error {
	if err := s.fill(); err != nil {
		return err
	}
	return s.understand(time.Now().UnixMicro())
}

// understand does what the frames say that are whole, and have come at a moment.
func (s *screen) understand(at int64) error {
	rest := s.in
	for {
		op, payload, size, err := readFrame(rest)
		if err != nil {
			return err
		}
		if size == 0 {
			break
		}
		rest = rest[size:]
		switch op {
		case opText:
			err = s.show(payload, at)
		case opPing:
			_, err = s.conn.Write(appendFrame(nil, opPong, payload))
		case opClose:
			err = fmt.Errorf("the server closed: %.100q", payload[min(2, len(payload)):])
			if len(payload) >= 2 {
				err = fmt.Errorf("%w, %d", err, int(payload[0])<<8|int(payload[1]))
			}
		case opPong:
		default:
			err = errNoFrame
		}
		if err != nil {
			return err
		}
	}
	s.in = append(s.in[:0], rest...)
	return nil
}

// show does what a message says.
func (s *screen) show(text []byte, at int64) error {
	u, ok, err := readUpdate(text, s.scratch)
	if err != nil || !ok {
		s.welcome = s.welcome || err == nil
		return err
	}
	s.scratch = u.slots
	s.mu.Lock()
	defer s.mu.Unlock()
	s.messages++
	first := s.slots == nil
	old := s.slots
	if u.snapshot {
		s.snapshots++
		s.slots = make(map[int64]shown, len(u.slots))
	} else if first {
		return errors.New("a delta came before the snapshot")
	}
	for _, slot := range u.slots {
		before := old[slot.slot].version
		if slot.version < before || slot.version == before && !u.snapshot && before > 0 {
			continue
		}
		s.slots[slot.slot] = slot
		if !first && slot.version > before {
			s.sights = append(s.sights, sight{slot.slot, before, slot.version, at})
		}
	}
	if s.keep && !u.snapshot {
		s.kept = append(s.kept, message{s.doctor, at, bytes.Clone(text)})
	}
	return nil
}

// watch reads until the connection ends or the screen stalls.
func (s *screen) watch() {
	for {
		err := s.read()
		s.mu.Lock()
		if err != nil || s.stalled {
			if !s.stalled && !s.leaving {
				s.err = err
			}
			stalled := s.stalled
			s.mu.Unlock()
			if !stalled {
				s.conn.Close()
			}
			return
		}
		s.mu.Unlock()
	}
}

// stall has the screen read no more, for good, though it asks for something large.
func (s *screen) stall(from string) error {
	s.mu.Lock()
	s.stalled = true
	s.mu.Unlock()
	_ = s.conn.SetReadDeadline(time.Now()) // wakes the reader
	s.gone.Wait()
	_, err := s.conn.Write(subscribe("large", s.doctor, from, daysAhead))
	return err
}

// leave ends the connection, in the middle of whatever: with a reset, as when a phone loses its network and
// comes back.
func (s *screen) leave() {
	s.mu.Lock()
	s.leaving = true
	s.mu.Unlock()
	if tcp, ok := s.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	s.conn.Close()
}
