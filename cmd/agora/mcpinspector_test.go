//go:build javascript

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestJavaScriptInspector uses agora mcp with the command line of the MCP inspector, over both transports. make js runs
// this test. internal/mcpserver/inspector pins the inspector.
func TestJavaScriptInspector(t *testing.T) {
	relay := startRelayProcess(t)
	key := filepath.Join(t.TempDir(), "alice.key")
	program, err := exec.LookPath("agora")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "mcp", "--key", key, "--relay", relay.URL, "--http", "127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err = errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	lines.Scan()
	_, rest, _ := strings.Cut(lines.Text(), "listening on ")
	at, _, _ := strings.Cut(rest, ";")
	token, err := os.ReadFile(key + ".token")
	if err != nil {
		t.Fatal(err)
	}
	servers := map[string][]string{
		"standard input": {program, "mcp", "--key", key, "--relay", relay.URL},
		"HTTP":           {at, "--transport", "http", "--header", "Authorization: Bearer " + strings.TrimSpace(string(token))},
	}
	const cli = "internal/mcpserver/inspector/node_modules/@modelcontextprotocol/inspector-cli/build/index.js"
	for name, server := range servers {
		inspect := func(want string, args ...string) {
			t.Helper()
			out, err := exec.Command("node", append(append([]string{cli}, server...), args...)...).Output()
			if err != nil || !json.Valid(out) || !strings.Contains(string(out), want) {
				exit, _ := errors.AsType[*exec.ExitError](err)
				t.Errorf("%s, %q: %v, %s", name, args, exit, out)
			}
		}
		inspect(`"name": "accept_offer"`, "--method", "tools/list")
		inspect(`"uriTemplate": "agora://thread/{+id}"`, "--method", "resources/templates/list")
		inspect(`"name": "check_inbox"`, "--method", "prompts/list")
		inspect(`"per_day_usd": 0`, "--method", "tools/call", "--tool-name", "spending")
		inspect(`"state": "waiting"`, "--method", "tools/call", "--tool-name", "ask", "--tool-arg", "intent=echo", "wait_seconds=0")
	}
	if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), drain(lines), cmd.Wait()); err != nil {
		t.Errorf("ended with %v", err)
	}
}
