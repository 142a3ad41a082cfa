package web

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"
)

func get(t *testing.T, h http.Handler, method, path string) (*http.Response, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return w.Result(), w.Body.String()
}

func TestFiles(t *testing.T) {
	t.Parallel()
	h := Handler("/graphql")
	for _, c := range []struct {
		method, path string
		status       int
		kind         string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/", 200, "text/html; charset=utf-8"},
		{"GET", "/assets/graphiql.min.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/assets/graphiql.min.css", 200, "text/css; charset=utf-8"},
		{"GET", "/assets/NOTICES.txt", 200, "text/plain; charset=utf-8"},
		{"GET", "/assets/", 404, "text/plain; charset=utf-8"},
		{"GET", "/assets/../page.html", 404, "text/plain; charset=utf-8"},
		{"GET", "/page.html", 404, "text/plain; charset=utf-8"},
		{"POST", "/", 405, "text/plain; charset=utf-8"},
	} {
		res, body := get(t, h, c.method, c.path)
		if res.StatusCode != c.status || res.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s %s: %d %q, want %d %q", c.method, c.path, res.StatusCode, res.Header.Get("Content-Type"), c.status, c.kind)
		}
		if (c.method == "HEAD") != (body == "") {
			t.Errorf("%s %s: %d bytes", c.method, c.path, len(body))
		}
		if c.status == 200 && res.Header.Get("Content-Security-Policy") == "" {
			t.Errorf("%s %s: no policy", c.method, c.path)
		}
	}
	files, err := load()
	if err != nil {
		t.Fatal(err)
	}
	for f := range maps.Values(files) {
		if f.kind == "" {
			t.Errorf("%s has no media type", f.Path)
		}
	}
}

func TestUnchangedFilesAreNotSentAgain(t *testing.T) {
	t.Parallel()
	h := Handler("/graphql")
	res, _ := get(t, h, "GET", "/assets/graphiql.min.js")
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/assets/graphiql.min.js", nil)
	r.Header.Set("If-None-Match", res.Header.Get("ETag"))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != 304 || w.Body.Len() != 0 {
		t.Errorf("%d with %d bytes, want 304", w.Code, w.Body.Len())
	}
}

// The page loads its own files and nothing else, and they are what the publishers of the packages
// published: these hashes are public.
func TestPageLoadsOnlyItsOwnFiles(t *testing.T) {
	t.Parallel()
	h := Handler("/graphql")
	_, html := get(t, h, "GET", "/")
	if foreign := foreignURLs(html); len(foreign) > 0 {
		t.Errorf("the page names %q", foreign)
	}
	for path, hash := range map[string]string{
		"assets/graphiql.min.js":             "sha256-hnImuor1znlJkD/FOTL3jayfS/xsyNoP04abi8bFJWs=",
		"assets/graphiql.min.css":            "sha256-MEh+B2NdMSpj9kexQNN3QKc8UzMrCXW/Sx/phcpuyIU=",
		"assets/react.production.min.js":     "sha256-S0lp+k7zWUMk2ixteM6HZvu8L9Eh//OVrt+ZfbCpmgY=",
		"assets/react-dom.production.min.js": "sha256-IXWO0ITNDjfnNXIu5POVfqlgYoop36bDzhodR6LW5Pc=",
	} {
		want := `"` + path + `" integrity="` + strings.ReplaceAll(hash, "+", "&#43;") + `"`
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	links := regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(html, -1)
	if len(links) != 1+len(styles)+len(scripts) {
		t.Errorf("%d links: %q", len(links), links)
	}
	for _, link := range links {
		if link[1] == "data:," {
			continue
		}
		if res, _ := get(t, h, "GET", "/"+link[1]); res.StatusCode != 200 {
			t.Errorf("%s: %s", link[1], res.Status)
		}
	}
	for _, name := range []string{"page.js", "page.css"} {
		_, text := get(t, h, "GET", "/assets/"+name)
		if foreign := foreignURLs(text); len(foreign) > 0 {
			t.Errorf("%s names %q", name, foreign)
		}
	}
	if len(foreignURLs(`<script src="//cdn.example/x.js">`)) == 0 {
		t.Error("a foreign script would not be noticed")
	}
}

func foreignURLs(text string) []string {
	return regexp.MustCompile(`(?i)(?:https?:)?//[a-z0-9-]+\.[a-z0-9.-]+`).FindAllString(text, -1)
}

// In a real browser that can reach no other host, the page comes up and asks for the schema. Where no
// browser is installed, the tests above have to do, except in CI, which installs one.
func TestPageInBrowser(t *testing.T) {
	t.Parallel()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("chromium is not installed")
	}
	asked := make(chan string, 10)
	mux := http.NewServeMux()
	mux.Handle("/graphiql/", http.StripPrefix("/graphiql", Handler("/api/graphql")))
	mux.HandleFunc("/api/graphql", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked <- string(body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"errors":[{"message":"not in this test"}]}`)
	})
	server := httptest.NewServer(mux)
	defer server.Close()

	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	dom, err := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu",
		"--disable-background-networking", "--disable-dev-shm-usage", "--user-data-dir="+t.TempDir(),
		"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
		"--virtual-time-budget=10000", "--dump-dom", server.URL+"/graphiql/").Output()
	if err != nil {
		t.Fatalf("%v: %s", err, err.(*exec.ExitError).Stderr)
	}
	for _, part := range []string{"graphiql-container", "Who can be seen?", "Headers"} {
		if !strings.Contains(string(dom), part) {
			t.Errorf("the page shows no %q", part)
		}
	}
	select {
	case body := <-asked:
		var request struct{ OperationName string }
		if err := json.Unmarshal([]byte(body), &request); err != nil || request.OperationName != "IntrospectionQuery" {
			t.Errorf("asked %.100s", body)
		}
	default:
		t.Error("the page asked for no schema")
	}
}
