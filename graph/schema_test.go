package graph

import (
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
)

// Whoever reads the contract finds a description at everything in it.
func TestDescriptions(t *testing.T) {
	t.Parallel()
	schema := NewExecutableSchema(Config{}).Schema()
	missing := undescribed(schema)
	if len(missing) > 0 {
		t.Errorf("without description: %s", strings.Join(missing, ", "))
	}
	bare := gqlparser.MustLoadSchema(&ast.Source{Input: `type Query { a: B } "Described." enum B { C }`})
	if missing := undescribed(bare); len(missing) != 2 {
		t.Errorf("noticed %v, want Query.a and B.C", missing)
	}
}

func undescribed(schema *ast.Schema) (missing []string) {
	for name, def := range schema.Types {
		if def.BuiltIn || strings.HasPrefix(name, "__") {
			continue
		}
		root := name == "Query" || name == "Mutation" || name == "Subscription"
		if def.Description == "" && !root {
			missing = append(missing, name)
		}
		for _, field := range def.Fields {
			if field.Description == "" && !strings.HasPrefix(field.Name, "__") {
				missing = append(missing, name+"."+field.Name)
			}
		}
		for _, value := range def.EnumValues {
			if value.Description == "" {
				missing = append(missing, name+"."+value.Name)
			}
		}
	}
	return missing
}
