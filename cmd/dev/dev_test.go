package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"openslot/internal/app"
	"openslot/internal/devenv"
)

// The test binary is dev when it is told so: what happens to processes needs processes.
func TestMain(m *testing.M) {
	if os.Getenv("OPENSLOT_TEST_MAIN") == "1" {
		main()
		return
	}
	os.Exit(m.Run())
}

// process is a running dev, or a make that runs one.
type process struct {
	t      *testing.T
	dir    string // where it runs
	cmd    *exec.Cmd
	stdout *output
	stderr *output
	ended  chan struct{}
	err    error             // how it ended, once it has
	env    map[string]string // what .dev/env says
}

// begin starts a command line with dir as its folder, and returns once all is up.
func begin(t *testing.T, dir string, as *syscall.Credential, line ...string) *process {
	t.Helper()
	p := &process{t: t, dir: dir, stdout: &output{}, stderr: &output{}, ended: make(chan struct{})}
	p.cmd = exec.Command(line[0], line[1:]...)
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(pair string) bool { return strings.HasPrefix(pair, "DATABASE_URL=") }),
		"OPENSLOT_TEST_MAIN=1")
	if as != nil {
		p.cmd.Env = append(p.cmd.Env, "HOME="+dir)
	}
	p.cmd.Stdout, p.cmd.Stderr = p.stdout, p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as, Setpgid: true}
	if line[0] == os.Args[0] {
		p.cmd.Dir = dir
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.ended
		p.gone()
	})
	p.wait("it to be up", func() bool { return strings.Contains(p.stdout.String(), "In another terminal:") })
	text, err := os.ReadFile(filepath.Join(dir, ".dev/env"))
	if err != nil {
		t.Fatal(err)
	}
	p.env = map[string]string{}
	for pair := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		p.env[key] = strings.Trim(value, "'")
	}
	return p
}

// folder is a temporary folder that every user can reach: as root, PostgreSQL runs as another.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// dev is begin for the program itself.
func dev(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	return begin(t, dir, nil, append([]string{os.Args[0], "--port=0", "--doctors=3"}, args...)...)
}

// wait polls a condition while the process runs.
func (p *process) wait(what string, condition func() bool) {
	p.t.Helper()
	giveUp := time.After(2 * time.Minute)
	for !condition() {
		select {
		case <-p.ended:
			p.t.Fatalf("it ended (%v) while we waited for %s:\n%s", p.err, what, p.stderr)
		case <-giveUp:
			p.t.Fatalf("waited 2 minutes for %s:\n%s", what, p.stderr)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// signal sends a signal, and returns how the process ended.
func (p *process) signal(s syscall.Signal) error {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	select {
	case <-p.ended:
	case <-time.After(time.Minute):
		p.t.Fatalf("it runs a minute after %s", s)
	}
	return p.err
}

// gone fails the test unless the API and PostgreSQL end soon.
func (p *process) gone() {
	p.t.Helper()
	giveUp := time.Now().Add(30 * time.Second)
	for {
		left := p.left()
		if left == "" {
			return
		}
		if time.Now().After(giveUp) {
			p.t.Errorf("left behind: %s", left)
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// left names what still runs.
func (p *process) left() string {
	if conn, err := net.Dial("tcp", strings.TrimPrefix(p.env["OPENSLOT"], "http://")); err == nil {
		conn.Close()
		return "the API at " + p.env["OPENSLOT"]
	}
	// The file goes when PostgreSQL ends in order; a process that holds the folder has it open.
	folders, _ := filepath.Glob("/proc/[0-9]*/cwd")
	for _, link := range folders {
		if at, err := os.Readlink(link); err == nil && strings.HasPrefix(at, p.dir+"/.dev") {
			return link + " in " + at
		}
	}
	if text, err := os.ReadFile(filepath.Join(p.dir, ".dev/postgres/data/postmaster.pid")); err == nil {
		line, _, _ := strings.Cut(string(text), "\n")
		if pid, err := strconv.Atoi(line); err == nil && syscall.Kill(pid, 0) == nil {
			return fmt.Sprintf("PostgreSQL, process %d", pid)
		}
	}
	return ""
}

// ask runs a query against the API.
func (p *process) ask(token, query string, data any) {
	p.t.Helper()
	d := demo{api: p.env["OPENSLOT"], stderr: io.Discard}
	if err := d.ask(p.t.Context(), p.env[token], query, nil, data); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) appointments() int {
	p.t.Helper()
	var mine struct {
		MyAppointments struct{ Nodes []struct{ ID string } }
	}
	p.ask("PATIENT", `{ myAppointments { nodes { id } } }`, &mine)
	return len(mine.MyAppointments.Nodes)
}

func (p *process) doctors() int {
	p.t.Helper()
	var all struct{ Doctors struct{ Nodes []doctor } }
	p.ask("STAFF", `{ doctors(first: 100) { nodes { id } } }`, &all)
	return len(all.Doctors.Nodes)
}

// newestDay fails the test unless the database that .dev/env names has slots up to today plus 14:
// from 07:00 on, that day is open.
func (p *process) newestDay() {
	p.t.Helper()
	conn, err := pgx.Connect(p.t.Context(), p.env["OPENSLOT_DATABASE"])
	if err != nil {
		p.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var is, want string
	err = conn.QueryRow(p.t.Context(), `SELECT max(start_at AT TIME ZONE $1)::date::text, ((now() AT TIME ZONE $1)::date + 14)::text FROM time_slot`, zone).Scan(&is, &want)
	if err != nil || is != want {
		p.t.Errorf("slots up to %s, %v; want %s", is, err, want)
	}
}

// TestRun goes through days of a developer: start, the README's quick start, Ctrl-C, start again,
// a crash, start again, reset.
func TestRun(t *testing.T) {
	t.Parallel()
	dir := folder(t)

	p := dev(t, dir)
	quickStart(t, p)
	booked := p.appointments()
	if booked == 0 || p.doctors() != 3 {
		t.Errorf("%d appointments and %d doctors after the quick start", booked, p.doctors())
	}
	p.newestDay()
	for _, name := range []string{"env", "secret", "api.log"} {
		if info, err := os.Stat(filepath.Join(dir, ".dev", name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want it private", name, info.Mode(), err)
		}
	}
	if err := p.signal(syscall.SIGINT); err != nil {
		t.Errorf("after Ctrl-C: %v", err)
	}
	p.gone()

	token := p.env["PATIENT"]
	p = dev(t, dir, "--doctors=4")
	if p.appointments() != booked || p.doctors() != 4 {
		t.Errorf("the second start finds %d appointments and %d doctors, want %d and 4", p.appointments(), p.doctors(), booked)
	}
	p.env["PATIENT"] = token
	if p.appointments() != booked {
		t.Error("a token of the first start is not good any more")
	}
	if err := p.signal(syscall.SIGKILL); err == nil {
		t.Error("SIGKILL did not end it")
	}
	p.gone()

	p = dev(t, dir, "--reset")
	if p.appointments() != 0 || p.doctors() != 3 {
		t.Errorf("after a reset there are %d appointments and %d doctors, want 0 and 3", p.appointments(), p.doctors())
	}
}

// TestMake: nothing stays when make is killed, which can tell nobody.
func TestMake(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	p := begin(t, dir, nil, "make", "-C", "../..", "run", "ARGS=--port=0 --doctors=1 --data-dir="+filepath.Join(dir, ".dev"))
	if err := p.signal(syscall.SIGKILL); err == nil {
		t.Error("SIGKILL did not end make")
	}
	p.gone()
}

// TestPort: a port that is taken is no reason to give up.
func TestPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := strconv.Itoa(taken.Addr().(*net.TCPAddr).Port)
	p := dev(t, folder(t), "--port="+port)
	if strings.HasSuffix(p.env["OPENSLOT"], ":"+port) || p.doctors() != 3 || !strings.Contains(p.stderr.String(), "port "+port+" is taken") {
		t.Errorf("it serves at %s: %s", p.env["OPENSLOT"], p.stderr)
	}
}

// TestNormalUser: the other tests run as whoever runs the tests; if that is root, this one does
// as nobody.
func TestNormalUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		return
	}
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, uerr := strconv.Atoi(nobody.Uid)
	gid, gerr := strconv.Atoi(nobody.Gid)
	if err := errors.Join(uerr, gerr); err != nil {
		t.Fatal(err)
	}
	// The program where nobody can reach it.
	dir := folder(t)
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "dev")
	if err := os.WriteFile(program, binary, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	p := begin(t, dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)},
		"/bin/sh", "-c", "cd "+dir+" && exec ./dev --port=0 --doctors=3")
	if p.doctors() != 3 {
		t.Errorf("as %s there are %d doctors", nobody.Username, p.doctors())
	}
	if err := p.signal(syscall.SIGTERM); err != nil {
		t.Errorf("after SIGTERM: %v", err)
	}
	p.gone()
}

// TestGiven: a server of DATABASE_URL is used, and never reset.
func TestGiven(t *testing.T) {
	t.Parallel()
	var stderr output
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--reset")
	cmd.Dir = folder(t)
	db := devenv.NewDB(t)
	cmd.Env = append(os.Environ(), "OPENSLOT_TEST_MAIN=1", "DATABASE_URL="+db.URL)
	cmd.Stderr = &stderr
	if err := cmd.Run(); err == nil || !strings.Contains(stderr.String(), "DATABASE_URL names is yours to delete") {
		t.Errorf("it ended with %v: %s", err, &stderr)
	}
	given := db.Pool.Config().ConnConfig
	if !strings.Contains(stderr.String(), "using the database "+given.Database) || strings.Contains(stderr.String(), given.Password) {
		t.Errorf("it does not say which database it uses, or says its password: %s", &stderr)
	}
}

func TestDoctorNames(t *testing.T) {
	seen := map[string]bool{}
	for i := range maxDoctors {
		seen[doctorName(i)] = true
	}
	if len(seen) != maxDoctors {
		t.Errorf("%d different names, want %d", len(seen), maxDoctors)
	}
}

// TestOrganization: a practice without doctors, from a start that was interrupted, is found again.
func TestOrganization(t *testing.T) {
	t.Parallel()
	p := dev(t, folder(t))
	secret, err := os.ReadFile(filepath.Join(p.dir, ".dev/secret"))
	if err != nil {
		t.Fatal(err)
	}
	d := demo{api: p.env["OPENSLOT"], stderr: io.Discard, config: app.Config{JWT: jwt(string(secret))}}
	first, err := d.organization(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := d.organization(context.Background()); err != nil || again != first {
		t.Errorf("organization %d, then %d, %v", first, again, err)
	}
}

// output is what a process printed.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
