package availability

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"openslot/internal/booking"
	"openslot/internal/devenv"
)

// branch is a database with slots and patients, and gated services on it.
type branch struct {
	t        *testing.T
	db       *devenv.DB
	slots    []booking.SlotID
	patients []booking.PatientID
}

func newBranch(t *testing.T, capacities []int, patients int) *branch {
	t.Helper()
	b := &branch{t: t, db: devenv.NewDB(t)}
	query := func(into any, sql string, args ...any) {
		t.Helper()
		must(t, b.db.Pool.QueryRow(t.Context(), sql, args...).Scan(into))
	}
	query(&b.slots, `
		WITH o AS (INSERT INTO organization (name, time_zone) VALUES ('o', 'UTC') RETURNING id),
		     d AS (INSERT INTO doctor (organization_id, name) SELECT id, 'Dr.' FROM o RETURNING id),
		     s AS (INSERT INTO time_slot (doctor_id, start_at, end_at, opens_at, capacity)
		           SELECT d.id, now() + n * interval '1 day', now() + n * interval '1 day' + interval '1 hour', now() - interval '1 day', c
		             FROM d, unnest($1::int[]) WITH ORDINALITY AS q (c, n) RETURNING id)
		SELECT array_agg(id ORDER BY id) FROM s`, capacities)
	query(&b.patients, `
		WITH p AS (INSERT INTO patient (issuer, subject) SELECT 'i', n::text FROM generate_series(1, $1) AS n RETURNING id)
		SELECT array_agg(id ORDER BY id) FROM p`, patients)
	return b
}

// service is an instance: a gate, fed by a feed of its own, in front of the core.
func (b *branch) service(r *Redis) (*booking.Service, *Gate) {
	b.t.Helper()
	conn, err := pgx.Connect(b.t.Context(), b.db.URL)
	must(b.t, err)
	_, err = conn.Exec(b.t.Context(), `LISTEN slot_change`)
	must(b.t, err)
	var since time.Time
	must(b.t, conn.QueryRow(b.t.Context(), `SELECT clock_timestamp()`).Scan(&since))
	g := NewGate(r, func() bool { return true })
	g.Resync(1, since)
	run(b.t, func(ctx context.Context) error {
		defer conn.Close(context.WithoutCancel(ctx))
		for {
			n, err := conn.WaitForNotification(ctx)
			if err != nil {
				return nil // the test is over
			}
			for line := range strings.SplitSeq(n.Payload, "\n") {
				var s booking.Slot
				var doctor, start, end, opens int64
				if _, err := fmt.Sscanf(line, "s %d %d %d %d %d %d %d %s %d", &doctor, &s.ID, &s.Version, &start, &end, &s.Capacity, &s.Booked, &s.Status, &opens); err != nil {
					return err
				}
				s.StartAt, s.EndAt, s.OpensAt = time.UnixMicro(start), time.UnixMicro(end), time.UnixMicro(opens)
				g.Changed([]booking.Slot{s})
			}
		}
	})
	return booking.New(b.db.Pool, booking.Config{Gate: g, AcquireWait: time.Minute, Persist: time.Minute}), g
}

func (b *branch) actor(i int) booking.Actor {
	return booking.Actor{Kind: booking.Patient, Subject: fmt.Sprint(i), PatientID: b.patients[i]}
}

// check holds the database against the rules, and returns how many places are free.
func (b *branch) check() (free int) {
	b.t.Helper()
	var wrong int
	must(b.t, b.db.Pool.QueryRow(b.t.Context(), `
		SELECT count(*) FILTER (WHERE booked_count > capacity OR booked_count <>
		           (SELECT count(*) FROM appointment a WHERE a.slot_id = s.id AND a.status = 'BOOKED')),
		       sum(capacity - booked_count)
		  FROM time_slot s`).Scan(&wrong, &free))
	if wrong > 0 {
		b.t.Errorf("%d slots with a wrong count", wrong)
	}
	return free
}

// F19, the lying filter: with a Redis that answers at random in front of two instances, no rule
// of booking breaks, winners find their appointments, and every place finds a patient.
func TestLyingFilter(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			capacities := make([]int, 24)
			places := 0
			for i := range capacities {
				capacities[i] = []int{1, 3, 8}[i%3]
				places += capacities[i]
			}
			b := newBranch(t, capacities, 250)
			p, url := newRelay(t, devenv.NewRedis(t))
			p.play(newLiar(seed).answer)
			var services []*booking.Service
			for range 2 {
				s, _ := b.service(openRedis(t, url, nil))
				services = append(services, s)
			}
			together(200, func(i int) {
				dice := rand.New(rand.NewPCG(seed, uint64(i)))
				for n := range limitKeys {
					slot := b.slots[dice.IntN(len(b.slots))]
					r, who := booking.BookRequest{Slot: slot, Key: fmt.Sprint(n)}, b.actor(i)
					won, err := services[(i+n)%2].Book(t.Context(), who, r)
					if code := codeOf(err); code != "" && code != booking.SlotFull && code != booking.AlreadyBooked {
						t.Errorf("patient %d: %v", i, err)
					}
					if err != nil {
						continue
					}
					again, err := services[(i+n+1)%2].Book(t.Context(), who, r)
					if err != nil || !again.Replayed || again.Appointment.ID != won.Appointment.ID {
						t.Errorf("patient %d: the retry of a winner got %+v, %v", i, again, err)
					}
					if dice.IntN(4) == 0 {
						if _, err := services[i%2].Cancel(t.Context(), who, booking.CancelRequest{Appointment: won.Appointment.ID}); err != nil {
							t.Error(err)
						}
					}
				}
			})
			// Whatever the filter believes by now: a free place can be booked soon.
			fresh := 200
			for free := b.check(); free > 0; free = b.check() {
				var slot booking.SlotID
				must(t, b.db.Pool.QueryRow(t.Context(), `SELECT id FROM time_slot WHERE booked_count < capacity LIMIT 1`).Scan(&slot))
				began := time.Now()
				await(t, "a free place is booked", func() bool {
					_, err := services[fresh%2].Book(t.Context(), b.actor(fresh), booking.BookRequest{Slot: slot, Key: fmt.Sprint(slot)})
					if code := codeOf(err); code != "" && code != booking.SlotFull && code != booking.RateLimited {
						t.Fatal(err)
					}
					return err == nil
				})
				if took := time.Since(began); took > hintLife {
					t.Errorf("a free place could not be booked for %s", took)
				}
				fresh = 200 + (fresh+1)%50
			}
		})
	}
}

// B21: a place given back can be booked at once, at any instance, while marks arrive late; and
// the same without a gate in the way of a slot that is full.
func TestGivenBack(t *testing.T) {
	t.Parallel()
	b := newBranch(t, []int{1}, 400)
	server := devenv.NewRedis(t)
	var services []*booking.Service
	var gates []*Gate
	for range 2 {
		s, g := b.service(patientRedis(t, server.URL()))
		services, gates = append(services, s), append(gates, g)
	}
	slot := b.slots[0]
	for i := 0; i+1 < len(b.patients); i += 2 {
		book := func(who, at int) (booking.Booking, error) {
			return services[at%2].Book(t.Context(), b.actor(who), booking.BookRequest{Slot: slot, Key: "k"})
		}
		won, err := book(i, i/2) // though the cancellation of the round before is on its way to this instance
		must(t, err)
		stale := booking.FullMark{Slot: slot, Version: 0, At: time.Now()}
		must(t, b.db.Pool.QueryRow(t.Context(), `SELECT version FROM time_slot WHERE id = $1`, slot).Scan(&stale.Version))
		if _, err := book(i+1, i/2); codeOf(err) != booking.SlotFull {
			t.Fatalf("the slot is full: %v", err)
		}
		_, err = services[i/2%2].Cancel(t.Context(), b.actor(i), booking.CancelRequest{Appointment: won.Appointment.ID})
		must(t, err)
		for _, g := range gates {
			g.Full(stale)
		}
	}
}
