package graph

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/gorilla/websocket"
	"golang.org/x/time/rate"

	"openslot/internal/auth"
	"openslot/internal/booking"
	"openslot/internal/live"
)

// subprotocol is the only one spoken here. The older graphql-ws has no acknowledged end of
// anything and is refused at the door, as is a client that names none.
const subprotocol = "graphql-transport-ws"

// How a socket ends: the codes of graphql-transport-ws, and those of RFC 6455 that its clients
// come back after. Too many sockets are a matter of now, so whoever has them is told to come back
// (later, the longer the more often: the clients do that by themselves); 4429, which would look apt,
// means something else and ends a client for good. So does 1008: who sends that much is broken.
const (
	closeGoingAway     = websocket.CloseGoingAway
	closeTryLater      = websocket.CloseTryAgainLater
	closePolicy        = websocket.ClosePolicyViolation
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
	init   time.Duration // for connection_init to come
	ping   time.Duration // from one ping of ours to the next
	quiet  time.Duration // without a sign of life, pongs included, the peer is dead
	probe  time.Duration // from an update to a ping: has it been read?
	answer time.Duration // for the sign of life after that; with probe less than 10 s
	write  time.Duration // for one frame to leave
	bye    time.Duration // for the peer to answer our close
}

var defaultPace = pace{init: 3 * time.Second, ping: 15 * time.Second, quiet: 40 * time.Second,
	probe: 4 * time.Second, answer: 5 * time.Second, write: 5 * time.Second, bye: 2 * time.Second}

// sockets are all the open websockets of a handler.
type sockets struct {
	exec      graphql.GraphExecutor
	auth      *auth.Authenticator
	responses *responses
	origins   []string // besides the host's own, as scheme://host[:port]
	pace      pace
	spread    time.Duration // over which close ends them
	upgrader  websocket.Upgrader
	admission *live.Admission
	shapes    *shapes
	courier   courier

	mu      sync.Mutex
	changed *sync.Cond // one has left
	open    map[*socket]struct{}
	closing bool
}

func newSockets(exec graphql.GraphExecutor, parts Parts, responses *responses) *sockets {
	s := &sockets{
		exec: exec, auth: parts.Auth, responses: responses, origins: parts.AllowedOrigins,
		pace: defaultPace, spread: parts.CloseSpread, admission: parts.Admission,
		shapes: newShapes(), open: map[*socket]struct{}{},
		upgrader: websocket.Upgrader{
			Subprotocols:    []string{subprotocol},
			CheckOrigin:     func(*http.Request) bool { return true }, // checked before
			ReadBufferSize:  512,                                      // most messages are smaller
			WriteBufferSize: 512,
			WriteBufferPool: &sync.Pool{}, // unused: see wire
			Error: func(w http.ResponseWriter, _ *http.Request, status int, _ error) {
				refuse(w, mediaJSON, invalid(status, "This is no websocket handshake."))
			},
		},
	}
	s.changed = sync.NewCond(&s.mu)
	return s
}

// ServeHTTP turns a request into a socket, which then serves itself: the request ends here, with
// all that the server keeps for one.
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
	identity := auth.IdentityFrom(r.Context())
	place, full := s.admission.Enter(identity.Actor, r)
	if full != nil {
		w.Header().Set("Retry-After", strconv.Itoa(seconds(live.ComeBack)))
		refuse(w, mediaJSON, noRoom(full))
		return
	}
	hijacker := &hijacker{ResponseWriter: w, patience: s.pace.write}
	conn, err := s.upgrader.Upgrade(hijacker, r, nil)
	if err != nil { // answered by the upgrader
		s.admission.Leave(place)
		return
	}
	sock := &socket{sockets: s, conn: conn, wire: hijacker.wire, place: place, request: r.Header.Get(requestIDHeader), rate: rate.NewLimiter(maxRate, maxBurst)}
	sock.ctx, sock.cancel = context.WithCancel(auth.WithIdentity(context.Background(), identity))
	sock.pinger = time.AfterFunc(s.pace.ping, sock.ping)
	s.enter(sock)
	go func() {
		defer s.leave(sock)
		sock.serve()
	}()
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
		go sock.leave()
	}
}

func (s *sockets) leave(sock *socket) {
	s.admission.Leave(sock.place)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, sock)
	if s.closing {
		s.changed.Broadcast()
	}
}

// close takes no more sockets, ends all with 1001 and waits until they are gone or ctx is over.
func (s *sockets) close(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.wake)()
	s.mu.Lock()
	first := !s.closing
	s.closing = true
	open := slices.Collect(maps.Keys(s.open))
	s.mu.Unlock()
	if first {
		s.dismiss(ctx, open)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.open) > 0 && ctx.Err() == nil {
		s.changed.Wait()
	}
	if len(s.open) > 0 {
		return fmt.Errorf("graph: %d sockets are still open: %w", len(s.open), ctx.Err())
	}
	return nil
}

const (
	dismissals   = 200                  // steps in which sockets are ended, at most
	perDismissal = 5 * time.Millisecond // for a socket, if there are few
)

// dismiss ends sockets in random order, a few at a time: their clients come back, and the instances
// that take them in have snapshots to read for each.
func (s *sockets) dismiss(ctx context.Context, open []*socket) {
	steps := max(1, min(len(open), dismissals))
	pause := s.spreadOver(ctx, len(open)) / time.Duration(steps)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for step := range steps {
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		for _, sock := range open[len(open)*step/steps : len(open)*(step+1)/steps] {
			go sock.leave() // it takes one write deadline at most
		}
		timer.Reset(pause)
	}
}

// spreadOver is how long it takes to end n sockets. The last of them have time to say goodbye before
// ctx ends.
func (s *sockets) spreadOver(ctx context.Context, n int) time.Duration {
	spread := min(s.spread, time.Duration(n)*perDismissal)
	if end, ok := ctx.Deadline(); ok {
		spread = min(spread, time.Until(end)-s.pace.bye-s.pace.write)
	}
	return max(0, spread)
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
