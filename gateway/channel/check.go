package channel

import (
	"fmt"
	"strings"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// check reports rows that were changed, rows that are missing, and rows that do not fit together.
func check(q relay.Querier, found func(where, what string)) error {
	if err := gateway.CheckSums(q, found, checked(roomTable, 1, roomColumns), checked(partyTable, 1, partyColumns),
		checked(presenceTable, 1, presenceColumns), checked(eventTable, 2, eventColumns),
		checked(deliveryTable, 1, deliveryColumns), checked(attemptTable, 1, attemptColumns),
		checked(inboxTable, 1, inboxColumns), checked(requestTable, 1, requestColumns), checked(outTable, 1, outColumns),
		checked(positionTable, 1, positionColumns)); err != nil {
		return err
	}
	if err := checkRelations(q, found); err != nil {
		return err
	}
	if err := checkKeys(q, found); err != nil {
		return err
	}
	if err := checkEventCounters(q, found); err != nil {
		return err
	}
	for counter, largest := range map[string]string{
		channelCounter:  "SELECT MAX(n) FROM channel_channel",
		partyCounter:    "SELECT MAX(n) FROM channel_party",
		deliveryCounter: "SELECT MAX(n) FROM channel_delivery",
		attemptCounter:  "SELECT MAX(n) FROM channel_attempt",
		inboxCounter:    "SELECT MAX(n) FROM channel_inbox",
		requestCounter:  "SELECT MAX(n) FROM channel_request",
		outCounter:      "SELECT MAX(n) FROM channel_out",
	} {
		if err := gateway.CheckCounter(q, found, counter, largest); err != nil {
			return err
		}
	}
	return nil
}

func checked(name string, key int, columns string) gateway.Table {
	return gateway.Table{Name: name, Key: key, Columns: strings.Split(columns, ", ")}
}

// checkRelations reports rows that belong to nothing.
func checkRelations(q relay.Querier, found func(where, what string)) error {
	for _, c := range []struct{ table, what, text string }{
		{partyTable, "belongs to a channel that does not exist, or was deleted",
			"SELECT p.n FROM channel_party p LEFT JOIN channel_channel c ON c.n = p.channel AND c.deleted = 0 WHERE c.n IS NULL"},
		{presenceTable, "belongs to a party that does not exist",
			"SELECT s.party FROM channel_presence s LEFT JOIN channel_party p ON p.n = s.party WHERE p.n IS NULL"},
		{eventTable, "belongs to a channel that does not exist",
			"SELECT e.seq FROM channel_event e LEFT JOIN channel_channel c ON c.n = e.channel WHERE c.n IS NULL"},
		{attemptTable, "belongs to a delivery that does not exist",
			"SELECT a.n FROM channel_attempt a LEFT JOIN channel_delivery d ON d.n = a.delivery WHERE d.n IS NULL"},
		{requestTable, "belongs to an inbox that does not exist",
			"SELECT r.n FROM channel_request r LEFT JOIN channel_inbox i ON i.n = r.inbox WHERE i.n IS NULL"},
		{outTable, "belongs to a delivery that does not exist",
			"SELECT o.n FROM channel_out o LEFT JOIN channel_request r ON r.n = o.request WHERE r.n IS NULL"},
		{deliveryTable, "waits in the outbox, but its message does not exist",
			"SELECT d.n FROM gate_outbox j JOIN channel_delivery d ON d.n = j.ref JOIN channel_party p ON p.n = j.lane " +
				"LEFT JOIN channel_event e ON e.channel = d.channel AND e.seq = d.seq WHERE j.gateway = 'channel' AND j.dead = 0 AND e.seq IS NULL"},
		{outTable, "is missing, but waits in the outbox",
			"SELECT j.ref FROM gate_outbox j LEFT JOIN channel_out o ON o.n = j.ref LEFT JOIN channel_request r ON r.n = j.lane " +
				"WHERE j.gateway = 'callback' AND j.dead = 0 AND o.n IS NULL AND r.n IS NOT NULL AND r.ended = 0"},
	} {
		if err := each(q, c.text, func(n any) error {
			found(fmt.Sprintf("%s %v", c.table, n), c.what)
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// each calls f with each value that a SELECT of one column finds. A row that was changed may have a value of any type.
func each(q relay.Querier, text string, f func(any) error) error {
	var all []any
	err := q.Query(func(scan gateway.Scanner) error {
		var value any
		err := scan(&value)
		all = append(all, value)
		return err
	}, text)
	for _, value := range all {
		if err == nil {
			err = f(value)
		}
	}
	return err
}

// checkKeys reports channels, members and inboxes without a key.
func checkKeys(q relay.Querier, found func(where, what string)) error {
	for _, c := range []struct {
		kind        gateway.Kind
		table, text string
	}{
		{gateway.Channel, roomTable, "SELECT n FROM channel_channel WHERE deleted = 0"},
		{gateway.Member, partyTable, "SELECT n FROM channel_party WHERE agent = 0"},
		{gateway.Inbox, inboxTable, "SELECT n FROM channel_inbox WHERE deleted = 0"},
	} {
		if err := each(q, c.text, func(value any) error {
			n, ok := value.(int64)
			if !ok {
				return nil // CheckSums reports it
			}
			has, err := gateway.HasKey(q, c.kind, n, "")
			if err == nil && !has {
				found(fmt.Sprintf("%s %d", c.table, n), "has no key in gate_key")
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// checkEventCounters reports channels whose counter would give the numbers of events a second time.
func checkEventCounters(q relay.Querier, found func(where, what string)) error {
	return each(q, "SELECT n FROM channel_channel", func(value any) error {
		n, ok := value.(int64)
		if !ok {
			return nil // CheckSums reports it
		}
		return gateway.CheckCounter(q, found, eventCounter(n), "SELECT MAX(seq) FROM channel_event WHERE channel = ?", n)
	})
}
