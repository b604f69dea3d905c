package sqlite

import (
	"cmp"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/sqlite/schema"
)

// selection is one access path to the events of a query. It uses one index and yields events in the query's order.
// Conditions that the index answers come first. In all other conditions the columns have a plus sign. The plus
// sign keeps SQLite's planner, which has no statistics here, from choosing another index.
type selection struct {
	index   string // table of an index; empty: the index is the sequence, or a condition has a list of numbers
	where   []string
	args    []any // arguments of the conditions, in order
	leading columns

	indexed, indexedArgs int // how many elements of where and args the index answers
}

// columns is a set of leading columns of an index.
type columns uint8

const (
	tsColumn columns = 1 << iota
	recipientColumn
	senderColumn
	threadColumn
)

// seq is the column with the number of the event.
func (s *selection) seq() string {
	return cmp.Or(s.index, "event") + ".seq"
}

// from returns the tables of the selection.
func (s *selection) from() string {
	if s.index != "" {
		return s.index + " CROSS JOIN event ON event.seq = " + s.seq()
	}
	return "event"
}

func (s *selection) add(condition string, values ...any) {
	s.where = append(s.where, condition)
	s.args = append(s.args, values...)
}

// addLeading adds a condition on a leading column of the index.
func (s *selection) addLeading(c columns, condition string, values ...any) {
	s.leading |= c
	s.add(condition, values...)
}

// Conditions compare identities and threads by their numbers.
const (
	partyNumber = "(SELECT id FROM party WHERE did = ?)"
	// threadID is the id of an event's thread. The lookup starts from an event that another condition has found. So it
	// takes no longer if many threads have the same id.
	threadID = "(SELECT id FROM thread WHERE n = event.thread)"
	// bySender selects a sender's events. The index lists them by message id, so SQLite must sort their numbers.
	bySender = "event.seq IN (SELECT seq FROM " + sentEvents + ")"
	// sentEvents are those that are merged.
	sentEvents = "event_sent WHERE sender = " + partyNumber + upToMerged
	upToMerged = " AND seq <= " + schema.Merged
)

const unionAll = ") UNION ALL SELECT * FROM ("

// selectEvents returns the statement for q. Each access path
// yields its events in order, and SQLite merges the paths without sorting. It reads a body only when its row is
// requested. q.After and q.Until are the limits of a range of the sequence, whatever the direction is. The events of the
// tail are one more access path.
func selectEvents(q *lookup) (text string, args []any) {
	all := accessPaths(q)
	if unmerged := q.unmerged(); len(unmerged) > 0 {
		var s selection
		s.add("event.seq IN "+inList, string(appendList(nil, unmerged)))
		s.add("event.seq > " + schema.Merged)
		s.filter(q)
		all = append(all, s)
	}
	body := "body"
	if q.Headers {
		body = "NULL"
	}
	order, _ := direction(q)
	var texts []string
	for _, s := range all {
		texts = append(texts, "SELECT "+s.seq()+" AS seq, event.id, event.ts, event.received, event.expires, "+
			"length(body), "+body+" FROM "+s.from()+" WHERE "+strings.Join(s.where, " AND "))
		args = append(args, s.args...)
	}
	return strings.Join(texts, " UNION ALL ") + " ORDER BY " + order + " LIMIT ?", append(args, q.Limit+1)
}

// direction returns the terms of the ORDER BY for q, and the function that returns the first of several numbers in this
// order.
func direction(q *lookup) (order, first string) {
	if q.Backward {
		return "seq DESC", "max"
	}
	return "seq", "min"
}

// selectHorizon returns the statement that finds how far q may read. The result is the number of the last event up to
// which q examines no more than q.MaxExamined events on any access path, or 0 if q may read everything. The
// statement reads only an index, or skips over rows.
func selectHorizon(q *lookup) (text string, args []any) {
	order, first := direction(q)
	var texts []string
	for _, s := range accessPaths(q) {
		texts = append(texts, "SELECT "+s.seq()+" AS seq FROM "+cmp.Or(s.index, "event")+" WHERE "+strings.Join(s.where[:s.indexed], " AND ")+
			" ORDER BY "+order+" LIMIT 1 OFFSET ?")
		args = append(args, append(s.args[:s.indexedArgs:s.indexedArgs], q.MaxExamined-1)...)
	}
	return "SELECT ifnull(" + first + "(seq), 0) FROM (SELECT * FROM (" + strings.Join(texts, unionAll) + "))", args
}

// accessPaths returns the access paths to the events of q that are merged. No event is on two paths. With q.scanAll there
// is one path, along the whole sequence, to all events.
func accessPaths(q *lookup) []selection {
	var starts []func(*selection)
	switch {
	case q.Recipient != "":
		starts = inbox(q, q.Recipient)
		if q.Broadcast {
			starts = append(starts, broadcasts(q))
		}
	case byAudience(q):
		starts = audiences(q)
	case q.scanAll:
		starts = append(starts, func(*selection) {})
	default:
		starts = append(starts, func(s *selection) { s.anyRecipient(q) })
	}
	all := make([]selection, len(starts))
	for i, start := range starts {
		s := &all[i]
		start(s)
		s.limitRange(q)
		s.indexed, s.indexedArgs = len(s.where), len(s.args)
		s.filter(q)
	}
	return all
}

// inbox returns the access paths to the events for one recipient.
func inbox(q *lookup, recipient didkey.DID) []func(*selection) {
	if !q.TS.IsZero() {
		return []func(*selection){func(s *selection) { s.atInstant(q, partyNumber, string(recipient)) }}
	}
	lead := func(index string) func(*selection) {
		return func(s *selection) {
			s.index = index
			s.addLeading(recipientColumn, index+".recipient = "+partyNumber, string(recipient))
		}
	}
	return []func(*selection){lead("event_asked"), lead("event_unasked")}
}

// broadcasts returns the access path to the events without a recipient. Such events never count against an inbox.
func broadcasts(q *lookup) func(*selection) {
	return func(s *selection) {
		if !q.TS.IsZero() {
			s.atInstant(q, "0")
			return
		}
		s.index = "event_asked"
		s.addLeading(recipientColumn, "event_asked.recipient = 0")
	}
}

// atInstant selects the events for a recipient whose ts is q.TS.
func (s *selection) atInstant(q *lookup, recipient string, values ...any) {
	s.index = "event_ts"
	s.addLeading(tsColumn, "event_ts.ts = ?", nanos(q.TS))
	s.addLeading(recipientColumn, "event_ts.recipient = "+recipient, values...)
}

// anyRecipient selects the events of a query that names no recipient. The event numbers found by ts, by thread id, or
// by sender are sorted, see selectSortCount.
func (s *selection) anyRecipient(q *lookup) {
	switch {
	case !q.TS.IsZero():
		s.addLeading(tsColumn, "event.seq IN (SELECT seq FROM event_ts WHERE ts = ?"+upToMerged+")", nanos(q.TS))
	case q.Thread != "" && q.Client != "":
		s.index = "event_thread"
		s.addLeading(threadColumn, "event_thread.thread = ?", q.thread())
	case q.Thread != "":
		s.addLeading(threadColumn, "event.seq IN (SELECT seq FROM event_thread WHERE thread IN "+inList+upToMerged+")",
			string(appendList(nil, q.threads)))
	case q.Sender != "":
		s.addLeading(senderColumn, bySender, string(q.Sender))
	}
}

// selectSortCount returns the statement that counts the events q would have to sort, up to q.MaxExamined+1, or "" if
// q sorts nothing. The count matters because anyone can send many messages with the same ts or thread id.
//
// For a reader with limited rights, the events it has sent are always sorted, however many they are. Scanning the whole
// sequence instead would show, by the time it takes, how many events others have.
func selectSortCount(q *lookup) (text string, args []any) {
	limit := q.MaxExamined + 1
	switch {
	case q.Recipient != "" || byAudience(q):
	case !q.TS.IsZero():
		return "SELECT count(*) FROM (SELECT 1 FROM event_ts WHERE ts = ? LIMIT ?)", []any{nanos(q.TS), limit}
	case q.Thread != "" && q.Client == "":
		return "SELECT max(?, (SELECT count(*) FROM (SELECT 1 FROM event_thread WHERE thread IN " + inList + " LIMIT ?)))",
			[]any{len(q.threads), string(appendList(nil, q.threads)), limit}
	case q.Thread == "" && q.Sender != "":
		return "SELECT count(*) FROM (SELECT 1 FROM " + sentEvents + " LIMIT ?)", []any{string(q.Sender), limit}
	}
	return "", nil
}

// filter adds the conditions of q that the index does not answer.
func (s *selection) filter(q *lookup) {
	if !q.TS.IsZero() && s.leading&tsColumn == 0 {
		s.add("+event.ts = ?", nanos(q.TS))
	}
	if q.Recipient != "" && s.leading&recipientColumn == 0 {
		if q.Broadcast {
			s.add("(+event.recipient = 0 OR +event.recipient = "+partyNumber+")", string(q.Recipient))
		} else {
			s.add("+event.recipient = "+partyNumber, string(q.Recipient))
		}
	}
	switch {
	case q.Thread == "" || s.leading&threadColumn != 0:
	case q.Client != "":
		s.add("+event.thread = ?", q.thread())
	default:
		s.add(threadID+" = ?", q.Thread)
	}
	if q.Sender != "" && s.leading&senderColumn == 0 {
		s.add("+event.sender = "+partyNumber, string(q.Sender))
	}
	for column, value := range q.Plain() {
		s.add("+event."+column+" = ?", value)
	}
	if s.leading&senderColumn != 0 && q.Sender == "" {
		// Exclude broadcasts and the viewer's own inbox. They are on the audience's other access paths.
		s.add("+event.recipient NOT IN (0, ifnull("+partyNumber+", 0))", string(q.Viewer.DID))
	}
	s.visible(q.Viewer)
	if !q.NewerThan.IsZero() {
		s.add("(+event.ts > ? OR +event.received > ?)", nanos(q.NewerThan), nanos(q.NewerThan))
	}
	switch {
	case q.Expired:
	case q.Removed:
		s.add("+event.expires NOT BETWEEN 0 AND ?", nanos(q.Now))
	default:
		s.add("+event.expires > ?", nanos(q.Now))
	}
}

// limitRange adds the conditions that limit the range of sequence numbers.
func (s *selection) limitRange(q *lookup) {
	if q.After.Seq > 0 {
		s.add(s.seq()+" > ?", q.After.Seq)
	}
	if s.index != "" {
		s.add(s.seq()+" <= min(?, "+schema.Merged+")", q.Until)
	} else {
		s.add(s.seq()+" <= ?", q.Until)
	}
	if !q.NewerThan.IsZero() {
		// An event with a ts at or before this bound was stored before every event whose ts or arrival is after
		// NewerThan: a sender's clock differs by less than skew, and the relay's clock was set back by at most
		// StepBack. So the search starts behind the newest such event.
		s.add(s.seq()+" > ifnull((SELECT seq FROM event_ts WHERE ts <= ? ORDER BY ts DESC LIMIT 1), 0)",
			nanos(q.NewerThan.Add(-2*q.skew-replay.StepBack)))
	}
}
