package main

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// extent is a range of bytes in a file.
type extent struct{ lo, hi int }

func (e extent) contains(o extent) bool { return e.lo <= o.lo && o.hi <= e.hi }

// scope is the declaration, or the SQL table, in which a fault is.
type scope struct {
	path string // of the file, relative to the root of the repository
	text string // of the file
	base int    // position of the file's first byte in the syntax tree
	name string
	node ast.Node // nil: an SQL table
	all  extent
}

// piece is a part of a scope that a change can replace.
type piece struct {
	extent
	in   extent // the node that must mention the names
	text string // what replaces the piece; empty: change.text
}

func (s scope) extent(n ast.Node) extent { return extent{int(n.Pos()) - s.base, int(n.End()) - s.base} }

// locate finds the declaration or table that in names, see mutant.in.
func locate(root, in string) (scope, error) {
	where, name, _ := strings.Cut(in, " ")
	find := findDeclarations
	if strings.HasSuffix(where, ".sql") {
		find = findTables
	}
	found, err := find(root, where, name)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("found %s %d times in %s, want 1", name, len(found), where)
	}
	if err != nil {
		return scope{}, err
	}
	return found[0], nil
}

// goFile is a parsed Go file.
type goFile struct {
	path string // relative to the root of the repository
	text string
	tree *ast.File
}

// parsed has the files of each folder that was searched before. Many faults are in the same folder.
var parsed = map[string][]goFile{}

// parse returns the Go files of a folder that belong to a build for this system.
func parse(root, dir string) (files []goFile, err error) {
	folder := filepath.Join(root, dir)
	if files, ok := parsed[folder]; ok {
		return files, nil
	}
	pkg, err := build.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	for _, base := range pkg.GoFiles {
		text, err := os.ReadFile(filepath.Join(pkg.Dir, base))
		if err != nil {
			return nil, err
		}
		tree, err := parser.ParseFile(token.NewFileSet(), base, text, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, goFile{dir + "/" + base, string(text), tree})
	}
	parsed[folder] = files
	return files, nil
}

// findDeclarations looks in the Go files of a folder.
func findDeclarations(root, dir, name string) (found []scope, err error) {
	files, err := parse(root, dir)
	for _, f := range files {
		for _, d := range f.tree.Decls {
			for _, n := range declared(d, name) {
				s := scope{path: f.path, text: f.text, base: int(f.tree.FileStart), name: name, node: n}
				s.all = s.extent(n)
				found = append(found, s)
			}
		}
	}
	return found, err
}

// declared returns the nodes of d that declare name. A method has the name Type.Method.
func declared(d ast.Decl, name string) (found []ast.Node) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		full := d.Name.Name
		if d.Recv != nil {
			full = strings.TrimSuffix(nameOf(d.Recv.List[0].Type), "[]") + "." + full
		}
		if full == name {
			found = append(found, d)
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok &&
				slices.ContainsFunc(v.Names, func(i *ast.Ident) bool { return i.Name == name }) {
				found = append(found, v)
			}
		}
	}
	return found
}

// findTables looks in an SQL file.
func findTables(root, path, table string) (found []scope, err error) {
	text, err := os.ReadFile(filepath.Join(root, path))
	create := regexp.MustCompile(`(?s)CREATE TABLE ` + regexp.QuoteMeta(table) + ` \(.*?\n\)`)
	for _, at := range create.FindAllIndex(text, -1) {
		found = append(found, scope{path: path, text: string(text), name: table, all: extent{at[0], at[1]}})
	}
	return found, err
}

// walk calls visit for n and the nodes in it. It leaves out identifiers that are only part of a name: the right side of
// a selector and the field names of a composite literal.
func walk(n ast.Node, visit func(ast.Node)) {
	ast.Inspect(n, func(n ast.Node) bool {
		if n == nil {
			return false
		}
		visit(n)
		switch n := n.(type) {
		case *ast.SelectorExpr:
			walk(n.X, visit)
			return false
		case *ast.KeyValueExpr:
			if _, field := n.Key.(*ast.Ident); field {
				walk(n.Value, visit)
				return false
			}
		}
		return true
	})
}

// nameOf returns the name of a node, see mutant.at. It returns "" if the node has none.
func nameOf(n ast.Node) string {
	switch n := n.(type) {
	case *ast.Ident:
		return n.Name
	case *ast.SelectorExpr:
		return nameOf(n.X) + "." + n.Sel.Name
	case *ast.CallExpr:
		return nameOf(n.Fun) + "()"
	case *ast.IndexExpr:
		return nameOf(n.X) + "[]"
	case *ast.StarExpr:
		return nameOf(n.X)
	case *ast.BasicLit:
		return n.Value
	case *ast.KeyValueExpr:
		return nameOf(n.Key)
	case *ast.BinaryExpr:
		return n.Op.String()
	case *ast.UnaryExpr:
		return n.Op.String()
	case *ast.AssignStmt:
		return n.Tok.String()
	case *ast.ReturnStmt:
		return "return"
	case *ast.DeferStmt:
		return "defer"
	}
	return ""
}

// isNamed reports whether a node with this full name can be called name: a.b.c is also b.c and c.
func isNamed(full, name string) bool { return full == name || strings.HasSuffix(full, "."+name) }

// find returns the piece that c edits: the one in the smallest node that mentions the names.
func (s scope) find(at string, c change) (piece, error) {
	names := strings.Fields(at)
	var pieces []piece
	if s.node == nil {
		pieces = s.occurrences(c.old, s.all, s.all)
	} else {
		mentioned := map[string][]extent{}
		walk(s.node, func(n ast.Node) {
			for _, name := range names {
				if isNamed(nameOf(n), name) {
					mentioned[name] = append(mentioned[name], s.extent(n))
				}
			}
		})
		walk(s.node, func(n ast.Node) {
			for _, p := range s.pieces(c, n, names) {
				missing := slices.ContainsFunc(names, func(name string) bool {
					return !slices.ContainsFunc(mentioned[name], p.in.contains)
				})
				if !missing && !slices.Contains(pieces, p) {
					pieces = append(pieces, p)
				}
			}
		})
	}
	smallest := slices.DeleteFunc(slices.Clone(pieces), func(p piece) bool {
		return slices.ContainsFunc(pieces, func(o piece) bool { return p.in != o.in && p.in.contains(o.in) })
	})
	if len(smallest) != 1 {
		return piece{}, fmt.Errorf("found %s %d times in %s of %s, want 1; it must mention %q",
			c.part, len(smallest), s.name, s.path, at)
	}
	return smallest[0], nil
}
