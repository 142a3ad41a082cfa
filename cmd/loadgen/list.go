package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	bookingsPer = 50 // lists
	deepOf      = 64 // one list in so many is looked at closely
)

// list asks for a day of a doctor (from 0), the n-th list of all.
func list(ctx context.Context, c *caller, doctor int, day string, n int) error {
	status, body, err := c.conn.do(ctx, c.request.list(int64(doctor)+1, day))
	if err != nil {
		return err
	}
	return checkList(status, body, n%deepOf == 0)
}

// listing is a load of lists of popular doctors, of tomorrow, which is what most people want to know,
// with a booking now and then. Every list has been read once before it begins: what a list costs that
// is kept is asked for, and ten times as many take ten times as long to be read for the first time.
func (db *database) listing(ctx context.Context, p *process, callers int, t times) (result, error) {
	day, err := db.day(ctx)
	if err != nil {
		return result{}, err
	}
	if err := db.readOnce(ctx, p, callers, day); err != nil {
		return result{}, err
	}
	popular := newZipf(db.doctors)
	booking := db.booking(bookings{callers: callers, slot: func(c *caller, k int) int64 {
		return slotID(popular.draw(&c.random), k%slotsEach)
	}})
	r := closedLoop{address: p.address, callers: callers, warm: t.warm, window: t.window, cpu: db.cpuWith(p),
		call: func(ctx context.Context, c *caller, n int) (kind, error) {
			if n%(bookingsPer+1) == bookingsPer {
				_, err := booking(ctx, c, n/(bookingsPer+1))
				return won, err
			}
			return plain, list(ctx, c, popular.draw(&c.random), day, n)
		}}.run(ctx)
	db.complain(&r.tally)
	return r, nil
}

// readOnce asks for the list of every doctor.
func (db *database) readOnce(ctx context.Context, p *process, callers int, day string) error {
	all, ctx := errgroup.WithContext(ctx)
	for i := range callers {
		all.Go(func() error {
			c := newCaller(p.address, i)
			defer c.conn.close()
			for doctor := i; doctor < db.doctors; doctor += callers {
				if err := list(ctx, c, doctor, day, doctor); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}

// lists measures the program listing.
func (g *ground) lists(ctx context.Context, doctors, callers int, t times) (f figures, sample []byte, broken int64, err error) {
	db, err := g.fresh(ctx, doctors)
	if err != nil {
		return figures{}, nil, 0, err
	}
	var r result
	err = db.withServer(ctx, func(p *process) (err error) {
		if r, err = db.listing(ctx, p, callers, t); err != nil {
			return err
		}
		sample, err = db.sample(ctx, p)
		return err
	})
	if err != nil {
		return figures{}, nil, 0, err
	}
	broken, err = db.violations(ctx, g.wins(r.acks), r.errors > 0)
	return r.figures(plain), sample, broken, err
}

// sample is the body of one list.
func (db *database) sample(ctx context.Context, p *process) ([]byte, error) {
	day, err := db.day(ctx)
	if err != nil {
		return nil, err
	}
	c := newCaller(p.address, 0)
	defer c.conn.close()
	status, body, err := c.conn.do(ctx, c.request.list(1, day))
	if err != nil {
		return nil, err
	}
	return append([]byte(nil), body...), checkList(status, body, true)
}

// bare measures a handler that writes the same bytes.
func (g *ground) bare(ctx context.Context, sample []byte, callers int, t times) (figures, error) {
	file := filepath.Join(g.folder, "list.json")
	if err := os.WriteFile(file, sample, 0o600); err != nil {
		return figures{}, err
	}
	self, err := os.Executable()
	if err != nil {
		return figures{}, err
	}
	p, err := g.start(ctx, exec.CommandContext(ctx, self, "floor", file), "/", os.Environ()...)
	if err != nil {
		return figures{}, err
	}
	day := time.Now().Format(time.DateOnly)
	r := closedLoop{address: p.address, callers: callers, warm: t.warm, window: t.window, cpu: p.cpu,
		call: func(ctx context.Context, c *caller, n int) (kind, error) {
			return plain, list(ctx, c, c.random.below(g.size.doctors), day, n)
		}}.run(ctx)
	g.complain(&r.tally)
	return r.figures(plain), p.stop()
}

// floorCommand is that handler: it knows nothing, so it is as quick as net/http lets it be.
type floorCommand struct {
	File string `arg:"" help:"What to answer."`
}

func (f floorCommand) run(ctx context.Context) error {
	body, err := os.ReadFile(f.File)
	if err != nil {
		return err
	}
	length := strconv.Itoa(len(body))
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", length)
		w.Write(body)
	})}
	var lc net.ListenConfig
	socket, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "{\"address\":%q}\n", socket.Addr().String())
	context.AfterFunc(ctx, func() { _ = server.Close() })
	_ = server.Serve(socket)
	return nil
}

// listContest is lists from memory against a handler that has nothing else to do.
func (g *ground) listContest(callers int, t times) *contest {
	r := &row{Scenario: "list, cached", Callers: callers, FloorName: "net/http, the same bytes", measure: "CPU per list", ratio: cpu}
	return &contest{rows: []*row{r}, round: func(ctx context.Context) error {
		g.phase("list: ours")
		ours, sample, broken, err := g.lists(ctx, g.size.doctors, callers, t)
		if err != nil {
			return err
		}
		g.phase("list: the bare handler")
		floor, err := g.bare(ctx, sample, callers, t)
		if err != nil {
			return err
		}
		r.add(ours, floor, broken)
		return nil
	}}
}

// grow is what ten times the data cost.
func (g *ground) grow(callers, listers int, t times) *contest {
	name := func(what string) *row {
		return &row{Scenario: fmt.Sprintf("grow, %s at %s slots", what, millions(g.size.large)), Callers: callers,
			FloorName: "ours at " + millions(g.size.doctors), measure: "time each", ratio: cost}
	}
	book, list := name("book"), name("list")
	list.Callers = listers
	return &contest{rows: []*row{book, list}, round: func(ctx context.Context) error {
		var f [2][2]figures // book, list; large, small
		var broken [2]int64
		for i, doctors := range []int{g.size.large, g.size.doctors} {
			g.phase("grow: %d doctors", doctors)
			var n [2]int64
			var err error
			if f[0][i], n[0], err = g.ours(ctx, g.spread(doctors, callers), t); err != nil {
				return err
			}
			if f[1][i], _, n[1], err = g.lists(ctx, doctors, listers, t); err != nil {
				return err
			}
			broken[0] += n[0]
			broken[1] += n[1]
		}
		book.add(f[0][0], f[0][1], broken[0])
		list.add(f[1][0], f[1][1], broken[1])
		return nil
	}}
}

// millions is the number of slots of so many doctors, in short.
func millions(doctors int) string {
	return strconv.FormatFloat(float64(doctors*slotsEach)/1e6, 'g', 3, 64) + " M"
}
