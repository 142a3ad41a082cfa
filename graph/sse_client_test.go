package graph

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"openslot/internal/booking"
)

// streamClient is npm's graphql-sse in a process of its own.
type streamClient struct {
	t     *testing.T
	lines chan string
}

func startStreamClient(t *testing.T, command *exec.Cmd) *streamClient {
	t.Helper()
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	c := &streamClient{t, make(chan string, 1000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			c.lines <- scanner.Text()
		}
		close(c.lines)
	}()
	t.Cleanup(func() {
		command.Process.Kill()
		<-ended
		command.Wait()
	})
	return c
}

// line is the next that begins with a word; others may come before it, but for those that end it.
func (c *streamClient) line(word string) string {
	c.t.Helper()
	for timeout := time.After(3 * patience); ; {
		select {
		case line, ok := <-c.lines:
			if !ok {
				c.t.Fatalf("the client has gone, want %s", word)
			}
			if got, rest, _ := strings.Cut(line, " "); got == word {
				return rest
			} else if got == "error" || got == "complete" {
				c.t.Fatalf("%s, want %s", line, word)
			}
		case <-timeout:
			c.t.Fatalf("never: %s", word)
		}
	}
}

// The client that people use: it misses nothing however many signs of life come in between, comes
// back by itself when the instance goes, and gives up when it is told to.
func TestStreamClient(t *testing.T) {
	t.Parallel()
	command := npm(t, "sse")
	w := newWorld(t)
	w.quick(func(p *pace) { p.ping = time.Millisecond })
	slot := w.slot(w.northDoctor, noon(1), 1000)
	request, _ := json.Marshal(map[string]any{"query": watching, "variables": vars{"d": []string{id(w.northDoctor)}, "day": noon(1).Format(time.DateOnly)}})
	start := func(token string) *streamClient {
		t.Helper()
		return startStreamClient(t, command("node", "watch.mjs", w.url, token, string(request)))
	}
	ada := w.patient("ada")
	c := start(ada)
	shows := func(free int) {
		t.Helper()
		for want := fmt.Sprintf(`"free":%d,`, free); !strings.Contains(c.line("next"), want); {
		}
	}
	shows(1000)
	for n := range 300 {
		sql[int](w, `UPDATE time_slot SET booked_count = $2 WHERE id = $1 RETURNING 1`, slot, n+1)
	}
	shows(700)

	w.handler.streams.mu.Lock()
	for st := range w.handler.streams.open {
		st.end(errGoing)
	}
	w.handler.streams.mu.Unlock()
	c.line("connected")
	if next := c.line("next"); !strings.Contains(next, "SNAPSHOT") || !strings.Contains(next, `"free":700,`) {
		t.Errorf("after it came back: %s", next)
	}

	patient := sql[int64](w, `SELECT id FROM patient WHERE subject = 'ada'`)
	w.ask(w.token(booking.System, "ops", 0), `mutation($p:ID!){blockPatient(input:{patientId:$p}){changed}}`, vars{"p": id(patient)})
	if next := c.line("next"); !strings.Contains(next, "FORBIDDEN") {
		t.Errorf("blocked: %s", next)
	}
	c.line("complete")
	for token, status := range map[string]string{"nonsense": "401", ada: "403"} {
		if problem := start(token).line("error"); !strings.HasPrefix(problem, status) {
			t.Errorf("%s, want %s", problem, status)
		}
	}
	if n := w.openStreams(); n != 0 {
		t.Errorf("%d streams are open", n)
	}
}
