package hub_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

// fill makes rows of all kinds in the hub's tables.
func (f *fixture) fill() {
	f.t.Helper()
	hook := newFixedHook(f.t)
	alice := f.register("alice@b", object{"endpoint": hook.URL})
	bob := f.register("bob@b")
	gone := f.register("gone@b")
	f.want(f.doFrom("198.51.100.7", call{"POST", "/register", "", registrationOf("remote@b"), nil}), 201, "")
	for _, to := range []string{"alice@b", "bob@b", "gone@b"} { // delivered, sent, failed
		f.send(alice, "alice@b", to, "hello")
	}
	f.history(bob, "")
	f.want(f.remove("/agents/gone@b", gone), 200, "")
	f.send(alice, "alice@b", "bob@b", "queued")
	f.listen(alice)
}

// G-28: `agora check` finds a changed row in any table of the hub.
func TestCheckFindsEveryChange(t *testing.T) {
	racing.Skip(t, "nothing runs at the same time as the checks")
	f := startLocal(t)
	f.fill()
	f.want(f.worker("did@b").call("POST", "/messages", messageTo("did@b", "did@b", "asked")), 202, "")
	if err := f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
		return insertRow(tx, "hub_clock", int64(1), int64(1))
	}); err != nil {
		t.Fatal(err)
	}
	gatetest.Tamper(t, f.Relay, hub.Extension)
}

// G-28: `agora check` also finds rows that are missing, that there are too many of, and that do not fit together.
func TestCheckFindsRelations(t *testing.T) {
	t.Parallel()
	f := startLocal(t)
	f.fill()
	undo := fmt.Errorf("undo")
	for name, c := range map[string]struct {
		change func(tx relay.ExtTx) error
		want   string
	}{
		"a message without a delivery":  {deleteRows("hub_delivery WHERE message = 1"), "hub_message 1"},
		"a delivery without a message":  {deleteRows("hub_message WHERE n = 1"), "hub_delivery 1"},
		"an agent without hub_use":      {deleteRows("hub_use WHERE agent = 1"), "hub_agent 1"},
		"an entry without an agent":     {deleteRows("hub_agent WHERE n = 2"), "hub_entry 2"},
		"an entry that is missing":      {deleteRows("hub_entry WHERE agent = 2 AND message = 2"), "hub_use 2"},
		"the entry of a third party":    {insertOne("hub_entry", int64(2), int64(1)), "hub_entry 1"},
		"a delivery to another agent":   {insertDelivery(2, 2, 1), "hub_delivery 2"},
		"a delivery from another agent": {insertDelivery(2, 3, 2), "hub_delivery 2"},
		"a queue that is not counted":   {insertUse(2, 2, 2, 0, 0), "hub_use 2"},
		"an agent without a key":        {deleteRows("gate_key WHERE kind = 'ca_' AND owner = 2"), "hub_agent 2"},
		"no counter of messages":        {deleteRows("gate_counter WHERE name = 'hub_message'"), lowMessages},
		"a low counter of messages":     {setCounter("hub_message", 3), lowMessages},
		"no counter of agents":          {deleteRows("gate_counter WHERE name = 'hub_agent'"), lowAgents},
		"a low counter of agents":       {setCounter("hub_agent", 2), lowAgents},
		"the number of a removed agent": {both(insertDelivery(2, 9, 2), setCounter("hub_agent", 8)), lowAgents},
	} {
		var found []string
		err := f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
			found = nil
			if err := c.change(tx); err != nil {
				return err
			}
			if err := hub.Extension.Check(tx, func(where, what string) { found = append(found, where+": "+what) }); err != nil {
				return err
			}
			return undo
		})
		named := func(text string) bool { return strings.HasPrefix(text, c.want+": ") }
		if err != undo || !slices.ContainsFunc(found, named) {
			t.Errorf("%s: %v, found %q", name, err, found)
		}
	}
}

const (
	lowMessages = `gate_counter name="hub_message"`
	lowAgents   = `gate_counter name="hub_agent"`
)

func setCounter(name string, last int64) func(relay.ExtTx) error {
	return both(deleteRows("gate_counter WHERE name = '"+name+"'"), insertOne("gate_counter", name, last))
}

func both(first, second func(relay.ExtTx) error) func(relay.ExtTx) error {
	return func(tx relay.ExtTx) error { return cmp.Or(first(tx), second(tx)) }
}

func deleteRows(rows string) func(relay.ExtTx) error {
	return func(tx relay.ExtTx) error {
		n, err := tx.Exec("DELETE FROM " + rows)
		if err == nil && n == 0 {
			err = fmt.Errorf("there are no %s", rows)
		}
		return err
	}
}

func insertOne(table string, values ...any) func(relay.ExtTx) error {
	return func(tx relay.ExtTx) error { return insertRow(tx, table, values...) }
}

// insertDelivery replaces a delivery that was sent.
func insertDelivery(message, sender, receiver int64) func(relay.ExtTx) error {
	return func(tx relay.ExtTx) error {
		if err := deleteRows(fmt.Sprintf("hub_delivery WHERE message = %d", message))(tx); err != nil {
			return err
		}
		return insertRow(tx, "hub_delivery", message, sender, receiver, 100, 1, "poll", 1, 0, "")
	}
}

// insertUse replaces what is counted for an agent.
func insertUse(agent, kept, keptBytes, queued, queuedBytes int64) func(relay.ExtTx) error {
	return func(tx relay.ExtTx) error {
		if err := deleteRows(fmt.Sprintf("hub_use WHERE agent = %d", agent))(tx); err != nil {
			return err
		}
		return insertRow(tx, "hub_use", agent, 1, 0, 0, 0, kept, keptBytes, queued, queuedBytes)
	}
}
