package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/internal/racing"
)

// commandNames returns the names of all commands, such as "send offer", in the order of the help.
func commandNames(t *testing.T) (names []string) {
	t.Helper()
	parser, err := newParser(new(commandLine))
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parser.Model.Leaves(false) {
		names = append(names, strings.TrimPrefix(leaf.FullPath(), "agora "))
	}
	if len(names) < 20 {
		t.Fatalf("found only the commands %q", names)
	}
	return names
}

// TestOnlyCommand checks that each command is parsed without the other ones. All are parsed if none is named.
func TestOnlyCommand(t *testing.T) {
	app, err := wholeCommandLine()
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range app.Children {
		parser, err := newParser(new(commandLine), onlyCommand([]string{command.Name, "--help"}))
		if err != nil {
			t.Fatal(err)
		}
		if parsed := parser.Model.Children; len(parsed) != 1 || parsed[0].Name != command.Name {
			t.Errorf("%s: %d commands are parsed", command.Name, len(parsed))
		}
	}
	parser, err := newParser(new(commandLine), onlyCommand([]string{"--profile", "p", "send"}))
	if err != nil || len(parser.Model.Children) != len(app.Children) {
		t.Errorf("%d of %d commands, %v", len(parser.Model.Children), len(app.Children), err)
	}
}

// TestEveryCommandHasAnExample runs the help of each command as a user would. The help must contain an example.
func TestEveryCommandHasAnExample(t *testing.T) {
	for i, name := range append(commandNames(t), "send") {
		if racing.Detector && i%8 != 0 {
			continue // making a parser takes 50 ms, and it is the same one for all commands
		}
		for _, args := range [][]string{append(strings.Fields(name), "--help"), append([]string{"help"}, strings.Fields(name)...)} {
			var stdout, stderr bytes.Buffer
			env := cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}
			if code := run(env, args); code != cli.ExitOK || !strings.Contains(stdout.String(), "Example") {
				t.Errorf("agora %q ended with %d:\n%s%s", args, code, stdout.String(), stderr.String())
			}
		}
	}
}

// TestHelpListsCommands checks that agora and agora help list the commands for every day, and that agora help all lists
// all commands but those that only scripts run.
func TestHelpListsCommands(t *testing.T) {
	everyday := []string{"serve", "init", "name", "keygen", "ask", "send", "follow", "threads", "thread", "agents", "work", "hub",
		"channel", "jobs", "a2a", "mcp"}
	hidden := []string{"complete", "generate"}
	for _, args := range [][]string{nil, {"help"}, {"--help"}, {"help", "all"}} {
		var stdout, stderr bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}, args)
		for _, name := range commandNames(t) {
			command, _, _ := strings.Cut(name, " ")
			want := slices.Contains(everyday, command)
			if len(args) == 2 {
				want = !slices.Contains(hidden, command)
			}
			if named := strings.Contains(stdout.String(), "\n  "+command+" "); code != cli.ExitOK || named != want {
				t.Errorf("agora %q ends with %d and names %s: %v", args, code, command, named)
			}
		}
		if !strings.Contains(stdout.String(), "agora") || len(args) < 2 && !strings.Contains(stdout.String(), "agora help all") {
			t.Errorf("agora %q prints no way to the other commands:\n%s", args, stdout.String())
		}
		for line := range strings.Lines(stdout.String()) {
			if len(strings.TrimSuffix(line, "\n")) > cli.DefaultWidth {
				t.Errorf("agora %q prints a line of %d columns: %s", args, len(line), line)
			}
		}
	}
}

// TestMessagesListIsComplete checks that the list messages, which is used to recognize mistyped names, is complete.
func TestMessagesListIsComplete(t *testing.T) {
	var below []string
	for _, name := range commandNames(t) {
		if message, found := strings.CutPrefix(name, "send "); found {
			below = append(below, message)
		}
	}
	if !slices.Equal(below, trade.Messages) {
		t.Errorf("send has %q, messages are %q", below, trade.Messages)
	}
}

// TestInterruptWhileReadingInput checks that a command that waits for standard input ends when its context ends.
func TestInterruptWhileReadingInput(t *testing.T) {
	stdin, typing := io.Pipe()
	defer typing.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var stdout, stderr bytes.Buffer
	code := run(cli.Environment{Ctx: ctx, Stdin: stdin, Stdout: &stdout, Stderr: &stderr}, []string{"canonicalize"})
	if code != cli.ExitFailed || !strings.Contains(stderr.String(), "interrupted") || stdout.Len() > 0 {
		t.Errorf("ended with %d: %s%s", code, stdout.String(), stderr.String())
	}
}

// TestStopDuringStart checks that a relay that is told to stop before it listens ends without an error, like a running
// relay.
func TestStopDuringStart(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var stdout, stderr bytes.Buffer
	code := run(cli.Environment{Ctx: ctx, Stdin: nil, Stdout: &stdout, Stderr: &stderr}, []string{"serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data")})
	if code != cli.ExitOK || !strings.Contains(stderr.String(), `"msg":"stopping"`) || strings.Contains(stderr.String(), "agora: ") || stdout.Len() > 0 {
		t.Errorf("ended with %d: %s%s", code, stdout.String(), stderr.String())
	}
}

// TestPromptsForTerminalInput checks that a command prints a prompt if its standard input is a terminal, and only then.
func TestPromptsForTerminalInput(t *testing.T) {
	for _, typed := range []bool{true, false} {
		for _, command := range []string{"canonicalize", "verify", "send", "send raw", "send manifest --key KEY", "sign --key KEY"} {
			file := keyFile(t, newKey(t))
			var stdout, stderr bytes.Buffer
			run(cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr, StdinIsTerminal: typed},
				strings.Fields(strings.ReplaceAll(command, "KEY", file)))
			if said := strings.Contains(stderr.String(), "from the terminal; end it with Ctrl-D"); said != typed {
				t.Errorf("agora %s, typed %v, says %q", command, typed, stderr.String())
			}
		}
	}
}

// TestReceipts checks that a receipt is printed as JSON, except on a terminal, and that it names the recipient of a
// sealed message.
func TestReceipts(t *testing.T) {
	bob, l := newKey(t).DID(), newLiar(t)
	file := keyFile(t, newKey(t))
	for name, c := range map[string]struct {
		shown bool
		flag  string
		want  string
	}{
		"pipe": {false, "--seal", `"recipient":"` + string(bob) + `","sealed":true`}, "terminal with --json": {true, "--json", `{"ok":true,`},
		"terminal": {true, "--seal", "\n  to      " + string(bob) + "  (sealed: only the recipient can read it)\n"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr, StdoutIsTerminal: c.shown},
			[]string{"send", "request", "--key", file, "--relay", l.URL, "--to", string(bob), "--intent", "i", c.flag})
		if code != cli.ExitOK || !strings.Contains(stdout.String(), c.want) || json.Valid(stdout.Bytes()) != (name != "terminal") {
			t.Errorf("%s: %d, %s%s", name, code, stdout.String(), stderr.String())
		}
	}
}

// TestClosedPipe checks that agora ends without a message if the reader of its output ends first, as head does.
func TestClosedPipe(t *testing.T) {
	if runtime.GOOS == "windows" {
		return
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	agora := exec.Command("agora", "--help") // testscript.Main has put it into PATH
	agora.Stdout, agora.Stderr = writer, &stderr
	err = errors.Join(agora.Run(), writer.Close())
	if err == nil || stderr.Len() > 0 {
		t.Errorf("ended with %v and printed %q", err, stderr.String())
	}
}
