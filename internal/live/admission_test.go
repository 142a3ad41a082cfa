package live

import (
	"net/http"
	"net/netip"
	"testing"

	"openslot/internal/booking"
)

// Every place is given back, whoever's it was and became.
func TestAdmissionCountsOut(t *testing.T) {
	t.Parallel()
	a := NewAdmission(Limits{Total: 3, PerActor: 1, PerPeer: 2}, nil)
	r := &http.Request{RemoteAddr: "203.0.113.5:80"}
	patient := booking.Actor{Kind: booking.Patient, Subject: "a"}
	enter := func(actor booking.Actor, want booking.Code) Place {
		t.Helper()
		place, full := a.Enter(actor, r)
		if (full == nil) != (want == "") || full != nil && (full.Code != want || full.RetryAfter != ComeBack) {
			t.Fatalf("%+v: %v, want %q", actor, full, want)
		}
		return place
	}
	first, second := enter(booking.Actor{}, ""), enter(booking.Actor{}, "")
	enter(booking.Actor{}, booking.RateLimited)
	first, ok := a.Move(first, patient)
	if !ok {
		t.Fatal("no room for the patient")
	}
	if _, ok := a.Move(second, patient); ok {
		t.Error("room for a patient's second")
	}
	enter(patient, booking.RateLimited)
	third := enter(booking.Actor{}, "") // the place that the first one left
	enter(booking.Actor{Kind: booking.Patient, Subject: "b"}, booking.Overloaded)
	for _, place := range []Place{first, second, third} {
		a.Leave(place)
	}
	if a.Open() != 0 || len(a.places) != 0 {
		t.Errorf("left: %d, %v", a.Open(), a.places)
	}
}

// Who an anonymous peer is: never what it says itself.
func TestPeer(t *testing.T) {
	t.Parallel()
	a := NewAdmission(Limits{}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")})
	for _, tt := range []struct {
		remote    string
		forwarded []string
		want      string
	}{
		{"203.0.113.5:80", nil, "203.0.113.5/32"},
		{"203.0.113.5:80", []string{"198.51.100.1"}, "203.0.113.5/32"}, // no proxy of ours
		{"10.1.2.3:80", nil, "10.1.2.3/32"},
		{"10.1.2.3:80", []string{"198.51.100.1"}, "198.51.100.1/32"},
		{"10.1.2.3:80", []string{"1.1.1.1, 198.51.100.1"}, "198.51.100.1/32"},             // 1.1.1.1 is invented
		{"10.1.2.3:80", []string{"1.1.1.1", "198.51.100.1 ,10.9.9.9"}, "198.51.100.1/32"}, // two proxies, two headers
		{"10.1.2.3:80", []string{"198.51.100.1, nonsense"}, "10.1.2.3/32"},
		{"10.1.2.3:80", []string{"10.9.9.9"}, "10.9.9.9/32"},
		{"[fd00::1]:80", []string{"2001:db8:1:2:3::4"}, "2001:db8:1:2::/64"},
		{"[2001:db8::1%eth0]:80", []string{"1.1.1.1"}, "2001:db8::/64"},
		{"[::ffff:203.0.113.5]:80", nil, "203.0.113.5/32"},
		{"@", nil, "invalid Prefix"},
	} {
		r := &http.Request{RemoteAddr: tt.remote, Header: http.Header{"X-Forwarded-For": tt.forwarded}}
		if got := a.peer(r).String(); got != tt.want {
			t.Errorf("%s %q: %s, want %s", tt.remote, tt.forwarded, got, tt.want)
		}
	}
}
