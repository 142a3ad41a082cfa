package e2e

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// leastPause is the shortest that a client may wait before it comes back. Connections that are
// closer than that are hammering.
const leastPause = 300 * time.Millisecond

// ward is a clinic with one slot, of two places, that programs watch.
type ward struct {
	*clinic
	slot int64
	stop func() // the instance
}

func newWard(t *testing.T) *ward {
	c := newClinic(t, 0)
	c.config.JWT.Leeway = time.Millisecond // a token's end is its end
	w := &ward{clinic: c}
	w.restart()
	w.slot = c.slots(1, 10)[0]
	return w
}

// restart starts an instance; stop ends it.
func (w *ward) restart() {
	base, stop := w.startInstance()
	w.instances, w.stop = []string{base}, stop
}

// arguments say what is watched.
func (w *ward) arguments() []string {
	return []string{strconv.FormatInt(w.doctor, 10), time.Now().UTC().Format(time.DateOnly), "16"}
}

// take takes a place, behind everybody's back.
func (w *ward) take() {
	w.exec(`UPDATE time_slot SET booked_count = booked_count + 1 WHERE id = $1`, w.slot)
}

// deafen kills the connection that the feed listens on, and takes a place meanwhile.
func (w *ward) deafen() {
	w.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'openslot-live' AND datname = current_database()`)
	w.take()
}

// The page that tells how to watch is right: what it shows, as it stands there, goes on showing
// the truth through bookings, a lost LISTEN, a deploy with nobody there for a while, and tokens that expire
// again and again, without hammering; and ends when it is told to.
func TestClients(t *testing.T) {
	t.Parallel()
	folder := libraries(t)
	t.Run("Snippets", func(t *testing.T) { t.Parallel(); testSnippets(t, folder) })
	t.Run("WrongToken", func(t *testing.T) { t.Parallel(); testWrongToken(t, folder) })
	t.Run("ExpiredToken", func(t *testing.T) { t.Parallel(); testExpiredToken(t, folder) })
	t.Run("DuplicateID", func(t *testing.T) { t.Parallel(); testDuplicateID(t, folder) })
	t.Run("Deploy", func(t *testing.T) { t.Parallel(); testDeploy(t, folder) })
	t.Run("SignedOut", func(t *testing.T) { t.Parallel(); testSignedOut(t, folder) })
}

func testSnippets(t *testing.T, folder string) {
	w := newWard(t)
	d := w.desk(time.Hour)
	var pages []*page
	for _, name := range []string{"graphql-ws.js", "urql.js", "apollo.js", "plain.js"} {
		f := newFront(t, w.instances[0])
		own, snippets := programs(t, folder, f, d)
		if !slices.Contains(snippets, name) {
			t.Fatalf("docs/live.md has no %s: %v", name, snippets)
		}
		pages = append(pages, open(t, own, f, append([]string{"snippet.mjs", name}, w.arguments()...)...))
	}
	all := func(free int, what string) {
		t.Helper()
		for _, p := range pages {
			p.shows(w.slot, free, what)
		}
	}
	counts := func() (n []int) {
		for _, p := range pages {
			n = append(n, p.front.count())
		}
		return n
	}
	all(10, "the snapshot")
	if b := book(w.instances[0], w.token("patient", "1"), w.slot, "k"); b.id == "" {
		t.Fatalf("%s", b.body)
	}
	all(9, "a booking")
	w.deafen()
	all(8, "a change while the feed was lost")
	if n := counts(); slices.Max(n) != 1 {
		t.Errorf("%v sockets were opened, though nothing has happened to them", n)
	}

	// A deploy: nobody is there for as long as it takes every page to try once.
	for _, p := range pages {
		p.front.lead("")
	}
	w.stop()
	w.take()
	for _, p := range pages {
		p.until("another try", func() bool { return p.front.count() >= 2 })
	}
	w.config.JWT.Secret = strings.Repeat("t", 32) // and the old tokens are good no longer
	d.give(w.config.JWT, 2*time.Second)
	w.restart()
	for _, p := range pages {
		p.front.lead(w.instances[0])
	}
	all(7, "a change in the middle of a deploy")

	// Tokens expire, and the pages come back with fresh ones.
	before := counts()
	for i, p := range pages {
		p.until("two more tokens", func() bool { return p.front.count() >= before[i]+2 })
	}
	d.give(w.config.JWT, time.Hour)
	w.take()
	all(6, "a change after tokens have expired")
	for _, p := range pages {
		if problems := p.problems(); len(problems) > 0 {
			t.Errorf("%v says %q", p.command.Args, problems)
		}
		if least := p.front.shortest(); least < leastPause {
			t.Errorf("%v came back after %v", p.command.Args, least)
		}
		p.stop()
	}
}

// library opens graphql-ws as it is.
func (w *ward) library(t *testing.T, folder string, d *desk, ids string) *page {
	t.Helper()
	f := newFront(t, w.instances[0])
	own, _ := programs(t, folder, f, d)
	return open(t, own, f, append([]string{"library.mjs", f.socket(), d.url, ids}, w.arguments()...)...)
}

// failed waits until the library has given up, and holds against what it should have met.
func (p *page) failed(n int, code int, sockets int) {
	p.t.Helper()
	p.until("it gives up", func() bool {
		problems := 0
		for _, l := range p.lines {
			if l.Problem != "" {
				problems++
			}
		}
		return problems == n
	})
	for _, problem := range p.problems() {
		if !strings.HasPrefix(problem, strconv.Itoa(code)+" ") {
			p.t.Errorf("it says %q, want %d", problem, code)
		}
	}
	if codes := p.codes(); len(codes) != sockets || codes[len(codes)-1] != code {
		p.t.Errorf("sockets ended with %v, want %d, the last with %d", codes, sockets, code)
	}
	if got := p.front.count(); got != sockets {
		p.t.Errorf("%d sockets, want %d", got, sockets)
	}
	if least := p.front.shortest(); least < leastPause {
		p.t.Errorf("it came back after %v", least)
	}
	p.stop()
}

// A wrong token: the library tries as often as it was told to, with pauses, and says why it gives up.
func testWrongToken(t *testing.T, folder string) {
	w := newWard(t)
	w.library(t, folder, w.desk(0), "own").failed(1, 4403, 3)
}

// A token that expires, and an app that has no other: the socket ends then, with a reason, and the rest
// is as with a wrong one.
func testExpiredToken(t *testing.T, folder string) {
	w := newWard(t)
	p := w.library(t, folder, w.desk(5*time.Second), "own")
	p.shows(w.slot, 10, "the snapshot")
	p.until("its end", func() bool { return len(p.lines) > 0 })
	if first := p.lines[0]; first.Code != 4403 || !strings.Contains(first.Reason, "expired") {
		t.Errorf("the socket ended with %+v", first)
	}
	p.failed(1, 4403, 3)
}

// An id twice on one socket is a mistake: both operations end, and nobody comes back to do it again.
func testDuplicateID(t *testing.T, folder string) {
	w := newWard(t)
	w.library(t, folder, w.desk(time.Hour), "same").failed(2, 4409, 1)
}

// A lost LISTEN is not the clients' business. A deploy is: they come back once.
func testDeploy(t *testing.T, folder string) {
	w := newWard(t)
	p := w.library(t, folder, w.desk(time.Hour), "own")
	p.shows(w.slot, 10, "the snapshot")
	w.deafen()
	p.shows(w.slot, 9, "a change while the feed was lost")
	if n := p.front.count(); n != 1 {
		t.Errorf("%d sockets after a lost LISTEN", n)
	}
	old := w.stop
	w.restart()
	p.front.lead(w.instances[0])
	old()
	w.take()
	p.shows(w.slot, 8, "a change after a deploy")
	if codes := p.codes(); len(codes) != 1 || codes[0] != 1001 {
		t.Errorf("sockets ended with %v, want 1001", codes)
	}
	if n := p.front.count(); n != 2 {
		t.Errorf("%d sockets after a deploy, want 2", n)
	}
	if least := p.front.shortest(); least < leastPause {
		t.Errorf("it came back after %v", least)
	}
	p.stop()
}

// Who is signed out is told so, once, and left in peace.
func testSignedOut(t *testing.T, folder string) {
	w := newWard(t)
	d := w.desk(-1)
	for name, sockets := range map[string]int{"graphql-ws.js": 1, "plain.js": 0} {
		f := newFront(t, w.instances[0])
		own, _ := programs(t, folder, f, d)
		p := open(t, own, f, append([]string{"snippet.mjs", name}, w.arguments()...)...)
		p.until("it fails", func() bool { return len(p.lines) > 0 })
		if problems := p.problems(); len(problems) != 1 || problems[0] != "Sign in again." {
			t.Errorf("%s says %q", name, problems)
		}
		p.stop()
		if n := f.count(); n != sockets {
			t.Errorf("%s opened %d sockets, want %d", name, n, sockets)
		}
	}
}
