package operate

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admin"
)

type adminRemoveCmd struct {
	governing
	Event   cli.IDText     `placeholder:"ID" help:"Remove the message with this id; give its --sender too."`
	Sender  cli.SenderText `placeholder:"SENDER" help:"The sender of the message. Without --event: remove all that this sender has sent, also at gateways. At the hub a sender is an address, such as bob@relay.example; in a channel it is the id of the channel, a slash and a name."`
	Since   cli.PastTime   `placeholder:"TIME" help:"With --sender: only what came since then, such as 2026-02-02T15:30:00Z, or 2h for the last two hours."`
	Seq     int            `placeholder:"NUMBER" help:"Remove the message with this number in the relay's sequence."`
	Thread  cli.IDText     `placeholder:"ID" help:"End the thread with this id, and remove all its messages; give its --client too."`
	Client  cli.DIDText    `placeholder:"DID" help:"The client of the thread: the sender of its REQUEST."`
	Hub     string         `placeholder:"ID" help:"Remove the text of a message of the hub; give its id or its trace_id."`
	Channel string         `placeholder:"ID" help:"Remove the text of a message of a channel; give its id, such as msg_…, or the id of the channel, a slash and the seq of the message."`
	A2A     string         `name:"a2a" placeholder:"ID" help:"Remove a task of an A2A endpoint, which is canceled if it runs; give its id, tsk_…."`
	Jobs    string         `placeholder:"ID" help:"Remove the content of a job, which fails if it runs, or remove an agent of the registry; give the job_id or the agent_id."`
}

func (adminRemoveCmd) Help() string {
	return "Removes the content of a message, so that nobody gets it any more. Its id stays remembered: a copy is refused. The " +
		"thread's record keeps the step, and readers of the thread see that the operator has removed the message. What a " +
		"gateway has is removed with --hub, --channel, --jobs or --a2a; in place of a message, a text that says so stays. Backups that were " +
		"made before still have the content, and so may unused parts of the database until agora prune.\n\n" +
		"With --sender alone, all messages of the sender are removed, and what it has at gateways: events of its inboxes in " +
		"channels, its agents and jobs in the registry. Ban the sender first, so that nothing new comes. This also works on a " +
		"full disk.\n\n" +
		"Examples:\n  agora admin remove --event MESSAGE-ID --sender did:key:z6Mk…\n  agora admin remove --seq 4711\n" +
		"  agora admin remove --sender did:key:z6Mk… --since 2h\n  agora admin remove --sender bob@relay.example\n" +
		"  agora admin remove --thread THREAD-ID --client did:key:z6Mk…\n  agora admin remove --hub 17\n" +
		"  agora admin remove --channel msg_…"
}

// request returns what the flags name. It returns an error if they name nothing, or more than one thing.
func (c adminRemoveCmd) request() (q admin.RemoveRequest, err error) {
	all := []admin.RemoveRequest{
		{Sender: c.senderOfEvent(), ID: string(c.Event)}, {Seq: relay.Seq(c.Seq)},
		{Client: didkey.DID(c.Client), Thread: string(c.Thread)},
	}
	for name, id := range map[string]string{"hub": c.Hub, "channel": c.Channel, "jobs": c.Jobs, "a2a": c.A2A} {
		if id != "" {
			all = append(all, admin.RemoveRequest{Gateway: name, ID: id})
		}
	}
	all = slices.DeleteFunc(all, func(q admin.RemoveRequest) bool { return q == admin.RemoveRequest{} })
	switch since := !time.Time(c.Since).IsZero(); {
	case c.removesSender() && len(all) == 0:
		return q, nil
	case len(all) != 1, c.removesSender(), c.Event != "" && c.Sender == "", (c.Thread == "") != (c.Client == ""), c.Seq < 0:
		return q, errors.New("give --sender, or --event with --sender, or --seq, or --thread with --client, or one of --hub, " +
			"--channel, --jobs and --a2a")
	case since:
		return q, errors.New("--since goes with --sender and without --event")
	}
	return all[0], nil
}

// removesSender reports whether all that a sender has sent is removed.
func (c adminRemoveCmd) removesSender() bool { return c.Sender != "" && c.Event == "" }

// senderOfEvent returns the sender of the message that --event names.
func (c adminRemoveCmd) senderOfEvent() didkey.DID {
	if c.Event == "" {
		return ""
	}
	return didkey.DID(c.Sender)
}

func (c adminRemoveCmd) Validate() error {
	_, err := c.request()
	return err
}

func (c adminRemoveCmd) Run(env cli.Environment) error {
	if c.removesSender() {
		return c.removeSender(env)
	}
	request, err := c.request()
	if err != nil {
		return err
	}
	var removed admin.Removed
	printed, err := c.call(env, http.MethodPost, "/remove", request, &removed)
	what := "removed " + cli.Count(int64(len(removed.Events)), "message")
	switch {
	case request.Thread != "":
		what = "the thread has ended; " + what
	case request.Gateway != "":
		what = "removed " + request.ID
	}
	return c.tell(env, printed, err, "%s", what)
}

// removeSender removes all that a sender has sent, in batches.
func (c adminRemoveCmd) removeSender(env cli.Environment) error {
	request := admin.RemoveSenderRequest{Sender: string(c.Sender)}
	if since := time.Time(c.Since); !since.IsZero() {
		request.Since = &since
	}
	all := admin.RemovedSender{Gateways: map[string]int{}, More: true}
	for all.More {
		var removed admin.RemovedSender
		if err := admin.NewClient(c.Data).Call(env.Ctx, http.MethodPost, "/remove-sender", request, &removed); err != nil {
			return err
		}
		all.Events, all.More = all.Events+removed.Events, removed.More
		for name, n := range removed.Gateways {
			all.Gateways[name] += n
		}
	}
	if c.JSON {
		return env.PrintJSON(all)
	}
	text := "removed " + cli.Count(int64(all.Events), "message")
	for _, name := range slices.Sorted(maps.Keys(all.Gateways)) {
		text += fmt.Sprintf(", and %d at the gateway %s", all.Gateways[name], name)
	}
	return c.tell(env, false, nil, "%s", text)
}
