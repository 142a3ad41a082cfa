package devenv

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that servers run as. Without a credential it is ours.
type account struct {
	name string
	cred *syscall.Credential
}

// serverAccount is our own user, or, since PostgreSQL refuses root, another
// one when we are root. initdb wants a user that the system can name.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
		if uerr != nil || gerr != nil || uid == 0 {
			continue
		}
		return account{name: name, cred: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return account{}, fmt.Errorf("devenv: PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody: " +
		"start as another user, or create one (useradd --system postgres)")
}

// command is exec.CommandContext as the account, in a process group and a
// folder that do not depend on where we were started.
func (a account) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: a.cred}
	// PG* variables and a foreign locale would change how the server behaves.
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_MESSAGES=C"}
	for _, key := range []string{"LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZDIR"} {
		if v := os.Getenv(key); v != "" {
			cmd.Env = append(cmd.Env, key+"="+v)
		}
	}
	return cmd
}

// own makes path belong to the account.
func (a account) own(path string) error {
	if a.cred == nil {
		return nil
	}
	return os.Chown(path, int(a.cred.Uid), int(a.cred.Gid))
}

// ownAll is own for a folder and all in it, which may have been made as
// another user: as ourselves, or as nobody before there was a postgres.
func (a account) ownAll(folder string) error {
	if a.cred == nil {
		return nil
	}
	return filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(a.cred.Uid), int(a.cred.Gid))
	})
}

// reaches says whether the account can enter the folder, which takes every
// folder above it too.
func (a account) reaches(ctx context.Context, folder string) bool {
	if a.cred == nil {
		return true
	}
	return a.command(ctx, "/bin/sh", "-c", `cd "$1" && test -w .`, "sh", folder).Run() == nil
}
