package live

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

// Limits is how many connections of screens, websockets and event streams, one instance keeps open
// at once; 0 = the default.
type Limits struct {
	Total      int // of all; default 20,000
	PerActor   int // of one patient or staff member; default 20
	PerPartner int // of one partner, or the operators; default 200
	PerPeer    int // of one network address, of those without a token; default 1,000
}

// ComeBack is when a client that found no room may try again.
const ComeBack = 10 * time.Second

// Admission counts connections of all transports. Each is counted as its actor's, once it is known,
// before that and for anonymous ones as their address's: everybody behind one router looks alike, so
// that limit is wide.
type Admission struct {
	limits  Limits
	trusted []netip.Prefix

	mu     sync.Mutex
	total  int
	places map[Place]int
}

// Place is as what a connection is counted.
type Place string

// NewAdmission counts from nothing. Trusted are the networks of proxies whose X-Forwarded-For says
// who an anonymous peer is.
func NewAdmission(limits Limits, trusted []netip.Prefix) *Admission {
	return &Admission{trusted: trusted, places: map[Place]int{}, limits: Limits{
		Total:      cmp.Or(limits.Total, 20_000),
		PerActor:   cmp.Or(limits.PerActor, 20),
		PerPartner: cmp.Or(limits.PerPartner, 200),
		PerPeer:    cmp.Or(limits.PerPeer, 1_000),
	}}
}

// Enter counts a connection in, until Leave. It refuses with OVERLOADED where the instance has no
// room for more, and with RATE_LIMITED where the actor or, if that is nobody, the peer has too many.
func (a *Admission) Enter(actor booking.Actor, r *http.Request) (place Place, full *booking.Error) {
	place, limit := a.placeOf(actor)
	if place == "" {
		place, limit = Place("address:"+a.peer(r).String()), a.limits.PerPeer
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.total >= a.limits.Total:
		return "", noRoom(booking.Overloaded, "This instance has no room for more connections. Connect again.")
	case a.places[place] >= limit:
		return "", noRoom(booking.RateLimited, "You have too many connections open. Close some first.")
	}
	a.total++
	a.places[place]++
	return place, nil
}

func noRoom(code booking.Code, message string) *booking.Error {
	return &booking.Error{Code: code, Message: message, RetryAfter: ComeBack}
}

// Leave counts a connection out.
func (a *Admission) Leave(place Place) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.total--
	a.release(place)
}

func (a *Admission) release(place Place) {
	if a.places[place]--; a.places[place] <= 0 {
		delete(a.places, place)
	}
}

// Move counts a connection as its actor's from now on, if there is room, and returns its place.
func (a *Admission) Move(from Place, actor booking.Actor) (place Place, ok bool) {
	place, limit := a.placeOf(actor)
	if place == "" || place == from {
		return from, true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.places[place] >= limit {
		return from, false
	}
	a.places[place]++
	a.release(from)
	return place, true
}

// Open is how many connections there are.
func (a *Admission) Open() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.total
}

// placeOf is as what an actor's connections are counted, and how many there may be; "" for nobody.
func (a *Admission) placeOf(actor booking.Actor) (place Place, limit int) {
	switch actor.Kind {
	case booking.Anonymous:
		return "", 0
	case booking.Partner, booking.System:
		return Place(actor.Caller()), a.limits.PerPartner
	case booking.Staff: // subjects of two organizations may be spelled alike
		return Place(actor.Caller() + "@" + actor.Organization.String()), a.limits.PerActor
	default:
		return Place(actor.Caller()), a.limits.PerActor
	}
}

// peer is the network that a request comes from: an address, of IPv6 the /64 that one customer
// has at least. X-Forwarded-For counts as far as proxies of ours have written it, which is from the
// right; what is left of that anybody can invent.
func (a *Admission) peer(r *http.Request) netip.Prefix {
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
