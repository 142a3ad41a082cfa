package graph

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// npm is a folder of testdata with its packages, where programs of Node run. Without Node the test is
// skipped, but for CI.
func npm(t *testing.T, name string) (command func(name string, args ...string) *exec.Cmd) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(program + " is not installed")
		}
	}
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("testdata/"+name)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	command = func(name string, args ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, name, args...)
		c.Dir = folder
		return c
	}
	run(t, command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"))
	return command
}

func run(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// GraphQL over HTTP, as npm's graphql-http audits it: every audit ok, no warning, no notice.
func TestAudits(t *testing.T) {
	t.Parallel()
	command := npm(t, "audit")
	world := newWorld(t, func(parts *Parts) { parts.Introspection = true }) // some audits ask for types
	lines := strings.Split(strings.TrimSpace(run(t, command("node", "audit.mjs", world.url))), "\n")
	for _, line := range lines {
		if !strings.HasPrefix(line, "ok\t") {
			t.Error(line)
		}
	}
	if len(lines) != 61 {
		t.Errorf("%d audits, want 61", len(lines))
	}
}
