package e2e

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// front is the address at which clients find whichever instance there is. It counts who comes.
type front struct {
	address string

	mu      sync.Mutex
	backend string // host:port; "" = there is none, who comes is sent away at once
	came    []time.Time
}

// newFront leads to the instance at base.
func newFront(t testing.TB, base string) *front {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &front{address: socket.Addr().String()}
	f.lead(base)
	var serving sync.WaitGroup
	ended := make(chan struct{})
	serving.Go(func() {
		for {
			conn, err := socket.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { f.serve(conn, ended) })
		}
	})
	t.Cleanup(func() {
		_ = socket.Close()
		close(ended)
		serving.Wait()
	})
	return f
}

// socket is where websockets go.
func (f *front) socket() string { return "ws://" + f.address + "/graphql" }

// lead sends whoever comes from now on to the instance at base, or away.
func (f *front) lead(base string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backend = ""
	if base != "" {
		f.backend = base[len("http://"):]
	}
}

func (f *front) serve(conn net.Conn, ended <-chan struct{}) {
	defer conn.Close()
	f.mu.Lock()
	f.came = append(f.came, time.Now())
	backend := f.backend
	f.mu.Unlock()
	if backend == "" {
		return
	}
	there, err := net.Dial("tcp", backend)
	if err != nil {
		return
	}
	defer there.Close()
	var both sync.WaitGroup
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{conn, there}, {there, conn}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		})
	}
	select {
	case <-done:
	case <-ended:
	}
	_ = conn.Close()
	_ = there.Close()
	both.Wait()
}

// count is how many connections have come.
func (f *front) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.came)
}

// shortest is the shortest time between two of them.
func (f *front) shortest() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	least := time.Hour
	for i := 1; i < len(f.came); i++ {
		least = min(least, f.came[i].Sub(f.came[i-1]))
	}
	return least
}
