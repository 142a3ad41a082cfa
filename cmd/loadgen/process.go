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
)

// process is a server that is measured.
type process struct {
	cmd     *exec.Cmd
	log     string // the file it writes to
	address string
}

// serve starts the production binary on the database, with the settings it has by itself, and
// returns once it is ready.
func (db *database) serve(ctx context.Context) (*process, error) {
	return db.start(ctx, exec.CommandContext(ctx, db.openslot, "api"), "/readyz",
		"DATABASE_URL="+db.url(db.name),
		"OPENSLOT_LISTEN=127.0.0.1:0",
		"OPENSLOT_JWT_ISSUER="+issuer,
		"OPENSLOT_JWT_SECRET="+secret)
}

// start runs a command that says {"address":"…"} in its log once it listens, and waits until path
// answers 200.
func (g *ground) start(ctx context.Context, cmd *exec.Cmd, path string, env ...string) (_ *process, err error) {
	log, err := os.Create(filepath.Join(g.folder, filepath.Base(cmd.Path)+".log"))
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

func (p *process) cpu() time.Duration { return cpuOf(p.cmd.Process.Pid) }

// stop ends it in an orderly way.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(p.cmd.Path), err, p.said())
	}
	return nil
}
