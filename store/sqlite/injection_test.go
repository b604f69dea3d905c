package sqlite

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/schema"
	"github.com/agora-relay/agora/thread"
)

var sqlWord = regexp.MustCompile(`\b(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|ATTACH|VACUUM|` +
	`PRAGMA|FROM|WHERE|AND|OR|IN|ORDER|LIMIT|VALUES|UNION|EXISTS)\b`)

// pieces are the expressions that may be part of a statement, besides constants and numbers. None of them holds outside
// data: columns and conditions are written as constants where they are passed. TestStatementsHoldNoValues verifies
// that.
var pieces = map[string]bool{
	"condition": true, "where": true, "body": true, "table": true, "audience": true, "numbers": true, "s.from": true,
	"recipient": true, "strings.Join(s.where, \" AND \")": true, "s.seq()": true, "s.from()": true,
	"cmp.Or(s.index, \"event\")": true, "s.index": true, "index": true, "schema.Merged": true,
	"strings.Join(s.where[:s.indexed], \" AND \")": true,
	"strings.Join(texts, unionAll)":                true, "strings.Join(texts, \" UNION ALL \")": true, "text": true,
	"string(text)": true, "order": true, "first": true, "column": true, "columns": true, "marks": true,
}

// TestStatementsAreConstant parses the package's source. Every string that contains SQL must be a constant, or be put
// together from constants, numbers and pieces. fmt must not be used for it.
func TestStatementsAreConstant(t *testing.T) {
	files, err := filepath.Glob("*.go")
	must(t, err)
	set := token.NewFileSet()
	var parsed []*ast.File
	constants := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		must(t, err)
		parsed = append(parsed, file)
		for _, d := range file.Decls {
			if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
				for _, spec := range g.Specs {
					for _, id := range spec.(*ast.ValueSpec).Names {
						constants[id.Name] = true
					}
				}
			}
		}
	}
	looked := 0
	check := func(sum ast.Expr) {
		looked++
		for _, leaf := range leaves(sum) {
			if text := types.ExprString(leaf); !isConstant(leaf, constants) && !pieces[text] {
				t.Errorf("%s: a statement is put together from %s", set.Position(leaf.Pos()), text)
			}
		}
	}
	for _, file := range parsed {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if n.Op == token.ADD && mentionsSQL(n) {
					check(n)
					return false
				}
			case *ast.AssignStmt:
				if n.Tok == token.ADD_ASSIGN && mentionsSQL(n.Rhs[0]) {
					check(n.Rhs[0])
					return false
				}
			case *ast.CallExpr:
				called := types.ExprString(n.Fun)
				if strings.HasPrefix(called, "fmt.") && called != "fmt.Errorf" && len(n.Args) > 0 &&
					mentionsSQL(n.Args[0]) {
					t.Errorf("%s: a statement is made by %s", set.Position(n.Pos()), called)
				}
			}
			return true
		})
	}
	if looked < 5 {
		t.Errorf("only %d statements were found; does this test still look in the right files?", looked)
	}
}

func mentionsSQL(e ast.Expr) bool {
	for _, leaf := range leaves(e) {
		if lit, ok := leaf.(*ast.BasicLit); ok && lit.Kind == token.STRING && sqlWord.MatchString(lit.Value) {
			return true
		}
	}
	return false
}

// leaves returns the operands of a sum.
func leaves(e ast.Expr) []ast.Expr {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return append(leaves(e.X), leaves(e.Y)...)
	case *ast.ParenExpr:
		return leaves(e.X)
	}
	return []ast.Expr{e}
}

func isConstant(e ast.Expr, constants map[string]bool) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return true
	case *ast.Ident:
		return constants[e.Name]
	case *ast.CallExpr:
		called := types.ExprString(e.Fun)
		return called == "strconv.Itoa" || called == "strconv.FormatInt"
	}
	return false
}

// TestStatementsHoldNoValues makes queries with every combination of fields, and repeats them with other values. The
// prepared statements must be the same, and none may contain a value.
func TestStatementsHoldNoValues(t *testing.T) {
	s := openNew(t)
	last := 0
	for round, mark := range []string{"XMARKX' OR 1=1 --", "YMARKY\x00\")); DROP TABLE event; --"} {
		did, when := didkey.DID(mark), time.Unix(1234567890+int64(round), 987654321)
		for mask := range 1 << 10 {
			q := relay.Query{Now: when, Limit: 10, Expired: mask&256 != 0, Headers: mask&128 != 0, Backward: mask&512 != 0,
				MaxBytes: 7654321}
			for bit, set := range []func(){
				func() { q.Recipient = did }, func() { q.Broadcast = true }, func() { q.Sender = did },
				func() { q.Type = envelope.Type(mark) },
				func() { q.Thread = mark }, func() { q.Client = did }, func() { q.TS = when; q.NewerThan = when },
			} {
				if mask&(1<<bit) != 0 {
					set()
				}
			}
			if _, err := s.Read(t.Context(), q); err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
		}
		for mask := range 1 << 4 {
			q := relay.AgentQuery{Now: when, Limit: 10, After: int64(round), OfflineOnly: mask&8 != 0}
			for bit, set := range []func(){func() { q.DID = did }, func() { q.Intent, q.Text = mark, mark },
				func() { q.OnlineSince = when }} {
				if mask&(1<<bit) != 0 {
					set()
				}
			}
			if _, err := s.Agents(t.Context(), q); err != nil {
				t.Fatalf("%+v: %v", q, err)
			}
		}
		if _, err := s.Thread(t.Context(), thread.Key{ID: mark, Client: did}, when); !isCode(err,
			envelope.CodeThreadNotFound) {
			t.Error(err)
		}
		if round == 1 && len(s.prepared) != last {
			t.Errorf("%d statements became %d after queries with other values", last, len(s.prepared))
		}
		last = len(s.prepared)
	}
	for text := range s.prepared {
		if regexp.MustCompile(`MARK|12345678|7654321|'`).MatchString(strings.NewReplacer("''", "", schema.Merged, "").Replace(text)) {
			t.Errorf("the statement %s contains a value", text)
		}
	}
	if last < 20 {
		t.Errorf("only %d statements were made", last)
	}
}
