package a2a_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/relay"
)

// fill makes rows in all tables.
func (f *fixture) fill() {
	a := f.agent(wire.Keys)
	a.serve(echo)
	alice := caller{agent: a, key: a.newKey("alice")}
	alice.push(text(alice.say("hello"), "id"), "p", "https://a.example/")
	f.want(f.notify(f.hook(newKey(f.t)), pushedStatus), 200, "")
	synctest.Wait()
}

// A-46, G-28: agora check finds a changed row in each table.
func TestCheckFindsEveryChange(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.fill()
		gatetest.Tamper(t, f.Relay, a2a.Extension)
	})
}

// A-46, G-28: agora check also finds rows that are missing, and that do not fit together.
func TestCheckFindsRelations(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		f.fill()
		undo := errors.New("undo")
		for table, want := range map[string][]string{
			"a2a_endpoint": {"a2a_key 1 belongs to an endpoint that does not exist", "a2a_task 1 belongs to an endpoint that does not exist"},
			"a2a_context":  {"a2a_task 1 belongs to a conversation that does not exist"},
			"a2a_task": {"a2a_turn 1 belongs to a task that does not exist", "a2a_event 1 belongs to a task that does not exist",
				"a2a_push 1 belongs to a task that does not exist"},
			"a2a_event":    {"a2a_task 1 has no event with its status", "a2a_task 1 does not know its newest event"},
			"gate_key":     {"a2a_key 1 has no key in gate_key"},
			"gate_counter": {`gate_counter name="a2a_task" its last number is 0, but 1 is in use; it would give numbers a second time`},
		} {
			var found []string
			err := f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
				found = nil
				if _, err := tx.Exec("DELETE FROM " + table); err != nil {
					return err
				}
				return errors.Join(a2a.Extension.Check(tx, func(where, what string) { found = append(found, where+" "+what) }), undo)
			})
			if !errors.Is(err, undo) {
				t.Fatal(err)
			}
			for _, w := range want {
				if !slices.Contains(found, w) {
					t.Errorf("without %s: found\n%s\nwant %s", table, strings.Join(found, "\n"), w)
				}
			}
		}
	})
}
