package check

import (
	"encoding/json"
	"fmt"

	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// role is a row of the table thread_role of one thread: a party and its role.
type role struct {
	Party string `json:"party"`
	Role  int    `json:"role"`
}

// roles returns the rows that a thread must have in the table thread_role.
func roles(row ledger.Row, t *ledger.Thread) []role {
	all := []role{{"", schema.OwnRole(row.Open)}, {string(row.Client), schema.RoleClient}}
	for _, did := range t.Participants() {
		all = append(all, role{string(did), schema.RolePartner})
	}
	if t.Agent != "" {
		all = append(all, role{string(t.Agent), schema.RoleWorker})
	}
	return all
}

// roles checks that searches by id and party find each thread, and no threads that do not exist.
func (c *checker) roles() error {
	wrong := func(where, what string) { c.found(Finding{where, what, cureDamage}) }
	err := c.eachThread(func(row ledger.Row) error {
		if c.tail[row.Number] != nil {
			return nil // its roles may still be missing
		}
		t, err := row.Decode()
		if err != nil {
			return nil // reported with the thread
		}
		text, err := json.Marshal(roles(row, t))
		if err != nil {
			return err
		}
		return c.each(func(scan scanner) error {
			var party string
			if err := scan(&party); err != nil {
				return err
			}
			wrong(where(row), fmt.Sprintf("it is not found by its id and the party %q", party))
			return nil
		}, "SELECT value ->> 'party' FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM thread_role r "+
			"WHERE r.id = ? AND r.party = value ->> 'party' AND r.role = value ->> 'role' AND r.thread = ?)",
			string(text), row.ID, row.Number)
	})
	if err != nil {
		return err
	}
	err = c.each(func(scan scanner) error {
		var number int64
		var id string
		err := scan(&number, &id)
		wrong(fmt.Sprintf("thread %d (%q)", number, id), "it is found by its id, but it does not exist")
		return err
	}, "SELECT DISTINCT r.thread, r.id FROM thread_role r LEFT JOIN thread t ON t.n = r.thread WHERE t.id IS NOT r.id")
	if err != nil {
		return err
	}
	return c.each(func(scan scanner) error {
		var id, client string
		err := scan(&id, &client)
		wrong(fmt.Sprintf("thread %q", id), fmt.Sprintf("%s has several threads with this id", client))
		return err
	}, fmt.Sprintf("SELECT id, party FROM thread_role WHERE role = %d GROUP BY id, party HAVING count(*) > 1",
		schema.RoleClient))
}

// eachThread calls f for every row of the table thread. It holds few rows in memory at a time.
func (c *checker) eachThread(f func(ledger.Row) error) error {
	for last := int64(0); ; {
		some, err := c.threadsAfter(last)
		if err != nil || len(some) == 0 {
			return err
		}
		if last, err = advance(last, some[len(some)-1].Number); err != nil {
			return err
		}
		for _, row := range some {
			if err := f(row); err != nil {
				return err
			}
		}
	}
}
