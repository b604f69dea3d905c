//go:build unix

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// TestSettingsInPipes names a pipe where serve expects a file. It must not wait for somebody to write into the pipe.
func TestSettingsInPipes(t *testing.T) {
	clearSettings(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--config", pipe}, {"--tls-cert", pipe, "--tls-key", pipe}} {
		var stdout, stderr bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdout: &stdout, Stderr: &stderr}, append([]string{"serve", "--check-config"}, args...))
		if code == cli.ExitOK || !strings.Contains(stderr.String(), "is not a regular file") {
			t.Errorf("%s with a pipe ended with %d: %s", args[0], code, stderr.String())
		}
	}
}
