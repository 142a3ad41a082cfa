package devenv

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// repositoryVariable names another Maven repository to fetch from.
const repositoryVariable = "OPENSLOT_POSTGRES_REPOSITORY"

// fetchedVersions are what the library can fetch, by major version. The
// default is what production runs.
var fetchedVersions = map[int]embeddedpostgres.PostgresVersion{
	14: embeddedpostgres.V14, 15: embeddedpostgres.V15, 16: embeddedpostgres.V16,
	17: embeddedpostgres.V17, 18: embeddedpostgres.V18,
}

const fetchedMajor = 17

// rootCache is root's cache: a place that the server's user can reach, as
// root's own is not. A variable for the tests.
var rootCache = "/var/cache"

// fetched returns binaries from the cache, fetched and unpacked on first use.
func (s search) fetched(ctx context.Context, repository string) (binaries, error) {
	major := cmp.Or(s.major, fetchedMajor)
	version, ok := fetchedVersions[major]
	if !ok {
		return binaries{}, fmt.Errorf("PostgreSQL %d can't be fetched", major)
	}
	cache, err := s.cacheFolder()
	if err != nil {
		return binaries{}, err
	}
	home := filepath.Join(cache, "postgresql-"+string(version))
	if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) {
		s.log("fetching PostgreSQL %s", version)
		if err := fetch(version, cmp.Or(repository, os.Getenv(repositoryVariable)), home); err != nil {
			return binaries{}, err
		}
	}
	dir := filepath.Join(home, "bin")
	if major, err = s.check(ctx, dir); err != nil {
		return binaries{}, fmt.Errorf("the fetched PostgreSQL in %s won't do: %w; remove that folder to fetch it again", home, err)
	}
	return binaries{dir, major}, nil
}

// cacheFolder keeps what was fetched.
func (s search) cacheFolder() (string, error) {
	parent := rootCache
	if s.account.cred == nil {
		var err error
		if parent, err = os.UserCacheDir(); err != nil {
			parent = os.TempDir()
		}
	}
	cache := filepath.Join(parent, "openslot")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("a place for fetched binaries: %w", err)
	}
	return cache, nil
}

// fetch downloads and unpacks version into home.
//
// The library only unpacks on the way to starting a server, which it does as
// ourselves and unsupervised. So it is given a locale that does not exist:
// initdb, its next step, then refuses, and we run the binaries our own way.
func fetch(version embeddedpostgres.PostgresVersion, repository, home string) error {
	work, err := os.MkdirTemp(filepath.Dir(home), ".fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	port, err := freePort()
	if err != nil {
		return err
	}
	unpacked := filepath.Join(work, "postgresql")
	cfg := embeddedpostgres.DefaultConfig().
		Version(version).
		Port(uint32(port)).
		Locale("fetch-only").
		CachePath(work).
		RuntimePath(filepath.Join(work, "runtime")).
		BinariesPath(unpacked).
		StartTimeout(time.Minute).
		Logger(nil)
	if repository != "" {
		cfg = cfg.BinaryRepositoryURL(repository)
	}
	server := embeddedpostgres.NewDatabase(cfg)
	startErr := server.Start()
	removeOpenLogs()
	runtime.KeepAlive(server) // and its log, open
	if startErr == nil {
		return errors.Join(errors.New("the fetched PostgreSQL accepted a locale that does not exist"), server.Stop())
	}
	if _, err := os.Stat(filepath.Join(unpacked, "bin", "initdb")); err != nil {
		return fmt.Errorf("fetch PostgreSQL %s: %w (no network? %s names another repository)", version, startErr, repositoryVariable)
	}
	if err := readableByAll(unpacked); err != nil {
		return err
	}
	err = os.Rename(unpacked, home)
	if errors.Is(err, fs.ErrExist) {
		return nil // another process was quicker
	}
	return err
}

// removeOpenLogs removes the logs that the library makes in the folder for temporary files, under
// names that it tells nobody, and leaves there. It keeps them open: that tells ours from those of
// other programs.
func removeOpenLogs() {
	logs, _ := filepath.Glob(filepath.Join(os.TempDir(), "embedded_postgres_log*"))
	open, _ := filepath.Glob("/dev/fd/*")
	for _, log := range logs {
		file, err := os.Stat(log)
		if err == nil && slices.ContainsFunc(open, func(fd string) bool {
			held, err := os.Stat(fd)
			return err == nil && os.SameFile(file, held)
		}) {
			_ = os.Remove(log) // what stays is a few lines
		}
	}
}

// readableByAll lets the server's user run what root unpacked.
func readableByAll(root string) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Type()&fs.ModeSymlink != 0 {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		mode := info.Mode().Perm() | 0o444
		if entry.IsDir() || mode&0o100 != 0 {
			mode |= 0o111
		}
		return os.Chmod(path, mode)
	})
}
