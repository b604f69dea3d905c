package postgres

import (
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/store/postgres/schema"
)

// selection is one access path to the events of a query. The first conditions are those that an index answers.
type selection struct {
	where   []string
	args    []any // arguments of the conditions, in order
	leading columns
	sorted  bool // an index yields the events in the order of their numbers

	indexed, indexedArgs int // how many elements of where and args the index answers
}

// columns is a set of leading columns of an index.
type columns uint8

const (
	recipientColumn columns = 1 << iota
	senderColumn
	threadColumn
)

func (s *selection) add(condition string, values ...any) {
	s.where = append(s.where, condition)
	s.args = append(s.args, values...)
}

// addLeading adds a condition on a leading column of an index.
func (s *selection) addLeading(c columns, condition string, values ...any) {
	s.leading |= c
	s.add(condition, values...)
}

// order returns the ORDER BY of s. If no index has this order, the expression keeps the planner from reading the events
// in the order of their numbers, past all that do not match.
func (s *selection) order(q relay.Query) string {
	order := "seq"
	if !s.sorted {
		order = "(seq + 0)"
	}
	if q.Backward {
		order += " DESC"
	}
	return order
}

const ownThread = "(SELECT n FROM thread WHERE pair_key(client, id) = ?)"

// selectEvents returns the statement for q. For recipients, see readFor. skew is the policy's. For scanAll, see
// accessPaths. Each row begins with the last number of the store. If no event matches, there is one row whose other
// columns are null. q.After and q.Until are the limits of a range of the sequence, whatever the direction is; Until 0
// means the last number.
func selectEvents(q relay.Query, recipients []didkey.DID, skew time.Duration, scanAll bool) (text string, args []any) {
	body := "body"
	if q.Headers {
		body = "NULL::bytea AS body"
	}
	var texts []string
	for _, s := range accessPaths(q, skew, scanAll) {
		s.add("forget > h.swept")
		if recipients != nil {
			s.add("(recipient IN (SELECT id FROM party WHERE did = ANY(?)) OR recipient = 0 AND ?)", byteStrings(recipients),
				slices.Contains(recipients, ""))
		}
		texts = append(texts, "(SELECT seq, id, ts, received, expires, length(body) AS size, "+body+" FROM event WHERE "+
			strings.Join(s.where, " AND ")+" ORDER BY "+s.order(q)+" LIMIT ?)")
		args = append(append(args, s.args...), q.Limit+1)
	}
	order := "seq"
	if q.Backward {
		order = "seq DESC"
	}
	return schema.Numbered("SELECT h.last, e.* FROM head h LEFT JOIN LATERAL (SELECT * FROM (" +
		strings.Join(texts, " UNION ALL ") + ") e ORDER BY " + order + " LIMIT ?) e ON true"), append(args, q.Limit+1)
}

// selectHorizon returns the statement that finds how far q may read. The result is the number of the last event up to
// which q examines no more than q.MaxExamined events on any access path, or 0 if q may read everything. The statement
// reads only indexes.
func selectHorizon(q relay.Query, skew time.Duration, scanAll bool) (text string, args []any) {
	var texts []string
	for _, s := range accessPaths(q, skew, scanAll) {
		texts = append(texts, "(SELECT seq FROM event WHERE "+strings.Join(s.where[:s.indexed], " AND ")+
			" ORDER BY "+s.order(q)+" LIMIT 1 OFFSET ?)")
		args = append(append(args, s.args[:s.indexedArgs]...), q.MaxExamined-1)
	}
	first := "min"
	if q.Backward {
		first = "max"
	}
	return schema.Numbered("SELECT coalesce(" + first + "(seq), 0) FROM head h, LATERAL (" +
		strings.Join(texts, " UNION ALL ") + ") e"), args
}

// accessPaths returns the access paths to the events of q. No event is on two paths. scanAll means that the events with
// q's thread are too many to sort, see selectSortCount. There is then one path, along the whole sequence.
func accessPaths(q relay.Query, skew time.Duration, scanAll bool) []selection {
	var starts []func(*selection)
	switch {
	case q.Recipient != "":
		starts = append(starts, inbox(q, q.Recipient))
		if q.Broadcast {
			starts = append(starts, inbox(q, ""))
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
		s.sorted = true
		start(s)
		s.limitRange(q, skew)
		s.indexed, s.indexedArgs = len(s.where), len(s.args)
		s.filter(q)
	}
	return all
}

// inbox returns the access path to the events for one recipient; "" stands for the broadcasts.
func inbox(q relay.Query, recipient didkey.DID) func(*selection) {
	return func(s *selection) {
		if recipient == "" {
			s.addLeading(recipientColumn, "recipient = 0")
			return
		}
		s.addLeading(recipientColumn, "recipient = "+partyNumber, []byte(recipient))
	}
}

// byAudience reports whether q must be read by audience. An index on sender, thread or time would make the read pass
// over messages of others, and the time this takes would show how many there are. Two kinds of queries need no
// audience. A query for a thread and its client comes from the relay itself, on behalf of the thread's parties. A query
// for a recipient comes from that recipient.
func byAudience(q relay.Query) bool {
	return q.Viewer.Limited && q.Recipient == "" && (q.Thread == "" || q.Client == "")
}

// audiences returns how each access path to the visible events begins. No path passes over messages of others, and no
// event is on two paths.
func audiences(q relay.Query) []func(*selection) {
	all := []func(*selection){inbox(q, "")}
	if q.Viewer.DID == "" {
		return all
	}
	sent := func(s *selection) { s.addLeading(senderColumn, "sender = "+partyNumber, []byte(q.Viewer.DID)) }
	if q.Sender == q.Viewer.DID {
		return []func(*selection){sent}
	}
	all = append(all, inbox(q, q.Viewer.DID))
	if q.Sender != "" {
		return all // events sent by someone else
	}
	return append(all, sent) // filter leaves out of sent what the other paths have
}

// anyRecipient selects the events of a query that names no recipient.
func (s *selection) anyRecipient(q relay.Query) {
	switch {
	case q.Thread != "" && q.Client != "":
		s.addLeading(threadColumn, "thread = "+ownThread+" AND thread > 0", pairKey(q.Client, q.Thread))
	case q.Thread != "":
		s.sorted = false
		s.addLeading(threadColumn, "thread IN (SELECT n FROM thread WHERE id = ?) AND thread > 0", []byte(q.Thread))
	case q.Sender != "":
		s.addLeading(senderColumn, "sender = "+partyNumber, []byte(q.Sender))
	}
}

// selectSortCount returns the statement that counts the events q would have to sort, up to q.MaxExamined+1, or "" if
// q sorts nothing. The count matters because anyone can send many messages with the same thread id.
func selectSortCount(q relay.Query) (text string, args []any) {
	limit := q.MaxExamined + 1
	switch {
	case q.Recipient != "" || byAudience(q):
	case q.Thread != "" && q.Client == "":
		return "SELECT greatest((SELECT count(*) FROM (SELECT 1 FROM thread WHERE id = $1 LIMIT $2) t), " +
			"(SELECT count(*) FROM (SELECT 1 FROM (SELECT n FROM thread WHERE id = $1 LIMIT $2) t " +
			"JOIN event e ON e.thread = t.n AND e.thread > 0 LIMIT $2) e))", []any{[]byte(q.Thread), limit}
	}
	return "", nil
}

// filter adds the conditions of q that the index does not answer.
func (s *selection) filter(q relay.Query) {
	if !q.TS.IsZero() {
		s.add("ts = ?", nanos(q.TS))
	}
	switch {
	case q.Thread == "" || s.leading&threadColumn != 0:
	case q.Client != "":
		s.add("thread = "+ownThread, pairKey(q.Client, q.Thread))
	default:
		s.add("(SELECT id FROM thread t WHERE t.n = event.thread) = ?", []byte(q.Thread))
	}
	if q.Sender != "" && s.leading&senderColumn == 0 {
		s.add("sender = "+partyNumber, []byte(q.Sender))
	}
	for column, value := range q.Plain() {
		s.add(column+" = ?", []byte(value))
	}
	if s.leading&senderColumn != 0 && q.Sender == "" {
		// Exclude broadcasts and the viewer's own inbox. They are on the audience's other access paths.
		s.add("recipient <> 0 AND recipient <> "+partyNumber, []byte(q.Viewer.DID))
	}
	switch v := q.Viewer; {
	case !v.Limited:
	case v.DID == "":
		s.add("recipient = 0")
	default:
		s.add("(recipient = 0 OR recipient = "+partyNumber+" OR sender = "+partyNumber+")", []byte(v.DID), []byte(v.DID))
	}
	if !q.NewerThan.IsZero() {
		s.add("(ts > ? OR received > ?)", nanos(q.NewerThan), nanos(q.NewerThan))
	}
	switch {
	case q.Expired:
	case q.Removed:
		s.add("(expires > ? OR expires < 0)", nanos(q.Now))
	default:
		s.add("expires > ?", nanos(q.Now))
	}
}

// limitRange adds the conditions that limit the range of sequence numbers.
func (s *selection) limitRange(q relay.Query, skew time.Duration) {
	s.add("seq > ?", int64(q.After.Seq))
	s.add("seq <= h.last")
	if q.Until > 0 || q.Backward {
		s.add("seq <= ?", int64(q.Until))
	}
	if !q.NewerThan.IsZero() {
		s.add(behindNews, nanos(q.NewerThan))
	}
	if !q.TS.IsZero() {
		// An event with this ts was stored before each event that came a while later: a sender's clock differs by less than
		// skew, and the relay's clock was set back by at most StepBack.
		at, settled := nanos(q.TS), nanos(q.TS.Add(2*skew+replay.StepBack))
		s.add(untilSettled, settled)
		s.add(fromInstant, at, settled, at, at)
	}
}
