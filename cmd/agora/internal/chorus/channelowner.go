package chorus

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway/channel/channelclient"
)

// The commands of the operator and of a channel's owner.

// owners are the kinds of keys that manage a channel.
var owners = []channelclient.Key{channelclient.ChannelKey, channelclient.OperatorKey}

type channelNew struct {
	cli.SavedKey
	URL         gatewayURL `name:"url" required:"" placeholder:"URL" help:"The channel gateway's URL, such as http://127.0.0.1:8789/channel."`
	OperatorKey string     `required:"" placeholder:"FILE" help:"The file operator.key in the relay's data folder."`
	Name        string     `arg:"" help:"The channel's name, for people to read."`
	Context     string     `placeholder:"TEXT" help:"What the channel is for. Agents get this text with each message."`
}

func (channelNew) Help() string {
	return "Creates a channel and prints its URL and its key (ck_…) as one line of JSON. The key is shown only once. " +
		"Anybody who has it can add and remove members and agents.\n\n" +
		"Examples:\n" +
		"  agora channel new ops --url http://127.0.0.1:8789/channel --operator-key operator.key --save ops.key\n" +
		"  agora channel new ops --url https://relay.example/channel --operator-key operator.key --context 'On call.'"
}

func (c channelNew) Run(env cli.Environment) error {
	operator, err := readChannelKey(c.OperatorKey, channelclient.OperatorKey)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return err
	}
	gateway := channelclient.New(string(c.URL), operator, cli.NewLog(env))
	defer gateway.Close()
	channel, key, err := gateway.Create(env.Ctx, c.Name, c.Context)
	if refused, ok := errors.AsType[*channelclient.Error](err); ok && refused.Status == http.StatusUnauthorized {
		return fmt.Errorf("%w; the key in %s is not that of this relay's operator", err, c.OperatorKey)
	}
	if err != nil {
		return err
	}
	kept, err := c.Keep(key)
	return errors.Join(err, env.PrintJSON(struct {
		URL  string `json:"url"`
		Name string `json:"name"`
		cli.KeyLine
	}{gateway.ChannelURL(channel), channel.Name, kept}))
}

type channelMember struct {
	inChannel
	cli.SavedKey
	Name string `arg:"" help:"The new member's name: letters, digits and ._- (at most 64)."`
}

func (channelMember) Help() string {
	return "Adds a member to the channel and prints the member's key (cm_…) as one line of JSON. The key is shown only " +
		"once. Give the member the key and the channel's URL. Needs the channel's key.\n\n" +
		"Example:\n  agora channel member alice --channel URL --channel-key ops.key --save alice.key"
}

func (c channelMember) Run(env cli.Environment) error {
	channel, err := c.open(env, owners...)
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		return err
	}
	defer channel.Close()
	key, err := channel.AddMember(env.Ctx, c.Name)
	if err != nil {
		return c.explain(err)
	}
	kept, err := c.Keep(key)
	return errors.Join(err, env.PrintJSON(struct {
		Name string     `json:"name"`
		URL  channelURL `json:"url"`
		cli.KeyLine
	}{c.Name, c.Channel, kept}))
}

// mcpForm is the form of the member mcp in deliveries.
type mcpForm string

func (m *mcpForm) UnmarshalText(text []byte) error {
	switch *m = mcpForm(text); *m {
	case "object", "array", "none":
		return nil
	}
	return errors.New("want object, array or none")
}

type channelConnect struct {
	inChannel
	Name       string  `arg:"" help:"The agent's name in the channel: letters, digits and ._- (at most 64)."`
	Connection string  `arg:"" name:"connection-string" help:"The agent's connection string, a secret URL; - is standard input, which keeps it out of the history of your shell."`
	MCP        mcpForm `name:"mcp" placeholder:"FORM" help:"How the agent wants the channel's tools (MCP): object, array for newer agents, or none (default: object)."`
	Replace    bool    `help:"If the agent is connected already, give it the new connection string."`
}

func (channelConnect) Help() string {
	return "Connects an agent to the channel, and prints the connection as one line of JSON. The agent then gets what " +
		"others say in the channel, and can answer. Needs the channel's key.\n\n" +
		"Examples:\n  agora channel connect bot - --channel URL --channel-key ops.key < bot.url\n" +
		"  agora channel connect bot - --replace --mcp array --channel URL --channel-key ops.key < bot.url"
}

func (c channelConnect) Run(env cli.Environment) error {
	channel, err := c.open(env, owners...)
	if err != nil {
		return err
	}
	defer channel.Close()
	secret, err := readText(env, c.Connection, "the connection string")
	if err != nil {
		return err
	}
	made, err := channel.Connect(env.Ctx, c.Name, strings.TrimSpace(secret), string(c.MCP), c.Replace)
	if refused, ok := errors.AsType[*channelclient.Error](err); ok && refused.Status == http.StatusConflict && !c.Replace {
		return fmt.Errorf("%w; if %s is this agent, --replace gives it the new connection string", err, c.Name)
	}
	if err != nil {
		return c.explain(err)
	}
	return env.PrintJSON(made)
}

type channelRemove struct {
	inChannel
	Name string `arg:"" help:"The name of the member or the agent."`
}

func (channelRemove) Help() string {
	return "Removes a member or an agent from the channel. The member's key, or the agent's callbacks, stop " +
		"working at once. Needs " +
		"the channel's key.\n\n" +
		"Example:\n  agora channel remove bot --channel URL --channel-key ops.key"
}

func (c channelRemove) Run(env cli.Environment) error {
	channel, err := c.open(env, owners...)
	if err != nil {
		return err
	}
	defer channel.Close()
	kind, err := channel.Remove(env.Ctx, c.Name)
	if err != nil {
		return c.explain(err)
	}
	env.Say("removed the %s %s", kind, c.Name)
	return nil
}

type channelRoster struct {
	inChannel
	JSON bool `help:"Print one line of JSON for each member and agent."`
}

func (channelRoster) Help() string {
	return "Lists the members and the agents of the channel. Of an agent it prints whether its connection is active or " +
		"revoked, how many messages wait for it, and how many could not be delivered. Needs the channel's key.\n\n" +
		"Example:\n  agora channel roster --channel URL --channel-key ops.key"
}

func (c channelRoster) Run(env cli.Environment) error {
	channel, err := c.open(env, owners...)
	if err != nil {
		return err
	}
	defer channel.Close()
	members, err := channel.Members(env.Ctx)
	if err != nil {
		return c.explain(err)
	}
	connections, err := channel.Connections(env.Ctx)
	if err != nil {
		return c.explain(err)
	}
	for _, m := range members {
		if err := c.show(env, m.Name, "member", "", m); err != nil {
			return err
		}
	}
	for _, a := range connections {
		status := fmt.Sprintf("%s, at %s, %d waiting, %d not delivered, mcp %s", a.Status, a.Host, a.Queued, a.Dead, a.MCP)
		if err := c.show(env, a.Name, "agent", status, a); err != nil {
			return err
		}
	}
	if len(members)+len(connections) == 0 {
		env.Say("nobody is in the channel; agora channel member NAME adds somebody")
	}
	return nil
}

// show prints one line of the roster. entry is what --json prints, with its kind.
func (c channelRoster) show(env cli.Environment, name, kind, status string, entry any) error {
	if !c.JSON {
		line := strings.TrimRight(fmt.Sprintf("%-20s  %-6s  %s", cli.Printable(name), kind, cli.Printable(status)), " ")
		_, err := fmt.Fprintln(env.Stdout, line)
		return err
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "{\"kind\":%q,%s\n", kind, text[1:])
	return err
}
