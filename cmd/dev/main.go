// Command dev runs everything on one machine, for trying and developing: PostgreSQL of its own,
// Redis in the process, the schema, demo data, a worker, and the API with GraphiQL. It prints tokens and
// commands to begin with.
//
// It is a client of the API like any other: the demo data come in by mutations, so what a fresh
// start shows has been through every rule.
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"openslot/internal/app"
	"openslot/internal/devenv"
)

// options are what can be chosen.
type options struct {
	Port         int    `default:"8080" help:"Where the API listens on localhost. If it is taken, a free one is used and printed."`
	Doctors      int    `default:"20" help:"How many doctors the demo data have, 1 to 2000."`
	DataDir      string `default:".dev" placeholder:"FOLDER" help:"Where the data stay between runs."`
	Reset        bool   `help:"Delete the data of earlier runs first."`
	FollowParent bool   `hidden:"" help:"Stop when the parent process ends."`
}

// Validate says what is out of range.
func (o options) Validate() error {
	if o.Doctors < 1 || o.Doctors > maxDoctors {
		return fmt.Errorf("--doctors: want 1 to %d", maxDoctors)
	}
	if o.Port < 0 || o.Port > 65535 {
		return errors.New("--port: want 0 to 65535")
	}
	return nil
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("dev"), kong.Description("Everything on one machine, with demo data. PostgreSQL is that of DATABASE_URL, an installed one, or a fetched one; Redis is that of REDIS_URL, or in the process."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if o.FollowParent {
		ctx = untilOrphaned(ctx)
	}
	if err := run(ctx, o, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "dev:", err)
		os.Exit(1)
	}
}

// run starts everything, and stops it in reverse order when ctx ends.
func run(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	tell := func(format string, args ...any) { fmt.Fprintf(stderr, "dev: "+format+"\n", args...) }
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("the data folder: %w", err)
	}
	secret, err := keep(filepath.Join(dir, "secret"), rand.Text()+rand.Text())
	if err != nil {
		return err
	}
	server, err := devenv.Start(ctx, devenv.PostgresOptions{DataDir: filepath.Join(dir, "postgres"), Log: tell})
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	database, err := prepare(ctx, server, o.Reset)
	if err != nil {
		return interrupted(ctx, err)
	}

	redis, err := devenv.StartRedis(ctx, devenv.RedisOptions{InProcess: true, Log: tell})
	if err != nil {
		return interrupted(ctx, err)
	}
	defer func() { err = errors.Join(err, redis.Stop()) }()

	log, err := os.OpenFile(filepath.Join(dir, "api.log"), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	config := app.Config{
		Database: database,
		RedisURL: redis.URL(),
		HTTP:     app.HTTP{GraphiQL: true, ResponseCache: true, GracePeriod: 10 * time.Second},
		JWT:      jwt(secret),
	}
	instanceLog := slog.New(slog.NewJSONHandler(log, nil))
	instance, err := listen(ctx, config, o.Port, instanceLog)
	if err != nil {
		return interrupted(ctx, err)
	}
	if _, port, _ := net.SplitHostPort(instance.Addr().String()); o.Port != 0 && port != strconv.Itoa(o.Port) {
		tell("port %d is taken: the API is on %s", o.Port, port)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel() // the API fails: nothing to wait for
		served <- instance.Run(ctx)
	}()
	worked := make(chan error, 1)
	go func() { worked <- app.Work(ctx, database, instanceLog) }()
	d := demo{api: "http://" + instance.Addr().String(), config: config, doctors: o.Doctors, stderr: stderr}
	start, err := d.fill(ctx)
	if err == nil {
		err = start.write(filepath.Join(dir, "env"))
	}
	if err == nil {
		start.print(stdout, relative(filepath.Join(dir, "env")), relative(log.Name()))
		<-ctx.Done()
		tell("stopping")
	}
	cancel()
	return errors.Join(interrupted(ctx, err), <-served, interrupted(ctx, <-worked))
}

// jwt are tokens signed with a secret of ours.
func jwt(secret string) app.JWT {
	return app.JWT{Issuer: "https://localhost/dev", Audience: "openslot", Secret: secret}
}

// interrupted hides what failed only because we were told to stop.
func interrupted(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return nil
	}
	return err
}

// prepare makes the database with the schema, after deleting what was there on reset.
func prepare(ctx context.Context, server *devenv.Postgres, reset bool) (app.Database, error) {
	name := ""
	if !server.Given() {
		name = "openslot"
		if err := server.CreateDatabase(ctx, name); err != nil {
			return app.Database{}, err
		}
	}
	database := app.Database{URL: server.URL(name), Connections: 16}
	if reset {
		if server.Given() {
			return app.Database{}, errors.New("--reset is for the server of our own: what DATABASE_URL names is yours to delete")
		}
		if err := app.MigrateDown(ctx, database); err != nil {
			return app.Database{}, err
		}
	}
	return database, app.Migrate(ctx, database)
}

// listen makes the API on port, or on a free one where that is taken.
func listen(ctx context.Context, config app.Config, port int, log *slog.Logger) (*app.App, error) {
	config.HTTP.Listen = fmt.Sprintf("127.0.0.1:%d", port)
	instance, err := app.New(ctx, config, log)
	if errors.Is(err, syscall.EADDRINUSE) {
		config.HTTP.Listen = "127.0.0.1:0"
		instance, err = app.New(ctx, config, log)
	}
	return instance, err
}

// keep returns the text of a private file, made with fresh on first use.
func keep(path, fresh string) (string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		text = []byte(fresh)
		err = os.WriteFile(path, text, 0o600)
	}
	return strings.TrimSpace(string(text)), err
}

// relative is path as people would type it here.
func relative(path string) string {
	here, err := os.Getwd()
	if err != nil {
		return path
	}
	short, err := filepath.Rel(here, path)
	if err != nil || strings.HasPrefix(short, "..") {
		return path
	}
	return short
}

// untilOrphaned ends with ctx or when the parent process has gone, be it by SIGKILL: `make run`
// must leave nothing behind.
func untilOrphaned(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	parent := os.Getppid()
	go func() {
		defer cancel()
		tick := time.NewTicker(time.Second / 2)
		defer tick.Stop()
		for os.Getppid() == parent {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx
}
