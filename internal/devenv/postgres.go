package devenv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// superuser is the role that a server of ours is made with.
const superuser = "openslot"

// PostgresOptions says how to start a PostgreSQL. The zero value is a
// temporary server on a free port with PostgreSQL's own settings, which are
// safe against a crash.
type PostgresOptions struct {
	// DataDir keeps the data between starts; "" is a temporary folder that goes
	// away with the server. As root it is given to the server's user, and lies
	// elsewhere (see Dir) where that user can't reach it.
	DataDir string

	// Port on 127.0.0.1; 0 takes a free one.
	Port int

	// Settings go into the command line, over those of postgresql.conf.
	Settings map[string]string

	// Own ignores DATABASE_URL: for tests that kill the server.
	Own bool

	// Repository is the Maven repository that binaries are fetched from; ""
	// takes OPENSLOT_POSTGRES_REPOSITORY, else the library's.
	Repository string

	// Log gets a line for what is worth knowing; nil drops it.
	Log func(format string, args ...any)

	folders []string // where to look for binaries; usualFolders but in tests
}

// Postgres is a running server: one of ours, or one given by DATABASE_URL.
type Postgres struct {
	opts     PostgresOptions
	given    string // DATABASE_URL; then all below is empty
	account  account
	folder   *folder
	binaries binaries
	password string
	port     int

	mu     sync.Mutex // guards server, and one start or stop at a time
	server *supervised
}

// Start finds PostgreSQL, starts it on its data (made if there is none) and
// returns once it answers. ctx bounds the start alone. The server stops with
// Stop, or when this process ends in whatever way. Errors say in plain words
// what is wrong and what to do.
func Start(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	if opts.Log == nil {
		opts.Log = func(string, ...any) {}
	}
	if opts.folders == nil {
		opts.folders = usualFolders
	}
	p := &Postgres{opts: opts}
	if given := os.Getenv("DATABASE_URL"); given != "" && !opts.Own {
		p.given = given
		if err := p.checkGiven(ctx); err != nil {
			return nil, fmt.Errorf("devenv: the server of DATABASE_URL: %w", err)
		}
		return p, nil
	}
	if err := p.start(ctx); err != nil {
		return nil, fmt.Errorf("devenv: start PostgreSQL: %w", err)
	}
	return p, nil
}

func (p *Postgres) start(ctx context.Context) (err error) {
	if p.account, err = serverAccount(); err != nil {
		return err
	}
	if p.folder, err = openFolder(ctx, p.opts.DataDir, p.account, p.opts.Log); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.folder.close())
		}
	}()
	if p.binaries, err = p.find(ctx); err != nil {
		return err
	}
	if p.password, err = p.folder.password(p.account); err != nil {
		return err
	}
	if err = p.initialize(ctx); err != nil {
		return err
	}
	return p.launch(ctx)
}

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
			p.port = port
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

// URL is the address of a database on the server, with the superuser's
// password. "" is the database that DATABASE_URL names, or "postgres".
func (p *Postgres) URL(database string) string {
	if p.given == "" {
		if database == "" {
			database = "postgres"
		}
		return p.url(p.port, database)
	}
	if database == "" {
		return p.given
	}
	u, err := url.Parse(p.given)
	if err != nil || u.Scheme == "" {
		return p.given + " dbname=" + database // key=value form: the last one counts
	}
	u.Path = "/" + database
	return u.String()
}

func (p *Postgres) url(port int, database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, p.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Given says whether the server is that of DATABASE_URL, which Stop leaves
// running and Kill and Restart refuse.
func (p *Postgres) Given() bool { return p.given != "" }

// Port is the server's port on 127.0.0.1, 0 for a given one.
func (p *Postgres) Port() int { return p.port }

// Dir is the folder with the data, password and log, "" for a given server.
func (p *Postgres) Dir() string {
	if p.folder == nil {
		return ""
	}
	return p.folder.path
}

// CreateDatabase makes a database unless it is there.
func (p *Postgres) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, p.URL(""))
	if err != nil {
		return fmt.Errorf("devenv: create database %s: %w", name, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if pgErr := (*pgconn.PgError)(nil); errors.As(err, &pgErr) && pgErr.Code == "42P04" { // duplicate_database
		return nil
	}
	if err != nil {
		return fmt.Errorf("devenv: create database %s: %w", name, err)
	}
	return nil
}

// Stop ends the server as on an orderly shutdown (open sessions are cut) and
// removes a temporary folder. A second Stop does nothing.
func (p *Postgres) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.given != "" || p.folder == nil {
		return nil
	}
	err := p.halt()
	err = errors.Join(err, p.folder.close())
	p.folder = nil
	return err
}

// halt stops the server where it runs.
func (p *Postgres) halt() error {
	if p.server == nil {
		return nil
	}
	err := p.server.shutdown(30 * time.Second)
	if err != nil {
		p.killPostmaster()
		p.server.exited(10 * time.Second)
		err = fmt.Errorf("devenv: PostgreSQL was killed: %w", err)
	}
	p.server = nil
	return err
}

// Kill ends the server as a crash does: SIGKILL to the postmaster, whose other
// processes follow as they notice. The data stays for Restart.
func (p *Postgres) Kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.server == nil {
		return errors.New("devenv: no server of ours to kill")
	}
	p.killPostmaster()
	if !p.server.exited(10 * time.Second) {
		return errors.New("devenv: PostgreSQL survived SIGKILL for 10 s")
	}
	p.server = nil
	return nil
}

func (p *Postgres) killPostmaster() {
	if pid := holderOf(p.folder.file("data/postmaster.pid")); pid > 0 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Restart starts the server again on its data and its port, after a Kill or
// from running.
func (p *Postgres) Restart(ctx context.Context) error {
	if p.given != "" {
		return errors.New("devenv: the server of DATABASE_URL is not ours to restart")
	}
	p.mu.Lock()
	err := p.halt()
	p.mu.Unlock()
	if err != nil {
		return err
	}
	if err := p.launch(ctx); err != nil {
		return fmt.Errorf("devenv: restart PostgreSQL: %w", err)
	}
	return nil
}

// checkGiven says why a given server won't do.
func (p *Postgres) checkGiven(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.given)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var num int
	var gist bool
	err = conn.QueryRow(ctx, `SELECT current_setting('server_version_num')::int,
		EXISTS (SELECT FROM pg_available_extensions WHERE name = 'btree_gist')`).Scan(&num, &gist)
	switch {
	case err != nil:
		return err
	case num/10000 < oldestMajor:
		return fmt.Errorf("version %d is older than %d", num/10000, oldestMajor)
	case !gist:
		return errors.New("the extension btree_gist is missing: install the contrib modules")
	}
	return nil
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
