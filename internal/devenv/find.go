package devenv

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// oldestMajor is the oldest PostgreSQL that the migrations run on.
const oldestMajor = 14

// binaries is a folder with postgres and initdb that will do.
type binaries struct {
	dir   string
	major int
}

func (b binaries) path(name string) string { return filepath.Join(b.dir, name) }

// usualFolders are where packages put the server's binaries: Debian, builds
// from source, the PGDG's RPMs, Homebrew, Postgres.app, openSUSE, Arch.
var usualFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/local/pgsql*/bin",
	"/usr/pgsql-*/bin",
	"/usr/lib/postgresql*/bin",
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/opt/local/lib/postgresql*/bin",
	"/usr/libexec/postgresql*",
}

// search looks for installed binaries.
type search struct {
	account account
	major   int      // only this major version; 0 is any
	folders []string // patterns; usualFolders but in tests
	log     func(format string, args ...any)
}

// installed returns the first candidate that will do. rejected says why the
// others won't, one line each.
func (s search) installed(ctx context.Context) (found binaries, rejected []string, ok bool) {
	seen := map[string]bool{}
	for _, dir := range s.candidates(ctx) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			dir = real
		}
		if seen[dir] {
			continue
		}
		seen[dir] = true
		major, err := s.check(ctx, dir)
		if err != nil {
			s.log("PostgreSQL in %s won't do: %v", dir, err)
			rejected = append(rejected, fmt.Sprintf("%s: %v", dir, err))
			continue
		}
		return binaries{dir, major}, rejected, true
	}
	return binaries{}, rejected, false
}

// candidates lists folders that hold a postgres, best first.
func (s search) candidates(ctx context.Context) []string {
	var dirs []string
	// Debian has no postgres in PATH, and a link there may be one of many.
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	if out, err := output(s.account.command(ctx, "pg_config", "--bindir")); err == nil {
		dirs = append(dirs, out)
	}
	for _, pattern := range s.folders {
		matches, _ := filepath.Glob(pattern)
		// Newest first: 9.6 < 10 < 15, so by number.
		slices.SortStableFunc(matches, func(a, b string) int { return numberIn(b) - numberIn(a) })
		dirs = append(dirs, matches...)
	}
	return slices.DeleteFunc(dirs, func(dir string) bool {
		_, err := os.Stat(filepath.Join(dir, "postgres"))
		return err != nil
	})
}

var (
	digits  = regexp.MustCompile(`[0-9]+`)
	leading = regexp.MustCompile(`^[0-9]+`)
	version = regexp.MustCompile(`\(PostgreSQL\) ([0-9]+)`)
)

// numberIn is the last number in a path, 0 where there is none.
func numberIn(path string) int {
	all := digits.FindAllString(path, -1)
	if len(all) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(all[len(all)-1])
	return n
}

// numberAt is the number that a text begins with, 0 where it doesn't.
func numberAt(text string) int {
	n, _ := strconv.Atoi(leading.FindString(text))
	return n
}

// check returns the major version of the binaries in dir, or why they won't do.
func (s search) check(ctx context.Context, dir string) (int, error) {
	out, err := output(s.account.command(ctx, filepath.Join(dir, "postgres"), "-V"))
	if err != nil {
		return 0, fmt.Errorf("postgres -V: %w", err)
	}
	m := version.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("postgres -V says %q, which is no version", out)
	}
	major, err := strconv.Atoi(m[1])
	if err != nil {
		return 0, err
	}
	switch {
	case major < oldestMajor:
		return 0, fmt.Errorf("version %d is older than %d", major, oldestMajor)
	case s.major != 0 && major != s.major:
		return 0, fmt.Errorf("version %d, but the data needs %d", major, s.major)
	}
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return 0, fmt.Errorf("no initdb beside postgres")
	}
	if !s.hasGist(ctx, dir, major) {
		return 0, fmt.Errorf("the extension btree_gist is missing (Debian: postgresql-contrib)")
	}
	return major, nil
}

// hasGist says whether btree_gist comes with the binaries. pg_config knows
// where the extensions are, but is often packaged apart from the server.
func (s search) hasGist(ctx context.Context, dir string, major int) bool {
	const control = "extension/btree_gist.control"
	var shares []string
	if out, err := output(s.account.command(ctx, filepath.Join(dir, "pg_config"), "--sharedir")); err == nil {
		shares = append(shares, out)
	}
	up := filepath.Dir(dir)
	shares = append(shares, filepath.Join(up, "share"), filepath.Join(up, "share", "postgresql"))
	if strings.HasPrefix(dir, "/usr/") { // a distribution's, whose data lies apart
		shares = append(shares, fmt.Sprintf("/usr/share/postgresql/%d", major), fmt.Sprintf("/usr/share/postgresql%d", major), "/usr/share/postgresql")
	}
	return slices.ContainsFunc(shares, func(share string) bool {
		_, err := os.Stat(filepath.Join(share, control))
		return err == nil
	})
}

// output runs cmd and returns what it prints, trimmed. A failure carries what
// it printed to stderr.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = time.Second
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(stderr.String()); text != "" {
			return "", fmt.Errorf("%w: %s", err, text)
		}
		return "", err
	}
	return strings.TrimSpace(stdout.String()), nil
}
