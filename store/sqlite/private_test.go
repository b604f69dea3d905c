//go:build unix

package sqlite

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// modes returns which files of a folder other users can open, with their modes, and the number of files.
func modes(t *testing.T, folder string) (open []string, all int) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm()&0o077 != 0 {
			open = append(open, entry.Name()+" "+info.Mode().String())
		}
	}
	return open, len(entries)
}

// TestFilesArePrivate opens stores with umasks that would let other users read the files, in a folder that others can
// enter. It also opens files whose modes let others read them.
func TestFilesArePrivate(t *testing.T) {
	for name, umask := range map[string]int{"no umask": 0, "the usual umask": 0o022} {
		t.Run(name, func(t *testing.T) {
			old := syscall.Umask(umask)
			defer syscall.Umask(old)
			folder := t.TempDir()
			if err := os.Chmod(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(folder, "agora.db")
			use := func(when string) {
				s, err := Open(t.Context(), path, Options{Reserve: 1 << 20, tickInterval: never})
				if err != nil {
					t.Fatal(err)
				}
				if err := converse(t.Context(), s, 0); err != nil {
					t.Fatal(err)
				}
				if err := tick(s, time.Now()); err != nil {
					t.Fatal(err)
				}
				if open, all := modes(t, folder); len(open) > 0 || all < len(fileSuffixes) {
					t.Errorf("%s, other users can read %q of %d files", when, open, all)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			use("in a new folder")
			if err := os.WriteFile(path+"-wal", nil, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, ending := range fileSuffixes {
				if err := os.Chmod(path+ending, 0o666); err != nil && ending != "-shm" {
					t.Fatal(err)
				}
			}
			use("after files that others could read")
			if _, err := Backup(t.Context(), path, filepath.Join(folder, "copy.db"), nil); err != nil {
				t.Fatal(err)
			}
			if open, _ := modes(t, folder); len(open) > 0 {
				t.Errorf("after a backup, others can read %q", open)
			}
		})
	}
}
