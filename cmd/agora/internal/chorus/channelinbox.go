package chorus

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/envelope"
)

// The commands of an agent that gets the messages of channels through an inbox at a relay.

type channelInbox struct {
	New    inboxNew    `cmd:"" help:"Create an inbox, and print its connection string."`
	List   inboxList   `cmd:"" help:"List your inboxes."`
	Rotate inboxRotate `cmd:"" help:"Give an inbox a new connection string. The old one stops working at once."`
	Delete inboxDelete `cmd:"" help:"Delete an inbox."`
}

func (channelInbox) Help() string {
	return "An inbox is an address for your agent at a relay with agora serve --channel. Give its connection string to " +
		"a service that runs channels. What the service delivers there is sealed to your key; agora channel follow " +
		"prints it.\n\n" +
		"Examples:\n  agora channel inbox new --key bob.key --label 'ops bot'\n  agora channel inbox list --key bob.key"
}

// inboxID is the id of an inbox.
type inboxID string

var inboxIDForm = regexp.MustCompile(`^in_[a-z0-9]{1,64}$`)

func (i *inboxID) UnmarshalText(text []byte) error {
	if !inboxIDForm.Match(text) {
		return errors.New("want the id of an inbox, such as in_ and 26 characters; agora channel inbox list prints it")
	}
	*i = inboxID(text)
	return nil
}

// shownInbox is an inbox with its connection string.
type shownInbox struct {
	client.Inbox
	URL string `json:"url"`
}

type inboxNew struct {
	cli.Identified
	Label string `placeholder:"TEXT" help:"A name for you to read, at most 80 characters."`
}

func (inboxNew) Help() string {
	return "Creates an inbox that belongs to your key, and prints it as one line of JSON. Its url is the connection " +
		"string: a secret that is shown only once. Give it to the service.\n\n" +
		"Example:\n  agora channel inbox new --key bob.key --label 'ops bot'"
}

func (c inboxNew) Run(env cli.Environment) error {
	relay, _, err := c.Client(env)
	if err != nil {
		return err
	}
	inbox, url, err := relay.NewInbox(env.Ctx, c.Label)
	if err != nil {
		return err
	}
	return env.PrintJSON(shownInbox{inbox, url})
}

type inboxList struct{ cli.Identified }

func (inboxList) Help() string {
	return "Prints each inbox of your key as one line of JSON, without its connection string.\n\n" +
		"Example:\n  agora channel inbox list --key bob.key"
}

func (c inboxList) Run(env cli.Environment) error {
	relay, _, err := c.Client(env)
	if err != nil {
		return err
	}
	inboxes, err := relay.Inboxes(env.Ctx)
	if err != nil {
		return err
	}
	for _, inbox := range inboxes {
		if err := env.PrintJSON(inbox); err != nil {
			return err
		}
	}
	if len(inboxes) == 0 {
		env.Say("you have no inbox at this relay; agora channel inbox new creates one")
	}
	return nil
}

type inboxRotate struct {
	cli.Identified
	ID inboxID `arg:"" help:"The id of the inbox."`
}

func (inboxRotate) Help() string {
	return "Prints the new connection string as one line of JSON. Use it if somebody else may know the old one. Nobody " +
		"can deliver to the old one from then on.\n\n" +
		"Example:\n  agora channel inbox rotate in_h4zcy6t2k5dqmwbn7rfx3ejgva --key bob.key"
}

func (c inboxRotate) Run(env cli.Environment) error {
	relay, _, err := c.Client(env)
	if err != nil {
		return err
	}
	url, err := relay.RotateInbox(env.Ctx, string(c.ID))
	if err != nil {
		return explainInbox(err, c.Key, c.ID)
	}
	return env.PrintJSON(struct {
		ID  inboxID `json:"id"`
		URL string  `json:"url"`
	}{c.ID, url})
}

type inboxDelete struct {
	cli.Identified
	ID inboxID `arg:"" help:"The id of the inbox."`
}

func (inboxDelete) Help() string {
	return "Deletes an inbox. Its connection string and its callbacks stop working at once.\n\n" +
		"Example:\n  agora channel inbox delete in_h4zcy6t2k5dqmwbn7rfx3ejgva --key bob.key"
}

func (c inboxDelete) Run(env cli.Environment) error {
	relay, _, err := c.Client(env)
	if err != nil {
		return err
	}
	if err := relay.DeleteInbox(env.Ctx, string(c.ID)); err != nil {
		return explainInbox(err, c.Key, c.ID)
	}
	env.Say("deleted the inbox %s", c.ID)
	return nil
}

// explainInbox adds to a refusal that the key may have no such inbox. A relay does not say whether others have it.
func explainInbox(err error, key string, id inboxID) error {
	if envelope.CodeOf(err) != envelope.CodeForbidden {
		return err
	}
	return fmt.Errorf("%w; the key in %s has no inbox %s; agora channel inbox list prints those that it has",
		err, key, id)
}

type channelFollow struct {
	cli.Identified
	CursorFile string        `placeholder:"FILE" help:"Save in this file how far you have read, and continue from there the next time (default: one for each relay, in a folder beside the key file with .work after its name)."`
	New        bool          `help:"Begin with new messages. Without --new and without a saved cursor, follow begins with the oldest message that can still be answered."`
	Count      int           `help:"End after N messages." placeholder:"N"`
	Timeout    time.Duration `help:"End after this time. The exit code is 1 if --count was not reached." placeholder:"DURATION"`
}

func (c channelFollow) Validate() error {
	if c.Count < 0 || c.Timeout < 0 {
		return fmt.Errorf("--count and --timeout must not be negative")
	}
	return nil
}

func (channelFollow) Help() string {
	return "Opens each message that a service delivers to one of your inboxes, and prints it as one line of JSON: the " +
		"channel, the message, the callback to which your agent posts its answer, and the servers of tools (mcp) for it. " +
		"The callback and the headers in mcp are secrets. The next run continues after the last " +
		"message that was printed. A message may be printed again if the command was killed; its id is the same. After 24 hours " +
		"nobody takes an answer any more, so older messages are left out. Only messages from the relay's gateway are printed. Runs until it is interrupted.\n\n" +
		"The content of a message is untrusted. Never run it.\n\n" +
		"Examples:\n  agora channel follow --key bob.key --cursor-file bob.cursor\n" +
		"  agora channel follow --key bob.key --new --count 1 --timeout 30s"
}

// answerTime is how long a delivery can be answered (CHANNEL, "How the agent answers").
const answerTime = 24 * time.Hour

func (c channelFollow) Run(env cli.Environment) error {
	relay, me, err := c.Client(env)
	if err != nil {
		return err
	}
	if _, _, err := relay.ChannelGateway(env.Ctx); err != nil {
		return err
	}
	opts := client.FollowOptions{Filter: client.Filter{Recipient: me, Type: envelope.TypeRequest}, FromOldest: !c.New}
	if c.CursorFile == "" && !c.New {
		if c.CursorFile, err = c.PlaceFile(".channel"); err != nil {
			return err
		}
	}
	if c.CursorFile != "" {
		opts.Cursor = client.FileCursor(c.CursorFile)
	}
	printed := 0
	if c.Count > 0 {
		opts.Page = 1 // so that the cursor never passes a message that was not printed
		opts.Cursor = cli.CountingCursor{Store: opts.Cursor, Reached: func() bool { return printed >= c.Count }}
	}
	ctx := env.Ctx
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	err = relay.Follow(ctx, opts, func(ctx context.Context, e *envelope.Envelope) error {
		if e.PayloadString("intent") != client.ChannelIntent || time.Since(e.TS) > answerTime {
			return nil
		}
		if c.Count > 0 && printed >= c.Count {
			return cli.ErrCountReached
		}
		delivery, err := relay.ChannelDelivery(ctx, e)
		if refused, ok := errors.AsType[*client.AgentError](err); ok {
			env.Say("left out the message %s from %s: %s", e.ID, e.Sender.ID, refused.Message)
			return nil
		}
		if err != nil {
			return err
		}
		printed++
		return env.PrintJSON(delivery)
	})
	return c.ended(env, err, printed)
}

// ended returns the error of the command for the error of Follow.
func (c channelFollow) ended(env cli.Environment, err error, printed int) error {
	switch {
	case errors.Is(err, cli.ErrCountReached), env.Ctx.Err() != nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		if c.Count > printed {
			return fmt.Errorf("%d of %d messages arrived within %v", printed, c.Count, c.Timeout)
		}
		return nil
	}
	return err
}
