package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// gorillaCommand is the floor of live: websockets of gorilla/websocket with the settings that it has
// by itself, each with a goroutine that reads, in groups that are sent what is posted for them. It
// has no protocol, no subscriptions, no states; it writes bytes.
type gorillaCommand struct{}

func (gorillaCommand) run(ctx context.Context) error {
	s := &groups{members: map[int]map[*member]struct{}{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /watch", s.watch)
	mux.HandleFunc("POST /send", s.send)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: mux}
	var lc net.ListenConfig
	socket, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "{\"address\":%q}\n", socket.Addr().String())
	context.AfterFunc(ctx, func() { _ = server.Close() })
	_ = server.Serve(socket)
	return nil
}

// groups holds who is to be sent what.
type groups struct {
	mu      sync.RWMutex
	members map[int]map[*member]struct{}
}

// member is a websocket; one at a time may write to it.
type member struct {
	writing sync.Mutex
	conn    *websocket.Conn
}

func (m *member) write(text []byte) {
	m.writing.Lock()
	defer m.writing.Unlock()
	_ = m.conn.WriteMessage(websocket.TextMessage, text) // its reader finds out
}

func (s *groups) watch(w http.ResponseWriter, r *http.Request) {
	group, err := strconv.Atoi(r.URL.Query().Get("group"))
	if err != nil {
		http.Error(w, "which group?", http.StatusBadRequest)
		return
	}
	upgrader := websocket.Upgrader{Subprotocols: []string{subprotocol}}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // answered
	}
	m := &member{conn: conn}
	s.mu.Lock()
	if s.members[group] == nil {
		s.members[group] = map[*member]struct{}{}
	}
	s.members[group][m] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.members[group], m)
		conn.Close()
	}()
	m.write([]byte(`{"type":"connection_ack"}`)) // it is a member now
	for {
		if _, _, err := conn.ReadMessage(); err != nil {
			return
		}
	}
}

// send writes the body to all members of a group, and answers when it has.
func (s *groups) send(w http.ResponseWriter, r *http.Request) {
	group, err := strconv.Atoi(r.URL.Query().Get("group"))
	body, rerr := io.ReadAll(r.Body)
	if err != nil || rerr != nil {
		http.Error(w, "what, and to which group?", http.StatusBadRequest)
		return
	}
	s.mu.RLock()
	members := make([]*member, 0, len(s.members[group]))
	for m := range s.members[group] {
		members = append(members, m)
	}
	s.mu.RUnlock()
	for _, m := range members {
		m.write(body)
	}
}

const gorillaName = "gorilla/websocket, the same bytes"

// playBack measures it with the same screens as the program, and what these were sent, at the same
// pace. If they sit idle at first, their memory is measured.
func (g *ground) playBack(ctx context.Context, all []int, tape []message, idle bool) (f figures, err error) {
	self, err := os.Executable()
	if err != nil {
		return f, err
	}
	env := os.Environ()
	if idle {
		env = append(env, tight)
	}
	p, err := g.start(ctx, exec.CommandContext(ctx, self, "gorilla"), "/", env...)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, p.stop()) }()
	h := host{address: p.address, pid: p.cmd.Process.Pid, gorilla: true}
	var a *audience
	if idle {
		_, a, err = g.sit(ctx, h, all, &f)
	} else {
		a, err = gather(ctx, h, all, 0)
	}
	if err != nil {
		return f, err
	}
	defer a.leave()
	members := map[int]int64{}
	for _, s := range a.screens {
		members[s.doctor]++
	}
	var want int64
	for _, m := range tape {
		want += members[m.doctor]
	}
	used, begin := p.cpu(), time.Now()
	happened, t := play(ctx, p.address, tape)
	seconds := time.Since(begin).Seconds()
	g.complain(&t)
	if err := errors.Join(a.heard(ctx, want), ctx.Err()); err != nil {
		return f, fmt.Errorf("gorilla: %w", err)
	}
	shown := a.delays(happened)
	f.P50, f.P99, f.Errors = shown.quantile(0.5), shown.quantile(0.99), t.errors
	if !idle {
		f.PerSecond, f.CPU = float64(want)/seconds, float64((p.cpu()-used).Microseconds())/float64(want)
	}
	return f, nil
}

// play posts the messages at the pace at which they were sent, and returns when each was.
func play(ctx context.Context, address string, tape []message) (happened map[change]int64, t tally) {
	happened = map[change]int64{}
	due := make(chan message, len(tape))
	var mu sync.Mutex
	var posting sync.WaitGroup
	for i := range 16 {
		posting.Go(func() {
			c := newCaller(address, i)
			defer c.conn.close()
			for m := range due {
				u, _, err := readUpdate(m.text, nil)
				mu.Lock()
				for _, s := range u.slots {
					happened[change{s.slot, s.version}] = time.Now().UnixMicro()
				}
				mu.Unlock()
				var status int
				if err == nil {
					status, _, err = c.conn.do(ctx, fmt.Appendf(nil, "POST /send?group=%d HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", m.doctor, len(m.text), m.text))
				}
				if err == nil && status != http.StatusOK {
					err = fmt.Errorf("HTTP %d", status)
				}
				if err != nil {
					mu.Lock()
					t.fail(err)
					mu.Unlock()
				}
			}
		})
	}
	begin := time.Now()
	for _, m := range tape {
		if wait := time.Duration(m.at-tape[0].at)*time.Microsecond - time.Since(begin); wait > 0 {
			nap(wait)
		}
		due <- m
	}
	close(due)
	posting.Wait()
	return happened, t
}
