//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
)

// TestPolicyCommand runs a relay with a policy program.
func TestPolicyCommand(t *testing.T) { testPolicy(t, "policy") }

// TestPolicyExample runs a relay with the policy program of docs/OPERATING.md.
func TestPolicyExample(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs python3")
		}
		t.Skip("needs python3")
	}
	docs, err := os.ReadFile("../../docs/OPERATING.md")
	if err != nil {
		t.Fatal(err)
	}
	program := regexp.MustCompile("(?s)```python\n(.*?)```").FindSubmatch(docs)
	if program == nil {
		t.Fatal("docs/OPERATING.md has no policy program")
	}
	file := filepath.Join(t.TempDir(), "policy.py")
	if err := os.WriteFile(file, program[1], 0o600); err != nil {
		t.Fatal(err)
	}
	testPolicy(t, "python3", file)
}

// testPolicy checks what becomes of messages with a policy program that decides like the one in docs/OPERATING.md.
func testPolicy(t *testing.T, argv ...string) {
	clearSettings(t)
	folder := t.TempDir()
	key := filepath.Join(folder, "alice.key")
	alice, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	if err := didkey.Save(key, alice); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--data", filepath.Join(folder, "data"), "--policy-timeout", "8s", "--metrics-addr", "127.0.0.1:0"}
	for _, arg := range argv {
		flags = append(flags, "--policy-cmd", arg)
	}
	s := startServe(t, flags...)
	send := func(args ...string) (int, string) {
		var out bytes.Buffer
		code := run(cli.Environment{Ctx: t.Context(), Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out},
			append([]string{"send", "request", "--key", key, "--relay", s.relay}, args...))
		return code, out.String()
	}
	if code, text := send("--intent", "echo"); code != cli.ExitOK {
		t.Errorf("%d: %s", code, text)
	}
	if code, text := send("--intent", "gamble"); code != cli.ExitFailed || !strings.Contains(text, "refuses this message: no gambling") {
		t.Errorf("%d: %s", code, text)
	}
	if code, text := send("--intent", "echo", "--params", `{"text":"`+strings.Repeat("x", 40_000)+`"}`); code != cli.ExitFailed ||
		!strings.Contains(text, "at most 32 KiB") {
		t.Errorf("%d: %.300s", code, text)
	}
	_, text := call(t, "GET", s.printed["metrics at"])
	for _, line := range []string{`agora_policy_decisions_total{result="accepted"} 1`, `agora_policy_decisions_total{result="refused"} 2`,
		"agora_ready 1"} {
		if !strings.Contains(text, "\n"+line+"\n") {
			t.Errorf("the metrics do not have %s", line)
		}
	}
}

// TestNothingOverTCP checks that the listeners on the network have none of the operator's routes.
func TestNothingOverTCP(t *testing.T) {
	clearSettings(t)
	folder := filepath.Join(t.TempDir(), "data")
	s := startServe(t, "--data", folder, "--metrics-addr", "127.0.0.1:0")
	metrics := strings.TrimSuffix(s.printed["metrics at"], "/metrics")
	for _, path := range []string{"/status", "/bans", "/top", "/waiters", "/profile/heap", "/debug/pprof/", "/debug/pprof/heap"} {
		for _, at := range []string{s.relay, metrics} {
			if status, text := call(t, "GET", at+path); !strings.Contains(text, "404") && !strings.Contains(text, "NOT_FOUND") &&
				!strings.Contains(strings.ToLower(text), "not found") {
				t.Errorf("GET %s%s: %v %.100s", at, path, status, text)
			}
		}
	}
	if info, err := os.Lstat(filepath.Join(folder, "admin.sock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
}

// TestScheduledBackup checks that a relay makes the first backup at once, and that it is complete.
func TestScheduledBackup(t *testing.T) {
	clearSettings(t)
	folder := t.TempDir()
	backups := filepath.Join(folder, "backups")
	s := startServe(t, "--data", filepath.Join(folder, "data"), "--backup-dir", backups, "--backup-every", "24h",
		"--metrics-addr", "127.0.0.1:0")
	s.log.await(t, "a backup is complete")
	made, err := filepath.Glob(filepath.Join(backups, "agora-*"))
	if err != nil || len(made) != 1 {
		t.Fatalf("%q, %v", made, err)
	}
	var out bytes.Buffer
	if code := run(cli.Environment{Ctx: context.Background(), Stdout: &out, Stderr: &out}, []string{"check", "--data", made[0]}); code != cli.ExitOK {
		t.Errorf("check: %s", out.String())
	}
	_, text := call(t, "GET", s.printed["metrics at"])
	if !strings.Contains(text, "\nagora_backup_failed 0\n") || strings.Contains(text, "\nagora_backup_last_timestamp_seconds 0\n") {
		t.Error("the metrics do not have the backup")
	}
}

// TestWrongGovernSettings checks the messages about wrong settings.
func TestWrongGovernSettings(t *testing.T) {
	clearSettings(t)
	for args, want := range map[string]string{
		"--policy-cmd /no/such/program --check-config":    "--policy-cmd",
		"--backup-every 24h":                              "--backup-dir",
		"--backup-every 1s --backup-dir b":                "at least 1m",
		"--policy-timeout 1h":                             "from 10ms to 8s",
		"--retention SPAM=1h":                             "is not a message type",
		"--retention MANIFEST":                            "MANIFEST=24h",
		"--retention MANIFEST=1h --retention MANIFEST=2h": "twice",
	} {
		var out bytes.Buffer
		code := run(cli.Environment{Ctx: context.Background(), Stdout: &out, Stderr: &out}, append([]string{"serve"}, strings.Fields(args)...))
		if code == cli.ExitOK || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %d %s", args, code, out.String())
		}
	}
}
