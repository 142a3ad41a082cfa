package app

import (
	"os"
	"regexp"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"
)

// TestReadmeSettings: the README's table names every setting of the API, with its default, and no
// other.
func TestReadmeSettings(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([A-Z_]+)` \\| (?:`([^`]*)`)? ?\\|").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = row[2]
	}
	parser, err := kong.New(&Config{})
	if err != nil {
		t.Fatal(err)
	}
	real := map[string]string{}
	for _, flag := range parser.Model.Flags {
		for _, env := range flag.Envs {
			real[env] = flag.Default
		}
	}
	if diff := cmp.Diff(real, documented); diff != "" {
		t.Errorf("settings (-program +README):\n%s", diff)
	}
}

// TestReadmeCodes: the README explains every code that a client can meet.
func TestReadmeCodes(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../booking/error.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := regexp.MustCompile(`Code = "([A-Z_]+)"`).FindAllStringSubmatch(string(source), -1)
	if len(codes) < 20 {
		t.Fatalf("found only %d codes", len(codes))
	}
	for _, code := range codes {
		if !regexp.MustCompile(`(?m)^\|.*\b` + code[1] + `\b.*\|`).Match(readme) {
			t.Errorf("the README does not explain %s", code[1])
		}
	}
}
