// Command loadgen measures openslot under load and holds it against a floor: what the same machine
// does without it, with the best that PostgreSQL or net/http have by themselves.
//
//	loadgen ──HTTP──▶ openslot api ──▶ PostgreSQL      ours: the production binary, its own settings
//	pgbench ─────────────────────────▶ PostgreSQL      the floor of what books
//	loadgen ──HTTP──▶ loadgen floor                    the floor of lists
//	loadgen ◀─socket─ openslot api ◀── PostgreSQL ◀── openslot api ◀──HTTP── loadgen     screens, and what changes
//	loadgen ◀─socket─ loadgen gorilla ◀──HTTP── loadgen                                  their floor
//
// It starts everything itself, on a PostgreSQL with the settings of production, and measures ours
// and the floor in turn, each time on a fresh copy of the same data: the ratio within a round means
// something where absolute figures of a busy machine don't. Every answer is checked, and at the end of
// each measurement the database is: what breaks a rule is counted as a violation.
//
// Scenarios are contests (report.go has their rows): book.go, list.go, burst.go with seven.go,
// inprocess.go, live.go with idle.go, stir.go, and screens in audience.go. load.go has the two ways
// to call: as soon as answered, and at a rate whatever the answers. A caller belongs to one
// goroutine; what callers share has a lock of its own.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

// commands is the command line.
type commands struct {
	Book    command        `cmd:"" help:"Bookings spread over all slots."`
	Hot     command        `cmd:"" help:"Bookings of one slot."`
	Process command        `cmd:"" help:"Bookings in the process, without a transport."`
	Burst   burstCommand   `cmd:"" help:"Seven o'clock: far more callers than places, at a fixed rate."`
	List    command        `cmd:"" help:"Lists of free slots."`
	Grow    command        `cmd:"" help:"Bookings and lists with ten times the data."`
	Live    command        `cmd:"" help:"Screens that are shown every change."`
	All     command        `cmd:"" help:"All of them."`
	Floor   floorCommand   `cmd:"" hidden:""`
	Gorilla gorillaCommand `cmd:"" hidden:""`
}

// command is a contest, or all.
type command struct {
	Rounds   int    `default:"5" help:"How often each is measured."`
	Seconds  int    `default:"5" help:"Length of a measurement; the burst takes six times as long."`
	JSON     bool   `name:"json" help:"Print one JSON object for each scenario instead of a table."`
	SVG      string `name:"svg" placeholder:"FILE" help:"Draw the result."`
	Profile  string `placeholder:"FILE" help:"Write a profile of the CPU time of openslot, of the last that was started."`
	Doctors  int    `default:"2000" help:"How many doctors there are, with 560 slots each; the scenario grow has ten times as many."`
	Patients int    `default:"300000" help:"How many registered patients take turns at booking."`
	Rate     int    `default:"5000" help:"Calls per second of the burst."`
	Screens  int    `default:"5000" help:"Screens on 100 doctors; a tenth of them on one, twice as many idle."`
	Changes  int    `default:"200" help:"Changes per second while screens watch 100 doctors."`
	Stalled  int    `default:"200" help:"Screens, of two fifths of all, that read no more."`
	Drops    int    `default:"0" help:"Screens per second that disconnect abruptly and come back, while all watch."`
}

// burstCommand is the burst.
type burstCommand struct {
	command
	REST bool `name:"rest" help:"Book and cancel over REST, not GraphQL."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	err := realMain(ctx, os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "loadgen:", err)
		os.Exit(1)
	}
}

func realMain(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var c commands
	exited := false
	parser, err := kong.New(&c, kong.Name("loadgen"), kong.Writers(stdout, stderr), kong.Exit(func(int) { exited = true }),
		kong.Description("Measures openslot under load, against what the machine does without it."))
	if err != nil {
		panic(err) // the structs above make no sense
	}
	parsed, err := parser.Parse(args)
	if exited { // --help
		return nil
	}
	if err != nil {
		return err
	}
	name := parsed.Selected().Name
	switch name {
	case "floor":
		return c.Floor.run(ctx)
	case "gorilla":
		return c.Gorilla.run(ctx)
	}
	// A caller's thread may sleep in the kernel (nap), and garbage must not take time from what is measured.
	runtime.GOMAXPROCS(runtime.NumCPU() + 1)
	debug.SetGCPercent(400)
	chosen := map[string]*command{"book": &c.Book, "hot": &c.Hot, "process": &c.Process, "burst": &c.Burst.command, "list": &c.List, "grow": &c.Grow,
		"live": &c.Live, "all": &c.All}[name]
	return chosen.measure(ctx, plan{scenario: name, overREST: c.Burst.REST, size: size{doctors: chosen.Doctors, large: 10 * chosen.Doctors, watched: min(100, chosen.Doctors), patients: chosen.Patients, rest: 3 * time.Second},
		callers: 256, few: 64,
		times:   times{warm: time.Second, window: time.Duration(chosen.Seconds) * time.Second, burst: 6 * time.Duration(chosen.Seconds) * time.Second},
		offered: offered{burst: float64(chosen.Rate), lists: 250, bookings: 50},
		crowd: crowd{one: chosen.Screens / 10, many: chosen.Screens, stop: chosen.Screens * 2 / 5, stalled: chosen.Stalled, idle: 2 * chosen.Screens,
			changes: float64(chosen.Changes), drops: float64(chosen.Drops)}}, stdout, stderr)
}

// plan is what to measure.
type plan struct {
	scenario     string // "all" for all
	overREST     bool   // bookings of the burst go over REST
	size         size
	callers, few int
	times        times
	offered      offered
	crowd        crowd
}

// times are the lengths of a measurement.
type times struct {
	warm   time.Duration // before it counts
	window time.Duration
	burst  time.Duration
}

// contest is ours against a floor, in turn.
type contest struct {
	rows  []*row
	round func(ctx context.Context) error // measures both and adds the figures to the rows
}

func (c *command) measure(ctx context.Context, p plan, stdout, stderr io.Writer) error {
	progress := newProgress(stderr)
	defer progress.done()
	g, err := newGround(ctx, p.size, progress)
	if err != nil {
		return err
	}
	defer g.close()
	g.overREST, g.profile = p.overREST, c.Profile
	rows, err := g.contests(ctx, p, c.Rounds)
	if err != nil {
		return err
	}
	progress.done()
	if c.SVG != "" {
		if err := draw(c.SVG, rows); err != nil {
			return err
		}
	}
	if !c.JSON {
		fmt.Fprintf(stdout, "%d cores with everything on them, PostgreSQL %d.%d; medians of %d rounds of %v.\n\n",
			runtime.NumCPU(), g.version/10000, g.version%10000, c.Rounds, p.times.window)
		if noise := middle(g.noise); noise > 0.05 {
			fmt.Fprintf(stdout, "Other processes used %.0f %% of the machine meanwhile, so none of this means much.\n\n", 100*noise)
		}
		writeTable(stdout, rows)
	}
	faults := int64(0)
	for _, r := range rows {
		if c.JSON {
			if err := r.writeJSON(stdout); err != nil {
				return err
			}
		}
		faults += r.Violations + median(r.ours).Errors
	}
	if faults > 0 {
		return fmt.Errorf("%d wrong or missing answers and broken rules: see above", faults)
	}
	return nil
}

// contests holds those that the plan asks for, round by round.
func (g *ground) contests(ctx context.Context, p plan, rounds int) (rows []*row, err error) {
	if err := g.patients.fill(p.size.patients); err != nil {
		return nil, err
	}
	spread := &pgbench{choose: spreadScript, shapes: bothShapes, clients: g.tries(8, 16, 32)}
	type named struct {
		name string
		made *contest
	}
	all := []named{
		{"book", g.against("book", g.spread(p.size.doctors, p.callers), spread, p.times)},
		{"book", g.against("book", g.spread(p.size.doctors, p.few), spread, p.times)},
		{"hot", g.against("hot, one slot", g.hot(p.callers), &pgbench{choose: hotScript, shapes: bothShapes, clients: g.tries(1, 2, 8, 16)}, p.times)},
		{"process", g.inProcess(spread, p.callers, p.times)},
		{"burst", g.burst(p.offered, p.callers, p.times)},
		{"list", g.listContest(p.few, p.times)},
		{"grow", g.grow(p.callers, p.few, p.times)},
	}
	for _, c := range g.live(p.crowd, p.times) {
		all = append(all, named{"live", c})
	}
	for _, c := range all {
		if p.scenario != c.name && p.scenario != "all" {
			continue
		}
		for n := range rounds {
			g.round(n+1, rounds)
			others := busyWith()
			if err := c.made.round(ctx); err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", c.name, err), ctx.Err())
			}
			share := others()
			g.noise = append(g.noise, share)
			for _, r := range c.made.rows {
				last := len(r.ours) - 1
				g.log("%s (%d), round %d: %s against %s: %.2f; others used %.0f %% of the machine", r.Scenario, r.Callers, n+1,
					r.ours[last], r.floor[last], r.ratio(r.ours[last], r.floor[last]), 100*share)
			}
		}
		rows = append(rows, c.made.rows...)
	}
	return rows, nil
}

// tries are the numbers of clients to try; of little data, the first.
func (g *ground) tries(clients ...int) []int {
	if g.size.small {
		return clients[:1]
	}
	return clients
}

// busyWith returns a function that tells which share of the machine processes of others have used
// since then.
func busyWith() func() float64 {
	begin := time.Now()
	all, us := usage()
	return func() float64 {
		allNow, usNow := usage()
		return max(0, ((allNow-all)-(usNow-us)).Seconds()/time.Since(begin).Seconds()/float64(runtime.NumCPU()))
	}
}

func draw(path string, rows []*row) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(writePicture(file, rows), file.Close())
}
