// Package postgrestest runs PostgreSQL servers for tests that must kill one, or change its settings.
package postgrestest

import (
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// bin is the folder of the PostgreSQL programs on Debian. PATH does not have it.
const bin = "/usr/lib/postgresql/15/bin"

// Folder makes a folder for the files of servers. The test removes it. It is in /tmp: the path of a socket has at most 107
// bytes, and the user nobody may not enter every TMPDIR.
func Folder(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("/tmp", "agora-pg.")
	if err == nil && os.Getuid() == 0 {
		err = exec.Command("chown", "nobody", folder).Run()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return folder
}

// Command returns a command that runs a program of PostgreSQL in a folder. As root it runs as the user nobody, because
// the server refuses to run as root. It ends with this process.
func Command(folder, program string, args ...string) *exec.Cmd {
	path := filepath.Join(bin, program)
	if _, err := os.Stat(path); err != nil {
		path = program
	}
	args = append([]string{path}, args...)
	if os.Getuid() == 0 {
		group := "nogroup"
		if u, err := user.Lookup("nobody"); err == nil {
			group = u.Gid
		}
		args = append([]string{"setpriv", "--reuid", "nobody", "--regid", group, "--clear-groups", "--pdeathsig", "QUIT"},
			args...)
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = folder
	return cmd
}

// Init makes the files of a server with the superuser agora. It orders texts with letters before digits, and "10" after
// "9". So a statement that relies on the order of bytes does not give the same result.
func Init(t testing.TB, folder, data string) {
	t.Helper()
	out, err := Command(folder, "initdb", "-D", data, "-U", "agora", "-A", "trust", "-E", "UTF8", "--locale", "C.UTF-8",
		"--no-sync", "--no-instructions", "--locale-provider", "icu", "--icu-locale",
		"und-u-kn-true-kr-latn-digit").CombinedOutput()
	if err != nil {
		t.Fatalf("initdb: %v\n%s", err, strings.TrimSpace(string(out)))
	}
}
