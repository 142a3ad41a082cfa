package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"openslot/internal/devenv"
)

// programVariable makes this test binary the program itself.
const programVariable = "OPENSLOT_TEST_WITH"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		main()
	}
	os.Exit(m.Run())
}

// with runs the program and returns what it printed and its exit code.
func with(t *testing.T, env []string, args ...string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	cmd.Env = append(cmd.Env, env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

func TestWith(t *testing.T) {
	t.Run("GivesAServer", func(t *testing.T) {
		t.Parallel()
		tmp, err := os.MkdirTemp("", "openslot-with-") // t.TempDir is closed to the server's user
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(tmp)
		if err := os.Chmod(tmp, 0o777); err != nil {
			t.Fatal(err)
		}
		out, code := with(t, []string{devenv.TestURLVariable + "=", "DATABASE_URL=", "TMPDIR=" + tmp}, "--",
			"sh", "-c", `echo "url=$`+devenv.TestURLVariable+`"; ls $TMPDIR; exit 3`)
		if code != 3 || !strings.Contains(out, "url=postgres://") || !strings.Contains(out, "openslot-postgres-") {
			t.Errorf("exit code %d, want the command's 3; printed:\n%s", code, out)
		}
		if left, _ := filepath.Glob(filepath.Join(tmp, "*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	})
	t.Run("LeavesAGivenOne", func(t *testing.T) {
		t.Parallel()
		out, code := with(t, []string{devenv.TestURLVariable + "=postgres://given/"}, "sh", "-c", "echo $"+devenv.TestURLVariable)
		if code != 0 || out != "postgres://given/\n" {
			t.Errorf("exit code %d, printed %q", code, out)
		}
	})
	t.Run("NoCommand", func(t *testing.T) {
		t.Parallel()
		if out, code := with(t, nil, "--"); code != 2 || !strings.Contains(out, "name the command") {
			t.Errorf("exit code %d, printed %q", code, out)
		}
	})
	t.Run("KilledCommand", func(t *testing.T) {
		t.Parallel()
		if out, code := with(t, []string{devenv.TestURLVariable + "=postgres://given/"}, "sh", "-c", "kill -9 $$"); code != 1 {
			t.Errorf("exit code %d, printed %q", code, out)
		}
	})
}
