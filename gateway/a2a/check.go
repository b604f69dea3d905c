package a2a

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// check reports rows that were changed, rows that are missing, and rows that do not fit together.
func check(q relay.Querier, found func(where, what string)) error {
	if err := gateway.CheckSums(q, found, gateway.NewTable(endpointTable, 1, endpointColumns),
		gateway.NewTable(usageTable, 1, usageColumns), gateway.NewTable(keyTable, 1, keyColumns),
		gateway.NewTable(contextTable, 1, contextColumns), gateway.NewTable(taskTable, 1, taskColumns),
		gateway.NewTable(turnTable, 1, turnColumns), gateway.NewTable(eventTable, 2, eventColumns),
		gateway.NewTable(artifactTable, 2, artifactColumns), gateway.NewTable(pushTable, 1, pushColumns),
		gateway.NewTable(hookTable, 1, hookColumns), gateway.NewTable(noticeTable, 1, noticeColumns),
		deliver.PositionTable("a2a")); err != nil {
		return err
	}
	if err := gateway.CheckRelations(q, found, relations...); err != nil {
		return err
	}
	if err := gateway.CheckKeys(q, found, gateway.A2ACaller, keyTable, "SELECT n FROM a2a_key WHERE deleted = 0"); err != nil {
		return err
	}
	if err := gateway.CheckKeys(q, found, gateway.A2AHook, hookTable, "SELECT n FROM a2a_hook"); err != nil {
		return err
	}
	for counter, largest := range map[string]string{
		endpointCounter: "SELECT MAX(n) FROM a2a_endpoint",
		keyCounter:      "SELECT MAX(n) FROM a2a_key",
		contextCounter:  "SELECT MAX(n) FROM a2a_context",
		taskCounter:     "SELECT MAX(n) FROM a2a_task",
		turnCounter:     "SELECT MAX(n) FROM a2a_turn",
		pushCounter:     "SELECT MAX(n) FROM a2a_push",
		hookCounter:     "SELECT MAX(n) FROM a2a_hook",
		noticeCounter:   "SELECT MAX(n) FROM a2a_notice",
	} {
		if err := gateway.CheckCounter(q, found, counter, largest); err != nil {
			return err
		}
	}
	return nil
}

// relations are the rules about rows that belong together.
var relations = []gateway.Relation{
	{Table: keyTable, What: "belongs to an endpoint that does not exist",
		Broken: "SELECT k.n FROM a2a_key k LEFT JOIN a2a_endpoint e ON e.n = k.endpoint WHERE e.n IS NULL AND k.deleted = 0"},
	{Table: taskTable, What: "belongs to an endpoint that does not exist",
		Broken: "SELECT t.n FROM a2a_task t LEFT JOIN a2a_endpoint e ON e.n = t.endpoint WHERE e.n IS NULL AND t.endpoint > 0"},
	{Table: taskTable, What: "belongs to a conversation that does not exist",
		Broken: "SELECT t.n FROM a2a_task t LEFT JOIN a2a_context c ON c.n = t.context WHERE c.n IS NULL"},
	{Table: taskTable, What: "has no event with its status",
		Broken: "SELECT t.n FROM a2a_task t LEFT JOIN a2a_event e ON e.task = t.n AND e.seq = t.status_seq " +
			"AND e.state = t.state WHERE e.seq IS NULL AND t.endpoint > 0"},
	{Table: taskTable, What: "does not know its newest event",
		Broken: "SELECT t.n FROM a2a_task t WHERE t.endpoint > 0 AND t.seq <> " +
			"(SELECT COALESCE(MAX(e.seq), 0) FROM a2a_event e WHERE e.task = t.n)"},
	{Table: taskTable, What: "is open, but its newest turn is over or missing",
		Broken: "SELECT t.n FROM a2a_task t LEFT JOIN a2a_turn u ON u.task = t.n AND u.turn = t.turn AND u.state < 3 " +
			"WHERE t.open = 1 AND u.n IS NULL"},
	{Table: turnTable, What: "belongs to a task that does not exist",
		Broken: "SELECT u.n FROM a2a_turn u LEFT JOIN a2a_task t ON t.n = u.task WHERE t.n IS NULL"},
	{Table: eventTable, What: "belongs to a task that does not exist",
		Broken: "SELECT e.seq FROM a2a_event e LEFT JOIN a2a_task t ON t.n = e.task WHERE t.n IS NULL"},
	{Table: artifactTable, What: "belongs to a task that does not exist, or its content is missing",
		Broken: "SELECT a.place FROM a2a_artifact a LEFT JOIN a2a_task t ON t.n = a.task LEFT JOIN a2a_event e " +
			"ON e.task = a.task AND e.seq = a.base AND e.artifact = a.place WHERE t.n IS NULL OR t.endpoint > 0 AND e.seq IS NULL"},
	{Table: pushTable, What: "belongs to a task that does not exist",
		Broken: "SELECT p.n FROM a2a_push p LEFT JOIN a2a_task t ON t.n = p.task WHERE t.n IS NULL"},
	{Table: usageTable, What: "does not count the tasks of its endpoint",
		Broken: "SELECT u.endpoint FROM a2a_usage u WHERE u.ended <> " +
			"(SELECT COUNT(*) FROM a2a_task t WHERE t.endpoint = u.endpoint AND t.ended > 0) OR u.bytes <> " +
			"(SELECT COALESCE(CAST(SUM(t.bytes) AS BIGINT), 0) FROM a2a_task t WHERE t.endpoint = u.endpoint)"},
}
