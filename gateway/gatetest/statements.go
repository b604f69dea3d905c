package gatetest

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres/schema"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// Statements checks the SQL statements in the Go files of the current folder, which use the tables of these extensions.
// It finds them by their first word. Their texts must be constant, except in the offline files. They must not use
// anything that has another meaning in PostgreSQL. If the stores of tests are in PostgreSQL, it must accept each of
// them. So this also covers statements that no test runs.
func Statements(t testing.TB, extensions ...relay.Extension) {
	t.Helper()
	texts, err := statementsIn(".")
	if err != nil {
		t.Error(err)
	}
	if len(texts) == 0 {
		t.Error("found no statements")
	}
	textColumns := columnsOfType("TEXT", extensions)
	for _, text := range texts {
		if err := checkText(text, textColumns); err != nil {
			t.Errorf("%v\n\t%s", err, text)
		}
	}
	if engine.Postgres() {
		prepareAll(t, texts, extensions)
	}
}

// prepareAll checks that PostgreSQL accepts each statement, and takes and gives only types that both databases have.
func prepareAll(t testing.TB, texts []string, extensions []relay.Extension) {
	t.Helper()
	dsn, err := engine.Schema(t.Context(), "statements of "+extensions[len(extensions)-1].Name)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }() // the test has its answers
	if err := schema.Current.Migrate(t.Context(), conn, extensions, 1); err != nil {
		t.Fatal(err)
	}
	for _, text := range texts {
		if err := prepare(t.Context(), conn, text); err != nil {
			t.Errorf("%v\n\t%s", err, text)
		}
	}
}

// prepare returns an error unless PostgreSQL accepts a statement. An integer must have 64 bits, or a large one fails.
func prepare(ctx context.Context, conn *pgx.Conn, text string) error {
	d, err := conn.Prepare(ctx, "", schema.Numbered(text))
	if err != nil {
		return fmt.Errorf("PostgreSQL refuses the statement: %w", err)
	}
	for i, oid := range d.ParamOIDs {
		if !slices.Contains([]uint32{pgtype.Int8OID, pgtype.TextOID, pgtype.ByteaOID}, oid) {
			return fmt.Errorf("PostgreSQL takes the type of parameter %d for %s; use CAST(? AS BIGINT)", i+1, typeOf(conn, oid))
		}
	}
	for _, c := range d.Fields {
		if !slices.Contains([]uint32{pgtype.Int8OID, pgtype.Int4OID, pgtype.TextOID, pgtype.ByteaOID, pgtype.BoolOID}, c.DataTypeOID) {
			return fmt.Errorf("the column %s of the result has the type %s in PostgreSQL; use CAST(… AS BIGINT)", c.Name,
				typeOf(conn, c.DataTypeOID))
		}
	}
	return nil
}

func typeOf(conn *pgx.Conn, oid uint32) string {
	if found, ok := conn.TypeMap().TypeForOID(oid); ok {
		return found.Name
	}
	return fmt.Sprint("with the number ", oid)
}

// offline are the names of the files whose statements run only in commands of the operator, while no client waits. They may
// read any number of rows, and they may make a statement from the description of a table.
var offline = []string{"check.go", "fold.go"}

var beginsStatement = regexp.MustCompile(`^\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|VALUES)\s`)

// statementsIn returns the texts of the statements in the Go files of a folder, without test files. A text that ends
// with a space or an opening parenthesis is only the beginning of a statement. It leaves out the files with these names.
func statementsIn(folder string, without ...string) (texts []string, err error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	fset := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	constants := constantsIn(files)
	var errs []error
	for _, file := range files {
		base := filepath.Base(fset.Position(file.Pos()).Filename)
		if slices.Contains(without, base) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			x, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, constant := textOf(x, constants)
			if !beginsStatement.MatchString(text) {
				return true
			}
			switch {
			case !constant && slices.Contains(offline, base):
			case !constant:
				errs = append(errs, fmt.Errorf("%s: the text of a statement must be constant", fset.Position(x.Pos())))
			case !strings.HasSuffix(text, " ") && !strings.HasSuffix(text, "("):
				texts = append(texts, text)
			}
			return false
		})
	}
	slices.Sort(texts)
	return slices.Compact(texts), errors.Join(errs...)
}

// constantsIn returns the expressions of all constants by their names.
func constantsIn(files []*ast.File) map[string]ast.Expr {
	all := map[string]ast.Expr{}
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			if decl, ok := n.(*ast.GenDecl); ok && decl.Tok == token.CONST {
				for _, spec := range decl.Specs {
					s := spec.(*ast.ValueSpec)
					for i, value := range s.Values {
						all[s.Names[i].Name] = value
					}
				}
			}
			return true
		})
	}
	return all
}

// textOf returns the text of an expression that is made of strings, + and the names of constants. If only its beginning
// is constant, textOf returns that.
func textOf(x ast.Expr, constants map[string]ast.Expr) (text string, constant bool) {
	switch x := x.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(x.Value)
		return text, err == nil
	case *ast.ParenExpr:
		return textOf(x.X, constants)
	case *ast.BinaryExpr:
		left, constant := textOf(x.X, constants)
		if x.Op != token.ADD || !constant {
			return left, false
		}
		right, constant := textOf(x.Y, constants)
		return left + right, constant
	case *ast.Ident:
		if value, ok := constants[x.Name]; ok {
			return textOf(value, constants)
		}
	}
	return "", false
}

// columnsOfType returns the names of columns that have this type in every table.
func columnsOfType(want string, extensions []relay.Extension) []string {
	declared := regexp.MustCompile(`(?m)(?:^|[(,])\s*(\w+)\s+(BIGINT|TEXT|BYTEA)\b`)
	matches := map[string]bool{}
	for _, x := range extensions {
		for _, m := range declared.FindAllStringSubmatch(strings.Join(x.Migrations, "\n"), -1) {
			other, known := matches[m[1]]
			matches[m[1]] = m[2] == want && (other || !known)
		}
	}
	maps.DeleteFunc(matches, func(_ string, always bool) bool { return !always })
	return slices.Collect(maps.Keys(matches))
}

// forbidden has what both databases accept, but understand in different ways.
var forbidden = map[string]*regexp.Regexp{
	"a parameter has a number; write ? and pass the argument as often as it occurs": regexp.MustCompile(`\?\d`),
	"SQLite's LIKE ignores case; compare in Go":                                     regexp.MustCompile(`(?i)\bLIKE\b`),
	"SQLite changes the case of ASCII only; do it in Go":                            regexp.MustCompile(`(?i)\b(lower|upper)\(`),
	"PostgreSQL's INTEGER has 32 bits; use BIGINT, which has 64 bits":               regexp.MustCompile(`(?i)\bAS INT(EGER)?\b`),
}

// comparing finds the columns whose order matters to a statement.
var comparing = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\bORDER BY ([\w., ]+)`),
	regexp.MustCompile(`(?i)\b(?:min|max)\(([\w.]+)\)`),
	regexp.MustCompile(`(?i)([\w.]+) (?:<=?|>=?|BETWEEN) `),
}

// checkText checks a statement for what PostgreSQL accepts but understands in another way.
func checkText(text string, textColumns []string) error {
	for why, found := range forbidden {
		if found.MatchString(text) {
			return errors.New(why)
		}
	}
	for _, found := range comparing {
		for _, m := range found.FindAllStringSubmatch(text, -1) {
			for _, word := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ' ' || r == ',' || r == '.' }) {
				if slices.Contains(textColumns, word) {
					return fmt.Errorf("the order of texts such as %s depends on the database; compare and sort texts in Go", word)
				}
			}
		}
	}
	return nil
}
