package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/sqlite"
)

// folderOf makes a data folder with an empty database and a key.
func folderOf(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	store, err := sqlite.Open(t.Context(), filepath.Join(folder, databaseName), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	key, err := didkey.Generate()
	if err == nil {
		err = didkey.Save(filepath.Join(folder, keyName), key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func verb(ctx context.Context, args ...string) (code int, said string) {
	var out bytes.Buffer
	code = run(environment{ctx: ctx, stdin: nil, stdout: &out, stderr: &out}, args)
	return code, out.String()
}

func names(t *testing.T, folder string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// A backup that is interrupted, or cannot be made, leaves nothing of itself.
func TestBackupLeavesNothing(t *testing.T) {
	folder, parent := folderOf(t), t.TempDir()
	dest := filepath.Join(parent, "monday")
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	code, said := verb(interrupted, "backup", "--data", folder, dest)
	if left := names(t, parent); code != exitFailed || !strings.Contains(said, "interrupted") || len(left) > 0 {
		t.Errorf("interrupted it ends with %d (%s) and leaves %v", code, said, left)
	}
	if code, said := verb(interrupted, "check", "--data", folder); code != exitFailed || !strings.Contains(said, "interrupted") || strings.Contains(said, "clean") {
		t.Errorf("an interrupted check ends with %d: %s", code, said)
	}
	if err := os.Remove(filepath.Join(folder, keyName)); err != nil {
		t.Fatal(err)
	}
	code, said = verb(t.Context(), "backup", "--data", folder, dest)
	if left := names(t, parent); code != exitFailed || !strings.Contains(said, keyName) || len(left) > 0 {
		t.Errorf("without a key it ends with %d (%s) and leaves %v", code, said, left)
	}
}

// A backup is its owner's only, holds the relay's key and database and nothing else, and takes no folder that is in
// use.
func TestBackupFolder(t *testing.T) {
	folder, parent := folderOf(t), t.TempDir()
	dest := filepath.Join(parent, "week", "monday")
	if code, said := verb(t.Context(), "backup", "--data", folder, dest); code != exitOK {
		t.Fatalf("%d: %s", code, said)
	}
	if got := strings.Join(names(t, dest), " "); got != databaseName+" "+keyName {
		t.Errorf("it holds %s", got)
	}
	if got := names(t, filepath.Dir(dest)); len(got) != 1 {
		t.Errorf("beside it there is %v", got)
	}
	for path, want := range map[string]os.FileMode{dest: 0o700, filepath.Join(dest, databaseName): 0o600, filepath.Join(dest, keyName): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want && runtime.GOOS != "windows" {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	original, err := didkey.Load(filepath.Join(folder, keyName))
	if err != nil {
		t.Fatal(err)
	}
	if copied, err := didkey.Load(filepath.Join(dest, keyName)); err != nil || copied.DID() != original.DID() {
		t.Errorf("the key is %s's, want %s's: %v", copied.DID(), original.DID(), err)
	}
	mine := filepath.Join(parent, "mine")
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{dest, parent, mine} {
		before := strings.Join(names(t, parent), " ")
		if code, said := verb(t.Context(), "backup", "--data", folder, taken); code != exitFailed {
			t.Errorf("a backup into %s: %d, %s", taken, code, said)
		}
		if after := strings.Join(names(t, parent), " "); after != before {
			t.Errorf("a backup into %s was refused and left %s", taken, after)
		}
	}
	if content, err := os.ReadFile(mine); err != nil || string(content) != "mine" {
		t.Errorf("the file is %q now, %v", content, err)
	}
}

// TestReadmeBackup holds that each agora command of the README's section on backups is run, with the script's folders,
// by the script.
func TestReadmeBackup(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/backup.txtar")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "### Backup")
	section, _, _ := strings.Cut(rest, "\n## ")
	commands := 0
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		serve, isServe := strings.CutPrefix(line, "agora serve --data ")
		switch {
		case isServe && !strings.Contains(string(script), "relay start --data $WORK/"+serve),
			!isServe && strings.HasPrefix(line, "agora ") && !strings.Contains(string(script), "exec "+line):
			t.Errorf("testdata/backup.txtar does not run: %s", line)
		case strings.HasPrefix(line, "agora "):
			commands++
		}
	}
	if commands < 3 {
		t.Errorf("only %d commands found in the README", commands)
	}
}
