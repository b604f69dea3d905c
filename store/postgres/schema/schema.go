// Package schema defines the tables of a relay's PostgreSQL database. It has numbered schema files, and runs them and
// the migrations of extensions.
package schema

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agora-relay/agora/relay"
)

// Files are the schema files. Their names begin with consecutive numbers, from 1.
//
//go:embed *.sql
var Files embed.FS

// The names in the table setting.
const (
	Version         = "schema"     // the number of the last schema file that was run
	ExtensionPrefix = "extension." // and the name of an extension: the number of its last migration
	together        = "together"   // which schema a node must support, see Program.Together
)

// Locks of the whole database, which tell nodes from each other. They are the first key of an advisory lock. The second
// key is the hash of the schema's name, so that two relays may share a database.
const (
	LockMigrate = 0x61676f01 // held while the schema is updated
	LockLease   = 0x61676f02 // held by the node that sweeps and serves the gateways
	LockNodes   = 0x61676f03 // shared by all nodes that run
	LockVersion = 0x61676f10 // and the number of the last schema that a node supports: shared by all such nodes that run
	maxVersion  = 0xef
)

// Space returns the second key of the advisory locks of a relay whose tables are in this schema.
func Space(schema string) int32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(schema)) // never fails
	return int32(h.Sum32())
}

// Migrate runs the schema files and the migrations of extensions that the database has not run yet, each in a
// transaction of its own. partition is how many events a partition has if the database is new. If there is nothing to
// run, Migrate changes nothing, so it needs no right to create tables. Two nodes may call it at the same time. Errors:
// ErrOlderNodes, ErrNewerSchema.
func (p Program) Migrate(ctx context.Context, conn *pgx.Conn, extensions []relay.Extension, partition int64) (err error) {
	if err := relay.ValidateExtensions(extensions); err != nil {
		return err
	}
	var name *string
	if err := conn.QueryRow(ctx, "SELECT current_schema()::text").Scan(&name); err != nil {
		return err
	}
	if name == nil {
		return errors.New("the schema of the search_path does not exist; create it: CREATE SCHEMA agora")
	}
	space := Space(*name)
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1, $2)", int32(LockMigrate), space); err != nil {
		return err
	}
	defer func() {
		_, failed := conn.Exec(ctx, "SELECT pg_advisory_unlock($1, $2)", int32(LockMigrate), space)
		err = errors.Join(err, failed)
	}()
	have, files, err := p.of(ctx, conn)
	if err != nil {
		return err
	}
	for number := have + 1; number <= len(files); number++ {
		if err := mayRunWith(ctx, conn, space, p.Together[number-1], fmt.Sprint("schema ", number)); err != nil {
			return err
		}
		if err := p.runFile(ctx, conn, files[number-1], number, partition); err != nil {
			if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42501" {
				return fmt.Errorf("this role may not create the tables: %w; connect once as the role that owns the schema %s",
					err, *name)
			}
			return fmt.Errorf("schema %d: %w", number, err)
		}
	}
	for _, x := range extensions {
		if err := extend(ctx, conn, x, space); err != nil {
			return err
		}
	}
	return nil
}

func (p Program) runFile(ctx context.Context, conn *pgx.Conn, file string, number int, partition int64) error {
	text, err := fs.ReadFile(p.Files, file)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Conn().PgConn().Exec(ctx, string(text)).ReadAll(); err != nil {
			return err
		}
		if number == 1 {
			if _, err := tx.Exec(ctx, "INSERT INTO head (epoch, last, swept, partition) VALUES ($1, 0, 0, $2)",
				int64(NewEpoch()), partition); err != nil {
				return err
			}
			// While this row is there, no use of a signed read was forgotten early.
			if _, err := tx.Exec(ctx, "INSERT INTO nonce (id, forget) VALUES ('', 0)"); err != nil {
				return err
			}
		}
		return errors.Join(setNumber(ctx, tx, Version, number), setNumber(ctx, tx, together, p.Together[number-1]))
	})
}

// extend runs the migrations of x that were not run yet. Nodes that know x with fewer tables may not run then.
func extend(ctx context.Context, conn *pgx.Conn, x relay.Extension, space int32) error {
	if slices.Contains(reserved, x.Name) {
		return fmt.Errorf("an extension cannot be named %s, because tables of the store have that name; "+
			"choose another name", x.Name)
	}
	have, err := numberOf(ctx, conn, x)
	if err != nil {
		return err
	}
	if 0 < have && have < len(x.Migrations) {
		if err := mayRunWith(ctx, conn, space, maxVersion+1, "the new tables of "+x.Name); err != nil {
			return err
		}
	}
	for number := have + 1; number <= len(x.Migrations); number++ {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			before, err := otherNames(ctx, tx, x.Name)
			if err != nil {
				return err
			}
			if _, err := tx.Conn().PgConn().Exec(ctx, x.Migrations[number-1]).ReadAll(); err != nil {
				return err
			}
			after, err := otherNames(ctx, tx, x.Name)
			if err != nil {
				return err
			}
			if after != before {
				return fmt.Errorf("the names of its tables and indexes must begin with %s_; "+
					"the other names were %s before, and are %s now", x.Name, before, after)
			}
			return setNumber(ctx, tx, ExtensionPrefix+x.Name, number)
		})
		if err != nil {
			return fmt.Errorf("migration %d of %s: %w", number, x.Name, err)
		}
	}
	return nil
}

// otherNames returns the names of the tables and indexes that do not belong to an extension.
func otherNames(ctx context.Context, tx pgx.Tx, extension string) (names string, err error) {
	err = tx.QueryRow(ctx, `SELECT coalesce(string_agg(relname, ', ' ORDER BY relname), '') FROM pg_class
		WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'i', 'I', 'v', 'm', 'S')
		AND NOT starts_with(relname, $1 || '_')`, extension).Scan(&names)
	return names, err
}

// reserved are names that extensions must not have: they begin the names of the store's tables and indexes.
var reserved = []string{"event", "message", "manifest", "thread", "participant", "party", "agent", "nonce", "head", "setting",
	"report", "log", "span", "pg"}

type querier interface {
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
}

// Number returns the number in a row of the table setting, 0 if there is no such row.
func Number(ctx context.Context, q querier, name string) (number int, err error) {
	var value []byte
	err = q.QueryRow(ctx, "SELECT value FROM setting WHERE name = $1", name).Scan(&value)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(value))
}

func setNumber(ctx context.Context, tx pgx.Tx, name string, number int) error {
	_, err := tx.Exec(ctx, "INSERT INTO setting (name, value) VALUES ($1, $2) "+
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value", name, []byte(strconv.Itoa(number)))
	return err
}

// NewEpoch returns a random epoch. It is never 0, the epoch of the zero Cursor.
func NewEpoch() uint32 {
	var random [4]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	return binary.BigEndian.Uint32(random[:]) | 1
}

// Numbered returns a statement with $1, $2… in place of its question marks, as PostgreSQL wants it. Question marks in
// quotes stay.
func Numbered(text string) string {
	if !strings.Contains(text, "?") {
		return text
	}
	var b strings.Builder
	n, quote := 0, rune(0)
	for _, r := range text {
		switch {
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case r == quote:
			quote = 0
		case r == '?' && quote == 0:
			n++
			b.WriteByte('$')
			b.WriteString(strconv.Itoa(n))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}
