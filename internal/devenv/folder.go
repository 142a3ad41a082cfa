package devenv

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// folder is where one server keeps what it needs:
//
//	lock        held while the server or any of its processes lives; its text is our pid
//	password    of the superuser, readable by its owner only
//	server.log  what the server printed since the last Start
//	data/       PGDATA
type folder struct {
	path    string
	scratch bool // removed at Stop, and by the shell if we die
	lock    *os.File
}

// reachableFolder takes the data that root asked for where the server's user
// can't go. A variable for the tests.
var reachableFolder = "/var/lib/openslot"

const scratchPrefix = "openslot-postgres-"

// openFolder makes or opens the server's folder, owned by the account, and
// locks it. An empty path asks for a scratch folder.
func openFolder(ctx context.Context, path string, acc account, log func(string, ...any)) (*folder, error) {
	if path == "" {
		return openScratch(ctx, acc)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	if err := makeOwned(path, acc); err != nil {
		return nil, err
	}
	if !acc.reaches(ctx, path) {
		// A checkout under /root, for one.
		sum := sha256.Sum256([]byte(path))
		other := filepath.Join(reachableFolder, hex.EncodeToString(sum[:4])+"-"+filepath.Base(path))
		if err := makeOwned(other, acc); err != nil {
			return nil, err
		}
		if !acc.reaches(ctx, other) {
			return nil, fmt.Errorf("the user %s can reach neither %s nor %s: choose a data folder that it can", acc.name, path, other)
		}
		_ = os.Remove(path) // empty unless it was there before us
		log("the user %s can't reach %s: the data is in %s", acc.name, path, other)
		path = other
	}
	f := &folder{path: path}
	if err := f.acquire(ctx); err != nil {
		return nil, err
	}
	// Not before the lock: a server that still stops removes files meanwhile.
	if err := acc.ownAll(path); err != nil {
		return nil, errors.Join(fmt.Errorf("give the data to %s: %w", acc.name, err), f.close())
	}
	return f, nil
}

// openScratch makes a folder for one run in the first temporary folder that
// the account can reach.
func openScratch(ctx context.Context, acc account) (*folder, error) {
	var reasons []error
	for _, parent := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		removeStale(parent)
		path, err := os.MkdirTemp(parent, scratchPrefix)
		if err != nil {
			reasons = append(reasons, err)
			continue
		}
		if err := acc.own(path); err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		if !acc.reaches(ctx, path) {
			reasons = append(reasons, fmt.Errorf("the user %s can't reach %s", acc.name, path), os.Remove(path))
			continue
		}
		f := &folder{path: path, scratch: true}
		return f, f.acquire(ctx)
	}
	return nil, fmt.Errorf("no place for temporary data: %w", errors.Join(reasons...))
}

// makeOwned makes path, private to the account. What is there already must be
// ours: the folder of somebody's other things is not given away.
func makeOwned(path string, acc account) error {
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	case err == nil && len(entries) > 0:
		_, lock := os.Stat(filepath.Join(path, "lock"))
		_, data := os.Stat(filepath.Join(path, "data/PG_VERSION"))
		if lock != nil && data != nil {
			err = errors.New("it holds something else: choose an empty folder, or one that does not exist")
		}
	}
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("it belongs to another user (was it made by root?): remove it, or use another folder: %w", err)
	}
	if err == nil {
		err = acc.own(path)
	}
	if err != nil {
		return fmt.Errorf("the data folder %s: %w", path, err)
	}
	return nil
}

// acquire takes the folder's lock. A server whose starter has just died is
// waited for: it is about to stop.
func (f *folder) acquire(ctx context.Context) error {
	lock, err := os.OpenFile(f.file("lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	for giveUp := time.Now().Add(20 * time.Second); ; {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			break
		}
		holder := holderOf(f.file("lock"))
		if alive(holder) || time.Now().After(giveUp) {
			return errors.Join(fmt.Errorf("the data folder %s is in use by process %d: stop that one first, or use another folder", f.path, holder), lock.Close())
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return errors.Join(err, lock.Close())
		}
	}
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())), 0)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock the data folder: %w", err), lock.Close())
	}
	f.lock = lock
	return nil
}

// close gives the lock back and removes a scratch folder.
func (f *folder) close() error {
	err := f.lock.Close()
	if f.scratch {
		err = errors.Join(err, os.RemoveAll(f.path))
	}
	return err
}

func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

// password returns the stored password, made on first use.
func (f *folder) password(acc account) (string, error) {
	path := f.file("password")
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		text = []byte(rand.Text())
		if err = os.WriteFile(path, text, 0o600); err == nil {
			err = acc.own(path)
		}
	}
	return strings.TrimSpace(string(text)), err
}

// removeStale removes scratch folders that a crash of the whole machine left:
// an hour old and locked by nobody.
func removeStale(parent string) {
	paths, _ := filepath.Glob(filepath.Join(parent, scratchPrefix+"*"))
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || time.Since(info.ModTime()) < time.Hour {
			continue
		}
		lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			continue // another user's
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(path) // what can't be removed is no reason not to start
		}
		lock.Close()
	}
}

// holderOf reads a pid from the first line of a file, 0 where there is none.
func holderOf(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, _ := strconv.Atoi(strings.TrimSpace(line))
	return pid
}

// alive says whether a process pid is there and not just waiting to be
// collected by its parent (which only Linux's /proc tells).
func alive(pid int) bool {
	if pid <= 0 {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil {
		// "pid (name) state …", and the name may hold anything
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && bytes.HasPrefix(stat[i:], []byte(") Z")) {
			return false
		}
	}
	err = syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
