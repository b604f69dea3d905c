package trade

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// ThreadCmd is agora thread.
type ThreadCmd struct {
	cli.Reader
	ID     cli.IDText     `arg:"" complete:"thread" help:"The thread's id."`
	Client cli.DIDText    `placeholder:"DID" help:"The agent that opened the thread. Needed if several threads have this id (default: the oldest thread)."`
	Watch  bool           `help:"Show each step as it happens, until the thread ends. The exit code is then 0 if it is COMPLETED, and 1 if it ends with ERROR."`
	JSON   bool           `xor:"form" help:"Print the record and its envelopes as one line of JSON, also on a terminal. With --watch: a line for each step."`
	Text   bool           `xor:"form" help:"Print the readable form, also if standard output is not a terminal."`
	Format *cli.RowFormat `xor:"form" placeholder:"TEMPLATE" help:"Print a line for each step with this Go template, such as '{{.Type}} {{.State}}'."`
}

func (ThreadCmd) Help() string {
	return "Shows a thread's state, its parties, every transition with its time, and the messages that have not " +
		"expired. Their signatures are verified. Messages that the operator of the relay has removed are shown as removed. " +
		"Some relays show a thread to its parties only; then give the --key of a party.\n\n" + cli.FormatHelp(stepRow{}) +
		"Examples:\n  agora thread thread_01m7wge1pwtpq86hase50257b1\n  agora thread --text hello-1 | less\n" +
		"  agora thread --key bob.key thread_01m7wge1pwtpq86hase50257b1\n  agora thread --watch hello-1 && echo done"
}

func (c ThreadCmd) Run(env cli.Environment) error {
	if err := c.Format.Check(stepRow{}); err != nil {
		return err
	}
	relay, me, err := c.Identity(env)
	if err != nil {
		return err
	}
	if c.Watch {
		return c.watch(env, relay, me)
	}
	t, err := relay.Thread(env.Ctx, string(c.ID), didkey.DID(c.Client))
	if err != nil {
		return c.explain(env, relay, err)
	}
	p := env.People(me)
	switch {
	case c.Format != nil:
		for i := range t.Transitions {
			if err := env.PrintRow(c.Format, newStepRow(p, t, i)); err != nil {
				return err
			}
		}
		return nil
	case c.JSON || !c.Text && !env.StdoutIsTerminal:
		return env.PrintJSON(struct {
			Thread   thread.Thread        `json:"thread"`
			Deadline *time.Time           `json:"deadline,omitempty"`
			Events   []*envelope.Envelope `json:"events"`
			Expired  int                  `json:"expired"`
			Removed  []client.Removed     `json:"removed,omitempty"`
		}{t.Thread, deadline(t), t.Events, t.Expired, t.Removed})
	}
	return showThread(env, p, t)
}

// explain adds to the error THREAD_NOT_FOUND that the relay may hide the thread. A private relay gives this error also
// for threads that it hides.
func (c ThreadCmd) explain(env cli.Environment, relay *client.Client, err error) error {
	if envelope.CodeOf(err) != envelope.CodeThreadNotFound {
		return err
	}
	info, failed := relay.Info(env.Ctx)
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
func showThread(env cli.Environment, p cli.People, t *client.Thread) error {
	var b bytes.Buffer
	agent := "none yet"
	if t.Agent != "" {
		agent = p.Whole(t.Agent)
	}
	fmt.Fprintf(&b, "%s  %s\n  client  %s\n  agent   %s\n", cli.Printable(t.ID), env.Styled(string(t.State)), p.Whole(t.Client), agent)
	if !t.Deadline.IsZero() {
		fmt.Fprintf(&b, "  ends    %s, if nothing happens before\n", cli.ShownDeadline(t.Deadline, time.Now()))
	}
	if t.Expired > 0 {
		fmt.Fprintf(&b, "  expired %d messages\n", t.Expired)
	}
	b.WriteByte('\n')
	var rows [][]string
	steps := p
	steps.Short = env.StdoutIsTerminal
	for _, step := range t.Transitions {
		rows = append(rows, []string{cli.ShownTime(step.At), string(step.Type), string(step.From) + " → " + string(step.To),
			stepBy(steps, step)})
	}
	b.Write(cli.AlignedTable(rows, env.Style()))
	for _, removed := range t.Removed {
		fmt.Fprintf(&b, "%s  the operator of the relay has removed the message %s\n", cli.ShownTime(removed.At),
			cli.Printable(removed.ID))
	}
	b.WriteByte('\n')
	for _, e := range t.Events {
		if err := showText(&b, env, p, e); err != nil {
			return err
		}
	}
	return env.PrintStyled(b.Bytes())
}

// stepBy returns the name of the party that took a step.
func stepBy(p cli.People, step thread.Transition) string {
	switch {
	case step.By != "":
		return p.Who(step.By)
	case step.Type == thread.TypeRemoved:
		return "the operator of the relay"
	}
	return "the relay, at the deadline"
}

func deadline(t *client.Thread) *time.Time {
	if t.Deadline.IsZero() {
		return nil
	}
	return &t.Deadline
}

// AgentsCmd is agora agents.
type AgentsCmd struct {
	cli.Remotes
	Key    string      `env:"AGORA_KEY" placeholder:"FILE" help:"Your key file, for relays that show messages to their parties only. Needed for several relays."`
	DID    cli.DIDText `arg:"" name:"did" optional:"" help:"Show only this agent, with all its manifests."`
	Intent string      `complete:"intent" placeholder:"INTENT" help:"Show only agents that offer this intent."`
	Search string      `short:"q" placeholder:"TEXT" help:"Show only agents with this text in their name, description or intents."`
	Online bool        `help:"Show only agents that the relay has heard from in the last five minutes."`
	cli.Listing
}

func (AgentsCmd) Help() string {
	return "Lists agents by the manifests that they have announced. Verifies each manifest's signature. Prints a table on a " +
		"terminal, otherwise each manifest as one line of JSON. Names in quotes are those that agents give themselves; " +
		"agora name gives names of your own. With several relays it reads the directories of all of " +
		"them.\n\n" + cli.FormatHelp(agentRow{}) +
		"Examples:\n  agora agents --intent translation.en_zh --online\n  agora agents --format '{{.Agent}} {{.Price}}'"
}

type agentLine struct {
	ID       didkey.DID      `json:"id"`
	Online   bool            `json:"online"`
	LastSeen time.Time       `json:"lastSeen"`
	Manifest json.RawMessage `json:"manifest"`
}

// agentRow is a manifest of an agent for --format and in tables.
type agentRow struct {
	Agent       didkey.DID
	AgentName   string // "me", or the name in the address book
	Name        string // as the agent calls itself
	Description string
	Online      bool
	LastSeen    time.Time
	Intents     []string
	Price       string // such as 0.01 USD; empty: the manifest has none
	Manifest    map[string]any

	addresses []envelope.Address
}

func newAgentRow(p cli.People, a client.Agent, e *envelope.Envelope) agentRow {
	m := ManifestOf(e)
	row := agentRow{Agent: a.ID, AgentName: p.Name(a.ID), Name: m.Name, Description: m.Description, Online: a.Online,
		LastSeen: a.LastSeen, Intents: m.IntentIDs(), Price: m.price(), Manifest: map[string]any{}, addresses: addressesOf(e)}
	_ = json.Unmarshal(e.Payload, &row.Manifest) // a verified payload is an object
	return row
}

func (c AgentsCmd) Run(env cli.Environment) error {
	if err := c.Format.Check(agentRow{}); err != nil {
		return err
	}
	relay, me, err := c.Connect(env, c.Key, nil)
	if err != nil {
		return err
	}
	p := env.People(me)
	if c.Format == nil && (c.JSON || !c.Text && !env.StdoutIsTerminal) {
		return c.each(env, relay, func(a client.Agent, m *envelope.Envelope) error {
			return env.PrintJSON(agentLine{a.ID, a.Online, a.LastSeen, m.Payload})
		})
	}
	var rows []agentRow
	err = c.each(env, relay, func(a client.Agent, m *envelope.Envelope) error {
		row := newAgentRow(p, a, m)
		if c.Format != nil {
			return env.PrintRow(c.Format, row)
		}
		rows = append(rows, row)
		return nil
	})
	if err != nil {
		return err
	}
	p.Short = env.StdoutIsTerminal
	if c.DID != "" && c.Format == nil {
		return c.showOne(env, p, rows)
	}
	now := time.Now()
	return cli.Show(env, c.Listing, []string{"AGENT", "SEEN", "NAME", "PRICE", "INTENTS"}, rows, func(r agentRow) []string {
		return []string{p.Who(r.Agent), r.seen(now), cli.Quoted(r.Name), r.Price, strings.Join(r.Intents, " ")}
	}, 2, 3, 4)
}

// seen says when the relay has heard from the agent.
func (r agentRow) seen(now time.Time) string {
	if r.Online {
		return "online"
	}
	return cli.Age(now.Sub(r.LastSeen))
}

// showOne prints the manifests of the agent that the argument names.
func (c AgentsCmd) showOne(env cli.Environment, p cli.People, manifests []agentRow) error {
	if len(manifests) == 0 {
		return nil
	}
	rows := [][]string{{"agent", p.Whole(manifests[0].Agent)}, {"seen", manifests[0].seen(time.Now())}}
	for _, m := range manifests {
		rows = append(rows, nil)
		for _, row := range [][]string{{"name", cli.Quoted(m.Name)}, {"about", m.Description}, {"price", m.Price},
			{"intents", strings.Join(m.Intents, " ")}} {
			if row[1] != "" {
				rows = append(rows, row)
			}
		}
		for _, way := range m.ways() {
			rows = append(rows, []string{"ask", way})
		}
	}
	return env.PrintStyled(cli.AlignedTable(rows, env.Style()))
}

// maxWays is how many addresses of an agent are shown.
const maxWays = 16

// ways returns the commands that ask this agent, one for each protocol.
func (r agentRow) ways() (commands []string) {
	intent := "INTENT"
	if len(r.Intents) > 0 {
		intent = cli.ShellQuoted(r.Intents[0])
		to := r.AgentName
		if to == "" || to == "me" {
			to = cli.Printable(string(r.Agent))
		}
		commands = append(commands, "agora ask "+intent+" --to "+to)
	}
	for _, a := range r.addresses[:min(len(r.addresses), maxWays)] {
		if strings.HasPrefix(a.Address, "-") {
			continue // it would be a flag
		}
		at := cli.ShellQuoted(a.Address)
		switch a.Protocol {
		case "hub":
			commands = append(commands, "agora hub send "+at+" TEXT")
		case "jobs":
			commands = append(commands, "agora jobs hire "+at+" "+intent+" --budget CREDITS")
		case "a2a":
			commands = append(commands, "agora a2a call "+at+" TEXT")
		}
	}
	return commands
}

// each calls f for each manifest of the agents that the flags select. If there are none, it says so.
func (c AgentsCmd) each(
	env cli.Environment, relay cli.Relays, f func(client.Agent, *envelope.Envelope) error,
) error {
	all := relay.Directory(env.Ctx, client.AgentQuery{Intent: c.Intent, Text: c.Search, Online: c.Online})
	if c.DID != "" {
		one, err := relay.Agent(env.Ctx, didkey.DID(c.DID))
		all = func(yield func(client.Agent, error) bool) { yield(one, err) }
	}
	shown := 0
	for a, err := range all {
		for _, m := range a.Manifests {
			if err == nil {
				err = f(a, m)
			}
		}
		if err != nil {
			return err
		}
		shown++
	}
	if shown == 0 {
		env.Say("%s", c.emptyResult())
	}
	return nil
}

// emptyResult returns a message for an empty result.
func (c AgentsCmd) emptyResult() string {
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
	if c.Many() {
		return who + " " + what + " at these relays"
	}
	return who + " " + what + " at this relay"
}
