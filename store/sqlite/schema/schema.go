// Package schema defines the tables of the embedded store's database. It holds numbered schema files, runs them and the
// migrations of extensions, and has the queries that the store shares with its offline tools.
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

// Files are the schema files. Their names begin with consecutive numbers, from 1.
//
//go:embed *.sql
var Files embed.FS

// Rebuilt is the number of the schema file that writes the table event anew. It needs about as much room as the database
// has already.
const Rebuilt = 2

// Migrate runs the schema files whose number is above the database's user_version, each in its own transaction. It also
// sets the epoch if the database has none.
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
			if _, err := tx.ExecContext(ctx, string(text)+"\nPRAGMA user_version = "+strconv.Itoa(number)); err != nil {
				return err
			}
			if number == Rebuilt {
				return FillIndexes(ctx, tx)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("schema %d: %w", number, err)
		}
	}
	_, err = db.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES ('epoch', ?) ON CONFLICT DO NOTHING",
		NewEpoch())
	return err
}

// Of returns the number of a database's schema, 0 if it has none, and the names of all schema files. It fails if the
// number is above the newest file's, because this program cannot know what such a database means.
func Of(ctx context.Context, db *sql.DB) (have int, files []string, err error) {
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return 0, nil, err
	}
	if files, err = fs.Glob(Files, "*.sql"); err != nil {
		return 0, nil, err
	}
	if have > len(files) {
		return 0, nil, fmt.Errorf("the database has schema %d, but this program supports only schemas up to %d; "+
			"it was written by a newer version, so use that version", have, len(files))
	}
	return have, files, nil
}

// NewEpoch returns a random epoch in the form in which the database stores it. It is never 0, the epoch of the zero
// Cursor.
func NewEpoch() string {
	var random [4]byte
	rand.Read(random[:]) // never fails (crypto/rand)
	return fmt.Sprintf("%08x", binary.BigEndian.Uint32(random[:])|1)
}

// Allowed returns an error unless text is a single statement that reads or changes rows. Other statements could end the
// transaction or change the connection. A semicolon is allowed only at the end of text; values with semicolons must be
// passed as arguments.
func Allowed(text string) error {
	if strings.Contains(strings.TrimRight(text, "; \n\t"), ";") {
		return errors.New("an extension runs one statement at a time; pass texts that contain a semicolon as arguments")
	}
	keyword := ""
	if words := strings.Fields(text); len(words) > 0 {
		keyword = words[0]
	}
	switch strings.ToUpper(keyword) {
	case "SELECT", "INSERT", "UPDATE", "DELETE", "REPLACE", "WITH", "VALUES":
		return nil
	}
	return fmt.Errorf("an extension's statement must begin with SELECT, INSERT, UPDATE, DELETE, REPLACE, WITH "+
		"or VALUES, not with %q", keyword)
}

// Extend runs the migrations of extensions that the database has not run yet, each in its own transaction.
func Extend(ctx context.Context, db *sql.DB, all []relay.Extension) error {
	if err := relay.ValidateExtensions(all); err != nil {
		return err
	}
	for _, x := range all {
		if slices.Contains(reserved, x.Name) {
			return fmt.Errorf("an extension cannot be named %s, because tables of the store have that name; "+
				"choose another name", x.Name)
		}
		have, err := migrationOf(ctx, db, x.Name)
		if err != nil {
			return err
		}
		if have > len(x.Migrations) {
			return fmt.Errorf("the tables of %s have run %d migrations, but this program has only %d; "+
				"they were written by a newer version, so use that version", x.Name, have, len(x.Migrations))
		}
		for number := have + 1; number <= len(x.Migrations); number++ {
			if err := inTx(ctx, db, func(tx *sql.Tx) error { return extendOnce(ctx, tx, x, number) }); err != nil {
				return fmt.Errorf("migration %d of %s: %w", number, x.Name, err)
			}
		}
	}
	return nil
}

// extendOnce runs one migration. It fails if the migration adds or removes a table, index or trigger whose name does
// not belong to x.
func extendOnce(ctx context.Context, tx *sql.Tx, x relay.Extension, number int) error {
	otherNames := func() (names string, err error) {
		err = tx.QueryRowContext(ctx, `SELECT ifnull(group_concat(name, ', ' ORDER BY name), '') FROM sqlite_schema
			WHERE name NOT GLOB 'sqlite_*' AND name NOT GLOB ? || '_*'`, x.Name).Scan(&names)
		return names, err
	}
	before, err := otherNames()
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, x.Migrations[number-1]); err != nil {
		return err
	}
	after, err := otherNames()
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("the names of its tables, indexes and triggers must begin with %s_; "+
			"the other names were %s before, and are %s now",
			x.Name, before, after)
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES (?, ?) "+
		"ON CONFLICT (name) DO UPDATE SET value = excluded.value", ExtensionPrefix+x.Name, strconv.Itoa(number))
	return err
}

// reserved are names that extensions must not have: the prefixes, up to the underscore, of names used by the store and
// by SQLite.
var reserved = []string{"event", "manifest", "thread", "sqlite"}

// ExtensionPrefix begins the names of rows in the table meta that hold the number of an extension's last migration.
const ExtensionPrefix = "extension."

// migrationOf returns the number of an extension's last migration, 0 if none was run.
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

// LastNumber selects the highest number that an event has ever had, 0 if there was no event.
const LastNumber = "SELECT ifnull(max(seq), 0) FROM (SELECT max(seq) AS seq FROM event " +
	"UNION ALL SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'last')"
