package app

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"openslot/internal/devenv"
)

// command runs one command line.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = Main(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// TestCommands is an installation from an empty database on.
func TestCommands(t *testing.T) {
	t.Parallel()
	db := devenv.NewEmptyDB(t)
	const noSchema = "openslot: .*no openslot schema.*: run `openslot migrate up`\n"
	steps := []struct {
		args           []string
		code           int
		stdout, stderr string // patterns of the whole
	}{
		{[]string{"migrate", "version"}, 1, "", noSchema},
		{[]string{"api", "--jwt-issuer=us", "--jwt-secret=" + secret, "--listen=127.0.0.1:0"}, 1, "", noSchema},
		{[]string{"worker"}, 1, "", noSchema},
		{[]string{"organization", "create", "--name=Practice", "--time-zone=Europe/Berlin"}, 1, "", noSchema},
		{[]string{"schedule", "generate", "--all"}, 1, "", noSchema},
		{[]string{"migrate", "up"}, 0, "The schema is up to date.\n", ""},
		{[]string{"migrate", "up"}, 0, "The schema is up to date.\n", ""},
		{[]string{"migrate", "version"}, 0, "The schema is up to date.\n", ""},
		{[]string{"schedule", "generate", "--all"}, 0, "0 slots added.\n", ""},
		{[]string{"organization", "create", "--name=Practice", "--time-zone=Europe/Berlin"}, 0, "1\n", ""},
		{[]string{"organization", "create", "--name=Practice", "--time-zone=Europe/Berlin"}, 1, "", "openslot: name is taken.*\n"},
		{[]string{"organization", "create", "--name=Other", "--time-zone=Mars/Olympus"}, 1, "", "openslot: timeZone .*\n"},
		{[]string{"organization", "rules", "--organization=1", "--notice-minutes=60", "--max-active=2"}, 0, "hold-minutes   10\nnotice-minutes 60\nhorizon-days   none\n(.*\n){6}", ""},
		{[]string{"organization", "rules", "--organization=1", "--notice-minutes=0", "--hold-minutes=5"}, 0, "hold-minutes   5\nnotice-minutes none\n(.*\n){7}", ""},
		{[]string{"organization", "rules", "--organization=1"}, 0, "hold-minutes   5\nnotice-minutes none\n(.*\n){2}max-active     2\nmax-holds      none\nmax-per-day    none\noffer-minutes  30\ncancelled-places-return AT_ONCE\n", ""},
		{[]string{"organization", "rules", "--organization=1", "--cancelled-places-return=NEXT_RELEASE", "--offer-minutes=45"}, 0, "(.*\n){7}offer-minutes  45\ncancelled-places-return NEXT_RELEASE\n", ""},
		{[]string{"organization", "rules", "--organization=1", "--cancelled-places-return=NEVER"}, 1, "", "openslot: cancelledPlacesReturn must be .*\n"},
		{[]string{"organization", "rules", "--organization=1", "--max-holds=-1"}, 1, "", "openslot: maxHolds must be .*\n"},
		{[]string{"organization", "rules", "--organization=7", "--max-holds=1"}, 1, "", "openslot: There is no such organization.*\n"},
		{[]string{"organization", "rules", "--organization=7"}, 1, "", "openslot: There is no such organization.*\n"},
		{[]string{"doctor", "create", "--organization=1", "--name=Dr. Ada Example", "--specialty=Cardiology"}, 0, "1\n", ""},
		{[]string{"doctor", "create", "--organization=2", "--name=Dr. Ada Example"}, 1, "", "openslot: There is no such organization.*\n"},
		{[]string{"schedule", "generate", "--doctor=1"}, 0, "0 slots added.\n", ""},
		{[]string{"schedule", "generate", "--doctor=2"}, 1, "", "openslot: .*no such doctor.*\n"},
		{[]string{"schedule", "generate", "--all", "--days=16"}, 1, "", "openslot: days must be .*\n"},
		{[]string{"schedule", "generate"}, 2, "", "openslot: .*--all.*\n"},
		{[]string{"schedule", "generate", "--all", "--doctor=1"}, 2, "", "openslot: .*--doctor.*\n"},
		{[]string{"migrate", "down"}, 2, "", "openslot: .*--yes.*\n"},
		{[]string{"migrate", "down", "--yes"}, 0, "The schema is gone.\n", ""},
		{[]string{"doctor", "create", "--organization=1", "--name=Dr. Ada Example"}, 1, "", noSchema},
	}
	for _, step := range steps {
		args := append(step.args[:len(step.args):len(step.args)], "--database-url="+db.URL)
		code, stdout, stderr := command(t, args...)
		if code != step.code || !whole(step.stdout, stdout) || !whole(step.stderr, stderr) {
			t.Errorf("openslot %s: exit code %d, stdout %q, stderr %q; want %d, %q, %q",
				strings.Join(step.args, " "), code, stdout, stderr, step.code, step.stdout, step.stderr)
		}
	}
}

// TestCommandsGenerate makes slots from a template.
func TestCommandsGenerate(t *testing.T) {
	t.Parallel()
	db := devenv.NewDB(t)
	_, err := db.Pool.Exec(context.Background(), `
		WITH o AS (INSERT INTO organization (name, time_zone) VALUES ('Practice', 'UTC') RETURNING id),
		     d AS (INSERT INTO doctor (organization_id, name) SELECT id, 'Dr. ' || n FROM o, generate_series(1, 3) AS n RETURNING id),
		     s AS (INSERT INTO schedule (doctor_id, valid_from) SELECT id, '2020-01-01' FROM d RETURNING id)
		INSERT INTO schedule_shift (schedule_id, weekday, start_minute, end_minute, slot_minutes, every_minutes, capacity)
		SELECT s.id, w, 0, 1440, 60, 60, 1 FROM s, generate_series(1, 7) AS w`)
	if err != nil {
		t.Fatal(err)
	}
	// Of today as many as there are full hours left; 13 whole days, and perhaps 23:xx is today's last.
	for _, step := range []struct{ args, want string }{
		{"--doctor=1 --days=14", `3[0-9][0-9] slots added.\n`},
		{"--all --days=14", `6[0-9][0-9] slots added.\n`},
		{"--all --days=14", `0 slots added.\n`},
	} {
		code, stdout, stderr := command(t, append([]string{"schedule", "generate", "--database-url=" + db.URL}, strings.Fields(step.args)...)...)
		if code != 0 || !whole(step.want, stdout) || stderr != "" {
			t.Errorf("schedule generate %s: exit code %d, stdout %q, stderr %q; want %q", step.args, code, stdout, stderr, step.want)
		}
	}
}

func whole(pattern, text string) bool {
	return regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(text)
}

func TestUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"UnknownCommand": {"fly"},
		"UnknownFlag":    {"version", "--fast"},
		"Incomplete":     {"schedule"},
		"Missing":        {"organization", "create", "--database-url=postgres://db/a"},
		"StaffOfNowhere": {"token", "--jwt-issuer=us", "--jwt-secret=" + secret, "--role=staff", "--subject=staff-1"},
	} {
		code, stdout, stderr := command(t, args...)
		if code != 2 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "openslot: ") {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", name, code, stdout, stderr)
		}
	}
	for name, args := range map[string][]string{"Nothing": nil, "Help": {"--help"}, "CommandHelp": {"api", "--help"}} {
		code, stdout, stderr := command(t, args...)
		if code != 0 || !strings.Contains(stdout, "Usage: openslot") || stderr != "" {
			t.Errorf("%s: exit code %d, stdout %q, stderr %q", name, code, stdout, stderr)
		}
	}
	if code, stdout, _ := command(t, "version"); code != 0 || !strings.HasPrefix(stdout, "openslot ") {
		t.Errorf("version: exit code %d, %q", code, stdout)
	}
}

// TestPortTaken: whoever meets it hears how to take another port.
func TestPortTaken(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	code, _, stderr := command(t, "api", "--jwt-issuer=us", "--jwt-secret="+secret, "--database-url="+devenv.NewDB(t).URL, "--listen="+taken.Addr().String())
	if code != 1 || !whole(`openslot: .*in use.*--listen.*OPENSLOT_LISTEN.*\n`, stderr) {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

// TestUnreachable: a database that is away is said in one line, without the password.
func TestUnreachable(t *testing.T) {
	code, _, stderr := command(t, "organization", "create", "--name=A", "--time-zone=UTC", "--database-url=postgres://u:canary@127.0.0.1:1/a")
	if code != 1 || strings.Count(stderr, "\n") != 1 || strings.Contains(stderr, "canary") || !strings.Contains(stderr, "127.0.0.1") {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}

// TestLastLines: what was answered a moment before the end is in the log.
func TestLastLines(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var log logBuffer
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, []string{"api", "--jwt-issuer=us", "--jwt-secret=" + secret, "--database-url=" + devenv.NewDB(t).URL, "--listen=127.0.0.1:0"}, io.Discard, &log)
	}()
	var address string
	for found := false; !found; {
		select {
		case code := <-ended:
			t.Fatalf("it ended with %d: %s", code, log.String())
		case <-time.After(time.Millisecond):
		}
		_, after, _ := strings.Cut(log.String(), `"address":"`)
		address, _, found = strings.Cut(after, `"`)
	}
	answer, err := http.Get("http://" + address + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	stop()
	if code := <-ended; code != 0 || strings.Count(log.String(), `"path":"/livez"`) != 1 {
		t.Errorf("it ended with %d, and said:\n%s", code, log.String())
	}
}
