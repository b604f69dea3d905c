package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// language is one of the other implementations: a folder of programs, and the command that runs them.
type language struct {
	name      string // also the name of its folder
	command   string
	extension string
}

// findLanguages returns the languages that can run on this machine. For each other language it returns what to install.
func findLanguages(ctx context.Context) (found []language, missing []error) {
	node := language{"node", "node", ".mjs"}
	old := `if (parseInt(process.versions.node) < 20) throw new Error("Node 20 or later is needed")`
	if exec.CommandContext(ctx, "node", "-e", old).Run() != nil {
		missing = append(missing, errors.New("node: install Node 20 or later"))
	} else {
		found = append(found, node)
	}
	// The python3 of a version manager may come first in PATH, but does not have the packages of the system's python3.
	for _, command := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(ctx, command, "-c", "import sys, cryptography; assert sys.version_info >= (3, 11)").Run() == nil {
			return append(found, language{"python", command, ".py"}), missing
		}
	}
	return found, append(missing, errors.New("python: install Python 3.11 or later with the package cryptography (Debian: python3-cryptography)"))
}

// environment returns the environment variables that tell a program of testvectors/interop where it is, and what it asks.
func environment(at place, q question) []string {
	env := []string{fmt.Sprintf("AGORA_CLOCK_OFFSET=%v", at.clock.Seconds()), "AGORA_HOLD=" + at.hold,
		fmt.Sprintf("AGORA_SILENCE=%v", silence.Seconds())}
	if q.sealed {
		env = append(env, "AGORA_SEAL=1")
	}
	return env
}

func (l language) program(ctx context.Context, stderr io.Writer, env []string, name string, args ...string) *exec.Cmd {
	args = append([]string{filepath.Join(folder, l.name, name+l.extension)}, args...)
	cmd := exec.CommandContext(ctx, l.command, args...)
	cmd.Env = append(append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1", "no_proxy=127.0.0.1"), env...)
	cmd.WaitDelay = time.Second
	cmd.Stderr = stderr
	return cmd
}

// output is what a program printed. If the program failed, err has its standard error.
type output struct {
	text string
	err  error
}

// run runs a program of the language and waits until it ends.
func (l language) run(ctx context.Context, env []string, name string, args ...string) output {
	stderr := new(bytes.Buffer)
	text, err := l.program(ctx, stderr, env, name, args...).Output()
	if ctx.Err() != nil {
		err = fmt.Errorf("the program was stopped before it ended: %w", ctx.Err())
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, strings.TrimSpace(stderr.String()))
	}
	return output{string(text), err}
}

// start starts an agent and returns its DID, which the agent prints when it has started to read its inbox. Each time it
// works, it prints "work " and the id of the thread. The agent ends when ctx ends.
func (l language) start(
	ctx context.Context, running *sync.WaitGroup, logs *os.File, at place, name string, args ...string,
) (did string, err error) {
	cmd := l.program(ctx, logs, environment(at, question{}), name, args...)
	if did, err = startReading(cmd, "did:key:", at.workedLine); err != nil {
		return "", err
	}
	running.Go(func() { _ = cmd.Wait() }) // ctx kills it, so the error is expected
	return did, nil
}

// workedLine calls worked if line is printed by an agent that works.
func (p place) workedLine(line string) {
	if thread, ok := strings.CutPrefix(line, "work "); ok && p.worked != nil {
		p.worked(thread)
	}
}

// startReading starts cmd. It returns the rest of the first line that contains prefix, from prefix on. later gets each
// line after it.
func startReading(cmd *exec.Cmd, prefix string, later func(line string)) (string, error) {
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if i := strings.Index(lines.Text(), prefix); i >= 0 {
			go func() { // ends when the process ends
				for lines.Scan() {
					later(lines.Text())
				}
			}()
			return strings.TrimSpace(lines.Text()[i:]), nil
		}
	}
	_ = cmd.Cancel()
	return "", errors.Join(fmt.Errorf("%s ended without printing %s…", cmd.Path, prefix), cmd.Wait())
}

// relayProcess is a relay on a free port.
type relayProcess struct {
	url string
	cmd *exec.Cmd
}

// buildRelay builds the relay as users build it, into temp, and returns the path of the program.
func buildRelay(ctx context.Context, temp string) (binary string, err error) {
	binary = filepath.Join(temp, "agora")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/agora").CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the relay: %w\n%s", err, out)
	}
	return binary, nil
}

// startRelay starts a relay with its data in this folder.
func startRelay(ctx context.Context, binary, data string, logs *os.File, flags ...string) (*relayProcess, error) {
	r := &relayProcess{}
	r.cmd = exec.CommandContext(ctx, binary,
		append([]string{"serve", "--addr", "127.0.0.1:0", "--data", data, "--log-level", "warn"}, flags...)...)
	r.cmd.Stderr = logs
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) }
	r.cmd.WaitDelay = 10 * time.Second
	const announcement = "listening on "
	line, err := startReading(r.cmd, announcement, func(string) {})
	if err != nil {
		return nil, fmt.Errorf("starting the relay: %w", err)
	}
	r.url = strings.TrimPrefix(line, announcement)
	return r, nil
}

// stop ends the relay with SIGTERM, as an operator does. It returns an error if the exit status is not 0.
func (r *relayProcess) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return r.cmd.Wait()
}
