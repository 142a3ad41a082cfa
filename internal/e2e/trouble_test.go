package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/devenv"
	"openslot/internal/postgres"
)

// truth waits until every screen shows the slots as the database has them.
func (c *clinic) truth(screens []*screen, slots []int64) {
	c.t.Helper()
	for n, s := range screens {
		for _, slot := range slots {
			want := state{
				Free:    scan[int](c, `SELECT capacity - booked_count FROM time_slot WHERE id = $1`, slot),
				Status:  scan[string](c, `SELECT status FROM time_slot WHERE id = $1`, slot),
				Version: scan[int64](c, `SELECT version FROM time_slot WHERE id = $1`, slot),
			}
			s.shows(c.t, slot, fmt.Sprintf("the last state (screen %d)", n), func(got state) bool { return got == want })
		}
	}
}

// The database is killed and comes back with screens open on two instances. What was changed by
// somebody who was faster than they is on every screen in the end, without their asking.
func TestScreensAfterRestart(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	server := devenv.NewServer(t, devenv.PostgresOptions{})
	if err := server.CreateDatabase(ctx, "clinic"); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Migrate(ctx, server.URL("clinic")); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, server.URL("clinic"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	c := startClinic(t, server.URL("clinic"), pool, 2)
	slots := c.slots(8, 50)
	var screens []*screen
	for round := range 3 {
		for i := range 4 {
			screens = append(screens, c.watch(c.instances[i%2]))
		}
		c.truth(screens, slots)
		if err := server.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := server.Restart(ctx); err != nil {
			t.Fatal(err)
		}
		pool.Reset()
		c.exec(`UPDATE time_slot SET booked_count = booked_count + 1, status = (ARRAY['OPEN', 'CLOSED'])[1 + (id + $1) % 2]`, round)
		c.truth(screens, slots)
	}
}

// network is what lies between instances and the database. It can swallow everything.
type network struct {
	target string
	in     net.Listener
	work   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // true: nothing gets through any more
}

func newNetwork(t testing.TB, databaseURL string) (n *network, through string) {
	t.Helper()
	config, err := pgxpool.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	n = &network{conns: map[net.Conn]bool{}}
	if n.in, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	_, n.target = pgconn.NetworkAddress(config.ConnConfig.Host, config.ConnConfig.Port)
	u.Host = n.in.Addr().String()
	n.work.Go(func() {
		for {
			client, err := n.in.Accept()
			if err != nil {
				return
			}
			n.connect(client)
		}
	})
	t.Cleanup(func() {
		n.in.Close()
		n.mu.Lock()
		for conn := range n.conns {
			conn.Close()
		}
		n.mu.Unlock()
		n.work.Wait()
	})
	return n, u.String()
}

func (n *network) connect(client net.Conn) {
	server, err := net.Dial("tcp", n.target)
	if err != nil {
		client.Close()
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[client], n.conns[server] = false, false
	n.work.Go(func() { n.pass(client, server) })
	n.work.Go(func() { n.pass(server, client) })
}

func (n *network) pass(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		k, err := from.Read(buffer)
		n.mu.Lock()
		lost := n.conns[from]
		n.mu.Unlock()
		if lost && err == nil {
			continue
		}
		if _, werr := to.Write(buffer[:k]); err != nil || werr != nil {
			return
		}
	}
}

// lose has whatever is connected now fall silent. Nobody is told; new connections are good.
func (n *network) lose() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		n.conns[conn] = true
	}
}

// A network that falls silent, as when a firewall forgets, tells nobody. It is noticed all the same.
func TestScreensAfterSilence(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	network, through := newNetwork(t, db.URL)
	c := startClinic(t, through, db.Pool, 2)
	slots := c.slots(8, 50)
	screens := []*screen{c.watch(c.instances[0]), c.watch(c.instances[1]), c.watch(c.instances[0])}
	c.truth(screens, slots)
	network.lose()
	began := time.Now()
	c.exec(`UPDATE time_slot SET booked_count = booked_count + 1`)
	c.truth(screens, slots)
	t.Logf("all screens were right again after %s", time.Since(began))
}

// events reads an event stream to its end.
func (c *clinic) events(base, token string) <-chan string {
	c.t.Helper()
	query := fmt.Sprintf(`{"query":"subscription { dayCounts(doctorIds: [\"%d\"], from: \"%s\") { days { free } } }"}`,
		c.doctor, time.Now().UTC().Format(time.DateOnly))
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, base+"/graphql", strings.NewReader(query))
	if err != nil {
		c.t.Fatal(err)
	}
	for name, value := range map[string]string{"Content-Type": "application/json", "Accept": "text/event-stream", "Authorization": "Bearer " + token} {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		c.t.Fatalf("%+v %v", response, err)
	}
	ended := make(chan string, 1)
	go func() {
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		ended <- string(text)
	}()
	return ended
}

// connect opens a socket as the holder of a token; what comes back is how it was closed.
func (c *clinic) connect(base, token string) <-chan int {
	c.t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, HandshakeTimeout: patience}
	socket, _, err := dialer.Dial("ws"+strings.TrimPrefix(base, "http")+"/graphql", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { socket.Close() })
	if err := socket.WriteMessage(websocket.TextMessage, []byte(`{"type":"connection_init","payload":{"Authorization":"Bearer `+token+`"}}`)); err != nil {
		c.t.Fatal(err)
	}
	if _, ack, err := socket.ReadMessage(); err != nil || !strings.Contains(string(ack), "connection_ack") {
		c.t.Fatalf("%s %v", ack, err)
	}
	ended := make(chan int, 1)
	go func() {
		for {
			_, _, err := socket.ReadMessage()
			if closed := new(websocket.CloseError); errors.As(err, &closed) {
				ended <- closed.Code
				return
			} else if err != nil {
				ended <- 0
				return
			}
		}
	}()
	return ended
}

// A patient is blocked on one instance: all they have open ends on every instance, and nothing new
// is let in anywhere, be the feed whole, or broken at that very moment.
func TestBlockedEverywhere(t *testing.T) {
	t.Parallel()
	c := newClinic(t, 2)
	slot := c.slots(1, 50)[0]
	staff := c.token("staff", "desk")
	soon := func(what string, cond func() bool) {
		t.Helper()
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(patience); !cond(); <-tick.C {
			if time.Now().After(deadline) {
				t.Fatalf("never: %s", what)
			}
		}
	}
	for round := range 6 {
		subject := fmt.Sprint("patient", round)
		token := c.token("patient", subject)
		var sockets []<-chan int
		var streams []<-chan string
		for _, base := range c.instances {
			if b := book(base, token, slot, "k"); b.code() != "" {
				t.Fatalf("%s", b.body)
			}
			sockets = append(sockets, c.connect(base, token))
			streams = append(streams, c.events(base, token))
		}
		if round%2 == 1 {
			c.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			         WHERE application_name = 'openslot-live' AND datname = current_database()`)
		}
		patient := map[string]any{"p": strconv.FormatInt(scan[int64](c, `SELECT id FROM patient WHERE subject = $1`, subject), 10)}
		began := time.Now()
		if a := ask(c.instances[0], staff, `mutation ($p: ID!) { blockPatient(input: {patientId: $p}) { changed } }`, patient); a.code() != "" {
			t.Fatalf("%s", a.body)
		}
		if a := ask(c.instances[0], token, `{ me { role } }`, nil); a.code() != "FORBIDDEN" || a.status != http.StatusForbidden {
			t.Errorf("at once, where it was done: %d %s", a.status, a.body)
		}
		for n := range c.instances {
			select {
			case code := <-sockets[n]:
				if code != 4403 {
					t.Errorf("closed with %d", code)
				}
			case <-time.After(patience):
				t.Fatalf("the socket on instance %d is still open", n)
			}
			select {
			case text := <-streams[n]:
				if !strings.Contains(text, "FORBIDDEN") {
					t.Errorf("the stream ended with %q", text)
				}
			case <-time.After(patience):
				t.Fatalf("the stream on instance %d is still open", n)
			}
			if a := ask(c.instances[n], token, `{ me { role } }`, nil); a.code() != "FORBIDDEN" {
				t.Errorf("instance %d: %s", n, a.body)
			}
		}
		t.Logf("round %d, feed broken: %t: all had ended after %s", round, round%2 == 1, time.Since(began))
		if a := ask(c.instances[1], staff, `mutation ($p: ID!) { unblockPatient(input: {patientId: $p}) { changed } }`, patient); a.code() != "" {
			t.Fatalf("%s", a.body)
		}
		for _, base := range c.instances {
			soon("let in again", func() bool { return ask(base, token, `{ me { role } }`, nil).code() == "" })
		}
	}
	c.check()
}
