package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

func (s *Store) cursor(seq relay.Seq) relay.Cursor { return relay.Cursor{Epoch: s.epoch, Seq: seq} }

// Read implements relay.Store.
func (s *Store) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	if err := s.closed(); err != nil {
		return relay.Page{}, err
	}
	// Taken before the query, which therefore sees everything up to it. It may see more, committed but not announced
	// yet; that is left out, so that no cursor is handed out that a Read right behind it would not know.
	head := relay.Seq(s.head.Load())
	if q.After != (relay.Cursor{}) && (q.After.Epoch != s.epoch || q.After.Seq > head) {
		return relay.Page{}, relay.ErrUnknownCursor
	}
	if q.Limit <= 0 {
		return relay.Page{Cursor: s.cursor(head)}, nil
	}
	if q.Until <= 0 || q.Until > head {
		q.Until = head
	}
	var page relay.Page
	var err error
	if stopped := s.onReader(func() {
		began := time.Now()
		page, err = s.read(ctx, q, head)
		page.Took = time.Since(began)
	}); stopped != nil {
		return relay.Page{}, stopped
	}
	return page, s.readFailed(err)
}

// onReader has a reader run f: SQLite makes a stack grow to 32 KB, which the goroutine of a poll that waits would keep.
// If f panics, so does its caller.
func (s *Store) onReader(f func()) error {
	done := make(chan any)
	select {
	case s.reads <- func() {
		defer func() { done <- recover() }()
		f()
	}:
		if panicked := <-done; panicked != nil {
			panic(panicked)
		}
		return nil
	case <-s.stop:
		return relay.ErrShuttingDown
	}
}

// reader runs what onReader is given, until the store is closed.
func (s *Store) reader() {
	for {
		select {
		case f := <-s.reads:
			f()
		case <-s.stop:
			return
		}
	}
}

func (s *Store) read(ctx context.Context, q relay.Query, head relay.Seq) (relay.Page, error) {
	page := relay.Page{Cursor: s.cursor(head)}
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
	if err := s.closed(); err != nil {
		return thread.Thread{}, err
	}
	text, args := "SELECT record FROM thread WHERE n IN ("+oldestThreads+") ORDER BY n LIMIT 1", []any{k.ID, 1, k.ID, 1}
	if k.Client != "" {
		text, args = "SELECT record FROM thread WHERE id = ? AND client = "+partyNumber, []any{k.ID, string(k.Client)}
	}
	var record []byte
	err := s.readDB.QueryRowContext(ctx, text, args...).Scan(&record)
	if errors.Is(err, sql.ErrNoRows) {
		return thread.Thread{}, thread.ErrNotFound
	}
	err = s.readFailed(err)
	var t thread.Thread
	if err == nil {
		err = json.Unmarshal(record, &t)
	}
	return s.policy.Rules.At(t, now), err
}

// Agents implements relay.Store.
func (s *Store) Agents(ctx context.Context, q relay.AgentQuery) (page relay.AgentPage, err error) {
	if stopped := s.onReader(func() {
		began := time.Now()
		page, err = s.directory(ctx, q)
		page.Took = time.Since(began)
	}); stopped != nil {
		return relay.AgentPage{}, stopped
	}
	return page, s.readFailed(err)
}

func (s *Store) directory(ctx context.Context, q relay.AgentQuery) (relay.AgentPage, error) {
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
	if v := q.Viewer; v.Limited {
		add("(e.recipient = 0 OR ? IN (p.did, (SELECT did FROM party WHERE id = e.recipient)))", string(v.DID))
	}
	if !q.OnlineSince.IsZero() {
		online, err := json.Marshal(append([]didkey.DID{}, q.Online...)) // never null
		if err != nil {
			return relay.AgentPage{}, err
		}
		add("(p.seen > ? OR p.did IN (SELECT value FROM json_each(?))) = ?", nanos(q.OnlineSince))
		args = append(args, string(online), !q.OfflineOnly)
	}
	rows, err := s.query(ctx, "SELECT m.n, p.did, p.seen, e.body FROM manifest m JOIN party p ON p.id = m.sender "+
		"JOIN event e ON e.seq = m.seq WHERE "+where+" ORDER BY m.n LIMIT ?", append(args, q.Limit+1))
	if err != nil {
		return relay.AgentPage{}, err
	}
	defer rows.Close()
	page, size := relay.AgentPage{Next: q.After}, 0
	for rows.Next() {
		var a relay.Agent
		var n, seen int64
		if err := rows.Scan(&n, &a.DID, &seen, &a.Manifest); err != nil {
			return relay.AgentPage{}, err
		}
		size += len(a.Manifest)
		if len(page.Agents) == q.Limit || q.MaxBytes > 0 && len(page.Agents) > 0 && size > q.MaxBytes {
			page.More = true
			break
		}
		page.Next, a.LastSeen = n, instant(seen)
		page.Agents = append(page.Agents, a)
	}
	return page, rows.Err()
}
