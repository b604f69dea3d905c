package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/store/sqlite"
)

// newDataFolder makes a data folder with an empty database and a key.
func newDataFolder(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	store, err := sqlite.Open(t.Context(), filepath.Join(folder, datafolder.Database), sqlite.Options{Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	key, err := didkey.Generate()
	if err == nil {
		err = didkey.Save(filepath.Join(folder, datafolder.Key), key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

func runAgora(ctx context.Context, args ...string) (code int, output string) {
	var out bytes.Buffer
	code = run(cli.Environment{Ctx: ctx, Stdin: nil, Stdout: &out, Stderr: &out}, args)
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

// TestFailedBackupLeavesNothing checks that a backup that is interrupted or fails leaves no files behind.
func TestFailedBackupLeavesNothing(t *testing.T) {
	folder, parent := newDataFolder(t), t.TempDir()
	dest := filepath.Join(parent, "monday")
	interrupted, interrupt := context.WithCancel(t.Context())
	interrupt()
	code, output := runAgora(interrupted, "backup", "--data", folder, dest)
	if left := names(t, parent); code != cli.ExitFailed || !strings.Contains(output, "interrupted") || len(left) > 0 {
		t.Errorf("an interrupted backup ends with %d (%s) and leaves %v", code, output, left)
	}
	if code, output := runAgora(interrupted, "check", "--data", folder); code != cli.ExitFailed || !strings.Contains(output, "interrupted") || strings.Contains(output, "clean") {
		t.Errorf("an interrupted check ends with %d: %s", code, output)
	}
	if err := os.Remove(filepath.Join(folder, datafolder.Key)); err != nil {
		t.Fatal(err)
	}
	code, output = runAgora(t.Context(), "backup", "--data", folder, dest)
	if left := names(t, parent); code != cli.ExitFailed || !strings.Contains(output, datafolder.Key) || len(left) > 0 {
		t.Errorf("a backup without a key ends with %d (%s) and leaves %v", code, output, left)
	}
}

// TestBackupFolder checks that a backup can be read by its owner only, that it contains only the relay's key and
// database, and that it is not written into a folder that already contains files.
func TestBackupFolder(t *testing.T) {
	folder, parent := newDataFolder(t), t.TempDir()
	dest := filepath.Join(parent, "week", "monday")
	if code, output := runAgora(t.Context(), "backup", "--data", folder, dest); code != cli.ExitOK {
		t.Fatalf("%d: %s", code, output)
	}
	if got := strings.Join(names(t, dest), " "); got != datafolder.Database+" "+datafolder.Key {
		t.Errorf("the backup contains %s", got)
	}
	if got := names(t, filepath.Dir(dest)); len(got) != 1 {
		t.Errorf("the folder of the backup also contains %v", got)
	}
	for path, want := range map[string]os.FileMode{dest: 0o700, filepath.Join(dest, datafolder.Database): 0o600, filepath.Join(dest, datafolder.Key): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want && runtime.GOOS != "windows" {
			t.Errorf("%s: %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
	original, err := didkey.Load(filepath.Join(folder, datafolder.Key))
	if err != nil {
		t.Fatal(err)
	}
	if copied, err := didkey.Load(filepath.Join(dest, datafolder.Key)); err != nil || copied.DID() != original.DID() {
		t.Errorf("the backup has the key of %s, want %s: %v", copied.DID(), original.DID(), err)
	}
	mine := filepath.Join(parent, "mine")
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{dest, parent, mine} {
		before := strings.Join(names(t, parent), " ")
		if code, output := runAgora(t.Context(), "backup", "--data", folder, taken); code != cli.ExitFailed {
			t.Errorf("a backup into %s: %d, %s", taken, code, output)
		}
		if after := strings.Join(names(t, parent), " "); after != before {
			t.Errorf("a backup into %s failed and left %s", taken, after)
		}
	}
	if content, err := os.ReadFile(mine); err != nil || string(content) != "mine" {
		t.Errorf("the file has become %q, %v", content, err)
	}
}

// TestReadmeBackup checks that backup.txtar runs each agora command of the section on backups in docs/OPERATING.md.
func TestReadmeBackup(t *testing.T) {
	document, err := os.ReadFile("../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("testdata/backup.txtar")
	if err != nil {
		t.Fatal(err)
	}
	commandsRun := strings.ReplaceAll(string(script), "$WORK/", "") // relay start needs absolute paths
	_, rest, _ := strings.Cut(string(document), "## Backup")
	section, _, _ := strings.Cut(rest, "\n## ")
	commands := 0
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		serve, isServe := strings.CutPrefix(line, "agora serve --data ")
		switch {
		case isServe && !strings.Contains(commandsRun, "relay start --data "+serve),
			!isServe && strings.HasPrefix(line, "agora ") && !strings.Contains(commandsRun, "exec "+line):
			t.Errorf("testdata/backup.txtar does not run: %s", line)
		case strings.HasPrefix(line, "agora "):
			commands++
		}
	}
	if commands < 3 {
		t.Errorf("only %d commands found in docs/OPERATING.md", commands)
	}
}
