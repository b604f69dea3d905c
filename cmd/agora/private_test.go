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
)

// TestFilesArePrivate creates all files that agora creates, with a umask that gives everybody all rights.
func TestFilesArePrivate(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	place := filepath.Join(t.TempDir(), "place")
	data := filepath.Join(place, "deep", "data")
	serve := func() (code int, said string) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return verb(ctx, "serve", "--addr", "127.0.0.1:0", "--data", data)
	}
	if code, said := serve(); code != exitOK {
		t.Fatalf("%d: %s", code, said)
	}
	for _, args := range [][]string{{"keygen", filepath.Join(place, "my.key")}, {"backup", "--data", data, filepath.Join(place, "backups", "monday")}} {
		if code, said := verb(t.Context(), args...); code != exitOK {
			t.Fatalf("%d: %s", code, said)
		}
	}
	if err := client.FileCursor(filepath.Join(place, "cursor")).Save(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	files := 0
	err := filepath.WalkDir(place, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if files++; err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others can open %s: %v", path, info.Mode())
		}
		return err
	})
	if err != nil || files < 12 {
		t.Errorf("%d files, %v", files, err)
	}

	if err := os.Chmod(data, 0o755); err != nil {
		t.Fatal(err)
	}
	if code, said := serve(); code != exitFailed || !strings.Contains(said, "(mode 0755); run: chmod 700 "+data) {
		t.Errorf("in a folder that others can enter it ends with %d: %s", code, said)
	}
}
