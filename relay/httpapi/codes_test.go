package httpapi_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/httpapi"
)

var update = flag.Bool("update", false, "write the table of codes into docs/PROTOCOL.md")

// meanings returns the comment of each code in package envelope.
func meanings(t *testing.T) map[envelope.Code]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../envelope/code.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := map[envelope.Code]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); !ok || name.Name != "Code" {
			return true
		}
		text, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		found[envelope.Code(text)] = strings.TrimSpace(strings.ReplaceAll(spec.Doc.Text(), "\n", " "))
		return true
	})
	return found
}

// TestCodeTable checks that the table of codes in docs/PROTOCOL.md is the one that the code makes. With -update it
// writes the table.
func TestCodeTable(t *testing.T) {
	const begin, end = "<!-- codes: written by go test ./relay/httpapi -run CodeTable -update -->\n", "<!-- /codes -->\n"
	const path = "../../docs/PROTOCOL.md"
	var table strings.Builder
	table.WriteString("| code | status | retryable | when |\n|---|---|---|---|\n")
	comments := meanings(t)
	for _, code := range envelope.Codes() {
		if comments[code] == "" {
			t.Errorf("%s has no comment", code)
		}
		retryable := "no"
		if code.Retryable() {
			retryable = "yes"
		}
		fmt.Fprintf(&table, "| `%s` | %d | %s | %s |\n", code, httpapi.Status(code), retryable, comments[code])
	}
	if len(comments) != len(envelope.Codes()) {
		t.Errorf("%d codes have comments, want %d", len(comments), len(envelope.Codes()))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	have, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s does not have the lines %q and %q, between which the table is written", path, begin, end)
	}
	if have == table.String() {
		return
	}
	if !*update {
		t.Fatalf("the table in %s is out of date; run go test ./relay/httpapi -run CodeTable -update. It must be:\n%s",
			path, table.String())
	}
	if err := os.WriteFile(path, []byte(before+begin+table.String()+end+after), 0o644); err != nil {
		t.Fatal(err)
	}
}
