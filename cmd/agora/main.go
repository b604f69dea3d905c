// Command agora is the relay and its tools in one binary. It runs a relay, creates keys, canonicalizes JSON, signs,
// verifies, posts and follows messages, and tests, measures and backs up relays. Each file contains one command, or a
// few that belong together; `agora COMMAND --help` explains each.
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
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// commandLine has a field for each command. The tags contain the help texts.
type commandLine struct {
	Serve        serveCmd        `cmd:"" everyday:"" help:"Run a relay."`
	Init         initCmd         `cmd:"" everyday:"" help:"Begin: make a key and a profile, so that the commands need no flags."`
	Profile      profileCmd      `cmd:"" help:"List your profiles."`
	Name         nameCmd         `cmd:"" everyday:"" help:"Give names to DIDs, in your own address book."`
	Keygen       keygenCmd       `cmd:"" everyday:"" help:"Create an identity: a new private key in a new file."`
	Key          keyCmd          `cmd:"" help:"Share the keys of a relay among its nodes."`
	Did          didCmd          `cmd:"" help:"Check a did:key and show its public key."`
	Canonicalize canonicalizeCmd `cmd:"" help:"Print JSON in its canonical form (RFC 8785)."`
	Sign         signCmd         `cmd:"" help:"Sign an envelope that you have written as JSON."`
	Verify       verifyCmd       `cmd:"" help:"Check the form and the signature of an envelope, however old it is."`
	Ask          askCmd          `cmd:"" everyday:"" help:"Ask agents for a service, and print the result."`
	Send         sendCmd         `cmd:"" everyday:"" help:"Sign a message and post it."`
	Follow       followCmd       `cmd:"" everyday:"" help:"Print messages as they arrive."`
	Threads      threadsCmd      `cmd:"" everyday:"" help:"List your threads."`
	Thread       threadCmd       `cmd:"" everyday:"" help:"Show a thread."`
	Agents       agentsCmd       `cmd:"" everyday:"" help:"Find agents."`
	Work         workCmd         `cmd:"" everyday:"" help:"Make an agent out of any program."`
	Page         pageCmd         `cmd:"" help:"Show the web page of a relay elsewhere, from this machine."`
	Hub          hubCmd          `cmd:"" everyday:"" help:"Talk with agents of a Chorus hub."`
	Channel      channelCmd      `cmd:"" everyday:"" help:"Take part in channels, and connect agents to them."`
	Jobs         jobsCmd         `cmd:"" everyday:"" help:"Hire agents, and let agents be hired, at a registry with credits."`
	Mcp          mcpCmd          `cmd:"" everyday:"" help:"Give an LLM the tools of an agent, over MCP."`
	Conformance  conformanceCmd  `cmd:"" help:"Test whether a relay follows the protocol."`
	Bench        benchCmd        `cmd:"" help:"Measure a relay under load."`
	Monitoring   monitoringCmd   `cmd:"" help:"Print alert rules for Prometheus, or a dashboard for Grafana."`
	Admin        adminCmd        `cmd:"" help:"Govern a relay that runs on this machine: bans, removals, backups."`
	Stats        statsCmd        `cmd:"" help:"Show what a data folder holds."`
	Prune        pruneCmd        `cmd:"" help:"Remove old messages from a data folder, and give its disk space back."`
	Fold         foldCmd         `cmd:"" help:"Fold old transfers and jobs of the registry into balances."`
	Restore      restoreCmd      `cmd:"" help:"Put a backup in place."`
	Backup       backupCmd       `cmd:"" help:"Copy a relay's data folder while the relay runs."`
	Check        checkCmd        `cmd:"" help:"Check all of a data folder or a backup."`
	Migrate      migrateCmd      `cmd:"" help:"Move a relay from its data folder to PostgreSQL, or back."`
	Health       healthCmd       `cmd:"" help:"Check whether a relay accepts messages."`
	Completion   completionCmd   `cmd:"" help:"Print a script with which a shell completes commands and flags."`
	Complete     completeCmd     `cmd:"" hidden:"" help:"Print the words that can end a command line."`
	Generate     generateCmd     `cmd:"" hidden:"" help:"Write the files that packages have besides the program."`
	Version      versionCmd      `cmd:"" help:"Show the program's version."`
	Help         helpCmd         `cmd:"" help:"Show help for a command."`

	With         string           `name:"profile" env:"AGORA_PROFILE" complete:"profile" placeholder:"NAME" help:"Use this profile (default: default); see agora profile."`
	PrintVersion kong.VersionFlag `name:"version" help:"Show the program's version."`
}

// environment is what a command uses of its process: a context and the standard streams.
type environment struct {
	ctx    context.Context
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	// exact is stdout for commands whose output must be exact to the byte, such as canonicalize. It escapes characters
	// only if stdout is a terminal. run sets it.
	exact io.Writer
	// raw is stdout without any escaping, for text that is escaped and has colours. run sets it.
	raw io.Writer

	args []string // the command line, without the name of the program

	stdinIsTerminal  bool // stdin is a terminal
	stdoutIsTerminal bool // stdout is a terminal
	stderrIsTerminal bool // stderr is a terminal

	// dropTyped drops what was typed at the terminal and is not read yet. nil: stdin is no terminal.
	dropTyped func() error

	width func() int // returns how many columns the terminal of stdout has, 0 if that is unknown; nil: unknown
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	env := environment{ctx: ctx, stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		stdinIsTerminal: isTerminal(os.Stdin), stdoutIsTerminal: isTerminal(os.Stdout),
		stderrIsTerminal: isTerminal(os.Stderr), width: func() int { return terminalWidth(os.Stdout) }}
	if env.stdinIsTerminal {
		env.dropTyped = func() error { return dropTyped(os.Stdin) }
	}
	code := run(env, os.Args[1:])
	stop()
	os.Exit(code)
}

// Exit codes that scripts rely on. Those of agora ask are in outcomes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// errReported is the error of a command that has already printed why it failed. It leads to no other message.
var errReported = errors.New("the failure was already reported")

// exitError is an error with its own exit code. Other errors lead to exitFailed.
type exitError struct {
	code int
	error
}

func (e exitError) Unwrap() error { return e.error }

// exitCode returns the exit code for the error of a command.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[exitError](err); ok {
		return e.code
	}
	return exitFailed
}

func run(env environment, args []string) (code int) {
	env.args, env.exact, env.raw = args, env.stdout, env.stdout
	env.stdout, env.stderr = escapingWriter{env.stdout}, escapingWriter{env.stderr}
	if env.stdoutIsTerminal {
		env.exact = env.stdout
	}
	// kong prints help and the version itself and then calls the function of kong.Exit.
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
	line := new(commandLine)
	words, all := rewriteHelp(args)
	parser, err := newParser(line, kong.Writers(env.stdout, env.stderr), kong.Help(helpPrinter(all)),
		kong.Exit(func(code int) { panic(exit(code)) }), onlyCommand(words))
	if err != nil {
		env.say("%v", err)
		return exitFailed
	}
	parsed, err := parser.Parse(words)
	if err != nil {
		return env.usageError(err, args, &line.Serve)
	}
	err = parsed.Run(env)
	switch {
	case err == nil, errors.Is(err, errReported):
	case errors.Is(err, errFormat):
		env.say("%v", err)
		fmt.Fprintf(env.stderr, "Try: agora %s --help\n", parsed.Selected().Name)
		return exitUsage
	default:
		env.explain(err)
	}
	return exitCode(err)
}

// relayURL is the URL of a relay that agora serve runs on this machine.
const relayURL = "http://127.0.0.1:8789"

// newParser returns the parser of the command line. It writes the parsed values to line.
func newParser(line *commandLine, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(line, append(options,
		kong.Name("agora"),
		kong.Description("A relay for AI agents. They find each other, negotiate and deliver work with signed messages."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(decodeDuration)),
		kong.NamedMapper("bytes", kong.MapperFunc(decodeBytes)),
		kong.KindMapper(reflect.Int, decodeNumber("a whole number such as 10", setInt)),
		kong.KindMapper(reflect.Float64, decodeNumber("a number such as 10 or 0.5", setFloat)),
		kong.Vars{"relay": relayURL, "version": versionLine()},
	)...)
}

// onlyCommand makes a parser ignore all commands but the one that args begin with. Otherwise each start of the program
// would spend a third of its time on the flags of the other commands. If args begin with something else, the parser
// ignores none.
func onlyCommand(args []string) kong.Option {
	var others []string
	named := false
	for field := range reflect.TypeFor[commandLine]().Fields() {
		_, isCommand := field.Tag.Lookup("cmd")
		switch {
		case !isCommand:
		case strings.EqualFold(field.Name, args[0]):
			named = true
		default:
			others = append(others, field.Name)
		}
	}
	if !named {
		return kong.IgnoreFields()
	}
	return kong.IgnoreFields(`^commandLine\.(` + strings.Join(others, "|") + `)$`)
}

// wholeCommandLine returns all commands. Some commands need it, because they describe or check other commands.
func wholeCommandLine() (*kong.Application, error) {
	parser, err := newParser(new(commandLine))
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

// say prints one line to standard error. Line breaks in foreign text are escaped, so they cannot forge another line.
func (env environment) say(format string, args ...any) {
	fmt.Fprintln(env.stderr, "agora:", printable(fmt.Sprintf(format, args...)))
}

// usageError reports a wrong command line and returns the exit code.
func (env environment) usageError(err error, args []string, serve *serveCmd) int {
	command := ""
	if parseErr, ok := errors.AsType[*kong.ParseError](err); ok && parseErr.Context != nil &&
		parseErr.Context.Command() != "" {
		command = strings.TrimPrefix(parseErr.Context.Selected().FullPath(), "agora")
	}
	if mistyped := mistypedMessage(args); mistyped != nil {
		err, command = mistyped, " send"
	}
	if missing := missingCommand(err); missing != nil {
		err = missing
	}
	if negativeArgument.MatchString(err.Error()) {
		err = errors.New("no number may be negative here")
	}
	env.say("%v", serve.withSource(err))
	fmt.Fprintf(env.stderr, "Try: agora%s --help\n", command)
	return exitUsage
}

// missingCommand returns the error of a command line that ends where the name of a command must follow. kong's own error
// names only the first five. It returns nil for other errors.
func missingCommand(err error) error {
	wrong, ok := errors.AsType[*kong.ParseError](err)
	if !ok || wrong.Context == nil || wrong.Context.Selected() == nil || !strings.HasPrefix(err.Error(), "expected one of ") {
		return nil
	}
	var names []string
	for _, child := range wrong.Context.Selected().Children {
		names = append(names, child.Name)
	}
	return fmt.Errorf("the name of a command must follow: %s", strings.Join(names, ", "))
}

// negativeArgument matches kong's error about a negative number among the arguments, which it takes for a flag.
var negativeArgument = regexp.MustCompile(`^unknown flag -[0-9.]`)

// explain prints why a command failed, and what to do.
func (env environment) explain(err error) {
	for _, line := range errorLines(explainDial(err)) {
		fmt.Fprintln(env.stderr, "agora:", line)
	}
	refused, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return
	}
	if advice := compareClocks(refused, time.Now()); advice != "" {
		env.say("%s", advice)
	}
	if refused.Code.Retryable() {
		env.say("the same command may succeed %s", whenToRetry(refused.RetryAfter))
	}
}

// compareClocks returns a text that compares this machine's clock with the relay's, if a message was refused because of
// its time. Otherwise it returns "".
func compareClocks(refused *envelope.Error, now time.Time) string {
	relayNow, ok := refused.Now()
	if !ok || refused.Code != envelope.CodeStaleTimestamp && refused.Code != envelope.CodeExpired {
		return ""
	}
	return "the relay's clock says " + formatDifference(relayNow, "this machine's clock", now)
}

// formatDifference returns a text with two times and their difference. name describes the second time.
func formatDifference(first time.Time, name string, second time.Time) string {
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

// explainDial explains errors of a request. The most common is that no relay answers. It returns others unchanged.
func explainDial(err error) error {
	request, isRequest := errors.AsType[*url.Error](err)
	dial, isDial := errors.AsType[*net.OpError](err)
	if !isRequest || !isDial || dial.Op != "dial" {
		return client.InWords(err)
	}
	address, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(request.URL, "http://"), "https://"), "/")
	return fmt.Errorf("no relay answers at %s (%v); start one with agora serve, or name another with --relay or "+
		"AGORA_RELAY", address, dial.Err)
}

// input reads the file with this name; - is standard input. If standard input is a terminal, input first prints a
// message that names the expected input: what, such as "the manifest".
func (env environment) input(name, what string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	if env.stdinIsTerminal {
		env.say("reading %s from the terminal; end it with Ctrl-D on an empty line, or give a file name instead", what)
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
