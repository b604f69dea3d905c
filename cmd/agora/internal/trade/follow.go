package trade

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/safetext"
)

// FollowCmd is agora follow.
type FollowCmd struct {
	cli.Remotes
	Key        string         `needed:"all" env:"AGORA_KEY" placeholder:"FILE" help:"Your key file. With --all, only relays that show messages to their parties only need it."`
	CursorFile string         `placeholder:"FILE" help:"Save in this file how far you have read, and continue from there the next time. With several relays it is one file for all of them, of another form."`
	New        bool           `help:"Begin with new messages. Without --new and without a saved cursor, follow begins with the oldest message that the relay still has."`
	Broadcast  bool           `help:"Show messages without a recipient too."`
	All        bool           `help:"Show all messages that the relay shows to you, not only those sent to you."`
	Type       cli.TypeText   `help:"Only messages of this type." placeholder:"TYPE"`
	Sender     cli.DIDText    `help:"Only messages from this agent." placeholder:"DID"`
	Thread     cli.IDText     `complete:"thread" help:"Only messages of threads with this id." placeholder:"ID"`
	Count      int            `help:"End after N messages." placeholder:"N"`
	Timeout    time.Duration  `help:"End after this time. The exit code is 1 if --count was not reached." placeholder:"DURATION"`
	JSON       bool           `xor:"form" help:"Print one JSON envelope per line, also on a terminal."`
	Text       bool           `xor:"form" help:"Print all of each message in a readable form, also if standard output is not a terminal."`
	Format     *cli.RowFormat `xor:"form" placeholder:"TEMPLATE" help:"Print a line for each message with this Go template, such as '{{.Type}} {{.Thread}}'."`
	AllowPlain bool           `help:"Show plain answers to your sealed requests too."`
}

func (c FollowCmd) Validate() error {
	if c.Count < 0 || c.Timeout < 0 {
		return fmt.Errorf("--count and --timeout must not be negative")
	}
	return nil
}

func (FollowCmd) Help() string {
	return "Prints each message that is sent to you, as soon as it arrives: one JSON envelope per line, or on a " +
		"terminal one line with its most important parts (--text shows all). Times are local, and as the sender " +
		"claims. " +
		"Verifies every signature first. Decrypts payloads that are sealed to your key and prints " +
		"{\"envelope\":…,\"opened\":…} for them: the signed message and its decrypted payload. Runs until it is " +
		"interrupted, and keeps trying while the relay does not answer. With several relays it follows all of " +
		"them, and prints each message only once, even if several of them have it.\n\n" + cli.FormatHelp(MessageRow{}) +
		"Examples:\n  agora follow --key bob.key --cursor-file bob.cursor\n" +
		"  agora follow --key bob.key --type REQUEST --broadcast --count 1 --timeout 30s\n" +
		"  agora follow --format '{{.Type}} {{.Thread}} {{.Price}}'\n  agora follow --all"
}

func (c FollowCmd) Run(env cli.Environment) (err error) {
	if err := c.Format.Check(MessageRow{}); err != nil {
		return err
	}
	state, err := c.state()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	relay, me, err := c.Connect(env, c.Key, state.State)
	if err != nil {
		return err
	}
	opts := client.FollowOptions{
		Filter: client.Filter{Recipient: me, Broadcast: c.Broadcast, Type: envelope.Type(c.Type),
			Sender: didkey.DID(c.Sender), Thread: string(c.Thread)},
		FromOldest: !c.New,
	}
	if c.All {
		opts.Recipient, opts.Broadcast = "", false
	}
	if c.CursorFile != "" {
		opts.Cursor = client.FileCursor(c.CursorFile)
	}
	ctx, stop := cli.WithTimeout(env.Ctx, c.Timeout)
	defer stop()
	printed := 0
	if c.Count > 0 {
		opts.Page = 1 // so that the cursor never passes a message that was not printed
		opts.Cursor = cli.CountingCursor{Store: opts.Cursor, Reached: func() bool { return printed >= c.Count }}
	}
	p := env.People(me)
	show := c.printer(env, p)
	c.announce(ctx, env, relay, p)
	plain := plainAnswers{relay: relay, me: me, asked: map[string][]didkey.DID{}}
	err = relay.Follow(ctx, opts, func(ctx context.Context, e *envelope.Envelope) error {
		if c.Count > 0 && printed >= c.Count {
			return cli.ErrCountReached // the first page of --new may contain more messages than --count
		}
		if !c.AllowPlain && plain.refused(ctx, e) {
			env.Say("left out %s %s: it is a plain answer to a sealed request; --allow-plain shows it", e.Type, e.ID)
			return nil
		}
		if printed++; c.Many() && printed == c.Count {
			defer stop() // a network has no cursor of ours that could end it
		}
		return show(e)
	})
	switch {
	case c.Many() && c.Count > 0 && printed >= c.Count && errors.Is(err, context.Canceled):
		return nil
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

// state opens the file of the positions at several relays. Without one it returns a state in memory.
func (c FollowCmd) state() (*cli.LockedState, error) {
	if !c.Many() || c.CursorFile == "" || c.Key == "" {
		return cli.NewState(), nil
	}
	key, err := didkey.Load(c.Key)
	if err != nil {
		return nil, err
	}
	return cli.OpenState(c.CursorFile, key.DID())
}

// printer returns a function that prints a message in the form that the flags choose.
func (c FollowCmd) printer(env cli.Environment, p cli.People) func(*envelope.Envelope) error {
	switch {
	case c.Format != nil:
		return func(e *envelope.Envelope) error { return env.PrintRow(c.Format, newMessageRow(p, e)) }
	case c.Text:
		return func(e *envelope.Envelope) error { return showText(env.Stdout, env, p, e) }
	case c.JSON || !env.StdoutIsTerminal:
		return func(e *envelope.Envelope) error { return showJSON(env.Stdout, e) }
	}
	to := len("me")
	switch {
	case c.All:
		to = partyWidth
	case c.Broadcast:
		to = len("everybody")
	}
	l := NewLiner(env, p, to, c.Thread == "")
	return func(e *envelope.Envelope) error { return l.Print(l.Message(e)) }
}

// threadCheckTimeout is how long announce waits for the relay's answer. It is short, because messages are shown only
// after it.
const threadCheckTimeout = 5 * time.Second

// announce prints a warning if the thread of --thread does not exist. On a terminal it also prints which messages are
// shown.
func (c FollowCmd) announce(ctx context.Context, env cli.Environment, relay cli.Relays, p cli.People) {
	if c.Thread != "" {
		ctx, cancel := context.WithTimeout(ctx, threadCheckTimeout)
		defer cancel()
		if _, err := relay.Thread(ctx, string(c.Thread), ""); envelope.CodeOf(err) == envelope.CodeThreadNotFound {
			env.Say("there is no thread %s here, or the relay does not show it to you; waiting for it to begin", c.Thread)
		}
	}
	if !env.StdoutIsTerminal {
		return
	}
	what := "messages to " + cmp.Or(p.Book.Name(p.Me), cli.ShortDID(p.Me))
	switch {
	case c.All:
		what = "all messages that you may read"
	case c.Broadcast:
		what += " and to everybody"
	}
	env.Say("waiting for %s… Ctrl-C ends it", what)
}

// showJSON prints a message for programs.
func showJSON(w io.Writer, e *envelope.Envelope) error {
	if e.Opened {
		_, err := fmt.Fprintf(w, "{\"envelope\":%s,\"opened\":%s}\n", e.Canonical(), e.Payload)
		return err
	}
	_, err := fmt.Fprintf(w, "%s\n", e.Canonical())
	return err
}

// showText prints a message for people, with all of its payload. env says where: on a terminal a long payload has more
// lines. What it writes is escaped.
func showText(w io.Writer, env cli.Environment, p cli.People, e *envelope.Envelope) error {
	from, to := p.Who(e.Sender.ID), "everybody"
	if e.Sender.Name != "" {
		from = cli.Quoted(e.Sender.Name) + " " + from
	}
	if e.Recipient != "" {
		to = p.Who(e.Recipient)
	}
	thread := ""
	if e.Thread != "" {
		thread = "\n  thread  " + cli.Printable(e.Thread)
	}
	const indent = "  payload "
	payload := cli.Printable(e.Payload)
	if len(indent)+cli.Columns(payload) > env.Columns() {
		var lines bytes.Buffer
		if json.Indent(&lines, e.Payload, strings.Repeat(" ", len(indent)), "  ") == nil {
			payload = string(safetext.Escape(lines.Bytes(), "\n"))
		}
	}
	_, err := fmt.Fprintf(w, "%s  %s  (signature verified%s)\n  from    %s\n  to      %s%s\n%s%s\n\n",
		cli.ShownTime(e.TS), e.Type, sealNote(e), from, to, thread, indent, payload)
	return err
}
