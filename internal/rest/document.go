package rest

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"time"

	"github.com/goccy/go-yaml"
)

//go:embed openapi.yaml
var document []byte

// referencePath is where the reference page is.
const referencePath = "/api/"

// page is a file of ours as it is served.
type page struct {
	body   []byte
	kind   string // media type
	policy string // what a browser lets it do; "" = not for browsers
	tag    string
}

// pages are the contract in its forms: as it is written, as JSON, and to read.
func pages() map[string]operation {
	asJSON, err := yaml.YAMLToJSON(document)
	if err != nil {
		panic(err) // it is compiled in
	}
	found := map[string]operation{}
	for path, p := range map[string]*page{
		"/api/openapi.yaml":   {body: document, kind: "application/yaml; charset=utf-8"},
		"/api/openapi.json":   {body: asJSON, kind: "application/json; charset=utf-8"},
		referencePath + "{$}": {body: reference(), kind: "text/html; charset=utf-8", policy: referencePolicy},
	} {
		sum := sha256.Sum256(p.body)
		p.tag = `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`
		found[path] = func(*Handler, *request) (reply, error) { return reply{page: p}, nil }
	}
	return found
}

func (p *page) write(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", p.kind)
	header.Set("ETag", p.tag)
	header["Cache-Control"] = noCache
	header["X-Content-Type-Options"] = nosniff
	if p.policy != "" {
		header.Set("Content-Security-Policy", p.policy)
		header.Set("Referrer-Policy", "no-referrer")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(p.body))
}
