package jobs

import (
	"fmt"
	"math/big"
	"slices"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/deliver"
	"github.com/agora-relay/agora/relay"
)

// check reports rows that were changed or are missing, accounts that do not add up, and holds without a running job.
func check(q relay.Querier, found func(where, what string)) error {
	if err := gateway.CheckSums(q, found, gateway.NewTable(principalTable, 1, principalColumns),
		gateway.NewTable(ownerTable, 1, ownerColumns), gateway.NewTable(recordTable, 1, recordColumns),
		gateway.NewTable(entryTable, 2, entryColumns), gateway.NewTable(totalTable, 1, totalColumns),
		gateway.NewTable(settledTable, 1, settledColumns),
		agents, gateway.NewTable(skillTable, 2, skillColumns),
		gateway.NewTable(jobTable, 1, jobColumns), gateway.NewTable(foldedTable, 1, foldedColumns),
		gateway.NewTable(foldedTotalTable, 1, foldedTotalColumns),
		gateway.NewTable(foldedAgentTable, 1, foldedAgentColumns), gateway.NewTable(requestTable, 1, requestColumns),
		deliver.PositionTable("jobs")); err != nil {
		return err
	}
	if err := gateway.CheckRelations(q, found, append(slices.Clip(relations), counterRelations...)...); err != nil {
		return err
	}
	if err := checkTotals(q, found); err != nil {
		return err
	}
	if err := gateway.CheckKeys(q, found, gateway.Principal, principalTable,
		"SELECT n FROM jobs_principal WHERE did = ''"); err != nil {
		return err
	}
	for counter, largest := range map[string]string{
		principalCounter: "SELECT MAX(n) FROM jobs_principal",
		ownerCounter:     "SELECT MAX(n) FROM jobs_owner",
		agentCounter:     "SELECT MAX(n) FROM jobs_agent",
		recordCounter:    "SELECT MAX(n) FROM jobs_record",
		jobCounter:       "SELECT MAX(n) FROM jobs_job",
	} {
		if err := gateway.CheckCounter(q, found, counter, largest); err != nil {
			return err
		}
	}
	return nil
}

// relations are the rules about rows that belong together. Together they prove that no credit was lost or made: each
// record has two entries that sum to zero, each balance is the sum of its entries, and @escrow has what running jobs hold.
var relations = []gateway.Relation{
	{Table: recordTable, What: "has not exactly two entries, of which one takes the amount from the payer and one gives it to the payee",
		Broken: "SELECT r.n FROM jobs_record r WHERE (SELECT COUNT(*) FROM jobs_entry e WHERE e.record = r.n) <> 2 OR " +
			"NOT EXISTS (SELECT 1 FROM jobs_entry e WHERE e.record = r.n AND e.owner = r.payer AND e.amount = -r.amount) OR " +
			"NOT EXISTS (SELECT 1 FROM jobs_entry e WHERE e.record = r.n AND e.owner = r.payee AND e.amount = r.amount) ORDER BY r.n"},
	{Table: recordTable, What: "has no amount above 0", Broken: "SELECT n FROM jobs_record WHERE amount <= 0 ORDER BY n"},
	{Table: entryTable, What: "belongs to a record that does not exist",
		Broken: "SELECT e.record FROM jobs_entry e LEFT JOIN jobs_record r ON r.n = e.record WHERE r.n IS NULL ORDER BY e.record"},
	{Table: entryTable, What: "belongs to an account that does not exist",
		Broken: "SELECT e.record FROM jobs_entry e LEFT JOIN jobs_owner a ON a.n = e.owner WHERE a.n IS NULL ORDER BY e.record"},
	{Table: ownerTable, What: "has a balance that is not the sum of its entries",
		Broken: "SELECT a.n FROM jobs_owner a LEFT JOIN jobs_folded f ON f.owner = a.n WHERE a.balance <> COALESCE(f.amount, 0) + " +
			"(SELECT COALESCE(SUM(e.amount), 0) FROM jobs_entry e WHERE e.owner = a.n) ORDER BY a.n"},
	{Table: ownerTable, What: "has a balance below 0",
		Broken: "SELECT n FROM jobs_owner WHERE balance < 0 AND id <> '@issue' ORDER BY n"},
	{Table: ownerTable, What: "belongs to a principal that does not exist",
		Broken: "SELECT a.n FROM jobs_owner a LEFT JOIN jobs_principal p ON p.n = a.principal WHERE p.n IS NULL AND " +
			"a.id NOT IN ('@issue', '@escrow') ORDER BY a.n"},
	{Table: ownerTable, What: "is @escrow, and does not have what the running jobs hold",
		Broken: "SELECT a.n FROM jobs_owner a WHERE a.id = '@escrow' AND a.balance <> " +
			"(SELECT COALESCE(SUM(j.budget), 0) FROM jobs_job j WHERE j.state = 0) ORDER BY a.n"},
	{Table: principalTable, What: "has got other initial balances than its row says",
		Broken: "SELECT p.n FROM jobs_principal p WHERE p.issued <> (SELECT COALESCE(SUM(e.amount), 0) FROM jobs_owner a " +
			"JOIN jobs_entry e ON e.owner = a.n JOIN jobs_record r ON r.n = e.record AND r.kind = 'initial' " +
			"WHERE a.principal = p.n) + (SELECT COALESCE(SUM(f.initial), 0) FROM jobs_owner a JOIN jobs_folded f ON " +
			"f.owner = a.n WHERE a.principal = p.n) ORDER BY p.n"},
	{Table: foldedTable, What: "belongs to an account that does not exist, or the amounts of all accounts do not sum to 0",
		Broken: "SELECT f.owner FROM jobs_folded f LEFT JOIN jobs_owner a ON a.n = f.owner WHERE a.n IS NULL OR " +
			"(SELECT SUM(s.amount) FROM jobs_folded s) <> 0 ORDER BY f.owner"},
	{Table: recordTable, What: "holds, pays or refunds for a job that does not exist",
		Broken: "SELECT r.n FROM jobs_record r LEFT JOIN jobs_job j ON j.n = r.job WHERE r.kind IN ('hold', 'settle', 'refund') " +
			"AND j.n IS NULL ORDER BY r.n"},
	{Table: settledTable, What: "names a record that is no payment of a job",
		Broken: "SELECT s.record FROM jobs_settled s LEFT JOIN jobs_record r ON r.n = s.record AND r.kind = 'settle' WHERE " +
			"r.n IS NULL ORDER BY s.record"},
	{Table: jobTable, What: "does not hold its budget",
		Broken: "SELECT j.n FROM jobs_job j WHERE j.budget <> (SELECT COALESCE(SUM(r.amount), 0) FROM jobs_record r WHERE " +
			"r.job = j.n AND r.kind = 'hold' AND r.payer = j.payer) ORDER BY j.n"},
	{Table: jobTable, What: "has ended, but what was paid and refunded is not what it held",
		Broken: "SELECT j.n FROM jobs_job j WHERE j.state > 0 AND j.budget <> (SELECT COALESCE(SUM(r.amount), 0) FROM " +
			"jobs_record r WHERE r.job = j.n AND (r.kind = 'settle' AND r.payee = j.payee OR r.kind = 'refund' AND " +
			"r.payee = j.payer)) ORDER BY j.n"},
	{Table: jobTable, What: "has another cost than what was paid",
		Broken: "SELECT j.n FROM jobs_job j WHERE j.cost <> (SELECT COALESCE(SUM(r.amount), 0) FROM jobs_record r WHERE " +
			"r.job = j.n AND r.kind = 'settle') ORDER BY j.n"},
	{Table: jobTable, What: "runs, but was paid or refunded",
		Broken: "SELECT j.n FROM jobs_job j WHERE j.state = 0 AND EXISTS (SELECT 1 FROM jobs_record r WHERE r.job = j.n AND " +
			"r.kind IN ('settle', 'refund')) ORDER BY j.n"},
	{Table: jobTable, What: "runs, but waits neither for its agent nor in the outbox",
		Broken: "SELECT j.n FROM jobs_job j WHERE j.state = 0 AND j.pull = 0 AND j.dispatched = 0 AND NOT EXISTS " +
			"(SELECT 1 FROM gate_outbox x WHERE x.gateway = 'jobs' AND x.lane = j.n AND x.dead = 0) ORDER BY j.n"},
	{Table: jobTable, What: "is for an agent that does not exist",
		Broken: "SELECT j.n FROM jobs_job j LEFT JOIN jobs_agent a ON a.n = j.agent WHERE a.n IS NULL ORDER BY j.n"},
	{Table: jobTable, What: "is paid from an account of another principal",
		Broken: "SELECT j.n FROM jobs_job j LEFT JOIN jobs_owner a ON a.n = j.payer AND a.principal = j.hirer WHERE a.n IS NULL ORDER BY j.n"},
	{Table: agentTable, What: "has an account that does not exist, or belongs to another principal",
		Broken: "SELECT g.n FROM jobs_agent g LEFT JOIN jobs_owner a ON a.n = g.owner AND a.principal = g.principal WHERE a.n IS NULL ORDER BY g.n"},
	{Table: agentTable, What: "has a score below 0 or above 100",
		Broken: "SELECT n FROM jobs_agent WHERE score < 0 OR score > 100000000 ORDER BY n"},
	{Table: agentTable, What: "counts other jobs than those that counted",
		Broken: "SELECT g.n FROM jobs_agent g LEFT JOIN jobs_folded_agent f ON f.agent = g.n WHERE g.successes <> " +
			"COALESCE(f.successes, 0) + (SELECT COUNT(*) FROM jobs_job j WHERE j.agent = g.n AND j.counted = 1 AND j.state = 1) OR " +
			"g.failures <> COALESCE(f.failures, 0) + (SELECT COUNT(*) FROM jobs_job j WHERE j.agent = g.n AND j.counted = 1 AND " +
			"j.state = 2) ORDER BY g.n"},
	{Table: foldedAgentTable, What: "is for an agent that does not exist",
		Broken: "SELECT f.agent FROM jobs_folded_agent f LEFT JOIN jobs_agent a ON a.n = f.agent WHERE a.n IS NULL ORDER BY f.agent"},
	{Table: requestTable, What: "is for a job that has ended, or that goes to its agent in another way",
		Broken: "SELECT r.job FROM jobs_request r LEFT JOIN jobs_job j ON j.n = r.job AND j.state = 0 AND j.pull = 2 " +
			"WHERE j.n IS NULL ORDER BY r.job"},
	{Table: jobTable, What: "runs, and has no row in jobs_request",
		Broken: "SELECT j.n FROM jobs_job j LEFT JOIN jobs_request r ON r.job = j.n WHERE j.state = 0 AND j.pull = 2 AND " +
			"r.job IS NULL ORDER BY j.n"},
	{Table: skillTable, What: "belongs to an agent that does not exist, or was deleted",
		Broken: "SELECT s.agent FROM jobs_skill s LEFT JOIN jobs_agent a ON a.n = s.agent AND a.deleted = 0 WHERE a.n IS NULL ORDER BY s.agent"},
}

// counterRelations are the rules about counters and copies. None of them has a checksum, so each of their columns must be
// in a rule.
var counterRelations = []gateway.Relation{
	{Table: countTable, What: "counts neither the records of an account nor those of a principal",
		Broken: "SELECT n FROM jobs_count WHERE kind NOT IN (1, 2) ORDER BY n"},
	{Table: countTable, What: "counts the records of an account or a principal that does not exist",
		Broken: "SELECT c.n FROM jobs_count c WHERE c.kind = 1 AND NOT EXISTS (SELECT 1 FROM jobs_owner a WHERE a.n = c.n) OR " +
			"c.kind = 2 AND NOT EXISTS (SELECT 1 FROM jobs_principal p WHERE p.n = c.n) ORDER BY c.n"},
	{Table: countTable, What: "counts other records than there are of the account",
		Broken: "SELECT c.n FROM jobs_count c WHERE c.kind = 1 AND c.records <> (SELECT COUNT(*) FROM jobs_entry e WHERE " +
			"e.owner = c.n) + (SELECT COUNT(*) FROM jobs_record b WHERE b.behalf = c.n AND b.behalf > 0 AND b.payer <> c.n AND " +
			"b.payee <> c.n) ORDER BY c.n"},
	{Table: countTable, What: "counts other records than there are of the principal",
		Broken: "SELECT c.n FROM jobs_count c LEFT JOIN (SELECT w.principal AS p, COUNT(DISTINCT s.record) AS k FROM " +
			"(SELECT owner, record FROM jobs_entry UNION ALL SELECT behalf, n FROM jobs_record WHERE behalf > 0) AS s " +
			"JOIN jobs_owner w ON w.n = s.owner GROUP BY w.principal) AS x ON x.p = c.n WHERE c.kind = 2 AND " +
			"c.records <> COALESCE(x.k, 0) ORDER BY c.n"},
	{Table: ownerTable, What: "has records that are not counted",
		Broken: "SELECT a.n FROM jobs_owner a WHERE EXISTS (SELECT 1 FROM jobs_entry e WHERE e.owner = a.n) AND (NOT EXISTS " +
			"(SELECT 1 FROM jobs_count c WHERE c.kind = 1 AND c.n = a.n) OR a.principal > 0 AND NOT EXISTS " +
			"(SELECT 1 FROM jobs_count c WHERE c.kind = 2 AND c.n = a.principal)) ORDER BY a.n"},
	{Table: agentTable, What: "stops to be online at another time than its row says",
		Broken: "SELECT n FROM jobs_agent WHERE until <> 0 AND (deleted <> 0 OR offline <> 0 OR until <> " +
			"CASE WHEN bridged <> 0 THEN heartbeat + 300000000000 WHEN heartbeat <> 0 THEN heartbeat + 90000000000 ELSE active + 86400000000000 END) ORDER BY n"},
	{Table: skillTable, What: "has another score or state than its agent",
		Broken: "SELECT s.agent FROM jobs_skill s JOIN jobs_agent a ON a.n = s.agent WHERE s.score <> a.score OR " +
			"s.online <> CASE WHEN a.until > 0 THEN 1 ELSE 0 END ORDER BY s.agent"},
	{Table: nameTable, What: "does not count the agents that have a skill of this name",
		Broken: "SELECT m.name FROM jobs_skill_name m WHERE m.agents < 1 OR m.agents <> (SELECT COUNT(*) FROM jobs_skill s WHERE " +
			"s.name = m.name) OR m.online <> (SELECT COALESCE(SUM(s.online), 0) FROM jobs_skill s WHERE s.name = m.name)"},
	{Table: skillTable, What: "has a name that is not in the list of names",
		Broken: "SELECT s.agent FROM jobs_skill s LEFT JOIN jobs_skill_name m ON m.name = s.name WHERE m.name IS NULL ORDER BY s.agent"},
	{Table: figureTable, What: "does not have the numbers of accounts, agents online and skills",
		Broken: "SELECT f.id FROM jobs_figure f WHERE f.id <> 1 OR f.accounts <> (SELECT COUNT(*) FROM jobs_owner WHERE " +
			"principal > 0) OR f.online <> (SELECT COUNT(*) FROM jobs_agent WHERE until > 0) OR f.skills <> (SELECT COUNT(*) FROM " +
			"jobs_skill_name) ORDER BY f.id"},
	{Table: ownerTable, What: "is not counted, because jobs_figure has no row",
		Broken: "SELECT a.n FROM jobs_owner a WHERE a.principal > 0 AND NOT EXISTS (SELECT 1 FROM jobs_figure f WHERE f.id = 1) ORDER BY a.n"},
}

// checkTotals reports sums that do not match the records.
func checkTotals(q relay.Querier, found func(where, what string)) error {
	count, volume := int64(0), new(big.Int)
	err := q.Query(func(scan gateway.Scanner) error {
		var kind, amount any // it may have been changed to anything
		err := scan(&kind, &amount)
		if n, ok := amount.(int64); ok && (kind == kindSettle || kind == kindTransfer) {
			volume.Add(volume, big.NewInt(n))
		}
		count++
		return err
	}, "SELECT kind, amount FROM jobs_record ORDER BY n")
	if err != nil {
		return err
	}
	if err := q.Query(func(scan gateway.Scanner) error {
		var records, sum any
		err := scan(&records, &sum)
		n, _ := records.(int64) // CheckSums reports other values
		count += n
		text, _ := sum.(string)
		if v, ok := new(big.Int).SetString(text, 10); ok {
			volume.Add(volume, v)
		}
		return err
	}, "SELECT records, volume FROM jobs_folded_total WHERE id = 1"); err != nil {
		return err
	}
	var records, sum any = int64(0), "0"
	if err := q.Query(func(scan gateway.Scanner) error { return scan(&records, &sum) },
		"SELECT records, volume FROM jobs_total WHERE id = 1"); err != nil {
		return err
	}
	if records != any(count) || sum != any(volume.String()) {
		found(fmt.Sprintf("%s %d", totalTable, 1), "does not have the sums of the records")
	}
	return nil
}
