package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"go.uber.org/goleak"

	"openslot/internal/devenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// instance is an App that serves.
type instance struct {
	*App
	t    *testing.T
	url  string
	log  *logBuffer
	stop func() error // as SIGTERM does; returns what Run returned
}

// serve starts an instance on a database, with settings that change may change.
func serve(t *testing.T, database string, change func(*Config)) *instance {
	t.Helper()
	config := Config{
		Database: Database{URL: database, Connections: 4},
		HTTP:     HTTP{Listen: "127.0.0.1:0", GracePeriod: 10 * time.Second},
		JWT:      JWT{Issuer: "https://id.example", Audience: "openslot", Secret: secret},
	}
	if change != nil {
		change(&config)
	}
	log := &logBuffer{}
	made, err := New(t.Context(), config, slog.New(slog.NewJSONHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- made.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	i := &instance{App: made, t: t, url: "http://" + made.Addr().String(), log: log, stop: stop}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	i.until("/readyz", http.StatusOK)
	return i
}

// until asks path again and again until the answer has the status.
func (i *instance) until(path string, status int) {
	i.t.Helper()
	waitFor(i.t, fmt.Sprintf("%s to answer %d", path, status), func() bool { return i.status(path) == status })
}

// status asks path on a connection of its own.
func (i *instance) status(path string) int {
	request, err := http.NewRequestWithContext(i.t.Context(), http.MethodGet, i.url+path, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

// waitFor polls a condition.
func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	giveUp := time.After(20 * time.Second)
	for !condition() {
		select {
		case <-giveUp:
			t.Fatalf("waited 20 s for %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// answered is what a request came to.
type answered struct {
	status int
	body   string
	err    error
}

// book books a slot in the background, as a patient.
func (i *instance) book(slot int64) <-chan answered {
	i.t.Helper()
	token, err := i.config.JWT.Sign(Token{Role: "patient", Subject: "p1", TTL: time.Minute})
	if err != nil {
		i.t.Fatal(err)
	}
	body := fmt.Sprintf(`{"query":"mutation { bookAppointment(input: {slotId: \"%d\", idempotencyKey: \"k\"}) { appointment { status } errors { code } } }"}`, slot)
	request, err := http.NewRequest(http.MethodPost, i.url+"/graphql", strings.NewReader(body))
	if err != nil {
		i.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+token)
	done := make(chan answered, 1)
	go func() {
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			done <- answered{err: err}
			return
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		done <- answered{response.StatusCode, string(text), err}
	}()
	return done
}

// addSlot makes a slot of tomorrow's that can be booked.
func addSlot(t *testing.T, db *devenv.DB) (slot int64) {
	t.Helper()
	err := db.Pool.QueryRow(t.Context(), `
		WITH o AS (INSERT INTO organization (name, time_zone) VALUES ('Practice', 'Europe/Berlin') RETURNING id),
		     d AS (INSERT INTO doctor (organization_id, name) SELECT id, 'Dr. Ada Example' FROM o RETURNING id)
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT id, now() + interval '1 day', now() + interval '25 hours', 1, now() - interval '1 day' FROM d RETURNING id`).Scan(&slot)
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// hold locks a slot's row until release.
func hold(t *testing.T, db *devenv.DB, slot int64) (release func()) {
	t.Helper()
	tx, err := db.Pool.Begin(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	if _, err := tx.Exec(t.Context(), `SELECT FROM time_slot WHERE id = $1 FOR UPDATE`, slot); err != nil {
		t.Fatal(err)
	}
	return release
}

func waitForWaiter(t *testing.T, db *devenv.DB) {
	t.Helper()
	waitFor(t, "a booking to wait for the slot", func() bool {
		var waits bool
		err := db.Pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waits)
		if err != nil {
			t.Fatal(err)
		}
		return waits
	})
}

// TestShutdown: told to stop in the middle of a booking and with a socket open.
func TestShutdown(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	slot := addSlot(t, db)
	i := serve(t, db.URL, func(c *Config) { c.HTTP.DrainDelay = 300 * time.Millisecond })

	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
	socket, response, err := dialer.Dial("ws"+strings.TrimPrefix(i.url, "http")+"/graphql", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	defer socket.Close()
	if err := socket.WriteMessage(websocket.TextMessage, []byte(`{"type":"connection_init"}`)); err != nil {
		t.Fatal(err)
	}
	if _, ack, err := socket.ReadMessage(); err != nil || !strings.Contains(string(ack), "connection_ack") {
		t.Fatalf("connection_init was answered by %q, %v", ack, err)
	}

	release := hold(t, db, slot)
	booked := i.book(slot)
	waitForWaiter(t, db)

	stopped := make(chan error, 1)
	go func() { stopped <- i.stop() }()
	i.until("/readyz", http.StatusServiceUnavailable) // while it still serves
	if got := i.status("/livez"); got != http.StatusOK {
		t.Errorf("/livez answers %d while draining", got)
	}
	release()

	if got := <-booked; got.err != nil || got.status != 200 || !strings.Contains(got.body, `"BOOKED"`) {
		t.Errorf("the booking in flight came to %+v", got)
	}
	for err == nil {
		_, _, err = socket.ReadMessage()
	}
	if !websocket.IsCloseError(err, websocket.CloseGoingAway) {
		t.Errorf("the socket ended with %v, want 1001", err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run: %v", err)
	}
	if got := i.status("/livez"); got != 0 {
		t.Errorf("after the end /livez answers %d", got)
	}
}

// TestShutdownCut: a request that outlasts the grace period is cut, and doesn't keep the process.
func TestShutdownCut(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	slot := addSlot(t, db)
	i := serve(t, db.URL, func(c *Config) { c.HTTP.GracePeriod = 50 * time.Millisecond })
	hold(t, db, slot)
	booked := i.book(slot)
	waitForWaiter(t, db)
	began := time.Now()
	if err := i.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(began); took > closeWait+2*time.Second {
		t.Errorf("the end took %s", took)
	}
	if got := <-booked; got.err == nil {
		t.Errorf("the booking that was cut came to %+v", got)
	}
	if !strings.Contains(i.log.String(), "were cut") {
		t.Error("the log does not say that requests were cut")
	}
}

// TestRunFails: an instance that can't serve any more ends and says why.
func TestRunFails(t *testing.T) {
	t.Parallel()
	config := Config{
		Database: Database{URL: devenv.NewDB(t).URL, Connections: 2},
		HTTP:     HTTP{Listen: "127.0.0.1:0", GracePeriod: time.Second},
		JWT:      JWT{Issuer: "https://id.example", Audience: "openslot", Secret: secret},
	}
	made, err := New(t.Context(), config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	made.socket.Close()
	if err := made.Run(context.Background()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Run: %v, want that the socket is closed", err)
	}
}

// TestNewFails: what makes no sense is said at the start, and nothing is left of the attempt.
func TestNewFails(t *testing.T) {
	t.Parallel()
	url := devenv.NewDB(t).URL
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	tests := []struct {
		name   string
		config Config
		want   string
	}{
		{"BadURL", Config{Database: Database{URL: "mysql://db"}}, "database URL"},
		{"NoDatabase", Config{Database: Database{URL: "postgres://127.0.0.1:1/a"}}, "127.0.0.1"},
		{"NoKey", Config{Database: Database{URL: url}, JWT: JWT{Issuer: "us", Audience: "a"}}, "OPENSLOT_JWT"},
		{"TwoKeys", Config{Database: Database{URL: url}, JWT: JWT{Issuer: "us", Audience: "a", Secret: secret, JWKSURL: "https://id.example/keys"}}, "OPENSLOT_JWT"},
		{"PortTaken", Config{Database: Database{URL: url}, JWT: JWT{Issuer: "us", Audience: "a", Secret: secret},
			HTTP: HTTP{Listen: taken.Addr().String()}}, "address already in use"},
	}
	for _, tt := range tests {
		_, err := New(t.Context(), tt.config, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: New: %v, want an error with %q", tt.name, err, tt.want)
		}
	}
}

// TestReady: an instance loses its database and gets it back.
func TestReady(t *testing.T) {
	t.Parallel()
	server := devenv.NewServer(t, devenv.PostgresOptions{})
	if err := Migrate(t.Context(), Database{URL: server.URL("")}); err != nil {
		t.Fatal(err)
	}
	i := serve(t, server.URL(""), nil)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	i.until("/readyz", http.StatusServiceUnavailable)
	if got := i.status("/livez"); got != http.StatusOK {
		t.Errorf("/livez answers %d without a database", got)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	i.until("/readyz", http.StatusOK)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("ready %s after the database was back", took)
	}
}

// TestReadyCrowded: with every connection taken by requests the instance stays ready.
func TestReadyCrowded(t *testing.T) {
	t.Parallel()
	i := serve(t, devenv.NewDB(t).URL, nil)
	for range i.config.Database.Connections {
		conn, err := i.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
	}
	if got := i.status("/readyz"); got != http.StatusOK {
		t.Errorf("/readyz answers %d when all connections are busy", got)
	}
}

// TestReadyDeaf: without the change feed screens would go stale, so no more of them are wanted.
func TestReadyDeaf(t *testing.T) {
	t.Parallel()
	i := serve(t, devenv.NewDB(t).URL, nil)
	if err := i.health.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	deaf := &health{pool: i.health.pool, log: i.App.log, listens: func() bool { return false }}
	if err := deaf.ready(t.Context()); !errors.Is(err, errDeaf) {
		t.Errorf("ready = %v without the feed", err)
	}
}

// TestPage: GraphiQL and introspection are for development.
func TestPage(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	for _, tt := range []struct {
		on   bool
		page int
	}{{true, http.StatusOK}, {false, http.StatusNotFound}} {
		i := serve(t, db.URL, func(c *Config) { c.HTTP.GraphiQL = tt.on })
		if got := i.status("/"); got != tt.page {
			t.Errorf("GraphiQL %v: / answers %d, want %d", tt.on, got, tt.page)
		}
		response, err := http.Post(i.url+"/graphql", "application/json", strings.NewReader(`{"query":"{ __schema { queryType { name } } }"}`))
		if err != nil {
			t.Fatal(err)
		}
		var answer struct {
			Data struct {
				Schema *struct{} `json:"__schema"`
			}
		}
		err = json.NewDecoder(response.Body).Decode(&answer)
		response.Body.Close()
		if err != nil || (answer.Data.Schema != nil) != tt.on {
			t.Errorf("GraphiQL %v: introspection answers %v, %v", tt.on, answer.Data.Schema, err)
		}
	}
}

// TestStrangers: what comes with every request, whoever sends it.
func TestStrangers(t *testing.T) {
	t.Parallel()
	i := serve(t, devenv.NewDB(t).URL, func(c *Config) { c.HTTP.AllowedOrigins = []string{"https://app.example"} })
	tests := []struct {
		name    string
		headers map[string]string
		status  int
	}{
		{"NoBrowser", nil, http.StatusOK},
		{"OwnPage", map[string]string{"Sec-Fetch-Site": "same-origin"}, http.StatusOK},
		{"AllowedPage", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://app.example"}, http.StatusOK},
		{"ForeignPage", map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, http.StatusForbidden},
		{"BadToken", map[string]string{"Authorization": "Bearer canary"}, http.StatusUnauthorized},
		{"LongHeader", map[string]string{"X-Long": strings.Repeat("x", 32<<10)}, http.StatusRequestHeaderFieldsTooLarge},
	}
	for _, tt := range tests {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+"/graphql?canary=canary", strings.NewReader(`{"query":"{ me { role } }"}`))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Content-Type", "application/json")
		for key, value := range tt.headers {
			request.Header.Set(key, value)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != tt.status {
			t.Errorf("%s: status %d, want %d", tt.name, response.StatusCode, tt.status)
		}
	}
	if strings.Contains(i.log.String(), "canary") {
		t.Errorf("the log holds what clients sent:\n%s", i.log)
	}
}

// logBuffer is a log that several goroutines write.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
