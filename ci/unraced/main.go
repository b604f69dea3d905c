// Command unraced runs, without the race detector, the tests that do less under it.
//
// Some tests are too slow or measure nothing useful with the race detector. They look at the constant raceDetector and
// then skip a part. Property tests of package rapid run fewer examples in some packages. The race run and this command
// together run everything once.
//
//	go run ./ci/unraced [-list]
//
// A test belongs to the list if its function reaches raceDetector through functions of the same package's test files.
// Where TestMain reaches raceDetector, tests that reach rapid or storetest belong to it too.
package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	list := flag.Bool("list", false, "only print the packages and tests")
	flag.Parse()
	if err := run(*list); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(list bool) error {
	packages, err := find(".")
	if err != nil {
		return err
	}
	args, names := []string{"test", "-p", "3"}, []string{} // some packages mostly wait
	for _, p := range packages {
		if list {
			fmt.Println(p.dir, strings.Join(p.tests, " "))
		}
		args, names = append(args, "./"+filepath.ToSlash(p.dir)), append(names, p.tests...)
	}
	if list || len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	test := exec.Command("go", append(args, "-run", "^("+strings.Join(slices.Compact(names), "|")+")$")...)
	test.Stdout, test.Stderr = os.Stdout, os.Stderr
	return test.Run()
}

// tested is a package with tests that do less under the race detector.
type tested struct {
	dir   string
	tests []string
}

// find returns the packages under root that have such tests.
func find(root string) (all []tested, err error) {
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if name := d.Name(); path != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules") {
			return fs.SkipDir
		}
		tests, err := testsOf(path)
		if len(tests) > 0 {
			all = append(all, tested{path, tests})
		}
		return err
	})
	return all, err
}

// testsOf returns the names of the tests in dir that do less under the race detector.
func testsOf(dir string) ([]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	uses := map[string][]string{} // function → the names that it mentions
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			ast.Inspect(f.Body, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					uses[f.Name.Name] = append(uses[f.Name.Name], id.Name)
				}
				return true
			})
		}
	}
	wanted := []string{"raceDetector"}
	if reaches(uses, "TestMain", wanted, map[string]bool{}) {
		wanted = append(wanted, "rapid", "storetest") // storetest uses rapid
	}
	var tests []string
	for name := range uses {
		if strings.HasPrefix(name, "Test") && name != "TestMain" && reaches(uses, name, wanted, map[string]bool{}) {
			tests = append(tests, name)
		}
	}
	slices.Sort(tests)
	return tests, nil
}

// reaches reports whether the function mentions one of the wanted names, or calls a function that does.
func reaches(uses map[string][]string, function string, wanted []string, seen map[string]bool) bool {
	seen[function] = true
	for _, name := range uses[function] {
		if slices.Contains(wanted, name) || !seen[name] && uses[name] != nil && reaches(uses, name, wanted, seen) {
			return true
		}
	}
	return false
}
