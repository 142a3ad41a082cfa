package devenv

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// parentVariable makes this test binary a program that starts a server on the
// folder it names after a "-" (nothing for a temporary one), says so and waits to be killed.
const parentVariable = "OPENSLOT_TEST_PARENT"

func TestMain(m *testing.M) {
	switch dir, ok := os.LookupEnv(parentVariable); {
	case dir == unsupervised:
		unsupervisedMain()
	case dir == redisParent:
		redisMain()
	case ok:
		parentMain(strings.TrimPrefix(dir, "-"))
	}
	dir, err := os.MkdirTemp("", "openslot-reachable-")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	reachableFolder = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func parentMain(dir string) {
	p, err := Start(context.Background(), PostgresOptions{DataDir: dir, Own: true})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(p.Dir())
	select {} // nothing is left to do: only a signal ends it
}

// unsupervised makes it a program that starts something without the shell and
// the pipe, and prints its pid.
const unsupervised = "unsupervised"

func unsupervisedMain() {
	cmd := account{}.command(context.Background(), "sleep", "600")
	if err := cmd.Start(); err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(cmd.Process.Pid)
	select {}
}

// redisParent makes it a program that starts a redis-server, and prints its pid.
const redisParent = "redis"

func redisMain() {
	r, err := StartRedis(context.Background(), RedisOptions{Own: true})
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(r.pid)
	select {}
}

// startParent runs parentMain in a process (and group) of its own and returns
// it with the server's folder.
func startParent(t *testing.T, dir string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	if dir != unsupervised && dir != redisParent {
		dir = "-" + dir
	}
	cmd.Env = append(os.Environ(), parentVariable+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.HasPrefix(line, "error") {
		t.Fatalf("the parent says %q, %v", line, err)
	}
	return cmd, strings.TrimSpace(line)
}

// serverFolder is a place for data that the server's user can reach, under a
// path that go test's own temporary folders (0700) are not.
func serverFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(reachableFolder, "data-")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "postgres")
}

// eventually polls a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain: %s", what)
}

// query runs one statement on a connection of its own and returns its value as
// text.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer conn.Close(context.WithoutCancel(t.Context()))
	var value *string
	rows, err := conn.Query(t.Context(), sql)
	must(t, err)
	for rows.Next() {
		must(t, rows.Scan(&value))
	}
	must(t, rows.Err())
	if value == nil {
		return ""
	}
	return *value
}

func gone(path string) bool {
	_, err := os.Stat(path)
	return os.IsNotExist(err)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
