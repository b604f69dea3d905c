package sqlite

import (
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/relay"
)

// selection collects the conditions of a statement. One of them drives it through an index; the others' columns are
// kept from the planner with a plus sign, because it has no statistics to choose by.
type selection struct {
	from   string
	where  []string
	args   []any // of the conditions, in their order
	driven bool
}

func (s *selection) add(condition string, values ...any) {
	s.where = append(s.where, condition)
	s.args = append(s.args, values...)
}

// column returns the column as a condition names it: the first may drive, later ones may not.
func (s *selection) column(name string) string {
	if s.driven {
		return "+" + name
	}
	s.driven = true
	return name
}

// Identities and threads are compared by their numbers.
const (
	partyNumber   = "(SELECT id FROM party WHERE did = ?)"
	threadNumbers = "(SELECT n FROM thread WHERE id = ?)"
	ownThread     = "(SELECT n FROM thread WHERE id = ? AND client = " + partyNumber + ")"
	// Of an event that was found otherwise. It is looked up for each, so that copies of an id take no time.
	threadID = "(SELECT id FROM thread WHERE n = event.thread)"
)

// bySender reaches a sender's events in no order.
const bySender = "event INDEXED BY sqlite_autoindex_event_1" // UNIQUE (sender, id)

const unionAll = ") UNION ALL SELECT * FROM ("

// selectEvents writes the statement for q. skew is the policy's.
func selectEvents(q relay.Query, skew time.Duration) (text string, args []any) {
	s := selection{from: "event"}
	if !q.TS.IsZero() {
		s.add(s.column("ts")+" = ?", nanos(q.TS))
		s.driven = q.Recipient == "" && !byAudience(q) // the index on ts goes on with the recipient
	}
	var ways []func(*selection) // each in its own order through its index, then merged
	switch {
	case q.Recipient != "":
		ways = append(ways, func(s *selection) { s.add(s.column("recipient")+" = "+partyNumber, string(q.Recipient)) })
		if q.Broadcast {
			ways = append(ways, func(s *selection) { s.add(s.column("recipient") + " = 0") })
		}
	case byAudience(q):
		ways = audiences(q)
	default:
		ways = append(ways, func(*selection) {})
	}
	var texts []string
	for _, way := range ways {
		one := s
		one.where, one.args = slices.Clone(s.where), slices.Clone(s.args)
		way(&one)
		one.filter(q)
		one.place(q, skew)
		texts = append(texts, one.text(q))
		args = append(args, append(one.args, q.Limit+1)...)
	}
	if len(texts) == 1 {
		return texts[0], args
	}
	return "SELECT * FROM (" + strings.Join(texts, unionAll) + ") ORDER BY 1 LIMIT ?", append(args, q.Limit+1)
}

// filter adds the conditions of q.Filter, but for the recipient's.
func (s *selection) filter(q relay.Query) {
	switch {
	case q.Thread != "" && q.Client != "":
		s.add(s.column("thread")+" = "+ownThread, q.Thread, string(q.Client))
	case q.Thread != "" && byAudience(q):
		s.add(threadID+" = ?", q.Thread)
	case q.Thread != "":
		s.add(s.column("thread")+" IN "+threadNumbers, q.Thread)
	}
	if q.Sender != "" {
		if !s.driven {
			s.from = bySender
		}
		s.add(s.column("sender")+" = "+partyNumber, string(q.Sender))
	}
	if q.Type != "" {
		s.add("+type = ?", string(q.Type))
	}
	s.visible(q.Viewer)
}

// steppedBack is how far the relay's clock may have been set back with the lower bound for Query.NewerThan holding.
const steppedBack = 20 * time.Minute

// place adds the conditions of q's place in the sequence and in time.
func (s *selection) place(q relay.Query, skew time.Duration) {
	if q.After.Seq > 0 {
		s.add("seq > ?", q.After.Seq)
	}
	s.add("seq <= ?", q.Until)
	if !q.NewerThan.IsZero() {
		// A message that arrived after NewerThan, or claims to have been sent after it, was stored behind any that was
		// sent so long before: either's clock is off by less than skew.
		s.add("seq > ifnull((SELECT seq FROM event WHERE ts <= ? ORDER BY ts DESC LIMIT 1), 0)",
			nanos(q.NewerThan.Add(-2*skew-steppedBack)))
		s.add("(+ts > ? OR +received > ?)", nanos(q.NewerThan), nanos(q.NewerThan))
	}
	if !q.Expired {
		s.add("+expires > ?", nanos(q.Now))
	}
}

// text returns the statement; its last argument is the limit.
func (s *selection) text(q relay.Query) string {
	body := "body"
	if q.Headers {
		body = "NULL"
	}
	return "SELECT seq, id, ts, received, expires, length(body), " + body + " FROM " + s.from +
		" WHERE " + strings.Join(s.where, " AND ") + " ORDER BY seq LIMIT ?"
}
