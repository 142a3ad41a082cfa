package graph

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"openslot/internal/auth"
	"openslot/internal/availability"
	"openslot/internal/booking"
	"openslot/internal/devenv"
	"openslot/internal/live"
	"openslot/internal/schedule"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(audienceURL); what != "" {
		if err := sit(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// A test server of our own lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("openslot/internal/devenv.(*supervised).wait"))
}

// patience is how long a test waits for what has to happen.
const patience = 20 * time.Second

// world is two organizations with a doctor each, and the API on them.
type world struct {
	t       testing.TB
	db      *devenv.DB
	handler *Handler
	url     string // of /graphql
	signer  auth.Config
	log     *syncBuffer
	trace   *queries

	north, south             booking.OrganizationID
	northDoctor, southDoctor booking.DoctorID
}

// newWorld starts everything; options change the parts before the handler is made.
func newWorld(t testing.TB, options ...func(*Parts)) *world {
	t.Helper()
	w := &world{t: t, db: devenv.NewDB(t), log: &syncBuffer{}, trace: &queries{}}
	pool := w.trace.pool(t, w.db)
	log := slog.New(slog.NewJSONHandler(w.log, nil))
	w.signer = auth.Config{Issuer: "https://login.example", Audience: "openslot", Secret: []byte(strings.Repeat("s", 32)), Log: log}
	patients := auth.NewPatients(pool)
	authenticator, err := auth.New(t.Context(), w.signer, patients)
	if err != nil {
		t.Fatal(err)
	}
	hub := live.NewHub(pool, log)
	listener := &live.Listener{URL: w.db.URL, Log: log, Consumers: []live.Consumer{hub.Consumer()}}
	parts := Parts{
		Booking: booking.New(pool, booking.Config{AcquireWait: time.Minute, Persist: time.Minute}), Schedule: schedule.New(pool, schedule.Config{}),
		Availability: availability.New(pool, availability.Config{}), Hub: hub, Auth: authenticator, Patients: patients,
		Log: log,
	}
	for _, option := range options {
		option(&parts)
	}
	w.handler = New(parts)
	server := httptest.NewServer(w.handler)
	w.url = server.URL + "/graphql"
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
		bye, done := context.WithTimeout(context.Background(), patience)
		defer done()
		if err := w.handler.Close(bye); err != nil {
			t.Error(err)
		}
		server.CloseClientConnections()
		server.Close()
		cancel()
		running.Wait()
	})
	w.north, w.northDoctor = w.organization("North Practice", "Europe/Berlin", "Ada Example")
	w.south, w.southDoctor = w.organization("South Clinic", "America/New_York", "Bob Example")
	return w
}

// queries is what the API asks the database.
type queries struct {
	mu   sync.Mutex
	seen []string
}

// pool is a second one on the same database, which is watched.
func (q *queries) pool(t testing.TB, db *devenv.DB) *pgxpool.Pool {
	t.Helper()
	config := db.Pool.Config()
	config.ConnConfig.Tracer = q
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// TraceQueryStart implements pgx.QueryTracer.
func (q *queries) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seen = append(q.seen, data.SQL)
	return ctx
}

// TraceQueryEnd implements pgx.QueryTracer.
func (q *queries) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// take returns what was asked since the last call.
func (q *queries) take() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	seen := q.seen
	q.seen = nil
	return seen
}

// syncBuffer may be written to and read at once.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

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

// sql runs a statement and returns its one value, if it has one.
func sql[T any](w *world, statement string, args ...any) (v T) {
	w.t.Helper()
	if err := w.db.Pool.QueryRow(w.t.Context(), statement, args...).Scan(&v); err != nil {
		w.t.Fatalf("%s: %v", statement, err)
	}
	return v
}

func (w *world) organization(name, zone, doctor string) (booking.OrganizationID, booking.DoctorID) {
	w.t.Helper()
	id := sql[booking.OrganizationID](w, `INSERT INTO organization (name, time_zone) VALUES ($1, $2) RETURNING id`, name, zone)
	return id, sql[booking.DoctorID](w, `INSERT INTO doctor (organization_id, name, specialty) VALUES ($1, $2, 'Surgery') RETURNING id`, id, doctor)
}

// noon is 12:00 UTC of the day n days from now: in the future, and the same day in both zones.
func noon(n int) time.Time {
	return time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, n).Add(12 * time.Hour)
}

// slot makes one, open, of half an hour.
func (w *world) slot(doctor booking.DoctorID, start time.Time, capacity int) booking.SlotID {
	w.t.Helper()
	return sql[booking.SlotID](w, `INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
		VALUES ($1, $2::timestamptz, $2::timestamptz + interval '30 minutes', now() - interval '1 day', $3) RETURNING id`, doctor, start, capacity)
}

// token signs one that holds for an hour.
func (w *world) token(role booking.ActorKind, subject string, organization booking.OrganizationID) string {
	w.t.Helper()
	token, err := w.signer.Sign(auth.Grant{Role: role, Subject: subject, Organization: organization, TTL: time.Hour})
	if err != nil {
		w.t.Fatal(err)
	}
	return token
}

func (w *world) patient(subject string) string { return w.token(booking.Patient, subject, 0) }
func (w *world) staff() string                 { return w.token(booking.Staff, "desk", w.north) }

// answer is what the API said.
type answer struct {
	Status int
	Header http.Header
	Body   string
	Data   json.RawMessage `json:"data"`
	Errors []struct {
		Message    string         `json:"message"`
		Path       []any          `json:"path"`
		Extensions map[string]any `json:"extensions"`
	} `json:"errors"`
}

// code is that of the first error, "" = none.
func (a answer) code() string {
	if len(a.Errors) == 0 {
		return ""
	}
	code, _ := a.Errors[0].Extensions["code"].(string)
	return code
}

// send sends a request with some headers, "Name: value", and reads the answer.
func (w *world) send(method, url, body string, headers ...string) answer {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		r.Header.Add(name, value)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	a := answer{Status: res.StatusCode, Header: res.Header, Body: string(text)}
	if len(text) > 0 {
		if err := json.Unmarshal(text, &a); err != nil {
			w.t.Fatalf("%s %s answered %d %q", method, url, res.StatusCode, text)
		}
	}
	return a
}

// vars are the variables of an operation.
type vars map[string]any

// ask posts an operation as the holder of token; "" = nobody.
func (w *world) ask(token, query string, variables vars) answer {
	w.t.Helper()
	body, err := json.Marshal(map[string]any{"query": query, "variables": variables})
	if err != nil {
		w.t.Fatal(err)
	}
	headers := []string{"Content-Type: application/json"}
	if token != "" {
		headers = append(headers, "Authorization: Bearer "+token)
	}
	return w.send(http.MethodPost, w.url, string(body), headers...)
}

// get asks for one field without fault and returns its JSON, decoded into T.
func get[T any](w *world, token, query string, variables vars) T {
	w.t.Helper()
	a := w.ask(token, query, variables)
	if len(a.Errors) > 0 {
		w.t.Fatalf("%s: %s", query, a.Body)
	}
	var data map[string]T
	if err := json.Unmarshal(a.Data, &data); err != nil || len(data) != 1 {
		w.t.Fatalf("%s: %v: %s", query, err, a.Body)
	}
	for _, v := range data {
		return v
	}
	panic("unreachable")
}

// await waits until condition holds.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("in vain: %s", what)
		case <-tick.C:
		}
	}
}

func id[T ~int64](v T) string { return fmt.Sprint(int64(v)) }
