//go:build unix

package main

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// TestFilesArePrivate runs the commands that create files, with a umask that would allow everybody everything. All
// files must be private nevertheless.
func TestFilesArePrivate(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	folder := filepath.Join(t.TempDir(), "place")
	data := filepath.Join(folder, "deep", "data")
	startServe(t, "--data", data).stop()
	for _, args := range [][]string{{"keygen", filepath.Join(folder, "my.key")}, {"backup", "--data", data, filepath.Join(folder, "backups", "monday")}} {
		if code, output := runAgora(t.Context(), args...); code != cli.ExitOK {
			t.Fatalf("%d: %s", code, output)
		}
	}
	if err := client.FileCursor(filepath.Join(folder, "cursor")).Save(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if files++; err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("other users can open %s: %v", path, info.Mode())
		}
		return err
	})
	if err != nil || files < 12 {
		t.Errorf("%d files, %v", files, err)
	}

	if err := os.Chmod(data, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a relay that starts must not serve for ever
	defer cancel()
	code, output := runAgora(ctx, "serve", "--addr", "127.0.0.1:0", "--data", data)
	if code != cli.ExitFailed || !strings.Contains(output, "(mode 0755); run: chmod 700 "+data) {
		t.Errorf("serve with a data folder that others can enter ends with %d: %s", code, output)
	}
}
