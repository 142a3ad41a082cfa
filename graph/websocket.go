package graph

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"

	"openslot/internal/auth"
	"openslot/internal/booking"
)

// subprotocol is the only one spoken here. The older graphql-ws has no acknowledged end of
// anything and is refused at the door, as is a client that names none.
const subprotocol = "graphql-transport-ws"

// How a socket ends: the codes of graphql-transport-ws, and those of RFC 6455 that its clients
// come back after.
const (
	closeGoingAway     = websocket.CloseGoingAway
	closeTryLater      = websocket.CloseTryAgainLater
	closeMalformed     = 4400
	closeUnauthorized  = 4401
	closeForbidden     = 4403
	closeInitTimeout   = 4408
	closeDuplicate     = 4409
	closeSecondInit    = 4429
	closeInternalError = 4500
)

// pace holds the time limits of sockets; tests have shorter ones.
type pace struct {
	init  time.Duration // for connection_init to come
	ping  time.Duration // from one ping of ours to the next
	quiet time.Duration // without a sign of life, pongs included, the peer is dead
	write time.Duration // for one frame to leave
	bye   time.Duration // for the peer to answer our close
}

var defaultPace = pace{init: 3 * time.Second, ping: 15 * time.Second, quiet: 40 * time.Second, write: 5 * time.Second, bye: 2 * time.Second}

// sockets are all the open websockets of a handler.
type sockets struct {
	exec     graphql.GraphExecutor
	auth     *auth.Authenticator
	origins  []string // besides the host's own, as scheme://host[:port]
	pace     pace
	upgrader websocket.Upgrader

	mu      sync.Mutex
	changed *sync.Cond // one has left
	open    map[*socket]struct{}
	closing bool
}

func newSockets(exec graphql.GraphExecutor, authenticator *auth.Authenticator, origins []string) *sockets {
	s := &sockets{
		exec: exec, auth: authenticator, origins: origins, pace: defaultPace, open: map[*socket]struct{}{},
		upgrader: websocket.Upgrader{
			Subprotocols:    []string{subprotocol},
			CheckOrigin:     func(*http.Request) bool { return true }, // checked before
			ReadBufferSize:  1024,
			WriteBufferSize: 1024,
			WriteBufferPool: &sync.Pool{},
			Error: func(w http.ResponseWriter, _ *http.Request, status int, _ error) {
				refuse(w, mediaJSON, invalid(status, "This is no websocket handshake."))
			},
		},
	}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// ServeHTTP turns a request into a socket and serves it until it ends.
func (s *sockets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !allowedOrigin(r, s.origins):
		refuse(w, mediaJSON, &problem{http.StatusForbidden, booking.Forbidden, "Pages of this origin may not connect."})
		return
	case !slices.Contains(websocket.Subprotocols(r), subprotocol):
		refuse(w, mediaJSON, invalid(http.StatusBadRequest, "Speak the subprotocol "+subprotocol+"."))
		return
	}
	if s.isClosing() {
		w.Header().Set("Retry-After", "1")
		refuse(w, mediaJSON, &problem{http.StatusServiceUnavailable, booking.Unavailable, "This instance is going away. Connect again."})
		return
	}
	conn, err := s.upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // answered by the upgrader
	}
	sock := &socket{sockets: s, conn: conn, header: r.Header, operations: map[string]*operation{}}
	// The request's own context means nothing any more once its connection is hijacked.
	sock.ctx, sock.cancel = context.WithCancel(context.WithoutCancel(r.Context()))
	s.enter(sock)
	defer s.leave(sock)
	sock.serve()
}

func (s *sockets) isClosing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// enter counts a socket in. One that comes while all are to end ends as well.
func (s *sockets) enter(sock *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[sock] = struct{}{}
	if s.closing {
		go sock.end(closeGoingAway, goingAway)
	}
}

func (s *sockets) leave(sock *socket) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, sock)
	s.changed.Broadcast()
}

// close takes no more sockets, ends all with 1001 and waits until they are gone or ctx is over.
func (s *sockets) close(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.wake)()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closing {
		s.closing = true
		for sock := range s.open {
			go sock.end(closeGoingAway, goingAway) // it takes one write deadline at most
		}
	}
	for len(s.open) > 0 && ctx.Err() == nil {
		s.changed.Wait()
	}
	if len(s.open) > 0 {
		return fmt.Errorf("graph: %d sockets are still open: %w", len(s.open), ctx.Err())
	}
	return nil
}

func (s *sockets) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed.Broadcast()
}

const goingAway = "This instance is going away"

// allowedOrigin reports whether a page may connect. A browser always says whose page it is. A
// client that says nothing is no browser, and nobody's cookies or network give it any standing:
// what counts here is a token alone, which no page sends by itself.
func allowedOrigin(r *http.Request, origins []string) bool {
	values := r.Header.Values("Origin")
	if len(values) == 0 {
		return true
	}
	if len(values) > 1 {
		return false
	}
	u, err := url.Parse(values[0])
	return err == nil && u.Host != "" &&
		(strings.EqualFold(u.Host, r.Host) || slices.ContainsFunc(origins, func(o string) bool { return strings.EqualFold(o, values[0]) }))
}
