package auth

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

// inserts counts the INSERT statements of a pool.
type inserts struct{ n atomic.Int64 }

func (i *inserts) count(sql string) {
	if strings.Contains(sql, "INSERT INTO patient") {
		i.n.Add(1)
	}
}

func (i *inserts) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	i.count(q.SQL)
	return ctx
}
func (i *inserts) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (i *inserts) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}
func (i *inserts) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	i.count(q.SQL)
}
func (i *inserts) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// newCounted returns a Patients on its own pool to db, whose inserts are counted, and which waits
// for locks as long as the test holds them.
func newCounted(t *testing.T, db *devenv.DB) (*Patients, *inserts) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	counted := new(inserts)
	cfg.ConnConfig.Tracer, cfg.MaxConns = counted, 8
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	p := NewPatients(pool)
	p.limit = time.Minute
	return p, counted
}

func rows(t *testing.T, db *devenv.DB) (n int) {
	t.Helper()
	if err := db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM patient`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func subject(i int) identity { return identity{local.Issuer, fmt.Sprint("subject ", i)} }

func TestSignIn(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	a := newLocal(t, NewPatients(db.Pool))
	enter := func(change func(*draft)) (booking.Actor, error) {
		d := good()
		d.claims["role"] = "patient"
		change(d)
		identity, err := a.Authenticate(t.Context(), d.sign(t))
		return identity.Actor, err
	}
	patient := func(id booking.PatientID) Patient {
		found, err := a.patients.ByID(t.Context(), []booking.PatientID{id})
		if err != nil {
			t.Fatal(err)
		}
		return found[id]
	}

	first, err := enter(func(d *draft) {
		d.claims["name"], d.claims["email"], d.claims["locale"] = "Ada 🩺", "ada@example.org", "de-AT"
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := (booking.Actor{Kind: booking.Patient, Subject: "mina", PatientID: first.PatientID}); first != want || first.PatientID == 0 {
		t.Errorf("actor = %v, want %v with a row", first, want)
	}
	want := Patient{ID: first.PatientID, Name: ptr("Ada 🩺"), Email: ptr("ada@example.org"), Locale: ptr("de-AT")}
	if diff := cmp.Diff(want, patient(first.PatientID)); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}

	// Another token of the same person, for an instance that has never seen them: the row stands.
	a = newLocal(t, NewPatients(db.Pool))
	again, err := enter(claim("name", "Somebody"))
	if err != nil || again != first {
		t.Errorf("second sign-in: %v, %v, want %v", again, err, first)
	}
	if diff := cmp.Diff(want, patient(first.PatientID)); diff != "" {
		t.Errorf("row after the second sign-in (-want +got):\n%s", diff)
	}

	// Contact data that can't be stored is left out.
	second, err := enter(func(d *draft) {
		d.claims["sub"], d.claims["name"], d.claims["email"], d.claims["locale"] = "2", strings.Repeat("x", 201), "none", 7
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Patient{ID: second.PatientID}, patient(second.PatientID)); diff != "" {
		t.Errorf("row without contact data (-want +got):\n%s", diff)
	}

	// The same subject at a desk or a partner is somebody else.
	if registered, created := register(t, a.patients, acme, Registration{Subject: "mina"}); !created || registered.ID == first.PatientID {
		t.Error("a registered patient is the one who signed in")
	}

	// A bad token makes no row; the same without its fault does.
	before := rows(t, db)
	newcomer := func(fault func(*draft)) error {
		_, err := enter(func(d *draft) { d.claims["sub"] = "newcomer"; fault(d) })
		return err
	}
	for _, tt := range badTokens {
		if err := newcomer(tt.fault); err == nil && tt.name != "StaffOfNowhere" { // no fault of a patient's
			t.Errorf("%s: a patient's token was accepted", tt.name)
		} else if n := rows(t, db); err != nil && n != before {
			t.Fatalf("%s: %d rows, want %d", tt.name, n, before)
		} else {
			before = n
		}
	}
	if err := newcomer(claim("sub", "another newcomer")); err != nil || rows(t, db) != before+1 {
		t.Errorf("without a fault: %v, %d rows, want %d", err, rows(t, db), before+1)
	}
}

func TestSignInStorm(t *testing.T) {
	t.Parallel()
	const callers = 500
	storm := func(t *testing.T, atOnce int, enter func(*Patients, int) (booking.PatientID, error)) (inserts int64) {
		db := devenv.NewDB(t)
		p, counted := newCounted(t, db)
		ids := make([]booking.PatientID, callers)
		var all errgroup.Group
		all.SetLimit(atOnce)
		for i := range callers {
			all.Go(func() (err error) {
				ids[i], err = enter(p, i)
				return err
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
		different := make(map[booking.PatientID]bool)
		for _, id := range ids {
			different[id] = true
		}
		if n := rows(t, db); n != callers || len(different) != callers {
			t.Errorf("%d rows, %d ids, want %d", n, len(different), callers)
		}
		for i, id := range ids { // known now: no statement, the same answer
			if again, err := p.signIn(t.Context(), subject(i), untold); err != nil || again != id {
				t.Errorf("again: %d, %v, want %d", again, err, id)
			}
		}
		return counted.n.Load()
	}
	t.Run("Together", func(t *testing.T) {
		n := storm(t, callers, func(p *Patients, i int) (booking.PatientID, error) {
			return p.signIn(context.Background(), subject(i), untold)
		})
		t.Logf("%d patients in %d inserts", callers, n)
		if n > callers/5 {
			t.Errorf("%d inserts for %d patients, want far fewer", n, callers)
		}
	})
	t.Run("ControlOneByOne", func(t *testing.T) {
		n := storm(t, 8, func(p *Patients, i int) (booking.PatientID, error) {
			alone := &newcomer{done: make(chan struct{})}
			p.admit(map[identity]*newcomer{subject(i): alone})
			return alone.id, alone.err
		})
		if n != callers {
			t.Errorf("%d inserts counted for %d, want as many: the count is blind", n, callers)
		}
	})
}

// Whoever comes while an insert is in flight is served by the next one, all together.
func TestSignInCollects(t *testing.T) {
	t.Parallel()
	const callers = 100
	db := devenv.NewDB(t)
	p, counted := newCounted(t, db)
	release := block(t, db)
	answers := make(chan booking.PatientID, callers+1)
	enter := func(ctx context.Context, i int) {
		id, err := p.signIn(ctx, subject(i), untold)
		if err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		answers <- id
	}
	go enter(t.Context(), 0)
	eventually(t, "the first insert waits", func() bool { return blocked(t, db) })

	impatient, giveUp := context.WithCancel(t.Context())
	go enter(impatient, 1)
	for i := range callers - 1 {
		go enter(t.Context(), 2+i%(callers/2)) // two callers each
	}
	waiting := func() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.waiting) }
	eventually(t, "all others are collected", func() bool { return waiting() == callers/2+1 })
	giveUp()
	if id := <-answers; id != 0 {
		t.Errorf("who gave up got patient %d", id)
	}

	release()
	different := make(map[booking.PatientID]bool)
	for range callers {
		different[<-answers] = true
	}
	// One row for the first, one per pair, one for whoever gave up: it is there for the next try.
	if n := rows(t, db); len(different) != callers/2+1 || different[0] || n != callers/2+2 {
		t.Errorf("%d ids, %d rows", len(different), n)
	}
	if n := counted.n.Load(); n < 2 || n > 3 {
		t.Errorf("%d inserts, want 2 (3 where a caller came late)", n)
	}
}

func TestSignInOverload(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	p, _ := newCounted(t, db)
	release := block(t, db)
	first, err := p.enter(subject(0), contact{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first insert waits", func() bool { return blocked(t, db) })
	var last *newcomer
	for i := range maxWaiting {
		if last, err = p.enter(subject(1+i), contact{}); err != nil {
			t.Fatalf("newcomer %d: %v", i, err)
		}
	}
	_, err = p.signIn(t.Context(), subject(-1), untold)
	wantCode(t, err, booking.Overloaded)
	release()
	<-first.done
	<-last.done
	if first.err != nil || last.err != nil {
		t.Errorf("errors: %v, %v", first.err, last.err)
	}
	if n := rows(t, db); n != maxWaiting+1 {
		t.Errorf("%d rows, want %d", n, maxWaiting+1)
	}
}

// block keeps everybody from writing patients until release is called.
func block(t *testing.T, db *devenv.DB) (release func()) {
	t.Helper()
	tx, err := db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE patient IN SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	release = sync.OnceFunc(func() { _ = tx.Rollback(context.Background()) })
	t.Cleanup(release)
	return release
}

func blocked(t *testing.T, db *devenv.DB) (yes bool) {
	t.Helper()
	const sql = `SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'patient'::regclass)`
	if err := db.Pool.QueryRow(t.Context(), sql).Scan(&yes); err != nil {
		t.Fatal(err)
	}
	return yes
}

// Instances with the same newcomers at once: one row each, the same for all, and no deadlock.
func TestSignInInstances(t *testing.T) {
	t.Parallel()
	const instances, newcomers, most = 4, 200, 20
	db := devenv.NewDB(t)
	waits, _ := newCounted(t, db) // until the server finds the deadlock
	// round lets every instance insert the same newcomers, each in an order of its own.
	round := func(sql string, n int) error {
		var all sync.WaitGroup
		errs := make([]error, instances)
		for i := range instances {
			subjects := make([]string, newcomers)
			for j, k := range rand.Perm(newcomers) {
				subjects[j] = fmt.Sprint("round ", n, " subject ", k)
			}
			issuers, none := make([]string, newcomers), make([]*string, newcomers)
			for j := range issuers {
				issuers[j] = local.Issuer
			}
			all.Go(func() { _, errs[i] = waits.pool.Exec(context.Background(), sql, issuers, subjects, none, none, none) })
		}
		all.Wait()
		return errors.Join(errs...)
	}
	t.Run("Sorted", func(t *testing.T) {
		for n := range most {
			if err := round(signInSQL, n); err != nil {
				t.Fatal(err)
			}
		}
		if n := rows(t, db); n != most*newcomers {
			t.Errorf("%d rows, want %d", n, most*newcomers)
		}
	})
	t.Run("ControlUnsorted", func(t *testing.T) {
		unsorted := strings.Replace(signInSQL, "ORDER BY n.issuer, n.subject", "", 1)
		for n := range most {
			var refused *pgconn.PgError
			if err := round(unsorted, -1-n); errors.As(err, &refused) {
				if refused.Code != "40P01" {
					t.Fatal(err)
				}
				return
			}
		}
		t.Errorf("no deadlock in %d rounds without the order: the test is blind", most)
	})
	t.Run("SameIDs", func(t *testing.T) {
		var patients [instances]*Patients
		for i := range patients {
			patients[i] = NewPatients(db.Pool)
		}
		var all sync.WaitGroup
		var got [instances][newcomers]booking.PatientID
		for i := range instances {
			for j := range newcomers {
				all.Go(func() {
					var err error
					if got[i][j], err = patients[i].signIn(context.Background(), subject(j), untold); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		for i := range instances {
			if got[i] != got[0] {
				t.Errorf("instance %d has other ids", i)
			}
		}
	})
}
