package booking

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/devenv"
)

// cutter stands between a pool and PostgreSQL. It passes whole answers on, except that it
// swallows as many answers to an Execute as cuts says, and breaks those connections: the
// transaction is committed, its caller never hears of it.
type cutter struct {
	listener net.Listener
	server   string
	cuts     atomic.Int64 // answers still to swallow
	done     atomic.Int64 // answers swallowed
}

// newCutter gives a proxy to the database and the URL that goes through it.
func newCutter(t testing.TB, db *devenv.DB) (*cutter, string) {
	t.Helper()
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c := &cutter{listener: listener, server: u.Host}
	u.Host = listener.Addr().String()
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			go c.serve(client)
		}
	}()
	return c, u.String()
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.server)
	if err != nil {
		return
	}
	defer server.Close()
	var executing atomic.Bool
	go func() {
		defer server.Close()
		if err := copyMessage(server, client, 0); err != nil { // the start-up message has no type
			return
		}
		for {
			kind, message, err := readMessage(client)
			if err != nil {
				return
			}
			if kind == 'E' {
				executing.Store(true)
			}
			if _, err := server.Write(message); err != nil {
				return
			}
		}
	}()
	var answer []byte
	for {
		kind, message, err := readMessage(server)
		if err != nil {
			return
		}
		answer = append(answer, message...)
		if kind != 'Z' && kind != 'R' { // ready for query: the transaction is over; authentication
			continue
		}
		if kind == 'Z' && executing.Swap(false) && c.cuts.Add(-1) >= 0 {
			c.done.Add(1)
			return
		}
		if _, err := client.Write(answer); err != nil {
			return
		}
		answer = answer[:0]
	}
}

// readMessage reads a typed protocol message, its header included.
func readMessage(r io.Reader) (kind byte, message []byte, err error) {
	header := make([]byte, 5)
	if _, err := io.ReadFull(r, header); err != nil {
		return 0, nil, err
	}
	message = append(header, make([]byte, binary.BigEndian.Uint32(header[1:])-4)...)
	_, err = io.ReadFull(r, message[5:])
	return header[0], message, err
}

// copyMessage copies one message whose length stands at the offset.
func copyMessage(w io.Writer, r io.Reader, offset int) error {
	header := make([]byte, offset+4)
	if _, err := io.ReadFull(r, header); err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	_, err := io.CopyN(w, r, int64(binary.BigEndian.Uint32(header[offset:]))-4)
	return err
}

func open(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// The connection breaks between COMMIT and its answer: the caller gets its appointment all the
// same, and never a second one.
func TestCutAfterCommit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := devenv.NewDB(t)
	p := &practice{t: t, pool: db.Pool}
	p.organization, p.doctor = p.newDoctor("Practice")
	cutter, url := newCutter(t, db)
	service := New(open(t, url), patient(now))

	t.Run("Book", func(t *testing.T) {
		const cuts = 200
		slots, patients := p.slots(cuts, 1), p.patients(cuts)
		before := cutter.done.Load()
		for i, slot := range slots {
			cutter.cuts.Store(1)
			b, err := service.Book(ctx, patients[i], BookRequest{Slot: slot, Key: "k"})
			if err != nil || b.Replayed || b.Appointment.SlotID != slot || b.Appointment.Status != AppointmentBooked {
				t.Fatalf("%+v, %v", b, err)
			}
			again, err := service.Book(ctx, patients[i], BookRequest{Slot: slot, Key: "k"})
			if err != nil || !again.Replayed || again.Appointment.ID != b.Appointment.ID {
				t.Fatalf("retry: %+v, %v", again, err)
			}
		}
		if n := cutter.done.Load() - before; n != cuts {
			t.Errorf("%d answers were cut, want %d", n, cuts)
		}
		if n := one[int](p, `SELECT count(*) FROM appointment`); n != cuts {
			t.Errorf("%d appointments, want %d", n, cuts)
		}
		p.check()
	})

	t.Run("Cancel", func(t *testing.T) {
		patient := p.patient()
		b, err := service.Book(ctx, patient, BookRequest{Slot: p.slot(time.Hour, 1), Key: "k"})
		if err != nil {
			t.Fatal(err)
		}
		cutter.cuts.Store(1)
		c, err := service.Cancel(ctx, patient, CancelRequest{Appointment: b.Appointment.ID})
		if err != nil || !c.Changed || c.Appointment.Status != AppointmentCancelled {
			t.Fatalf("%+v, %v", c, err)
		}
		p.check()
	})

	// While nothing comes through, the outcome stays unknown, and is said to be; the same
	// request later learns it. The control: with another key the winner is told no.
	t.Run("Unknown", func(t *testing.T) {
		patient, slot := p.patient(), p.slot(2*time.Hour, 1)
		impatient := New(service.pool, Config{Now: service.config.Now, AcquireWait: time.Minute, Persist: 100 * time.Millisecond})
		cutter.cuts.Store(1 << 40)
		_, err := impatient.Book(ctx, patient, BookRequest{Slot: slot, Key: "k"})
		cutter.cuts.Store(0)
		wantCode(t, err, OutcomeUnknown)
		_, err = service.Book(ctx, patient, BookRequest{Slot: slot, Key: "other"})
		wantCode(t, err, AlreadyBooked)
		b, err := service.Book(ctx, patient, BookRequest{Slot: slot, Key: "k"})
		if err != nil || !b.Replayed {
			t.Fatalf("%+v, %v", b, err)
		}
		p.check()
	})
}

// A caller who gives up leaves nothing half done: the booking stands or does not, and its key tells.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	p := newPractice(t)
	slots, patients := p.slots(100, 1), p.patients(100)
	for i, slot := range slots {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*20*time.Microsecond)
		_, err := p.service.Book(ctx, patients[i], BookRequest{Slot: slot, Key: "k"})
		cancel()
		if err != nil && !errors.Is(err, context.DeadlineExceeded) && code(err) != Overloaded && code(err) != OutcomeUnknown {
			t.Fatal(err)
		}
		stands := one[int](p, `SELECT booked_count FROM time_slot WHERE id = $1`, slot) == 1
		if err == nil && !stands {
			t.Fatal("an acknowledged booking is missing")
		}
		if b := p.book(patients[i], slot, "k"); stands && !b.Replayed {
			t.Fatal("a booking that stands was made again")
		}
	}
	if n := one[int](p, `SELECT count(*) FROM appointment`); n != len(slots) {
		t.Errorf("%d appointments for %d keys", n, len(slots))
	}
	p.check()
}

// A slot that comes into being while a call for its id waits for another lock: no success without
// an appointment.
func TestSlotMadeMeanwhile(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := devenv.NewDB(t)
	p := &practice{t: t, pool: db.Pool}
	p.organization, p.doctor = p.newDoctor("Practice")
	patient, next := p.patient(), p.slot(time.Hour, 1)+1
	service := New(open(t, db.URL), Config{Now: func() time.Time { return now }, Plain: true})
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(ctx)
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(patient_lock_key($1))`, patient.PatientID); err != nil {
		t.Fatal(err)
	}
	answer := make(chan error, 1)
	go func() {
		_, err := service.Book(ctx, patient, BookRequest{Slot: next, Key: "k"})
		answer <- err
	}()
	p.waitForLock()
	if made := p.slot(2*time.Hour, 1); made != next {
		t.Fatalf("slot %d was made, want %d", made, next)
	}
	if err := tx.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	wantCode(t, <-answer, Overloaded)
	if _, err := service.Book(ctx, patient, BookRequest{Slot: next, Key: "k"}); err != nil {
		t.Error(err)
	}
	p.check()
}

// A pool without a free connection refuses in bounded time, and is whole afterwards.
func TestPoolExhausted(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	db := devenv.NewDB(t)
	p := &practice{t: t, pool: db.Pool}
	p.organization, p.doctor = p.newDoctor("Practice")
	pool := open(t, db.URL)
	service := New(pool, Config{Now: func() time.Time { return now }, AcquireWait: 20 * time.Millisecond})
	unhurried := New(pool, patient(now))
	slot, patient := p.slot(time.Hour, 1), p.patient()
	var busy []*pgxpool.Conn
	for range pool.Config().MaxConns {
		conn, err := pool.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		busy = append(busy, conn)
	}
	_, err := service.Book(ctx, patient, BookRequest{Slot: slot, Key: "k"})
	wantCode(t, err, Overloaded)
	for _, conn := range busy {
		conn.Release()
	}
	if _, err := unhurried.Book(ctx, patient, BookRequest{Slot: slot, Key: "k"}); err != nil {
		t.Error(err)
	}
}

// Four connections, all of them in front of a locked row, and 200 callers: everybody has an answer in
// bounded time, booked or OVERLOADED, and once the lock is gone nothing is left of it.
func TestSmallPool(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{"Batched": false, "Plain": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := context.Background()
			db := devenv.NewDB(t)
			p := &practice{t: t, pool: db.Pool}
			p.organization, p.doctor = p.newDoctor("Practice")
			config, err := pgxpool.ParseConfig(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			config.MaxConns = 4
			config.ConnConfig.RuntimeParams["lock_timeout"] = "500"
			pool, err := pgxpool.NewWithConfig(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			service := New(pool, Config{Now: func() time.Time { return now }, Plain: plain})
			slots, patients := p.slots(4, 200), p.patients(200)
			tx, err := p.pool.Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(ctx, `SELECT FROM time_slot FOR UPDATE`); err != nil {
				t.Fatal(err)
			}
			var refused atomic.Int64
			together(len(patients), func(i int) {
				within, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				_, err := service.Book(within, patients[i], BookRequest{Slot: slots[i%len(slots)], Key: "k"})
				if code(err) == Overloaded {
					refused.Add(1)
				} else if err != nil {
					t.Errorf("a caller got %v", err)
				}
			})
			if refused.Load() != int64(len(patients)) {
				t.Errorf("%d of %d were refused although every row was locked", refused.Load(), len(patients))
			}
			if err := tx.Rollback(ctx); err != nil {
				t.Fatal(err)
			}
			service = New(pool, Config{Now: func() time.Time { return now }, Plain: plain, AcquireWait: time.Minute})
			for i, patient := range patients {
				if _, err := service.Book(ctx, patient, BookRequest{Slot: slots[i%len(slots)], Key: "k"}); err != nil {
					t.Fatal(err)
				}
			}
			if busy := pool.Stat().AcquiredConns(); busy != 0 {
				t.Errorf("%d connections are still taken", busy)
			}
			p.check()
		})
	}
}

// A database that is away is UNAVAILABLE, whatever is asked of it.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(context.Background(), "postgres://nobody@"+address+"/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	service := New(pool, Config{Persist: 50 * time.Millisecond})
	patient := Actor{Kind: Patient, Subject: "1", PatientID: 1}
	_, err = service.Book(context.Background(), patient, BookRequest{Slot: 1, Key: "k"})
	wantCode(t, err, Unavailable)
	_, err = service.Cancel(context.Background(), patient, CancelRequest{Appointment: 1})
	wantCode(t, err, Unavailable)
	_, err = service.Appointment(context.Background(), patient, 1)
	wantCode(t, err, Unavailable)
}
