package agora

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/internal/promised"
)

// TestFixtureNames checks that the packages for agents have each exported name that earlier versions had.
func TestFixtureNames(t *testing.T) {
	var now []string
	for _, dir := range []string{"client", "didkey", "envelope", "thread"} {
		now = append(now, exportedNames(t, dir)...)
	}
	promised.Keep(t, ".", "go", now, nil)
}

// exportedNames returns the exported functions, types, methods, constants and variables of a package, such as
// "client.Client.Post".
func exportedNames(t *testing.T, dir string) (names []string) {
	t.Helper()
	for _, name := range goFiles(t, dir) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			for _, declared := range declaredNames(d) {
				hidden := func(part string) bool { return !token.IsExported(part) }
				if !slices.ContainsFunc(strings.Split(declared, "."), hidden) {
					names = append(names, dir+"."+declared)
				}
			}
		}
	}
	return names
}

// declaredNames returns the names that a declaration declares. A method has the name of its type in front.
func declaredNames(d ast.Decl) (names []string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			receiver := regexp.MustCompile(`^\*?(\w+)`).FindStringSubmatch(types.ExprString(d.Recv.List[0].Type))
			name = receiver[1] + "." + name
		}
		return []string{name}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names = append(names, s.Name.Name)
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names = append(names, n.Name)
				}
			}
		}
	}
	return names
}

// TestPromisesAreShown checks that each promise in docs/STABILITY.md names tests that exist.
func TestPromisesAreShown(t *testing.T) {
	tests, promises := testNames(t), 0
	for line := range strings.Lines(read(t, "docs/STABILITY.md")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 || strings.Contains(line, "held by") || strings.Trim(line, "|- \n") == "" {
			continue
		}
		promises++
		shown := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[3], -1)
		if len(shown) == 0 {
			t.Errorf("no test holds the promise%s", cells[1])
		}
		for _, m := range shown {
			switch name := m[1]; {
			case strings.Contains(name, "/"):
				if read(t, name) == "" {
					t.Errorf("%s is empty", name)
				}
			case !slices.Contains(tests, name):
				t.Errorf("the promise%sis held by %s, which does not exist", cells[1], name)
			}
		}
	}
	if promises < 8 {
		t.Errorf("found only %d promises", promises)
	}
}
