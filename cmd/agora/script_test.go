package main

import (
	"bufio"
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay/policycmd"
)

func TestMain(m *testing.M) {
	testscript.Main(withoutLeaks{m}, map[string]func(){"agora": main, "policy": playPolicy})
}

// playPolicy is a policy program that decides like the one in docs/OPERATING.md.
func playPolicy() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var q policycmd.Question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		switch {
		case q.Event.Bytes > 32768:
			fmt.Printf("{\"id\":%d,\"accept\":false,\"message\":\"messages have at most 32 KiB here\"}\n", q.ID)
		case q.Event.Intent == "gamble":
			fmt.Printf("{\"id\":%d,\"accept\":false,\"message\":\"no gambling\"}\n", q.ID)
		default:
			fmt.Printf("{\"id\":%d,\"accept\":true}\n", q.ID)
		}
	}
}

// withoutLeaks runs the tests and fails if a goroutine outlives them.
type withoutLeaks struct{ *testing.M }

func (m withoutLeaks) Run() int {
	// Tests do not use the profile, the address book, the key, the relay and the time zone of the person who runs them.
	// Most compare output without colours.
	home, err := os.MkdirTemp("", "agora-test")
	if err = errors.Join(err, os.Unsetenv("AGORA_KEY"), os.Unsetenv("AGORA_RELAY"), os.Setenv("XDG_CONFIG_HOME", home),
		os.Setenv("XDG_CACHE_HOME", home), os.Setenv("NO_COLOR", "1")); err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(home) }()
	time.Local = time.FixedZone("CET", 3600)
	code := m.M.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// TestScripts runs the scripts in testdata, which look like a session at a terminal. In addition to testscript's own
// commands, a script can use these:
//
//	relay start [FLAG...]   starts agora serve on a free port, with the same data folder each time, and sets AGORA_RELAY,
//	                        AGORA_OWN_PAGE and, with --hub-addr, AGORA_HUB
//	relay kill              kills the relay without warning
//	relay stop              interrupts the relay, and fails unless it exits with 0
//	node start NAME         starts one more relay, and sets the variable NAME to its URL; node kill NAME and node stop
//	                        NAME end it
//	page start URL          starts agora page on a free port and sets AGORA_PAGE; page kill and page stop end it
//	curl [-H HEADER]... [-d FILE] PATH|URL
//	                        sends a request, by default to the relay, and prints the answer to stdout
//	exitcode N COMMAND...   runs a command and fails unless its exit code is N
//	keep NAME REGEXP        sets a variable to the text that the group of REGEXP matches in the last command's stdout
//	expand FILE             replaces each $NAME in a file by the value of the variable NAME
func TestScripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(files) < 10 {
		t.Fatalf("the scripts: %q, %v", files, err)
	}
	if racing.Detector { // these have the most that is concurrent; a program with race detection takes 200 ms to start
		files = []string{"testdata/bench.txtar", "testdata/hub.txtar"}
	}
	if testing.Short() { // ./internal/bench and ./conformance test the same without processes
		files = slices.DeleteFunc(files, func(name string) bool {
			return !racing.Detector && slices.Contains([]string{"bench.txtar", "conformance.txtar"}, filepath.Base(name))
		})
	}
	testscript.Run(t, testscript.Params{
		Files: files,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"relay": relayCommand, "node": nodeCommand, "page": pageCommand, "curl": curlCommand, "exitcode": exitcodeCommand,
			"keep": keepCommand, "expand": expandCommand, "damage": damageCommand,
		},
		Setup: func(env *testscript.Env) error {
			env.Values[runningValue{}] = running{}
			env.Setenv("GORACE", os.Getenv("GORACE")) // see the Makefile
			env.Defer(func() {
				for _, p := range env.Values[runningValue{}].(running) {
					_ = p.end(os.Kill) // the error says only that a signal ended the process
				}
			})
			return nil
		},
	})
}

func exitcodeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exitcode N COMMAND...")
	}
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if want := args[0]; strconv.Itoa(code) != want {
		ts.Fatalf("exit code %d, want %s", code, want)
	}
}

func keepCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keep NAME REGEXP")
	}
	expression, err := regexp.Compile(args[1])
	ts.Check(err)
	match := expression.FindStringSubmatch(ts.ReadFile("stdout"))
	if len(match) != 2 {
		ts.Fatalf("%s matches %q in the output, want a match with one group", args[1], match)
	}
	ts.Setenv(args[0], match[1])
}

func expandCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: expand FILE")
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(os.Expand(ts.ReadFile(args[0]), ts.Getenv)), 0o600))
}

// damageCommand runs an SQL statement on the database of the relay, which must be stopped.
func damageCommand(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: damage STATEMENT")
	}
	db, err := sql.Open("sqlite", ts.MkAbs(filepath.Join("agora-data", datafolder.Database)))
	ts.Check(err)
	_, err = db.Exec(args[0])
	ts.Check(errors.Join(err, db.Close()))
}

type runningValue struct{}

// running are the programs that run beside a script, by the name of the command that starts them.
type running map[string]*process

// process is a program that runs beside a script.
type process struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

func (p *process) end(signal os.Signal) error {
	return errors.Join(p.cmd.Process.Signal(signal), p.cmd.Wait())
}

func relayCommand(ts *testscript.TestScript, neg bool, args []string) {
	control(ts, neg, "relay", args, []string{"serve", "--addr", "127.0.0.1:0", "--data", ts.MkAbs("agora-data")},
		map[string]string{"hub listening on ": "AGORA_HUB", "page at ": "AGORA_OWN_PAGE", "listening on ": "AGORA_RELAY"}, "AGORA_RELAY")
}

func nodeCommand(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: node start|kill|stop NAME")
	}
	control(ts, neg, "node "+args[1], args[:1], []string{"serve", "--addr", "127.0.0.1:0", "--data",
		ts.MkAbs("data-" + args[1])},
		map[string]string{"listening on ": args[1]}, args[1])
}

func pageCommand(ts *testscript.TestScript, neg bool, args []string) {
	control(ts, neg, "page", args, []string{"page", "--addr", "127.0.0.1:0"}, map[string]string{"page at ": "AGORA_PAGE"}, "AGORA_PAGE")
}

// control starts or ends the program that the script's command name is for. args are those of the command. start are
// the first arguments of agora. variables says which beginning of a line of its output is followed by the value of which
// variable. The program has started when it has printed that of last.
func control(
	ts *testscript.TestScript, neg bool, name string, args, start []string, variables map[string]string, last string,
) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: %s start|kill|stop", name)
	}
	all := ts.Value(runningValue{}).(running)
	p := all[name]
	if (p == nil) != (args[0] == "start") {
		ts.Fatalf("%s %s: the program runs: %v", name, args[0], p != nil)
	}
	switch args[0] {
	case "start":
		all[name] = startProcess(ts, append(start, args[1:]...), variables, last)
		return
	case "kill":
		_ = p.end(os.Kill)
	case "stop":
		if err := p.end(os.Interrupt); err != nil {
			ts.Fatalf("agora %s ended with %v\n%s", start[0], err, p.log.String())
		}
	default:
		ts.Fatalf("unknown command: %s %s", name, args[0])
	}
	delete(all, name)
}

func startProcess(ts *testscript.TestScript, args []string, variables map[string]string, last string) *process {
	p := &process{cmd: exec.Command("agora", args...)}
	p.cmd.Path = lookPath(ts)
	p.cmd.Err = nil
	p.cmd.Stderr = &p.log
	stdout, err := p.cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(p.cmd.Start())
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		for before, variable := range variables {
			if value, ok := strings.CutPrefix(lines.Text(), before); ok {
				ts.Setenv(variable, value)
				if variable == last {
					return p
				}
			}
		}
	}
	_ = p.end(os.Kill)
	ts.Fatalf("agora %s did not start:\n%s", args[0], p.log.String())
	return nil
}

// lookPath finds the agora that testscript has put into the script's PATH.
func lookPath(ts *testscript.TestScript) string {
	for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
		path := filepath.Join(dir, "agora")
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	ts.Fatalf("no agora in PATH")
	return ""
}

// TestReadmeWalkThrough checks that walkthrough.txtar runs each agora command of the README's walk-through, exactly as
// it is written there, that seal.txtar runs those of docs/SEALING.md, where DID is that of Bob, that hub.txtar runs those
// of docs/HUB.md, and that mcpskill.txtar runs those of the page for agents.
func TestReadmeWalkThrough(t *testing.T) {
	checkReadme(t, "walkthrough.txtar", "README.md", "## Five minutes", "## What the relay promises", 10)
	checkReadme(t, "seal.txtar", "docs/SEALING.md", "## Use it", "## What it gives", 6)
	checkReadme(t, "hub.txtar", "docs/HUB.md", "## From the shell", "## Endpoints", 10)
	checkReadme(t, "mcpskill.txtar", "cmd/agora/internal/mcpserver/skill.md", "## Begin", "## If something fails", 15)
}

func checkReadme(t *testing.T, name, document, from, to string, fewest int) {
	t.Helper()
	text, err := os.ReadFile("../../" + document)
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), from)
	section, _, ok := strings.Cut(rest, to)
	if !ok {
		t.Fatalf("%s has no section from %q to %q", document, from, to)
	}
	commands := 0
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "agora ") {
			continue
		}
		commands++
		// A script has no redirections; it uses cp stdout FILE.
		line, _, _ = strings.Cut(line, " > ")
		line, _, _ = strings.Cut(line, "  ") // a comment
		line = strings.Replace(line, " DID ", " $BOB ", 1)
		line = strings.Replace(line, "http://127.0.0.1:8789", "$AGORA_RELAY", 1)
		if !strings.Contains(string(script), "exec "+line) {
			t.Errorf("testdata/%s does not run: %s", name, line)
		}
	}
	if commands < fewest {
		t.Errorf("only %d commands found in %s", commands, document)
	}
}

// TestWalkThroughTimeouts checks that the threads of `make run` wait long enough for a slow reader of the README, and
// that the script starts the relay with the same flags.
func TestWalkThroughTimeouts(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/walkthrough.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(makefile), "exec bin/agora serve ")
	flags, _, found := strings.Cut(rest, "\n")
	if !found || !strings.Contains(string(script), "relay start "+flags+"\n") {
		t.Errorf("the script does not start the relay with %q", flags)
	}
	var line commandLine
	parser, err := newParser(&line)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parser.Parse(append([]string{"serve"}, strings.Fields(flags)...)); err != nil {
		t.Fatal(err)
	}
	if line.Serve.PendingTimeout < 12*time.Hour || line.Serve.ActiveTimeout < 12*time.Hour {
		t.Errorf("threads wait only %v and %v", line.Serve.PendingTimeout, line.Serve.ActiveTimeout)
	}
}

// TestReadmeCommands checks that every agora command in the README and in the pages for users is a known command with
// known flags.
func TestReadmeCommands(t *testing.T) {
	var documents []byte
	t.Setenv("AGORA_CHANNEL_URL", "http://127.0.0.1:8789/channel/channels/ch_1") // docs/CHANNEL.md sets it too
	for _, name := range []string{"README.md", "docs/OPERATING.md", "docs/SEALING.md", "docs/HTTP.md", "docs/HUB.md", "docs/PAGE.md",
		"docs/CHANNEL.md", "docs/JOBS.md", "docs/MCP.md", "docs/CONFIGURATION.md"} {
		text, err := os.ReadFile("../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, text...)
	}
	example := regexp.MustCompile("(?s)```toml\n(.*?)```").FindSubmatch(documents)
	if example == nil {
		t.Fatal("docs/CONFIGURATION.md has no example")
	}
	t.Chdir(t.TempDir())
	if err := os.WriteFile("agora.toml", example[1], 0o600); err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(documents), -1) {
		for line := range strings.Lines(block[1]) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " > ")
			line, _, _ = strings.Cut(line, "  #") // a comment
			line, _, _ = strings.Cut(line, " | ")
			if !strings.HasPrefix(line, "agora ") {
				continue
			}
			commands++
			var args []string
			for _, word := range regexp.MustCompile(`'[^']*'|"[^"]*"|\S+`).FindAllString(strings.TrimSuffix(line, " &"), -1) {
				switch word = strings.Trim(word, `'"`); word {
				case "DID":
					word = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
				case "AGENT", "JOB", "$AGENT", "$JOB":
					word = testAgent
				}
				args = append(args, word)
			}
			parser, err := newParser(new(commandLine))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := parser.Parse(args[1:]); err != nil && !strings.Contains(err.Error(), "there is no database") {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	if commands < 40 {
		t.Errorf("only %d commands found", commands)
	}
}
