package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryVerbHasAnExample asks each verb for help as a user would.
func TestEveryVerbHasAnExample(t *testing.T) {
	verbs := "serve|keygen|did|canonicalize|sign|verify|send|send request|send offer|send accept|send result|send error|" +
		"send cancel|send manifest|send raw|follow|thread|agents|conformance|bench|backup|check|version"
	for verb := range strings.SplitSeq(verbs, "|") {
		var stdout, stderr bytes.Buffer
		env := environment{t.Context(), strings.NewReader(""), &stdout, &stderr}
		if code := run(env, append(strings.Fields(verb), "--help")); code != exitOK || !strings.Contains(stdout.String(), "Example") {
			t.Errorf("agora %s --help ended with %d:\n%s%s", verb, code, stdout.String(), stderr.String())
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(environment{t.Context(), nil, &stdout, &stderr}, []string{"--help"}); code != exitOK {
		t.Fatal(code)
	}
	for line := range strings.Lines(stdout.String()) {
		if name, found := strings.CutPrefix(line, "  "); found && !strings.HasPrefix(name, "-") {
			if name = strings.TrimSpace(strings.SplitN(name, "  ", 2)[0]); !strings.Contains(verbs, name) {
				t.Errorf("this test does not know the verb %q", name)
			}
		}
	}
}

// TestInterruptEndsReading holds that a verb which waits for standard input ends with its context.
func TestInterruptEndsReading(t *testing.T) {
	stdin, typing := io.Pipe()
	defer typing.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var stdout, stderr bytes.Buffer
	code := run(environment{ctx, stdin, &stdout, &stderr}, []string{"canonicalize"})
	if code != exitFailed || !strings.Contains(stderr.String(), "interrupted") || stdout.Len() > 0 {
		t.Errorf("ended with %d: %s%s", code, stdout.String(), stderr.String())
	}
}

// TestStopDuringStart holds that a relay which is told to stop before it listens ends as quietly as a running one.
func TestStopDuringStart(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var stdout, stderr bytes.Buffer
	code := run(environment{ctx, nil, &stdout, &stderr}, []string{"serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data")})
	if code != exitOK || !strings.Contains(stderr.String(), `"msg":"stopping"`) || strings.Contains(stderr.String(), "agora: ") || stdout.Len() > 0 {
		t.Errorf("ended with %d: %s%s", code, stdout.String(), stderr.String())
	}
}
