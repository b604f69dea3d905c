package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const source = `package p

import "errors"

// limit is 8.
const limit, half = 8, 4

var list = []string{"a", "SELECT x FROM t -- " + "WHERE n  <  ?"}

type pair struct{ left, right int }

type tree[K comparable] struct{ root K }

func (t *tree[K]) find(k K) bool { return t.root == k }

func check(p pair, n int) (err error) {
	if n > limit || p.left == n && p.right > /* more */ limit { // n > limit
		return errors.New("too large")
	}
	for n < half {
		n++
		p.left = n
	}
	switch {
	case n == limit, n == half:
		n = p.right
	case p.left > -1:
		n = -n
	}
	if q := (pair{left: n, right: p.left}); q.left > 0 {
		defer func() { n--; p.right-- }()
		note(q.left, limit)
	}
	return nil
}

func note(...int) {}
`

const tables = `CREATE TABLE other (
	UNIQUE (a, b)
) STRICT;
CREATE TABLE wanted (
	a INTEGER, -- 0: none; not UNIQUE
	UNIQUE  (a,
		b)
) STRICT;
`

func writeTree(t *testing.T) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, text := range map[string]string{
		"p/p.go": source, "p/tables.sql": tables,
		"p/p_test.go": "package p\n\nfunc check() {}\n",
		"p/other.go":  "//go:build never\n\npackage p\n\nfunc check() {}\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestChanges(t *testing.T) {
	root := writeTree(t)
	for _, test := range []struct {
		in, at   string
		do       change
		old, new string // the only difference
	}{
		{"p check", "p.right", never, "n > limit || p.left == n && p.right > /* more */ limit",
			"false && (n > limit || p.left == n && p.right > /* more */ limit)"},
		{"p check", "half <", always, "n < half", "true || (n < half)"},
		{"p check", "half ==", never, "n == half", "false && (n == half)"},
		{"p check", "p.left -", never, "case p.left > -1", "case false && (p.left > -1)"},
		{"p check", "pair", never, "q.left > 0", "false && (q.left > 0)"},
		{"p check", "q.left", when("$ && n == 1"), "q.left > 0", "q.left > 0 && n == 1"},
		{"p check", "p.right", without, "p.right > /* more */ limit", "(true || (p.right > /* more */ limit))"},
		{"p check", "p.left ==", without, "p.left == n &&", "(true || (p.left == n)) &&"},
		{"p check", "p.left right", without, "p.left == n && p.right > /* more */ limit",
			"(false && (p.left == n && p.right > /* more */ limit))"},
		{"p check", "note()", drop, "note(q.left, limit)", "if false {\nnote(q.left, limit)\n}"},
		{"p check", "p.right =", drop, "n = p.right", "if false {\nn = p.right\n}"},
		{"p check", "return nil", before("n = 2"), "return nil", "n = 2\nreturn nil"},
		{"p check", "note()", after("n = 2"), "note(q.left, limit)", "note(q.left, limit)\nn = 2"},
		{"p check", "errors.New()", with("nil"), `errors.New("too large")`, "nil"},
		{"p check", "New()", with("nil"), `errors.New("too large")`, "nil"},
		{"p check", "p.right >", with("($ == true)"), "p.right > /* more */ limit",
			"(p.right > /* more */ limit == true)"},
		{"p check", "right", set("$ + 1"), "right: p.left", "right: p.left + 1"},
		{"p check", "p.left", set("0"), "p.left = n", "p.left = 0"},
		{"p limit", "", set("9"), "= 8, 4", "= 9, 4"},
		{"p limit", "half", set("9"), "= 8, 4", "= 8, 9"},
		{"p half", "", set("$ * 2"), "= 8, 4", "= 8, 4 * 2"},
		{"p list", `"a"`, with(`"b"`), `{"a"`, `{"b"`},
		{"p tree.find", "root", with("k"), "t.root == k", "k == k"},
		{"p check", "p.right", swap("> limit", "< limit"), "p.right > /* more */ limit", "p.right < limit"},
		{"p check", "", swap("n++ p.left = n", "n++"), "n++\n\t\tp.left = n", "n++"},
		{"p list", "", swapSQL("n < ?", "n > ?"), "n  <  ?", "n > ?"},
		{"p/tables.sql wanted", "", swapSQL("UNIQUE (a, b)", "UNIQUE (a)"), "UNIQUE  (a,\n\t\tb)", "UNIQUE (a)"},
	} {
		path, got, err := mutant{in: test.in, at: test.at, do: test.do}.apply(root)
		sound := source
		if path == "p/tables.sql" {
			sound = tables
		}
		if strings.Count(sound, test.old) != 1 {
			t.Fatalf("the test is wrong: %q is there %d times", test.old, strings.Count(sound, test.old))
		}
		if want := strings.Replace(sound, test.old, test.new, 1); err != nil || got != want {
			t.Errorf("%s, %q, %v: %v\n%s", test.in, test.at, test.do, err, got)
		}
	}
}

func TestErrors(t *testing.T) {
	root := writeTree(t)
	for _, test := range []struct {
		in, at string
		do     change
		want   string
	}{
		{"p check", "p.left", drop, "found a statement 4 times in check of p/p.go"},
		{"p check", `"too`, with("nil"), `found an expression 0 times in check of p/p.go, want 1`},
		{"p check", "right p.left pair", set("$ + 1"), "found a value 0 times in check of p/p.go"},
		{"p check", "p.left", swap("n++ ; p.left", "p.left"), "found these tokens 0 times"},
		{"p list", "", swapSQL("t WHERE", "t"), "found these tokens of SQL 0 times in list of p/p.go"},
		{"p check", "n", never, `found a condition 5 times in check of p/p.go, want 1; it must mention "n"`},
		{"p check", "q.left", with("1"), "found an expression 2 times in check of p/p.go"},
		{"p check", "left", set("1"), "found a value 2 times in check of p/p.go"},
		{"p check", "", swap("limit", "half"), "found these tokens 4 times"},
		{"p check", "missing()", drop, `found a statement 0 times in check of p/p.go, want 1`},
		{"p check", "missing", without, "found an operand of && or || 0 times in check of p/p.go"},
		{"p find", "", set("1"), "found find 0 times in p, want 1"},
		{"p/tables.sql none", "", swapSQL("a", "b"), "found none 0 times in p/tables.sql"},
		{"p/tables.sql wanted", "", swapSQL("a", "c"), "found these tokens of SQL 2 times in wanted of p/tables.sql"},
		{"missing check", "n", never, "missing"},
	} {
		_, _, err := mutant{in: test.in, at: test.at, do: test.do}.apply(root)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s, %q, %v: %v; want an error with %q", test.in, test.at, test.do, err, test.want)
		}
	}
}

// TestList checks the list itself: each fault fits the code, and each name is used once.
func TestList(t *testing.T) {
	all, err := allFaults()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if _, _, err := m.apply("../.."); err != nil {
			t.Error(err)
		}
	}
}

// TestTestsExist checks that the tests of each fault exist. Otherwise the fault would survive, because go test passes if
// no test matches.
func TestTestsExist(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	names := map[string][]string{} // by package
	check := func(fault, tests string) {
		words := strings.Fields(tests)
		i := slices.Index(words, "-run")
		if i < 0 {
			return
		}
		first, _, _ := strings.Cut(words[i+1], "/")
		pattern, err := regexp.Compile(first)
		if err != nil {
			t.Fatalf("%s: %v", fault, err)
		}
		for _, dir := range words[:i] {
			if names[dir] == nil {
				files, err := filepath.Glob(filepath.Join("../..", dir, "*_test.go"))
				if err != nil || len(files) == 0 {
					t.Fatalf("%s: %s has no tests (%v)", fault, dir, err)
				}
				for _, file := range files {
					text, err := os.ReadFile(file)
					if err != nil {
						t.Fatal(err)
					}
					for _, found := range declared.FindAllStringSubmatch(string(text), -1) {
						names[dir] = append(names[dir], found[1])
					}
				}
			}
			if slices.ContainsFunc(names[dir], pattern.MatchString) {
				return
			}
		}
		t.Errorf("%s: no test matches %s", fault, tests)
	}
	for _, topic := range topics {
		for _, m := range topic {
			check(m.name, m.tests)
		}
	}
	for _, r := range repetitions {
		check(r.name, r.tests)
	}
}
