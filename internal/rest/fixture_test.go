package rest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"openslot/internal/auth"
	"openslot/internal/availability"
	"openslot/internal/booking"
	"openslot/internal/devenv"
	"openslot/internal/live"
	"openslot/internal/schedule"
)

func TestMain(m *testing.M) {
	// A test server of our own lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("openslot/internal/devenv.(*supervised).wait"))
}

// wait is how long a test waits for what has to happen.
const wait = 30 * time.Second

// world is a practice with a doctor, and the API on it.
type world struct {
	t       testing.TB
	db      *devenv.DB
	handler *Handler
	url     string
	client  *http.Client // through the judge
	signer  auth.Config
	log     *syncBuffer

	practice booking.OrganizationID
	doctor   booking.DoctorID
}

// newWorld starts everything; options change the parts before the handler is made.
func newWorld(t testing.TB, options ...func(*Parts)) *world {
	t.Helper()
	w := &world{t: t, db: devenv.NewDB(t), log: &syncBuffer{}}
	pool := w.db.Pool
	log := slog.New(slog.NewJSONHandler(w.log, nil))
	w.signer = auth.Config{Issuer: "https://login.example", Audience: "openslot", Secret: []byte(strings.Repeat("s", 32)), Log: log}
	patients := auth.NewPatients(pool)
	authenticator, err := auth.New(t.Context(), w.signer, patients)
	if err != nil {
		t.Fatal(err)
	}
	hub := live.NewHub(pool, log)
	listener := &live.Listener{URL: w.db.URL, Log: log, Consumers: []live.Consumer{hub.Consumer()}}
	gate := availability.NewGate(nil, listener.Alive)
	parts := Parts{
		Booking:  booking.New(pool, booking.Config{AcquireWait: time.Minute, Persist: time.Minute, Gate: gate}),
		Schedule: schedule.New(pool, schedule.Config{}), Availability: availability.New(pool, availability.Config{}),
		Gate: gate, Hub: hub, Auth: authenticator, Patients: patients, Log: log,
		AllowedOrigins: []string{"https://app.example"},
	}
	for _, option := range options {
		option(&parts)
	}
	w.handler = New(parts)
	server := httptest.NewServer(w.handler)
	w.url = server.URL
	transport := &http.Transport{}
	w.client = &http.Client{Transport: newJudge(t, transport), Timeout: 2 * wait, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range []func(context.Context) error{hub.Run, listener.Run} {
		running.Go(func() {
			if err := run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(func() {
		w.handler.Close()
		transport.CloseIdleConnections()
		server.Close()
		cancel()
		running.Wait()
	})
	w.scan(&w.practice, `INSERT INTO organization (name, time_zone) VALUES ('Practice', 'Europe/Berlin') RETURNING id`)
	w.scan(&w.doctor, `INSERT INTO doctor (organization_id, name, specialty) VALUES ($1, 'Dr. Ada Example', 'Dentist') RETURNING id`, w.practice)
	return w
}

func (w *world) scan(into any, sql string, args ...any) {
	w.t.Helper()
	if err := w.db.Pool.QueryRow(context.Background(), sql, args...).Scan(into); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Pool.Exec(context.Background(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// slot makes one that begins n hours after tomorrow's noon in Berlin.
func (w *world) slot(n, capacity int) (id int64) {
	w.t.Helper()
	w.scan(&id, `INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		SELECT $1, at, at + interval '30 min', $3, now() - interval '1 day'
		  FROM (SELECT (current_date + 2)::timestamp AT TIME ZONE 'Europe/Berlin' + $2 * interval '1 hour') AS a (at) RETURNING id`, w.doctor, n, capacity)
	return id
}

// day is the one on which slots are.
func (w *world) day() (day string) {
	w.t.Helper()
	w.scan(&day, `SELECT (current_date + 2)::text`)
	return day
}

// token is one for the role; staff belong to the practice.
func (w *world) token(role booking.ActorKind, subject string) string {
	w.t.Helper()
	grant := auth.Grant{Role: role, Subject: subject, TTL: time.Hour}
	if role == booking.Staff {
		grant.Organization = w.practice
	}
	token, err := w.signer.Sign(grant)
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

// ask is a request of a test.
type ask struct {
	method, path, token, key, body string
	header                         map[string]string
}

// answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// member is a member of the body, as JSON has it; nil = none.
func (a answer) member(name string) any {
	var object map[string]any
	_ = json.Unmarshal([]byte(a.body), &object)
	return object[name]
}

// code is that of a problem.
func (a answer) code() string {
	code, _ := a.member("code").(string)
	return code
}

func (a answer) id() int64 {
	id, _ := a.member("id").(float64)
	return int64(id)
}

func (w *world) ask(q ask) answer {
	w.t.Helper()
	a, err := w.try(q)
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

func (w *world) try(q ask) (answer, error) {
	var body io.Reader
	if q.body != "" {
		body = strings.NewReader(q.body)
	}
	request, err := http.NewRequest(q.method, w.url+q.path, body)
	if err != nil {
		return answer{}, err
	}
	if q.body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if q.token != "" {
		request.Header.Set("Authorization", "Bearer "+q.token)
	}
	if q.key != "" {
		request.Header.Set("Idempotency-Key", q.key)
	}
	for name, value := range q.header {
		request.Header.Set(name, value)
	}
	response, err := w.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(text)}, err
}

func (w *world) get(path, token string) answer {
	w.t.Helper()
	return w.ask(ask{method: "GET", path: path, token: token})
}

func (w *world) book(token string, slot int64, key string) answer {
	w.t.Helper()
	return w.ask(ask{method: "POST", path: "/api/appointments", token: token, key: key, body: fmt.Sprintf(`{"slotId":%d}`, slot)})
}

// syncBuffer may be written to and read at once.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
