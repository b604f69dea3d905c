// Package operate has the commands of a relay's operator: those that govern a relay that runs (admin, health), and those
// for its data (backup, restore, check, stats, prune, fold, migrate). They open a database as agora serve does, and never
// start a relay.
package operate

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay/admin"
	"github.com/agora-relay/agora/store/ledger"
)

// AdminCmd has the commands that govern a running relay.
type AdminCmd struct {
	Status     adminStatusCmd     `cmd:"" help:"Show the state of the relay, and what it holds."`
	Ban        adminBanCmd        `cmd:"" help:"Refuse an identity, an address or a network from now on."`
	Unban      adminUnbanCmd      `cmd:"" help:"End a ban."`
	Bans       adminBansCmd       `cmd:"" help:"List the bans."`
	Remove     adminRemoveCmd     `cmd:"" help:"Remove a message or a thread, or what a gateway has."`
	Top        adminTopCmd        `cmd:"" help:"List the senders or the inboxes with the most messages."`
	Waiters    adminWaitersCmd    `cmd:"" help:"List the polls that wait and the open streams."`
	Drain      adminDrainCmd      `cmd:"" help:"Refuse posts and polls for a while, for example before the relay moves."`
	Checkpoint adminCheckpointCmd `cmd:"" help:"Copy the write-ahead log into the database file."`
	Backup     adminBackupCmd     `cmd:"" help:"Make a backup in the folder of --backup-dir now."`
	Profile    adminProfileCmd    `cmd:"" help:"Write a profile of the running program, for go tool pprof."`
}

func (AdminCmd) Help() string {
	return "Governs a relay over the socket admin.sock in its data folder. Only the user of the relay, and root, can open the " +
		"socket. The relay must be running.\n\nExamples:\n  agora admin status\n" +
		"  agora admin ban did:key:z6Mk… --reason spam --for 7d\n  agora admin remove --event MESSAGE-ID --sender did:key:z6Mk…"
}

// governing are the flags of all commands of AdminCmd.
type governing struct {
	Data string `default:"./agora-data" env:"AGORA_DATA" placeholder:"FOLDER" help:"The data folder of the relay, which must be running (default: ${default})."`
	JSON bool   `help:"Print the answer as one line of JSON."`
}

// call sends a request to the relay. If --json is given, it prints the answer and returns printed.
func (g governing) call(env cli.Environment, method, path string, in, out any) (printed bool, err error) {
	if err := admin.NewClient(g.Data).Call(env.Ctx, method, path, in, out); err != nil {
		return false, err
	}
	if g.JSON {
		return true, env.PrintJSON(out)
	}
	return false, nil
}

// tell prints a line, unless --json has printed the answer.
func (g governing) tell(env cli.Environment, printed bool, err error, format string, args ...any) error {
	if printed || err != nil {
		return err
	}
	_, err = fmt.Fprintln(env.Stdout, cli.Printable(fmt.Sprintf(format, args...)))
	return err
}

// subjectText is a client that can be banned, in canonical form.
type subjectText string

func (s *subjectText) UnmarshalText(text []byte) error {
	subject, err := admin.ParseSubject(string(text))
	if err != nil {
		return fmt.Errorf("%q: %w", text, err)
	}
	*s = subjectText(subject)
	return nil
}

type adminBanCmd struct {
	governing
	Subject subjectText  `arg:"" name:"did|address|network" help:"Whom to refuse, such as did:key:z6Mk…, 192.0.2.7 or 2001:db8::/32."`
	Reason  string       `placeholder:"TEXT" help:"Why, for agora admin bans. Clients do not see it."`
	For     cli.Lifetime `placeholder:"DURATION" help:"When the ban ends, such as 7d. Without it, the ban does not end by itself."`
	Yes     bool         `help:"Do not ask before banning more than a /8 of IPv4 or a /32 of IPv6."`
}

func (adminBanCmd) Help() string {
	return "Refuses the messages, signed reads and signed calls of an identity, or the requests from an address or a network, " +
		"also those to gateways. Its waiting polls and streams end at once. What it has sent before stays; see agora admin " +
		"remove. The ban is kept in the database. A ban of the same subject is replaced.\n\n" +
		"Examples:\n  agora admin ban did:key:z6Mk… --reason spam --for 7d\n  agora admin ban 192.0.2.0/24\n" +
		"  agora admin ban --data /var/lib/agora 2001:db8::/48 --for 1h"
}

// isHuge reports whether the ban is of more addresses than a network usually has: a ban of 0.0.0.0/0 refuses everybody.
func (c adminBanCmd) isHuge() bool {
	network, err := netip.ParsePrefix(string(c.Subject))
	return err == nil && serve.IsHuge(network)
}

func (c adminBanCmd) Run(env cli.Environment) error {
	if c.isHuge() && !c.Yes {
		if !env.StdinIsTerminal {
			return fmt.Errorf("%s has very many addresses, so this bans many clients that have done nothing; if you mean it, give --yes",
				c.Subject)
		}
		if err := cli.Confirm(env, fmt.Sprintf("%s has very many addresses. Ban all of them?", c.Subject)); err != nil {
			return err
		}
	}
	var ban admin.Ban
	printed, err := c.call(env, http.MethodPost, "/bans", admin.BanRequest{Subject: string(c.Subject), Reason: c.Reason,
		Seconds: int64(time.Duration(c.For) / time.Second)}, &ban)
	until := "until it is ended with agora admin unban"
	if ban.Expires != nil {
		until = "until " + envelope.FormatTime(*ban.Expires)
	}
	return c.tell(env, printed, err, "%s is banned %s", ban.Subject, until)
}

type adminUnbanCmd struct {
	governing
	Subject subjectText `arg:"" name:"did|address|network" help:"The subject of the ban, as agora admin bans shows it."`
}

func (adminUnbanCmd) Help() string { return "Example:\n  agora admin unban 192.0.2.0/24" }

func (c adminUnbanCmd) Run(env cli.Environment) error {
	printed, err := c.call(env, http.MethodPost, "/unban", admin.BanRequest{Subject: string(c.Subject)}, new(struct{}))
	return c.tell(env, printed, err, "%s is not banned any more", c.Subject)
}

type adminBansCmd struct{ governing }

func (adminBansCmd) Help() string {
	return "Lists the bans of agora admin ban, and those of the setting --ban.\n\nExample:\n  agora admin bans --json"
}

func (c adminBansCmd) Run(env cli.Environment) error {
	var answer struct {
		Bans []admin.Ban `json:"bans"`
	}
	printed, err := c.call(env, http.MethodGet, "/bans", nil, &answer)
	if printed || err != nil {
		return err
	}
	if len(answer.Bans) == 0 {
		return c.tell(env, false, nil, "nobody is banned")
	}
	rows := [][]string{{"BANNED", "UNTIL", "SINCE", "REASON"}}
	for _, b := range answer.Bans {
		row := []string{b.Subject, "", "", b.Reason}
		if row[1] = "-"; b.Expires != nil {
			row[1] = envelope.FormatTime(*b.Expires)
		}
		if b.Created != nil {
			row[2] = envelope.FormatTime(*b.Created)
		}
		if b.Settings {
			row[2] = "setting --ban"
		}
		rows = append(rows, row)
	}
	return env.PrintRows(rows)
}

type adminTopCmd struct {
	governing
	By    string `default:"sender" enum:"sender,inbox" placeholder:"sender|inbox" help:"Count the messages that identities have sent, or those for them (default: ${default})."`
	Order string `default:"count" enum:"count,bytes" placeholder:"count|bytes" help:"What to sort by (default: ${default})."`
	Limit int    `default:"20" placeholder:"N" help:"How many to list (default: ${default})."`
}

func (adminTopCmd) Help() string {
	return "Counts the messages that can be delivered now. It reads the whole database.\n\n" +
		"Examples:\n  agora admin top\n  agora admin top --by inbox --order bytes --limit 5"
}

func (c adminTopCmd) Run(env cli.Environment) error {
	var answer struct {
		Top []ledger.Ranked `json:"top"`
	}
	query := url.Values{"by": {c.By}, "order": {c.Order}, "limit": {strconv.Itoa(c.Limit)}}
	printed, err := c.call(env, http.MethodGet, "/top?"+query.Encode(), nil, &answer)
	if printed || err != nil {
		return err
	}
	rows := [][]string{{strings.ToUpper(c.By), "MESSAGES", "SIZE"}}
	for _, r := range answer.Top {
		rows = append(rows, []string{string(r.DID), strconv.FormatInt(r.Events, 10), megabytes(r.Bytes)})
	}
	return env.PrintRows(rows)
}

type adminWaitersCmd struct {
	governing
	Limit int `default:"100" placeholder:"N" help:"How many to list (default: ${default})."`
}

func (adminWaitersCmd) Help() string { return "Example:\n  agora admin waiters --limit 10" }

func (c adminWaitersCmd) Run(env cli.Environment) error {
	var answer struct {
		Waiters []admin.Waiting `json:"waiters"`
		All     int             `json:"all"`
	}
	printed, err := c.call(env, http.MethodGet, "/waiters?limit="+strconv.Itoa(c.Limit), nil, &answer)
	if printed || err != nil {
		return err
	}
	rows := [][]string{{"SINCE", "KIND", "ADDRESS", "READER", "WAITS FOR"}}
	for _, w := range answer.Waiters {
		var filter []string
		for _, f := range [][2]string{{"to ", string(w.Recipient)}, {"from ", string(w.Sender)}, {"type ", w.Type}, {"thread ", w.Thread}} {
			if f[1] != "" {
				filter = append(filter, f[0]+f[1])
			}
		}
		rows = append(rows, []string{envelope.FormatTime(w.Since), w.Kind, w.Address, string(w.Reader), strings.Join(filter, ", ")})
	}
	if err := env.PrintRows(rows); err != nil {
		return err
	}
	return c.tell(env, false, nil, "%d of %d", len(answer.Waiters), answer.All)
}

type adminDrainCmd struct {
	governing
	Undo bool `help:"Accept posts and polls again."`
}

func (adminDrainCmd) Help() string {
	return "Ends the waiting polls and streams, and refuses requests with 503 and a Retry-After. /readyz and /health fail, so a " +
		"load balancer sends clients elsewhere. The relay keeps running, and agora admin still works. A restart ends the " +
		"pause too.\n\nExamples:\n  agora admin drain\n  agora admin drain --undo"
}

func (c adminDrainCmd) Run(env cli.Environment) error {
	path, text := "/drain", "the relay refuses posts and polls; agora admin drain --undo ends that"
	if c.Undo {
		path, text = "/resume", "the relay accepts posts and polls"
	}
	printed, err := c.call(env, http.MethodPost, path, nil, &map[string]any{})
	return c.tell(env, printed, err, "%s", text)
}

type adminCheckpointCmd struct{ governing }

func (adminCheckpointCmd) Help() string {
	return "Copies the write-ahead log into the database and truncates it. The relay does this by itself; the command is for a " +
		"snapshot of the disk. With --store it asks PostgreSQL for a checkpoint.\n\nExample:\n  agora admin checkpoint"
}

func (c adminCheckpointCmd) Run(env cli.Environment) error {
	printed, err := c.call(env, http.MethodPost, "/checkpoint", nil, new(struct{}))
	return c.tell(env, printed, err, "the write-ahead log is in the database")
}

type adminBackupCmd struct {
	governing
	Made bool `help:"Only record that a backup was made now with the tools of PostgreSQL, for a relay with --store. The metrics and agora admin status then know its age."`
}

func (adminBackupCmd) Help() string {
	return "The relay must have been started with --backup-dir. Backups beyond --backup-keep are removed.\n\n" +
		"Examples:\n  agora admin backup\n  pgbackrest --stanza=agora backup && agora admin backup --made"
}

func (c adminBackupCmd) Run(env cli.Environment) error {
	if c.Made {
		printed, err := c.call(env, http.MethodPost, "/backup/recorded", nil, new(struct{}))
		return c.tell(env, printed, err, "the backup is recorded")
	}
	var made admin.Made
	printed, err := c.call(env, http.MethodPost, "/backup", nil, &made)
	return c.tell(env, printed, err, "%s is complete", made.Folder)
}

type adminProfileCmd struct {
	governing
	Name    string `arg:"" help:"cpu, trace, heap, allocs, goroutine, threadcreate, block or mutex."`
	Seconds int    `default:"30" placeholder:"N" help:"How long to measure, for cpu and trace (default: ${default})."`
	Out     string `required:"" placeholder:"FILE" help:"The file to create."`
}

func (adminProfileCmd) Help() string {
	return "Examples:\n  agora admin profile cpu --seconds 10 --out cpu.pprof\n  go tool pprof -top cpu.pprof"
}

func (c adminProfileCmd) Run(env cli.Environment) (err error) {
	out, err := os.OpenFile(c.Out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	path := "/profile/" + url.PathEscape(c.Name) + "?seconds=" + strconv.Itoa(c.Seconds)
	err = admin.NewClient(c.Data).Copy(env.Ctx, path, out)
	if closed := out.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(c.Out) // it has no profile
		return err
	}
	return c.tell(env, false, nil, "%s", c.Out)
}

type adminStatusCmd struct{ governing }

func (adminStatusCmd) Help() string {
	return "It reads the whole database. agora stats shows the same of a relay that does not run.\n\nExample:\n  agora admin status --json"
}

func (c adminStatusCmd) Run(env cli.Environment) error {
	var answer struct {
		admin.Status
		Node  *serve.NodeFigures `json:"node"` // nil: the relay is a single node
		Store *ledger.Usage      `json:"store"`
	}
	printed, err := c.call(env, http.MethodGet, "/status", nil, &answer)
	if printed || err != nil {
		return err
	}
	state := "accepts messages"
	if !answer.Ready {
		state = "does not accept messages: " + answer.Reason
	}
	rows := [][]string{{"relay", string(answer.DID)}, {"version", answer.Build}, {"state", state},
		{"waiting", fmt.Sprintf("%d polls and streams", answer.Waiting)}, {"bans", strconv.Itoa(answer.Bans)}}
	if b := answer.Backup; b != nil {
		text := "none yet in " + b.Folder
		if b.Last != nil {
			text = envelope.FormatTime(*b.Last) + " in " + b.Folder
		}
		if b.Failed != "" {
			text += "; the last attempt failed: " + b.Failed
		}
		rows = append(rows, []string{"backup", text})
	}
	if answer.Node != nil {
		rows = append(rows, answer.Node.Rows()...)
	}
	if answer.Store != nil {
		rows = append(rows, usageRows(*answer.Store, answer.Now)...)
	}
	return env.PrintRows(rows)
}
