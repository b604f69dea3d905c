package sqlite

import (
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
)

// selection is one access path to the events of a query. It uses one index and yields events in the query's order.
// Conditions that the index answers come first. In all other conditions the columns have a plus sign. The plus
// sign keeps SQLite's planner, which has no statistics here, from choosing another index.
type selection struct {
	from    string
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
	ownThread   = "(" + threadOfClient + ")"
	// threadID is the id of an event's thread. The lookup starts from an event that another condition has found. So it
	// takes no longer if many threads have the same id.
	threadID = "(SELECT id FROM thread WHERE n = event.thread)"
	// bySender selects a sender's events. The index lists them by message id, so SQLite must sort their numbers.
	bySender = "seq IN (SELECT seq FROM " + sentEvents + ")"
	// sentEvents uses the index of UNIQUE (sender, id).
	sentEvents = "event INDEXED BY sqlite_autoindex_event_1 WHERE sender = " + partyNumber
)

// timeIndex names the index explicitly, because SQLite's planner would rather scan a range of a whole inbox.
const timeIndex = "event INDEXED BY event_by_ts"

const unionAll = ") UNION ALL SELECT * FROM ("

// selectEvents returns the statement for q. skew is the policy's; scanAll is explained at accessPaths. Each access path
// yields its events in order, and SQLite merges the paths without sorting. It reads a body only when its row is
// requested. q.After and q.Until are the limits of a range of the sequence, whatever the direction is.
func selectEvents(q relay.Query, skew time.Duration, scanAll bool) (text string, args []any) {
	all := accessPaths(q, skew, scanAll)
	body := "body"
	if q.Headers {
		body = "NULL"
	}
	order, _ := direction(q)
	var texts []string
	for _, s := range all {
		texts = append(texts, "SELECT seq, id, ts, received, expires, length(body), "+body+" FROM "+s.from+
			" WHERE "+strings.Join(s.where, " AND "))
		args = append(args, s.args...)
	}
	return strings.Join(texts, " UNION ALL ") + " ORDER BY " + order + " LIMIT ?", append(args, q.Limit+1)
}

// direction returns the terms of the ORDER BY for q, and the function that returns the first of several numbers in this
// order.
func direction(q relay.Query) (order, first string) {
	if q.Backward {
		return "seq DESC", "max"
	}
	return "seq", "min"
}

// selectHorizon returns the statement that finds how far q may read. The result is the number of the last event up to
// which q examines no more than q.MaxExamined events on any access path, or 0 if q may read everything. The
// statement reads only an index, or skips over rows.
func selectHorizon(q relay.Query, skew time.Duration, scanAll bool) (text string, args []any) {
	order, first := direction(q)
	var texts []string
	for _, s := range accessPaths(q, skew, scanAll) {
		texts = append(texts, "SELECT seq FROM "+s.from+" WHERE "+strings.Join(s.where[:s.indexed], " AND ")+
			" ORDER BY "+order+" LIMIT 1 OFFSET ?")
		args = append(args, append(s.args[:s.indexedArgs:s.indexedArgs], q.MaxExamined-1)...)
	}
	return "SELECT ifnull(" + first + "(seq), 0) FROM (SELECT * FROM (" + strings.Join(texts, unionAll) + "))", args
}

// accessPaths returns the access paths to the events of q. No event is on two paths. scanAll means that the events with
// q's TS, thread or sender are too many to sort, see selectSortCount. There is then one path, along the whole sequence.
func accessPaths(q relay.Query, skew time.Duration, scanAll bool) []selection {
	var starts []func(*selection)
	switch {
	case q.Recipient != "":
		starts = inbox(q, q.Recipient)
		if q.Broadcast {
			starts = append(starts, broadcasts(q))
		}
	case byAudience(q):
		starts = audiences(q)
	case scanAll:
		starts = append(starts, func(*selection) {})
	default:
		starts = append(starts, func(s *selection) { s.anyRecipient(q) })
	}
	all := make([]selection, len(starts))
	for i, start := range starts {
		s := &all[i]
		s.from = "event"
		start(s)
		s.limitRange(q, skew)
		s.indexed, s.indexedArgs = len(s.where), len(s.args)
		s.filter(q)
	}
	return all
}

// inbox returns the access paths to the events for one recipient.
func inbox(q relay.Query, recipient didkey.DID) []func(*selection) {
	if !q.TS.IsZero() {
		return []func(*selection){func(s *selection) { s.atInstant(q, partyNumber, string(recipient)) }}
	}
	lead := func(index, condition string) func(*selection) {
		return func(s *selection) {
			s.from = "event INDEXED BY " + index
			s.addLeading(recipientColumn, "recipient = "+partyNumber, string(recipient))
			s.add(condition)
		}
	}
	return []func(*selection){lead("event_asked", "charged = 0"), lead("event_unasked", "charged > 0")}
}

// broadcasts returns the access path to the events without a recipient. Such events never count against an inbox.
func broadcasts(q relay.Query) func(*selection) {
	return func(s *selection) {
		if !q.TS.IsZero() {
			s.atInstant(q, "0")
			return
		}
		s.from = "event INDEXED BY event_asked"
		s.addLeading(recipientColumn, "recipient = 0")
		s.add("charged = 0")
	}
}

// atInstant selects the events for a recipient whose ts is q.TS.
func (s *selection) atInstant(q relay.Query, recipient string, values ...any) {
	s.from = timeIndex
	s.addLeading(tsColumn, "ts = ?", nanos(q.TS))
	s.addLeading(recipientColumn, "recipient = "+recipient, values...)
}

// anyRecipient selects the events of a query that names no recipient. The event numbers found by ts, by thread id, or
// by sender are sorted, see selectSortCount.
func (s *selection) anyRecipient(q relay.Query) {
	switch {
	case !q.TS.IsZero():
		s.addLeading(tsColumn, "seq IN (SELECT seq FROM event WHERE ts = ?)", nanos(q.TS))
	case q.Thread != "" && q.Client != "":
		s.addLeading(threadColumn, "thread = "+ownThread, q.Thread, string(q.Client))
	case q.Thread != "":
		s.addLeading(threadColumn, "seq IN (SELECT seq FROM event WHERE thread IN ("+threadsWithID+"))", q.Thread)
	case q.Sender != "":
		s.addLeading(senderColumn, bySender, string(q.Sender))
	}
}

// selectSortCount returns the statement that counts the events q would have to sort, up to q.MaxExamined+1, or "" if
// q sorts nothing. The count matters because anyone can send many messages with the same ts or thread id.
//
// For a reader with limited rights, the events it has sent are always sorted, however many they are. Scanning the whole
// sequence instead would show, by the time it takes, how many events others have.
func selectSortCount(q relay.Query) (text string, args []any) {
	limit := q.MaxExamined + 1
	switch {
	case q.Recipient != "" || byAudience(q):
	case !q.TS.IsZero():
		return "SELECT count(*) FROM (SELECT 1 FROM event WHERE ts = ? LIMIT ?)", []any{nanos(q.TS), limit}
	case q.Thread != "" && q.Client == "":
		return "SELECT max((SELECT count(*) FROM (SELECT 1 FROM thread_role WHERE id = ?1 AND party = '' LIMIT ?2)), " +
			"(SELECT count(*) FROM (SELECT 1 FROM event WHERE thread IN " +
			"(SELECT thread FROM thread_role WHERE id = ?1 AND party = '' LIMIT ?2) LIMIT ?2)))", []any{q.Thread, limit}
	case q.Thread == "" && q.Sender != "":
		return "SELECT count(*) FROM (SELECT 1 FROM " + sentEvents + " LIMIT ?)", []any{string(q.Sender), limit}
	}
	return "", nil
}

// filter adds the conditions of q that the index does not answer.
func (s *selection) filter(q relay.Query) {
	if !q.TS.IsZero() && s.leading&tsColumn == 0 {
		s.add("+ts = ?", nanos(q.TS))
	}
	switch {
	case q.Thread == "" || s.leading&threadColumn != 0:
	case q.Client != "":
		s.add("+thread = "+ownThread, q.Thread, string(q.Client))
	default:
		s.add(threadID+" = ?", q.Thread)
	}
	if q.Sender != "" && s.leading&senderColumn == 0 {
		s.add("+sender = "+partyNumber, string(q.Sender))
	}
	for column, value := range q.Plain() {
		s.add("+"+column+" = ?", value)
	}
	if s.leading&senderColumn != 0 && q.Sender == "" {
		// Exclude broadcasts and the viewer's own inbox. They are on the audience's other access paths.
		s.add("+recipient NOT IN (0, ifnull("+partyNumber+", 0))", string(q.Viewer.DID))
	}
	s.visible(q.Viewer)
	if !q.NewerThan.IsZero() {
		s.add("(+ts > ? OR +received > ?)", nanos(q.NewerThan), nanos(q.NewerThan))
	}
	switch {
	case q.Expired:
	case q.Removed:
		s.add("+expires NOT BETWEEN 0 AND ?", nanos(q.Now))
	default:
		s.add("+expires > ?", nanos(q.Now))
	}
}

// limitRange adds the conditions that limit the range of sequence numbers.
func (s *selection) limitRange(q relay.Query, skew time.Duration) {
	if q.After.Seq > 0 {
		s.add("seq > ?", q.After.Seq)
	}
	s.add("seq <= ?", q.Until)
	if !q.NewerThan.IsZero() {
		// An event with a ts at or before this bound was stored before every event whose ts or arrival is after
		// NewerThan: a sender's clock differs by less than skew, and the relay's clock was set back by at most
		// StepBack. So the search starts behind the newest such event.
		s.add("seq > ifnull((SELECT seq FROM event WHERE ts <= ? ORDER BY ts DESC LIMIT 1), 0)",
			nanos(q.NewerThan.Add(-2*skew-replay.StepBack)))
	}
}
