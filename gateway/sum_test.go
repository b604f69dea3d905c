package gateway_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/relay"
)

func TestSum(t *testing.T) {
	rows := [][]any{{}, {1}, {2}, {"1"}, {[]byte("1")}, {1, 2}, {2, 1}, {"ab", "c"}, {"a", "bc"}, {"abc"}, {""}, {"", ""}}
	seen := map[int64]string{}
	for _, table := range []string{"one", "two"} {
		for _, row := range rows {
			sum, name := gateway.Sum(table, row...), fmt.Sprintf("%s %#v", table, row)
			if other, found := seen[sum]; found || sum != gateway.Sum(table, row...) {
				t.Errorf("%s has the sum of %s", name, other)
			}
			seen[sum] = name
		}
	}
	if gateway.Sum("one", 1) != gateway.Sum("one", int64(1)) {
		t.Error("an int and an int64 have different sums")
	}
	defer func() {
		if recover() == nil {
			t.Error("a float has a sum")
		}
	}()
	gateway.Sum("one", 1.5)
}

// queryRows returns the rows of a SELECT.
func queryRows(t *testing.T, q relay.Querier, columns int, text string, args ...any) (rows [][]string) {
	t.Helper()
	err := q.Query(func(scan func(...any) error) error {
		row, into := make([]string, columns), make([]any, columns)
		for i := range row {
			into[i] = &row[i]
		}
		rows = append(rows, row)
		return scan(into...)
	}, text, args...)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// checkTables returns what `agora check` finds in the shared tables.
func checkTables(t *testing.T, q relay.Querier) (findings []string) {
	t.Helper()
	err := gateway.Extension.Check(q, func(where, what string) { findings = append(findings, where+": "+what) })
	if err != nil {
		t.Fatal(err)
	}
	return findings
}

// TestCheckFindsEveryChange checks G-28 for the shared tables: it changes one column after the other in each row of
// each table, and check reports the row.
func TestCheckFindsEveryChange(t *testing.T) {
	t.Setenv(gatetest.Env, "") // only SQLite allows these changes
	r, _ := startRelay(t)
	core := newCore(t, r, newKey(t))
	answers, outbox := gateway.NewAnswers(core), gateway.NewOutbox(core, "hub", nil, nil)
	next(t, r, "hub_message")
	next(t, r, "other")
	update(t, r, func(tx relay.ExtTx) error {
		return errors.Join(
			gateway.AddKey(tx, gateway.NewKey(gateway.Inbox), gateway.Holder{Kind: gateway.Inbox, Owner: 1}),
			gateway.AddKey(tx, gateway.NewKey(gateway.HubAgent), gateway.Holder{Kind: gateway.HubAgent, Owner: 7}),
			gateway.LimitKeys(tx, gateway.HubAgent, 7, "rotate", time.Now().Add(time.Minute)),
			answers.Add(tx, repeat("1", "one"), 1), answers.Add(tx, repeat("1", "two"), 2),
			answers.Finish(tx, repeat("1", "two"), 200, []byte(`{}`)),
			outbox.Add(tx, 1, 2))
	})
	update(t, r, func(tx relay.ExtTx) error {
		if found := checkTables(t, tx); len(found) > 0 {
			t.Errorf("found without a change: %q", found)
		}
		return nil
	})
	undo := errors.New("undo")
	change := func(table, rowid, set string) {
		err := r.Update(t.Context(), local, func(tx relay.ExtTx) error {
			if n, err := tx.Exec("UPDATE "+table+" SET "+set+" WHERE rowid = ?", rowid); n != 1 || err != nil {
				t.Fatalf("%s: %d rows, %v", set, n, err)
			}
			if found := checkTables(t, tx); len(found) != 1 || !strings.HasPrefix(found[0], table+" ") {
				t.Errorf("%s: %s: found %q", table, set, found)
			}
			return undo
		})
		if !errors.Is(err, undo) {
			t.Fatal(err)
		}
	}
	var tables [][]string
	update(t, r, func(tx relay.ExtTx) error {
		tables = queryRows(t, tx, 1, "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'gate_*'")
		return nil
	})
	for _, table := range tables {
		var columns, rows [][]string
		update(t, r, func(tx relay.ExtTx) error {
			columns = queryRows(t, tx, 2, "SELECT name, type FROM pragma_table_info(?)", table[0])
			rows = queryRows(t, tx, 1, "SELECT rowid FROM "+table[0])
			return nil
		})
		if len(rows) == 0 {
			t.Errorf("%s has no row; make this test fill it", table[0])
		}
		for _, column := range columns {
			sets := map[string][]string{"BIGINT": {"%s = %[1]s + 1", "%s = 'x'", "%s = 0.5"},
				"TEXT": {"%s = %[1]s || 'x'"}, "BYTEA": {"%s = x'00'", "%s = 'x'"}}[column[1]]
			for _, set := range sets {
				for _, row := range rows {
					change(table[0], row[0], fmt.Sprintf(set, column[0]))
				}
			}
			if len(sets) == 0 {
				t.Errorf("%s.%s has the type %s; use BIGINT, TEXT or BYTEA", table[0], column[0], column[1])
			}
		}
	}
}
