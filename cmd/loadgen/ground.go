package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"openslot/internal/devenv"
)

// settings are those of a production server of this size. What makes a commit safe is on, as it is
// by default, and stands here so that nobody wonders.
var settings = map[string]string{
	"fsync":              "on",
	"synchronous_commit": "on",
	"full_page_writes":   "on",
	"autovacuum":         "on",
	// What live counts from; it costs ten bytes for a commit.
	"track_commit_timestamp": "on",
	"shared_buffers":         "1GB",
	"max_connections":        "300",
	"max_wal_size":           "8GB",
	"min_wal_size":           "2GB",
	"checkpoint_timeout":     "15min",
}

// ground is what all scenarios stand on: a PostgreSQL with the data, and the program.
type ground struct {
	server     *devenv.Postgres
	postmaster int    // its process
	version    int    // as 150018
	prewarm    bool   // it can read a table into memory
	pgbench    string // the program
	folder     string // for sockets, programs, logs
	openslot   string // the program
	profile    string // the file for a profile of it, of the last that was started; "" = none
	size       size
	overREST   bool      // book and cancel over REST, not GraphQL
	patients   *wallet   // who have rows
	newcomers  *wallet   // who have none
	noise      []float64 // share of the machine that others used, for each round
	*progress
}

// newGround starts PostgreSQL and builds the program. Close it.
func newGround(ctx context.Context, size size, progress *progress) (_ *ground, err error) {
	g := &ground{size: size, progress: progress, patients: &wallet{prefix: "p"}, newcomers: &wallet{prefix: "n"}}
	defer func() {
		if err != nil {
			g.close()
		}
	}()
	if g.folder, err = os.MkdirTemp("", "openslot-load-"); err != nil {
		return nil, err
	}
	// The server's user, who is another one where we are root, makes its socket there. Its
	// sessions ask for the password all the same.
	sockets := filepath.Join(g.folder, "sockets")
	if err := errors.Join(os.Mkdir(sockets, 0o700), os.Chmod(sockets, 0o777), os.Chmod(g.folder, 0o711)); err != nil {
		return nil, err
	}
	own := maps.Clone(settings)
	own["unix_socket_directories"] = sockets
	if size.small {
		own["shared_buffers"] = "128MB"
	}
	if g.server, err = devenv.Start(ctx, devenv.PostgresOptions{Own: true, Settings: own, Log: progress.log}); err != nil {
		return nil, err
	}
	if inMemory(g.server.Dir()) {
		progress.log("the data in %s are in memory, where commits cost nothing: set TMPDIR to a disk", g.server.Dir())
	}
	if g.postmaster, err = g.postmasterID(); err != nil {
		return nil, err
	}
	if err := g.look(ctx); err != nil {
		return nil, err
	}
	return g, g.build(ctx)
}

func (g *ground) close() {
	if g.server != nil {
		if err := g.server.Stop(); err != nil {
			g.log("%v", err)
		}
	}
	os.RemoveAll(g.folder)
}

func (g *ground) postmasterID() (int, error) {
	text, err := os.ReadFile(filepath.Join(g.server.Dir(), "data/postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return strconv.Atoi(first)
}

// errNoPgbench: the floor can't be measured.
var errNoPgbench = errors.New("pgbench is missing, which the floors are measured with: install PostgreSQL with its client programs (Debian: apt-get install postgresql)")

// look finds out what the server can do, and the pgbench of its own installation, else any.
func (g *ground) look(ctx context.Context) error {
	var folder string
	s := g.session(ctx, "postgres")
	defer s.close()
	s.read(`SELECT c.setting, current_setting('server_version_num')::int,
	               EXISTS (SELECT FROM pg_available_extensions WHERE name = 'pg_prewarm')
	          FROM pg_config AS c WHERE c.name = 'BINDIR'`, &folder, &g.version, &g.prewarm)
	if s.err != nil {
		return s.err
	}
	for _, name := range []string{filepath.Join(folder, "pgbench"), "pgbench"} {
		if path, err := exec.LookPath(name); err == nil {
			g.pgbench = path
			return nil
		}
	}
	return errNoPgbench
}

// build makes the production binary from the sources that loadgen belongs to.
func (g *ground) build(ctx context.Context) error {
	g.openslot = filepath.Join(g.folder, "openslot")
	return run(exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", g.openslot, "openslot/cmd/openslot"))
}

// run runs a command to its end. The error has what it said.
func run(cmd *exec.Cmd) error {
	said, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, said)
	}
	return nil
}

// url is the address of a database over the server's socket in the file system, which is the
// shortest way for everybody.
func (g *ground) url(database string) string {
	u, err := url.Parse(g.server.URL(database))
	if err != nil {
		panic(err) // devenv made it
	}
	query := u.Query()
	query.Set("host", filepath.Join(g.folder, "sockets"))
	query.Set("port", u.Port())
	u.Host, u.RawQuery = "", query.Encode()
	return u.String()
}

// session runs statements one by one on a connection of its own. The first error stays, and what
// comes after it does nothing.
type session struct {
	ctx  context.Context
	conn *pgx.Conn
	err  error
}

func (g *ground) session(ctx context.Context, database string) *session {
	s := &session{ctx: ctx}
	s.conn, s.err = pgx.Connect(ctx, g.url(database))
	return s
}

func (s *session) exec(sql string, args ...any) {
	if s.err != nil {
		return
	}
	if _, err := s.conn.Exec(s.ctx, sql, args...); err != nil {
		s.err = fmt.Errorf("%.60s: %w", strings.Join(strings.Fields(sql), " "), err)
	}
}

// read runs a query for one row.
func (s *session) read(sql string, into ...any) {
	if s.err != nil {
		return
	}
	if err := s.conn.QueryRow(s.ctx, sql).Scan(into...); err != nil {
		s.err = fmt.Errorf("%.60s: %w", strings.Join(strings.Fields(sql), " "), err)
	}
}

func (s *session) close() {
	if s.conn != nil {
		_ = s.conn.Close(context.WithoutCancel(s.ctx))
	}
}

// database is a copy of the data for one measurement. All start alike.
type database struct {
	*ground
	name    string
	doctors int
}

// fresh copies the data of so many doctors, and brings the copy into memory.
func (g *ground) fresh(ctx context.Context, doctors int) (*database, error) {
	template, err := g.data(ctx, doctors)
	if err != nil {
		return nil, err
	}
	db := &database{g, "round", doctors}
	copying := "CREATE DATABASE round TEMPLATE " + template
	if g.version >= 150000 { // 14 knows no other way, and no word for it
		copying += " STRATEGY file_copy"
	}
	s := g.session(ctx, "postgres")
	defer s.close()
	s.exec("DROP DATABASE IF EXISTS round WITH (FORCE)")
	s.exec(copying)
	if s.err != nil {
		return nil, s.err
	}
	return db, db.settle(ctx)
}

// exec runs one statement.
func (db *database) exec(ctx context.Context, sql string) error {
	s := db.session(ctx, db.name)
	defer s.close()
	s.exec(sql)
	return s.err
}

// settle leaves nothing for the server to do that would fall into the next measurement.
func (db *database) settle(ctx context.Context) error {
	s := db.session(ctx, db.name)
	defer s.close()
	if db.prewarm {
		s.exec(`SELECT pg_prewarm(oid) FROM pg_class
			WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'i')`)
	}
	s.exec("CHECKPOINT")
	return s.err
}

// cpu is the CPU time of PostgreSQL so far.
func (g *ground) cpu() time.Duration { return cpuOfTree(g.postmaster) }
