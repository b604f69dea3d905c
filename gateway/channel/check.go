package channel

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// check reports rows that were changed, rows that are missing, and rows that do not fit together.
func check(q relay.Querier, found func(where, what string)) error {
	if err := gateway.CheckSums(q, found, gateway.NewTable(roomTable, 1, roomColumns),
		gateway.NewTable(partyTable, 1, partyColumns), gateway.NewTable(presenceTable, 1, presenceColumns),
		gateway.NewTable(eventTable, 2, eventColumns), gateway.NewTable(deliveryTable, 1, deliveryColumns),
		gateway.NewTable(attemptTable, 1, attemptColumns), gateway.NewTable(inboxTable, 1, inboxColumns),
		requests, gateway.NewTable(outTable, 1, outColumns),
		deliver.PositionTable("channel")); err != nil {
		return err
	}
	if err := gateway.CheckRelations(q, found, relations...); err != nil {
		return err
	}
	for _, c := range []struct {
		kind          gateway.Kind
		table, owners string
	}{
		{gateway.Channel, roomTable, "SELECT n FROM channel_channel WHERE deleted = 0"},
		{gateway.Member, partyTable, "SELECT n FROM channel_party WHERE agent = 0"},
		{gateway.Inbox, inboxTable, "SELECT n FROM channel_inbox WHERE deleted = 0"},
	} {
		if err := gateway.CheckKeys(q, found, c.kind, c.table, c.owners); err != nil {
			return err
		}
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

// relations are the rules about rows that belong together.
var relations = []gateway.Relation{
	{Table: partyTable, What: "belongs to a channel that does not exist, or was deleted",
		Broken: "SELECT p.n FROM channel_party p LEFT JOIN channel_channel c ON c.n = p.channel AND c.deleted = 0 WHERE c.n IS NULL"},
	{Table: presenceTable, What: "belongs to a party that does not exist",
		Broken: "SELECT s.party FROM channel_presence s LEFT JOIN channel_party p ON p.n = s.party WHERE p.n IS NULL"},
	{Table: eventTable, What: "belongs to a channel that does not exist",
		Broken: "SELECT e.seq FROM channel_event e LEFT JOIN channel_channel c ON c.n = e.channel WHERE c.n IS NULL"},
	{Table: attemptTable, What: "belongs to a delivery that does not exist",
		Broken: "SELECT a.n FROM channel_attempt a LEFT JOIN channel_delivery d ON d.n = a.delivery WHERE d.n IS NULL"},
	{Table: requestTable, What: "belongs to an inbox that does not exist",
		Broken: "SELECT r.n FROM channel_request r LEFT JOIN channel_inbox i ON i.n = r.inbox WHERE i.n IS NULL"},
	{Table: outTable, What: "belongs to a delivery that does not exist",
		Broken: "SELECT o.n FROM channel_out o LEFT JOIN channel_request r ON r.n = o.request WHERE r.n IS NULL"},
	{Table: deliveryTable, What: "waits in the outbox, but its message does not exist",
		Broken: "SELECT d.n FROM gate_outbox j JOIN channel_delivery d ON d.n = j.ref JOIN channel_party p ON p.n = j.lane " +
			"LEFT JOIN channel_event e ON e.channel = d.channel AND e.seq = d.seq WHERE j.gateway = 'channel' AND j.dead = 0 AND e.seq IS NULL"},
	{Table: outTable, What: "is missing, but waits in the outbox",
		Broken: "SELECT j.ref FROM gate_outbox j LEFT JOIN channel_out o ON o.n = j.ref LEFT JOIN channel_request r ON r.n = j.lane " +
			"WHERE j.gateway = 'callback' AND j.dead = 0 AND o.n IS NULL AND r.n IS NOT NULL AND r.ended = 0"},
}

// checkEventCounters reports channels whose counter would give the numbers of events a second time.
func checkEventCounters(q relay.Querier, found func(where, what string)) error {
	channels, err := gateway.CheckedNumbers(q, "SELECT n FROM channel_channel")
	for _, n := range channels {
		if err == nil {
			err = gateway.CheckCounter(q, found, eventCounter(n), "SELECT MAX(seq) FROM channel_event WHERE channel = ?", n)
		}
	}
	return err
}
