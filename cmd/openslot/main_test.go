package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"openslot/internal/devenv"
)

// The test binary is openslot when it is told so: signals need a process of their own.
func TestMain(m *testing.M) {
	if os.Getenv("OPENSLOT_TEST_MAIN") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// start runs `openslot api` and returns once it serves, with its address.
func start(t *testing.T, env ...string) (process *exec.Cmd, address string) {
	t.Helper()
	process = exec.CommandContext(t.Context(), os.Args[0], "api", "--listen=127.0.0.1:0", "--jwt-issuer=us")
	process.Env = append(os.Environ(), "OPENSLOT_TEST_MAIN=1", "DATABASE_URL="+devenv.NewDB(t).URL, "OPENSLOT_JWT_SECRET="+strings.Repeat("s", 32))
	process.Env = append(process.Env, env...)
	stderr, err := process.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill() })
	lines := bufio.NewScanner(stderr)
	for lines.Scan() {
		if _, after, ok := strings.Cut(lines.Text(), `"address":"`); ok {
			address, _, _ = strings.Cut(after, `"`)
			go func() {
				for lines.Scan() { // so that it never blocks on its log
				}
			}()
			return process, address
		}
	}
	t.Fatalf("openslot ended before it served: %v", process.Wait())
	return nil, ""
}

func TestSignal(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			process, _ := start(t)
			if err := process.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if err := process.Wait(); err != nil {
				t.Errorf("openslot ended with %v, want exit code 0", err)
			}
		})
	}
}

// TestSignalTwice: with a request in flight and a long grace period, the second signal is final.
func TestSignalTwice(t *testing.T) {
	t.Parallel()
	process, address := start(t, "OPENSLOT_GRACE_PERIOD=1m")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// Headers without the body that they announce.
	if _, err := conn.Write([]byte("POST /graphql HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{")); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	for first := true; ; first = false {
		if err := process.Process.Signal(syscall.SIGTERM); err != nil && first {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if first {
				t.Errorf("the first signal ended it at once: %v", err)
			}
			if status, ok := process.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
				t.Errorf("openslot ended with %v, want the signal", err)
			}
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
}
