package main

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
)

// TestRestoreKeepsOwner checks that a relay with its own user can use what root has restored.
func TestRestoreKeepsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root, to give files to another user")
		}
		t.Skip("needs root, to give files to another user")
	}
	clearSettings(t)
	const user, group = 65533, 65532
	folder := t.TempDir()
	data, backup := filepath.Join(folder, "data"), filepath.Join(folder, "backup")
	startServe(t, "--data", data).stop()
	for _, args := range [][]string{{"backup", "--data", data, backup}, {"restore", backup, "--data", data, "--replace"}} {
		if err := os.Lchown(data, user, group); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if code := run(cli.Environment{Ctx: context.Background(), Stdout: &out, Stderr: &out}, args); code != cli.ExitOK {
			t.Fatalf("%q: %s", args, out.String())
		}
	}
	files := 0
	err := filepath.WalkDir(data, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		files++
		if owner := info.Sys().(*syscall.Stat_t); owner.Uid != user || owner.Gid != group {
			t.Errorf("%s belongs to %d:%d", path, owner.Uid, owner.Gid)
		}
		return nil
	})
	if err != nil || files < 3 {
		t.Errorf("%d files, %v", files, err)
	}
}
