package gatetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// Tamper checks G-28 for the tables of an extension: it changes one column after the other in each row of each table.
// Each time, Check must report the row. Each table must have a row. The changes are undone. Only SQLite allows them.
func Tamper(t *testing.T, r *relay.Relay, x relay.Extension) {
	t.Helper()
	engine.OnlySQLite(t, "its columns take values of any type")
	c := tampering{t, r, x}
	var tables []string
	c.view(func(q relay.Querier) (err error) {
		if found := c.findings(q); len(found) > 0 {
			t.Errorf("found without a change: %q", found)
		}
		tables, err = texts(q, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB ?", x.Name+"_*")
		return err
	})
	for _, table := range tables {
		c.table(table)
	}
}

// tampering is one call of Tamper.
type tampering struct {
	t     *testing.T
	relay *relay.Relay
	x     relay.Extension
}

var own = relay.Peer{Local: true}

func (c tampering) view(f func(relay.Querier) error) {
	c.t.Helper()
	if err := c.relay.View(c.t.Context(), own, f); err != nil {
		c.t.Fatal(err)
	}
}

// findings returns what Check finds.
func (c tampering) findings(q relay.Querier) (found []string) {
	if err := c.x.Check(q, func(where, what string) { found = append(found, where+": "+what) }); err != nil {
		c.t.Errorf("check fails: %v; it has found %q", err, found)
	}
	return found
}

// table changes each column of each row of a table.
func (c tampering) table(table string) {
	c.t.Helper()
	var columns, types, rows []string
	c.view(func(q relay.Querier) error {
		var errs [3]error
		columns, errs[0] = texts(q, "SELECT name FROM pragma_table_info(?) ORDER BY cid", table)
		types, errs[1] = texts(q, "SELECT type FROM pragma_table_info(?) ORDER BY cid", table)
		rows, errs[2] = texts(q, "SELECT rowid FROM "+table)
		return errors.Join(errs[:]...)
	})
	if len(rows) == 0 {
		c.t.Errorf("%s has no row; make this test fill it", table)
	}
	for i, column := range columns {
		sets := map[string][]string{"BIGINT": {"%s = %[1]s + 1000007", "%s = 'x'", "%s = 0.5"},
			"TEXT": {"%s = %[1]s || 'x'"}, "BYTEA": {"%s = x'00'", "%s = 'x'"}}[types[i]]
		for _, set := range sets {
			for _, row := range rows {
				c.change(table, row, fmt.Sprintf(set, column))
			}
		}
		if len(sets) == 0 {
			c.t.Errorf("%s.%s has the type %s; use BIGINT, TEXT or BYTEA", table, column, types[i])
		}
	}
}

// change makes one change and undoes it. Check must report it first.
func (c tampering) change(table, rowid, set string) {
	c.t.Helper()
	undo := errors.New("undo")
	err := c.relay.Update(c.t.Context(), own, func(tx relay.ExtTx) error {
		if n, err := tx.Exec("UPDATE "+table+" SET "+set+" WHERE rowid = ?", rowid); n != 1 || err != nil {
			c.t.Fatalf("%s: %s: %d rows, %v", table, set, n, err)
		}
		// A counter and a copy of another row have no checksum. Check compares them with the rows that they are made of.
		if found := c.findings(tx); len(found) == 0 || !strings.HasPrefix(found[0], table+" ") {
			c.t.Errorf("%s: %s: found %q", table, set, found)
		}
		return undo
	})
	if !errors.Is(err, undo) {
		c.t.Fatal(err)
	}
}

// texts returns the result of a query with one column.
func texts(q relay.Querier, text string, args ...any) (all []string, err error) {
	err = q.Query(func(scan func(...any) error) error {
		var one string
		err := scan(&one)
		all = append(all, one)
		return err
	}, text, args...)
	return all, err
}
