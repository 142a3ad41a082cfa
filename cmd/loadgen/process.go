package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"openslot/internal/devenv"
)

// process is a server that is measured.
type process struct {
	cmd     *exec.Cmd
	log     string // the file it writes to
	address string
	redis   *devenv.Redis // beside it, or nil
}

// serve starts the production binary on the database, with the settings it has by itself, and
// returns once it is ready. It has a Redis of its own, which knows nothing of earlier databases.
func (db *database) serve(ctx context.Context) (*process, error) {
	redis, err := devenv.StartRedis(ctx, devenv.RedisOptions{Own: true, Log: db.log})
	if err != nil {
		return nil, err
	}
	p, err := db.instance(ctx, redis.URL())
	if err != nil {
		return nil, errors.Join(err, redis.Stop())
	}
	p.redis = redis
	return p, nil
}

// instance starts one of the program's, on a Redis that runs.
func (db *database) instance(ctx context.Context, redis string, env ...string) (*process, error) {
	return db.start(ctx, exec.CommandContext(ctx, db.openslot, "api"), "/readyz", append([]string{
		"DATABASE_URL=" + db.url(db.name),
		"REDIS_URL=" + redis,
		"OPENSLOT_LISTEN=127.0.0.1:0",
		"OPENSLOT_JWT_ISSUER=" + issuer,
		"OPENSLOT_JWT_SECRET=" + secret,
		"OPENSLOT_CPU_PROFILE=" + db.profile}, env...)...)
}

// start runs a command that says {"address":"…"} in its log once it listens, and waits until path
// answers 200.
func (g *ground) start(ctx context.Context, cmd *exec.Cmd, path string, env ...string) (_ *process, err error) {
	log, err := os.CreateTemp(g.folder, filepath.Base(cmd.Path)+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Env, cmd.Stderr = env, log
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	dieWithUs(cmd)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, log: log.Name()}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.stop())
		}
	}()
	for giveUp := time.Now().Add(20 * time.Second); ; sleepUntil(ctx, time.Now().Add(10*time.Millisecond)) {
		if p.ready(ctx, path) {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if time.Now().After(giveUp) {
			return nil, fmt.Errorf("%s is not ready: %s", filepath.Base(cmd.Path), p.said())
		}
	}
}

func (p *process) ready(ctx context.Context, path string) bool {
	if p.address == "" {
		_, after, ok := strings.Cut(p.said(), `"address":"`)
		if !ok {
			return false
		}
		p.address, _, _ = strings.Cut(after, `"`)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+path, nil)
	if err != nil {
		return false
	}
	request.Close = true
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// said is the beginning of its log.
func (p *process) said() string {
	file, err := os.Open(p.log)
	if err != nil {
		return err.Error()
	}
	defer file.Close()
	text := make([]byte, 4096)
	n, _ := file.Read(text)
	return string(text[:n])
}

// cpu is the CPU time of the server and its Redis so far.
func (p *process) cpu() time.Duration {
	sum := cpuOf(p.cmd.Process.Pid)
	if p.redis != nil {
		sum += cpuOfGrandchildren("redis-server")
	}
	return sum
}

// stop ends it in an orderly way, and its Redis.
func (p *process) stop() error {
	err := p.end()
	_ = os.Remove(p.log) // every request has a line in it
	if p.redis != nil {
		err = errors.Join(err, p.redis.Stop())
	}
	return err
}

func (p *process) end() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(p.cmd.Path), err, p.said())
	}
	return nil
}
