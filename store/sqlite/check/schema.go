package check

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// schema compares the tables and indexes with those of a new database. readable reports whether the tables are the
// same.
func (c *checker) schema() (readable bool, err error) {
	var have int
	if err := c.conn.QueryRowContext(c.ctx, "PRAGMA user_version").Scan(&have); err != nil {
		return false, err
	}
	files, err := fs.Glob(schema.Files, "*.sql")
	if err != nil {
		return false, err
	}
	switch {
	case have > len(files):
		c.found(Finding{"schema", fmt.Sprintf("is number %d, but this program supports only numbers up to %d", have,
			len(files)), cureNewer})
		return false, nil
	case have < 1:
		c.found(Finding{"schema", "is missing, so no relay wrote this database",
			"name the data folder of a relay, or a backup of one"})
		return false, nil
	case have < len(files):
		c.found(Finding{"schema", fmt.Sprintf("is number %d, but this program writes number %d", have, len(files)),
			cureOlder})
		return false, nil
	}
	got, err := objects(c.ctx, c.conn)
	if err != nil {
		return false, err
	}
	unknown, err := c.extended()
	if err != nil {
		return false, err
	}
	want, err := newObjects(c.ctx, c.known)
	if err != nil {
		return false, err
	}
	readable = true
	for o, text := range want {
		if got[o] != text {
			c.found(Finding{"schema",
				fmt.Sprintf("%s %s is missing or differs from what a relay creates", o.kind, o.name), cureDamage})
			readable = readable && o.kind != "table"
		}
	}
	for o := range got {
		if _, known := want[o]; !known && !o.isOf(unknown) {
			c.found(Finding{"schema", fmt.Sprintf("%s %q does not belong to a relay", o.kind, o.name), cureDamage})
		}
	}
	return readable, nil
}

// extended collects the known extensions whose tables the database has, each with the migrations that the database has
// run. It returns the names of the unknown extensions.
func (c *checker) extended() (unknown []string, err error) {
	err = c.each(func(scan scanner) error {
		var name string
		var number int
		if err := scan(&name, &number); err != nil {
			return err
		}
		name = strings.TrimPrefix(name, schema.ExtensionPrefix)
		i := slices.IndexFunc(c.options.Extensions, func(x relay.Extension) bool { return x.Name == name })
		if i < 0 {
			unknown = append(unknown, name)
			return nil
		}
		x := c.options.Extensions[i]
		if number > len(x.Migrations) || number < 0 {
			c.found(Finding{"schema",
				fmt.Sprintf("the tables of %s have run %d migrations, but this program has only %d", name, number,
					len(x.Migrations)), cureNewer})
			unknown = append(unknown, name)
			return nil
		}
		x.Migrations = x.Migrations[:number]
		c.known = append(c.known, x)
		return nil
	}, "SELECT name, value FROM meta WHERE name LIKE ?", schema.ExtensionPrefix+"%")
	return unknown, err
}

// extensions lets each extension check its tables, if all of its migrations were run.
func (c *checker) extensions() error {
	for _, x := range c.known {
		all := c.options.Extensions[slices.IndexFunc(c.options.Extensions,
			func(o relay.Extension) bool { return o.Name == x.Name })]
		if x.Check == nil || len(x.Migrations) < len(all.Migrations) {
			continue
		}
		found := func(where, what string) { c.found(Finding{x.Name + " " + where, what, cureDamage}) }
		if err := x.Check(&checkTx{c}, found); err != nil {
			return err
		}
	}
	return nil
}

// checkTx implements relay.Querier.
type checkTx struct{ *checker }

func (t *checkTx) Query(row func(func(...any) error) error, text string, args ...any) error {
	if err := schema.Allowed(text); err != nil {
		return err
	}
	return t.each(func(scan scanner) error { return row(scan) }, text, args...)
}

// object is a table, an index or a trigger.
type object struct{ kind, name string }

// isOf reports whether o's name belongs to one of these extensions.
func (o object) isOf(extensions []string) bool {
	name, _, prefixed := strings.Cut(o.name, "_")
	return prefixed && slices.Contains(extensions, name)
}

func objects(ctx context.Context, conn *sql.Conn) (map[object]string, error) {
	all := map[object]string{}
	err := eachRow(ctx, conn, func(scan scanner) error {
		var o object
		var text string
		err := scan(&o.kind, &o.name, &text)
		all[o] = text
		return err
	}, `SELECT type, name, COALESCE(sql, '') FROM sqlite_schema WHERE name NOT LIKE 'sqlite\_%' ESCAPE '\'`)
	return all, err
}

// newObjects returns the objects of a new database with these extensions.
func newObjects(ctx context.Context, extensions []relay.Extension) (_ map[object]string, err error) {
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	db.SetMaxOpenConns(1) // each connection would open its own empty database
	if err := errors.Join(schema.Migrate(ctx, db), schema.Extend(ctx, db, extensions)); err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return objects(ctx, conn)
}
