package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

func (s *Store) cursor(seq relay.Seq) relay.Cursor { return relay.Cursor{Epoch: s.epoch, Seq: seq} }

// Read implements relay.Store.
func (s *Store) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	// Taken before the query, which therefore sees everything up to it. It may see more, committed but not announced
	// yet; that is left out, so that no cursor is handed out that a Read right behind it would not know.
	head := relay.Seq(s.head.Load())
	if q.After != (relay.Cursor{}) && (q.After.Epoch != s.epoch || q.After.Seq > head) {
		return relay.Page{}, relay.ErrUnknownCursor
	}
	page := relay.Page{Cursor: s.cursor(head)}
	if q.Limit <= 0 {
		return page, nil
	}
	if q.Until <= 0 || q.Until > head {
		q.Until = head
	}
	text, args := selectEvents(q, s.policy.Window.Skew)
	rows, err := s.query(ctx, text, args)
	if err != nil {
		return relay.Page{}, err
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		var e relay.Event
		var ts, received, expires int64
		if err := rows.Scan(&e.Seq, &e.ID, &ts, &received, &expires, &e.Size, &e.Body); err != nil {
			return relay.Page{}, err
		}
		size += e.Size
		if len(page.Events) == q.Limit || q.MaxBytes > 0 && len(page.Events) > 0 && size > q.MaxBytes {
			page.More = true
			break
		}
		e.TS, e.Received, e.Expires = instant(ts), instant(received), instant(expires)
		page.Events = append(page.Events, e)
	}
	if page.More {
		page.Cursor.Seq = page.Events[len(page.Events)-1].Seq
	}
	return page, rows.Err()
}

// steppedBack is how far the relay's clock may have been set back with Read's lower bound for Query.NewerThan holding.
const steppedBack = 20 * time.Minute

// selectEvents writes the statement for q. One condition drives it through an index; the others are kept from the
// planner with a plus sign, because it has no statistics to choose by. skew is the policy's.
func selectEvents(q relay.Query, skew time.Duration) (text string, args []any) {
	var where []string
	add := func(condition string, values ...any) {
		where = append(where, condition)
		args = append(args, values...)
	}
	const party, threads = "(SELECT id FROM party WHERE did = ?)", "(SELECT n FROM thread WHERE id = ?)"
	from, driven := "event", false
	drive := func(column string) string {
		if driven {
			return "+" + column
		}
		driven = true
		return column
	}
	if !q.TS.IsZero() {
		add(drive("ts")+" = ?", nanos(q.TS))
		driven = q.Recipient == "" // the index on ts goes on with the recipient
	}
	recipient := -1 // where in args it stands
	if q.Recipient != "" {
		add(drive("recipient")+" = "+party, string(q.Recipient))
		recipient = len(where) - 1
	}
	if q.Thread != "" && q.Client != "" {
		add(drive("thread")+" = (SELECT n FROM thread WHERE id = ? AND client = "+party+")", q.Thread, string(q.Client))
	} else if q.Thread != "" {
		add(drive("thread")+" IN "+threads, q.Thread)
	}
	if q.Sender != "" {
		if !driven {
			from = "event INDEXED BY sqlite_autoindex_event_1" // UNIQUE (sender, id)
		}
		add(drive("sender")+" = "+party, string(q.Sender))
	}
	if q.Type != "" {
		add("+type = ?", slices.Index(envelope.Types(), q.Type))
	}
	if q.After.Seq > 0 {
		add("seq > ?", q.After.Seq)
	}
	add("seq <= ?", q.Until)
	if !q.NewerThan.IsZero() {
		// A message that arrived after NewerThan, or claims to have been sent after it, was stored behind any that was
		// sent so long before: either's clock is off by less than skew.
		add("seq > ifnull((SELECT seq FROM event WHERE ts <= ? ORDER BY ts DESC LIMIT 1), 0)",
			nanos(q.NewerThan.Add(-2*skew-steppedBack)))
		add("(+ts > ? OR +received > ?)", nanos(q.NewerThan), nanos(q.NewerThan))
	}
	if !q.Expired {
		add("+expires > ?", nanos(q.Now))
	}
	body := "body"
	if q.Headers {
		body = "NULL"
	}
	limit := q.Limit + 1
	one := func(where []string) string {
		return "SELECT seq, id, ts, received, expires, length(body), " + body + " FROM " + from +
			" WHERE " + strings.Join(where, " AND ") + " ORDER BY seq LIMIT ?"
	}
	if q.Recipient == "" || !q.Broadcast {
		return one(where), append(args, limit)
	}
	// Two inboxes, each in its own order through the index, then merged.
	directed, everybody := where, slices.Clone(where)
	everybody[recipient] = strings.Replace(everybody[recipient], party, "0", 1)
	rest := slices.Delete(slices.Clone(args), recipient, recipient+1)
	args = slices.Concat(args, []any{limit}, rest, []any{limit, limit})
	return "SELECT * FROM (" + one(directed) + ") UNION ALL SELECT * FROM (" + one(everybody) + ") ORDER BY 1 LIMIT ?", args
}

// query runs a statement of readDB, prepared once. The texts are few: they vary by which fields of a query are set.
func (s *Store) query(ctx context.Context, text string, args []any) (*sql.Rows, error) {
	s.mu.Lock()
	stmt := s.prepared[text]
	s.mu.Unlock()
	if stmt == nil {
		made, err := s.readDB.PrepareContext(ctx, text)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		if stmt = s.prepared[text]; stmt == nil {
			stmt = made
			s.prepared[text] = made
		}
		s.mu.Unlock()
		if stmt != made {
			if err := made.Close(); err != nil {
				return nil, err
			}
		}
	}
	return stmt.QueryContext(ctx, args...)
}

// Thread implements relay.Store.
func (s *Store) Thread(ctx context.Context, k thread.Key, now time.Time) (thread.Thread, error) {
	text, args := "SELECT record FROM thread WHERE id = ?", []any{k.ID}
	if k.Client != "" {
		text += " AND client = (SELECT id FROM party WHERE did = ?)"
		args = append(args, string(k.Client))
	}
	var record []byte
	err := s.readDB.QueryRowContext(ctx, text+" ORDER BY n LIMIT 1", args...).Scan(&record)
	if errors.Is(err, sql.ErrNoRows) {
		return thread.Thread{}, envelope.Errorf(envelope.CodeThreadNotFound, "there is no such thread here; "+
			"a thread begins with a REQUEST and is forgotten some time after its last message")
	}
	var t thread.Thread
	if err == nil {
		err = json.Unmarshal(record, &t)
	}
	return s.policy.Rules.At(t, now), err
}

// Agents implements relay.Store.
func (s *Store) Agents(ctx context.Context, q relay.AgentQuery) (relay.AgentPage, error) {
	where, args := "m.expires > ? AND m.n > ?", []any{nanos(q.Now), q.After}
	add := func(condition string, value any) {
		where += " AND " + condition
		args = append(args, value)
	}
	if q.DID != "" {
		add("p.did = ?", string(q.DID))
	}
	if q.Intent != "" {
		add("EXISTS (SELECT 1 FROM json_each(m.intents) WHERE value = ?)", q.Intent)
	}
	if q.Text != "" {
		add("instr(m.text, ?) > 0", q.Text)
	}
	switch {
	case q.OnlineSince.IsZero():
	case q.OfflineOnly:
		add("p.seen <= ?", nanos(q.OnlineSince))
	default:
		add("p.seen > ?", nanos(q.OnlineSince))
	}
	rows, err := s.query(ctx, "SELECT m.n, p.did, p.seen, e.body FROM manifest m JOIN party p ON p.id = m.sender "+
		"JOIN event e ON e.seq = m.seq WHERE "+where+" ORDER BY m.n LIMIT ?", append(args, q.Limit+1))
	if err != nil {
		return relay.AgentPage{}, err
	}
	defer rows.Close()
	page := relay.AgentPage{Next: q.After}
	for rows.Next() {
		if len(page.Agents) == q.Limit {
			page.More = true
			break
		}
		var a relay.Agent
		var seen int64
		if err := rows.Scan(&page.Next, &a.DID, &seen, &a.Manifest); err != nil {
			return relay.AgentPage{}, err
		}
		a.LastSeen = instant(seen)
		page.Agents = append(page.Agents, a)
	}
	return page, rows.Err()
}
