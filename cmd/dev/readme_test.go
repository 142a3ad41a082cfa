package main

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// example is a command of the README with what it says the command prints.
type example struct{ command, prints string }

// quickStart types the README's quick start into a shell beside p, and holds what is printed
// against what the README says.
func quickStart(t *testing.T, p *process) {
	t.Helper()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## Quick start\n")
	if !ok {
		t.Fatal("the README has no quick start")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	examples := consoleExamples(section)
	if len(examples) < 10 || examples[0].command != "make run" {
		t.Fatalf("found %d examples in the README: %v", len(examples), examples)
	}
	if got := strings.TrimSpace(p.stdout.String()); !like(examples[0].prints, got) {
		t.Errorf("make run printed\n%s\nthe README says\n%s", got, examples[0].prints)
	}
	for i, got := range typed(t, p.dir, examples[1:]) {
		if e := examples[i+1]; !like(e.prints, got) {
			t.Errorf("$ %s\nprinted\n%s\nthe README says\n%s", e.command, got, e.prints)
		}
	}
	for _, command := range firstCommands {
		if !slices.ContainsFunc(examples, func(e example) bool { return e.command == command }) {
			t.Errorf("make run prints a command that the README does not explain: %s", command)
		}
	}
	watch(t, p, section)
}

// consoleExamples reads the blocks marked console.
func consoleExamples(section string) (found []example) {
	for _, block := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(section, -1) {
		for line := range strings.Lines(block[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				found = append(found, example{command: strings.TrimSpace(command)})
			} else if len(found) > 0 {
				found[len(found)-1].prints += line
			}
		}
	}
	for i := range found {
		found[i].prints = strings.TrimSpace(found[i].prints)
	}
	return found
}

// typed runs the commands in one shell and returns what each printed.
func typed(t *testing.T, dir string, examples []example) []string {
	t.Helper()
	const mark = "=====next====="
	var script strings.Builder
	for _, e := range examples {
		fmt.Fprintf(&script, "%s\necho; echo %s\n", e.command, mark)
	}
	shell := exec.CommandContext(t.Context(), "sh", "-eu")
	shell.Dir = dir
	shell.Stdin = strings.NewReader(script.String())
	printed, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("the quick start: %v\n%s", err, printed)
	}
	parts := strings.Split(string(printed), mark+"\n")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts[:len(parts)-1]
}

var number = regexp.MustCompile(`[0-9]+`)

// like says whether text is what the README says, which may leave out parts (…) and whose numbers
// stand for any.
func like(says, text string) bool {
	pattern := strings.ReplaceAll(number.ReplaceAllString(regexp.QuoteMeta(says), "[0-9]+"), "…", ".*")
	return regexp.MustCompile(`(?s)^` + pattern + `$`).MatchString(text)
}

// TestLike: a comparison that takes anything would make the quick start's test worthless.
func TestLike(t *testing.T) {
	for _, tt := range []struct {
		says, text string
		want       bool
	}{
		{`{"id":"1"}`, `{"id":"42"}`, true},
		{`{"id":"1"}`, `{"id":"x"}`, false},
		{`{"a":[1,…]}`, `{"a":[1,2,3]}`, true},
		{`{"status":"BOOKED"}`, `{"status":"CANCELLED"}`, false},
		{`{"a":1}`, `{"a":1,"b":2}`, false},
		{``, `error`, false},
	} {
		if got := like(tt.says, tt.text); got != tt.want {
			t.Errorf("like(%q, %q) = %v", tt.says, tt.text, got)
		}
	}
}

// watch plays the README's websocket frames.
func watch(t *testing.T, p *process, section string) {
	t.Helper()
	frames := regexp.MustCompile(`(?m)^([<>]) (.*)$`).FindAllStringSubmatch(section, -1)
	if len(frames) < 4 {
		t.Fatalf("found %d frames in the README", len(frames))
	}
	dialer := websocket.Dialer{Subprotocols: []string{"graphql-transport-ws"}}
	socket, response, err := dialer.Dial("ws"+strings.TrimPrefix(p.env["OPENSLOT"], "http")+"/graphql", nil)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	defer socket.Close()
	if err := socket.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for _, frame := range frames {
		text := strings.NewReplacer("$DOCTOR", p.env["DOCTOR"], "$DATE", p.env["DATE"]).Replace(frame[2])
		if frame[1] == ">" {
			if err := socket.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		_, got, err := socket.ReadMessage()
		if err != nil || !like(text, string(got)) {
			t.Fatalf("received %s, %v\nthe README says\n%s", got, err, text)
		}
	}
}
