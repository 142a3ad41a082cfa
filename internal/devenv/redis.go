package devenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// RedisOptions says how to start a Redis. The zero value is the server of
// REDIS_URL, else one of our own.
type RedisOptions struct {
	// Own ignores REDIS_URL: for tests, which flush and kill it.
	Own bool

	// InProcess takes miniredis even where a redis-server is installed: it needs
	// no other process, which is what somebody who tries things wants.
	InProcess bool

	// Log gets a line for what is worth knowing; nil drops it.
	Log func(format string, args ...any)
}

// Redis is a running server without persistence: a redis-server of ours,
// miniredis in this process, or one given by REDIS_URL.
type Redis struct {
	given    string
	binary   string // of redis-server; "" = miniredis
	password string
	port     int // stays the same over a Kill and Restart

	mu     sync.Mutex // one start or stop at a time
	server *supervised
	pid    int
	mini   *miniredis.Miniredis
}

// StartRedis starts a Redis, or takes the one of REDIS_URL, and returns once
// it answers. One of ours stops with Stop, or when this process ends in
// whatever way. With CI=true only a redis-server will do.
func StartRedis(ctx context.Context, opts RedisOptions) (*Redis, error) {
	if opts.Log == nil {
		opts.Log = func(string, ...any) {}
	}
	if given := os.Getenv("REDIS_URL"); given != "" && !opts.Own {
		r := &Redis{given: given}
		if _, err := r.ask(ctx); err != nil {
			return nil, fmt.Errorf("devenv: the server of REDIS_URL: %w", err)
		}
		return r, nil
	}
	r := &Redis{password: rand.Text()}
	if !opts.InProcess {
		var err error
		if r.binary, err = exec.LookPath("redis-server"); err != nil {
			if os.Getenv("CI") == "true" {
				return nil, errors.New("devenv: redis-server is missing: apt-get install redis-server")
			}
			opts.Log("no redis-server in PATH: using miniredis")
		}
	}
	if err := r.Restart(ctx); err != nil {
		return nil, err
	}
	return r, nil
}

// NewRedis starts an empty server for this test alone, to be filled, flushed
// and killed; it is stopped when the test ends. Safe in parallel tests.
func NewRedis(t testing.TB) *Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := StartRedis(ctx, RedisOptions{Own: true, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Given says whether the server is that of REDIS_URL, which Stop leaves
// running and Kill and Restart refuse.
func (r *Redis) Given() bool { return r.given != "" }

// Real says whether it is a redis-server: miniredis has no replicas, among
// other things.
func (r *Redis) Real() bool { return r.given != "" || r.binary != "" }

// URL is the server's address, with its password.
func (r *Redis) URL() string {
	if r.given != "" {
		return r.given
	}
	return fmt.Sprintf("redis://:%s@%s/0", r.password, r.address())
}

func (r *Redis) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(r.port)) }

// Stop ends the server. A second Stop does nothing.
func (r *Redis) Stop() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mini != nil {
		r.mini.Close()
	}
	var err error
	if r.server != nil {
		err = r.server.shutdown(10 * time.Second)
	}
	r.mini, r.server = nil, nil
	return err
}

// Kill ends the server as a crash does; all it held is lost.
func (r *Redis) Kill() error {
	r.mu.Lock()
	server, pid := r.server, r.pid
	r.mu.Unlock()
	if r.given != "" {
		return errors.New("devenv: the server of REDIS_URL is not ours to kill")
	}
	if server != nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		if !server.exited(10 * time.Second) {
			return errors.New("devenv: Redis survived SIGKILL for 10 s")
		}
	}
	return r.Stop()
}

// Restart starts the server again, empty and at the same address, after a Kill
// or from running.
func (r *Redis) Restart(ctx context.Context) error {
	if r.given != "" {
		return errors.New("devenv: the server of REDIS_URL is not ours to restart")
	}
	if err := r.Stop(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	fresh := r.port == 0
	for giveUp := time.Now().Add(15 * time.Second); ; {
		if fresh {
			var err error
			if r.port, err = freePort(); err != nil {
				return err
			}
		}
		err := r.launch(ctx)
		if err == nil {
			return nil
		}
		// Somebody took the port between our look and the start, or the last
		// server's has not been given back yet.
		if time.Now().After(giveUp) || pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("devenv: start Redis: %w", err)
		}
	}
}

// launch starts the server on its port and waits until it answers.
func (r *Redis) launch(ctx context.Context) error {
	if r.binary == "" {
		r.mini = miniredis.NewMiniRedis()
		r.mini.ClockTTL(true)
		r.mini.RequireAuth(r.password)
		return r.mini.StartAddr(r.address())
	}
	log, err := os.CreateTemp("", "openslot-redis-")
	if err != nil {
		return err
	}
	defer log.Close()
	if err := os.Remove(log.Name()); err != nil { // it lives as long as somebody has it open
		return err
	}
	server, err := account{}.supervise([]string{r.binary, "--bind", "127.0.0.1", "--port", strconv.Itoa(r.port),
		"--requirepass", r.password, "--save", "", "--appendonly", "no"}, "", nil, log)
	if err != nil {
		return err
	}
	for {
		// Only ours knows the password: whoever else has the port is not taken for it.
		if r.pid, err = r.ask(ctx); err == nil && r.pid != 0 {
			r.server = server
			return nil
		}
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), server.shutdown(10*time.Second))
		}
		if server.exited(5 * time.Millisecond) {
			said, _ := io.ReadAll(io.NewSectionReader(log, 0, 64<<10))
			return fmt.Errorf("redis-server ended: %s", strings.TrimSpace(string(said)))
		}
	}
}

var processID = regexp.MustCompile(`process_id:(\d+)`)

// ask returns the pid of a server that answers; 0 if it does not tell.
func (r *Redis) ask(ctx context.Context) (pid int, err error) {
	options, err := redis.ParseURL(r.URL())
	if err != nil {
		return 0, err
	}
	options.MaxRetries, options.PoolSize, options.DisableIdentity = -1, 1, true
	client := redis.NewClient(options)
	defer client.Close()
	if r.given != "" {
		return 0, client.Ping(ctx).Err()
	}
	info, err := client.Info(ctx, "server").Result()
	if err != nil {
		return 0, err
	}
	if m := processID.FindStringSubmatch(info); m != nil {
		pid, err = strconv.Atoi(m[1])
	}
	return pid, err
}
