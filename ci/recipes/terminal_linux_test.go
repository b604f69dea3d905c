package recipes

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agora-relay/agora/internal/ptytest"
)

// TestRecipesAtTerminals follows the sections of TestRecipes like a person who pastes each block into a terminal with
// 80 columns. A program that reads standard input then gets the lines that follow its own.
func TestRecipesAtTerminals(t *testing.T) {
	t.Parallel()
	follow(t, "", atTerminals)
}

// atTerminals is the way of a person.
var atTerminals = way{
	shell: func(t *testing.T, folder string, environment []string) runner {
		return &pastingShell{terminal: openTerminal(t, folder, environment, "")}
	},
	open:  openTerminal,
	shown: true,
}

// openTerminal starts an interactive shell in a pseudo-terminal, and pastes a script. The shell ends at the first command
// that fails.
func openTerminal(t *testing.T, folder string, environment []string, script string) *terminal {
	t.Helper()
	keyboard, screen := ptytest.Open(t)
	term := &terminal{cmd: exec.Command("bash", "--norc", "--noprofile", "--noediting", "-i", "-euo", "pipefail"),
		keyboard: keyboard, ended: make(chan struct{}), output: output{changed: make(chan struct{}, 1)}}
	term.cmd.Dir = folder
	term.cmd.Env = append(environment[:len(environment):len(environment)], "PS1=", "PS2=", "TERM=xterm", "HISTFILE=")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = screen, screen, screen
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err := term.cmd.Start()
	screen.Close()
	if err != nil {
		t.Fatal(err)
	}
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		_, _ = io.Copy(&term.output, keyboard) // it ends with EIO when no program has the terminal any more
	}()
	go func() {
		defer close(term.ended)
		term.err = term.cmd.Wait()
		select {
		case <-copied:
		case <-time.After(time.Second): // a program in the background still has the terminal
		}
	}()
	t.Cleanup(func() {
		term.stop(syscall.SIGHUP)
		endSession(t, term.cmd.Process.Pid)
	})
	term.paste(t, script)
	return term
}

// endSession kills what is left of a session. An interactive shell puts each program in the background into another
// process group, which does not always get the signal of the terminal.
func endSession(t *testing.T, session int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Error(err)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		var state string
		var parent, group, of int
		rest := text[bytes.LastIndexByte(text, ')')+1:] // behind the name, see proc_pid_stat(5)
		if _, err := fmt.Sscan(string(rest), &state, &parent, &group, &of); err != nil || of != session {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it fails if the process has ended
		}
	}
}

// paste types all lines at once.
func (term *terminal) paste(t *testing.T, lines string) {
	t.Helper()
	if len(lines) > 4000 { // the kernel keeps no more than 4095 bytes that no program has read
		t.Fatalf("a block of %d bytes is too long to be pasted", len(lines))
	}
	if _, err := io.WriteString(term.keyboard, lines); err != nil {
		t.Fatal(err)
	}
}

// pastingShell is the reader's own terminal, into which blocks of commands are pasted.
type pastingShell struct {
	*terminal
	steps int
	read  int // bytes of the output that earlier blocks have printed
}

// run pastes commands and returns what they print. The test fails if one of them fails, or reads the lines that follow.
func (s *pastingShell) run(t *testing.T, commands string) string {
	t.Helper()
	s.steps++
	end := fmt.Sprintf("the end of block %d", s.steps)
	s.paste(t, commands+"printf '%s\\n' '"+end+"'\n")
	deadline := time.After(patience)
	for {
		printed, _, done := strings.Cut(s.output.String()[s.read:], end+"\n")
		if done {
			s.read += len(printed) + len(end) + 1
			return printed
		}
		select {
		case <-s.output.changed:
		case <-s.ended:
			t.Fatalf("a command fails:\n%s\nThe commands:\n%s", s.output.String()[s.read:], commands)
		case <-deadline:
			t.Fatalf("a command takes too long, or has read those that follow:\n%s\nThe commands:\n%s", printed, commands)
		}
	}
}

// TestPastingShell checks that programs see a terminal with 80 columns, that a program that reads gets the next line,
// and that a block ends at the first command that fails.
func TestPastingShell(t *testing.T) {
	s := &pastingShell{terminal: openTerminal(t, t.TempDir(), os.Environ(), "")}
	got := s.run(t, "test -t 0 && test -t 1 && test -t 2\nstty size\nread -r line\nanswer\necho \"$line\"\n")
	if got != "24 80\nanswer\n" {
		t.Errorf("printed %q", got)
	}
	s.paste(t, "echo before\nfalse\necho after\n")
	<-s.ended
	if printed := s.output.String()[s.read:]; !strings.HasPrefix(printed, "before\n") || strings.Contains(printed, "after") {
		t.Errorf("a command that fails: %q", printed)
	}
}
