package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
)

// inProcess is the booking service without a transport: the benchmark of internal/booking, on the
// same data, against pgbench.
func (g *ground) inProcess(p *pgbench, callers int, t times) *contest {
	r := &row{Scenario: "book, in the process", Callers: callers, measure: "bookings/s", ratio: perSecond}
	return &contest{rows: []*row{r}, round: func(ctx context.Context) error {
		g.phase("book, in the process: ours")
		db, err := g.fresh(ctx, g.size.doctors)
		if err != nil {
			return err
		}
		ours, err := db.benchmark(ctx, callers, t)
		if err != nil {
			return err
		}
		broken, err := db.violations(ctx, nil, false)
		if err != nil {
			return err
		}
		g.phase("book, in the process: pgbench")
		floor, err := p.run(ctx, func(ctx context.Context) (*database, error) { return g.fresh(ctx, g.size.doctors) }, t)
		if err != nil {
			return err
		}
		r.FloorName = p.name()
		r.add(ours, floor, broken)
		return nil
	}}
}

// benchmark runs BenchmarkBook on the database.
func (db *database) benchmark(ctx context.Context, callers int, t times) (figures, error) {
	program := filepath.Join(db.folder, "booking.test")
	if _, err := os.Stat(program); err != nil {
		if err := run(exec.CommandContext(ctx, "go", "test", "-c", "-trimpath", "-o", program, "openslot/internal/booking")); err != nil {
			return figures{}, err
		}
	}
	cmd := exec.CommandContext(ctx, program, "-test.run=^$", "-test.bench=^BenchmarkBook$/^Batched$", "-test.benchtime="+t.window.String())
	cmd.Env = append(os.Environ(), "OPENSLOT_BENCH_DATABASE_URL="+db.url(db.name), "OPENSLOT_BENCH_CALLERS="+strconv.Itoa(callers))
	said, err := cmd.CombinedOutput()
	if err != nil {
		return figures{}, fmt.Errorf("the benchmark of internal/booking: %w: %s", err, said)
	}
	return readBenchmark(said)
}

var benchmarkFigure = regexp.MustCompile(`([0-9.]+) (bookings/s|p50-ms|p99-ms)`)

// readBenchmark takes the figures from what a Go benchmark prints.
func readBenchmark(said []byte) (f figures, err error) {
	for _, m := range benchmarkFigure.FindAllSubmatch(said, -1) {
		v, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			return f, err
		}
		switch string(m[2]) {
		case "bookings/s":
			f.PerSecond = v
		case "p50-ms":
			f.P50 = v
		case "p99-ms":
			f.P99 = v
		}
	}
	if f.PerSecond == 0 {
		return f, fmt.Errorf("the benchmark of internal/booking says %q", said)
	}
	return f, nil
}
