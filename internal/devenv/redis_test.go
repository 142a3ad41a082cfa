package devenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

func redisClient(t *testing.T, r *Redis) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(r.URL())
	must(t, err)
	options.MaxRetries = -1
	client := redis.NewClient(options)
	t.Cleanup(func() { client.Close() })
	return client
}

// kinds runs a story with a redis-server and with miniredis.
func kinds(t *testing.T, story func(t *testing.T, start func(*testing.T) *Redis)) {
	for name, inProcess := range map[string]bool{"Server": false, "InProcess": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(t, func(t *testing.T) *Redis {
				r, err := StartRedis(t.Context(), RedisOptions{Own: true, InProcess: inProcess, Log: t.Logf})
				must(t, err)
				t.Cleanup(func() { must(t, r.Stop()) })
				if !inProcess && !r.Real() {
					t.Skip("needs a redis-server")
				}
				return r
			})
		})
	}
}

func TestRedis(t *testing.T) {
	kinds(t, func(t *testing.T, start func(*testing.T) *Redis) {
		a, b := start(t), start(t)
		client, ctx := redisClient(t, a), t.Context()
		must(t, client.Set(ctx, "lasting", "1", 0).Err())
		must(t, client.Set(ctx, "lapsing", "1", 20*time.Millisecond).Err())
		if n := redisClient(t, b).Exists(ctx, "lasting").Val(); n != 0 {
			t.Error("two servers share their keys")
		}
		eventually(t, "the key lapses", func() bool { return client.Exists(ctx, "lapsing").Val() == 0 })
		script := `return {ARGV[1], redis.call('TIME')[1]}`
		said, err := client.Eval(ctx, script, []string{"k"}, "x").Slice()
		if err != nil || len(said) != 2 || said[0] != "x" {
			t.Errorf("a script says %v, %v", said, err)
		}
	})
}

func TestRedisKillAndRestart(t *testing.T) {
	kinds(t, func(t *testing.T, start func(*testing.T) *Redis) {
		r := start(t)
		client, ctx := redisClient(t, r), t.Context()
		for range 3 {
			must(t, client.Set(ctx, "k", "1", 0).Err())
			must(t, r.Kill())
			if err := client.Ping(ctx).Err(); err == nil {
				t.Fatal("answers after it was killed")
			}
			must(t, r.Restart(ctx))
			if err := client.Get(ctx, "k").Err(); !errors.Is(err, redis.Nil) {
				t.Errorf("after the restart, k: %v", err)
			}
		}
		must(t, r.Stop())
		must(t, r.Stop())
	})
}

// Servers that start together never answer for each other.
func TestRedisStartsTogether(t *testing.T) {
	t.Parallel()
	var group errgroup.Group
	ports := make([]int, 12)
	for i := range ports {
		group.Go(func() error {
			r, err := StartRedis(context.Background(), RedisOptions{Own: true})
			if err != nil {
				return err
			}
			ports[i] = r.port
			return r.Stop()
		})
	}
	must(t, group.Wait())
}

func TestRedisEndsWithItsParent(t *testing.T) {
	t.Parallel()
	probe := NewRedis(t)
	if !probe.Real() {
		t.Skip("needs a redis-server")
	}
	parent, line := startParent(t, redisParent)
	pid, err := strconv.Atoi(line)
	must(t, err)
	if !alive(pid) {
		t.Fatalf("no process %d", pid)
	}
	must(t, parent.Process.Signal(syscall.SIGKILL))
	_ = parent.Wait()
	eventually(t, "the server ends", func() bool { return !alive(pid) })
}

func TestRedisGiven(t *testing.T) {
	own := NewRedis(t)
	t.Setenv("REDIS_URL", own.URL())
	r, err := StartRedis(t.Context(), RedisOptions{InProcess: true})
	must(t, err)
	if !r.Given() || !r.Real() || r.URL() != own.URL() {
		t.Errorf("given %t, %s", r.Given(), r.URL())
	}
	if r.Kill() == nil || r.Restart(t.Context()) == nil {
		t.Error("killed or restarted a server that is not ours")
	}
	must(t, r.Stop())
	must(t, redisClient(t, own).Ping(t.Context()).Err())
	if other := NewRedis(t); other.URL() == own.URL() {
		t.Error("a test got the server of REDIS_URL")
	}

	t.Setenv("REDIS_URL", "redis://127.0.0.1:1")
	if _, err := StartRedis(t.Context(), RedisOptions{}); err == nil || !strings.Contains(err.Error(), "REDIS_URL") {
		t.Errorf("nobody listens there: %v", err)
	}
}

func TestRedisMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("CI", "")
	r, err := StartRedis(t.Context(), RedisOptions{Own: true})
	must(t, err)
	if r.Real() {
		t.Error("a redis-server out of nowhere")
	}
	must(t, r.Stop())

	t.Setenv("CI", "true")
	if _, err := StartRedis(t.Context(), RedisOptions{Own: true}); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("CI without a redis-server: %v", err)
	}
}

// The command that installs it is tried with an apt-get that only leaves a binary behind.
func TestInstallRedis(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	script := "#!/bin/sh\necho \"$@\" >>" + dir + "/calls\n[ \"$2\" != install ] || { echo >" + dir + "/redis-server; /bin/chmod +x " + dir + "/redis-server; }\n"
	must(t, os.WriteFile(filepath.Join(dir, "apt-get"), []byte(script), 0o755))
	for range 2 { // the second time it is there
		must(t, InstallRedis(t.Context(), t.Logf))
	}
	calls, err := os.ReadFile(filepath.Join(dir, "calls"))
	must(t, err)
	if want := "-q update\n-q install -y --no-install-recommends redis-server\n"; string(calls) != want {
		t.Errorf("ran apt-get\n%swant\n%s", calls, want)
	}
}
