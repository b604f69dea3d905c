//go:build unix

package recipes

import (
	"cmp"
	"flag"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agora-relay/agora/internal/markdown"
)

// pages are the pages whose sections are followed, if they have commands.
var pages = []string{"README.md", "docs/COOKBOOK.md", "docs/COMING-FROM.md", "docs/HTTP.md", "docs/HUB.md",
	"docs/CHANNEL.md", "docs/JOBS.md", "docs/A2A.md", "docs/MCP.md", "docs/RELAYS.md"}

// onlyAtTerminals are the sections that show what only a terminal shows.
var onlyAtTerminals = map[string]bool{"README.md#Five minutes with two agents": true}

// elsewhere are the pages, and the sections of pages, whose commands are run by another test, or why none runs them.
var elsewhere = map[string]string{
	"README.md#Start":                 "it builds the relay and runs it at its default address",
	"docs/A2A.md#Start it":            "the relay of these tests is started with it",
	"docs/CHANNEL.md#Start it":        "the relay of these tests is started with it",
	"docs/HUB.md#Start a hub":         "the relay of these tests is started with it",
	"docs/MCP.md#HTTP":                "cmd/agora/mcp_test.go; it needs its own port",
	"docs/CLUSTER.md":                 "ci/faults/cluster, and cmd/agora/nodes_test.go for agora migrate",
	"docs/CONFIGURATION.md":           "cmd/agora/docs_test.go checks the flags, and config_test.go what they do",
	"docs/FRAMEWORKS.md":              "sdk/js/test/frameworks.test.js; it needs packages of npm",
	"docs/INSTALL.md":                 "ci/release",
	"docs/JOBS.md#Programs of Chorus": "programs elsewhere, with a relay that allows them",
	"docs/JOBS.md#Start it":           "the relay of these tests is started with it",
	"docs/OPERATING.md":               "ci/operations",
	"docs/PAGE.md":                    "cmd/agora/testdata/page.txtar",
	"docs/SEALING.md":                 "cmd/agora/testdata/seal.txtar",
}

var binFolder string // has the program agora

// sectionsAtOnce is how many sections are followed at a time. They mostly wait, so that more than there are processors
// make the tests shorter.
const sectionsAtOnce = 6

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(sectionsAtOnce)); err != nil {
		panic(err)
	}
	os.Exit(func() int {
		folder, err := os.MkdirTemp("", "agora-recipes")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(folder)
		binFolder = folder
		build := exec.Command("go", "build", "-o", filepath.Join(folder, "agora"), "../../cmd/agora")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// TestRecipes follows each section that needs nothing but Go, curl and a shell. If one of these is missing, it fails in
// CI, and elsewhere it does nothing.
func TestRecipes(t *testing.T) {
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil && os.Getenv("CI") == "" {
			t.Skip("the recipes need " + program)
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Parallel() // with TestRecipesAtTerminals
	follow(t, "", inScripts)
}

// runner runs blocks of commands in one shell, one block after the other, and returns what each prints. The test fails if
// a command fails.
type runner interface {
	run(t *testing.T, commands string) string
}

// way is how a reader enters commands.
type way struct {
	shell func(t *testing.T, folder string, environment []string) runner                     // the reader's terminal
	open  func(t *testing.T, folder string, environment []string, commands string) *terminal // another terminal
	shown bool                                                                               // programs see a terminal
}

// inScripts is the way in which programs see no terminal.
var inScripts = way{
	shell: func(t *testing.T, folder string, environment []string) runner {
		return newShell(t, folder, environment)
	},
	open: func(t *testing.T, folder string, environment []string, commands string) *terminal {
		return start(t, folder, environment, commands)
	},
}

// follow follows each section of the pages with a program in this language, or, if language is "", with neither
// JavaScript nor Python. variables are added to the environment.
func follow(t *testing.T, language string, w way, variables ...string) {
	ran := 0
	for _, name := range pages {
		for _, section := range parse(t, name).Sections {
			if needs(section) != language || len(section.Code("sh")) == 0 || elsewhere[name+"#"+section.Heading] != "" ||
				onlyAtTerminals[name+"#"+section.Heading] && !w.shown {
				continue
			}
			ran++
			t.Run(cmp.Or(section.Heading, name), func(t *testing.T) {
				t.Parallel()
				newReader(t, w, variables).follow(t, section)
			})
		}
	}
	if ran == 0 {
		t.Errorf("no section has code of %q", language)
	}
}

// parse reads a page.
func parse(t *testing.T, name string) *markdown.Page {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", name))
	if err != nil {
		t.Fatal(err)
	}
	page, err := markdown.Parse(string(text))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return page
}

// TestEveryCommandIsRun checks that each page with commands is one of pages or elsewhere, and that each entry of
// elsewhere is about commands that there are.
func TestEveryCommandIsRun(t *testing.T) {
	used := map[string]bool{}
	names, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(names, "../../README.md") {
		name = strings.TrimPrefix(filepath.ToSlash(name), "../../")
		for _, section := range parse(t, name).Sections {
			if len(section.Code("sh")) == 0 {
				continue
			}
			used[name], used[name+"#"+section.Heading] = true, true
			if !slices.Contains(pages, name) && elsewhere[name] == "" {
				t.Errorf("no test runs the commands of %s; add it to pages", name)
			}
		}
	}
	for name := range elsewhere {
		if !used[name] {
			t.Errorf("%s has no commands", name)
		}
	}
}

// needs returns js or python if the section has a program in that language, and otherwise "".
func needs(section markdown.Section) string {
	for _, b := range section.Blocks {
		if (b.Language == "js" || b.Language == "python") && fileName.MatchString(b.Text) {
			return b.Language
		}
	}
	return ""
}

// reader does what a section says.
type reader struct {
	folder      string
	environment []string
	url         string
	ports       map[string]string // free ports for those of the docs
	way         way
	shell       runner
	terminals   []*terminal
}

// newReader starts a relay, and opens a terminal in an empty folder. variables are added to the environment.
func newReader(t *testing.T, w way, variables []string) *reader {
	t.Helper()
	r := &reader{folder: t.TempDir(), way: w, ports: map[string]string{}}
	source, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	own := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "AGORA_") })
	r.environment = slices.Concat(own, []string{"PATH=" + binFolder + ":" + os.Getenv("PATH"), "AGORA_SRC=" + source,
		"XDG_CONFIG_HOME=" + t.TempDir()}, variables) // the folder of profiles and names
	t.Cleanup(func() { r.showLogs(t) })
	relay := start(t, r.folder, r.environment, "exec agora serve --demo --addr 127.0.0.1:0 --log-level warn --hub --channel --jobs --a2a")
	relay.await(t, "listening on …")
	r.url = regexp.MustCompile(`listening on (\S+)`).FindStringSubmatch(relay.output.String())[1]
	r.environment = append(r.environment, "AGORA_RELAY="+r.url)
	r.shell = w.shell(t, r.folder, r.environment)
	return r
}

// showLogs prints what the programs of a section that fails have written to their logs.
func (r *reader) showLogs(t *testing.T) {
	if !t.Failed() {
		return
	}
	logs, err := filepath.Glob(filepath.Join(r.folder, "*.log"))
	if err != nil {
		t.Error(err)
	}
	for _, name := range logs {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Error(err)
		}
		t.Logf("%s:\n%s", filepath.Base(name), text[max(0, len(text)-4000):])
	}
}

// ownPort matches the ports at which a section itself starts relays.
var ownPort = regexp.MustCompile(`\b88[0-9]{2}\b`)

// onFreePorts replaces the ports of text at which a section starts relays, so that sections can be followed at the same
// time.
func (r *reader) onFreePorts(t *testing.T, text string) string {
	t.Helper()
	return ownPort.ReplaceAllStringFunc(text, func(port string) string {
		if r.ports[port] == "" {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			_, r.ports[port], _ = net.SplitHostPort(l.Addr().String())
		}
		return r.ports[port]
	})
}

// eachFails returns commands that succeed if each line of text fails.
func eachFails(text string) (commands string) {
	for line := range strings.Lines(text) {
		commands += "if " + strings.TrimSuffix(line, "\n") + "; then false; fi\n"
	}
	return commands
}

// fileName matches the beginning of a block that is the content of a file.
var fileName = regexp.MustCompile(`^(?:#!.*\n)?(?://|#) ([\w.-]+\.\w+)\n`)

// follow does what the blocks of a section say, one after the other. See the package comment.
func (r *reader) follow(t *testing.T, section markdown.Section) {
	t.Helper()
	var printed string   // by the block before, if it was for the reader's terminal
	var beside *terminal // that the block before has started
	for _, b := range section.Blocks {
		text := r.onFreePorts(t, strings.ReplaceAll(b.Text, "http://127.0.0.1:8789", r.url))
		terminalBlock := b.Language == "sh" && slices.Contains(b.Words, "terminal")
		if beside != nil && b.Language != "output" {
			t.Fatalf("line %d: after a terminal, the page must show by what its reader sees that it is ready", b.Line)
		}
		switch name := fileName.FindStringSubmatch(b.Text); {
		case name != nil:
			if err := os.WriteFile(filepath.Join(r.folder, name[1]), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		case terminalBlock:
			beside = r.way.open(t, r.folder, r.environment, text)
			r.terminals = append(r.terminals, beside)
			continue
		case b.Language == "sh" && slices.Contains(b.Words, "fails"):
			printed = r.shell.run(t, eachFails(text))
			continue
		case b.Language == "sh":
			printed = r.shell.run(t, text)
			continue
		case b.Language == "output" && beside != nil:
			beside.await(t, text)
		case b.Language == "output":
			if missing := missingLine(printed, text); missing != "" {
				t.Fatalf("line %d: %q is not printed, but:\n%s", b.Line, missing, printed)
			}
		}
		printed, beside = "", nil
	}
	for _, term := range r.terminals {
		if addresses := listeners(t, term.cmd.Process.Pid); len(addresses) > 0 {
			t.Errorf("an agent behind NAT cannot listen, but this one does: %q", addresses)
		}
		select {
		case <-term.ended:
			if term.err != nil {
				t.Errorf("a terminal ended with %v:\n%s", term.err, term.output.String())
			}
		default:
			term.stop(syscall.SIGINT)
		}
	}
}
