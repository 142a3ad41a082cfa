package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"openslot/internal/app"
)

// start is what a person needs to begin: where it runs, who they may be, and something to book.
type start struct {
	api, database      string
	doctor, date, slot string
	tokens             []namedToken
}

type namedToken struct{ name, value, about string }

// begin looks for something to book and signs a token for every role.
func (d *demo) begin(ctx context.Context, organization int64, who doctor) (start, error) {
	s := start{api: strings.Replace(d.api, "127.0.0.1", "localhost", 1), database: d.config.Database.URL, doctor: who.ID}
	location, err := time.LoadLocation(zone)
	if err != nil {
		return start{}, err
	}
	s.date = time.Now().In(location).AddDate(0, 0, 1).Format(time.DateOnly)
	var day struct {
		Slots struct{ Slots []struct{ ID string } }
	}
	err = d.ask(ctx, d.token, `query($d: ID!, $on: Date!) { slots(doctorId: $d, date: $on) { slots { id } } }`,
		map[string]any{"d": s.doctor, "on": s.date}, &day)
	if err != nil {
		return start{}, err
	}
	if len(day.Slots.Slots) == 0 {
		return start{}, errors.New("tomorrow is booked up: use --reset to begin anew")
	}
	s.slot = day.Slots.Slots[0].ID

	for _, t := range []struct {
		name, about string
		token       app.Token
	}{
		{"PATIENT", "books for herself", app.Token{Role: "patient", Subject: "patient-1", Name: "Pat Example"}},
		{"PATIENT2", "another patient", app.Token{Role: "patient", Subject: "patient-2", Name: "Kim Sample"}},
		{"STAFF", "works for the " + practice, app.Token{Role: "staff", Subject: "staff-1", Organization: organization}},
		{"PARTNER", "books for the patients that it registers", app.Token{Role: "partner", Subject: "partner-1"}},
		{"SYSTEM", "creates organizations", app.Token{Role: "system", Subject: "operator-1"}},
	} {
		value, err := d.sign(t.token)
		if err != nil {
			return start{}, err
		}
		s.tokens = append(s.tokens, namedToken{t.name, value, t.about})
	}
	return s, nil
}

// write puts everything into a file for the shell, readable by its owner only.
func (s start) write(path string) error {
	var b strings.Builder
	// Not as DATABASE_URL: the next start from the same shell would take it for a server given to it.
	fmt.Fprintf(&b, "OPENSLOT_DATABASE='%s'\n", strings.ReplaceAll(s.database, "'", `'\''`))
	fmt.Fprintf(&b, "OPENSLOT=%s\nDOCTOR=%s\nDATE=%s\nSLOT=%s\n", s.api, s.doctor, s.date, s.slot)
	for _, t := range s.tokens {
		fmt.Fprintf(&b, "%s=%s\n", t.name, t.value)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		return fmt.Errorf("settings for the shell: %w", err)
	}
	return nil
}

// firstCommands are for a shell that has read the settings. The README explains them.
var firstCommands = []string{
	`curl -s $OPENSLOT/graphql -H 'Content-Type: application/json' -d '{"query":"{ slots(doctorId: '$DOCTOR', date: \"'$DATE'\") { slots { id startAt free } } }"}'`,
	`curl -s $OPENSLOT/graphql -H 'Content-Type: application/json' -H "Authorization: Bearer $PATIENT" -d '{"query":"mutation { bookAppointment(input: {slotId: '$SLOT', idempotencyKey: \"'$KEY'\"}) { appointment { id status startAt } replayed errors { code message } } }"}'`,
}

// print tells a person all of it.
func (s start) print(w io.Writer, env, log string) {
	fmt.Fprintf(w, `
openslot is running. Ctrl-C stops it; the data stay for the next time.

  GraphiQL   %[1]s/
  API        %[1]s/graphql
  REST       %[1]s/api/
  Log        %[2]s
  Database   psql "$OPENSLOT_DATABASE", in a shell that has read %[3]s

Tokens, good for %[4]d days, for the header Authorization: Bearer …
`, s.api, log, env, int(tokenTTL.Hours()/24))
	for _, t := range s.tokens {
		fmt.Fprintf(w, "\n  %s, %s\n  %s\n", t.name, t.about, t.value)
	}
	fmt.Fprintf(w, "\nIn another terminal:\n\n  . %s; KEY=$(date +%%s)\n", env)
	for _, command := range firstCommands {
		fmt.Fprintf(w, "  %s\n", command)
	}
	fmt.Fprintln(w)
}
