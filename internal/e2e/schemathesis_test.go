package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// schemathesis finds the program, or installs the pinned version into the user's cache. Where there is
// no Python, or no way to get it, the test is skipped; with CI=true it fails.
func schemathesis(t *testing.T) string {
	t.Helper()
	missing := func(format string, args ...any) {
		t.Helper()
		if os.Getenv("CI") == "true" {
			t.Fatalf(format, args...)
		}
		t.Skipf(format, args...)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		missing("python3 is not installed")
	}
	const list = "testdata/schemathesis.txt"
	pinned, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		missing("no place for schemathesis: %v", err)
	}
	hash := sha256.Sum256(pinned)
	folder := filepath.Join(cache, "openslot", "schemathesis-"+hex.EncodeToString(hash[:6]))
	program, done := filepath.Join(folder, "bin", "schemathesis"), filepath.Join(folder, "complete")
	if _, err := os.Stat(done); err == nil {
		return program
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	for _, command := range [][]string{
		{python, "-m", "venv", "--clear", folder},
		{filepath.Join(folder, "bin", "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", list},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil { //nolint:gosec // ours
			missing("%s: %v\n%s", strings.Join(command, " "), err, out)
		}
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return program
}

// Requests made from the OpenAPI document, good ones and bad ones, find no 5xx, no answer that the
// document does not have, nothing taken that it forbids, and nothing answered without a token that
// needs one.
func TestSchemathesis(t *testing.T) {
	t.Parallel()
	program := schemathesis(t)
	c := newClinic(t, 1)
	// What the document's examples name is there.
	c.exec(`SELECT setval('time_slot_id_seq', 1000), setval('patient_id_seq', 76)`)
	c.slots(20, 100)
	overREST{}.register(c.instances[0], c.token("partner", "tester"), "anna")
	var running sync.WaitGroup
	for _, role := range []string{"patient", "partner"} {
		running.Go(func() { runSchemathesis(t, program, c, role) })
	}
	running.Wait()
	if n := scan[int](c, `SELECT count(*) FROM appointment`); n == 0 {
		t.Error("nothing was booked: the requests did not get far")
	}
	c.check()
}

func runSchemathesis(t *testing.T, program string, c *clinic, role string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := exec.CommandContext(ctx, program, "run", c.instances[0]+"/api/openapi.json",
		"--header", "Authorization: Bearer "+c.token(role, "tester"),
		// One worker: Python 3.11 gives up now and then where two threads parse a program at once.
		"--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "8", "--workers", "1", "--no-color", "--no-shrink",
		"--checks", "all",
		// Rules that no document can express, such as who may be named, refuse requests that it allows.
		// And what was deleted is not gone: it is a cancelled appointment, which stays.
		"--exclude-checks", "positive_data_acceptance,use_after_free",
		// A stream goes on for ever: it has tests of its own.
		"--exclude-operation-id", "watchAvailability")
	run.Dir = t.TempDir()
	out, err := run.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("✅ Fuzzing")) {
		t.Errorf("as %s: %v\n%s", role, err, out)
	} else {
		t.Logf("as %s:\n%s", role, out[max(0, len(out)-1500):])
	}
}
