//go:build unix

package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/serve/certtest"
)

// TestReload changes the configuration file of a relay and sends it SIGHUP, while a poll waits. The poll continues, and
// the new settings hold. A wrong file changes nothing.
func TestReload(t *testing.T) {
	clearSettings(t)
	folder := t.TempDir()
	file, cert, key := filepath.Join(folder, "agora.toml"), filepath.Join(folder, "c.pem"), filepath.Join(folder, "k.pem")
	certtest.Write(t, cert, key, "one.example", 90*cli.Day)
	write := func(text string) {
		t.Helper()
		text = fmt.Sprintf("tls-cert = %q\ntls-key = %q\n%s\n", cert, key, text)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hangup := func(wait string, s served) string {
		t.Helper()
		before := len(s.log.String())
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		return s.log.awaitAfter(t, before, wait)
	}
	write(`limit-local = true`)
	s := startServe(t, "--config", file, "--data", filepath.Join(folder, "data"), "--polls-per-ip", "9", "--metrics-addr", "127.0.0.1:0")
	address := strings.TrimPrefix(s.relay, "https://")
	client := clientOver(t, "tcp", address)
	polled := make(chan string, 1)
	go func() {
		request, err := http.NewRequestWithContext(t.Context(), "GET", s.relay+"/events?cursor=0&timeout=60", nil)
		if err != nil {
			panic(err)
		}
		response, err := client.Do(request)
		if err != nil {
			polled <- err.Error()
			return
		}
		response.Body.Close()
		polled <- response.Status
	}()
	for s.log.await(t, "listening"); ; time.Sleep(10 * time.Millisecond) {
		if _, text := call(t, "GET", s.printed["metrics at"]); strings.Contains(text, "\nagora_polls_waiting 1\n") {
			break
		}
	}
	forwarded := []string{"X-Forwarded-For", "192.0.2.7"}
	for range 3 {
		if status := statusOf(t, client, "GET", s.relay+"/agents", forwarded...); status != 200 {
			t.Fatalf("before: %d", status)
		}
	}

	// New limits, a trusted proxy, a ban and another log level. --polls-per-ip is on the command line, so it stays.
	write("limit-local = true\nread-rate-ip = 0.01\ntrusted-proxy = [\"127.0.0.1\"]\nban = [\"198.51.100.0/24\"]\n" +
		"log-level = \"debug\"\npolls-per-ip = 1\ninbox-events = 7\nmax-body = \"1MiB\"")
	certtest.Write(t, cert, key, "two.example", 90*cli.Day)
	log := hangup(`"msg":"reloaded"`, s)
	if !strings.Contains(log, `"changed":["ban","inbox-events","log-level","read-rate-ip","trusted-proxy"]`) ||
		!strings.Contains(log, `"setting":"max-body"`) || strings.Contains(log, `"setting":"polls-per-ip"`) {
		t.Errorf("the log says: %s", log)
	}
	if name := servedName(t, address); name != "two.example" {
		t.Errorf("the certificate is %s", name)
	}
	var answers []int
	for _, addr := range []string{"192.0.2.8", "192.0.2.8", "198.51.100.1", "192.0.2.9"} {
		answers = append(answers, statusOf(t, client, "GET", s.relay+"/agents", "X-Forwarded-For", addr))
	}
	if got := fmt.Sprint(answers); got != "[200 429 403 200]" {
		t.Errorf("answers %s", got)
	}
	s.log.await(t, `"level":"DEBUG"`)
	response, err := client.Get(s.relay + "/.well-known/agora.json")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil || !strings.Contains(string(text), `"inboxEvents":7,`) {
		t.Errorf("the quota of inboxes: %s, %v", text, err)
	}

	// Wrong files. What was in force stays.
	for _, wrong := range []string{"reed-rate-ip = 1", "read-rate-ip = [", "read-rate-ip = -1", "max-ttl = \"1ms\""} {
		write("limit-local = true\n" + wrong)
		hangup("the settings were not reloaded", s)
	}
	write("limit-local = true")
	if err := os.WriteFile(key, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	hangup("the settings were not reloaded", s)
	if status := statusOf(t, client, "GET", s.relay+"/agents", "X-Forwarded-For", "198.51.100.1"); status != 403 {
		t.Errorf("after wrong files: %d", status)
	}
	if _, text := call(t, "GET", s.printed["metrics at"]); !strings.Contains(text, `agora_config_reloads_total{result="failed"} 5`) ||
		!strings.Contains(text, `agora_config_reloads_total{result="ok"} 1`) {
		t.Errorf("the metrics do not count the reloads: %s", text)
	}
	select {
	case status := <-polled:
		t.Fatalf("the poll has ended: %s", status)
	default:
	}
	s.stop()
	if status := <-polled; status != "200 OK" {
		t.Errorf("the poll ended with %s", status)
	}
	client.CloseIdleConnections()
}
