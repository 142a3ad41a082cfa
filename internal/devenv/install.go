package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// installPackages installs packages of Debian.
func installPackages(ctx context.Context, log func(format string, args ...any), names ...string) error {
	for _, line := range [][]string{
		{"apt-get", "-q", "update"},
		append([]string{"apt-get", "-q", "install", "-y", "--no-install-recommends"}, names...),
	} {
		log("%s", strings.Join(line, " "))
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		// A package may start a server of its own; it is not needed, and
		// harmless: ours take free ports.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(line, " "), err)
		}
	}
	return nil
}

// InstallRedis installs redis-server from Debian's package unless it is there.
// It needs root and is meant for a machine that exists for one run of the tests.
func InstallRedis(ctx context.Context, log func(format string, args ...any)) error {
	if _, err := exec.LookPath("redis-server"); err == nil {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("devenv: redis-server is missing and only root can install it: apt-get install redis-server")
	}
	if err := installPackages(ctx, log, "redis-server"); err != nil {
		return fmt.Errorf("devenv: install Redis: %w", err)
	}
	_, err := exec.LookPath("redis-server")
	return err
}

// InstallPostgres installs PostgreSQL with its contrib modules from Debian's
// packages unless a usable one is there or DATABASE_URL gives one. It needs
// root and is meant for a machine that exists for one run of the tests.
func InstallPostgres(ctx context.Context, log func(format string, args ...any)) error {
	if os.Getenv("DATABASE_URL") != "" {
		return nil
	}
	acc, err := serverAccount()
	if err != nil {
		acc = account{} // the package makes the user postgres
	}
	return search{account: acc, folders: usualFolders, log: log}.install(ctx)
}

func (s search) install(ctx context.Context) error {
	if _, _, ok := s.installed(ctx); ok {
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("devenv: PostgreSQL is missing and only root can install it: apt-get install postgresql postgresql-contrib")
	}
	if err := installPackages(ctx, s.log, "postgresql", "postgresql-contrib"); err != nil {
		return fmt.Errorf("devenv: install PostgreSQL: %w", err)
	}
	if _, rejected, ok := s.installed(ctx); !ok {
		return fmt.Errorf("devenv: the installed PostgreSQL won't do: %s", strings.Join(rejected, "; "))
	}
	return nil
}
