package chorus

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/conformance/agentprobe"
)

type channelProbe struct {
	Connection string            `arg:"" name:"connection-string" help:"The agent's connection string, a secret URL; - is standard input, which keeps it out of the history of your shell."`
	Listen     cli.ListenAddress `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Take the agent's events at this address. The port may be 0 (default: ${default})."`
	URL        string            `name:"url" placeholder:"URL" help:"Where the agent reaches --listen (default: http:// and that address)."`
	MCP        mcpForm           `name:"mcp" default:"object" placeholder:"FORM" help:"The form of mcp in most messages: object, array for newer agents, or none (default: ${default})."`
	Content    string            `placeholder:"TEXT" help:"What the messages say (default: a text that asks for a short answer)."`
	OldURL     string            `name:"old-url" placeholder:"URL" help:"Also test that this connection string, which the agent has replaced, no longer works."`
	Wait       time.Duration     `default:"30s" placeholder:"DURATION" help:"How long the agent may take to answer a message (default: ${default})."`
	Quiet      time.Duration     `default:"2s" placeholder:"DURATION" help:"How long the agent pauses at most within an answer (default: ${default})."`
	JSON       bool              `help:"Print the report as one line of JSON."`
}

func (channelProbe) Help() string {
	return "Acts as a service of the Chorus Channel Protocol for your agent, and says what the agent does wrong. " +
		"It sends about " +
		"15 messages, well-formed and malformed, takes what the agent posts to the callbacks, and offers tools by MCP. It " +
		"costs your agent as much as that many questions. A check passes, fails, is not tested, or is a warning about " +
		"something that the protocol does not require. Exits with 1 if a check fails.\n\n" +
		"Examples:\n  agora channel probe http://127.0.0.1:3000/inbox/sk_test\n" +
		"  agora channel probe - --listen :9000 --url https://probe.example --mcp array --wait 2m < bot.url"
}

func (c channelProbe) Validate() error {
	if c.Wait <= 0 || c.Quiet <= 0 {
		return errors.New("--wait and --quiet must be positive")
	}
	if c.Connection == "-" {
		return nil
	}
	return c.options().Check(c.Connection)
}

func (c channelProbe) options() agentprobe.Options {
	return agentprobe.Options{Listen: string(c.Listen), URL: c.URL, MCP: string(c.MCP), Content: c.Content, OldURL: c.OldURL,
		Wait: c.Wait, Quiet: c.Quiet}
}

func (c channelProbe) Run(env cli.Environment) error {
	connection, err := readText(env, c.Connection, "the connection string")
	if err != nil {
		return err
	}
	options := c.options()
	out := env.Stdout
	if c.JSON {
		out = env.Stderr
	}
	options.Progress = func(r agentprobe.Result) { fmt.Fprintln(out, cli.Printable(r.String())) }
	report, err := agentprobe.Run(env.Ctx, strings.TrimSpace(connection), options)
	if err != nil {
		return err
	}
	if c.JSON {
		err = env.PrintJSON(report)
	} else {
		_, err = fmt.Fprintf(env.Stdout, "\n%s\n", report.Summary())
	}
	if err == nil && !report.Holds() {
		err = cli.ErrReported
	}
	return err
}
