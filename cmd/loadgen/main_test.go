package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The test binary is loadgen when it is started as a floor.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "floor" || len(os.Args) == 2 && os.Args[1] == "gorilla" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := realMain(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code := m.Run()
	closeShared()
	os.Exit(code)
}

// little is enough to see that everything works.
var little = plan{
	scenario: "all",
	size:     size{doctors: 20, large: 60, watched: 10, patients: 30_000, small: true, rest: 300 * time.Millisecond},
	callers:  16, few: 8,
	times:   times{warm: 200 * time.Millisecond, window: 600 * time.Millisecond, burst: 2 * time.Second},
	offered: offered{burst: 300, lists: 30, bookings: 10},
	crowd:   crowd{one: 20, many: 60, stop: 30, stalled: 5, idle: 400, changes: 50, drops: 10},
}

// shared is the ground of all tests; whoever uses it has it to themselves.
var shared = sync.OnceValues(func() (*ground, error) {
	g, err := newGround(context.Background(), little.size, newProgress(os.Stderr))
	if err == nil {
		closeShared = g.close
	}
	return g, err
})

var closeShared = func() {}

var groundLock sync.Mutex

func testGround(t *testing.T) *ground {
	t.Helper()
	g, err := shared()
	if errors.Is(err, errNoPgbench) && os.Getenv("CI") != "true" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	groundLock.Lock()
	t.Cleanup(groundLock.Unlock)
	if err := g.patients.fill(little.size.patients); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestAll is every scenario, once, with little of everything.
func TestAll(t *testing.T) {
	g := testGround(t)
	rows, err := g.contests(t.Context(), little, 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) < 17 {
		t.Errorf("%d rows", len(rows))
	}
	for _, r := range rows {
		ours, floor := r.ours[0], r.floor[0]
		if r.Violations != 0 || ours.Errors != 0 {
			t.Errorf("%s: %d violations, %d errors", r.Scenario, r.Violations, ours.Errors)
		}
		if !(ours.PerSecond > 0 && ours.P50 > 0 && ours.P99 >= ours.P50 && floor.PerSecond > 0 && floor.P99 > 0) ||
			r.ratios()[0] <= 0 && min(ours.CPU, floor.CPU) > 0 { // so short a window may have no tick of the CPU's clock in it
			t.Errorf("%s: %+v against %+v", r.Scenario, ours, floor)
		}
		if r.FloorName == "" {
			t.Errorf("%s: nobody knows what the floor is", r.Scenario)
		}
	}
	t.Run("JSON", func(t *testing.T) { checkJSON(t, rows) })
	t.Run("Table", func(t *testing.T) {
		var table bytes.Buffer
		writeTable(&table, rows)
		if lines := strings.Count(table.String(), "\n"); lines != len(rows)+2 || strings.Contains(table.String(), "NaN") {
			t.Errorf("%d rows came to\n%s", len(rows), table.String())
		}
	})
	t.Run("Picture", func(t *testing.T) { checkPicture(t, rows) })
}

// TestBurstREST is the burst over REST.
func TestBurstREST(t *testing.T) {
	g := testGround(t)
	g.overREST = true
	defer func() { g.overREST = false }()
	burst := little
	burst.scenario = "burst"
	rows, err := g.contests(t.Context(), burst, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if ours := r.ours[0]; r.Violations != 0 || ours.Errors != 0 || ours.PerSecond <= 0 {
			t.Errorf("%s: %d violations, %+v", r.Scenario, r.Violations, ours)
		}
	}
}

// checkJSON holds the objects against the shape that readers of theirs rely on.
func checkJSON(t *testing.T, rows []*row) {
	for _, r := range rows {
		var out bytes.Buffer
		if err := r.writeJSON(&out); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Scenario, Callers, Violations json.RawMessage
			Ours, Floor, Ratio            map[string]json.RawMessage
		}
		decoder := json.NewDecoder(&out)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&got); err != nil {
			t.Fatalf("%s: %v", r.Scenario, err)
		}
		memory := ""
		if r.ours[0].Memory > 0 {
			memory = "kib "
		}
		for _, side := range []struct {
			got  map[string]json.RawMessage
			want string
		}{
			{got.Ours, "cpu_us errors " + memory + "p50_ms p99_ms per_s"},
			{got.Floor, "cpu_us " + memory + "name p50_ms p99_ms per_s"},
			{got.Ratio, "max median min"},
		} {
			var keys []string
			for key := range side.got {
				keys = append(keys, key)
			}
			slices.Sort(keys)
			if strings.Join(keys, " ") != side.want {
				t.Errorf("%s has the keys %v, want %s", r.Scenario, keys, side.want)
			}
		}
	}
}

func checkPicture(t *testing.T, rows []*row) {
	path := filepath.Join(t.TempDir(), "a.svg")
	if err := draw(path, rows); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(bytes.NewReader(text))
	bars := 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("not XML: %v", err)
		}
		if element, ok := token.(xml.StartElement); ok && element.Name.Local == "rect" {
			bars++
		}
	}
	if want := 3 + 4*len(rows); bars != want { // background, legend, and throughput and latency of both
		t.Errorf("%d rectangles, want %d", bars, want)
	}
}

// TestCommandLine: what makes no sense is refused before anything is started.
func TestCommandLine(t *testing.T) {
	for _, args := range [][]string{{}, {"nothing"}, {"book", "--rounds=x"}} {
		if err := realMain(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("loadgen %q did something", args)
		}
	}
	if err := realMain(t.Context(), []string{"--help"}, io.Discard, io.Discard); err != nil {
		t.Errorf("--help: %v", err)
	}
}
