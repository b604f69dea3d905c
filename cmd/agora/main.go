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
	"reflect"
	"slices"
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
	Verify       verifyCmd       `cmd:"" help:"Check an envelope's form and signature, however old it is."`
	Send         sendCmd         `cmd:"" help:"Sign a message and post it."`
	Follow       followCmd       `cmd:"" help:"Print messages as they come."`
	Thread       threadCmd       `cmd:"" help:"Show a thread."`
	Agents       agentsCmd       `cmd:"" help:"Find agents."`
	Conformance  conformanceCmd  `cmd:"" help:"Ask any relay whether it keeps the protocol."`
	Bench        benchCmd        `cmd:"" help:"Measure a relay under load."`
	Backup       backupCmd       `cmd:"" help:"Copy a relay's data folder while the relay runs."`
	Check        checkCmd        `cmd:"" help:"Check a data folder or a backup from end to end."`
	Version      versionCmd      `cmd:"" help:"Show the program's version."`
	Help         helpCmd         `cmd:"" help:"Show help for a verb."`

	PrintVersion kong.VersionFlag `name:"version" help:"Show the program's version."`
}

// environment is what a verb may touch besides the network and the files it is told to.
type environment struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// exact is stdout for verbs whose output must not change by a byte, such as canonicalize. It escapes only if stdout
	// is a terminal. run sets it.
	exact io.Writer

	typed bool // stdin is a terminal
	shown bool // stdout is a terminal
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := run(environment{ctx: ctx, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		typed: isTerminal(os.Stdin), shown: isTerminal(os.Stdout)}, os.Args[1:])
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
	env.exact = env.stdout
	env.stdout, env.stderr = escapingWriter{env.stdout}, escapingWriter{env.stderr}
	if env.shown {
		env.exact = env.stdout
	}
	// kong prints help and the version itself and then asks to exit.
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
	parser, err := newParser(new(verbs), kong.Writers(env.stdout, env.stderr), kong.Exit(func(code int) { panic(exit(code)) }))
	if err != nil {
		env.say("%v", err)
		return exitFailed
	}
	parsed, err := parser.Parse(asHelp(args))
	if err != nil {
		return env.misuse(err, args)
	}
	switch err := parsed.Run(env); {
	case err == nil:
		return exitOK
	case errors.Is(err, errSaid):
		return exitFailed
	default:
		env.explain(err)
		return exitFailed
	}
}

// newParser returns the command line's parser, which fills v.
func newParser(v *verbs, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(v, append(options,
		kong.Name("agora"),
		kong.Description("A relay through which AI agents find each other, negotiate and deliver work, every message signed."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.NamedMapper("bytes", kong.MapperFunc(decodeBytes)),
		kong.KindMapper(reflect.Int, decodeNumber("a whole number such as 10", setInt)),
		kong.KindMapper(reflect.Float64, decodeNumber("a number such as 10 or 0.5", setFloat)),
		kong.Vars{"relay": "http://127.0.0.1:8789", "version": versionLine()},
	)...)
}

// asHelp turns "agora", "agora help" and "agora help VERB" into the --help that kong understands.
func asHelp(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help" && !slices.Contains(args, "--help"):
		return append(slices.Clone(args[1:]), "--help")
	}
	return args
}

// say writes one line for people. Line breaks in foreign text are escaped, so they cannot forge another line.
func (env environment) say(format string, args ...any) {
	fmt.Fprintln(env.stderr, "agora:", printable(fmt.Sprintf(format, args...)))
}

// misuse reports a wrong command line and returns the exit code.
func (env environment) misuse(err error, args []string) int {
	verb := ""
	if misuse, ok := errors.AsType[*kong.ParseError](err); ok && misuse.Context != nil && misuse.Context.Command() != "" {
		verb = strings.TrimPrefix(misuse.Context.Selected().FullPath(), "agora")
	}
	if mistyped := mistypedMessage(args); mistyped != nil {
		err, verb = mistyped, " send"
	}
	env.say("%v", err)
	fmt.Fprintf(env.stderr, "Try: agora%s --help\n", verb)
	return exitMisuse
}

// explain reports why a verb failed, and what to do.
func (env environment) explain(err error) {
	for _, line := range lines(inWords(err)) {
		fmt.Fprintln(env.stderr, "agora:", line)
	}
	refused, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return
	}
	if advice := clocks(refused, time.Now()); advice != "" {
		env.say("%s", advice)
	}
	if refused.Code.Retryable() {
		env.say("the same command may succeed %s", later(refused.RetryAfter))
	}
}

// clocks compares this machine's clock with the relay's, if a message was refused because of its time; else "".
func clocks(refused *envelope.Error, now time.Time) string {
	relayNow, ok := refused.Now()
	if !ok || refused.Code != envelope.CodeStaleTimestamp && refused.Code != envelope.CodeExpired {
		return ""
	}
	return "the relay's clock says " + apart(relayNow, "this machine's clock", now)
}

// apart writes two times and their difference. name says what the other time is.
func apart(one time.Time, name string, other time.Time) string {
	text := fmt.Sprintf("%s, %s %s", envelope.FormatTime(one), name, envelope.FormatTime(other))
	switch off := other.Sub(one).Round(time.Second); {
	case off < 0:
		return fmt.Sprintf("%s, %v behind", text, -off)
	case off > 0:
		return fmt.Sprintf("%s, %v ahead", text, off)
	}
	return text + ", the same to the second"
}

// later says when to try again. after is the relay's Retry-After, 0 if there is none.
func later(after time.Duration) string {
	if after <= 0 {
		return "later"
	}
	return "in " + max(after.Round(time.Second), time.Second).String()
}

// inWords explains the most common error, that no relay answers. It returns other errors unchanged.
func inWords(err error) error {
	request, isRequest := errors.AsType[*url.Error](err)
	dial, isDial := errors.AsType[*net.OpError](err)
	if !isRequest || !isDial || dial.Op != "dial" {
		return err
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(request.URL, "http://"), "https://"), "/")
	return fmt.Errorf("no relay answers at %s (%v); start one with agora serve, or name another with --relay or AGORA_RELAY",
		address, dial.Err)
}

// helpCmd puts help into the list of verbs. It never runs, because asHelp replaces it before kong parses.
type helpCmd struct {
	Verb []string `arg:"" optional:"" help:"The verb."`
}

func (helpCmd) Help() string { return "Examples:\n  agora help\n  agora help send offer" }

func (helpCmd) Run() error { return errors.New("help must be the first word: agora help VERB") }

// input reads the file with this name; - is standard input. If a person types the input, a message says what to type:
// what, such as "the manifest".
func (env environment) input(name, what string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	if env.typed {
		env.say("reading %s from the terminal; end it with Ctrl-D on a line of its own, or name a file", what)
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
