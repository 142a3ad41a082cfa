package devenv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// find looks for binaries that fit the data.
func (p *Postgres) find(ctx context.Context) (binaries, error) {
	major := 0
	if text, err := os.ReadFile(p.folder.file("data/PG_VERSION")); err == nil {
		if major, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
			return binaries{}, fmt.Errorf("%s is no PostgreSQL data folder: %w", p.folder.path, err)
		}
	}
	s := search{account: p.account, major: major, folders: p.opts.folders, log: p.opts.Log}
	found, rejected, ok := s.installed(ctx)
	if ok {
		return found, nil
	}
	found, err := s.fetched(ctx, p.opts.Repository)
	if err == nil {
		return found, nil
	}
	if major != 0 {
		return binaries{}, fmt.Errorf("the data in %s was written by PostgreSQL %d, which is not here: "+
			"install that version, or start with fresh data (%s): %w", p.folder.path, major, strings.Join(rejected, "; "), err)
	}
	if len(rejected) == 0 {
		rejected = []string{"none is installed"}
	}
	return binaries{}, fmt.Errorf("no PostgreSQL: %s; fetching one failed too: %w. "+
		"Install PostgreSQL %d or newer with its contrib modules (Debian: apt-get install postgresql postgresql-contrib), "+
		"or set DATABASE_URL", strings.Join(rejected, "; "), err, oldestMajor)
}

// locales to make the database with, in order. Names sort by code point either
// way, but lower() and ILIKE know letters beyond ASCII only with a UTF-8 one.
var locales = []string{"C.UTF-8", "en_US.UTF-8", "C"}

// initialize makes the data where there is none: aside first, so that an
// interrupted initdb leaves nothing that looks like data.
func (p *Postgres) initialize(ctx context.Context) error {
	data, fresh := p.folder.file("data"), p.folder.file("data.new")
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return nil
	}
	var err error
	for _, locale := range locales {
		if err = os.RemoveAll(fresh); err != nil {
			return err
		}
		args := []string{"--pgdata", fresh, "--username", superuser, "--pwfile", p.folder.file("password"),
			"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", locale}
		if p.folder.scratch {
			args = append(args, "--no-sync")
		}
		_, err = output(p.account.command(ctx, p.binaries.path("initdb"), args...))
		if err == nil {
			return os.Rename(fresh, data)
		}
		if !strings.Contains(err.Error(), "locale") {
			break
		}
	}
	return fmt.Errorf("initdb: %w", err)
}

// launch starts the server and waits until it answers. A port that somebody
// took between our look and its start is tried again with another.
func (p *Postgres) launch(ctx context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	restart := p.port != 0
	for giveUp := time.Now().Add(15 * time.Second); ; {
		port := cmp.Or(p.port, p.opts.Port) // a restart keeps its address
		if port == 0 {
			var err error
			if port, err = freePort(); err != nil {
				return err
			}
		}
		err := p.launchOn(ctx, port)
		if err == nil {
			if !restart {
				p.port = port
			}
			return nil
		}
		// The processes of a killed postmaster take a moment to go.
		again := errors.Is(err, errStillThere) ||
			errors.Is(err, errPortTaken) && (restart || p.opts.Port == 0)
		if !again || time.Now().After(giveUp) || pause(ctx, 100*time.Millisecond) != nil {
			return err
		}
	}
}

var (
	errPortTaken  = errors.New("the port is taken: stop who has it, or choose another")
	errStillThere = errors.New("processes of the last server are still there")
)

func (p *Postgres) launchOn(ctx context.Context, port int) error {
	log, err := os.OpenFile(p.folder.file("server.log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	scratch := ""
	if p.folder.scratch {
		scratch = p.folder.path
	}
	server, err := p.account.supervise(p.commandLine(port), scratch, p.folder.lock, log)
	if err != nil {
		return err
	}
	if err := p.ready(ctx, server, port); err != nil {
		if serr := server.shutdown(10 * time.Second); serr != nil {
			p.killPostmaster()
		}
		return err
	}
	p.server = server
	return nil
}

func (p *Postgres) commandLine(port int) []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(port),
		"unix_socket_directories": "", // TCP serves all, and the path of a socket is short
		"logging_collector":       "off",
		"timezone":                "UTC",
	}
	maps.Copy(settings, p.opts.Settings)
	line := []string{p.binaries.path("postgres"), "-D", p.folder.file("data")}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		line = append(line, "-c", key+"="+settings[key])
	}
	return line
}

// ready waits until the server answers on port, or says why it doesn't.
func (p *Postgres) ready(ctx context.Context, server *supervised, port int) error {
	for {
		err := ping(ctx, p.url(port, "postgres"))
		if err == nil {
			return nil
		}
		if server.exited(50 * time.Millisecond) {
			return p.diagnose(port)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("it did not answer in time: %w (last: %w)", ctx.Err(), err)
		}
	}
}

// diagnose reads from the log why the server exited.
func (p *Postgres) diagnose(port int) error {
	text, err := os.ReadFile(p.folder.file("server.log"))
	if err != nil {
		return err
	}
	switch {
	case bytes.Contains(text, []byte("Address already in use")), bytes.Contains(text, []byte("could not bind")):
		return fmt.Errorf("port %d: %w", port, errPortTaken)
	case bytes.Contains(text, []byte("pre-existing shared memory block")), bytes.Contains(text, []byte(`lock file "postmaster.pid" already exists`)):
		return fmt.Errorf("%s: %w", p.folder.path, errStillThere)
	}
	const tail = 2000
	text = bytes.TrimSpace(text)
	text = text[max(0, len(text)-tail):]
	return fmt.Errorf("it exited at once; %s ends with: %s", p.folder.file("server.log"), text)
}

func ping(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// freePort asks the kernel for a port that nobody has.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
