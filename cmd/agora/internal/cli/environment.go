// Package cli has what the commands of agora share: the environment in which they run, the values of their flags, the
// connection to a relay, and output that escapes the text of others. It knows no command.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// Environment is what a command uses of its process: a context and the standard streams.
type Environment struct {
	Ctx    context.Context
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Exact is stdout for commands whose output must be exact to the byte, such as canonicalize. It escapes characters
	// only if stdout is a terminal. run sets it.
	Exact io.Writer
	// Raw is stdout without any escaping, for text that is escaped and has colours. run sets it.
	Raw io.Writer

	Args []string // the command line, without the name of the program

	StdinIsTerminal  bool // stdin is a terminal
	StdoutIsTerminal bool // stdout is a terminal
	StderrIsTerminal bool // stderr is a terminal

	// DropTyped drops what was typed at the terminal and is not read yet. nil: stdin is no terminal.
	DropTyped func() error

	Width func() int // returns how many columns the terminal of stdout has, 0 if that is unknown; nil: unknown
}

// Exit codes that scripts rely on. The table outcomes has the exit codes of agora ask.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// ErrReported is the error of a command that has already printed why it failed. It leads to no other message.
var ErrReported = errors.New("the failure was already reported")

// ExitError is an error with its own exit code. Other errors lead to ExitFailed.
type ExitError struct {
	Code int
	Err  error
}

func (e ExitError) Error() string { return e.Err.Error() }

// Unwrap returns e.Err.
func (e ExitError) Unwrap() error { return e.Err }

// ExitCode returns the exit code for the error of a command.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[ExitError](err); ok {
		return e.Code
	}
	return ExitFailed
}

// RelayURL is the URL of a relay that agora serve runs on this machine.
const RelayURL = "http://127.0.0.1:8789"

// Say prints one line to standard error. Line breaks in the text of others are escaped, so that none forges a line.
func (env Environment) Say(format string, args ...any) {
	fmt.Fprintln(env.Stderr, "agora:", Printable(fmt.Sprintf(format, args...)))
}

// Explain prints why a command failed, and what to do.
func (env Environment) Explain(err error) {
	for _, line := range errorLines(ExplainDial(err)) {
		fmt.Fprintln(env.Stderr, "agora:", line)
	}
	refused, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return
	}
	if advice := compareClocks(refused, time.Now()); advice != "" {
		env.Say("%s", advice)
	}
	if refused.Code.Retryable() {
		env.Say("the same command may succeed %s", whenToRetry(refused.RetryAfter))
	}
}

// compareClocks returns a text that compares this machine's clock with the relay's, if a message was refused because of
// its time. Otherwise it returns "".
func compareClocks(refused *envelope.Error, now time.Time) string {
	relayNow, ok := refused.Now()
	if !ok || refused.Code != envelope.CodeStaleTimestamp && refused.Code != envelope.CodeExpired {
		return ""
	}
	return "the relay's clock says " + FormatDifference(relayNow, "this machine's clock", now)
}

// FormatDifference returns a text with two times and their difference. name describes the second time.
func FormatDifference(first time.Time, name string, second time.Time) string {
	text := fmt.Sprintf("%s, %s %s", envelope.FormatTime(first), name, envelope.FormatTime(second))
	switch off := second.Sub(first).Round(time.Second); {
	case off < 0:
		return fmt.Sprintf("%s, %v behind", text, -off)
	case off > 0:
		return fmt.Sprintf("%s, %v ahead", text, off)
	}
	return text + ", the same to the second"
}

// whenToRetry returns a text that says when to try again. after is the relay's Retry-After, 0 if there is none.
func whenToRetry(after time.Duration) string {
	if after <= 0 {
		return "later"
	}
	return "in " + max(after.Round(time.Second), time.Second).String()
}

// ExplainDial explains errors of a request. The most common is that no relay answers. It returns others unchanged.
func ExplainDial(err error) error {
	request, isRequest := errors.AsType[*url.Error](err)
	dial, isDial := errors.AsType[*net.OpError](err)
	if !isRequest || !isDial || dial.Op != "dial" {
		return client.InWords(err)
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(request.URL, "http://"), "https://"), "/")
	return fmt.Errorf("no relay answers at %s (%v); start one with agora serve, or name another with --relay or "+
		"AGORA_RELAY", address, dial.Err)
}

// Input reads the file with this name; - is standard input. If standard input is a terminal, input first prints a
// message that names the expected input: what, such as "the manifest".
func (env Environment) Input(name, what string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	if env.StdinIsTerminal {
		env.Say("reading %s from the terminal; end it with Ctrl-D on an empty line, or give a file name instead", what)
	}
	type input struct {
		text []byte
		err  error
	}
	read := make(chan input, 1)
	go func() { // ends with the input, or with the process
		text, err := io.ReadAll(env.Stdin)
		read <- input{text, err}
	}()
	select {
	case in := <-read:
		return in.text, in.err
	case <-env.Ctx.Done():
		return nil, errors.New("interrupted before the input ended")
	}
}
