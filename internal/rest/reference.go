package rest

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"

	"openslot/internal/booking"
)

//go:embed reference.html
var referenceHTML string

// referencePolicy lets the page load nothing at all: it is one file without a script.
const referencePolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// node is an object of the document, its members in order.
type node yaml.MapSlice

// at is the value that the keys lead to, with references followed; nil = none.
func (n node) at(keys ...string) any {
	var value any = yaml.MapSlice(n)
	for _, key := range keys {
		inner, _ := value.(yaml.MapSlice)
		value = nil
		for _, item := range inner {
			if item.Key == key {
				value = item.Value
			}
		}
	}
	return value
}

func (n node) text(keys ...string) string {
	text, _ := n.at(keys...).(string)
	return text
}

// node is the object that the keys lead to.
func (n node) node(keys ...string) node {
	inner, _ := n.at(keys...).(yaml.MapSlice)
	return node(inner)
}

// each calls do for the members that are objects.
func (n node) each(do func(key string, value node)) {
	for _, item := range n {
		value, _ := item.Value.(yaml.MapSlice)
		do(fmt.Sprint(item.Key), node(value))
	}
}

// The page's view of the document.
type (
	operationView struct {
		ID, Method, Path, Summary string
		Description               template.HTML
		Token                     bool // is needed
		Parameters                []fieldView
		Body                      schemaView
		Answers                   []answerView
	}
	fieldView struct {
		Name, Place string
		Required    bool
		Schema      schemaView
		Description template.HTML
	}
	schemaView struct{ Name, Words string } // Name: of a schema with a row of its own
	answerView struct {
		Status      string
		Description template.HTML
		Headers     string
		Schema      schemaView
	}
	typeView struct {
		Name        string
		Description template.HTML
		Words       string
		Members     []fieldView
	}
	codeView struct {
		Code   booking.Code
		Status int
		Title  string
	}
)

// referenceView reads the document for the page.
type referenceView struct {
	root node
}

// reference is the page.
func reference() []byte {
	var root yaml.MapSlice
	if err := yaml.UnmarshalWithOptions(document, &root, yaml.UseOrderedMap()); err != nil {
		panic(err) // it is compiled in
	}
	v := referenceView{node(root)}
	var html bytes.Buffer
	err := template.Must(template.New("reference").Parse(referenceHTML)).Execute(&html, map[string]any{
		"Title": v.root.text("info", "title"), "Summary": v.root.text("info", "summary"),
		"Description": markdown(v.root.text("info", "description")),
		"Operations":  v.operations(), "Types": v.types(), "Codes": codes(),
	})
	if err != nil {
		panic(err) // so is it
	}
	return html.Bytes()
}

func markdown(text string) template.HTML {
	var html bytes.Buffer
	if err := goldmark.New(goldmark.WithExtensions(extension.Table)).Convert([]byte(text), &html); err != nil {
		panic(err) // a buffer
	}
	return template.HTML(html.String()) //nolint:gosec // from our own document
}

// follow is the object that n refers to, or n itself, and the reference's last word.
func (v referenceView) follow(n node) (target node, name string) {
	reference := n.text("$ref")
	if reference == "" {
		return n, ""
	}
	path := strings.Split(strings.TrimPrefix(reference, "#/"), "/")
	return v.root.node(path...), path[len(path)-1]
}

func (v referenceView) operations() (all []operationView) {
	v.root.node("paths").each(func(path string, methods node) {
		methods.each(func(method string, n node) {
			o := operationView{ID: n.text("operationId"), Method: strings.ToUpper(method), Path: path,
				Summary: n.text("summary"), Description: markdown(n.text("description")), Token: n.at("security") == nil}
			list, _ := n.at("parameters").([]any)
			for _, item := range list {
				object, _ := item.(yaml.MapSlice)
				p, _ := v.follow(node(object))
				o.Parameters = append(o.Parameters, fieldView{Name: p.text("name"), Place: p.text("in"), Required: p.at("required") == true,
					Schema: v.schema(p.node("schema")), Description: markdown(p.text("description"))})
			}
			if content := n.node("requestBody", "content", mediaJSON); content != nil {
				o.Body = v.schema(content.node("schema"))
			}
			n.node("responses").each(func(status string, r node) {
				o.Answers = append(o.Answers, v.answer(status, r))
			})
			slices.SortStableFunc(o.Answers, func(a, b answerView) int { return strings.Compare(a.Status, b.Status) })
			all = append(all, o)
		})
	})
	return all
}

func (v referenceView) answer(status string, r node) answerView {
	r, _ = v.follow(r)
	a := answerView{Status: status, Description: markdown(r.text("description"))}
	var headers []string
	r.node("headers").each(func(name string, _ node) { headers = append(headers, name) })
	a.Headers = strings.Join(headers, ", ")
	r.node("content").each(func(media string, content node) {
		a.Schema = v.schema(content.node("schema"))
		if a.Schema.Name == "" {
			a.Schema.Words = media
		}
	})
	return a
}

func (v referenceView) types() (all []typeView) {
	v.root.node("components", "schemas").each(func(name string, n node) {
		t := typeView{Name: name, Description: markdown(n.text("description")), Words: v.schema(n).Words}
		required, _ := n.at("required").([]any)
		n.node("properties").each(func(member string, s node) {
			inner, _ := v.follow(s)
			description := s.text("description")
			if description == "" && s.text("$ref") == "" {
				description = inner.text("description")
			}
			t.Members = append(t.Members, fieldView{Name: member, Required: slices.Contains(required, any(member)),
				Schema: v.schema(s), Description: markdown(description)})
		})
		all = append(all, t)
	})
	return all
}

// schema says in words what a schema takes.
func (v referenceView) schema(n node) schemaView {
	if n == nil {
		return schemaView{}
	}
	target, name := v.follow(n)
	if name != "" {
		return schemaView{Name: name, Words: name}
	}
	words := fmt.Sprint(target.at("type"))
	switch kind := target.at("type").(type) {
	case []any:
		var kinds []string
		for _, k := range kind {
			kinds = append(kinds, fmt.Sprint(k))
		}
		words = strings.Join(kinds, " or ")
	case nil:
		words = ""
		for i, one := range list(target.at("enum")) {
			if i > 0 {
				words += " · "
			}
			words += fmt.Sprint(one)
		}
	case string:
		if kind == "array" {
			inner := v.schema(target.node("items"))
			return schemaView{Name: inner.Name, Words: "list of " + inner.Words}
		}
	}
	for _, key := range []string{"format", "minimum", "maximum", "minLength", "maxLength", "default"} {
		if value := target.at(key); value != nil && !(key == "maximum" && len(fmt.Sprint(value)) > 18) {
			words += fmt.Sprintf(", %s %v", key, value)
		}
	}
	return schemaView{Words: words}
}

func list(value any) []any {
	all, _ := value.([]any)
	return all
}

// codes are all of them, by status.
func codes() (all []codeView) {
	for code, k := range kinds {
		all = append(all, codeView{code, k.status, k.title})
	}
	slices.SortFunc(all, func(a, b codeView) int {
		if a.Status != b.Status {
			return a.Status - b.Status
		}
		return strings.Compare(string(a.Code), string(b.Code))
	})
	return all
}

// StatusText is what HTTP calls the status.
func (c codeView) StatusText() string { return http.StatusText(c.Status) }
