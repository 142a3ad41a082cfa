package graph

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// GraphQL over HTTP, as npm's graphql-http audits it: every audit ok, no warning, no notice.
func TestAudits(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(program + " is not installed")
		}
	}
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("testdata/audit")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	run := func(name string, args ...string) string {
		t.Helper()
		command := exec.CommandContext(ctx, name, args...)
		command.Dir = folder
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, out)
		}
		return string(out)
	}
	run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	world := newWorld(t, func(parts *Parts) { parts.Introspection = true }) // some audits ask for types
	lines := strings.Split(strings.TrimSpace(run("node", "audit.mjs", world.url)), "\n")
	for _, line := range lines {
		if !strings.HasPrefix(line, "ok\t") {
			t.Error(line)
		}
	}
	if len(lines) != 61 {
		t.Errorf("%d audits, want 61", len(lines))
	}
}
