package devenv

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPostgres(t *testing.T) {
	t.Run("KeepsItsData", func(t *testing.T) {
		t.Parallel()
		dir := serverFolder(t)
		first := NewServer(t, PostgresOptions{DataDir: dir})
		query(t, first.URL(""), `CREATE TABLE kept (n text)`)
		query(t, first.URL(""), `INSERT INTO kept VALUES ('stopped')`)
		must(t, first.Stop())
		must(t, first.Stop())  // once is enough, twice no harm
		if os.Geteuid() == 0 { // the server's user may be another the next time
			must(t, account{cred: &syscall.Credential{Uid: 12345, Gid: 12345}}.ownAll(dir))
		}

		second := NewServer(t, PostgresOptions{DataDir: dir})
		query(t, second.URL(""), `INSERT INTO kept VALUES ('killed')`)
		port := second.Port()
		must(t, second.Kill())
		if err := second.Kill(); err == nil {
			t.Error("killed twice")
		}
		must(t, second.Restart(t.Context()))
		if second.Port() != port {
			t.Errorf("port %d after a restart, %d before: open pools can't find it", second.Port(), port)
		}
		query(t, second.URL(""), `INSERT INTO kept VALUES ('restarted')`)
		must(t, second.Restart(t.Context())) // from running
		got := query(t, second.URL(""), `SELECT string_agg(n, ' ') FROM kept`)
		if got != "stopped killed restarted" {
			t.Errorf("data after all that: %q", got)
		}
		if fsync := query(t, second.URL(""), `SHOW fsync`); fsync != "on" {
			t.Errorf("fsync %s for a server that gets killed", fsync)
		}
	})

	// One server for all of these: initdb is what costs.
	t.Run("Temporary", func(t *testing.T) {
		t.Parallel()
		p := NewServer(t, PostgresOptions{Settings: map[string]string{"work_mem": "5MB"}})
		if got := query(t, p.URL(""), `SHOW work_mem`); got != "5MB" {
			t.Errorf("work_mem %s, set to 5MB", got)
		}
		if got := query(t, p.URL(""), `SELECT lower('MÜLLER ŽÁK')`); got != "müller žák" {
			t.Errorf("lower: %q, so a search by name misses people", got)
		}
		must(t, p.CreateDatabase(t.Context(), `odd "name"`))
		must(t, p.CreateDatabase(t.Context(), `odd "name"`))
		if got := query(t, p.URL(`odd "name"`), `SELECT current_database()`); got != `odd "name"` {
			t.Errorf("connected to %q", got)
		}

		if err := ping(t.Context(), strings.Replace(p.URL(""), p.password, "guess", 1)); err == nil {
			t.Error("any password opens the server")
		}
		info, err := os.Stat(p.folder.file("password"))
		must(t, err)
		if info.Mode().Perm() != 0o600 {
			t.Errorf("password file has mode %s", info.Mode())
		}

		dir, shell, postmaster := p.Dir(), p.server.cmd.Process.Pid, holderOf(p.folder.file("data/postmaster.pid"))
		if !alive(shell) || !alive(postmaster) || gone(dir) {
			t.Fatalf("shell %t, postmaster %t, folder gone %t: the check below would prove nothing", alive(shell), alive(postmaster), gone(dir))
		}
		must(t, p.Stop())
		if alive(shell) || alive(postmaster) || !gone(dir) {
			t.Errorf("left behind: shell %t, postmaster %t, folder %t", alive(shell), alive(postmaster), !gone(dir))
		}
	})
}

// Every refusal says what is wrong and what to do.
func TestStartRefuses(t *testing.T) {
	refused := func(t *testing.T, opts PostgresOptions, want ...string) {
		t.Helper()
		opts.Own = true
		p, err := Start(t.Context(), opts)
		if err == nil {
			must(t, p.Stop())
			t.Fatal("started")
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("error %q does not say %q", err, w)
			}
		}
	}
	t.Run("SecondOnSameData", func(t *testing.T) {
		t.Parallel()
		dir := serverFolder(t)
		p := NewServer(t, PostgresOptions{DataDir: dir})
		refused(t, PostgresOptions{DataDir: dir}, p.Dir(), "in use by process", "stop that one first")
		if err := ping(t.Context(), p.URL("")); err != nil {
			t.Errorf("the first one suffered: %v", err)
		}
		must(t, p.Stop())

		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(t, err)
		defer l.Close()
		refused(t, PostgresOptions{DataDir: dir, Port: l.Addr().(*net.TCPAddr).Port}, "the port is taken")
		refused(t, PostgresOptions{DataDir: dir, Settings: map[string]string{"work_mem": "plenty"}}, "work_mem", "exited at once")
	})
	t.Run("OtherMajorVersion", func(t *testing.T) {
		t.Parallel()
		dir := serverFolder(t)
		must(t, os.MkdirAll(filepath.Join(dir, "data"), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "data/PG_VERSION"), []byte("11\n"), 0o644))
		refused(t, PostgresOptions{DataDir: dir}, "written by PostgreSQL 11", "start with fresh data")
	})
	t.Run("FolderOfOtherThings", func(t *testing.T) {
		t.Parallel()
		dir := serverFolder(t)
		must(t, os.MkdirAll(dir, 0o755))
		must(t, os.WriteFile(filepath.Join(dir, "thesis"), nil, 0o600))
		before, err := os.Stat(dir)
		must(t, err)
		refused(t, PostgresOptions{DataDir: dir}, dir, "holds something else")
		after, err := os.Stat(dir)
		must(t, err)
		if before.Sys().(*syscall.Stat_t).Uid != after.Sys().(*syscall.Stat_t).Uid || before.Mode() != after.Mode() {
			t.Error("the folder was given away all the same")
		}
	})
	t.Run("FolderOfAnother", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root may read every folder; TestAsNormalUser runs this one")
		}
		refused(t, PostgresOptions{DataDir: "/proc/1/openslot"}, "the data folder /proc/1/openslot")
	})
}

// However the parent ends, nothing of the server stays.
func TestParentDies(t *testing.T) {
	t.Parallel()
	// end kills the parent's group, as a terminal's Ctrl-C does.
	end := func(t *testing.T, dir string, how syscall.Signal) (string, int) {
		t.Helper()
		parent, dir := startParent(t, dir)
		postmaster := holderOf(filepath.Join(dir, "data/postmaster.pid"))
		if !alive(postmaster) {
			t.Fatal("no postmaster")
		}
		must(t, syscall.Kill(-parent.Process.Pid, how))
		_ = parent.Wait()
		return dir, postmaster
	}
	t.Run("Temporary", func(t *testing.T) {
		t.Parallel()
		dir, postmaster := end(t, "", syscall.SIGKILL)
		eventually(t, "the temporary folder is gone", func() bool { return gone(dir) })
		if alive(postmaster) {
			t.Error("the postmaster lives on without its data")
		}
	})
	t.Run("Kept", func(t *testing.T) {
		t.Parallel()
		kept := serverFolder(t)
		for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT, syscall.SIGTERM} {
			// Each round starts while the server of the one before still stops.
			dir, postmaster := end(t, kept, how)
			if how == syscall.SIGTERM {
				eventually(t, "the postmaster is gone", func() bool { return !alive(postmaster) })
			}
			if gone(filepath.Join(dir, "data/PG_VERSION")) {
				t.Fatalf("%s of the parent removed its data", how)
			}
		}
		p := NewServer(t, PostgresOptions{DataDir: kept})
		if err := ping(t.Context(), p.URL("")); err != nil {
			t.Error(err)
		}
	})
}

// A child survives its parent, so what the test above sees is our doing.
func TestParentDiesControl(t *testing.T) {
	t.Parallel()
	parent, line := startParent(t, unsupervised)
	child, err := strconv.Atoi(line)
	must(t, err)
	defer func() { _ = syscall.Kill(child, syscall.SIGKILL) }()
	must(t, syscall.Kill(-parent.Process.Pid, syscall.SIGKILL))
	_ = parent.Wait()
	if !alive(child) {
		t.Error("a child in a group of its own died with its parent: the supervision proves nothing")
	}
}

func TestUnreachableFolder(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root runs servers as somebody else")
	}
	private := filepath.Join(serverFolder(t), "private") // stands for /root
	must(t, os.MkdirAll(private, 0o700))
	must(t, os.Chmod(filepath.Dir(private), 0o700))
	dir := filepath.Join(private, "data")
	p := NewServer(t, PostgresOptions{DataDir: dir})
	if !strings.HasPrefix(p.Dir(), reachableFolder) || strings.HasPrefix(p.Dir(), private) {
		t.Errorf("data in %s", p.Dir())
	}
	query(t, p.URL(""), `CREATE TABLE kept ()`)
	must(t, p.Stop())
	again := NewServer(t, PostgresOptions{DataDir: dir})
	if query(t, again.URL(""), `SELECT to_regclass('kept')::text`) != "kept" {
		t.Error("the second start did not find the data of the first")
	}
}

// The same tests as somebody without privileges.
func TestAsNormalUser(t *testing.T) {
	t.Parallel()
	acc, err := serverAccount()
	must(t, err)
	if acc.cred == nil {
		t.Skip("we are a normal user: the other tests are this one")
	}
	home := serverFolder(t)
	must(t, os.Mkdir(home, 0o755))
	must(t, acc.own(home))
	binary := filepath.Join(home, "devenv.test")
	program, err := os.ReadFile(os.Args[0]) // itself in a folder for root only
	must(t, err)
	must(t, os.WriteFile(binary, program, 0o755))

	cmd := acc.command(t.Context(), binary, "-test.run", "^(TestPostgres|TestStartRefuses|TestParentDies)$/^(KeepsItsData|OtherMajorVersion|FolderOfAnother|Temporary)$",
		"-test.v", "-test.timeout", "5m")
	cmd.Env = append(cmd.Env, "HOME="+home, "TMPDIR="+home)
	cmd.Dir = home
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestPostgres/KeepsItsData") {
		t.Errorf("as %s: %v\n%s", acc.name, err, out)
	}
	left, err := filepath.Glob(filepath.Join(home, scratchPrefix+"*"))
	must(t, err)
	eventually(t, "its temporary folders are gone", func() bool {
		left, _ = filepath.Glob(filepath.Join(home, scratchPrefix+"*"))
		return len(left) == 0
	})
}

func TestGiven(t *testing.T) {
	own := NewServer(t, PostgresOptions{})
	t.Setenv("DATABASE_URL", own.URL("template1"))
	p, err := Start(t.Context(), PostgresOptions{})
	must(t, err)
	if !p.Given() || p.URL("") != own.URL("template1") || p.URL("x") != own.URL("x") {
		t.Errorf("given %t, %s, %s", p.Given(), p.URL(""), p.URL("x"))
	}
	if p.Kill() == nil || p.Restart(t.Context()) == nil {
		t.Error("killed or restarted a server that is not ours")
	}
	must(t, p.Stop())
	must(t, ping(t.Context(), own.URL("")))

	t.Setenv("DATABASE_URL", "postgres://127.0.0.1:1/none")
	if _, err := Start(t.Context(), PostgresOptions{}); err == nil || !strings.Contains(err.Error(), "DATABASE_URL") {
		t.Errorf("nobody listens there: %v", err)
	}
}

func TestGivenURL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ given, database, want string }{
		{"postgres://u:p@h:5/a?sslmode=disable", "", "postgres://u:p@h:5/a?sslmode=disable"},
		{"postgres://u:p@h:5/a?sslmode=disable", "b", "postgres://u:p@h:5/b?sslmode=disable"},
		{"host=h dbname=a", "b", "host=h dbname=a dbname=b"},
	} {
		if diff := cmp.Diff(tt.want, (&Postgres{given: tt.given}).URL(tt.database)); diff != "" {
			t.Errorf("%s with %q (-want +got):\n%s", tt.given, tt.database, diff)
		}
	}
}

func TestServerAccount(t *testing.T) {
	t.Parallel()
	acc, err := serverAccount()
	must(t, err)
	out, err := acc.command(t.Context(), "id", "-u").Output()
	must(t, err)
	if strings.TrimSpace(string(out)) == "0" {
		t.Error("the server would run as root, which it refuses")
	}
}
