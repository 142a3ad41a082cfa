package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/app"
	"openslot/internal/devenv"
)

// patience is how long to wait for what has to happen.
const patience = time.Minute

// clinic is a database with one organization and one doctor, and instances of the API on it.
type clinic struct {
	t         testing.TB
	pool      *pgxpool.Pool // for the test's own SQL
	instances []string      // base URLs
	config    app.Config

	organization, doctor int64
}

// newClinic starts n instances on a database of their own.
func newClinic(t testing.TB, n int) *clinic {
	t.Helper()
	db := devenv.NewDB(t)
	return startClinic(t, db.URL, db.Pool, n)
}

func startClinic(t testing.TB, url string, pool *pgxpool.Pool, n int) *clinic {
	t.Helper()
	c := &clinic{t: t, pool: pool, config: app.Config{
		Database: app.Database{URL: url, Connections: 8},
		RedisURL: devenv.NewRedis(t).URL(),
		HTTP:     app.HTTP{Listen: "127.0.0.1:0", GracePeriod: 10 * time.Second, ResponseCache: true},
		JWT:      app.JWT{Issuer: "https://login.example", Audience: "openslot", Secret: strings.Repeat("s", 32)},
	}}
	for range n {
		c.instances = append(c.instances, c.start())
	}
	c.organization = scan[int64](c, `INSERT INTO organization (name, time_zone) VALUES ('Clinic', 'Europe/Berlin') RETURNING id`)
	c.doctor = scan[int64](c, `INSERT INTO doctor (organization_id, name) VALUES ($1, 'Dr. Example') RETURNING id`, c.organization)
	return c
}

// start runs an instance until the test ends.
func (c *clinic) start() string {
	c.t.Helper()
	base, _ := c.startInstance()
	return base
}

// startInstance runs an instance until stop is called, which returns when it has ended, or the test ends.
func (c *clinic) startInstance() (base string, stop func()) {
	c.t.Helper()
	instance, err := app.New(c.t.Context(), c.config, slog.New(slog.NewJSONHandler(io.Discard, nil)))
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- instance.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Error(err)
		}
	})
	c.t.Cleanup(stop)
	return "http://" + instance.Addr().String(), stop
}

// token signs one for the role; staff belong to the clinic.
func (c *clinic) token(role, subject string) string {
	c.t.Helper()
	claims := app.Token{Role: role, Subject: subject, TTL: time.Hour}
	if role == "staff" {
		claims.Organization = c.organization
	}
	token, err := c.config.JWT.Sign(claims)
	if err != nil {
		c.t.Fatal(err)
	}
	return token
}

// slots makes n open slots, an hour apart from tomorrow on.
func (c *clinic) slots(n, capacity int) (ids []int64) {
	c.t.Helper()
	rows, err := c.pool.Query(context.Background(), `
		INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT $1, at, at + interval '30 min', $3, now() - interval '1 day'
		  FROM generate_series(1, $2) AS n, LATERAL (SELECT date_trunc('hour', now()) + interval '1 day' + n * interval '1 hour') AS a (at)
		RETURNING id`, c.doctor, n, capacity)
	if err != nil {
		c.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			c.t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// answer is what a GraphQL request came to.
type answer struct {
	status int
	header http.Header
	body   []byte
	Data   json.RawMessage
	Errors []struct {
		Message    string
		Extensions struct{ Code string }
	}
}

// code is the first error's code, of the request or in the payload; "" = none.
func (a answer) code() string {
	if len(a.Errors) > 0 {
		return a.Errors[0].Extensions.Code
	}
	var data map[string]struct{ Errors []struct{ Code string } }
	if json.Unmarshal(a.Data, &data) == nil {
		for _, payload := range data {
			if len(payload.Errors) > 0 {
				return payload.Errors[0].Code
			}
		}
	}
	return ""
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: patience}

// post sends a body as it is. A request that got no answer at all has status 0.
func post(base, token, body string) (a answer) {
	request, err := http.NewRequest(http.MethodPost, base+"/graphql", strings.NewReader(body))
	if err != nil {
		return a
	}
	request.Header.Set("Content-Type", "application/json")
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := client.Do(request)
	if err != nil {
		return a
	}
	defer response.Body.Close()
	a.status, a.header = response.StatusCode, response.Header
	if a.body, err = io.ReadAll(response.Body); err == nil {
		_ = json.Unmarshal(a.body, &a)
	}
	return a
}

// ask sends a document with variables.
func ask(base, token, query string, variables map[string]any) answer {
	var body bytes.Buffer
	_ = json.NewEncoder(&body).Encode(map[string]any{"query": query, "variables": variables})
	return post(base, token, body.String())
}

// booking is what a booking call came to.
type booking struct {
	answer
	id       string // of the appointment
	replayed bool
}

func book(base, token string, slot int64, key string) (b booking) {
	b.answer = ask(base, token, `mutation ($s: ID!, $k: String!) {
		bookAppointment(input: {slotId: $s, idempotencyKey: $k}) {
			appointment { id status slot { id free } } replayed errors { code message retryAfter } alternatives { id free } } }`,
		map[string]any{"s": strconv.FormatInt(slot, 10), "k": key})
	var data struct {
		BookAppointment struct {
			Appointment struct{ ID string }
			Replayed    bool
		}
	}
	_ = json.Unmarshal(b.Data, &data)
	b.id, b.replayed = data.BookAppointment.Appointment.ID, data.BookAppointment.Replayed
	return b
}

func cancel(base, token, id string) answer {
	return ask(base, token, `mutation ($a: ID!) { cancelAppointment(input: {appointmentId: $a}) { changed appointment { status } errors { code } } }`,
		map[string]any{"a": id})
}

func scan[T any](c *clinic, sql string, args ...any) T {
	c.t.Helper()
	var v T
	if err := c.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		c.t.Fatal(err)
	}
	return v
}

func (c *clinic) exec(sql string, args ...any) {
	c.t.Helper()
	if _, err := c.pool.Exec(context.Background(), sql, args...); err != nil {
		c.t.Fatal(err)
	}
}

// check holds what must be true of the database at rest.
func (c *clinic) check() {
	c.t.Helper()
	for rule, sql := range map[string]string{
		"booked_count = occupying appointments": `
			SELECT count(*) FROM time_slot s LEFT JOIN (SELECT slot_id, count(*) AS n FROM appointment
			    WHERE status NOT IN ('CANCELLED', 'EXPIRED') OR returns_at IS NOT NULL GROUP BY slot_id) a ON a.slot_id = s.id
			 WHERE s.booked_count <> coalesce(a.n, 0) OR s.booked_count > s.capacity`,
		"one event per change of state": `
			SELECT count(*) FROM (
			    SELECT root_id, (array_agg(status ORDER BY id DESC))[1] AS status, count(replaces) AS moves
			      FROM appointment GROUP BY root_id) a FULL JOIN (
			    SELECT root_id, string_agg(type, ' ' ORDER BY id) AS told, count(*) FILTER (WHERE type = 'RESCHEDULED') AS moves
			      FROM outbox_event GROUP BY root_id) e ON e.root_id = a.root_id
			 WHERE (a.moves = e.moves AND e.told ~ CASE a.status
			            WHEN 'HELD' THEN '^(HELD|OFFERED)$' WHEN 'EXPIRED' THEN '^(HELD|OFFERED) EXPIRED$'
			            WHEN 'CANCELLED' THEN '^(((HELD|OFFERED) )?BOOKED.* CANCELLED|(HELD|OFFERED) RELEASED)$'
			            WHEN 'BOOKED' THEN '^((HELD|OFFERED) )?BOOKED(.* (RESCHEDULED|UNMARKED))?$'
			            ELSE '^((HELD|OFFERED) )?BOOKED.* ' || a.status || '$' END) IS NOT TRUE`,
	} {
		if n := scan[int](c, sql); n != 0 {
			c.t.Errorf("%s: off by %d", rule, n)
		}
	}
}

// state is a slot as a screen or the database has it.
type state struct {
	Free    int
	Status  string
	Version int64
}

// screen is a subscriber to a doctor's slots who does what the schema tells clients to do.
type screen struct {
	socket *websocket.Conn
	mu     sync.Mutex
	slots  map[string]state
	change chan struct{} // signalled after every message
}

// watch opens a screen on the days that can have slots, whichever day it is in the doctor's zone.
func (c *clinic) watch(base string) *screen {
	c.t.Helper()
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}, HandshakeTimeout: patience}
	socket, _, err := dialer.Dial("ws"+strings.TrimPrefix(base, "http")+"/graphql", nil)
	if err != nil {
		c.t.Fatal(err)
	}
	s := &screen{socket: socket, slots: map[string]state{}, change: make(chan struct{}, 1)}
	subscribe := fmt.Sprintf(`{"id":"1","type":"subscribe","payload":{"query":"subscription { availability(doctorIds: [\"%d\"], from: \"%s\", days: 16) { kind slots { id free status version } } }"}}`,
		c.doctor, time.Now().UTC().Format(time.DateOnly))
	for _, message := range []string{`{"type":"connection_init"}`, subscribe} {
		if err := socket.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
			c.t.Fatal(err)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for s.receive() == nil {
		}
	}()
	c.t.Cleanup(func() {
		_ = socket.Close()
		<-ended
	})
	return s
}

func (s *screen) receive() error {
	var message struct {
		Type    string
		Payload struct {
			Data struct {
				Availability struct {
					Kind  string
					Slots []struct {
						ID string
						state
					}
				}
			}
		}
	}
	if err := s.socket.ReadJSON(&message); err != nil {
		return err
	}
	if message.Type == "ping" {
		return s.socket.WriteMessage(websocket.TextMessage, []byte(`{"type":"pong"}`))
	}
	if message.Type != "next" {
		return nil
	}
	update := message.Payload.Data.Availability
	s.mu.Lock()
	if update.Kind == "SNAPSHOT" {
		s.slots = map[string]state{}
	}
	for _, slot := range update.Slots {
		if slot.Version >= s.slots[slot.ID].Version {
			s.slots[slot.ID] = slot.state
		}
	}
	s.mu.Unlock()
	select {
	case s.change <- struct{}{}:
	default:
	}
	return nil
}

// shows waits until the screen shows the slot in a state that satisfies want.
func (s *screen) shows(t testing.TB, slot int64, what string, want func(state) bool) {
	t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		got, there := s.slots[strconv.FormatInt(slot, 10)]
		s.mu.Unlock()
		if there && want(got) {
			return
		}
		select {
		case <-s.change:
		case <-deadline:
			t.Fatalf("the screen never showed %s: slot %d is %+v (there: %v)", what, slot, got, there)
		}
	}
}
