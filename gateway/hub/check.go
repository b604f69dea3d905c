package hub

import (
	"fmt"
	"strings"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// check reports rows that were changed, rows that are missing, and rows that do not fit together.
func check(q relay.Querier, found func(where, what string)) error {
	if err := gateway.CheckSums(q, found, checked(agentTable, 1, agentColumns), checked(usageTable, 1, usageColumns),
		checked(messageTable, 1, messageColumns), checked(deliveryTable, 1, deliveryColumns),
		checked(entryTable, 2, "agent, message"), checked(clockTable, 1, clockColumns)); err != nil {
		return err
	}
	if err := checkRelations(q, found); err != nil {
		return err
	}
	if err := checkKeys(q, found); err != nil {
		return err
	}
	if err := gateway.CheckCounter(q, found, messageCounter, "SELECT MAX(n) FROM hub_message"); err != nil {
		return err
	}
	// Messages also have the numbers of agents that were removed.
	return gateway.CheckCounter(q, found, agentCounter, "SELECT MAX(n) FROM (SELECT MAX(n) AS n FROM hub_agent "+
		"UNION ALL SELECT MAX(sender) FROM hub_delivery UNION ALL SELECT MAX(receiver) FROM hub_delivery) AS used")
}

func checked(name string, key int, columns string) gateway.Table {
	return gateway.Table{Name: name, Key: key, Columns: strings.Split(columns, ", ")}
}

// checkRelations reports rows that do not fit together.
func checkRelations(q relay.Querier, found func(where, what string)) error {
	for _, c := range []struct{ table, what, text string }{
		{messageTable, "has no delivery",
			"SELECT m.n FROM hub_message m LEFT JOIN hub_delivery d ON d.message = m.n WHERE d.message IS NULL"},
		{deliveryTable, "is the delivery of a message that does not exist, or has other parties",
			"SELECT d.message FROM hub_delivery d LEFT JOIN hub_message m ON m.n = d.message " +
				"WHERE m.n IS NULL OR m.sender <> d.sender OR m.receiver <> d.receiver"},
		{entryTable, "is the history of an agent that does not exist, or has a message of others",
			"SELECT e.message FROM hub_entry e LEFT JOIN hub_delivery d ON d.message = e.message " +
				"LEFT JOIN hub_agent a ON a.n = e.agent " +
				"WHERE d.message IS NULL OR a.n IS NULL OR e.agent <> d.sender AND e.agent <> d.receiver"},
		{agentTable, "has no row in hub_use",
			"SELECT a.n FROM hub_agent a LEFT JOIN hub_use u ON u.agent = a.n WHERE u.agent IS NULL"},
		{usageTable, "counts the history of its agent wrongly",
			"SELECT u.agent FROM hub_use u LEFT JOIN (SELECT e.agent, COUNT(*) AS kept, SUM(d.size) AS size " +
				"FROM hub_entry e JOIN hub_delivery d ON d.message = e.message GROUP BY e.agent) h ON h.agent = u.agent " +
				"WHERE u.kept <> COALESCE(h.kept, 0) OR u.kept_bytes <> COALESCE(h.size, 0)"},
		{usageTable, "counts the queue of its agent wrongly",
			"SELECT u.agent FROM hub_use u LEFT JOIN (SELECT receiver, COUNT(*) AS queued, SUM(size) AS size " +
				"FROM hub_delivery WHERE state = 0 GROUP BY receiver) h ON h.receiver = u.agent " +
				"WHERE u.queued <> COALESCE(h.queued, 0) OR u.queued_bytes <> COALESCE(h.size, 0)"},
	} {
		if err := q.Query(func(scan gateway.Scanner) error {
			var n any // a row that was changed may have something other than a number
			if err := scan(&n); err != nil {
				return err
			}
			found(fmt.Sprintf("%s %v", c.table, n), c.what)
			return nil
		}, c.text); err != nil {
			return err
		}
	}
	return nil
}

// checkKeys reports registered agents that have no key.
func checkKeys(q relay.Querier, found func(where, what string)) error {
	var agents []int64
	if err := q.Query(func(scan gateway.Scanner) error {
		var value any // a row that was changed may have something other than a number
		err := scan(&value)
		if n, ok := value.(int64); ok {
			agents = append(agents, n)
		}
		return err
	}, "SELECT n FROM hub_agent WHERE deleted = 0"); err != nil {
		return err
	}
	for _, n := range agents {
		has, err := gateway.HasKey(q, gateway.HubAgent, n, "")
		if err != nil {
			return err
		}
		if !has {
			found(fmt.Sprintf("%s %d", agentTable, n), "has no key in gate_key, although it is registered")
		}
	}
	return nil
}
