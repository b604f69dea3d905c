package hub

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// check reports rows that were changed, rows that are missing, and rows that do not fit together.
func check(q relay.Querier, found func(where, what string)) error {
	if err := gateway.CheckSums(q, found, agents,
		gateway.NewTable(usageTable, 1, usageColumns), messages,
		gateway.NewTable(deliveryTable, 1, deliveryColumns), gateway.NewTable(entryTable, 2, "agent, message"),
		gateway.NewTable(clockTable, 1, clockColumns), gateway.NewTable(originTable, 1, originColumns),
		gateway.NewTable(peerTable, 2, peerColumns), gateway.NewTable(receivedTable, 2, receivedColumns),
		gateway.NewTable(requestTable, 1, requestColumns), deliver.PositionTable("hub")); err != nil {
		return err
	}
	if err := gateway.CheckRelations(q, found, relations...); err != nil {
		return err
	}
	err := gateway.CheckKeys(q, found, gateway.HubAgent, agentTable, "SELECT n FROM hub_agent WHERE deleted = 0 AND did = ''")
	if err != nil {
		return err
	}
	if err := gateway.CheckCounter(q, found, messageCounter, "SELECT MAX(n) FROM hub_message"); err != nil {
		return err
	}
	// Messages also have the numbers of agents that were removed.
	return gateway.CheckCounter(q, found, agentCounter, "SELECT MAX(n) FROM (SELECT MAX(n) AS n FROM hub_agent "+
		"UNION ALL SELECT MAX(sender) FROM hub_delivery UNION ALL SELECT MAX(receiver) FROM hub_delivery) AS used")
}

// relations are the rules about rows that belong together.
var relations = []gateway.Relation{
	{Table: messageTable, What: "has no delivery",
		Broken: "SELECT m.n FROM hub_message m LEFT JOIN hub_delivery d ON d.message = m.n WHERE d.message IS NULL"},
	{Table: deliveryTable, What: "is the delivery of a message that does not exist, or has other parties",
		Broken: "SELECT d.message FROM hub_delivery d LEFT JOIN hub_message m ON m.n = d.message " +
			"WHERE m.n IS NULL OR m.sender <> d.sender OR m.receiver <> d.receiver"},
	{Table: entryTable, What: "is the history of an agent that does not exist, or has a message of others",
		Broken: "SELECT e.message FROM hub_entry e LEFT JOIN hub_delivery d ON d.message = e.message " +
			"LEFT JOIN hub_agent a ON a.n = e.agent " +
			"WHERE d.message IS NULL OR a.n IS NULL OR e.agent <> d.sender AND e.agent <> d.receiver"},
	{Table: agentTable, What: "has no row in hub_use",
		Broken: "SELECT a.n FROM hub_agent a LEFT JOIN hub_use u ON u.agent = a.n WHERE u.agent IS NULL"},
	{Table: usageTable, What: "counts the history of its agent wrongly",
		Broken: "SELECT u.agent FROM hub_use u LEFT JOIN (SELECT e.agent, COUNT(*) AS kept, SUM(d.size) AS size " +
			"FROM hub_entry e JOIN hub_delivery d ON d.message = e.message GROUP BY e.agent) h ON h.agent = u.agent " +
			"WHERE u.kept <> COALESCE(h.kept, 0) OR u.kept_bytes <> COALESCE(h.size, 0)"},
	{Table: usageTable, What: "counts the queue of its agent wrongly",
		Broken: "SELECT u.agent FROM hub_use u LEFT JOIN (SELECT receiver, COUNT(*) AS queued, SUM(size) AS size " +
			"FROM hub_delivery WHERE state = 0 GROUP BY receiver) h ON h.receiver = u.agent " +
			"WHERE u.queued <> COALESCE(h.queued, 0) OR u.queued_bytes <> COALESCE(h.size, 0)"},
	{Table: requestTable, What: "is for a message that is delivered, or that is not for an agent with its DID",
		Broken: "SELECT r.message FROM hub_request r LEFT JOIN hub_delivery d ON d.message = r.message AND d.sender = r.sender " +
			"AND d.receiver = r.receiver AND d.state = CASE WHEN r.state = 2 THEN 1 ELSE 0 END " +
			"LEFT JOIN hub_agent a ON a.n = r.receiver AND a.did = r.did WHERE d.message IS NULL OR a.n IS NULL"},
	{Table: deliveryTable, What: "is queued for an agent with a DID, and has no row in hub_request",
		Broken: "SELECT d.message FROM hub_delivery d JOIN hub_agent a ON a.n = d.receiver AND a.did <> '' " +
			"LEFT JOIN hub_request r ON r.message = d.message WHERE d.state = 0 AND r.message IS NULL"},
	{Table: receivedTable, What: "is not in the history of its agent, or the agent has not received it",
		Broken: "SELECT r.message FROM hub_received r LEFT JOIN hub_entry e ON e.agent = r.agent AND e.message = r.message " +
			"LEFT JOIN hub_delivery d ON d.message = r.message WHERE e.message IS NULL OR d.message IS NULL OR r.agent <> d.receiver"},
	{Table: receivedTable, What: "is not counted in hub_peer",
		Broken: "SELECT r.message FROM hub_received r LEFT JOIN hub_peer p ON p.agent = r.agent AND p.source = r.source " +
			"WHERE p.agent IS NULL"},
	{Table: peerTable, What: "counts the messages of a source wrongly",
		Broken: "SELECT p.agent FROM hub_peer p LEFT JOIN (SELECT r.agent, r.source, COUNT(*) AS kept, SUM(d.size) AS size, " +
			"SUM(CASE WHEN d.state = 0 THEN 1 ELSE 0 END) AS queued FROM hub_received r JOIN hub_delivery d " +
			"ON d.message = r.message GROUP BY r.agent, r.source) h ON h.agent = p.agent AND h.source = p.source " +
			"WHERE p.kept <> COALESCE(h.kept, 0) OR p.kept_bytes <> COALESCE(h.size, 0) OR p.queued <> COALESCE(h.queued, 0)"},
}
