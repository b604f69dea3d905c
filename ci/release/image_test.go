//go:build packages

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// instructions returns the instructions of the last stage of the Dockerfile, as name and argument.
func instructions(t *testing.T) (all [][2]string) {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(strings.ReplaceAll(string(text), "\\\n", " ")) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, argument, _ := strings.Cut(line, " ")
		if name == "FROM" {
			all = nil
		}
		if source, isCopy := strings.CutPrefix(line, "COPY "); isCopy && !strings.Contains(source, "--from") {
			for _, file := range strings.Fields(source)[:len(strings.Fields(source))-1] {
				if _, err := os.Stat(file); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
		}
		all = append(all, [2]string{name, strings.TrimSpace(argument)})
	}
	return all
}

// command returns the words of an instruction in JSON.
func command(t *testing.T, text string) (words []string) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &words); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return words
}

// TestImage runs the programs of the image without a container engine. It makes a folder with the files that the
// Dockerfile copies into the image, and runs there what the image runs, as the image's user and with its variables: the
// relay, and the check of its health. The program comes from the archive, and is built with the same flags.
func TestImage(t *testing.T) {
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	var entrypoint, serve, health []string
	var env []string
	var user uint32
	for _, i := range instructions(t) {
		switch name, argument := i[0], i[1]; name {
		case "COPY":
			place(t, root, argument)
		case "USER":
			id, err := strconv.ParseUint(strings.Split(argument, ":")[0], 10, 32)
			if err != nil || id == 0 {
				t.Fatalf("USER %s", argument)
			}
			user = uint32(id)
		case "ENV":
			env = append(env, strings.Fields(argument)...)
		case "ENTRYPOINT":
			entrypoint = command(t, argument)
		case "CMD":
			serve = command(t, argument)
		case "HEALTHCHECK":
			_, text, _ := strings.Cut(argument, "CMD ")
			health = command(t, text)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	env = append(env, "AGORA_ADDR="+address, "AGORA_RELAY=http://"+address) // the port of the image may be in use here
	inside := func(ctx context.Context, words ...string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, words[0], words[1:]...)
		cmd.Env, cmd.Dir = env, "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: user, Gid: user}}
		return cmd
	}
	if out, err := inside(t.Context(), append(append(entrypoint, serve...), "--check-config")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := inside(t.Context(), health...).CombinedOutput(); err == nil {
		t.Errorf("healthy before it runs: %s", out)
	}
	relay := inside(t.Context(), append(entrypoint, serve...)...)
	stdout, err := relay.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stdout); lines.Scan() && !strings.HasPrefix(lines.Text(), "listening on "); {
	}
	if out, err := inside(t.Context(), health...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if info, err := os.Stat(filepath.Join(root, "data/relay/agora.db")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the database: %v", err)
	}
	if err := relay.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- relay.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the relay does not end")
		_ = relay.Process.Kill()
	}
}

// place puts into the image what COPY copies from the stage before.
func place(t *testing.T, root, argument string) {
	t.Helper()
	m := regexp.MustCompile(`^--from=build (?:--chown=(\d+):\d+ )?(\S+) (\S+)$`).FindStringSubmatch(argument)
	if m == nil {
		t.Fatalf("COPY %s", argument)
	}
	to := filepath.Join(root, m[3])
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	switch m[2] {
	case "/image/agora":
		if err := copyFile(to, built.program); err != nil {
			t.Fatal(err)
		}
	case "/image/data", "/image/tmp":
		owner, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(to, owner, owner); err != nil {
			t.Fatal(err)
		}
	case "/etc/ssl/certs/ca-certificates.crt": // of the Go image, which is not here
		if to != filepath.Join(root, m[2]) {
			t.Errorf("Go does not look for certificates in %s", m[3])
		}
	default:
		t.Fatalf("COPY %s", argument)
	}
}
