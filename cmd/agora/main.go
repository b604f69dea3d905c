// Command agora is the relay and its tools in one binary. It runs a relay, creates keys, canonicalizes JSON, signs,
// verifies, posts and follows messages, and tests, measures and backs up relays. `agora COMMAND --help` explains each.
//
// This package has the list of commands, what works on that list (help, completion, profiles, generate), and commands
// that stand alone. All others are in the packages in internal: serve runs a relay, operate is for its operator, prove
// checks signatures and proofs, trade is for clients and agents, and chorus and a2acmd are for the gateways. They share
// cli, settings and datafolder, and do not import this package.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/a2acmd"
	"github.com/agora-relay/agora/cmd/agora/internal/chorus"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/operate"
	"github.com/agora-relay/agora/cmd/agora/internal/prove"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/alecthomas/kong"
)

// commandLine has a field for each command. The tags contain the help texts.
type commandLine struct {
	Serve        serve.Cmd             `cmd:"" everyday:"" help:"Run a relay."`
	Init         initCmd               `cmd:"" everyday:"" help:"Begin: make a key and a profile, so that the commands need no flags."`
	Profile      profileCmd            `cmd:"" help:"List your profiles."`
	Name         cli.NameCmd           `cmd:"" everyday:"" help:"Give names to DIDs, in your own address book."`
	Keygen       keygenCmd             `cmd:"" everyday:"" help:"Create an identity: a new private key in a new file."`
	Key          serve.KeyCmd          `cmd:"" help:"Share the keys of a relay among its nodes."`
	Did          didCmd                `cmd:"" help:"Check a did:key and show its public key."`
	Canonicalize prove.CanonicalizeCmd `cmd:"" help:"Print JSON in its canonical form (RFC 8785)."`
	Sign         prove.SignCmd         `cmd:"" help:"Sign an envelope that you have written as JSON."`
	Verify       prove.VerifyCmd       `cmd:"" help:"Check an envelope of any age, a deal, or evidence."`
	Audit        prove.AuditCmd        `cmd:"" help:"Check that a relay has kept its word, with proofs and witnesses."`
	Proof        prove.ProofCmd        `cmd:"" help:"Get and check proofs of a relay's log."`
	Ask          trade.AskCmd          `cmd:"" everyday:"" help:"Ask agents for a service, and print the result."`
	Send         trade.SendCmd         `cmd:"" everyday:"" help:"Sign a message and post it."`
	Follow       trade.FollowCmd       `cmd:"" everyday:"" help:"Print messages as they arrive."`
	Threads      trade.ThreadsCmd      `cmd:"" everyday:"" help:"List your threads."`
	Thread       trade.ThreadCmd       `cmd:"" everyday:"" help:"Show a thread."`
	Agents       trade.AgentsCmd       `cmd:"" everyday:"" help:"Find agents."`
	Work         trade.WorkCmd         `cmd:"" everyday:"" help:"Make an agent out of any program."`
	Relays       trade.RelaysCmd       `cmd:"" help:"Show your relays, and whether they can be trusted."`
	Page         pageCmd               `cmd:"" help:"Show the web page of a relay elsewhere, from this machine."`
	Hub          chorus.HubCmd         `cmd:"" everyday:"" help:"Talk with agents of a Chorus hub."`
	Channel      chorus.ChannelCmd     `cmd:"" everyday:"" help:"Take part in channels, and connect agents to them."`
	Jobs         chorus.JobsCmd        `cmd:"" everyday:"" help:"Hire agents, and let agents be hired, at a registry with credits."`
	A2a          a2acmd.Cmd            `cmd:"" name:"a2a" everyday:"" help:"Call A2A agents, and give yours an A2A endpoint."`
	Mcp          mcpCmd                `cmd:"" everyday:"" help:"Give an LLM the tools of an agent, over MCP."`
	Conformance  conformanceCmd        `cmd:"" help:"Test whether a relay follows the protocol."`
	Bench        benchCmd              `cmd:"" help:"Measure a relay under load."`
	Monitoring   operate.MonitoringCmd `cmd:"" help:"Print alert rules for Prometheus, or a dashboard for Grafana."`
	Admin        operate.AdminCmd      `cmd:"" help:"Govern a relay that runs on this machine: bans, removals, backups."`
	Stats        operate.StatsCmd      `cmd:"" help:"Show what a data folder holds."`
	Prune        operate.PruneCmd      `cmd:"" help:"Remove old messages from a data folder, and give its disk space back."`
	Fold         operate.FoldCmd       `cmd:"" help:"Fold old transfers and jobs of the registry into balances."`
	Restore      operate.RestoreCmd    `cmd:"" help:"Put a backup in place."`
	Backup       operate.BackupCmd     `cmd:"" help:"Copy a relay's data folder while the relay runs."`
	Check        operate.CheckCmd      `cmd:"" help:"Check all of a data folder or a backup."`
	Migrate      operate.MigrateCmd    `cmd:"" help:"Move a relay from its data folder to PostgreSQL, or back."`
	Health       operate.HealthCmd     `cmd:"" help:"Check whether a relay accepts messages."`
	Completion   completionCmd         `cmd:"" help:"Print a script with which a shell completes commands and flags."`
	Complete     completeCmd           `cmd:"" hidden:"" help:"Print the words that can end a command line."`
	Generate     generateCmd           `cmd:"" hidden:"" help:"Write the files that packages have besides the program."`
	Version      versionCmd            `cmd:"" help:"Show the program's version."`
	Help         helpCmd               `cmd:"" help:"Show help for a command."`

	With         string           `name:"profile" env:"AGORA_PROFILE" complete:"profile" placeholder:"NAME" help:"Use this profile (default: default); see agora profile."`
	PrintVersion kong.VersionFlag `name:"version" help:"Show the program's version."`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	env := cli.Environment{Ctx: ctx, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		StdinIsTerminal: cli.IsTerminal(os.Stdin), StdoutIsTerminal: cli.IsTerminal(os.Stdout),
		StderrIsTerminal: cli.IsTerminal(os.Stderr), Width: func() int { return cli.TerminalWidth(os.Stdout) }}
	if env.StdinIsTerminal {
		env.DropTyped = func() error { return cli.DropTyped(os.Stdin) }
	}
	code := run(env, os.Args[1:])
	stop()
	os.Exit(code)
}

func run(env cli.Environment, args []string) (code int) {
	env.Args, env.Exact, env.Raw = args, env.Stdout, env.Stdout
	env.Stdout, env.Stderr = cli.EscapingWriter{Writer: env.Stdout}, cli.EscapingWriter{Writer: env.Stderr}
	if env.StdoutIsTerminal {
		env.Exact = env.Stdout
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
	parser, err := newParser(line, kong.Writers(env.Stdout, env.Stderr), kong.Help(helpPrinter(all)),
		kong.Exit(func(code int) { panic(exit(code)) }), onlyCommand(words))
	if err != nil {
		env.Say("%v", err)
		return cli.ExitFailed
	}
	parsed, err := parser.Parse(words)
	if err != nil {
		return usageError(env, err, args, &line.Serve)
	}
	err = parsed.Run(env, serve.Parser(parseServe))
	switch {
	case err == nil, errors.Is(err, cli.ErrReported):
	case errors.Is(err, cli.ErrFormat):
		env.Say("%v", err)
		fmt.Fprintf(env.Stderr, "Try: agora %s --help\n", parsed.Selected().Name)
		return cli.ExitUsage
	default:
		env.Explain(err)
	}
	return cli.ExitCode(err)
}

// newParser returns the parser of the command line. It writes the parsed values to line.
func newParser(line *commandLine, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(line, append(options,
		kong.Name("agora"),
		kong.Description("A relay for AI agents. They find each other, negotiate and deliver work with signed messages."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(cli.DecodeDuration)),
		kong.NamedMapper("bytes", kong.MapperFunc(cli.DecodeBytes)),
		kong.KindMapper(reflect.Int, cli.DecodeNumber("a whole number such as 10", cli.SetInt)),
		kong.KindMapper(reflect.Float64, cli.DecodeNumber("a number such as 10 or 0.5", cli.SetFloat)),
		kong.Vars{"relay": cli.RelayURL, "version": versionLine()},
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

// parseServe parses a command line of serve, with the environment and the file as they are now.
func parseServe(args []string) (*serve.Cmd, *kong.Context, error) {
	line := new(commandLine)
	parser, err := newParser(line, kong.Exit(func(int) {}))
	if err != nil {
		return nil, nil, err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return nil, nil, line.Serve.Sources.Explain(err)
	}
	return &line.Serve, parsed, nil
}

// usageError reports a wrong command line and returns the exit code.
func usageError(env cli.Environment, err error, args []string, serve *serve.Cmd) int {
	command := ""
	if parseErr, ok := errors.AsType[*kong.ParseError](err); ok && parseErr.Context != nil &&
		parseErr.Context.Command() != "" {
		command = strings.TrimPrefix(parseErr.Context.Selected().FullPath(), "agora")
	}
	if mistyped := trade.MistypedMessage(args); mistyped != nil {
		err, command = mistyped, " send"
	}
	if missing := missingCommand(err); missing != nil {
		err = missing
	}
	if negativeArgument.MatchString(err.Error()) {
		err = errors.New("no number may be negative here")
	}
	env.Say("%v", serve.Sources.Explain(err))
	fmt.Fprintf(env.Stderr, "Try: agora%s --help\n", command)
	return cli.ExitUsage
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

// negativeArgument matches kong's errors about a negative number, which it takes for a flag.
var negativeArgument = regexp.MustCompile(`^unknown flag -[0-9.]|expected number value but got "-[0-9.]`)
