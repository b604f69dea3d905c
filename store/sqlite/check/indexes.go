package check

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// loadTail reads which events are not merged into the indexes, by their threads.
func (c *checker) loadTail() error {
	c.tail = map[int64][]int64{}
	if err := c.conn.QueryRowContext(c.ctx, "SELECT ifnull("+schema.Merged+", -1)").Scan(&c.merged); err != nil {
		return err
	}
	if c.merged < 0 || c.merged > int64(c.report.Seq) {
		c.found(Finding{"meta", fmt.Sprintf("the indexes are said to be complete up to event %d, which is not a number "+
			"given to an event", c.merged), cureDamage})
	}
	return c.each(func(scan scanner) error {
		var seq, thread int64
		err := scan(&seq, &thread)
		c.tail[thread] = append(c.tail[thread], seq)
		return err
	}, "SELECT seq, thread FROM event WHERE seq > ? ORDER BY seq", c.merged)
}

// indexes checks that each index has exactly the rows of the events up to the number that is merged. It may have further
// rows for later events, but none for an event that does not exist.
func (c *checker) indexes() error {
	if err := c.loadTail(); err != nil {
		return err
	}
	for _, x := range schema.Indexes {
		var same []string
		for column := range strings.SplitSeq(x.Columns, ", ") {
			same = append(same, "i."+column+" = e."+column)
		}
		match := strings.Join(same, " AND ")
		err := c.each(c.misindexed(x.Table, "it is missing in the index %s"),
			"SELECT e.seq FROM event e WHERE e.seq <= ? AND "+x.Condition()+
				" AND NOT EXISTS (SELECT 1 FROM "+x.Table+" i WHERE "+match+")", c.merged)
		if err != nil {
			return err
		}
		err = c.each(c.misindexed(x.Table, "the index %s has a wrong row for it"), "SELECT i.seq FROM "+x.Table+
			" i WHERE NOT EXISTS (SELECT 1 FROM event e WHERE e.seq = i.seq AND "+match+" AND "+x.Condition()+")")
		if err != nil {
			return err
		}
	}
	// The index event_sent cannot have an id twice. The other events are few.
	return c.each(c.misindexed("event_sent", "its sender has used its id before, see the index %s"),
		"SELECT e.seq FROM event e WHERE e.seq > ?1 AND (EXISTS "+
			"(SELECT 1 FROM event_sent i WHERE i.sender = e.sender AND i.id = e.id AND i.seq < e.seq) OR (e.sender, e.id) IN "+
			"(SELECT sender, id FROM event WHERE seq > ?1 GROUP BY 1, 2 HAVING count(*) > 1))",
		c.merged)
}

// misindexed returns a function that reports the event whose number it scans.
func (c *checker) misindexed(index, format string) func(scanner) error {
	return func(scan scanner) error {
		var seq int64
		err := scan(&seq)
		c.found(Finding{fmt.Sprintf("event %d", seq), fmt.Sprintf(format, index), cureDamage})
		return err
	}
}

// dues checks that Expire will look at each thread in time. It looks at threads with events that are not merged anyway.
func (c *checker) dues() error {
	return c.each(func(scan scanner) error {
		var number int64
		var id string
		err := scan(&number, &id)
		if c.tail[number] == nil {
			c.found(Finding{fmt.Sprintf("thread %d (%q)", number, id), "nothing would end or remove it when it is due",
				cureDamage})
		}
		return err
	}, "SELECT t.n, t.id FROM thread t WHERE t.n NOT IN (SELECT d.thread FROM thread_due d JOIN thread o ON o.n = d.thread "+
		"WHERE d.due <= o.due)")
}

// unmerged returns the events of threads that are not merged, as a JSON array.
func (c *checker) unmerged(threads []ledger.Row) (string, error) {
	all := []int64{}
	for _, t := range threads {
		all = append(all, c.tail[t.Number]...)
	}
	text, err := json.Marshal(all)
	return string(text), err
}
