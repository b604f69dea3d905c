package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

type threadCmd struct {
	reader
	ID     idText  `arg:"" help:"The thread's id."`
	Client didText `placeholder:"DID" help:"The agent that opened the thread. Needed if several threads have this id (default: the oldest thread)."`
	JSON   bool    `xor:"form" help:"Print the record and its envelopes as one line of JSON, also on a terminal."`
	Text   bool    `xor:"form" help:"Print the readable form, also if standard output is not a terminal."`
}

func (threadCmd) Help() string {
	return "Shows a thread's state, its parties, every transition with its time, and the messages that have not " +
		"expired. Their signatures are verified. Some relays show a thread to its parties only; then give the --key of a " +
		"party.\n\n" +
		"Examples:\n  agora thread thread_01m7wge1pwtpq86hase50257b1\n  agora thread --text hello-1 | less\n" +
		"  agora thread --key bob.key thread_01m7wge1pwtpq86hase50257b1"
}

func (c threadCmd) Run(env environment) error {
	relay, err := c.client(env)
	if err != nil {
		return err
	}
	t, err := relay.Thread(env.ctx, string(c.ID), didkey.DID(c.Client))
	if err != nil {
		return c.explain(env, relay, err)
	}
	if c.JSON || !c.Text && !env.stdoutIsTerminal {
		return env.printJSON(struct {
			Thread   thread.Thread        `json:"thread"`
			Deadline *time.Time           `json:"deadline,omitempty"`
			Events   []*envelope.Envelope `json:"events"`
			Expired  int                  `json:"expired"`
		}{t.Thread, deadline(t), t.Events, t.Expired})
	}
	return showThread(env.stdout, t)
}

// explain adds to the error THREAD_NOT_FOUND that the relay may hide the thread. A private relay gives this error also
// for threads that it hides.
func (c threadCmd) explain(env environment, relay *client.Client, err error) error {
	if envelope.CodeOf(err) != envelope.CodeThreadNotFound {
		return err
	}
	info, failed := relay.Info(env.ctx)
	switch {
	case failed != nil || !info.Private():
		return err
	case c.Key == "":
		return fmt.Errorf("%w; this relay shows a thread to its parties only: give --key or AGORA_KEY", err)
	}
	return fmt.Errorf("%w; this relay shows a thread to its parties only, and the key in %s may not belong to one",
		err, c.Key)
}

// showThread prints a thread for people.
func showThread(w io.Writer, t *client.Thread) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s  %s\n  client  %s\n  agent   %s\n", printable(t.ID), printable(t.State), printable(t.Client),
		orElse(t.Agent, "none yet"))
	if !t.Deadline.IsZero() {
		fmt.Fprintf(&b, "  ends    %s, if nothing happens before\n", t.Deadline.Local().Format(time.DateTime))
	}
	if t.Expired > 0 {
		fmt.Fprintf(&b, "  expired %d messages\n", t.Expired)
	}
	b.WriteByte('\n')
	for _, step := range t.Transitions {
		fmt.Fprintf(&b, "%s  %-7s → %-9s  %-8s %s\n", step.At.Local().Format(time.DateTime),
			printable(step.From), printable(step.To), printable(step.Type), orElse(step.By, "the relay, at the deadline"))
	}
	b.WriteByte('\n')
	for _, e := range t.Events {
		if err := showText(&b, e); err != nil {
			return err
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

func deadline(t *client.Thread) *time.Time {
	if t.Deadline.IsZero() {
		return nil
	}
	return &t.Deadline
}

// orElse returns did, or words if did is empty.
func orElse(did didkey.DID, words string) string {
	if did == "" {
		return words
	}
	return printable(did) // a relay's record may contain any text
}

type agentsCmd struct {
	reader
	DID    didText `arg:"" name:"did" optional:"" help:"Show only this agent, with all its manifests."`
	Intent string  `placeholder:"INTENT" help:"Show only agents that offer this intent."`
	Search string  `short:"q" placeholder:"TEXT" help:"Show only agents with this text in their name, description or intents."`
	Online bool    `help:"Show only agents that the relay has heard from in the last five minutes."`
}

func (agentsCmd) Help() string {
	return "Lists agents by the manifests that they have announced. Verifies each manifest's signature and prints the " +
		"manifest as one line of JSON.\n\n" +
		"Example:\n  agora agents --intent translation.en_zh --online"
}

type agentLine struct {
	ID       didkey.DID      `json:"id"`
	Online   bool            `json:"online"`
	LastSeen time.Time       `json:"lastSeen"`
	Manifest json.RawMessage `json:"manifest"`
}

func (c agentsCmd) Run(env environment) error {
	relay, err := c.client(env)
	if err != nil {
		return err
	}
	if c.DID != "" {
		a, err := relay.Agent(env.ctx, didkey.DID(c.DID))
		if err != nil {
			return err
		}
		return printAgent(env, a)
	}
	q := client.AgentQuery{Intent: c.Intent, Text: c.Search, Online: c.Online}
	shown := 0
	for a, err := range relay.Directory(env.ctx, q) {
		if err != nil {
			return err
		}
		if err := printAgent(env, a); err != nil {
			return err
		}
		shown++
	}
	if shown == 0 {
		env.say("%s", c.emptyResult())
	}
	return nil
}

// emptyResult returns a message for an empty result.
func (c agentsCmd) emptyResult() string {
	who, what := "no agent", "has announced itself"
	if c.Online {
		who += " that was heard from in the last five minutes"
	}
	if c.Intent != "" {
		what = fmt.Sprintf("offers the intent %q", c.Intent)
	}
	if c.Search != "" {
		what += fmt.Sprintf(" with %q in its manifest", c.Search)
	}
	return who + " " + what + " at this relay"
}

func printAgent(env environment, a client.Agent) error {
	for _, m := range a.Manifests {
		if err := env.printJSON(agentLine{a.ID, a.Online, a.LastSeen, m.Payload}); err != nil {
			return err
		}
	}
	return nil
}
