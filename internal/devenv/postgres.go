package devenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strconv"
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
	dir      string
	folder   *folder // nil once stopped
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
	p.dir = p.folder.path
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
	return p.dir
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
	p.opts.Log("using the database %s on %s, port %d, as DATABASE_URL says", conn.Config().Database, conn.Config().Host, conn.Config().Port)
	return nil
}
