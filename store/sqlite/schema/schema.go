// Package schema is the form of the embedded store's database: its tables as numbered files, those of the extensions,
// and the few questions that the store and its offline tools both ask.
package schema

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/relay"
)

// Files are numbered in their names, from 1 on.
//
//go:embed *.sql
var Files embed.FS

// Migrate runs the schema files whose number is above the database's user_version, each in a transaction.
func Migrate(ctx context.Context, db *sql.DB) error {
	have, files, err := Of(ctx, db)
	if err != nil {
		return err
	}
	for number := have + 1; number <= len(files); number++ {
		text, err := Files.ReadFile(files[number-1])
		if err != nil {
			return err
		}
		if err := inTx(ctx, db, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, string(text)+"\nPRAGMA user_version = "+strconv.Itoa(number))
			return err
		}); err != nil {
			return fmt.Errorf("schema %d: %w", number, err)
		}
	}
	_, err = db.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES ('epoch', ?) ON CONFLICT DO NOTHING", NewEpoch())
	return err
}

// Of returns a database's number of schema, 0 if it has none, and the files up to the newest. It fails if the
// number is above these, for then nothing in the database need be what it seems.
func Of(ctx context.Context, db *sql.DB) (have int, files []string, err error) {
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return 0, nil, err
	}
	if files, err = fs.Glob(Files, "*.sql"); err != nil {
		return 0, nil, err
	}
	if have > len(files) {
		return 0, nil, fmt.Errorf("the database has schema %d, this program knows %d; it was written by a newer version, use that one", have, len(files))
	}
	return have, files, nil
}

// NewEpoch returns a random one as the database holds it; not 0, which is the zero Cursor's.
func NewEpoch() string {
	var random [4]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	return fmt.Sprintf("%08x", binary.BigEndian.Uint32(random[:])|1)
}

// Allowed refuses a text that is not one statement on tables, because it could end the transaction or change the
// connection. Values are to be given as arguments, so a semicolon can only end the text.
func Allowed(text string) error {
	if strings.Contains(strings.TrimRight(text, "; \n\t"), ";") {
		return errors.New("an extension runs one statement at a time; give texts with a semicolon as arguments")
	}
	word := ""
	if words := strings.Fields(text); len(words) > 0 {
		word = words[0]
	}
	switch strings.ToUpper(word) {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES":
		return nil
	}
	return fmt.Errorf("an extension's statement begins with SELECT, INSERT, UPDATE, DELETE, REPLACE, WITH or VALUES, "+
		"not with %q", word)
}

// Extend runs those migrations of the extensions that the database has not seen, each in a transaction.
func Extend(ctx context.Context, db *sql.DB, all []relay.Extension) error {
	if err := relay.ValidateExtensions(all); err != nil {
		return err
	}
	for _, x := range all {
		if slices.Contains(reserved, x.Name) {
			return fmt.Errorf("an extension cannot be named %s: the store's own tables are", x.Name)
		}
		have, err := migrationOf(ctx, db, x.Name)
		if err != nil {
			return err
		}
		if have > len(x.Migrations) {
			return fmt.Errorf("the tables of %s have form %d, this program knows %d; they were written by a newer version, "+
				"use that one", x.Name, have, len(x.Migrations))
		}
		for number := have + 1; number <= len(x.Migrations); number++ {
			if err := inTx(ctx, db, func(tx *sql.Tx) error { return extendOnce(ctx, tx, x, number) }); err != nil {
				return fmt.Errorf("migration %d of %s: %w", number, x.Name, err)
			}
		}
	}
	return nil
}

// extendOnce runs one migration. It fails if that adds or removes a table or an index that is not named as x's.
func extendOnce(ctx context.Context, tx *sql.Tx, x relay.Extension, number int) error {
	others := func() (names string, err error) {
		err = tx.QueryRowContext(ctx, `SELECT ifnull(group_concat(name, ', ' ORDER BY name), '') FROM sqlite_schema
			WHERE name NOT GLOB 'sqlite_*' AND name NOT GLOB ? || '_*'`, x.Name).Scan(&names)
		return names, err
	}
	before, err := others()
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, x.Migrations[number-1]); err != nil {
		return err
	}
	after, err := others()
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("the names of its tables, indexes and triggers must begin with %s_; others were %s, and are %s",
			x.Name, before, after)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES (?, ?) "+
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value", ExtensionPrefix+x.Name, strconv.Itoa(number))
	return err
}

// reserved are the words before the underscore in the names of the store's own tables and indexes, and SQLite's.
var reserved = []string{"event", "manifest", "thread", "sqlite"}

// ExtensionPrefix begins the names in meta under which the number of an extension's last migration stands.
const ExtensionPrefix = "extension."

// migrationOf returns the number of an extension's last migration, 0 if there was none.
func migrationOf(ctx context.Context, db *sql.DB, name string) (number int, err error) {
	err = db.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = ?", ExtensionPrefix+name).Scan(&number)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return number, err
}

func inTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}

// LastNumber reads the number of the last event there ever was.
const LastNumber = "SELECT ifnull(max(seq), 0) FROM (SELECT max(seq) AS seq FROM event " +
	"UNION ALL SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'last')"
