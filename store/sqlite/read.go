package sqlite

import (
	"context"
	"database/sql"
	"math"
	"strings"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/thread"
)

func (s *Store) cursor(seq relay.Seq) relay.Cursor { return relay.Cursor{Epoch: s.epoch, Seq: seq} }

// Read implements relay.Store.
func (s *Store) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	if err := s.closed(); err != nil {
		return relay.Page{}, err
	}
	// Read head before the query runs, so the query sees every event up to head. It may also see events that are
	// committed but not yet published. Those are left out: otherwise the page could have a cursor beyond head, and a
	// Read with that cursor right afterwards would be refused as unknown.
	head := relay.Seq(s.head.Load())
	if q.After != (relay.Cursor{}) && (q.After.Epoch != s.epoch || q.After.Seq > head) {
		return relay.Page{}, relay.ErrUnknownCursor
	}
	if q.Limit <= 0 {
		return relay.Page{Cursor: s.cursor(head)}, nil
	}
	if q.Backward {
		// From here on, q.After and q.Until limit a range of the sequence, as in a read forwards.
		q.After.Seq, q.Until = max(q.Until-1, 0), q.After.Seq
	} else if q.Until <= 0 || q.Until > head {
		q.Until = head
	}
	var page relay.Page
	var err error
	if stopped := s.onReader(ctx, func() {
		began := time.Now()
		page, err = s.read(ctx, q, head)
		page.Took = time.Since(began)
	}); stopped != nil {
		return relay.Page{}, stopped
	}
	return page, s.handleReadError(err)
}

// onReader runs f in one of the reader goroutines. SQLite makes a goroutine's stack grow to 32 KB, and the goroutine of
// a waiting poll would keep that stack. If f panics, onReader panics with the same value. If ctx ends before a reader
// is free, onReader does not run f and returns ctx's error.
func (s *Store) onReader(ctx context.Context, f func()) error {
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
	case <-ctx.Done():
		return ctx.Err()
	case <-s.stop:
		return relay.ErrShuttingDown
	}
}

// reader runs the functions that onReader passes to it, until the store is closed.
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
	if q.Backward {
		page.Cursor = s.cursor(0)
	}
	l, err := s.lookup(ctx, q)
	if err != nil {
		return relay.Page{}, err
	}
	partial, err := s.bound(ctx, l)
	if err != nil {
		return relay.Page{}, err
	}
	q = l.Query
	text, args := selectEvents(l)
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
		if expires < 0 {
			e.Removed, e.Expires = instant(-expires), time.Time{}
		}
		page.Events = append(page.Events, e)
	}
	switch {
	case page.More:
		page.Cursor.Seq = q.Behind(page.Events[len(page.Events)-1].Seq)
	case partial && q.Backward:
		page.More, page.Partial, page.Cursor.Seq = true, true, q.After.Seq
	case partial:
		page.More, page.Partial, page.Cursor.Seq = true, true, q.Until
	}
	return page, rows.Err()
}

// bound shortens the range of q at its far end, so that the query examines no more than q.MaxExamined events. partial
// reports whether it did. It also sets q.scanAll.
func (s *Store) bound(ctx context.Context, q *lookup) (partial bool, err error) {
	if q.MaxExamined <= 0 {
		return false, nil
	}
	if text, args := selectSortCount(q); text != "" {
		n, err := s.queryNumber(ctx, text, args)
		if n += int64(q.tailCount()); err != nil || n <= int64(q.MaxExamined) {
			return false, err
		}
		q.scanAll, q.tail = true, nil // the sequence has the events of the tail too
	}
	if q.Until-q.After.Seq <= relay.Seq(q.MaxExamined) {
		return false, nil
	}
	text, args := selectHorizon(q)
	n, err := s.queryNumber(ctx, text, args)
	horizon := nearer(relay.Seq(n), q.tailHorizon(), q.Backward)
	switch {
	case err != nil, horizon == 0:
		return false, err
	case q.Backward:
		partial = horizon-1 > q.After.Seq
		q.After.Seq = horizon - 1
	default:
		partial = horizon < q.Until
		q.Until = horizon
	}
	return partial, nil
}

// nearer returns the horizon that a read reaches first. 0 is no horizon.
func nearer(a, b relay.Seq, backward bool) relay.Seq {
	if a == 0 || b == 0 || backward {
		return max(a, b)
	}
	return min(a, b)
}

// queryNumber runs a query that returns one number.
func (s *Store) queryNumber(ctx context.Context, text string, args []any) (n int64, err error) {
	err = eachRow(func(scan scanner) error { return scan(&n) },
		func() (*sql.Rows, error) { return s.query(ctx, text, args) })
	return n, err
}

// query runs a SQL text on readDB. It prepares each text once. There are few texts: they differ only in which fields of
// a relay.Query are set.
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
	n, err := s.oldestThread(ctx, k)
	var found []ledger.Row
	if err == nil {
		found, err = s.threadRows(ctx, []int64{n})
	}
	if err != nil {
		return thread.Thread{}, s.handleReadError(err)
	}
	if len(found) == 0 {
		return thread.Thread{}, thread.ErrNotFound
	}
	return ledger.At(found[0], s.policy.Rules, now)
}

// oldestThread returns the number of the thread with k. If k has no client, it is the oldest thread with the id. 0: none.
func (s *Store) oldestThread(ctx context.Context, k thread.Key) (n int64, err error) {
	if k.Client != "" {
		return s.threadNumber(ctx, k)
	}
	open, closed := s.tail.oldest(k.ID, 1)
	all, err := appendRoles(rolesFor(append(open, closed...)),
		func() (*sql.Rows, error) { return s.query(ctx, oldestNumbers, []any{k.ID, 1}) })
	for _, r := range all {
		if n == 0 || r.thread < n {
			n = r.thread
		}
	}
	return n, err
}

// threadRows returns the threads with these numbers, in this order.
func (s *Store) threadRows(ctx context.Context, numbers []int64) (found []ledger.Row, err error) {
	err = eachRow(func(scan scanner) error {
		row, err := scanThread(scan)
		found = append(found, row)
		return err
	}, func() (*sql.Rows, error) {
		return s.query(ctx, "SELECT "+threadColumns+listedThreads, []any{string(appendList(nil, numbers))})
	})
	return found, err
}

// Agents implements relay.Store.
func (s *Store) Agents(ctx context.Context, q relay.AgentQuery) (page relay.AgentPage, err error) {
	if stopped := s.onReader(ctx, func() {
		began := time.Now()
		page, err = s.directory(ctx, q)
		page.Took = time.Since(began)
	}); stopped != nil {
		return relay.AgentPage{}, stopped
	}
	return page, s.handleReadError(err)
}

// foundManifest is a manifest found by search.
type foundManifest struct {
	n, seq int64
	relay.Agent
}

// directory first finds the manifests without their bodies. Then it reads the bodies of one page.
func (s *Store) directory(ctx context.Context, q relay.AgentQuery) (relay.AgentPage, error) {
	page := relay.AgentPage{Next: q.After}
	until, err := s.directoryBound(ctx, q)
	if err != nil {
		return relay.AgentPage{}, err
	}
	list, err := s.search(ctx, q, until)
	if err != nil {
		return relay.AgentPage{}, err
	}
	size := 0
	for _, f := range list {
		if len(page.Agents) == q.Limit {
			page.More = true
			return page, nil
		}
		err := eachRow(func(scan scanner) error { return scan(&f.Manifest, &f.Mirrored) }, func() (*sql.Rows, error) {
			return s.query(ctx, "SELECT body, network = ? FROM event WHERE seq = ?", []any{relay.MirrorNetwork, f.seq})
		})
		if err != nil {
			return relay.AgentPage{}, err
		}
		size += len(f.Manifest)
		if q.MaxBytes > 0 && len(page.Agents) > 0 && size > q.MaxBytes {
			page.More = true
			return page, nil
		}
		page.Next = f.n
		if len(f.Manifest) > 0 { // empty if the manifest was removed in the meantime
			page.Agents = append(page.Agents, f.Agent)
		}
	}
	switch {
	case len(list) > q.Limit:
		page.More = true
	case until > 0:
		page.More, page.Partial, page.Next = true, true, until
	}
	return page, nil
}

// directoryBound returns the number of the last manifest up to which q examines no more than q.MaxExamined manifests,
// or 0 if q may examine all.
func (s *Store) directoryBound(ctx context.Context, q relay.AgentQuery) (int64, error) {
	if q.MaxExamined <= 0 || q.DID != "" { // an agent has few manifests
		return 0, nil
	}
	text, args := listed(q, q.MaxExamined)
	return s.queryNumber(ctx, text+" ORDER BY 1 LIMIT 1 OFFSET ?", append(args, q.MaxExamined-1))
}

// ownListed selects an agent's own manifests, except broadcasts and those that the agent sent to itself, because the
// other conditions of listed select these. An agent has few manifests.
const ownListed = "n IN (SELECT n FROM manifest WHERE sender = " + partyNumber + ") AND " +
	"recipient NOT IN (0, ifnull(" + partyNumber + ", 0)) AND "

// listed selects the numbers of the manifests that q may show: those with q.Intent, or all. It returns at most limit
// numbers for each audience. Each audience has an index, so no time is spent on manifests that the reader may not see.
func listed(q relay.AgentQuery, limit int) (text string, args []any) {
	table, first := "manifest WHERE ", []any{}
	if q.Intent != "" {
		table, first = "manifest_intent WHERE intent = ? AND ", []any{q.Intent}
	}
	var texts []string
	add := func(audience string, of ...any) {
		texts = append(texts, "SELECT n FROM "+table+audience+"n > ? ORDER BY n LIMIT ?")
		args = append(append(append(args, first...), of...), q.After, limit)
	}
	if v := q.Viewer; !v.Limited {
		add("")
	} else {
		add("recipient = 0 AND ")
		if did := string(v.DID); did != "" {
			add("recipient = "+partyNumber+" AND ", did)
			add(ownListed, did, did)
		}
	}
	return "SELECT * FROM (" + strings.Join(texts, unionAll) + ")", args
}

// search returns the manifests that match q, in order and without bodies. It returns up to q.Limit+1 of them.
func (s *Store) search(ctx context.Context, q relay.AgentQuery, until int64) (list []foundManifest, err error) {
	where, args := "m.n > ? AND m.expires > ?", []any{q.After, nanos(q.Now)}
	add := func(condition string, values ...any) {
		where += " AND " + condition
		args = append(args, values...)
	}
	switch {
	case q.DID != "":
		add("m.sender = "+partyNumber, string(q.DID))
		if v := q.Viewer; v.Limited {
			add("(m.recipient = 0 OR m.recipient = "+partyNumber+" OR p.did = ?)", string(v.DID), string(v.DID))
		}
	case q.Intent != "" || q.Viewer.Limited:
		limit := q.MaxExamined // until is 0 only if there are fewer
		if limit <= 0 {
			limit = math.MaxInt
		}
		numbers, of := listed(q, limit)
		add("m.n IN ("+numbers+")", of...)
	}
	if until > 0 {
		add("m.n <= ?", until)
	}
	if q.Text != "" {
		add("instr(m.text, ?) > 0", q.Text)
	}
	rows, err := s.query(ctx, "SELECT m.n, m.seq, p.did, p.seen FROM manifest m "+
		"CROSS JOIN party p ON p.id = m.sender WHERE "+where+" ORDER BY m.n", args)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for len(list) <= q.Limit && rows.Next() {
		var f foundManifest
		var seen int64
		if err := rows.Scan(&f.n, &f.seq, &f.DID, &seen); err != nil {
			return nil, err
		}
		f.LastSeen = instant(seen)
		if q.OnlineSince.IsZero() || q.IsOnline(f.Agent) != q.OfflineOnly {
			list = append(list, f)
		}
	}
	return list, rows.Err()
}
