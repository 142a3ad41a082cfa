package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// superviseScript runs a server and stops it when our end of the pipe on
// descriptor 3 closes. $1 is a folder to remove if we died, or empty; the rest
// is the command.
//
// A line on the pipe is an orderly stop, the bare end of it our death. The
// server does not inherit the pipes (3, 5); it does inherit the folder's lock
// on 4, which so lasts until the last of its processes is gone.
const superviseScript = `
scratch=$1; shift
"$@" 3<&- 5>&- &
server=$!
(
	read -r _ || { [ -z "$scratch" ] || : >"$scratch/orphaned"; }
	kill -INT $server
) <&3 4<&- 5>&- &
watcher=$!
exec 3<&-
wait $server
code=$?
kill $watcher 2>/dev/null
wait $watcher 2>/dev/null
if [ -n "$scratch" ] && [ -e "$scratch/orphaned" ]; then rm -rf "$scratch"; fi
exit $code
`

// supervised is a server under superviseScript. It takes no goroutine: a test
// that looks for leaked ones doesn't find ours.
type supervised struct {
	cmd  *exec.Cmd
	stop *os.File // write end: a line or its end stops the server
	life *os.File // read end: at its end the shell has exited
	gone bool
	err  error // how it exited, once gone
}

// supervise starts command as the account. scratch may be empty and lock nil. Output goes to log.
func (a account) supervise(command []string, scratch string, lock, log *os.File) (*supervised, error) {
	stopR, stopW, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stopR.Close()
	lifeR, lifeW, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stopW.Close())
	}
	defer lifeW.Close()

	args := append([]string{"-c", superviseScript, "sh", scratch}, command...)
	cmd := a.command(context.Background(), "/bin/sh", args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{stopR, lock, lifeW}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, stopW.Close(), lifeR.Close())
	}
	return &supervised{cmd: cmd, stop: stopW, life: lifeR}, nil
}

// exited waits until the server is gone, at most as long as given, and says
// whether it is.
func (s *supervised) exited(within time.Duration) bool {
	if s.gone {
		return true
	}
	if err := s.life.SetReadDeadline(time.Now().Add(within)); err != nil {
		return false
	}
	if _, err := s.life.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	s.gone = true
	s.err = s.cmd.Wait()
	s.stop.Close()
	s.life.Close()
	return true
}

// shutdown asks the server to stop and waits for it.
func (s *supervised) shutdown(within time.Duration) error {
	if s.gone {
		return nil
	}
	// An error means that the reader is gone: the server has just exited.
	_, _ = s.stop.WriteString("stop\n")
	if !s.exited(within) {
		return fmt.Errorf("still running %s after it was told to stop", within)
	}
	return nil
}
