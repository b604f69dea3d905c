package operate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/cmd/agora/internal/datafolder"
	"github.com/agora-relay/agora/cmd/agora/internal/serve"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/transfer"
)

type MigrateCmd struct {
	From        migratePlace `required:"" placeholder:"FOLDER|URL" help:"Where the relay is now: a data folder, or the URL of a PostgreSQL database."`
	To          migratePlace `required:"" placeholder:"FOLDER|URL" help:"Where to move it: to PostgreSQL if --from is a data folder, otherwise to a data folder. It must have no messages yet."`
	AcceptAsync bool         `help:"Move although PostgreSQL does not wait for a standby."`
}

func (MigrateCmd) Help() string {
	return "Moves a relay from the database in a data folder to PostgreSQL, or back. Stop the relay, or all its nodes, first. " +
		"The command copies everything, reads the copy again, and compares the number of rows and a hash of each table. The " +
		"copy has the same messages, numbers and epoch, so the cursors of readers stay valid, and the log of proofs continues. " +
		"The original keeps its messages and is marked: agora serve refuses to start with it.\n\n" +
		"The keys stay where they are: start the first node with the old data folder as its --data. On the way back, put " +
		"relay.key, gateway.key and operator.key into the new folder (agora key fetch).\n\n" +
		"Examples:\n  agora migrate --from /var/lib/agora --to postgres://agora@db1,db2,db3/agora\n" +
		"  agora migrate --from postgres://agora@db1,db2,db3/agora --to /var/lib/agora-new"
}

// migratePlace is a data folder or the address of a PostgreSQL database. Its String has no password.
type migratePlace string

func (p *migratePlace) UnmarshalText(text []byte) error {
	*p = migratePlace(text)
	if p.isServer() {
		return postgres.CheckAddress(string(text))
	}
	return nil
}

// String returns the place without its password.
func (p migratePlace) String() string { return postgres.Masked(string(p)) }

func (p migratePlace) isServer() bool {
	return strings.HasPrefix(string(p), "postgres://") || strings.HasPrefix(string(p), "postgresql://") ||
		strings.Contains(string(p), "=")
}

func (c MigrateCmd) Validate() error {
	if c.From.isServer() == c.To.isServer() {
		return errors.New("one of --from and --to must be a data folder, and the other one the URL of a PostgreSQL database, such as " +
			"postgres://agora@db1/agora")
	}
	if info, err := os.Stat(filepath.Join(string(c.From), datafolder.Database)); !c.From.isServer() &&
		(err != nil || !info.Mode().IsRegular()) {
		return fmt.Errorf("--from: there is no database in %s", c.From)
	}
	return nil
}

// migrated is a store that is moved.
type migrated interface {
	transfer.Engine
	Policy() relay.Policy
	Close() error
}

// open opens a store with this policy; the zero Policy for the source.
func (c MigrateCmd) open(ctx context.Context, env cli.Environment, place migratePlace) (migrated, error) {
	log := cli.NewLog(env)
	if place.isServer() {
		return postgres.Open(ctx, string(place), postgres.Options{Log: log, Extensions: serve.Extensions(), AcceptAsync: c.AcceptAsync,
			KeepPolicy: true, Alone: true})
	}
	if err := datafolder.Make(string(place)); err != nil {
		return nil, err
	}
	return sqlite.Open(ctx, filepath.Join(string(place), datafolder.Database), sqlite.Options{Log: log, Extensions: serve.Extensions()})
}

func (c MigrateCmd) Run(env cli.Environment) (err error) {
	began := time.Now()
	from, err := c.open(env.Ctx, env, c.From)
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := c.open(env.Ctx, env, c.To)
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	head, tables, err := transfer.Move(env.Ctx, from, to, c.To.String(), func() (transfer.Engine, error) {
		fmt.Fprintln(env.Stderr, "agora: copied; comparing")
		if err := to.Close(); err != nil {
			return nil, err
		}
		to, err = c.open(env.Ctx, env, c.To)
		return to, err
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Stdout, "moved %s up to number %d, %s, %s, in %s; the copy has the same rows\n",
		cli.Count(tables[transfer.Events].Rows, "event"), head.Last, cli.Count(tables[transfer.Threads].Rows, "thread"),
		cli.Count(tables[transfer.Manifests].Rows, "manifest"), time.Since(began).Round(10*time.Millisecond))
	return err
}
