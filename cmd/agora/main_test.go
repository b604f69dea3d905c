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
)

// verbsOf returns the names of all verbs, such as "send offer", in the order of the help.
func verbsOf(t *testing.T) (names []string) {
	t.Helper()
	parser, err := newParser(new(verbs))
	if err != nil {
		t.Fatal(err)
	}
	for _, leaf := range parser.Model.Leaves(false) {
		names = append(names, strings.TrimPrefix(leaf.FullPath(), "agora "))
	}
	if len(names) < 20 {
		t.Fatalf("only the verbs %q", names)
	}
	return names
}

// TestEveryVerbHasAnExample asks each verb for help as a user would.
func TestEveryVerbHasAnExample(t *testing.T) {
	for _, name := range append(verbsOf(t), "send") {
		for _, args := range [][]string{append(strings.Fields(name), "--help"), append([]string{"help"}, strings.Fields(name)...)} {
			var stdout, stderr bytes.Buffer
			env := environment{ctx: t.Context(), stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr}
			if code := run(env, args); code != exitOK || !strings.Contains(stdout.String(), "Example") {
				t.Errorf("agora %q ended with %d:\n%s%s", args, code, stdout.String(), stderr.String())
			}
		}
	}
	for _, args := range [][]string{nil, {"help"}, {"--help"}} {
		var stdout, stderr bytes.Buffer
		code := run(environment{ctx: t.Context(), stdout: &stdout, stderr: &stderr}, args)
		for _, name := range verbsOf(t) {
			if verb, _, _ := strings.Cut(name, " "); code != exitOK || !strings.Contains(stdout.String(), "\n  "+verb+" ") {
				t.Errorf("agora %q ends with %d and does not name %s", args, code, verb)
			}
		}
	}
}

// TestEveryVerbOfSend holds that the list of messages, which recognizes mistyped ones, is complete.
func TestEveryVerbOfSend(t *testing.T) {
	var below []string
	for _, name := range verbsOf(t) {
		if message, found := strings.CutPrefix(name, "send "); found {
			below = append(below, message)
		}
	}
	if !slices.Equal(below, messages) {
		t.Errorf("send has %q, messages are %q", below, messages)
	}
}

// TestInterruptEndsReading holds that a verb which waits for standard input ends with its context.
func TestInterruptEndsReading(t *testing.T) {
	stdin, typing := io.Pipe()
	defer typing.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var stdout, stderr bytes.Buffer
	code := run(environment{ctx: ctx, stdin: stdin, stdout: &stdout, stderr: &stderr}, []string{"canonicalize"})
	if code != exitFailed || !strings.Contains(stderr.String(), "interrupted") || stdout.Len() > 0 {
		t.Errorf("ended with %d: %s%s", code, stdout.String(), stderr.String())
	}
}

// TestStopDuringStart holds that a relay which is told to stop before it listens ends as quietly as a running one.
func TestStopDuringStart(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var stdout, stderr bytes.Buffer
	code := run(environment{ctx: ctx, stdin: nil, stdout: &stdout, stderr: &stderr}, []string{"serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data")})
	if code != exitOK || !strings.Contains(stderr.String(), `"msg":"stopping"`) || strings.Contains(stderr.String(), "agora: ") || stdout.Len() > 0 {
		t.Errorf("ended with %d: %s%s", code, stdout.String(), stderr.String())
	}
}

// TestWaitingIsSaid holds that a verb says so if it waits for a person to type, and only then.
func TestWaitingIsSaid(t *testing.T) {
	for _, typed := range []bool{true, false} {
		for _, verb := range []string{"canonicalize", "verify", "send", "send raw", "send manifest --key KEY", "sign --key KEY"} {
			file := keyFile(t, newKey(t))
			var stdout, stderr bytes.Buffer
			run(environment{ctx: t.Context(), stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, typed: typed},
				strings.Fields(strings.ReplaceAll(verb, "KEY", file)))
			if said := strings.Contains(stderr.String(), "from the terminal; end it with Ctrl-D"); said != typed {
				t.Errorf("agora %s, typed %v, says %q", verb, typed, stderr.String())
			}
		}
	}
}

// TestReceipts holds that a receipt is JSON except on a terminal, and that it names the recipient of a sealed message.
func TestReceipts(t *testing.T) {
	bob, l := newKey(t).DID(), newLiar(t)
	file := keyFile(t, newKey(t))
	for name, c := range map[string]struct {
		shown bool
		flag  string
		want  string
	}{
		"pipe": {false, "--seal", `"recipient":"` + string(bob) + `","sealed":true`}, "terminal with --json": {true, "--json", `{"ok":true,`},
		"terminal": {true, "--seal", "\n  to      " + string(bob) + "  (sealed: nobody else can read it)\n"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(environment{ctx: t.Context(), stdout: &stdout, stderr: &stderr, shown: c.shown},
			[]string{"send", "request", "--key", file, "--relay", l.URL, "--to", string(bob), "--intent", "i", c.flag})
		if code != exitOK || !strings.Contains(stdout.String(), c.want) || json.Valid(stdout.Bytes()) != (name != "terminal") {
			t.Errorf("%s: %d, %s%s", name, code, stdout.String(), stderr.String())
		}
	}
}

// TestClosedPipe holds that agora ends without a message if the reader of its output ends first, as head does.
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
	agora := exec.Command("agora", "--help") // which testscript.Main has put into PATH
	agora.Stdout, agora.Stderr = writer, &stderr
	err = errors.Join(agora.Run(), writer.Close())
	if err == nil || stderr.Len() > 0 {
		t.Errorf("ended with %v, saying %q", err, stderr.String())
	}
}
