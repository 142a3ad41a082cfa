// Package web is the page for people: GraphiQL, the browser's editor for GraphQL, with everything
// it needs inside the binary, so that it works without any other network.
//
// Its handler only reads what was prepared when it was made; it may serve any number of requests
// at once.
package web

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"path"
	"time"
)

//go:embed assets
var assets embed.FS

//go:embed page.html
var page string

// The order matters: each script uses those before it.
var (
	styles  = []string{"graphiql.min.css", "page.css"}
	scripts = []string{"react.production.min.js", "react-dom.production.min.js", "graphiql.min.js", "page.js"}
)

// policy lets the page load nothing but its own files and talk to nobody but its own host.
// GraphiQL's editor sets styles on elements and its style sheet holds its fonts as data.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self' data:; " +
	"img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// file is a file as it is served.
type file struct {
	Path  string // below the page
	Hash  string // for integrity="…"
	bytes []byte
	kind  string // media type
}

// Handler serves the page at "/" and its files at "/assets/"; mount it with http.StripPrefix, the
// page's own address ending in "/". endpoint is where the page sends its queries: a path such
// as "/graphql" on the same host.
func Handler(endpoint string) http.Handler {
	files, err := load()
	if err != nil {
		panic(err) // they are compiled in
	}
	pick := func(names []string) (picked []file) {
		for _, name := range names {
			picked = append(picked, files["/assets/"+name])
		}
		return picked
	}
	var html bytes.Buffer
	err = template.Must(template.New("page").Parse(page)).Execute(&html, map[string]any{
		"Endpoint": endpoint, "Styles": pick(styles), "Scripts": pick(scripts),
	})
	if err != nil {
		panic(err)
	}
	files["/"] = newFile(html.Bytes(), "text/html; charset=utf-8")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { serve(w, r, files) })
}

func serve(w http.ResponseWriter, r *http.Request, files map[string]file) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "Only GET and HEAD are answered here.", http.StatusMethodNotAllowed)
		return
	}
	f, ok := files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // ask each time: a new version changes the files, not their names
	h.Set("ETag", `"`+f.Hash+`"`)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.bytes))
}

func load() (map[string]file, error) {
	entries, err := assets.ReadDir("assets")
	if err != nil {
		return nil, err
	}
	files := map[string]file{}
	for _, e := range entries {
		data, err := assets.ReadFile("assets/" + e.Name())
		if err != nil {
			return nil, err
		}
		f := newFile(data, kinds[path.Ext(e.Name())])
		f.Path = "assets/" + e.Name()
		files["/"+f.Path] = f
	}
	return files, nil
}

func newFile(data []byte, kind string) file {
	sum := sha256.Sum256(data)
	return file{bytes: data, kind: kind, Hash: "sha256-" + base64.StdEncoding.EncodeToString(sum[:])}
}

// kinds are the media types. The system's own table is not asked: it varies.
var kinds = map[string]string{
	".js":  "text/javascript; charset=utf-8",
	".css": "text/css; charset=utf-8",
	".txt": "text/plain; charset=utf-8",
}
