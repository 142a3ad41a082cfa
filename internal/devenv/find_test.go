package devenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fake is a folder that looks like PostgreSQL's binaries.
type fake struct {
	folder   string // below the test's folder
	version  string // what postgres -V prints
	noInitdb bool
	noGist   bool
}

func (f fake) write(t *testing.T, root string) {
	t.Helper()
	bin := filepath.Join(root, f.folder, "bin")
	must(t, os.MkdirAll(bin, 0o755))
	write := func(path, text string) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(text), 0o755))
	}
	write(filepath.Join(bin, "postgres"), fmt.Sprintf("#!/bin/sh\necho '%s'\n", f.version))
	if !f.noInitdb {
		write(filepath.Join(bin, "initdb"), "#!/bin/sh\n")
	}
	share := filepath.Join(root, f.folder, "share")
	write(filepath.Join(bin, "pg_config"), fmt.Sprintf("#!/bin/sh\n[ $1 = --bindir ] && echo '%s' || echo '%s'\n", bin, share))
	if !f.noGist {
		write(filepath.Join(share, "extension/btree_gist.control"), "")
	}
}

func TestSearch(t *testing.T) {
	good := func(folder string, major int) fake {
		return fake{folder: folder, version: fmt.Sprintf("postgres (PostgreSQL) %d.4 (Debian %d.4-1)", major, major)}
	}
	tests := []struct {
		name     string
		fakes    []fake
		path     string // folders in PATH, by colon
		major    int
		want     string // folder found, "" for none
		rejected []string
	}{
		{name: "NewestOfTheUsual", fakes: []fake{good("lib/9", 9), good("lib/14", 14), good("lib/17", 17)}, want: "lib/17"},
		{name: "PATHFirst", fakes: []fake{good("lib/17", 17), good("mine", 15)}, path: "mine/bin", want: "mine"},
		{name: "TooOldInPATH", fakes: []fake{good("lib/15", 15), good("mine", 13)}, path: "mine/bin", want: "lib/15",
			rejected: []string{"version 13 is older than 14"}},
		{name: "NoGist", fakes: []fake{{folder: "lib/16", version: "postgres (PostgreSQL) 16.1", noGist: true}, good("lib/15", 15)}, want: "lib/15",
			rejected: []string{"btree_gist is missing"}},
		{name: "NoInitdb", fakes: []fake{{folder: "lib/16", version: "postgres (PostgreSQL) 16.1", noInitdb: true}, good("lib/15", 15)}, want: "lib/15",
			rejected: []string{"no initdb"}},
		{name: "NotPostgreSQL", fakes: []fake{{folder: "lib/16", version: "cockroach 23"}}, rejected: []string{"which is no version"}},
		{name: "BetaVersion", fakes: []fake{{folder: "lib/19", version: "postgres (PostgreSQL) 19beta2"}}, want: "lib/19"},
		{name: "DataNeedsOlder", fakes: []fake{good("lib/17", 17), good("lib/15", 15)}, major: 15, want: "lib/15",
			rejected: []string{"version 17, but the data needs 15"}},
		{name: "Nothing"},
	}
	acc, err := serverAccount()
	must(t, err)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := serverFolder(t)
			for _, f := range tt.fakes {
				f.write(t, root)
			}
			path := filepath.Join(root, "empty") // not the machine's own PATH
			if tt.path != "" {
				path = filepath.Join(root, tt.path)
			}
			t.Setenv("PATH", path)
			var logged []string
			s := search{account: acc, major: tt.major, folders: []string{filepath.Join(root, "lib/*/bin")},
				log: func(format string, args ...any) { logged = append(logged, fmt.Sprintf(format, args...)) }}
			found, rejected, ok := s.installed(t.Context())
			if ok != (tt.want != "") || ok && found.dir != filepath.Join(root, tt.want, "bin") {
				t.Errorf("found %q, %t; want %q", found.dir, ok, tt.want)
			}
			if len(rejected) != len(tt.rejected) || len(logged) != len(rejected) {
				t.Fatalf("rejected %q, logged %q; want %q", rejected, logged, tt.rejected)
			}
			for i, want := range tt.rejected {
				if !strings.Contains(rejected[i], want) || !strings.Contains(logged[i], want) {
					t.Errorf("rejected %q, logged %q; want %q", rejected[i], logged[i], want)
				}
			}
		})
	}

	t.Run("PgConfig", func(t *testing.T) {
		root := serverFolder(t)
		good("mine", 15).write(t, root)
		// Debian: pg_config is in PATH, the server's binaries are not.
		must(t, os.MkdirAll(filepath.Join(root, "path"), 0o755))
		must(t, os.Symlink(filepath.Join(root, "mine/bin/pg_config"), filepath.Join(root, "path/pg_config")))
		t.Setenv("PATH", filepath.Join(root, "path"))
		found, _, ok := search{account: acc, log: t.Logf}.installed(t.Context())
		if !ok || found.dir != filepath.Join(root, "mine/bin") || found.major != 15 {
			t.Errorf("found %+v, %t", found, ok)
		}
	})
}

// A machine without PostgreSQL, and an apt-get that is a script.
func TestInstall(t *testing.T) {
	root := serverFolder(t)
	must(t, os.MkdirAll(filepath.Join(root, "path"), 0o755))
	aptGet := func(text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(root, "path/apt-get"), []byte("#!/bin/sh\necho \"$DEBIAN_FRONTEND $*\" >>"+root+"/ran\n"+text), 0o755))
	}
	t.Setenv("PATH", filepath.Join(root, "path"))
	acc, err := serverAccount()
	must(t, err)
	s := search{account: acc, folders: []string{filepath.Join(root, "lib/*/bin")}, log: t.Logf}

	if os.Geteuid() != 0 {
		if err := s.install(t.Context()); err == nil || !strings.Contains(err.Error(), "only root") {
			t.Errorf("as a normal user: %v", err)
		}
		return
	}
	aptGet("exit 100\n")
	if err := s.install(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get -q update") {
		t.Errorf("apt-get fails: %v", err)
	}
	aptGet("exit 0\n")
	if err := s.install(t.Context()); err == nil || !strings.Contains(err.Error(), "won't do") {
		t.Errorf("apt-get installs nothing: %v", err)
	}
	must(t, os.Remove(filepath.Join(root, "ran")))
	staged := filepath.Join(root, "staged")
	fake{folder: "15", version: "postgres (PostgreSQL) 15.4"}.write(t, staged)
	aptGet("[ $2 = update ] || /bin/mv " + staged + " " + filepath.Join(root, "lib") + "\n")
	must(t, s.install(t.Context()))
	must(t, s.install(t.Context())) // nothing left to do
	ran, err := os.ReadFile(filepath.Join(root, "ran"))
	must(t, err)
	want := "noninteractive -q update\nnoninteractive -q install -y --no-install-recommends postgresql postgresql-contrib\n"
	if string(ran) != want {
		t.Errorf("ran %q, want %q", ran, want)
	}
}
