package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// TestBannerComesFirst checks that a first start prints where the relay is before anything else, and no warning.
func TestBannerComesFirst(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	printed, ended := new(logText), make(chan int, 1)
	go func() {
		ended <- run(cli.Environment{Ctx: ctx, Stdout: printed, Stderr: printed},
			[]string{"serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(t.TempDir(), "data")})
	}()
	printed.await(t, `"msg":"listening"`)
	cancel()
	if code := <-ended; code != cli.ExitOK || !strings.HasPrefix(printed.String(), "Agora relay did:key:") ||
		strings.Contains(printed.String(), "WARN") {
		t.Errorf("ended with %d:\n%s", code, printed.String())
	}
}
