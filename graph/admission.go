package graph

import (
	"cmp"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"openslot/internal/booking"
)

// SocketLimits is how many websockets one instance keeps open at once; 0 = the default.
type SocketLimits struct {
	Total      int // of all; default 20,000
	PerActor   int // of one patient or staff member; default 20
	PerPartner int // of one partner, or the operators; default 200
	PerPeer    int // of one network address, of those without a token; default 1,000
}

// comeBack is when a client that found no room may try again.
const comeBack = 10 * time.Second

// admission counts sockets. Each is counted as its actor's, once it is known, before that and for
// anonymous ones as their address's: everybody behind one router looks alike, so that limit is wide.
type admission struct {
	limits  SocketLimits
	trusted []netip.Prefix

	mu     sync.Mutex
	total  int
	places map[string]int
}

func newAdmission(limits SocketLimits, trusted []netip.Prefix) *admission {
	return &admission{trusted: trusted, places: map[string]int{}, limits: SocketLimits{
		Total:      cmp.Or(limits.Total, 20_000),
		PerActor:   cmp.Or(limits.PerActor, 20),
		PerPartner: cmp.Or(limits.PerPartner, 200),
		PerPeer:    cmp.Or(limits.PerPeer, 1_000),
	}}
}

// enter counts a socket in, and returns as what; or says that there is no room.
func (a *admission) enter(actor booking.Actor, r *http.Request) (place string, full *problem) {
	place, limit := a.placeOf(actor)
	if place == "" {
		place, limit = "address:"+a.peer(r).String(), a.limits.PerPeer
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.total >= a.limits.Total:
		return "", &problem{http.StatusServiceUnavailable, booking.Overloaded, "This instance has no room for more connections. Connect again."}
	case a.places[place] >= limit:
		return "", &problem{http.StatusTooManyRequests, booking.RateLimited, "You have too many connections open. Close some first."}
	}
	a.total++
	a.places[place]++
	return place, nil
}

// leave counts a socket out.
func (a *admission) leave(place string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	a.release(place)
}

func (a *admission) release(place string) {
	if a.places[place]--; a.places[place] <= 0 {
		delete(a.places, place)
	}
}

// move counts a socket as its actor's, if there is room.
func (a *admission) move(s *socket, actor booking.Actor) bool {
	place, limit := a.placeOf(actor)
	if place == "" || place == s.place {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.places[place] >= limit {
		return false
	}
	a.places[place]++
	a.release(s.place)
	s.place = place
	return true
}

// placeOf is as what an actor's sockets are counted, and how many there may be; "" for nobody.
func (a *admission) placeOf(actor booking.Actor) (place string, limit int) {
	switch actor.Kind {
	case booking.Anonymous:
		return "", 0
	case booking.Partner, booking.System:
		return actor.Caller(), a.limits.PerPartner
	case booking.Staff: // subjects of two organizations may be spelled alike
		return actor.Caller() + "@" + actor.Organization.String(), a.limits.PerActor
	default:
		return actor.Caller(), a.limits.PerActor
	}
}

// peer is the network that a request comes from: an address, of IPv6 the /64 that one customer
// has at least. X-Forwarded-For counts as far as proxies of ours have written it, which is from the
// right; what is left of that anybody can invent.
func (a *admission) peer(r *http.Request) netip.Prefix {
	remote, _ := netip.ParseAddrPort(r.RemoteAddr)
	peer := remote.Addr().Unmap()
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		if !slices.ContainsFunc(a.trusted, func(p netip.Prefix) bool { return p.Contains(peer) }) {
			break
		}
		before, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		peer = before.Unmap()
	}
	bits := 32
	if peer.Is6() {
		bits = 64
	}
	network, _ := peer.WithZone("").Prefix(bits)
	return network
}
