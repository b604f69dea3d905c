package jobs

import (
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/relay"
)

// This file keeps the counters from which answers take their totals. An answer that counted the rows would take longer
// the more of them there are.

// The tables of the counters.
const (
	countTable  = "jobs_count"
	figureTable = "jobs_figure"
	nameTable   = "jobs_skill_name"
)

// The kinds of rows in jobs_count.
const (
	countOfAccount   = 1
	countOfPrincipal = 2
)

// countRecord counts a record that is new (by = 1) or removed (by = -1), for its accounts and their principals. If an
// account or a principal takes part twice, the record still counts once for it.
func countRecord(tx relay.ExtTx, r record, by int64) error {
	type counter struct{ kind, n int64 }
	seen := map[counter]bool{}
	for _, number := range []int64{r.payer, r.payee, r.behalf} {
		if number == 0 || seen[counter{countOfAccount, number}] {
			continue
		}
		a, err := ownerByNumber(tx, number)
		if err != nil {
			return err
		}
		for _, c := range []counter{{countOfAccount, a.n}, {countOfPrincipal, a.principal}} {
			if c.n == 0 || seen[c] {
				continue
			}
			seen[c] = true
			if err := gateway.Exec(tx, "INSERT INTO jobs_count (kind, n, records) VALUES (?, ?, ?) ON CONFLICT (kind, n) "+
				"DO UPDATE SET records = jobs_count.records + excluded.records", c.kind, c.n, by); err != nil {
				return err
			}
		}
	}
	return nil
}

// counted returns how many records there are of an account or a principal.
func counted(q relay.Querier, kind, n int64) (int64, error) {
	return gateway.Number(q, "SELECT records FROM jobs_count WHERE kind = ? AND n = ?", kind, n)
}

// figures are the totals of GET /health, GET /skills and GET /economy.
type figures struct{ accounts, online, skills int64 }

// maxLapsed is how many agents readFigures looks at that have just stopped to be online.
const maxLapsed = 1000

// readFigures returns the figures at a time. Agents that have stopped to be online are not counted, although their rows
// may change a second later.
func readFigures(q relay.Querier, now int64) (f figures, err error) {
	if err = q.Query(func(scan gateway.Scanner) error { return scan(&f.accounts, &f.online, &f.skills) },
		"SELECT accounts, online, skills FROM jobs_figure WHERE id = 1"); err != nil {
		return f, err
	}
	lapsed, err := gateway.Number(q, "SELECT COUNT(*) FROM (SELECT until FROM jobs_agent WHERE until > 0 AND until <= ? "+
		"LIMIT ?) AS lapsed", now, maxLapsed)
	f.online -= lapsed
	return f, err
}

func addFigures(tx relay.ExtTx, f figures) error {
	if f == (figures{}) {
		return nil
	}
	return gateway.Exec(tx, "INSERT INTO jobs_figure (id, accounts, online, skills) VALUES (1, ?, ?, ?) ON CONFLICT (id) DO "+
		"UPDATE SET accounts = jobs_figure.accounts + excluded.accounts, online = jobs_figure.online + excluded.online, "+
		"skills = jobs_figure.skills + excluded.skills", f.accounts, f.online, f.skills)
}

// relist changes the copies of an agent's score and state in the rows of its skills, and counts it if it has become
// online, or is no longer.
func relist(tx relay.ExtTx, agent int64, s score, online, before bool) error {
	if err := gateway.Exec(tx, "UPDATE jobs_skill SET score = ?, online = ? WHERE agent = ?", int64(s), flag(online),
		agent); err != nil {
		return err
	}
	change := flag(online) - flag(before)
	if change == 0 {
		return nil
	}
	if err := gateway.Exec(tx, "UPDATE jobs_skill_name SET online = online + ? WHERE name IN (SELECT name FROM jobs_skill "+
		"WHERE agent = ?)", change, agent); err != nil {
		return err
	}
	return addFigures(tx, figures{online: change})
}

// listed returns the score and the state of an agent as the rows of its skills have them.
func listed(q relay.Querier, agent int64) (s score, online bool, err error) {
	until := int64(0)
	err = q.Query(func(scan gateway.Scanner) error { return scan(&s, &until) },
		"SELECT score, until FROM jobs_agent WHERE n = ?", agent)
	return s, until > 0, err
}

// nameSkill counts one more agent that has a skill of this name.
func nameSkill(tx relay.ExtTx, name string, online bool) error {
	n, err := tx.Exec("UPDATE jobs_skill_name SET agents = agents + 1, online = online + ? WHERE name = ?", flag(online), name)
	if err != nil || n > 0 {
		return err
	}
	if err := gateway.Exec(tx, "INSERT INTO jobs_skill_name (name, agents, online) VALUES (?, 1, ?)", name, flag(online)); err != nil {
		return err
	}
	return addFigures(tx, figures{skills: 1})
}

// unnameSkills counts one agent less for each of its skills. It forgets the names that no agent has any more.
func unnameSkills(tx relay.ExtTx, agent int64, online bool) error {
	if err := gateway.Exec(tx, "UPDATE jobs_skill_name SET agents = agents - 1, online = online - ? WHERE name IN "+
		"(SELECT name FROM jobs_skill WHERE agent = ?)", flag(online), agent); err != nil {
		return err
	}
	unused, err := tx.Exec("DELETE FROM jobs_skill_name WHERE agents = 0")
	if err != nil {
		return err
	}
	return addFigures(tx, figures{skills: -unused})
}

// lapse takes some agents off the lists that have stopped to be online. more reports whether there may be others.
func lapse(o *gateway.Op, most int) (more bool, err error) {
	numbers, err := gateway.Numbers(o, "SELECT n FROM jobs_agent WHERE until > 0 AND until <= ? ORDER BY until, n LIMIT ?", o.Now, most)
	for _, n := range numbers {
		if err != nil {
			break
		}
		var s score
		if s, _, err = listed(o, n); err != nil {
			break
		}
		if err = gateway.Exec(o.ExtTx, "UPDATE jobs_agent SET until = 0 WHERE n = ?", n); err == nil {
			err = relist(o.ExtTx, n, s, false, true)
		}
	}
	return len(numbers) == most, err
}
