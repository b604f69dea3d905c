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

// language is one of the foreign implementations: programs of a folder, and what runs them.
type language struct {
	name      string // also of its folder
	command   string
	extension string
}

// findLanguages returns those that can run here, and what to do about each other one.
func findLanguages(ctx context.Context) (found []language, missing []error) {
	node := language{"node", "node", ".mjs"}
	old := `if (parseInt(process.versions.node) < 20) throw new Error("Node 20 or later is needed")`
	switch _, err := os.Stat(filepath.Join(folder, "node", "node_modules", "canonicalize")); {
	case exec.CommandContext(ctx, "node", "-e", old).Run() != nil:
		missing = append(missing, errors.New("node: install Node 20 or later"))
	case err != nil:
		missing = append(missing, fmt.Errorf("node: run npm ci in %s/node", folder))
	default:
		found = append(found, node)
	}
	// The python3 of a version manager comes first in PATH and lacks the packages of the system's.
	for _, command := range []string{"python3", "/usr/bin/python3"} {
		if exec.CommandContext(ctx, command, "-c", "import sys, cryptography; assert sys.version_info >= (3, 11)").Run() == nil {
			return append(found, language{"python", command, ".py"}), missing
		}
	}
	return found, append(missing, errors.New("python: install Python 3.11 or later with the package cryptography (Debian: python3-cryptography)"))
}

func (l language) program(ctx context.Context, stderr io.Writer, name string, args ...string) *exec.Cmd {
	args = append([]string{filepath.Join(folder, l.name, name+l.extension)}, args...)
	cmd := exec.CommandContext(ctx, l.command, args...)
	cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1", "PYTHONUTF8=1", "no_proxy=127.0.0.1")
	cmd.WaitDelay = time.Second
	cmd.Stderr = stderr
	return cmd
}

// output is what a program printed; err holds what it complained about if it failed.
type output struct {
	text string
	err  error
}

// run runs a program of the language to its end.
func (l language) run(ctx context.Context, name string, args ...string) output {
	stderr := new(bytes.Buffer)
	text, err := l.program(ctx, stderr, name, args...).Output()
	if ctx.Err() != nil {
		err = fmt.Errorf("given up: %w", ctx.Err())
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, strings.TrimSpace(stderr.String()))
	}
	return output{string(text), err}
}

// start starts an agent, which prints its DID once it is reading its inbox and ends with ctx.
func (l language) start(ctx context.Context, running *sync.WaitGroup, said *os.File, name string, args ...string) (did string, err error) {
	cmd := l.program(ctx, said, name, args...)
	if did, err = startReading(cmd, "did:key:"); err != nil {
		return "", err
	}
	running.Go(func() { _ = cmd.Wait() }) // killed, which is how it is meant to end
	return did, nil
}

// startReading starts cmd and returns the rest, with prefix, of the first line in which prefix occurs.
func startReading(cmd *exec.Cmd, prefix string) (string, error) {
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
			go io.Copy(io.Discard, stdout) // ends with the process
			return strings.TrimSpace(lines.Text()[i:]), nil
		}
	}
	_ = cmd.Cancel()
	return "", errors.Join(fmt.Errorf("%s ended without saying %s…", cmd.Path, prefix), cmd.Wait())
}

// relayProcess is a relay of our own, on a port that was free.
type relayProcess struct {
	url string
	cmd *exec.Cmd
}

// startRelay builds the relay into temp, so that it is the one that people run, and starts it there.
func startRelay(ctx context.Context, temp string, said *os.File) (*relayProcess, error) {
	binary := filepath.Join(temp, "agora")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/agora").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the relay: %w\n%s", err, out)
	}
	r := &relayProcess{}
	r.cmd = exec.CommandContext(ctx, binary, "serve", "--addr", "127.0.0.1:0", "--data", filepath.Join(temp, "data"),
		"--log-level", "warn")
	r.cmd.Stderr = said
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(syscall.SIGTERM) }
	r.cmd.WaitDelay = 10 * time.Second
	var err error
	if r.url, err = startReading(r.cmd, "http://127.0.0.1:"); err != nil {
		return nil, fmt.Errorf("starting the relay: %w", err)
	}
	return r, nil
}

// stop ends the relay as an operator would, and insists that it ends well.
func (r *relayProcess) stop() error {
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return r.cmd.Wait()
}
