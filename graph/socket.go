package graph

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"openslot/internal/auth"
	"openslot/internal/booking"
)

const (
	maxOperations = 20  // at once on one socket
	maxID         = 100 // bytes of an operation's id, which every message repeats
)

// socket is one websocket. The goroutine that serves the request reads; every operation has one
// that writes its results; one sends pings. They are gone when serve returns.
//
// Writing is for one at a time, and bounded: a frame that has not left in time ends the socket, so
// nobody waits longer than that for a slow peer. Meanwhile updates gather in the subscription,
// which keeps the latest of each slot.
type socket struct {
	*sockets
	conn   *websocket.Conn
	header http.Header // of the upgrade

	// ctx is that of all operations. The reader puts the identity into it before there are any.
	ctx    context.Context
	cancel context.CancelFunc

	init   *time.Timer // until connection_init has come; then nil. The reader's.
	expiry *time.Timer // ends the socket with its token; may be nil. The reader's.
	watch  func()      // ends the watch on the caller's access; may be nil. The reader's.
	ready  bool        // connection_init was accepted. The reader's.

	writing sync.Mutex // held by whoever writes a message

	mu         sync.Mutex // guards what follows
	ended      bool       // a close frame was sent, or tried
	operations map[string]*operation
	running    sync.WaitGroup // pings and operations
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
	defer s.conn.Close() //nolint:errcheck // closed twice at worst
	defer s.cancel()
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
		if s.watch != nil {
			s.watch()
		}
	}()
	s.conn.SetReadLimit(maxBody)
	s.conn.SetPongHandler(func(string) error { return s.alive() })
	s.conn.SetPingHandler(func(data string) error {
		s.conn.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(s.pace.write)) //nolint:errcheck // the reader finds out
		return s.alive()
	})
	ctx := s.ctx // the reader changes the field
	s.running.Go(func() { s.ping(ctx) })
	s.read()
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
		if s.isEnded() {
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
		defer s.mu.Unlock()
		if o := s.operations[m.ID]; o != nil {
			delete(s.operations, m.ID)
			o.cancel()
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
	s.ctx = auth.WithIdentity(s.ctx, identity)
	if !identity.ExpiresAt.IsZero() {
		s.expiry = time.AfterFunc(time.Until(identity.ExpiresAt), func() { s.end(closeForbidden, "The access token has expired") })
	}
	s.watch = s.auth.OnBlocked(identity, func() { s.end(closeForbidden, accessBlocked) })
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
	params.Headers = s.header
	ctx, cancel := context.WithCancel(s.ctx)
	o := &operation{socket: s, id: m.ID, cancel: cancel}

	s.mu.Lock()
	_, duplicate := s.operations[m.ID]
	full := len(s.operations) >= maxOperations
	if !duplicate && !full && !s.ended {
		s.operations[m.ID] = o
		s.running.Go(func() { o.run(ctx, params) })
	} else {
		cancel()
	}
	s.mu.Unlock()
	switch {
	case duplicate:
		s.end(closeDuplicate, "Subscriber for "+m.ID[:min(len(m.ID), 80)]+" already exists")
	case full:
		refusal := booking.Refuse(booking.Invalid, "A socket may have %d operations at once. Complete one first, or open another socket.", maxOperations)
		s.send(errorMessage(m.ID, s.exec.DispatchError(ctx, asList(refusal)).Errors))
	}
}

// send writes a message. What can't be written ends the socket; there is nobody to tell.
func (s *socket) send(m message) {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err) // payloads are JSON
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	s.conn.SetWriteDeadline(time.Now().Add(s.pace.write)) //nolint:errcheck // the write finds out
	err = s.conn.WriteMessage(websocket.TextMessage, text)
	if err != nil && !errors.Is(err, websocket.ErrCloseSent) {
		s.mark()
		s.conn.Close() //nolint:errcheck // the reader then returns
	}
}

// ping sends pings, so that the peer's pongs, or their absence, tell whether it is there.
func (s *socket) ping(ctx context.Context) {
	ticker := time.NewTicker(s.pace.ping)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(s.pace.write)) != nil {
				s.conn.Close() //nolint:errcheck // the reader then returns
				return
			}
		}
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
	defer s.mu.Unlock()
	first := !s.ended
	s.ended = true
	s.cancel()
	return first
}

func (s *socket) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}
