// Command agora is the relay and everything around it in one binary: keys, canonical JSON, signing and verifying,
// posting and following. One file holds one verb, or a few that belong together; `agora VERB --help` explains each.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/envelope"
)

// verbs is the command line; its tags are the help.
type verbs struct {
	Serve        serveCmd        `cmd:"" help:"Run a relay."`
	Keygen       keygenCmd       `cmd:"" help:"Make an identity: a new private key in a file of its own."`
	Did          didCmd          `cmd:"" help:"Check a did:key and show its public key."`
	Canonicalize canonicalizeCmd `cmd:"" help:"Write JSON in its RFC 8785 form."`
	Sign         signCmd         `cmd:"" help:"Sign an envelope written by hand."`
	Verify       verifyCmd       `cmd:"" help:"Check an envelope as a relay does, without storing it."`
	Send         sendCmd         `cmd:"" help:"Sign a message and post it."`
	Follow       followCmd       `cmd:"" help:"Print messages as they come."`
	Thread       threadCmd       `cmd:"" help:"Show a thread."`
	Agents       agentsCmd       `cmd:"" help:"Find agents."`
	Conformance  conformanceCmd  `cmd:"" help:"Ask any relay whether it keeps the protocol."`
	Bench        benchCmd        `cmd:"" help:"Measure a relay under load."`
	Backup       backupCmd       `cmd:"" help:"Copy a relay's data folder while the relay runs."`
	Check        checkCmd        `cmd:"" help:"Check a data folder or a backup from end to end."`
	Version      versionCmd      `cmd:"" help:"Show the program's version."`
}

// environment is what a verb may touch besides the network and the files it is told to.
type environment struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(environment{ctx, os.Stdin, os.Stdout, os.Stderr}, os.Args[1:])
	stop()
	os.Exit(code)
}

// Exit codes that scripts rely on.
const (
	exitOK     = 0
	exitFailed = 1
	exitMisuse = 2
)

// errSaid ends a verb with exitFailed after it has said all there is to say.
var errSaid = errors.New("said")

func run(env environment, args []string) (code int) {
	// kong prints help itself and then asks to exit.
	type exit int
	defer func() {
		if p := recover(); p != nil {
			asked, ok := p.(exit)
			if !ok {
				panic(p)
			}
			code = int(asked)
		}
	}()
	var v verbs
	parser, err := kong.New(&v,
		kong.Name("agora"),
		kong.Description("A relay through which AI agents find each other, negotiate and deliver work, every message signed."),
		kong.Writers(env.stdout, env.stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Vars{"relay": "http://127.0.0.1:8789"},
	)
	if err != nil {
		fmt.Fprintln(env.stderr, "agora:", err)
		return exitFailed
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		verb := ""
		var misuse *kong.ParseError
		if errors.As(err, &misuse) && misuse.Context != nil && misuse.Context.Command() != "" {
			verb = strings.TrimPrefix(misuse.Context.Selected().FullPath(), "agora")
		}
		fmt.Fprintf(env.stderr, "agora: %v\nTry: agora%s --help\n", err, verb)
		return exitMisuse
	}
	switch err := parsed.Run(env); {
	case err == nil:
		return exitOK
	case errors.Is(err, errSaid):
		return exitFailed
	default:
		fmt.Fprintln(env.stderr, "agora:", inWords(err))
		var refused *envelope.Error
		if errors.As(err, &refused) && refused.Code.Retryable() {
			fmt.Fprintln(env.stderr, "agora: the same command may succeed", later(refused.RetryAfter))
		}
		return exitFailed
	}
}

// later says when to try again what was refused with a Retry-After, 0 if the relay did not say.
func later(after time.Duration) string {
	if after <= 0 {
		return "later"
	}
	return "in " + max(after.Round(time.Second), time.Second).String()
}

// inWords explains the commonest trouble, a relay that is not there, and leaves other errors as they are.
func inWords(err error) error {
	var request *url.Error
	var dial *net.OpError
	if !errors.As(err, &request) || !errors.As(err, &dial) || dial.Op != "dial" {
		return err
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(request.URL, "http://"), "https://"), "/")
	return fmt.Errorf("no relay answers at %s (%v); start one with agora serve, or name another with --relay or AGORA_RELAY", address, dial.Err)
}

// input reads a verb's FILE argument; - is standard input.
func (env environment) input(name string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	type input struct {
		text []byte
		err  error
	}
	read := make(chan input, 1)
	go func() { // ends with the input, or with the process
		text, err := io.ReadAll(env.stdin)
		read <- input{text, err}
	}()
	select {
	case in := <-read:
		return in.text, in.err
	case <-env.ctx.Done():
		return nil, errors.New("interrupted before the input ended")
	}
}
