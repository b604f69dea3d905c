package gateway_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/internal/racing"
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

// A row that was stored before a migration added columns keeps its sum. Rows that differ have different sums.
func TestSumOfAddedColumns(t *testing.T) {
	table := gateway.NewTable("one", 1, "name, n, first, second")
	table.Added = 2
	seen := map[int64]string{}
	for _, row := range [][]any{{"a", int64(0), int64(0), int64(0)}, {"a", int64(1), int64(0), int64(0)},
		{"a", int64(0), int64(1), int64(0)}, {"a", int64(0), int64(0), int64(1)}, {"a", int64(1), int64(1), int64(0)}} {
		name, with := fmt.Sprint(row), table.WithSum(row)
		sum := with[len(row)].(int64)
		if other, found := seen[sum]; found || len(with) != len(row)+1 {
			t.Errorf("%s has the sum of %s: %v", name, other, with)
		}
		seen[sum] = name
	}
	for n := range int64(2) {
		if old := seen[gateway.Sum("one", "a", n)]; old != fmt.Sprint([]any{"a", n, 0, 0}) {
			t.Errorf("%q has the sum of the row %d from before the migration", old, n)
		}
	}
}

// TestCheckFindsEveryChange checks G-28 for the shared tables.
func TestCheckFindsEveryChange(t *testing.T) {
	racing.Skip(t, "one thing after another")
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
	gatetest.Tamper(t, r, gateway.Extension)
}

// TestCheckFindsMissingRows checks G-28 for rows that are missing, and for a counter that gives numbers twice.
func TestCheckFindsMissingRows(t *testing.T) {
	r, _ := startRelay(t)
	findings := func(q relay.Querier) (found []string) {
		if err := gateway.Extension.Check(q, func(where, _ string) { found = append(found, where) }); err != nil {
			t.Error(err)
		}
		return found
	}
	view := func(f func(relay.Querier)) {
		t.Helper()
		if err := r.View(t.Context(), local, func(q relay.Querier) error { f(q); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	view(func(q relay.Querier) {
		if found := findings(q); found != nil {
			t.Errorf("before a gateway was used: %q", found)
		}
	})
	core := newCore(t, r, newKey(t))
	outbox := gateway.NewOutbox(core, "hub", nil, nil)
	update(t, r, func(tx relay.ExtTx) error { return errors.Join(outbox.Add(tx, 1, 1), outbox.Add(tx, 1, 2)) })
	undo := errors.New("undo")
	for statement, want := range map[string][]string{
		"DELETE FROM gate_outbox WHERE n = 1":                     nil,
		"DELETE FROM gate_meta WHERE name = 'did'":                {`gate_meta name="did"`},
		"DELETE FROM gate_meta WHERE name = 'epoch'":              {`gate_meta name="epoch"`},
		"DELETE FROM gate_meta":                                   {`gate_meta name="did"`, `gate_meta name="epoch"`},
		"DELETE FROM gate_key":                                    {`gate_key kind="op_"`},
		"DELETE FROM gate_counter":                                {`gate_counter name="outbox"`},
		"UPDATE gate_counter SET value = 1 WHERE name = 'outbox'": {`gate_counter name="outbox"`, `gate_counter name="outbox"`},
	} {
		err := r.Update(t.Context(), local, func(tx relay.ExtTx) error {
			if n, err := tx.Exec(statement); n == 0 || err != nil {
				t.Errorf("%s: %d rows, %v", statement, n, err)
			}
			if found := findings(tx); !slices.Equal(found, want) {
				t.Errorf("%s: found %q, want %q", statement, found, want)
			}
			return undo
		})
		if !errors.Is(err, undo) {
			t.Fatal(err)
		}
	}
}
