package e2e

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// resources is what sockets take of a process.
type resources struct {
	goroutines, descriptors int
	heap                    int64 // bytes that are in use
}

func inUse(t *testing.T) resources {
	t.Helper()
	runtime.GC()
	runtime.GC() // what the first has found to be finalised
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	r := resources{goroutines: runtime.NumGoroutine(), heap: int64(m.HeapAlloc)}
	if entries, err := os.ReadDir("/proc/self/fd"); err == nil { // elsewhere it is 0, then and now
		r.descriptors = len(entries)
	}
	return r
}

// over says whether r is more than base, apart from what comes and goes by itself.
func (r resources) over(base resources) bool {
	return r.goroutines > base.goroutines+5 || r.descriptors > base.descriptors+5 || r.heap > base.heap+1<<20
}

// crowdSize is how many sockets are open at once.
const crowdSize = 500

// Sockets come, subscribe, and go, in an orderly way or not: what they took is given back. Not
// parallel, since everything in the process counts.
func TestSocketsLeaveNothing(t *testing.T) {
	c := newClinic(t, 1)
	slots := c.slots(20, 5)
	waves := 1
	if os.Getenv("OPENSLOT_LONG") != "" {
		waves = 20
	}
	before := inUse(t)
	var base resources
	for wave := range waves + 1 { // the first shows what stays for good: pools, plans, buffers
		open := c.crowd(t, crowdSize)
		c.exec(`UPDATE time_slot SET booked_count = (booked_count + 1) % 5 WHERE id = $1`, slots[wave%len(slots)])
		for _, socket := range open {
			if _, text, err := socket.ReadMessage(); err != nil || !strings.Contains(string(text), "DELTA") {
				t.Fatalf("after a change: %s, %v", text, err)
			}
		}
		if wave == 1 {
			// A check that does not see five hundred open sockets would not see those that stay.
			if now := inUse(t); !now.over(base) {
				t.Errorf("the control: with %d sockets open there is %+v, without %+v", crowdSize, now, base)
			}
		}
		part(t, open)
		if wave == 0 {
			base = c.quiet(t, resources{before.goroutines + 40, before.descriptors + 40, 1 << 40})
			continue
		}
		c.quiet(t, base)
	}
}

// quiet waits until no more is in use than at most, and returns it.
func (c *clinic) quiet(t *testing.T, most resources) resources {
	t.Helper()
	for giveUp := time.Now().Add(patience); ; {
		now := inUse(t)
		if !now.over(most) {
			return now
		}
		if time.Now().After(giveUp) {
			t.Fatalf("all sockets have gone, and there is %+v instead of %+v", now, most)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// crowd opens n sockets, each with a subscription that has had its snapshot.
func (c *clinic) crowd(t *testing.T, n int) []*websocket.Conn {
	t.Helper()
	open := make([]*websocket.Conn, n)
	var coming sync.WaitGroup
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	for range 16 {
		coming.Go(func() {
			for i := range next {
				socket, err := c.subscriber(i)
				if err != nil {
					t.Error(err)
					return
				}
				open[i] = socket
			}
		})
	}
	coming.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return open
}

// subscriber opens socket number i, from an address that few others have.
func (c *clinic) subscriber(i int) (*websocket.Conn, error) {
	from := &net.Dialer{Timeout: patience}
	if runtime.GOOS == "linux" { // where all of 127.0.0.0/8 is this machine
		from.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%250))}
	}
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, HandshakeTimeout: patience, NetDialContext: from.DialContext}
	socket, _, err := dialer.Dial("ws"+strings.TrimPrefix(c.instances[0], "http")+"/graphql", nil)
	if err != nil {
		return nil, err
	}
	_ = socket.SetReadDeadline(time.Now().Add(patience))
	subscribe := fmt.Sprintf(`{"id":"1","type":"subscribe","payload":{"query":"subscription { availability(doctorIds: [%d], from: \"%s\", days: 16) { kind slots { id free version } } }"}}`,
		c.doctor, time.Now().UTC().Format(time.DateOnly))
	for _, message := range []string{`{"type":"connection_init"}`, subscribe} {
		if err := socket.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
			return nil, err
		}
	}
	for _, want := range []string{"connection_ack", "SNAPSHOT"} {
		if _, text, err := socket.ReadMessage(); err != nil || !strings.Contains(string(text), want) {
			return nil, fmt.Errorf("%s instead of %s, %w", text, want, err)
		}
	}
	return socket, nil
}

// part ends sockets: by the book, by hanging up, or with a reset as when a phone loses its network.
func part(t *testing.T, open []*websocket.Conn) {
	t.Helper()
	for i, socket := range open {
		switch i % 3 {
		case 0:
			_ = socket.WriteMessage(websocket.TextMessage, []byte(`{"id":"1","type":"complete"}`))
			_ = socket.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(patience))
		case 1:
			_ = socket.NetConn().(*net.TCPConn).SetLinger(0)
		}
		_ = socket.Close()
	}
}
