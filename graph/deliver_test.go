package graph

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/handler"
	"github.com/99designs/gqlgen/graphql/handler/transport"
	"github.com/gorilla/websocket"
	"github.com/vektah/gqlparser/v2"

	"openslot/internal/booking"
	"openslot/internal/live"
)

// What sockets cost, against a bare gorilla server that writes the same bytes, and gqlgen's own
// transport. The peers are another process (audience), so that only the server's work is counted.

const (
	audienceURL = "OPENSLOT_TEST_AUDIENCE" // "url number": be the audience of that server
	deltas      = `subscription($d:[ID!]!,$day:Date!){availability(doctorIds:$d,from:$day){kind doctorId slots{id startAt free capacity status version}}}`
)

// audience is many sockets that read, in a process of its own.
type audience struct {
	tb   testing.TB
	size int
	out  *bufio.Scanner
	seen int
}

// newAudience connects n sockets to url and subscribes each to deltas.
func newAudience(tb testing.TB, url string, n int, variables vars) *audience {
	tb.Helper()
	payload, err := json.Marshal(map[string]any{"query": deltas, "variables": variables})
	if err != nil {
		tb.Fatal(err)
	}
	cmd := exec.CommandContext(tb.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d %s", audienceURL, url, n, payload))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // its end ends the audience
	if err != nil {
		tb.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	return &audience{tb: tb, size: n, out: bufio.NewScanner(out)}
}

// await waits until every socket has been sent n updates.
func (a *audience) await(n int) {
	a.tb.Helper()
	for a.seen < n {
		if !a.out.Scan() {
			a.tb.Fatal("the audience is gone")
		}
		a.seen, _ = strconv.Atoi(a.out.Text())
	}
}

// sit is the audience's process.
func sit(what string) error {
	fields := strings.SplitN(what, " ", 3)
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		return err
	}
	var got atomic.Int64
	hello := []string{`{"type":"connection_init"}`, `{"id":"1","type":"subscribe","payload":` + fields[2] + `}`}
	dialer := websocket.Dialer{Subprotocols: []string{subprotocol}, ReadBufferSize: 1024, WriteBufferSize: 256}
	for range n {
		conn, _, err := dialer.Dial("ws"+strings.TrimPrefix(fields[0], "http"), nil)
		if err != nil {
			return err
		}
		for _, text := range hello {
			if err := conn.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
				return err
			}
		}
		go func() {
			for {
				_, text, err := conn.ReadMessage()
				if err != nil {
					return
				}
				if bytes.Contains(text, []byte(`"next"`)) {
					if total := got.Add(1); total%int64(n) == 0 {
						fmt.Println(total / int64(n))
					}
				}
			}
		}()
	}
	os.Stdin.Read(make([]byte, 1))
	return nil
}

// stage is a server, with something to watch on it.
type stage struct {
	url       string
	variables vars
	change    func(version int64) // one that everybody is told of
}

// stages are the servers to compare.
var stages = map[string]func(testing.TB) stage{
	"ours": func(tb testing.TB) stage {
		s, _ := newStage(tb)
		return s
	},
	"gqlgen": func(tb testing.TB) stage {
		s, r := newStage(tb)
		theirs := handler.New(NewExecutableSchema(Config{Resolvers: r}))
		theirs.AddTransport(transport.Websocket{})
		theirs.AroundOperations(func(ctx context.Context, next graphql.OperationHandler) graphql.ResponseHandler {
			return next(context.WithValue(ctx, feedKey{}, &feed{}))
		})
		server := httptest.NewServer(theirs)
		tb.Cleanup(server.Close)
		s.url = server.URL
		return s
	},
	"bare": bareStage,
}

// newStage has a doctor with 40 slots, one of which changes.
func newStage(tb testing.TB) (stage, *resolver) {
	w := newWorld(tb)
	var slot booking.Slot
	for i := range 40 {
		at := noon(2).Add(time.Duration(i) * time.Minute)
		slot = booking.Slot{ID: w.slot(w.northDoctor, at, 5), DoctorID: w.northDoctor, StartAt: at, EndAt: at.Add(30 * time.Minute), Capacity: 5, Status: booking.SlotOpen}
	}
	s := stage{url: w.url, variables: vars{"d": []string{id(w.northDoctor)}, "day": noon(2).Format(time.DateOnly)}}
	s.change = func(version int64) {
		slot.Version, slot.Booked = version, int(version%5)
		w.handler.plans.resolver.Hub.Consumer().Changed([]booking.Slot{slot})
	}
	return s, w.handler.plans.resolver
}

// bareStage is gorilla and nothing else: a goroutine per socket that reads, and whoever has news
// writes them to one after the other.
func bareStage(tb testing.TB) stage {
	var mu sync.Mutex
	var open []*websocket.Conn
	upgrader := websocket.Upgrader{Subprotocols: []string{subprotocol}}
	news := func(kind live.Kind, slots ...booking.Slot) []byte {
		payload := deltaShape(tb).payload(&live.Update{Kind: kind, DoctorID: 1, Slots: slots})
		return append(append([]byte(`{"id":"1","type":"next","payload":`), payload...), '}')
	}
	slot := booking.Slot{ID: 40, DoctorID: 1, StartAt: noon(2), EndAt: noon(2), Capacity: 5, Status: booking.SlotOpen}
	snapshot := news(live.Snapshot, slices.Repeat([]booking.Slot{slot}, 40)...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer conn.Close()
		for n := 0; ; n++ {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
			if n == 1 {
				mu.Lock()
				conn.WriteMessage(websocket.TextMessage, snapshot)
				open = append(open, conn)
				mu.Unlock()
			}
		}
	}))
	tb.Cleanup(server.Close)
	return stage{url: server.URL, change: func(version int64) {
		slot.Version, slot.Booked = version, int(version%5)
		text := news(live.Delta, slot)
		mu.Lock()
		defer mu.Unlock()
		for _, conn := range open {
			conn.WriteMessage(websocket.TextMessage, text)
		}
	}}
}

// deltaShape is the shape of deltas.
func deltaShape(tb testing.TB) *shape {
	tb.Helper()
	p := newShapes().find(operationOf(tb, deltas, nil))
	if p == nil {
		tb.Fatal("no shape")
	}
	return p
}

// operationOf parses and validates an operation.
func operationOf(tb testing.TB, query string, variables map[string]any) *graphql.OperationContext {
	tb.Helper()
	schema := NewExecutableSchema(Config{}).Schema()
	document, err := gqlparser.LoadQueryWithRules(schema, query, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return &graphql.OperationContext{Doc: document, Operation: document.Operations[0], Variables: variables, RawQuery: query}
}

// BenchmarkDeliver measures the CPU time of the server's process for one message, of 500 sockets
// that are told of the same change.
func BenchmarkDeliver(b *testing.B) {
	const sockets = 500
	for _, name := range []string{"bare", "ours", "gqlgen"} {
		b.Run(name, func(b *testing.B) {
			s := stages[name](b)
			a := newAudience(b, s.url, sockets, s.variables)
			a.await(1) // the snapshot
			version := int64(0)
			change := func() {
				version++
				s.change(version)
				a.await(1 + int(version))
			}
			for range 20 {
				change()
			}
			before := cpu(b)
			b.ResetTimer()
			for range b.N {
				change()
			}
			b.StopTimer()
			b.ReportMetric(float64((cpu(b)-before).Nanoseconds())/float64(b.N*sockets), "cpu-ns/message")
		})
	}
}

// An idle socket with one subscription takes no more memory than two bare ones.
func TestIdleSocket(t *testing.T) {
	const sockets = 400
	size := map[string]float64{}
	for _, name := range []string{"bare", "ours"} {
		t.Run(name, func(t *testing.T) {
			s := stages[name](t)
			newAudience(t, s.url, 20, s.variables).await(1) // has all pools filled
			before := memory()
			newAudience(t, s.url, sockets, s.variables).await(1)
			size[name] = (memory() - before) / sockets
		})
		t.Logf("%s: %.1f KiB of heap and stack for a socket", name, size[name]/1024)
	}
	if size["ours"] > 2*size["bare"] {
		t.Error("that is too much")
	}
}

// memory is heap and stacks in use.
func memory() float64 {
	var stats runtime.MemStats
	for range 3 { // pools let go after two
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return float64(stats.HeapAlloc + stats.StackInuse)
}
