//go:build operations

package operations

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/markdown"
)

// prelude defines what the commands of a section need. serve starts a relay, after it has stopped the one before, and
// waits until it listens.
const prelude = `set -euo pipefail
relay=
stop() { if [ -n "$relay" ]; then kill "$relay"; wait "$relay" || true; relay=; fi; }
serve() {
  stop
  agora "$@" > serve.out 2>> serve.log &
  relay=$!
  for _ in $(seq 300); do
    if grep -q '^listening on ' serve.out; then return; fi
    if ! kill -0 "$relay" 2> /dev/null; then break; fi
    sleep 0.1
  done
  echo "agora $* does not start:"; cat serve.out serve.log; exit 1
}
trap 'stop; kill $(jobs -p) 2> /dev/null || true; wait || true' EXIT
`

// script returns the shell commands of a section as one script. A relay that the reader starts in its own terminal,
// or in the background, runs until the next one starts. The ports in the page are replaced by free ones.
func script(t *testing.T, section markdown.Section) string {
	t.Helper()
	text := strings.Join(section.Code("sh"), "\n")
	for _, port := range []string{"8789", "8790", "9464", "9090", "4318"} {
		text = strings.ReplaceAll(text, ":"+port, ":"+freePort(t))
	}
	text = regexp.MustCompile(`(?m)^agora (serve .*?)( &)?$`).ReplaceAllStringFunc(text, func(line string) string {
		if strings.Contains(line, "--check-config") || strings.Contains(line, "--print-config") {
			return line
		}
		return strings.TrimSuffix(strings.TrimPrefix(line, "agora "), " &")
	})
	text = regexp.MustCompile(`(?m)^serve `).ReplaceAllString(text, "serve serve ")
	return prelude + strings.ReplaceAll(text, "kill %1", "stop")
}

// TestDocumentedCommands runs each shell command of docs/OPERATING.md, section by section, as a reader would.
func TestDocumentedCommands(t *testing.T) {
	ran := 0
	for _, section := range document(t).Sections {
		if len(section.Code("sh")) == 0 {
			continue
		}
		ran++
		t.Run(section.Heading, func(t *testing.T) {
			t.Parallel() // they mostly wait
			folder := t.TempDir()
			variables := []string{"AGORA_ADDR=127.0.0.1:" + freePort(t)} // in place of the default, which others use too
			if section.Heading == "From zero to a relay on the internet" {
				a := startAuthority(t)
				variables = a.variables()
				curlrc := fmt.Sprintf("connect-to = relay.example.org:443:127.0.0.1:%s\ncacert = %s\n", a.tlsPort, a.roots)
				if err := os.WriteFile(filepath.Join(folder, ".curlrc"), []byte(curlrc), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			commands := script(t, section)
			const running = "\nserve serve --data agora-data --addr 127.0.0.1:0\n"
			switch section.Heading { // the reader's relay is running
			case "Govern it", "The data folder":
				commands = strings.Replace(commands, prelude, prelude+running, 1)
			case "Backup":
				commands = strings.Replace(commands, "\nagora backup", running+"agora backup", 1)
				commands = strings.Replace(commands, "\nagora restore", "\nstop\nagora restore", 1) // as the page says
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "bash", "-c", commands)
			cmd.Dir = folder
			cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // so that it stops what it has started
			cmd.Env = append(append(os.Environ(), "PATH="+binFolder+":"+os.Getenv("PATH"), "HOME="+folder), variables...)
			cmd.WaitDelay = 10 * time.Second
			out, err := cmd.CombinedOutput()
			if err != nil {
				log, _ := os.ReadFile(filepath.Join(folder, "serve.log"))
				t.Errorf("%v\n%s\nthe relay's log:\n%s", err, out, log)
			}
		})
	}
	if ran < 9 {
		t.Errorf("only %d sections with commands", ran)
	}
}

// TestSystemdUnit lets systemd check the unit, together with the socket of the page.
func TestSystemdUnit(t *testing.T) {
	text, err := os.ReadFile("../../ci/packaging/agora.service")
	if err != nil {
		t.Fatal(err)
	}
	unit := strings.ReplaceAll(string(text), "/usr/bin/agora", filepath.Join(binFolder, "agora"))
	file := filepath.Join(t.TempDir(), "agora.service")
	if err := os.WriteFile(file, []byte(unit), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := strings.Replace(file, ".service", ".socket", 1)
	if err := os.WriteFile(socket, []byte(block(t, "Behind a proxy", "systemd")), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", "verify", "--man=no", file, socket).CombinedOutput()
	if err != nil || strings.Contains(string(out), "agora.s") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, option := range strings.Fields(regexp.MustCompile(`ExecStart=\S+ (.*)`).FindStringSubmatch(unit)[1]) {
		if name, isFlag := strings.CutPrefix(option, "--"); isFlag {
			if help, err := exec.Command(filepath.Join(binFolder, "agora"), "serve", "--help").Output(); err != nil || !strings.Contains(string(help), "--"+name+"=") {
				t.Errorf("serve has no --%s (%v)", name, err)
			}
		}
	}
}
