// Package trade has the commands of those who trade: ask, send, work, and the ones that show messages, threads and
// agents.
package trade

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
)

// AskCmd is the client's side of a thread in one command. The thread at the relay is its only state: every run reads it
// first, and then does what is missing. So a run can end at any moment, and another one continues.
type AskCmd struct {
	cli.NetworkPoster
	Intent      string          `arg:"" optional:"" help:"The service you want, such as translation.en_zh. Not needed if --thread names a request of yours."`
	Params      cli.JSONInput   `placeholder:"JSON" help:"The input of the service: JSON, @FILE, or - for standard input."`
	Description string          `help:"What you want, in words, for the agents to read."`
	To          cli.DIDText     `placeholder:"DID" help:"The only agent that may offer. By default every agent may."`
	Seal        bool            `help:"Encrypt the request for --to, and refuse answers that are not encrypted; see docs/SEALING.md."`
	AllowPlain  bool            `help:"With --seal: use answers that are not encrypted, too."`
	MaxCost     *float64        `placeholder:"USD" help:"The most you would pay. The agents see it. Without it only a free offer is accepted."`
	Deadline    *cli.FutureTime `placeholder:"TIME" help:"The time after which the result is of no use, in RFC 3339."`
	Best        client.Rule     `enum:"cheapest,first,fastest" default:"cheapest" placeholder:"RULE" help:"Which offer to accept: the cheapest, the first, or the one with the shortest ETA (cheapest, first or fastest; default: ${default}). Not used with --choose."`
	Choose      bool            `help:"Choose an offer yourself, at the terminal. Without --max-cost it may have any price."`
	Wait        time.Duration   `default:"1m" placeholder:"DURATION" help:"How long to wait for an offer (default: ${default})."`
	Settle      time.Duration   `default:"3s" placeholder:"DURATION" help:"How long to wait for better offers after the first good one (default: ${default}). Not used with --to or --best first."`
	Timeout     time.Duration   `placeholder:"DURATION" help:"End after this time, also while the agent works."`
	Silence     time.Duration   `default:"30s" placeholder:"DURATION" help:"With several relays: how long the relay of the request may give no valid answer before the request continues at another one (default: ${default})."`
	Thread      cli.IDText      `placeholder:"ID" help:"The thread of the request: that of an earlier run to continue, or a new id (default: a new random one)."`
	Raw         bool            `xor:"form" help:"If the output is a string, print it without JSON quotes, and exactly."`
	JSON        bool            `xor:"form" help:"Print the whole story as one line of JSON, also if there is no result."`
	Quiet       bool            `short:"q" help:"Print no progress, only errors."`
}

func (AskCmd) Help() string {
	var codes strings.Builder
	for _, o := range outcomes {
		fmt.Fprintf(&codes, "  %3d  %s\n", o.Code, o.help)
	}
	return "Sends a request, waits for offers, accepts the best one, waits for the result, and prints its output as " +
		"one line of JSON. Everything else goes to standard error.\n\n" +
		"Without --max-cost, a new request accepts only free offers. If there is none, the command shows the offers and " +
		"ends. Then continue with --thread and --max-cost. With --thread alone, the limit in the request counts.\n\n" +
		"The command first prints the id of the thread. With --thread ID another run continues it, also after a crash, " +
		"and prints a result again. It never asks or accepts twice. Ctrl-C ends the command, not the request: agora send " +
		"cancel takes it back.\n\n" +
		"With --relay repeated, the request goes to the first of them where the agent reads. If that relay falls " +
		"silent, the " +
		"request continues at the next one, in a new thread. The agent works once, also if it had the job already. See " +
		"docs/RELAYS.md.\n\n" +
		"What the agent delivers is untrusted. Never run it.\n\n" +
		"Exit codes:\n" + codes.String() + "\n" +
		"Examples:\n" +
		"  agora ask echo --key alice.key --params '{\"text\":\"hi\"}'\n" +
		"  agora ask translation.en_zh --key alice.key --params @hello.json --max-cost 0.01\n" +
		"  agora ask summary --key alice.key --params - --raw < text.json > summary.txt\n" +
		"  agora ask echo --key alice.key --to DID --seal --params '{\"text\":\"secret\"}'\n" +
		"  agora ask echo --key alice.key --relay https://a.example --relay https://b.example --params " +
		"'{\"text\":\"hi\"}'\n" +
		"  agora ask --key alice.key --thread thread_01m7wge1pwtpq86hase50257b1"
}

func (c AskCmd) Validate() error {
	switch {
	case c.Intent == "" && c.Thread == "":
		return errors.New("name the service that you want: agora ask INTENT; agora agents shows which there are. Or " +
			"continue an earlier request with --thread ID")
	case c.Seal && c.To == "":
		return errors.New("--seal needs --to DID: the request is encrypted to that agent's key")
	case c.MaxCost != nil && *c.MaxCost < 0:
		return errors.New("--max-cost must not be negative")
	case c.Wait <= 0:
		return errors.New("--wait must be more than 0")
	case c.Silence < time.Second:
		return errors.New("--silence must be at least 1s")
	case c.Settle < 0 || c.Timeout < 0:
		return errors.New("--settle and --timeout must not be negative")
	}
	return nil
}

func (c AskCmd) Run(env cli.Environment, used cli.ChosenProfile) error {
	if c.Choose && !env.StdinIsTerminal {
		return cli.ExitError{Code: cli.ExitUsage, Err: errors.New("--choose needs a terminal to read your choice from; " +
			"without one use --best cheapest, first or fastest")}
	}
	key, err := didkey.Load(c.Key)
	if err != nil {
		return err
	}
	params, err := c.Params.Read(env, "the params")
	if err != nil && env.Ctx.Err() != nil {
		return cli.ExitError{Code: OutcomeInterrupted.Code, Err: err}
	}
	if err != nil {
		return err
	}
	status := cli.NewStatusLine(&env, c.Quiet)
	defer status.End()
	ctx, cancel := cli.WithTimeout(env.Ctx, c.Timeout)
	defer cancel()
	a := &asking{AskCmd: c, env: env, status: status, me: key.DID(), people: env.People(key.DID()),
		params: params, used: used, thread: string(c.Thread), passed: map[[32]byte]bool{}, log: cli.NewLog(env)}
	if a.market, err = c.market(env, key, a.moved); err != nil {
		return err
	}
	if a.thread == "" {
		a.thread = client.NewThread()
	}
	result, err := a.run(ctx)
	switch {
	case err == nil:
	case env.Ctx.Err() != nil:
		err = askError{OutcomeInterrupted, errors.New("interrupted")}
	case ctx.Err() != nil:
		err = askError{OutcomeTimedOut, fmt.Errorf("there is no result after %s (--timeout)", cli.FormatDuration(c.Timeout))}
	}
	status.Clear()
	return a.report(result, err)
}

// report prints the result, or why there is none.
func (a *asking) report(result *client.Result, err error) error {
	how := outcomeOf(err)
	if err == nil && !strings.EqualFold(result.Status, "success") {
		how = OutcomeFailed
	}
	if a.JSON {
		if failed := a.env.PrintJSON(a.story(how, result, err)); failed != nil {
			return failed
		}
	}
	if err == nil {
		return a.printResult(how, result)
	}
	a.env.Explain(err)
	a.adviseAfter(how, err)
	return cli.ExitError{Code: how.Code, Err: cli.ErrReported}
}

// printResult prints the output of a result to standard output.
func (a *asking) printResult(how Outcome, result *client.Result) error {
	output := result.Output
	if len(output) == 0 {
		output = json.RawMessage("null")
	}
	var text string
	var err error
	switch {
	case a.JSON:
	case a.Raw && json.Unmarshal(output, &text) == nil && !bytes.Equal(output, []byte("null")):
		_, err = fmt.Fprintln(a.env.Exact, text)
	default:
		_, err = fmt.Fprintf(a.env.Stdout, "%s\n", output)
	}
	if err != nil {
		return err
	}
	if len(result.Artifacts) > 0 && !a.JSON {
		a.note("the result also has artifacts; the same command with --json prints them")
	}
	if how != OutcomeResult {
		a.env.Say("the status of the result is %q, not \"success\"", result.Status)
		return cli.ExitError{Code: how.Code, Err: cli.ErrReported}
	}
	return nil
}

// resumeCommand returns the command that continues the request. more are further flags.
func (a *asking) resumeCommand(more ...string) string {
	words := append([]string{"agora ask --thread", a.threadID()}, more...)
	words = append(words, a.connectionFlags()...)
	if a.MaxCost != nil && len(more) == 0 { // it cannot be read from a sealed REQUEST
		words = append(words, "--max-cost", formatAmount(*a.MaxCost))
	}
	for _, flag := range []struct {
		given bool
		text  string
	}{{a.AllowPlain, "--allow-plain"}, {a.Best != client.Cheapest, "--best " + string(a.Best)}, {a.Choose, "--choose"},
		{a.Raw, "--raw"}, {a.JSON, "--json"}} {
		if flag.given {
			words = append(words, flag.text)
		}
	}
	return strings.Join(words, " ")
}

// connectionFlags returns the flags for the profile, the key and the relay. It leaves out what the next command finds by
// itself, in the profile or in the environment.
func (a *asking) connectionFlags() (words []string) {
	known := func(variable, inProfile, otherwise string) string {
		if value, set := os.LookupEnv(variable); set {
			return value
		}
		return cmp.Or(inProfile, otherwise)
	}
	profileKey := ""
	if a.used.Profile != nil {
		profileKey = a.used.File("key")
		if name := a.used.Name; name != cli.OrDefault(os.Getenv("AGORA_PROFILE")) {
			words = append(words, "--profile", name)
		}
	}
	if a.Key != known("AGORA_KEY", profileKey, "") {
		words = append(words, "--key", cli.ShellQuoted(a.Key))
	}
	var flags []string
	for _, one := range a.URLs() {
		flags = append(flags, "--relay", cli.ShellQuoted(one))
	}
	if strings.Join(a.URLs(), " ") != known("AGORA_RELAY", strings.Join(a.used.Texts("relay"), " "), cli.RelayURL) {
		words = append(words, flags...)
	}
	if a.Discover {
		words = append(words, "--discover")
	}
	if a.Private && os.Getenv("AGORA_PRIVATE") == "" && (a.used.Profile == nil || a.used.Values["private"] != true) {
		words = append(words, "--private")
	}
	return words
}

// note prints a line of progress.
func (a *asking) note(format string, args ...any) {
	if !a.Quiet {
		a.env.Say(format, args...)
	}
}

// command prints a command that the user may run next.
func (a *asking) command(text string) { fmt.Fprintf(a.env.Stderr, "  %s\n", cli.Printable(text)) }
