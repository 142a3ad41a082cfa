package booking

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"openslot/internal/devenv"
)

// BenchmarkBook books all over the calendar for many callers at once, on a server that commits
// for good. cmd/loadgen runs it on its own data, which OPENSLOT_BENCH_DATABASE_URL names, and with
// as many callers as OPENSLOT_BENCH_CALLERS says.
func BenchmarkBook(b *testing.B) {
	url := os.Getenv("OPENSLOT_BENCH_DATABASE_URL")
	if url == "" {
		url = benchDatabase(b)
	}
	for _, road := range []struct {
		name string
		cfg  Config
	}{
		{"Batched", Config{AcquireWait: time.Minute}},
		{"Plain", Config{AcquireWait: time.Minute, Plain: true}},
	} {
		b.Run(road.name, func(b *testing.B) { benchmarkBook(b, url, road.cfg) })
	}
}

// benchCalls numbers the calls of all runs: no patient is to book the same time twice.
var benchCalls atomic.Int64

func benchmarkBook(b *testing.B, url string, cfg Config) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 16 // as in production
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	times, patients := benchData(b, pool)
	service := New(pool, cfg)

	callers := 256
	if text := os.Getenv("OPENSLOT_BENCH_CALLERS"); text != "" {
		if callers, err = strconv.Atoi(text); err != nil {
			b.Fatal(err)
		}
	}
	var mu sync.Mutex
	var latencies []time.Duration
	b.SetParallelism(max(1, callers/runtime.GOMAXPROCS(0)))
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		var own []time.Duration
		for pb.Next() {
			k := benchCalls.Add(1)
			n := int64(len(patients))
			at := times[(k+k/n)%int64(len(times))] // a patient's next turn is for another time
			actor := Actor{Kind: Patient, Subject: "p" + strconv.FormatInt(k%n, 10), PatientID: patients[k%n]}
			begin := time.Now()
			booked, err := service.Book(ctx, actor, BookRequest{Slot: at[rand.IntN(len(at))], Key: "k" + strconv.FormatInt(k, 10)})
			own = append(own, time.Since(begin))
			if err != nil || booked.Replayed || booked.Appointment.Status != AppointmentBooked {
				b.Errorf("call %d: %+v, %v", k, booked, err)
				return
			}
		}
		mu.Lock()
		defer mu.Unlock()
		latencies = append(latencies, own...)
	})
	b.StopTimer()
	slices.Sort(latencies)
	ms := func(q int) float64 { return float64(latencies[(len(latencies)-1)*q/100].Microseconds()) / 1000 }
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "bookings/s")
	b.ReportMetric(ms(50), "p50-ms")
	b.ReportMetric(ms(99), "p99-ms")
}

// BenchmarkAlone has one caller, who books on either road in turn: with nobody to share a
// transaction with, the batcher must cost next to nothing.
func BenchmarkAlone(b *testing.B) {
	pool, err := pgxpool.New(b.Context(), benchDatabase(b))
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	times, patients := benchData(b, pool)
	roads := [2]*Service{New(pool, Config{}), New(pool, Config{Plain: true})}
	var latencies [len(roads)][]time.Duration
	k := 0
	for b.Loop() {
		for road, service := range roads {
			at := times[k/len(patients)]
			actor := Actor{Kind: Patient, Subject: "p" + strconv.Itoa(k%len(patients)), PatientID: patients[k%len(patients)]}
			begin := time.Now()
			if _, err := service.Book(b.Context(), actor, BookRequest{Slot: at[k*7919%len(at)], Key: "alone" + strconv.Itoa(k)}); err != nil {
				b.Fatal(err)
			}
			latencies[road] = append(latencies[road], time.Since(begin))
			k++
		}
	}
	for road := range roads {
		slices.Sort(latencies[road])
	}
	median := func(road int) float64 { return float64(latencies[road][len(latencies[road])/2]) }
	b.ReportMetric(median(0)/median(1), "of-plain")
}

// BenchmarkStuckSlot books all over the calendar, by turns of a second: with every slot free to book,
// and while a session sits on one slot's row and ten callers keep asking for that slot. They must get
// a coded refusal in time, and the others must not wait for them.
func BenchmarkStuckSlot(b *testing.B) {
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(benchDatabase(b))
	if err != nil {
		b.Fatal(err)
	}
	config.MaxConns = 16
	config.ConnConfig.RuntimeParams["lock_timeout"] = "1000"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	times, patients := benchData(b, pool)
	service, stuck := New(pool, Config{AcquireWait: time.Minute}), times[len(times)-1][0]
	k := 0 // of calls, in all turns
	turn := func(until time.Time, callers int, call func(k int) error) (latencies []time.Duration) {
		var mu sync.Mutex
		together(callers, func(int) {
			for time.Now().Before(until) {
				mu.Lock()
				k++
				mine := k
				mu.Unlock()
				begin := time.Now()
				if err := call(mine); err != nil {
					b.Error(err)
					return
				}
				mu.Lock()
				latencies = append(latencies, time.Since(begin))
				mu.Unlock()
			}
		})
		return latencies
	}
	book := func(k int, slot SlotID) error {
		n := k % len(patients)
		_, err := service.Book(ctx, Actor{Kind: Patient, Subject: "p" + strconv.Itoa(n), PatientID: patients[n]},
			BookRequest{Slot: slot, Key: "stuck" + strconv.Itoa(k)})
		return err
	}
	elsewhere := func(k int) error {
		at := times[k/len(patients)%(len(times)-1)]
		return book(k, at[k*7919%len(at)])
	}
	var free, beside, refused []time.Duration
	for b.Loop() {
		free = append(free, turn(time.Now().Add(time.Second), 64, elsewhere)...)
		tx, err := pool.Begin(ctx)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tx.Exec(ctx, `SELECT FROM time_slot WHERE id = $1 FOR UPDATE`, stuck); err != nil {
			b.Fatal(err)
		}
		until := time.Now().Add(time.Second)
		var waiting sync.WaitGroup
		waiting.Go(func() {
			refused = append(refused, turn(until, 10, func(k int) error {
				if err := book(k, stuck); code(err) != Overloaded {
					return fmt.Errorf("a caller of the stuck slot got %w", err)
				}
				return nil
			})...)
		})
		beside = append(beside, turn(until, 64, elsewhere)...)
		waiting.Wait()
		if err := tx.Rollback(ctx); err != nil {
			b.Fatal(err)
		}
	}
	p99 := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)*99/100].Microseconds()) / 1000
	}
	b.ReportMetric(p99(free), "free-p99-ms")
	b.ReportMetric(p99(beside), "beside-p99-ms")
	b.ReportMetric(p99(refused), "refused-p99-ms")
}

// benchData reads what can be booked: the slots that begin at the same moment, for every moment.
func benchData(b *testing.B, pool *pgxpool.Pool) (times [][]SlotID, patients []PatientID) {
	rows, err := pool.Query(b.Context(), `SELECT array_agg(id) FROM time_slot GROUP BY start_at ORDER BY start_at`)
	if err != nil {
		b.Fatal(err)
	}
	if times, err = pgx.CollectRows(rows, pgx.RowTo[[]SlotID]); err != nil {
		b.Fatal(err)
	}
	if rows, err = pool.Query(b.Context(), `SELECT id FROM patient ORDER BY id`); err != nil {
		b.Fatal(err)
	}
	if patients, err = pgx.CollectRows(rows, pgx.RowTo[PatientID]); err != nil {
		b.Fatal(err)
	}
	return times, patients
}

// benchDatabase is a server of its own, with the settings of production and some data.
func benchDatabase(b *testing.B) string {
	server := devenv.NewServer(b, devenv.PostgresOptions{
		Settings: map[string]string{"shared_buffers": "1GB", "max_connections": "300", "max_wal_size": "8GB"}})
	pool, err := pgxpool.New(b.Context(), server.URL(""))
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	files, err := filepath.Glob("../../migrations/*.up.sql")
	if err != nil || len(files) == 0 {
		b.Fatalf("migrations: %v, %v", files, err)
	}
	for _, file := range files {
		sql, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := pool.Exec(b.Context(), string(sql)); err != nil {
			b.Fatalf("%s: %v", file, err)
		}
	}
	for _, sql := range []string{
		`INSERT INTO organization (name, time_zone) VALUES ('Practice', 'Europe/Berlin')`,
		`INSERT INTO doctor (organization_id, name) SELECT 1, 'Dr. Example ' || n FROM generate_series(1, 1000) AS n`,
		`INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, opens_at)
		 SELECT d, at, at + interval '15 min', 100, now() - interval '1 day' FROM generate_series(1, 1000) AS d,
		        LATERAL (SELECT now() + interval '1 day' + n * interval '15 min' AS at FROM generate_series(0, 99) AS n) AS t`,
		`INSERT INTO patient (issuer, subject) SELECT 'https://id.example', 'p' || n FROM generate_series(0, 99999) AS n`,
		`VACUUM (FREEZE, ANALYZE)`,
	} {
		if _, err := pool.Exec(b.Context(), sql); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	return server.URL("")
}
