package chorus

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/gateway/channel/channelclient"
)

// ChannelCmd are the commands for channels of the Chorus Channel Protocol.
type ChannelCmd struct {
	New     channelNew     `cmd:"" help:"Create a channel, as the relay's operator."`
	Member  channelMember  `cmd:"" help:"Add a member to a channel."`
	Connect channelConnect `cmd:"" help:"Connect an agent to a channel."`
	Remove  channelRemove  `cmd:"" help:"Remove a member or an agent from a channel."`
	Roster  channelRoster  `cmd:"" help:"List who is in a channel."`
	Say     channelSay     `cmd:"" help:"Say something in a channel, as a member."`
	Read    channelRead    `cmd:"" help:"Print what is said in a channel."`
	Inbox   channelInbox   `cmd:"" help:"Manage the inboxes of your agent."`
	Follow  channelFollow  `cmd:"" help:"Print the messages that channels deliver to your agent."`
	Probe   channelProbe   `cmd:"" help:"Test whether an agent can take part in channels."`
}

func (ChannelCmd) Help() string {
	return "A channel is a place where people and AI agents talk (Chorus Channel Protocol). Its operator creates it; its " +
		"owner adds members and connects agents by their connection strings, which are secret URLs. An agent that no " +
		"service can reach has an inbox at a relay. agora serve --channel runs channels and inboxes.\n\n" +
		"Examples:\n  agora channel new ops --url http://127.0.0.1:8789/channel --operator-key operator.key --save ops.key\n" +
		"  agora channel say 'Good morning!' --channel URL --channel-key alice.key\n" +
		"  agora channel inbox new --key bob.key\n  agora channel follow --key bob.key"
}

// channelURL is the URL of a channel.
type channelURL string

func (u *channelURL) UnmarshalText(text []byte) error {
	checked, err := channelclient.CheckURL(string(text))
	*u = channelURL(checked)
	return err
}

// gatewayURL is the URL of a channel gateway.
type gatewayURL string

func (u *gatewayURL) UnmarshalText(text []byte) error {
	checked, err := channelclient.CheckGateway(string(text))
	*u = gatewayURL(checked)
	return err
}

// inChannel are the flags of the commands that use a channel.
type inChannel struct {
	Channel    channelURL `required:"" env:"AGORA_CHANNEL_URL" placeholder:"URL" help:"The channel's URL, as agora channel new prints it."`
	ChannelKey string     `required:"" env:"AGORA_CHANNEL_KEY" placeholder:"FILE" help:"The file with your key for the channel: one line with a ck_ key (the channel's) or a cm_ key (a member's)."`
}

// keyNames describe the kinds of keys.
var keyNames = map[channelclient.Key]string{
	channelclient.ChannelKey:  "the channel's key (ck_…), which agora channel new prints",
	channelclient.MemberKey:   "a member's key (cm_…), which agora channel member prints",
	channelclient.OperatorKey: "the operator's key (op_…), which is in operator.key in the relay's data folder",
}

// readChannelKey returns the key in a file. It refuses a file that other users may access, and a key that is not of one
// of these kinds. The first kind is the usual one.
func readChannelKey(name string, kinds ...channelclient.Key) (string, error) {
	text, err := cli.ReadOperatorKey(name)
	if err != nil {
		return "", err
	}
	key := strings.TrimSpace(text)
	kind, err := channelclient.ParseKey(key)
	if err != nil {
		return "", fmt.Errorf("%s does not contain a key: %w, on one line", name, err)
	}
	if slices.Contains(kinds, kind) {
		return key, nil
	}
	return "", fmt.Errorf("this needs %s; %s has %s", keyNames[kinds[0]], name, keyNames[kind])
}

// open returns a client of the channel with the key in the file. kinds are as for readChannelKey.
func (c inChannel) open(env cli.Environment, kinds ...channelclient.Key) (*channelclient.Client, error) {
	key, err := readChannelKey(c.ChannelKey, kinds...)
	if err != nil {
		return nil, err
	}
	return channelclient.New(string(c.Channel), key, cli.NewLog(env)), nil
}

// explain adds to the error of a call what to do.
func (c inChannel) explain(err error) error {
	refused, ok := errors.AsType[*channelclient.Error](err)
	switch {
	case !ok:
	case refused.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w; the key in %s is not valid any more, or belongs to another relay", err, c.ChannelKey)
	case refused.Status == http.StatusForbidden:
		return fmt.Errorf("%w; does the key in %s belong to the channel at %s?", err, c.ChannelKey, c.Channel)
	}
	return err
}

// readText returns an argument, or standard input if it is -. what describes it, such as "the message".
func readText(env cli.Environment, argument, what string) (string, error) {
	if argument == "-" {
		input, err := env.Input("-", what)
		if err != nil {
			return "", err
		}
		argument = strings.TrimRight(string(input), "\r\n")
	}
	if !utf8.ValidString(argument) {
		return "", fmt.Errorf("%s is not UTF-8", what)
	}
	if argument == "" {
		return "", fmt.Errorf("%s is empty", what)
	}
	return argument, nil
}
