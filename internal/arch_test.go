// Package internal_test holds the structure of the tree: which package may import which, and
// which package owns which library. The files are read as they lie there, so that no cached
// list of packages can hide a violation.
package internal_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "openslot"

// allowed says what a package may import of ours; a package that is not listed fails. Imports
// point down: cmd, app, transports, parts, core. "*" is anything.
var allowed = map[string][]string{
	"cmd/openslot": {"internal/app"},
	"cmd/dev":      {"internal/app", "internal/devenv"},
	"cmd/loadgen":  {"internal/devenv"}, // a client, and a provider of its own tokens

	"internal/app": {"graph", "internal/auth", "internal/availability", "internal/booking", "internal/http1", "internal/live",
		"internal/postgres", "internal/rest", "internal/schedule", "internal/web"},

	"graph":         {"internal/auth", "internal/availability", "internal/booking", "internal/live", "internal/schedule"},
	"internal/rest": {"internal/auth", "internal/availability", "internal/booking", "internal/live", "internal/schedule"},

	"internal/auth":         {"internal/booking"},
	"internal/availability": {"internal/booking"},
	"internal/live":         {"internal/booking"},
	"internal/schedule":     {"internal/booking"},

	"internal/booking": nil,
	"internal/http1":   nil,
	"internal/web":     nil,

	"internal/devenv":      {"internal/postgres", "migrations"}, // migrations: they name the test template
	"internal/devenv/with": {"internal/devenv"},
	"internal/postgres":    {"migrations"},
	"migrations":           nil,

	"internal":     nil, // this test
	"internal/e2e": {"*"},
}

// owners says which packages may import a library, by the beginning of its path. What is not
// listed, the standard library and small helpers, is free for all.
var owners = map[string][]string{
	"github.com/golang-migrate/migrate": {"internal/postgres"},
	"github.com/fergusstrange":          {"internal/devenv"},
	"github.com/redis/go-redis":         {"internal/availability", "internal/devenv"},
	"github.com/alicebob/miniredis":     {"internal/devenv"},
	"github.com/alecthomas/kong":        {"internal/app", "cmd/openslot", "cmd/dev", "cmd/loadgen"},
	"github.com/schollz/progressbar":    {"internal/app", "cmd/dev", "cmd/loadgen"},
	"github.com/golang-jwt":             {"internal/auth", "cmd/loadgen"},
	"github.com/MicahParks":             {"internal/auth"},
	"github.com/99designs/gqlgen":       {"graph"},
	"github.com/vektah/gqlparser":       {"graph"},
	"github.com/gorilla/websocket":      {"graph", "cmd/loadgen"}, // there, to be measured against
	"github.com/goccy/go-yaml":          {"internal/rest"},
	"github.com/yuin/goldmark":          {"internal/rest"},
	"github.com/pb33f":                  {},
	"github.com/compose-spec":           {},
	"github.com/google/go-cmp":          {},
	"go.uber.org/goleak":                {},
	"pgregory.net/rapid":                {},
}

// testLibraries are owned by nobody else, but any test may use them.
var testLibraries = []string{
	"github.com/compose-spec", "github.com/google/go-cmp", "github.com/pb33f", "go.uber.org/goleak", "pgregory.net/rapid",
	"github.com/gorilla/websocket", // a client for whoever tests through the real app
	"github.com/golang-jwt",        // tokens with faults
}

func TestTree(t *testing.T) {
	for _, v := range violations(os.DirFS("..")) {
		t.Error(v)
	}
}

// TestTreeFaults feeds the check trees with one fault each: a check that finds nothing in them
// would find nothing in ours.
func TestTreeFaults(t *testing.T) {
	const clean = "// Package p does something.\npackage p\n"
	tests := []struct {
		name, file, text string
		want             string // part of the violation; "" = none
	}{
		{"Clean", "internal/live/a.go", clean + `import "openslot/internal/booking"`, ""},
		{"Upwards", "internal/booking/a.go", clean + `import "openslot/internal/live"`, "internal/booking may not import internal/live"},
		{"Sideways", "internal/live/a.go", clean + `import _ "openslot/internal/auth"`, "internal/live may not import internal/auth"},
		{"Unlisted", "internal/util/a.go", clean, "internal/util is not in the table"},
		{"UnlistedDeep", "internal/live/inner/a.go", clean, "internal/live/inner is not in the table"},
		{"DevenvInProduct", "internal/app/a.go", clean + `import "openslot/internal/devenv"`, "may not import internal/devenv"},
		{"DevenvInTest", "internal/live/a_test.go", clean + `import "openslot/internal/devenv"`, ""},
		{"UpwardsInTest", "internal/live/a_test.go", clean + `import "openslot/internal/app"`, "internal/live may not import internal/app"},
		{"OwnPackageInTest", "internal/live/a_test.go", clean + `import "openslot/internal/live"`, ""},
		{"EndToEnd", "internal/e2e/a_test.go", clean + `import "openslot/internal/app"`, ""},
		{"ForeignLibrary", "internal/live/a.go", clean + `import "github.com/gorilla/websocket"`, "github.com/gorilla/websocket belongs to graph"},
		{"TestLibrary", "internal/live/a.go", clean + `import "go.uber.org/goleak"`, "go.uber.org/goleak belongs to tests"},
		{"LibraryInTest", "internal/live/a_test.go", clean + `import "go.uber.org/goleak"`, ""},
		{"NoComment", "internal/live/a.go", "package p\n", "internal/live has no package comment"},
		{"BuildTag", "internal/live/a.go", "//go:build windows\n\n" + clean + `import "openslot/internal/app"`, "may not import internal/app"},
		{"Unparsable", "internal/live/a.go", "package", "internal/live/a.go"},
		{"TestData", "internal/live/testdata/a.go", "package", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := violations(fstest.MapFS{tt.file: {Data: []byte(tt.text)}})
			switch {
			case tt.want == "" && len(got) > 0:
				t.Errorf("violations of a clean tree: %q", got)
			case tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)):
				t.Errorf("violations = %q, want one with %q", got, tt.want)
			}
		})
	}
}

// violations returns what in the tree breaks a rule, sorted.
func violations(tree fs.FS) []string {
	found := map[string]bool{}
	commented := map[string]bool{} // package → has a comment
	files := token.NewFileSet()

	err := fs.WalkDir(tree, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if base := entry.Name(); name != "." && (base[0] == '.' || base[0] == '_' || base == "testdata" || base == "node_modules") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := fs.ReadFile(tree, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(files, name, text, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			found[err.Error()] = true
			return nil
		}
		pkg := path.Dir(name)
		commented[pkg] = commented[pkg] || file.Doc != nil
		for _, v := range importViolations(pkg, strings.HasSuffix(name, "_test.go"), file.Imports) {
			found[v] = true
		}
		return nil
	})
	if err != nil {
		found[err.Error()] = true
	}
	for pkg, ok := range commented {
		if _, listed := allowed[pkg]; !listed {
			found[pkg+" is not in the table: say what it may import"] = true
		}
		if !ok {
			found[pkg+" has no package comment"] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// importViolations holds one file's imports against the tables.
func importViolations(pkg string, test bool, imports []*ast.ImportSpec) []string {
	may := allowed[pkg]
	if slices.Contains(may, "*") {
		return nil
	}
	var found []string
	for _, spec := range imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			found = append(found, err.Error())
			continue
		}
		if ours, ok := strings.CutPrefix(target, module+"/"); ok {
			if !slices.Contains(may, ours) && !(test && (ours == pkg || ours == "internal/devenv")) {
				found = append(found, fmt.Sprintf("%s may not import %s", pkg, ours))
			}
			continue
		}
		for library, by := range owners {
			if !within(target, library) || slices.Contains(by, pkg) || test && slices.Contains(testLibraries, library) {
				continue
			}
			if len(by) == 0 {
				by = []string{"tests"}
			}
			found = append(found, fmt.Sprintf("%s may not import %s: %s belongs to %s", pkg, target, library, strings.Join(by, ", ")))
		}
	}
	return found
}

// within says whether target is the path or below it.
func within(target, prefix string) bool {
	return target == prefix || strings.HasPrefix(target, prefix+"/")
}
