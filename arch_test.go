// Package agora has no code. The tests in it check the layout, the documents and the scripts of the project.
package agora

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/agora-relay/agora/"

// allowedImports lists, for each package, the packages of this module that it may import. Test files are not checked.
var allowedImports = map[string][]string{
	".":                                     {},
	"ci/a2a":                                {},
	"ci/acme":                               {},
	"ci/benchguard":                         {},
	"ci/mutants":                            {},
	"ci/operations":                         {},
	"ci/recipes":                            {},
	"ci/release":                            {},
	"ci/sbom":                               {},
	"internal/a2a":                          {"internal/jsontext", "didkey", "envelope"},
	"internal/a2a/a2aclient":                {"internal/a2a", "internal/exchange", "internal/hostname", "internal/jsontext", "didkey"},
	"internal/a2a/a2atest":                  {},
	"internal/clidoc":                       {},
	"internal/exchange":                     {},
	"internal/fsync":                        {},
	"internal/hostname":                     {},
	"internal/jsontext":                     {},
	"internal/markdown":                     {},
	"internal/postgrestest":                 {},
	"internal/program":                      {},
	"internal/ptytest":                      {},
	"internal/racing":                       {},
	"internal/safetext":                     {},
	"internal/untrusted":                    {"internal/safetext"},
	"internal/similar":                      {},
	"internal/turns":                        {},
	"internal/promised":                     {},
	"internal/profile":                      {"internal/fsync", "didkey"},
	"didkey":                                {"internal/fsync"},
	"envelope":                              {"didkey"},
	"replay":                                {"didkey", "envelope"},
	"thread":                                {"didkey", "envelope"},
	"relay/admission":                       {"internal/turns", "didkey", "envelope"},
	"relay":                                 {"internal/hostname", "internal/turns", "didkey", "envelope", "relay/admission", "proof", "replay", "thread"},
	"relay/witness":                         {"didkey", "envelope", "proof", "relay"},
	"relay/mirror":                          {"didkey", "envelope", "relay", "relay/witness", "thread"},
	"relay/httpapi":                         {"relay/witness", "internal/hostname", "didkey", "envelope", "proof", "replay", "thread", "relay", "relay/admission", "relay/httpapi/apidocs"},
	"relay/httpapi/apidocs":                 {"testvectors/schema"},
	"relay/httpapi/apidocs/apicheck":        {"relay/httpapi/apidocs"},
	"relay/metrics":                         {"envelope", "thread", "relay", "relay/admission"},
	"relay/admin":                           {"didkey", "envelope", "thread", "relay"},
	"relay/policycmd":                       {"internal/program", "internal/safetext", "envelope", "relay"},
	"gateway":                               {"internal/hostname", "internal/jsontext", "internal/netaddr", "internal/turns", "didkey", "envelope", "relay", "relay/admission", "relay/httpapi", "relay/httpapi/apidocs"},
	"gateway/deliver":                       {"didkey", "envelope", "thread", "gateway", "relay"},
	"gateway/gatetest":                      {"didkey", "envelope", "gateway", "relay", "relay/httpapi", "relay/httpapi/apidocs", "relay/httpapi/apidocs/apicheck", "store/ledger", "store/postgres/schema", "store/sqlite", "store/sqlite/check", "store/storetest/engine"},
	"gateway/hub/skill":                     {},
	"gateway/hub":                           {"internal/jsontext", "didkey", "envelope", "gateway", "gateway/deliver", "gateway/hub/skill", "relay", "relay/admission", "relay/httpapi", "relay/httpapi/apidocs"},
	"gateway/channel":                       {"internal/hostname", "internal/jsontext", "internal/untrusted", "didkey", "envelope", "gateway", "gateway/deliver", "relay", "relay/admission", "relay/httpapi", "relay/httpapi/apidocs"},
	"gateway/a2a":                           {"internal/a2a", "internal/hostname", "internal/jsontext", "didkey", "envelope", "gateway", "gateway/deliver", "relay", "relay/admission", "relay/httpapi", "relay/httpapi/apidocs"},
	"gateway/jobs/credits":                  {},
	"gateway/jobs":                          {"internal/jsontext", "didkey", "envelope", "gateway", "gateway/deliver", "gateway/jobs/credits", "relay", "relay/admission", "relay/httpapi", "relay/httpapi/apidocs"},
	"gateway/jobs/jobsclient":               {"internal/exchange", "envelope", "gateway/jobs/credits"},
	"gateway/hub/hubclient":                 {"internal/exchange", "internal/fsync", "internal/jsontext", "envelope"},
	"gateway/channel/channelclient":         {"internal/exchange"},
	"cmd/agora/internal/cli":                {"client", "didkey", "envelope", "gateway/jobs/credits", "internal/fsync", "internal/profile", "internal/safetext", "internal/similar", "proof", "relay"},
	"cmd/agora/internal/trade":              {"client", "cmd/agora/internal/cli", "didkey", "envelope", "internal/a2a", "internal/jsontext", "internal/program", "internal/safetext", "thread"},
	"cmd/agora/internal/a2acmd":             {"client", "cmd/agora/internal/cli", "cmd/agora/internal/trade", "didkey", "envelope", "internal/a2a", "internal/a2a/a2aclient", "internal/exchange", "internal/fsync", "internal/jsontext"},
	"cmd/agora/internal/chorus":             {"client", "cmd/agora/internal/cli", "conformance/agentprobe", "didkey", "envelope", "gateway/channel/channelclient", "gateway/hub/hubclient", "gateway/hub/skill", "gateway/jobs/credits", "gateway/jobs/jobsclient", "internal/fsync"},
	"cmd/agora/internal/settings":           {"cmd/agora/internal/cli"},
	"cmd/agora/internal/datafolder":         {"cmd/agora/internal/cli", "didkey", "internal/fsync", "store/sqlite"},
	"cmd/agora/internal/serve":              {"client", "cmd/agora/internal/cli", "cmd/agora/internal/datafolder", "cmd/agora/internal/explorer", "cmd/agora/internal/settings", "cmd/agora/internal/trade", "didkey", "envelope", "gateway", "gateway/a2a", "gateway/channel", "gateway/hub", "gateway/jobs", "gateway/jobs/credits", "internal/fsync", "relay", "relay/admin", "relay/httpapi", "relay/httpapi/apidocs", "relay/metrics", "relay/mirror", "relay/policycmd", "relay/witness", "replay", "store/ledger", "store/postgres", "store/sqlite", "store/transfer", "thread"},
	"cmd/agora/internal/serve/certtest":     {},
	"cmd/agora/internal/operate":            {"cmd/agora/internal/cli", "cmd/agora/internal/datafolder", "cmd/agora/internal/serve", "cmd/agora/internal/settings", "didkey", "envelope", "gateway", "gateway/jobs", "internal/fsync", "relay", "relay/admin", "relay/metrics", "store/ledger", "store/postgres", "store/sqlite", "store/sqlite/check", "store/transfer"},
	"cmd/agora/internal/prove":              {"client", "cmd/agora/internal/cli", "didkey", "envelope", "internal/fsync", "proof", "relay/witness", "replay"},
	"client/internal/recent":                {"didkey"},
	"client/internal/conn":                  {"client/internal/pacing", "client/internal/readauth", "client/internal/recent", "client/internal/wire", "didkey", "envelope", "internal/netaddr"},
	"client/internal/a2aprogress":           {"client/internal/pacing", "envelope", "internal/a2a", "internal/jsontext"},
	"client/internal/chain":                 {"envelope"},
	"client/internal/discovery":             {"client/internal/wire", "internal/netaddr"},
	"client/internal/follow":                {"client/internal/conn", "client/internal/pacing", "client/internal/recent", "client/internal/wire", "didkey", "envelope"},
	"client/internal/joins":                 {"client/internal/conn", "client/internal/journal", "client/internal/wire", "didkey", "envelope", "internal/jsontext"},
	"client/internal/journal":               {"client/internal/mark", "client/internal/statefile", "didkey", "envelope", "internal/deal", "thread"},
	"client/internal/mark":                  {"envelope"},
	"client/internal/pages":                 {"envelope"},
	"client/internal/posting":               {"client/internal/conn", "client/internal/pacing", "client/internal/wire", "didkey", "envelope", "proof", "thread"},
	"client/internal/readauth":              {"client/internal/wire", "envelope"},
	"client/internal/statefile":             {"internal/fsync"},
	"client/internal/wire":                  {"envelope"},
	"client/internal/pacing":                {"client/internal/recent", "didkey", "envelope", "thread"},
	"cmd/agora/internal/explorer":           {"relay", "relay/httpapi", "sdk/js"},
	"proof":                                 {"didkey", "envelope"},
	"store/ledger":                          {"didkey", "envelope", "proof", "replay", "thread", "relay"},
	"store/sqlite/schema":                   {"relay"},
	"store/sqlite/internal/dbfile":          {"relay"},
	"store/sqlite/check":                    {"didkey", "envelope", "proof", "replay", "thread", "relay", "store/ledger", "store/sqlite/schema", "store/sqlite/internal/dbfile"},
	"store/sqlite":                          {"didkey", "envelope", "proof", "replay", "thread", "relay", "store/ledger", "store/sqlite/schema", "store/sqlite/internal/dbfile", "store/transfer", "store/watch"},
	"store/postgres/schema":                 {"relay"},
	"store/postgres":                        {"didkey", "envelope", "proof", "replay", "thread", "relay", "store/ledger", "store/postgres/schema", "store/transfer", "store/watch"},
	"store/transfer":                        {"relay"},
	"store/watch":                           {"envelope", "relay"},
	"store/storetest/engine":                {"relay", "store/postgres", "store/postgres/schema", "store/sqlite"},
	"store/storetest":                       {"didkey", "envelope", "proof", "replay", "thread", "relay"},
	"internal/deal":                         {"didkey", "envelope"},
	"internal/netaddr":                      {},
	"client":                                {"client/internal/a2aprogress", "client/internal/chain", "client/internal/conn", "client/internal/discovery", "client/internal/follow", "client/internal/joins", "client/internal/journal", "client/internal/mark", "client/internal/pacing", "client/internal/pages", "client/internal/posting", "client/internal/recent", "client/internal/wire", "didkey", "envelope", "internal/a2a", "internal/deal", "internal/fsync", "internal/jsontext", "internal/netaddr", "internal/similar", "proof", "thread"},
	"cmd/agora/internal/mcpserver/spending": {"internal/fsync", "didkey", "envelope", "gateway/jobs/credits"},
	"cmd/agora/internal/mcpserver":          {"client", "cmd/agora/internal/mcpserver/spending", "didkey", "envelope", "gateway/jobs/credits", "internal/deal", "internal/fsync", "internal/untrusted", "thread"},
	"conformance/agentprobe":                {},
	"conformance/kit":                       {"didkey", "envelope", "thread"},
	"conformance/hub":                       {"conformance/kit", "didkey", "envelope"},
	"conformance/channel":                   {"conformance/kit"},
	"conformance/jobs":                      {"conformance/kit", "didkey", "envelope"},
	"conformance/a2a":                       {"conformance/kit", "didkey", "envelope"},
	"conformance/relay":                     {"conformance/kit", "didkey", "envelope", "proof"},
	"conformance":                           {"conformance/a2a", "conformance/channel", "conformance/hub", "conformance/jobs", "conformance/kit", "conformance/relay"},
	"docs/diagrams":                         {},
	"ci/faults":                             {},
	"ci/sim":                                {},
	"ci/sim/model":                          {},
	"ci/tck":                                {"didkey", "envelope", "client", "internal/a2a", "internal/jsontext"},
	"ci/torchwood":                          {},
	"ci/faults/cluster":                     {},
	"sdk/js":                                {},
	"internal/bench/stage":                  {"didkey", "envelope"},
	"internal/bench":                        {"didkey", "envelope"},
	"ci/perf":                               {"client", "didkey", "envelope", "internal/a2a", "internal/a2a/a2aclient", "internal/bench", "internal/jsontext"},
	"testvectors":                           {},
	"testvectors/schema":                    {},
	"testvectors/generate":                  {"testvectors"},
	"testvectors/protocol":                  {"envelope", "thread", "relay", "relay/admission"},
	"testvectors/interop/run":               {"didkey", "envelope", "client"},
	"cmd/agora":                             {"client", "cmd/agora/internal/a2acmd", "cmd/agora/internal/chorus", "cmd/agora/internal/cli", "cmd/agora/internal/explorer", "cmd/agora/internal/mcpserver", "cmd/agora/internal/mcpserver/spending", "cmd/agora/internal/operate", "cmd/agora/internal/prove", "cmd/agora/internal/serve", "cmd/agora/internal/settings", "cmd/agora/internal/trade", "conformance", "didkey", "envelope", "gateway/jobs/credits", "internal/bench", "internal/clidoc", "internal/fsync", "internal/profile", "relay", "relay/httpapi"},
}

// forbiddenImports lists standard packages that a package must not import: these packages must use no network and no
// database.
var forbiddenImports = map[string][]string{
	"relay":        {"internal/hostname", "net/http", "database/sql"},
	"store/ledger": {"os", "net", "net/http", "database/sql", "io"},
	"thread":       {"os", "net", "net/http", "database/sql", "io"},
	"replay":       {"os", "net", "net/http", "database/sql", "io"},
	"proof":        {"os", "net", "net/http", "database/sql", "io"},
}

// goFiles returns the Go files of a folder, without test files.
func goFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(files, func(name string) bool { return strings.HasSuffix(name, "_test.go") })
}

// imports returns the imports of a package's files, without test files, and whether a file has a package comment.
func imports(t *testing.T, dir string) (paths []string, commented bool) {
	t.Helper()
	for _, name := range goFiles(t, dir) {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		commented = commented || file.Doc != nil
		for _, i := range file.Imports {
			paths = append(paths, strings.Trim(i.Path.Value, `"`))
		}
	}
	return paths, commented
}

// packages returns the folders of all packages of the module, with slashes.
func packages(t *testing.T) (dirs []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
			if dir := filepath.ToSlash(filepath.Dir(path)); !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// TestImportDirections checks that each package imports only what allowedImports and forbiddenImports allow, and has a
// package comment.
func TestImportDirections(t *testing.T) {
	for _, dir := range packages(t) {
		allowed, known := allowedImports[dir]
		if !known {
			t.Errorf("%s is not in allowedImports; add it there", dir)
		}
		paths, commented := imports(t, dir)
		if !commented {
			t.Errorf("%s has no package comment", dir)
		}
		for _, path := range paths {
			if own, ok := strings.CutPrefix(path, module); ok && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s, which allowedImports does not list", dir, own)
			}
			if slices.Contains(forbiddenImports[dir], path) {
				t.Errorf("%s imports %s, which forbiddenImports lists", dir, path)
			}
		}
	}
}

// TestNoOwnClock checks that thread, replay and envelope do not call time.Now.
func TestNoOwnClock(t *testing.T) {
	for _, dir := range []string{"thread", "replay", "envelope"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "time.Now") {
				t.Errorf("%s calls time.Now", name)
			}
		}
	}
}

// TestErrorsAsIsNotUsed checks that no file uses errors.As. Use errors.AsType, which needs no variable.
func TestErrorsAsIsNotUsed(t *testing.T) {
	for _, dir := range packages(t) {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "errors.As"+"(") {
				t.Errorf("%s uses errors.As; use errors.AsType", name)
			}
		}
	}
}

// TestClientIsLight checks which modules a program needs if it uses the Go client: only those of the protocol itself.
func TestClientIsLight(t *testing.T) {
	allowed := []string{"github.com/agora-relay/agora", "github.com/gowebpki/jcs", "github.com/mr-tron/base58",
		"github.com/multiformats/go-multibase", "github.com/multiformats/go-base32", "github.com/multiformats/go-base36",
		"filippo.io/edwards25519", "golang.org/x/mod"}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", "./client").Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.FieldsSeq(string(out)) {
		if !slices.Contains(allowed, path) {
			t.Errorf("client depends on %s", path)
		}
	}
}

// TestVersionFloors checks that certain libraries are not older than their first safe version. In older versions, jcs
// crashes, base58 panics, and SQLite's write-ahead log can be corrupted.
func TestVersionFloors(t *testing.T) {
	for path, floor := range map[string][3]int{
		"github.com/gowebpki/jcs": {1, 0, 2}, "github.com/mr-tron/base58": {1, 3, 0}, "modernc.org/sqlite": {1, 46, 2},
	} {
		out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", path).Output()
		if err != nil {
			t.Fatal(err)
		}
		var have [3]int
		if n, err := fmt.Sscanf(string(out), "v%d.%d.%d", &have[0], &have[1], &have[2]); n != 3 || err != nil {
			t.Fatalf("%s has version %q", path, out)
		}
		if slices.Compare(have[:], floor[:]) < 0 {
			t.Errorf("%s is %v, below %v", path, have, floor)
		}
	}
}

// read returns a file of the project as text.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestDependenciesHaveReasons compares the table of direct dependencies in CONTRIBUTING.md with go.mod.
func TestDependenciesHaveReasons(t *testing.T) {
	_, table, found := strings.Cut(read(t, "CONTRIBUTING.md"), "Direct dependencies, and why each:")
	if !found {
		t.Fatal("CONTRIBUTING.md has no table of direct dependencies")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	var named []string
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 4 && strings.ContainsAny(cells[1], "abcdefghijklmnopqrstuvwxyz") {
			for name := range strings.SplitSeq(cells[1], ",") {
				named = append(named, strings.TrimSpace(name))
			}
		}
	}
	out, err := exec.Command("go", "mod", "edit", "-json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &file); err != nil {
		t.Fatal(err)
	}
	major := regexp.MustCompile(`/v[0-9]+$`)
	var direct []string
	for _, r := range file.Require {
		if !r.Indirect {
			direct = append(direct, strings.TrimPrefix(major.ReplaceAllString(r.Path, ""), "github.com/"))
		}
	}
	slices.Sort(named)
	slices.Sort(direct)
	if !slices.Equal(named, direct) {
		t.Errorf("CONTRIBUTING.md names\n%v\ngo.mod requires\n%v", named, direct)
	}
}

// TestTopFolders checks that README.md and the map in CONTRIBUTING.md name every folder at the top, and that there are at
// most 16.
func TestTopFolders(t *testing.T) {
	readme, contributing := read(t, "README.md"), read(t, "CONTRIBUTING.md")
	tops := map[string]bool{}
	for _, dir := range packages(t) {
		top, _, _ := strings.Cut(dir, "/")
		if top != "." && (!strings.Contains(readme, "`"+top+"`") || !strings.Contains(contributing, "`"+top+"/")) {
			t.Errorf("README.md or CONTRIBUTING.md does not name %s", top)
		}
		if top != "." {
			tops[top] = true
		}
	}
	if len(tops) > 16 {
		t.Errorf("%d folders at the top; a folder that only one program uses belongs to internal, ci or that program", len(tops))
	}
}

// TestMakeTargets checks that the Makefile has each target that a document names, and that CONTRIBUTING.md names every
// target except run.
func TestMakeTargets(t *testing.T) {
	makefile, contributing := read(t, "Makefile"), read(t, "CONTRIBUTING.md")
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):`).FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, m[1])
	}
	for _, name := range documents(t) {
		for _, m := range regexp.MustCompile("`make ([a-z0-9-]+)").FindAllStringSubmatch(read(t, name), -1) {
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s names make %s, which the Makefile does not have", name, m[1])
			}
		}
	}
	for _, target := range targets {
		if target != "run" && !strings.Contains(contributing, "`make "+target+"`") {
			t.Errorf("CONTRIBUTING.md does not name make %s", target)
		}
	}
	if len(targets) < 10 {
		t.Errorf("found only %d targets", len(targets))
	}
}

// TestVulnerabilityCheck runs ci/vulnerabilities with commands that print what govulncheck would print.
func TestVulnerabilityCheck(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		passes  bool
		output  string
	}{
		"nothing found": {"true", true, "no known vulnerability"},
		"found":         {"echo 'Vulnerability #1: GO-2026-0001'; exit 3", false, "GO-2026-0001"},
		"no network":    {"echo 'govulncheck: fetching vulnerabilities: Get: connection refused'; exit 1", true, "cannot be reached"},
		"broken":        {"echo 'govulncheck: loading packages: undefined'; exit 1", false, "undefined"},
	} {
		cmd := exec.Command("bash", "ci/vulnerabilities", "localhost", "bash", "-c", c.command)
		cmd.Env = append(os.Environ(), "HTTPS_PROXY=http://localhost") // then the host is not looked for
		out, err := cmd.CombinedOutput()
		if (err == nil) != c.passes || !strings.Contains(string(out), c.output) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
	cmd := exec.Command("bash", "ci/vulnerabilities", "unknown.invalid", "bash", "-c", "echo it was run; exit 1")
	cmd.Env = append(os.Environ(), "HTTPS_PROXY=", "https_proxy=")
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "cannot be reached") {
		t.Errorf("a host that does not answer: %v, %s", err, out)
	}
}

// TestVersion checks that every place that shows the version has the one in the file VERSION.
func TestVersion(t *testing.T) {
	if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(Version()) || read(t, "VERSION") != Version()+"\n" {
		t.Errorf("VERSION is %q", Version())
	}
	for name, pattern := range map[string]string{
		"README.md":                              `(?m)version ([\d.]+\d)`,
		"sdk/js/README.md":                       `agora-relay-(.*)\.tgz`,
		"sdk/js/package.json":                    `(?m)^  "version": "(.*)",$`,
		"sdk/js/package-lock.json":               `"name": "agora-relay",\s*"version": "(.*)"`,
		"sdk/python/README.md":                   `agora_relay-(.*)-py3`,
		"sdk/python/pyproject.toml":              `(?m)^version = "(.*)"$`,
		"sdk/python/src/agora_relay/__init__.py": `(?m)^__version__ = "(.*)"$`,
	} {
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(read(t, name), -1)
		if len(found) == 0 {
			t.Errorf("%s names no version", name)
		}
		for _, m := range found {
			if m[1] != Version() {
				t.Errorf("%s: the version is %q, not %s as in VERSION", name, m[1], Version())
			}
		}
	}
	first := regexp.MustCompile(`(?m)^## ([^ ]*)`).FindStringSubmatch(read(t, "CHANGELOG.md"))
	if first == nil || first[1] != Version() {
		t.Errorf("CHANGELOG.md begins with %q, not with %s", first, Version())
	}
}

// TestPlacesToChange checks the table "Where do I change…" in CONTRIBUTING.md: every file that it names exists, and
// every identifier that it or the tour of the code names occurs in the source.
func TestPlacesToChange(t *testing.T) {
	_, table, _ := strings.Cut(read(t, "CONTRIBUTING.md"), "## Where do I change")
	table, _, _ = strings.Cut(table, "\n## ")
	paths := 0
	for _, m := range regexp.MustCompile("`([a-z]+(?:/[\\w.]+)+)`").FindAllStringSubmatch(table, -1) {
		paths++
		if _, err := os.Stat(m[1]); err != nil {
			t.Errorf("CONTRIBUTING.md names %s: %v", m[1], err)
		}
	}
	if paths < 20 {
		t.Errorf("found only %d paths", paths)
	}
	words := sourceWords(t)
	for page, text := range map[string]string{"CONTRIBUTING.md": table, "docs/TOUR.md": read(t, "docs/TOUR.md")} {
		identifiers := regexp.MustCompile("`([A-Za-z]+(?:\\.[A-Za-z]+)?)`").FindAllStringSubmatch(text, -1)
		if len(identifiers) < 15 {
			t.Errorf("%s: found only %d identifiers", page, len(identifiers))
		}
		for _, m := range identifiers {
			for name := range strings.SplitSeq(m[1], ".") {
				if !words[name] {
					t.Errorf("%s names %s, but %s does not occur in the source", page, m[1], name)
				}
			}
		}
	}
}

// sourceWords returns all words in the Go files of the module, without test files.
func sourceWords(t *testing.T) map[string]bool {
	t.Helper()
	word := regexp.MustCompile(`\w+`)
	words := map[string]bool{}
	for _, dir := range packages(t) {
		for _, name := range goFiles(t, dir) {
			for _, w := range word.FindAllString(read(t, name), -1) {
				words[w] = true
			}
		}
	}
	return words
}

// TestThreatsAreShown checks that every threat in docs/SECURITY.md has a row, and that the tests and targets in it
// exist.
func TestThreatsAreShown(t *testing.T) {
	text, err := os.ReadFile("docs/SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatal(err)
	}
	tests := testNames(t)
	family := regexp.MustCompile(`^ ([TS])\d+ $`) // T: the relay; S: sealed payloads
	number := map[string]int{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !family.MatchString(cells[1]) {
			continue
		}
		letter := family.FindStringSubmatch(cells[1])[1]
		number[letter]++
		row := fmt.Sprintf("%s%d", letter, number[letter])
		if cells[1] != " "+row+" " {
			t.Errorf("row %q, want %s", cells[1], row)
		}
		shown := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[4], -1)
		if len(shown) == 0 && !strings.Contains(cells[3], "Not prevented") {
			t.Errorf("%s names no test", row)
		}
		for _, name := range shown {
			target, isTarget := strings.CutPrefix(name[1], "make ")
			if isTarget && !strings.Contains(string(makefile), "\n"+target+":") || !isTarget && !slices.Contains(tests, name[1]) {
				t.Errorf("%s is shown by %s, which does not exist", row, name[1])
			}
		}
	}
	if number["T"] != 107 || number["S"] != 9 {
		t.Errorf("%v threats, want 107 and 9", number)
	}
}

// testNames returns the names of all tests of the module.
func testNames(t *testing.T) (names []string) {
	for _, dir := range append(packages(t), "ci/faults") {
		names = append(names, testsIn(t, dir)...)
	}
	return names
}

// testsIn returns the names of the tests of a package.
func testsIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, file := range files {
		for _, m := range declared.FindAllStringSubmatch(read(t, file), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

// TestNoLargeFiles checks that the repository has no file above 1 MB, such as a program that was built in its folder.
func TestNoLargeFiles(t *testing.T) {
	names, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip("this is no git checkout:", err) // a source archive
	}
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if info, err := os.Lstat(name); err == nil && info.Size() > 1<<20 {
			t.Errorf("%s has %d bytes; remove it from the commit", name, info.Size())
		}
	}
}
