package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/conformance"
	"github.com/agora-relay/agora/didkey"
)

type conformanceCmd struct {
	URL     string            `arg:"" optional:"" help:"The relay's URL."`
	Level   conformance.Level `default:"extensions" enum:"core,strict,extensions" placeholder:"LEVEL" help:"Which checks to run: core (the original protocol), strict (also PROTOCOL.md's rules for what the original protocol leaves open) or extensions (all checks; the default)."`
	Only    []string          `placeholder:"NUMBER" help:"Run only these checks, whatever their level, such as C-12,S-31."`
	List    bool              `help:"List the checks instead of running them."`
	JSON    bool              `help:"Print the report as one line of JSON."`
	JUnit   string            `name:"junit" placeholder:"FILE" help:"Also write the report as JUnit XML to this file."`
	Timeout time.Duration     `placeholder:"DURATION" help:"Time limit of the whole run. Checks that have not ended by then are skipped (default: 90s for a relay, else 3m)."`

	Hub           string   `placeholder:"URL" help:"Test the Chorus hub at this URL instead of a relay, such as https://relay.example/hub."`
	Channel       string   `placeholder:"URL" help:"Test the channel service at this URL instead of a relay, such as https://relay.example/channel."`
	Jobs          string   `placeholder:"URL" help:"Test the registry of jobs at this URL instead of a relay, such as https://relay.example/jobs."`
	A2A           string   `name:"a2a" placeholder:"URL" help:"Test the A2A 1.0 server at this URL instead of a relay, such as https://relay.example/a2a/z6Mk…/."`
	OperatorKey   string   `placeholder:"FILE" help:"With --hub, --channel or --jobs: also run the checks that need the operator's key, which is in this file. Almost all checks of a channel service need it."`
	Key           string   `placeholder:"FILE" help:"With --hub or --jobs: also run the checks of agents with a DID, as this agent. No program may serve it during the run. With CI=true these checks fail without a key."`
	WebhookListen string   `placeholder:"HOST:PORT" help:"With --hub: also run the checks that need webhooks, and receive them at this address. With --channel: the same for the checks that need deliveries. With --jobs: for those of agents with an endpoint. The hub, the service or the registry must be allowed to call it. The port may be 0."`
	WebhookURL    string   `name:"webhook-url" placeholder:"URL" help:"Where the hub, the channel service or the registry reaches --webhook-listen (default: http:// and that address)."`
	Bearer        []string `sep:"none" placeholder:"FILE" help:"With --a2a: the file with the key of a caller, which is sent as Authorization: Bearer. Repeated, the second one is the key of another caller, and the run also tests that callers do not see each other's tasks."`
	Thorough      bool     `help:"Also run the checks of a hub that take more than a minute, fill its queues or use up the registrations that it allows to this address in an hour. With --channel: those that need hundreds of requests to reach a limit. With --jobs: those that take more than a minute, or use up the agents of a principal or the principals that it allows to this address in a day."`
}

func (conformanceCmd) Help() string {
	return "Works with any relay, in any language, because the test only uses HTTP. Each check cites the rule that it " +
		"tests, and prints what it sent, expected and got. A run takes about a minute, because one check has to wait for " +
		"a minute. With --hub it tests a Chorus hub, with --channel a channel service, with --jobs a registry of jobs, and " +
		"with --a2a an A2A server. " +
		"Exits with 0 only if all selected checks pass, with 1 if a check fails or is skipped, or if nothing answers at the " +
		"address. Checks that need an option which is not given, or what the card of an A2A server does not have, are not " +
		"tested; they do not count.\n\n" +
		"Examples:\n  agora conformance http://127.0.0.1:8789\n" +
		"  agora conformance https://relay.example --level core --junit report.xml\n" +
		"  agora conformance http://127.0.0.1:8789 --only C-5,S-50\n" +
		"  agora conformance --hub https://relay.example/hub\n" +
		"  agora conformance --hub http://127.0.0.1:8789/hub --operator-key operator.key --webhook-listen 127.0.0.1:0\n" +
		"  agora conformance --channel http://127.0.0.1:8789/channel --operator-key operator.key --webhook-listen 127.0.0.1:0\n" +
		"  agora conformance --jobs http://127.0.0.1:8789/jobs --operator-key operator.key --webhook-listen 127.0.0.1:0\n" +
		"  agora conformance --hub http://127.0.0.1:8789/hub --key test.key\n" +
		"  agora conformance --a2a https://relay.example/a2a/z6Mk…/ --bearer alice.a2a --bearer bob.a2a\n" +
		"  agora conformance --list"
}

func (c conformanceCmd) Validate() error {
	switch {
	case c.Timeout < 0:
		return fmt.Errorf("--timeout must not be negative")
	case c.URL != "" && c.gateways() > 0:
		return fmt.Errorf("give the URL of a relay, or --hub, --channel, --jobs or --a2a, not both")
	case c.gateways() > 1:
		return fmt.Errorf("give one of --hub, --channel, --jobs and --a2a")
	case len(c.Bearer) > 0 && c.A2A == "":
		return fmt.Errorf("--bearer needs --a2a")
	case c.Key != "" && c.Hub == "" && c.Jobs == "":
		return fmt.Errorf("--key needs --hub or --jobs")
	case len(c.Bearer) > 2:
		return fmt.Errorf("give --bearer at most twice")
	case (c.gateways() == 0 || c.A2A != "") && (c.OperatorKey != "" || c.WebhookListen != "" || c.WebhookURL != "" || c.Thorough):
		return fmt.Errorf("--operator-key, --webhook-listen, --webhook-url and --thorough need --hub, --channel or --jobs")
	case c.List:
		return nil
	case c.Hub != "":
		return c.hubOptions("").Check(c.Hub)
	case c.Channel != "":
		return c.channelOptions("").Check(c.Channel)
	case c.Jobs != "":
		return c.jobsOptions("").Check(c.Jobs)
	case c.A2A != "":
		return conformance.A2AOptions{Only: c.Only}.Check(c.A2A)
	case c.URL == "":
		return fmt.Errorf("give the relay's URL, --hub, --channel, --jobs, --a2a or --list")
	}
	return conformance.Options{Level: c.Level, Only: c.Only}.Check(c.URL)
}

// gateways returns how many gateways the command must test; 0: it tests a relay.
func (c conformanceCmd) gateways() (n int) {
	for _, url := range []string{c.Hub, c.Channel, c.Jobs, c.A2A} {
		if url != "" {
			n++
		}
	}
	return n
}

// hubOptions returns the options of a run at a hub.
func (c conformanceCmd) hubOptions(operatorKey string) conformance.HubOptions {
	return conformance.HubOptions{Only: c.Only, Timeout: c.Timeout, OperatorKey: operatorKey, WebhookListen: c.WebhookListen,
		WebhookURL: c.WebhookURL, Thorough: c.Thorough, NeedAgent: needAgent()}
}

// needAgent reports whether checks that need --key fail without it.
func needAgent() bool { return os.Getenv("CI") == "true" }

// channelOptions returns the options of a run at a channel service.
func (c conformanceCmd) channelOptions(operatorKey string) conformance.ChannelOptions {
	return conformance.ChannelOptions{Only: c.Only, Timeout: c.Timeout, OperatorKey: operatorKey, Listen: c.WebhookListen,
		ListenURL: c.WebhookURL, Thorough: c.Thorough}
}

// jobsOptions returns the options of a run at a registry of jobs.
func (c conformanceCmd) jobsOptions(operatorKey string) conformance.JobsOptions {
	return conformance.JobsOptions{Only: c.Only, Timeout: c.Timeout, OperatorKey: operatorKey, Listen: c.WebhookListen,
		ListenURL: c.WebhookURL, Thorough: c.Thorough, NeedAgent: needAgent()}
}

func (c conformanceCmd) Run(env cli.Environment) error {
	if c.List {
		return c.list(env)
	}
	report, err := c.check(env)
	if err != nil {
		return err
	}
	if c.JUnit != "" {
		if err := writeJUnit(c.JUnit, report); err != nil {
			return err
		}
	}
	if c.JSON {
		err = env.PrintJSON(report)
	} else {
		err = report.WriteText(env.Stdout)
	}
	if err == nil && !report.Holds() {
		err = cli.ErrReported
	}
	return err
}

// check runs the selected checks.
func (c conformanceCmd) check(env cli.Environment) (conformance.Report, error) {
	progress := func(r conformance.Result) {
		fmt.Fprintf(env.Stderr, "%-7s %-6s %s\n", r.Status, r.Number, r.Title)
	}
	if c.gateways() == 0 {
		return conformance.Run(env.Ctx, c.URL, conformance.Options{Level: c.Level, Only: c.Only, Timeout: c.Timeout,
			Progress: progress})
	}
	if c.A2A != "" {
		return c.checkA2A(env, progress)
	}
	key := ""
	if c.OperatorKey != "" {
		var err error
		if key, err = readKeyFile(c.OperatorKey); err != nil {
			return conformance.Report{}, err
		}
	}
	var agent didkey.Key
	if c.Key != "" {
		var err error
		if agent, err = didkey.Load(c.Key); err != nil {
			return conformance.Report{}, err
		}
	}
	switch {
	case c.Channel != "":
		options := c.channelOptions(key)
		options.Progress = progress
		return conformance.RunChannel(env.Ctx, c.Channel, options)
	case c.Jobs != "":
		options := c.jobsOptions(key)
		options.Progress, options.Agent = progress, agent
		return conformance.RunJobs(env.Ctx, c.Jobs, options)
	}
	options := c.hubOptions(key)
	options.Progress, options.Agent = progress, agent
	return conformance.RunHub(env.Ctx, c.Hub, options)
}

// checkA2A runs the selected checks of an A2A server.
func (c conformanceCmd) checkA2A(env cli.Environment, progress func(conformance.Result)) (conformance.Report, error) {
	keys := []string{"", ""}
	for i, name := range c.Bearer {
		var err error
		if keys[i], err = readKeyFile(name); err != nil {
			return conformance.Report{}, err
		}
	}
	return conformance.RunA2A(env.Ctx, c.A2A, conformance.A2AOptions{Only: c.Only, Timeout: c.Timeout, Progress: progress,
		Bearer: keys[0], Other: keys[1]})
}

// readKeyFile returns the key of an operator or a caller in a file. The server may be another program, so the key is any
// word of printable ASCII, as in an HTTP header.
func readKeyFile(name string) (string, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(string(text))
	if key == "" || len(key) > 1024 || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", fmt.Errorf("%s does not contain a key; it must have one word", name)
	}
	return key, nil
}

func (c conformanceCmd) list(env cli.Environment) error {
	checks := conformance.Checks()
	switch {
	case c.Hub != "":
		checks = conformance.HubChecks()
	case c.Channel != "":
		checks = conformance.ChannelChecks()
	case c.Jobs != "":
		checks = conformance.JobsChecks()
	case c.A2A != "":
		checks = conformance.A2AChecks()
	}
	for _, check := range checks {
		if c.gateways() == 0 && !c.Level.Includes(check.Level()) {
			continue
		}
		if c.JSON {
			if err := env.PrintJSON(check); err != nil {
				return err
			}
			continue
		}
		vectors := ""
		if check.Vectors != "" {
			vectors = "  " + check.Vectors
		}
		if _, err := fmt.Fprintf(env.Stdout, "%-6s %-11s %s  [%s]%s\n",
			check.Number, check.Level(), check.Title, check.Cites, vectors); err != nil {
			return err
		}
	}
	return nil
}

func writeJUnit(name string, report conformance.Report) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := report.WriteJUnit(file); err != nil {
		_ = file.Close() // the first error counts
		return err
	}
	return file.Close()
}
