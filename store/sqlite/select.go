package sqlite

import (
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
)

// selection is one way to a query's events: through one index, in the order of the sequence. The conditions that the
// index answers come first. The columns of the others have a plus sign, which keeps the planner, who has no statistics
// to choose by, from using another index.
type selection struct {
	from  string
	where []string
	args  []any // of the conditions, in their order
	leads columns

	indexed, indexedArgs int // how many of where and args the index answers
}

// columns is a set of the columns that an index begins with.
type columns uint8

const (
	tsColumn columns = 1 << iota
	recipientColumn
	senderColumn
	threadColumn
)

func (s *selection) add(condition string, values ...any) {
	s.where = append(s.where, condition)
	s.args = append(s.args, values...)
}

// lead adds a condition on a column that the index begins with.
func (s *selection) lead(c columns, condition string, values ...any) {
	s.leads |= c
	s.add(condition, values...)
}

// Identities and threads are compared by their numbers.
const (
	partyNumber = "(SELECT id FROM party WHERE did = ?)"
	ownThread   = "(" + threadOfClient + ")"
	// Of an event that was found otherwise. It is looked up for each, so that copies of an id take no time.
	threadID = "(SELECT id FROM thread WHERE n = event.thread)"
	// The index has a sender's events by their ids, so their numbers are sorted.
	bySender = "seq IN (SELECT seq FROM " + sentEvents + ")"
	// UNIQUE (sender, id) made the index.
	sentEvents = "event INDEXED BY sqlite_autoindex_event_1 WHERE sender = " + partyNumber
)

// byInstant has to be said: the planner would rather go through a stretch of a whole inbox.
const byInstant = "event INDEXED BY event_by_ts"

const unionAll = ") UNION ALL SELECT * FROM ("

// selectEvents writes the statement for q. skew is the policy's; wide is as for ways. SQLite merges several ways, each of
// which is in order, so nothing is sorted, and a body is read only when its row is asked for.
func selectEvents(q relay.Query, skew time.Duration, wide bool) (text string, args []any) {
	all := ways(q, skew, wide)
	body := "body"
	if q.Headers {
		body = "NULL"
	}
	var texts []string
	for _, s := range all {
		texts = append(texts, "SELECT seq, id, ts, received, expires, length(body), "+body+" FROM "+s.from+
			" WHERE "+strings.Join(s.where, " AND "))
		args = append(args, s.args...)
	}
	return strings.Join(texts, " UNION ALL ") + " ORDER BY seq LIMIT ?", append(args, q.Limit+1)
}

// selectHorizon writes the statement that finds the event up to which q looks at no more than q.Look events on any of
// its ways; 0: all of them. It reads an index only, or skips rows.
func selectHorizon(q relay.Query, skew time.Duration, wide bool) (text string, args []any) {
	var texts []string
	for _, s := range ways(q, skew, wide) {
		texts = append(texts, "SELECT seq FROM "+s.from+" WHERE "+strings.Join(s.where[:s.indexed], " AND ")+
			" ORDER BY seq LIMIT 1 OFFSET ?")
		args = append(args, append(s.args[:s.indexedArgs:s.indexedArgs], q.Look-1)...)
	}
	return "SELECT ifnull(min(seq), 0) FROM (SELECT * FROM (" + strings.Join(texts, unionAll) + "))", args
}

// ways returns the ways to q's events. No event is on two of them. wide says that the events of q's instant, thread or
// sender are too many to be sorted, see crowd: then there is one way, along the whole sequence.
func ways(q relay.Query, skew time.Duration, wide bool) []selection {
	var starts []func(*selection)
	switch {
	case q.Recipient != "":
		starts = inbox(q, q.Recipient)
		if q.Broadcast {
			starts = append(starts, broadcasts(q))
		}
	case byAudience(q):
		starts = audiences(q)
	case wide:
		starts = append(starts, func(*selection) {})
	default:
		starts = append(starts, func(s *selection) { s.any(q) })
	}
	all := make([]selection, len(starts))
	for i, start := range starts {
		s := &all[i]
		s.from = "event"
		start(s)
		s.place(q, skew)
		s.indexed, s.indexedArgs = len(s.where), len(s.args)
		s.filter(q)
	}
	return all
}

// inbox returns the ways to the events for one recipient.
func inbox(q relay.Query, recipient didkey.DID) []func(*selection) {
	if !q.TS.IsZero() {
		return []func(*selection){func(s *selection) { s.instant(q, partyNumber, string(recipient)) }}
	}
	lead := func(index, condition string) func(*selection) {
		return func(s *selection) {
			s.from = "event INDEXED BY " + index
			s.lead(recipientColumn, "recipient = "+partyNumber, string(recipient))
			s.add(condition)
		}
	}
	return []func(*selection){lead("event_asked", "charged = 0"), lead("event_unasked", "charged > 0")}
}

// broadcasts leads through the events without a recipient. None of them counts against an inbox.
func broadcasts(q relay.Query) func(*selection) {
	return func(s *selection) {
		if !q.TS.IsZero() {
			s.instant(q, "0")
			return
		}
		s.from = "event INDEXED BY event_asked"
		s.lead(recipientColumn, "recipient = 0")
		s.add("charged = 0")
	}
}

// instant leads through the events of q's instant for a recipient.
func (s *selection) instant(q relay.Query, recipient string, values ...any) {
	s.from = byInstant
	s.lead(tsColumn, "ts = ?", nanos(q.TS))
	s.lead(recipientColumn, "recipient = "+recipient, values...)
}

// any leads through the events of q, which names no recipient. The numbers of those of an instant, of a thread's id and
// of a sender are sorted, see crowd.
func (s *selection) any(q relay.Query) {
	switch {
	case !q.TS.IsZero():
		s.lead(tsColumn, "seq IN (SELECT seq FROM event WHERE ts = ?)", nanos(q.TS))
	case q.Thread != "" && q.Client != "":
		s.lead(threadColumn, "thread = "+ownThread, q.Thread, string(q.Client))
	case q.Thread != "":
		s.lead(threadColumn, "seq IN (SELECT seq FROM event WHERE thread IN ("+threadsWithID+"))", q.Thread)
	case q.Sender != "":
		s.lead(senderColumn, bySender, string(q.Sender))
	}
}

// crowd writes the statement that counts what q would have to sort, up to q.Look and one more; "" if nothing. Anybody
// can copy an instant or a thread's id as often as he likes. What a reader who may not see everything has sent himself is
// sorted however much it is: the whole sequence would tell him how much others have.
func crowd(q relay.Query) (text string, args []any) {
	most := q.Look + 1
	switch {
	case q.Recipient != "" || byAudience(q):
	case !q.TS.IsZero():
		return "SELECT count(*) FROM (SELECT 1 FROM event WHERE ts = ? LIMIT ?)", []any{nanos(q.TS), most}
	case q.Thread != "" && q.Client == "":
		return "SELECT max((SELECT count(*) FROM (SELECT 1 FROM thread_role WHERE id = ?1 AND party = '' LIMIT ?2)), " +
			"(SELECT count(*) FROM (SELECT 1 FROM event WHERE thread IN " +
			"(SELECT thread FROM thread_role WHERE id = ?1 AND party = '' LIMIT ?2) LIMIT ?2)))", []any{q.Thread, most}
	case q.Thread == "" && q.Sender != "":
		return "SELECT count(*) FROM (SELECT 1 FROM " + sentEvents + " LIMIT ?)", []any{string(q.Sender), most}
	}
	return "", nil
}

// filter adds the conditions of q that its index does not answer.
func (s *selection) filter(q relay.Query) {
	if !q.TS.IsZero() && s.leads&tsColumn == 0 {
		s.add("+ts = ?", nanos(q.TS))
	}
	switch {
	case q.Thread == "" || s.leads&threadColumn != 0:
	case q.Client != "":
		s.add("+thread = "+ownThread, q.Thread, string(q.Client))
	default:
		s.add(threadID+" = ?", q.Thread)
	}
	if q.Sender != "" && s.leads&senderColumn == 0 {
		s.add("+sender = "+partyNumber, string(q.Sender))
	}
	if q.Type != "" {
		s.add("+type = ?", string(q.Type))
	}
	if s.leads&senderColumn != 0 && q.Sender == "" {
		// Those are on the audience's other ways.
		s.add("+recipient NOT IN (0, ifnull("+partyNumber+", 0))", string(q.Viewer.DID))
	}
	s.visible(q.Viewer)
	if !q.NewerThan.IsZero() {
		s.add("(+ts > ? OR +received > ?)", nanos(q.NewerThan), nanos(q.NewerThan))
	}
	if !q.Expired {
		s.add("+expires > ?", nanos(q.Now))
	}
}

// place adds the conditions of q's place in the sequence.
func (s *selection) place(q relay.Query, skew time.Duration) {
	if q.After.Seq > 0 {
		s.add("seq > ?", q.After.Seq)
	}
	s.add("seq <= ?", q.Until)
	if !q.NewerThan.IsZero() {
		// An event that is newer than NewerThan, by its arrival or by its ts, was stored behind every event with a ts so
		// long before: each sender's clock is off by less than skew, the relay's was set back by StepBack at most.
		s.add("seq > ifnull((SELECT seq FROM event WHERE ts <= ? ORDER BY ts DESC LIMIT 1), 0)",
			nanos(q.NewerThan.Add(-2*skew-replay.StepBack)))
	}
}
