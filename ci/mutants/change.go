package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strings"
)

// part is a kind of pieces.
type part string

const (
	conditions  part = "a condition"
	operands    part = "an operand of && or ||"
	statements  part = "a statement"
	expressions part = "an expression"
	values      part = "a value"
	tokens      part = "these tokens"
	sqlTokens   part = "these tokens of SQL"
)

// change says which piece a fault edits, and how.
type change struct {
	part part
	text string // what replaces the piece; $ stands for its present text
	old  string // the tokens to replace, for tokens and sqlTokens
}

// The present text stays in the code if possible, so that no variable and no import becomes unused.
var (
	never   = when("false && ($)")
	always  = when("true || ($)")
	without = change{part: operands}                             // the other operand of && or || decides alone
	drop    = change{part: statements, text: "if false {\n$\n}"} // the statement is not run
)

// when replaces the condition of an if, a for or a case. A $ in it stands for the present one.
func when(condition string) change { return change{part: conditions, text: condition} }

// with replaces an expression. A $ in it stands for the present one.
func with(expression string) change { return change{part: expressions, text: expression} }

// set replaces the value that a declaration, an assignment or a composite literal gives to the first of the names.
func set(value string) change { return change{part: values, text: value} }

// before inserts a statement before the one that mentions the names.
func before(statement string) change { return change{part: statements, text: statement + "\n$"} }

// after inserts a statement after the one that mentions the names.
func after(statement string) change { return change{part: statements, text: "$\n" + statement} }

// swap replaces tokens by others. White space and comments between the tokens do not matter.
func swap(old, new string) change { return change{part: tokens, old: old, text: new} }

// swapSQL replaces tokens within a string literal or an SQL file.
func swapSQL(old, new string) change { return change{part: sqlTokens, old: old, text: new} }

// pieces returns the pieces that c can edit and that belong directly to n.
func (s scope) pieces(c change, n ast.Node, names []string) (all []piece) {
	add := func(replaced ast.Node, in extent, text string) {
		all = append(all, piece{s.extent(replaced), in, text})
	}
	switch c.part {
	case conditions:
		switch n := n.(type) {
		case *ast.IfStmt:
			add(n.Cond, extent{s.extent(n).lo, s.extent(n.Cond).hi}, "")
		case *ast.ForStmt:
			if n.Cond != nil {
				add(n.Cond, s.extent(n.Cond), "")
			}
		case *ast.CaseClause:
			for _, e := range n.List {
				add(e, s.extent(e), "")
			}
		}
	case operands:
		neutral := map[token.Token]string{token.LAND: "(true || ($))", token.LOR: "(false && ($))"}
		if n, ok := n.(*ast.BinaryExpr); ok && neutral[n.Op] != "" {
			add(n.X, s.extent(n.X), neutral[n.Op])
			add(n.Y, s.extent(n.Y), neutral[n.Op])
		}
	case statements:
		var list []ast.Stmt
		switch n := n.(type) {
		case *ast.BlockStmt:
			list = n.List
		case *ast.CaseClause:
			list = n.Body
		case *ast.CommClause:
			list = n.Body
		}
		for _, stmt := range list {
			add(stmt, s.extent(stmt), "")
		}
	case expressions:
		switch n.(type) {
		case *ast.FuncType, *ast.KeyValueExpr:
		case ast.Expr:
			add(n, s.extent(n), "")
		}
	case values:
		for name, value := range valuesOf(n) {
			if isNamed(name, append(names, s.name)[0]) {
				add(value, s.extent(n), "")
			}
		}
	case tokens:
		all = s.occurrences(c.old, s.extent(n), s.extent(n))
	case sqlTokens:
		walk(n, func(l ast.Node) {
			if l, ok := l.(*ast.BasicLit); ok && l.Kind == token.STRING {
				all = append(all, s.occurrences(c.old, extent{s.extent(l).lo + 1, s.extent(l).hi - 1}, s.extent(n))...)
			}
		})
	}
	return all
}

// valuesOf returns the values that n gives to names.
func valuesOf(n ast.Node) map[string]ast.Expr {
	all := map[string]ast.Expr{}
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		all[nameOf(n.Key)] = n.Value
	case *ast.ValueSpec:
		for i, v := range n.Values {
			all[n.Names[i].Name] = v
		}
	case *ast.AssignStmt:
		for i, v := range n.Rhs {
			if len(n.Lhs) == len(n.Rhs) {
				all[nameOf(n.Lhs[i])] = v
			}
		}
	}
	return all
}

// lexeme matches a token of Go or SQL, a comment, or a piece of white space.
var lexeme = regexp.MustCompile("(?s)//[^\n]*|/\\*.*?\\*/|\"(?:\\\\.|[^\"\\\\])*\"|`[^`]*`|'(?:\\\\.|[^'\\\\])*'|" +
	`\w+|[-+*/%&|^<>=!:]+|\s+|.`)

// occurrences returns the pieces in the extent where that hold the same tokens as old.
func (s scope) occurrences(old string, where, in extent) (all []piece) {
	isToken := func(text string) bool {
		return strings.TrimSpace(text) != "" && !strings.HasPrefix(text, "//") && !strings.HasPrefix(text, "/*")
	}
	wanted := slices.DeleteFunc(lexeme.FindAllString(old, -1), func(text string) bool { return !isToken(text) })
	var found []extent
	for _, at := range lexeme.FindAllStringIndex(s.text[where.lo:where.hi], -1) {
		if e := (extent{where.lo + at[0], where.lo + at[1]}); isToken(s.text[e.lo:e.hi]) {
			found = append(found, e)
		}
	}
	for ; len(found) >= len(wanted); found = found[1:] {
		some := found[:len(wanted)]
		if slices.EqualFunc(some, wanted, func(e extent, text string) bool { return s.text[e.lo:e.hi] == text }) {
			all = append(all, piece{extent{some[0].lo, some[len(some)-1].hi}, in, ""})
		}
	}
	return all
}

// apply returns the path of the file with the fault m, and the faulty text of the file.
func (m mutant) apply(root string) (path, faulty string, err error) {
	s, err := locate(root, m.in)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", m.name, err)
	}
	p, err := s.find(m.at, m.do)
	if err != nil {
		return "", "", fmt.Errorf("%s: %w", m.name, err)
	}
	replacement := strings.ReplaceAll(cmp.Or(p.text, m.do.text), "$", s.text[p.lo:p.hi])
	return s.path, s.text[:p.lo] + replacement + s.text[p.hi:], nil
}
