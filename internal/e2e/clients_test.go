package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"openslot/internal/app"
)

// libraries is a folder with the npm packages that clients use.
func libraries(t *testing.T) (folder string) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skip(program + " is not installed")
		}
	}
	folder = t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("testdata/clients")); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	install.Dir = folder
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm: %v\n%s", err, out)
	}
	return folder
}

// programs writes the files of docs/live.md, with addresses of the test's own, and the programs that
// use them, into a folder of their own below the libraries.
func programs(t *testing.T, libraries string, f *front, d *desk) (folder string, snippets []string) {
	t.Helper()
	folder, err := os.MkdirTemp(libraries, "programs-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(folder, os.DirFS("testdata/clients")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../docs/live.md")
	if err != nil {
		t.Fatal(err)
	}
	addresses := strings.NewReplacer("wss://openslot.example/graphql", f.socket(), "https://app.example/token", d.url)
	for _, m := range regexp.MustCompile("(?s)```js\n// ([a-z-]+\\.js)(.*?)```").FindAllStringSubmatch(string(text), -1) {
		if err := os.WriteFile(filepath.Join(folder, m[1]), []byte("//"+addresses.Replace(m[2])), 0o600); err != nil {
			t.Fatal(err)
		}
		snippets = append(snippets, m[1])
	}
	if fences := strings.Count(string(text), "```js\n"); fences != len(snippets) {
		t.Fatalf("docs/live.md has %d snippets, and the names of %d: %v", fences, len(snippets), snippets)
	}
	return folder, snippets
}

// desk is an app's sign-in. It gives tokens that are good for ttl; wrong ones if that is 0, none if it
// is less.
type desk struct {
	url string

	mu  sync.Mutex // guards what follows
	jwt app.JWT
	ttl time.Duration
}

// give sets what tokens are given from now on.
func (d *desk) give(jwt app.JWT, ttl time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jwt, d.ttl = jwt, ttl
}

func (c *clinic) desk(ttl time.Duration) *desk {
	d := &desk{jwt: c.config.JWT, ttl: ttl}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		d.mu.Lock()
		jwt, ttl := d.jwt, d.ttl
		d.mu.Unlock()
		if ttl < 0 {
			http.Error(w, "signed out", http.StatusUnauthorized)
			return
		}
		if ttl == 0 {
			_ = json.NewEncoder(w).Encode(map[string]any{"token": "wrong", "until": 0})
			return
		}
		token, err := jwt.Sign(app.Token{Role: "patient", Subject: "screen", TTL: ttl})
		if err != nil {
			c.t.Error(err)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "until": time.Now().Add(ttl).UnixMilli()})
	}))
	c.t.Cleanup(server.Close)
	d.url = server.URL
	return d
}

// page is a JavaScript program that shows slots.
type page struct {
	t       *testing.T
	front   *front
	command *exec.Cmd
	input   io.Closer
	ended   chan error
	told    chan struct{} // signalled after every line

	mu    sync.Mutex
	slots map[string]state
	lines []line
	said  strings.Builder // to stderr
}

// line is what a program prints.
type line struct {
	Slots []struct {
		ID string
		state
	}
	Code     int
	Reason   string
	Problem  string
	Complete bool
}

// open starts a program in the folder; its sockets go through f.
func open(t *testing.T, folder string, f *front, args ...string) *page {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience)
	t.Cleanup(cancel)
	p := &page{t: t, front: f, ended: make(chan error, 1), told: make(chan struct{}, 1), slots: map[string]state{}}
	p.command = exec.CommandContext(ctx, "node", args...)
	p.command.Dir = folder
	p.command.Stderr = &p.said
	input, err := p.command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.input = input
	output, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		lines := bufio.NewScanner(output)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			p.take(lines.Bytes())
		}
		p.ended <- p.command.Wait()
	}()
	return p
}

func (p *page) take(text []byte) {
	var l line
	err := json.Unmarshal(text, &l)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		l.Problem = fmt.Sprintf("%v: %s", err, text)
	}
	if l.Slots != nil {
		p.slots = map[string]state{}
		for _, slot := range l.Slots {
			p.slots[slot.ID] = slot.state
		}
	} else {
		p.lines = append(p.lines, l)
	}
	select {
	case p.told <- struct{}{}:
	default:
	}
}

// until waits for what the program must show or say. The condition is asked under the lock.
func (p *page) until(what string, done func() bool) {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		ok := done()
		p.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-p.told:
		case <-time.After(20 * time.Millisecond): // what the front has counted
		case <-deadline:
			p.mu.Lock()
			defer p.mu.Unlock()
			p.t.Fatalf("never: %s. It shows %v, said %+v, %d sockets", what, p.slots, p.lines, p.front.count())
		}
	}
}

// shows waits until places are left in the slot.
func (p *page) shows(slot int64, free int, what string) {
	p.t.Helper()
	p.until(what, func() bool {
		got, there := p.slots[strconv.FormatInt(slot, 10)]
		return there && got.Free == free
	})
}

// problems are what the program said that went wrong.
func (p *page) problems() (all []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if l.Problem != "" {
			all = append(all, l.Problem)
		}
	}
	return all
}

// codes are those that its sockets ended with.
func (p *page) codes() (all []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if l.Code != 0 {
			all = append(all, l.Code)
		}
	}
	return all
}

// stop ends the program, which must have nothing that keeps it.
func (p *page) stop() {
	p.t.Helper()
	_ = p.input.Close()
	select {
	case err := <-p.ended:
		if err != nil {
			p.t.Errorf("it ended with %v: %s", err, p.said.String())
		}
	case <-time.After(patience):
		p.t.Error("it does not end")
		_ = p.command.Process.Kill()
		<-p.ended
	}
}
