package devenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// installCommands are what InstallPostgres runs, in order.
var installCommands = [][]string{
	{"apt-get", "-q", "update"},
	{"apt-get", "-q", "install", "-y", "--no-install-recommends", "postgresql", "postgresql-contrib"},
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
	for _, line := range installCommands {
		s.log("%s", strings.Join(line, " "))
		cmd := exec.CommandContext(ctx, line[0], line[1:]...)
		// The package would start a server of its own; it is not needed, and
		// harmless: ours takes a free port.
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("devenv: install PostgreSQL: %s: %w", strings.Join(line, " "), err)
		}
	}
	if _, rejected, ok := s.installed(ctx); !ok {
		return fmt.Errorf("devenv: the installed PostgreSQL won't do: %s", strings.Join(rejected, "; "))
	}
	return nil
}
