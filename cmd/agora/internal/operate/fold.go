package operate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/alecthomas/kong"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/cmd/agora/internal/settings"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
)

type FoldCmd struct {
	Data      string             `default:"./agora-data" placeholder:"FOLDER" help:"The data folder (default: ${default})."`
	Store     serve.StoreAddress `secret:"" placeholder:"URL" help:"Fold in PostgreSQL at this URL, and not in the data folder (AGORA_STORE, AGORA_STORE_FILE)."`
	OlderThan cli.Lifetime       `default:"2160h" placeholder:"DURATION" help:"Fold what is older than this, at least 30d (default: 90d)."`
	DryRun    bool               `help:"Only say how much would be folded."`
	JSON      bool               `help:"Print the result as one line of JSON."`
}

func (FoldCmd) Help() string {
	return "The registry of jobs (agora serve --jobs) keeps each transfer and each job. This command folds the old ones: it removes " +
		"them, and adds what they have moved to one row for each account. All balances, totals and scores stay the same. The " +
		"command adds up the books from the entries before and after, prints a hash of all balances, and fails if the two " +
		"differ. Stop the relay, or all its nodes, first. Then run agora prune to give the space back to the disk.\n\n" +
		"The ids of what was folded are forgotten. A transfer or a job that uses one of them again is a new one. The records do " +
		"not appear in /jobs/audit any more.\n\n" +
		"Examples:\n  agora fold --dry-run\n  agora fold --older-than 30d\n  agora fold --store postgres://agora@db1/agora"
}

// BeforeResolve reads the address of the database from the environment. kong calls it.
func (FoldCmd) BeforeResolve(ctx *kong.Context) error { return settings.ResolveSecrets(ctx) }

func (c FoldCmd) Validate() error {
	if time.Duration(c.OlderThan) < jobs.MinFoldAge {
		return fmt.Errorf("--older-than must be at least %v, because ids must be remembered that long", jobs.MinFoldAge)
	}
	if c.Store != "" {
		return postgres.CheckAddress(string(c.Store))
	}
	return dataFolder{c.Data}.Validate()
}

// foldedRow is what the command prints.
type foldedRow struct {
	jobs.Folded
	Before string     `json:"before"`
	Dry    bool       `json:"dryRun"`
	Books  jobs.Books `json:"books"`
}

func (c FoldCmd) open(env cli.Environment) (relay.Extender, func() error, error) {
	if c.Store != "" {
		s, err := postgres.Open(env.Ctx, string(c.Store), postgres.Options{Log: cli.NewLog(env), Extensions: serve.Extensions(),
			AcceptAsync: true, KeepPolicy: true, Alone: !c.DryRun})
		if err != nil {
			return nil, nil, fmt.Errorf("--store: %w", err)
		}
		return s, s.Close, nil
	}
	s, err := sqlite.Open(env.Ctx, dataFolder{c.Data}.database(), sqlite.Options{Log: cli.NewLog(env), Extensions: serve.Extensions()})
	if err != nil {
		return nil, nil, err
	}
	return s, s.Close, nil
}

func (c FoldCmd) Run(env cli.Environment) (err error) {
	store, closeStore, err := c.open(env)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	before := time.Now().Add(-time.Duration(c.OlderThan))
	row := foldedRow{Before: envelope.FormatTime(before), Dry: c.DryRun}
	if row.Books, err = booksOf(env.Ctx, store); err != nil {
		return err
	}
	if c.DryRun {
		row.Folded, err = foldable(env.Ctx, store, before)
	} else if row.Folded, err = jobs.Fold(env.Ctx, store, before); err == nil {
		err = c.compare(env.Ctx, store, row.Books)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return env.PrintJSON(row)
	}
	verb := "folded"
	if c.DryRun {
		verb = "would fold"
	}
	_, err = fmt.Fprintf(env.Stdout, "%s %s and %s from before %s\nbooks: %s, %v credits issued, %s in all; the same before and after: %s\n",
		verb, cli.Count(row.Records, "record"), cli.Count(row.Jobs, "job"), envelope.FormatTime(before), cli.Count(row.Books.Accounts, "account"),
		row.Books.Issued, cli.Count(row.Books.Records, "record"), row.Books.Hash)
	return err
}

// compare fails if the books have changed.
func (c FoldCmd) compare(ctx context.Context, store relay.Extender, old jobs.Books) error {
	now, err := booksOf(ctx, store)
	if err == nil && now != old {
		err = fmt.Errorf("the books are %+v, and were %+v; restore the backup, and report this", now, old)
	}
	return err
}

func booksOf(ctx context.Context, store relay.Extender) (b jobs.Books, err error) {
	_, err = store.View(ctx, func(q relay.Querier) (err error) {
		b, err = jobs.ReadBooks(q)
		return err
	})
	return b, err
}

func foldable(ctx context.Context, store relay.Extender, before time.Time) (f jobs.Folded, err error) {
	_, err = store.View(ctx, func(q relay.Querier) (err error) {
		f, err = jobs.Foldable(q, before)
		return err
	})
	return f, err
}

// keptByPrune says what prune cannot free in a data folder; empty: nothing.
func keptByPrune(ctx context.Context, folder string, store relay.Extender, now time.Time) (string, error) {
	all, err := foldable(ctx, store, now)
	if err != nil || all == (jobs.Folded{}) {
		return "", err
	}
	old, err := foldable(ctx, store, now.Add(-jobs.MinFoldAge))
	return fmt.Sprintf("prune cannot free the %s and %s of the registry of jobs; agora fold --data %s --older-than 30d would fold "+
		"%d and %d of them", cli.Count(all.Records, "record"), cli.Count(all.Jobs, "ended job"), cli.ShellQuoted(filepath.Clean(folder)),
		old.Records, old.Jobs), err
}
