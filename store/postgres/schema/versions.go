package schema

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/relay"
)

// A Program is what a version of this program knows of schemas. It supports the schemas up to the number of its files.
type Program struct {
	Files fs.FS // numbered schema files
	// Together says which versions may run at the same time: while the database has schema n, only nodes may run that
	// support schema Together[n-1]. This number is n if older nodes do not do what schema n needs. Otherwise it is the
	// number of the schema before.
	Together []int
}

// Current is this program. None of its schemas allows older nodes. They would append messages without leaves of the log
// (schema 2), would write no spans, or could not write events, because they know no parties.
var Current = Program{Files: Files, Together: []int{1, 2, 3, 4}}

// Errors of nodes whose versions do not fit together.
var (
	// ErrOlderNodes is the error of Migrate if nodes run that cannot work with the tables as they would be afterwards.
	ErrOlderNodes = errors.New("nodes of an older version run with this database")
	// ErrNewerSchema is the error of Migrate and Join if a newer version has written the tables.
	ErrNewerSchema = errors.New("the database was written by a newer version")
)

// Join registers the node of a connection, until the connection ends, so that other versions know that it runs. The
// caller holds LockMigrate. Errors: ErrNewerSchema if the tables were changed since Migrate.
func (p Program) Join(ctx context.Context, conn *pgx.Conn, extensions []relay.Extension, space int32) error {
	if _, _, err := p.of(ctx, conn); err != nil {
		return err
	}
	for _, x := range extensions {
		if _, err := numberOf(ctx, conn, x); err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, "SELECT pg_advisory_lock_shared($1, $3), pg_advisory_lock_shared($2, $3)",
		int32(LockNodes), int32(LockVersion+len(p.Together)), space)
	return err
}

// oldest returns the lowest schema that a running node supports. It is 0 if a node runs that does not tell its schema.
// none means that no node runs.
func oldest(ctx context.Context, conn *pgx.Conn, space int32) (number int, none bool, err error) {
	var found *int
	err = conn.QueryRow(ctx, `WITH held AS (SELECT pid, classid::bigint AS class FROM pg_locks WHERE locktype = 'advisory'
		AND granted AND objsubid = 2 AND objid::bigint = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
		SELECT min(coalesce((SELECT max(v.class) - $3 FROM held v WHERE v.pid = n.pid AND v.class BETWEEN $3 AND $3 + $4), 0))
		FROM held n WHERE n.class = $2`, int64(uint32(space)), int64(LockNodes), int64(LockVersion), int64(maxVersion)).Scan(&found)
	if err != nil || found == nil {
		return 0, found == nil, err
	}
	return *found, false, nil
}

// mayRunWith returns ErrOlderNodes if a node runs that supports less than schema need.
func mayRunWith(ctx context.Context, conn *pgx.Conn, space int32, need int, what string) error {
	number, none, err := oldest(ctx, conn, space)
	if err != nil || none || number >= need {
		return err
	}
	return fmt.Errorf("%w, and they cannot work with %s; stop all nodes, then start this one", ErrOlderNodes, what)
}

// of returns the number of the database's schema, 0 if it has none, and the names of all schema files. Errors:
// ErrNewerSchema.
func (p Program) of(ctx context.Context, conn *pgx.Conn) (have int, files []string, err error) {
	if files, err = fs.Glob(p.Files, "*.sql"); err != nil {
		return 0, nil, err
	}
	slices.Sort(files)
	var exists bool
	err = conn.QueryRow(ctx, "SELECT to_regclass(quote_ident(current_schema()) || '.setting') IS NOT NULL").Scan(&exists)
	if err != nil || !exists {
		return 0, files, err
	}
	if have, err = Number(ctx, conn, Version); err != nil || have <= len(files) {
		return have, files, err
	}
	need, err := Number(ctx, conn, together)
	if err != nil || need > 0 && need <= len(files) {
		return have, files, err
	}
	return 0, nil, fmt.Errorf("%w: it has schema %d, but this program supports only schemas up to %d; use the newer version",
		ErrNewerSchema, have, len(files))
}

// numberOf returns how many migrations of x the database has run. Errors: ErrNewerSchema if x has fewer.
func numberOf(ctx context.Context, q querier, x relay.Extension) (have int, err error) {
	if have, err = Number(ctx, q, ExtensionPrefix+x.Name); err == nil && have > len(x.Migrations) {
		err = fmt.Errorf("%w: the tables of %s have run %d migrations, but this program has only %d; use the newer version",
			ErrNewerSchema, x.Name, have, len(x.Migrations))
	}
	return have, err
}
