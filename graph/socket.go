package graph

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"
	"golang.org/x/time/rate"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

const (
	maxOperations = 20  // at once on one socket
	maxID         = 100 // bytes of an operation's id, which every message repeats

	// Messages and control frames that a peer may send: so many at once, as after a reconnect, and
	// so many a second from there on.
	maxBurst  = 200
	maxRate   = 50
	maxReason = 80 // bytes of what a close reason repeats of a message
)

// socket is one websocket. It has a goroutine that reads; an operation has one while it is executed,
// and after that only if its updates need the executor. They are gone when serve returns.
//
// Writing is for one at a time, and bounded: a frame that has not left in time ends the socket, so
// nobody waits longer than that for a slow peer. Meanwhile updates gather in the subscription,
// which keeps the latest of each slot.
type socket struct {
	*sockets
	conn    *websocket.Conn
	wire    *wire
	request string     // id of the upgrade
	place   live.Place // as what it is counted. The reader's.
	rate    *rate.Limiter

	// ctx is that of all operations. The reader puts the identity into it before there are any.
	ctx    context.Context
	cancel context.CancelFunc

	init   *time.Timer // until connection_init has come; then nil. The reader's.
	expiry *time.Timer // ends the socket with its token; may be nil. The reader's.
	access func()      // ends the watch on the caller's access; may be nil. The reader's.
	ready  bool        // connection_init was accepted. The reader's.

	pinger *time.Timer
	sent   atomic.Bool // an update, since the last ping

	running sync.WaitGroup // operations in goroutines

	mu         sync.Mutex // guards what follows
	ended      bool       // a close frame was sent, or tried
	leaving    bool       // it ends once what is being executed has been answered
	executing  int        // queries and mutations
	operations map[string]*operation
}

const accessBlocked = "Access has been blocked"

// message is what both sides send.
type message struct {
	ID      string          `json:"id,omitempty"`
	Type    string          `json:"type"`
	Payload json.RawMessage `json:"payload,omitempty"`
}

// serve reads until the socket has ended.
func (s *socket) serve() {
	defer s.running.Wait()
	defer s.wire.close()
	defer s.conn.Close() //nolint:errcheck // closed twice at worst
	defer s.mark()
	defer func() {
		if problem := recover(); problem != nil {
			s.exec.DispatchError(s.ctx, asList(recovered(s.ctx, problem))) // which logs it
			s.end(closeInternalError, "Internal server error")
		}
	}()
	s.init = time.AfterFunc(s.pace.init, func() { s.end(closeInitTimeout, "Connection initialisation timeout") })
	defer s.init.Stop()
	defer func() {
		if s.expiry != nil {
			s.expiry.Stop()
		}
		if s.access != nil {
			s.access()
		}
	}()
	defer s.pinger.Stop()
	s.conn.SetReadLimit(maxBody)
	s.conn.SetPongHandler(func(string) error {
		s.allow()
		return s.alive()
	})
	s.conn.SetPingHandler(func(data string) error {
		if s.allow() {
			s.conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(s.pace.write)) //nolint:errcheck // the reader finds out
		}
		return s.alive()
	})
	s.read()
}

// allow counts what the peer sends; false, and the end, if that is too much.
func (s *socket) allow() bool {
	if s.rate.Allow() {
		return true
	}
	s.end(closePolicy, "Too many messages")
	return false
}

// read handles messages until the peer has closed, fallen silent or sent too much. Once the socket
// has ended it only waits for the peer's close, and throws away what comes before it: closing a
// connection with unread bytes would destroy our close frame on its way.
func (s *socket) read() {
	for s.alive() == nil {
		kind, data, err := s.conn.ReadMessage()
		if errors.Is(err, websocket.ErrReadLimit) { // our close frame has been sent
			s.mark()
			s.conn.NetConn().SetReadDeadline(time.Now().Add(s.pace.bye))      //nolint:errcheck // the copy finds out
			io.Copy(io.Discard, io.LimitReader(s.conn.NetConn(), 16*maxBody)) //nolint:errcheck // whatever comes
		}
		if err != nil {
			return
		}
		if s.isEnded() || !s.allow() {
			continue
		}
		var m message
		if kind != websocket.TextMessage || !utf8.Valid(data) || json.Unmarshal(data, &m) != nil {
			s.end(closeMalformed, "Malformed message")
			continue
		}
		s.handle(m)
	}
}

// handle does what a message asks for.
func (s *socket) handle(m message) {
	switch m.Type {
	case "connection_init":
		s.admit(m.Payload)
	case "ping":
		s.send(message{Type: "pong", Payload: m.Payload})
	case "pong":
	case "subscribe":
		s.subscribe(m)
	case "complete":
		s.mu.Lock()
		o := s.operations[m.ID]
		delete(s.operations, m.ID)
		s.mu.Unlock()
		if o != nil {
			o.stop()
		}
	default:
		s.end(closeMalformed, "Unknown type of message")
	}
}

// admit answers connection_init. A token comes in its payload, {"Authorization": "Bearer …"},
// or came with the upgrade; the payload's counts.
func (s *socket) admit(payload json.RawMessage) {
	if s.init == nil {
		s.end(closeSecondInit, "Too many initialisation requests")
		return
	}
	s.init.Stop()
	s.init = nil
	var values map[string]json.RawMessage
	if len(payload) > 0 && json.Unmarshal(payload, &values) != nil {
		s.end(closeMalformed, "The payload of connection_init must be an object")
		return
	}
	var tokens []json.RawMessage
	for name, value := range values {
		if strings.EqualFold(name, "Authorization") {
			tokens = append(tokens, value)
		}
	}
	if len(tokens) > 1 { // which of them counts would be a matter of luck
		s.end(closeMalformed, "The payload of connection_init has two Authorization members")
		return
	}
	identity := auth.IdentityFrom(s.ctx)
	for _, value := range tokens {
		var header string
		err := json.Unmarshal(value, &header)
		if err == nil {
			identity, err = s.auth.FromHeader(s.ctx, header)
		}
		var known *booking.Error
		switch {
		case errors.As(err, &known) && known.Code == booking.Forbidden:
			s.end(closeForbidden, accessBlocked)
			return
		case errors.As(err, &known) && known.Code != booking.Unauthenticated:
			s.end(closeTryLater, "Sign-in can't be checked right now")
			return
		case err != nil:
			s.end(closeForbidden, "The access token is not valid")
			return
		}
	}
	var room bool
	if s.place, room = s.admission.Move(s.place, identity.Actor); !room {
		s.end(closeTryLater, "Too many sockets of this account are open")
		return
	}
	s.ctx = auth.WithIdentity(s.ctx, identity)
	if !identity.ExpiresAt.IsZero() {
		s.expiry = time.AfterFunc(time.Until(identity.ExpiresAt), func() { s.end(closeForbidden, "The access token has expired") })
	}
	s.access = s.auth.OnBlocked(identity, func() { s.end(closeForbidden, accessBlocked) })
	s.ready = true
	s.send(message{Type: "connection_ack"})
}

// subscribe starts an operation, a query or mutation as well.
func (s *socket) subscribe(m message) {
	if !s.ready {
		s.end(closeUnauthorized, "Unauthorized")
		return
	}
	params, bad := decode(m.Payload)
	if bad != nil || m.ID == "" || len(m.ID) > maxID {
		s.end(closeMalformed, "Malformed subscribe message")
		return
	}
	params.Headers = s.header()
	ctx, cancel := context.WithCancel(s.ctx)
	o := &operation{socket: s, id: m.ID, cancel: cancel}

	s.mu.Lock()
	_, duplicate := s.operations[m.ID]
	full := len(s.operations) >= maxOperations
	if !duplicate && !full && !s.ended && !s.leaving {
		if s.operations == nil {
			s.operations = map[string]*operation{}
		}
		s.operations[m.ID] = o
		s.running.Go(func() { o.run(ctx, params) })
	} else {
		cancel()
	}
	s.mu.Unlock()
	switch {
	case duplicate:
		s.end(closeDuplicate, "Subscriber for "+strings.ToValidUTF8(m.ID[:min(len(m.ID), maxReason)], "")+" already exists")
	case full:
		refusal := booking.Refuse(booking.Invalid, "A socket may have %d operations at once. Complete one first, or open another socket.", maxOperations)
		s.send(errorMessage(m.ID, s.exec.DispatchError(ctx, asList(refusal)).Errors))
	}
}

// header is what operations hear of the upgrade's.
func (s *socket) header() http.Header { return http.Header{requestIDHeader: {s.request}} }

// send writes a message. What can't be written ends the socket; there is nobody to tell.
func (s *socket) send(m message) {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // payloads are JSON
	}
	frame := append(appendHead(make([]byte, 0, maxFrameHead+len(text)), len(text)), text...)
	if _, err := s.wire.Write(frame); err != nil && !errors.Is(err, errClosing) {
		s.cut()
	}
}

// cut ends the socket without a word: there is nobody to hear it, or no time.
func (s *socket) cut() {
	s.mark()
	s.conn.Close() //nolint:errcheck // the reader then returns
}

// wrote notes that an update was sent: soon the peer has to show that it reads.
func (s *socket) wrote() {
	if !s.sent.Load() && s.sent.CompareAndSwap(false, true) {
		s.pinger.Reset(s.pace.probe)
	}
}

// ping sends a ping, so that the peer's pong, or its absence, tells whether it is there. To whom
// updates go it has to come soon: a peer that has stopped reading is noticed long before the
// network between us is full.
func (s *socket) ping() {
	s.pinger.Reset(s.pace.ping)
	if s.sent.Swap(false) {
		s.expect()
	}
	if s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(s.pace.write)) != nil {
		s.pinger.Stop()
		s.conn.Close() //nolint:errcheck // the reader then returns
	}
}

// expect gives the peer little time for a sign of life. It comes before what the peer is to answer:
// a pong may be here before we have returned from sending the ping, and must have the last word.
func (s *socket) expect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		s.conn.SetReadDeadline(time.Now().Add(s.pace.answer)) //nolint:errcheck // the reader finds out
	}
}

// alive notes a sign of life.
func (s *socket) alive() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return nil // the time to say goodbye is not prolonged
	}
	return s.conn.SetReadDeadline(time.Now().Add(s.pace.quiet))
}

// end closes the socket with a code and a reason. Only the first call has an effect.
func (s *socket) end(code int, reason string) {
	if !s.mark() {
		return
	}
	frame := websocket.FormatCloseMessage(code, reason)
	if s.conn.WriteControl(websocket.CloseMessage, frame, time.Now().Add(s.pace.write)) != nil {
		s.conn.Close() //nolint:errcheck // the reader then returns
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conn.SetReadDeadline(time.Now().Add(s.pace.bye)) //nolint:errcheck // the reader finds out
}

// mark stops all operations, silently; false if they had been.
func (s *socket) mark() bool {
	s.mu.Lock()
	first := !s.ended
	s.ended = true
	s.cancel()
	operations := s.operations
	s.operations = nil
	s.mu.Unlock()
	for _, o := range operations {
		o.stop()
	}
	return first
}

// leave ends the socket because this instance goes away, once what is being executed on it has been
// answered: whoever books must not be left without an answer because of us.
func (s *socket) leave() {
	s.mu.Lock()
	s.leaving = true
	now := s.executing == 0
	s.mu.Unlock()
	if now {
		s.end(closeGoingAway, goingAway)
	}
}

// execute counts a query or mutation in, and the function that it returns counts it out.
func (s *socket) execute() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.executing++
	return func() {
		s.mu.Lock()
		s.executing--
		last := s.leaving && s.executing == 0
		s.mu.Unlock()
		if last {
			s.end(closeGoingAway, goingAway)
		}
	}
}

func (s *socket) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}
