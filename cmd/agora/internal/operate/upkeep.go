package operate

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite"
)

// This file has the commands for the upkeep of a data folder: stats and prune.

type StatsCmd struct {
	dataFolder
	JSON   bool           `xor:"form" help:"Print the figures as one line of JSON."`
	Format *cli.RowFormat `xor:"form" placeholder:"TEMPLATE" help:"Print a line with this Go template, such as '{{.Events}}'."`
}

func (StatsCmd) Help() string {
	return "Shows how many events, threads and agents a database has, how large and how old they are, and how many came lately. " +
		"It reads the whole database, and changes nothing.\n\n" + cli.FormatHelp(ledger.Usage{}) +
		"Examples:\n  agora stats\n  agora stats --data backups/monday --json\n  agora stats --format '{{.Events}} {{.Threads.ACTIVE}}'"
}

func (c StatsCmd) Run(env cli.Environment) error {
	if err := c.Format.Check(ledger.Usage{}); err != nil {
		return err
	}
	now := time.Now()
	usage, err := sqlite.Measure(env.Ctx, c.database(), now)
	if err != nil {
		return err
	}
	if c.JSON || c.Format != nil {
		return env.PrintRow(c.Format, usage)
	}
	return env.PrintRows(usageRows(usage, now))
}

// usageRows returns a table of what a database holds.
func usageRows(u ledger.Usage, now time.Time) [][]string {
	age := func(t *time.Time) string {
		if t == nil {
			return "-"
		}
		return fmt.Sprintf("%s (%v ago)", envelope.FormatTime(*t), now.Sub(*t).Round(time.Second))
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	rows := [][]string{
		{"events", fmt.Sprintf("%d, and %d expired and %d removed ones whose ids are remembered", u.Events, u.Expired, u.Removed)},
		{"bodies", megabytes(u.BodyBytes)}, {"oldest", age(u.Oldest)}, {"newest", age(u.Newest)},
		{"last hour", number(u.LastHour)}, {"last day", number(u.LastDay)},
		{"rate", fmt.Sprintf("%.2f a second in the last hour, %.2f in the last day", float64(u.LastHour)/3600, float64(u.LastDay)/86400)},
		{"last number", number(int64(u.Seq))},
	}
	for _, t := range u.Types {
		rows = append(rows, []string{string(t.Type), fmt.Sprintf("%s, %s", cli.Count(t.Events, "event"), megabytes(t.Bytes))})
	}
	threads := []string{}
	for _, state := range []string{"PENDING", "ACTIVE", "COMPLETED", "ERROR"} {
		for s, n := range u.Threads {
			if string(s) == state {
				threads = append(threads, fmt.Sprintf("%d %s", n, state))
			}
		}
	}
	return append(rows, []string{"threads", strings.Join(threads, ", ")},
		[]string{"agents", fmt.Sprintf("%d with a manifest, %d identities in all", u.Agents, u.Identities)},
		[]string{"database", databaseText(u)})
}

// databaseText says how large a database is. PostgreSQL does not tell what is free in it.
func databaseText(u ledger.Usage) string {
	if u.FreeBytes == 0 && u.LogBytes == 0 {
		return megabytes(u.DatabaseBytes)
	}
	return fmt.Sprintf("%s, of which %s are free; log %s", megabytes(u.DatabaseBytes), megabytes(u.FreeBytes), megabytes(u.LogBytes))
}

type PruneCmd struct {
	dataFolder
	OlderThan cli.Lifetime `placeholder:"DURATION" help:"Also remove messages that came longer ago than this, although they have not expired."`
	Sender    cli.DIDText  `placeholder:"DID" help:"Also remove the messages of this sender; with --older-than, only those that came longer ago."`
	Type      cli.TypeText `placeholder:"TYPE" help:"With --older-than or --sender: only messages of this type."`
	DryRun    bool         `help:"Only say how many messages --older-than and --sender would remove. The relay may be running."`
}

func (PruneCmd) Help() string {
	return "Removes what has expired, and gives the free space of the database back to the disk. The relay must not be running. A " +
		"running relay removes by itself what has expired, and uses the free space again; this command is for a " +
		"disk whose space other programs need. " +
		"It also works on a full disk: it uses the room that the relay holds back. To make the file smaller, it needs as much " +
		"free space as the file has afterwards.\n\n" +
		"With --older-than or --sender it also removes messages of the relay, as agora admin remove does. What " +
		"gateways have stays: agora admin remove removes it while the relay runs.\n\n" +
		"Examples:\n  agora prune\n  agora prune --older-than 30d\n  agora prune --older-than 24h --type MANIFEST --dry-run\n" +
		"  agora prune --sender did:key:z6Mk…"
}

// removes reports whether the command removes messages that have not expired.
func (c PruneCmd) removes() bool { return c.OlderThan > 0 || c.Sender != "" }

func (c PruneCmd) Validate() error {
	if (c.Type != "" || c.DryRun) && !c.removes() {
		return fmt.Errorf("--type and --dry-run need --older-than or --sender")
	}
	return c.dataFolder.Validate()
}

func (c PruneCmd) Run(env cli.Environment) (err error) {
	now := time.Now()
	before := now.Add(-time.Duration(c.OlderThan))
	selected := func() ([]relay.Seq, error) {
		return sqlite.Select(env.Ctx, c.database(),
			sqlite.Selection{Before: before, Type: envelope.Type(c.Type), Sender: didkey.DID(c.Sender)}, now)
	}
	if c.DryRun {
		found, err := selected()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(env.Stdout, "%s came before %s\n", cli.Count(int64(len(found)), "message"), envelope.FormatTime(before))
		return err
	}
	store, err := sqlite.Open(env.Ctx, c.database(), sqlite.Options{Log: cli.NewLog(env), Extensions: serve.Extensions()})
	if err != nil {
		return err
	}
	defer func() {
		if closed := store.Close(); err == nil {
			err = closed
		}
	}()
	if c.removes() {
		found, err := selected()
		if err != nil {
			return err
		}
		for some := range slices.Chunk(found, relay.MaxRemove) {
			if _, err := store.Remove(env.Ctx, some, now); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(env.Stdout, "removed %s\n", cli.Count(int64(len(found)), "message")); err != nil {
			return err
		}
	}
	return c.compact(env, store, now)
}

// compact gives the free space of the database back to the disk.
func (c PruneCmd) compact(env cli.Environment, store *sqlite.Store, now time.Time) error {
	before, after, err := store.Compact(env.Ctx, now)
	if short, ok := errors.AsType[sqlite.NoRoom](err); ok {
		return fmt.Errorf("%s keeps its size: to make it smaller, prune needs %s of free space on this disk. What was removed is "+
			"free inside the database, and the relay uses it again. Free some space, or copy the relay to another disk: agora "+
			"backup makes a copy without free space", cli.ShellQuoted(c.database()), megabytes(short.Needed))
	}
	if err != nil {
		return err
	}
	kept, err := keptByPrune(env.Ctx, c.Data, store, now)
	if err != nil {
		return err
	}
	if kept != "" {
		kept = cli.Printable(kept) + "\n"
	}
	_, err = fmt.Fprintf(env.Stdout, "%s: %s before, %s now\n%s", cli.Printable(filepath.Clean(c.Data)), megabytes(before), megabytes(after), kept)
	return err
}
