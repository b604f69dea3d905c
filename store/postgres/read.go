package postgres

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
	"github.com/agora-relay/agora/store/postgres/schema"
	"github.com/agora-relay/agora/thread"
)

// reading calls f with a connection for reads. Errors: errNoAnswer if the database cannot be reached; ctx's error.
func (s *Store) reading(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	return s.readingFor(ctx, readTime, f)
}

// readingFor is reading with another limit of time.
func (s *Store) readingFor(ctx context.Context, limit time.Duration, f func(context.Context, *pgx.Conn) error) error {
	if err := s.closed(); err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	conn, err := s.pool.Acquire(limited)
	lost := err != nil
	if err == nil {
		err = f(limited, conn.Conn())
		_, isPostgres := errors.AsType[*pgconn.PgError](err)
		lost = conn.Conn().IsClosed() || isPostgres && isLost(err)
		conn.Release()
	}
	switch {
	case err == nil || !lost:
		return err
	case s.closed() != nil:
		return s.closed()
	case ctx.Err() != nil:
		return ctx.Err()
	}
	s.readOutage.report(s.options.Log, "cannot read from PostgreSQL; reads are refused until it works again", err)
	return errNoAnswer
}

// Read implements relay.Store.
func (s *Store) Read(ctx context.Context, q relay.Query) (relay.Page, error) {
	return s.readFor(ctx, q, nil)
}

// readFor is Read for events to some recipients; "" stands for broadcasts. nil: to all.
func (s *Store) readFor(ctx context.Context, q relay.Query, recipients []didkey.DID) (page relay.Page, err error) {
	if q.After != (relay.Cursor{}) && q.After.Epoch != s.epoch {
		if err := s.closed(); err != nil {
			return relay.Page{}, err
		}
		return relay.Page{}, relay.ErrUnknownCursor
	}
	err = s.showing(ctx, func(ctx context.Context, conn *pgx.Conn) (seen relay.Seq, err error) {
		began := time.Now()
		page, err = s.read(ctx, conn, q, recipients)
		page.Took = time.Since(began)
		return newest(page, q), err
	})
	if err != nil {
		return relay.Page{}, err
	}
	return page, nil
}

// newest returns the highest number in a page, including its cursor's number.
func newest(page relay.Page, q relay.Query) (seq relay.Seq) {
	if !q.Backward && (q.Until == 0 || page.Cursor.Seq <= q.Until) {
		seq = page.Cursor.Seq
	}
	for _, e := range page.Events {
		seq = max(seq, e.Seq)
	}
	return seq
}

func (s *Store) read(ctx context.Context, conn *pgx.Conn, q relay.Query, recipients []didkey.DID) (relay.Page, error) {
	after := q.After.Seq
	if q.Limit <= 0 {
		h, err := readHead(ctx, conn)
		if err == nil && after > h.last {
			err = relay.ErrUnknownCursor
		}
		return relay.Page{Cursor: s.cursor(h.last)}, err
	}
	if q.Backward {
		// From here on, q.After and q.Until limit a range of the sequence, as in a read forwards.
		q.After.Seq, q.Until = max(q.Until-1, 0), after
	}
	scanAll, partial, err := s.bound(ctx, conn, &q)
	if err != nil {
		return relay.Page{}, err
	}
	events, head, err := s.events(ctx, conn, q, recipients, scanAll)
	switch {
	case err != nil:
		return relay.Page{}, err
	case after > head:
		return relay.Page{}, relay.ErrUnknownCursor
	}
	page := relay.Page{Cursor: s.cursor(head)}
	if q.Backward {
		page.Cursor = s.cursor(0)
	}
	size := 0
	for _, e := range events {
		size += e.Size
		if len(page.Events) == q.Limit || q.MaxBytes > 0 && len(page.Events) > 0 && size > q.MaxBytes {
			page.More = true
			break
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
	return page, nil
}

// events runs the statement of q. It returns up to q.Limit+1 events, and the number of the last event in the store.
func (s *Store) events(ctx context.Context, conn *pgx.Conn, q relay.Query, recipients []didkey.DID, scanAll bool) (
	events []relay.Event, head relay.Seq, err error,
) {
	text, args := selectEvents(q, recipients, s.policy.Window.Skew, scanAll)
	rows, err := conn.Query(ctx, text, args...)
	if err != nil {
		return nil, 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var seq, ts, received, expires, size *int64
		var id, body []byte
		if err := rows.Scan(&head, &seq, &id, &ts, &received, &expires, &size, &body); err != nil {
			return nil, 0, err
		}
		if seq != nil {
			events = append(events, relay.Event{Seq: relay.Seq(*seq), ID: string(id), TS: instant(*ts),
				Received: instant(*received), Expires: instant(*expires), Size: int(*size), Body: body})
			if e := &events[len(events)-1]; *expires < 0 { // removed before the relay was moved here
				e.Removed, e.Expires = instant(-*expires), time.Time{}
			}
		}
	}
	// A join need not keep the order of its rows.
	slices.SortFunc(events, func(a, b relay.Event) int {
		if q.Backward {
			a, b = b, a
		}
		return int(a.Seq - b.Seq)
	})
	return events, head, rows.Err()
}

// bound shortens the range of q at its far end, so that the query examines no more than q.MaxExamined events. partial
// reports whether it did. scanAll says which access paths the query must use, see accessPaths.
func (s *Store) bound(ctx context.Context, conn *pgx.Conn, q *relay.Query) (scanAll, partial bool, err error) {
	if q.MaxExamined <= 0 {
		return false, false, nil
	}
	until := q.Until
	if !q.Backward && until <= 0 {
		until = s.tail.position() // other nodes may have stored a few more
	}
	if until-q.After.Seq <= relay.Seq(q.MaxExamined) && (q.Thread == "" || q.Recipient != "") {
		return false, false, nil
	}
	if text, args := selectSortCount(*q); text != "" {
		var n int64
		if err := conn.QueryRow(ctx, text, args...).Scan(&n); err != nil || n <= int64(q.MaxExamined) {
			return false, false, err
		}
		scanAll = true
	}
	if until-q.After.Seq <= relay.Seq(q.MaxExamined) {
		return scanAll, false, nil
	}
	text, args := selectHorizon(*q, s.policy.Window.Skew, scanAll)
	var horizon relay.Seq
	switch err := conn.QueryRow(ctx, text, args...).Scan(&horizon); {
	case err != nil, horizon == 0:
		return scanAll, false, err
	case q.Backward:
		partial = horizon-1 > q.After.Seq
		q.After.Seq = horizon - 1
	default:
		partial = horizon < until || q.Until <= 0
		q.Until = horizon
	}
	return scanAll, partial, nil
}

// Thread implements relay.Store.
func (s *Store) Thread(ctx context.Context, k thread.Key, now time.Time) (thread.Thread, error) {
	text, args := "SELECT 1::bigint, "+threadColumns+" FROM (VALUES (false), (true)) kind (open) CROSS JOIN LATERAL "+
		"(SELECT * FROM thread t WHERE t.id = $1 AND t.open = kind.open ORDER BY t.n LIMIT 1) t ORDER BY t.n LIMIT 1",
		[]any{[]byte(k.ID)}
	if k.Client != "" {
		text, args = "SELECT 1::bigint, "+threadColumns+" FROM thread t WHERE pair_key(t.client, t.id) = $1", []any{pairKey(k.Client, k.ID)}
	}
	found, err := s.rows(ctx, text, args)
	if err != nil {
		return thread.Thread{}, err
	}
	if len(found) == 0 {
		return thread.Thread{}, thread.ErrNotFound
	}
	return ledger.At(found[0], s.policy.Rules, now)
}

// rows runs a query for threads.
func (s *Store) rows(ctx context.Context, text string, args []any) (found []ledger.Row, err error) {
	err = s.showingAll(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, text, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			_, row, err := scanRow(rows.Scan)
			if err != nil {
				return err
			}
			found = append(found, row)
		}
		return rows.Err()
	})
	return found, err
}

// ThreadsOf implements relay.Store.
func (s *Store) ThreadsOf(ctx context.Context, k thread.Key, party didkey.DID, now time.Time) ([]thread.Thread, error) {
	if err := s.closed(); err != nil || party == "" {
		return nil, err // the empty party takes part in no thread
	}
	own := "SELECT 1::bigint, " + threadColumns + " FROM thread t WHERE pair_key(t.client, t.id) = $1"
	text, args := own, []any{pairKey(k.Client, k.ID)}
	if k.Client == "" {
		text = own + " UNION ALL SELECT 1::bigint, " + threadColumns + " FROM (SELECT p.thread FROM participant p " +
			"WHERE p.key = $1 ORDER BY p.role, p.thread LIMIT $2) p JOIN thread t ON t.n = p.thread"
		args = []any{pairKey(party, k.ID), ledger.MaxCandidates}
	}
	found, err := s.rows(ctx, text, args)
	if err != nil {
		return nil, err
	}
	return ledger.OfParty(found, party, s.policy.Rules, now)
}

// Agents implements relay.Store.
func (s *Store) Agents(ctx context.Context, q relay.AgentQuery) (page relay.AgentPage, err error) {
	err = s.showingAll(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		began := time.Now()
		page, err = directory(ctx, conn, q)
		page.Took = time.Since(began)
		return err
	})
	if err != nil {
		return relay.AgentPage{}, err
	}
	return page, nil
}

// foundManifest is a manifest found by search.
type foundManifest struct {
	n, seq int64
	size   int // of the manifest's envelope
	relay.Agent
}

// directory first finds the manifests without their bodies. Then it reads the bodies of one page.
func directory(ctx context.Context, conn *pgx.Conn, q relay.AgentQuery) (relay.AgentPage, error) {
	page := relay.AgentPage{Next: q.After}
	until, err := directoryBound(ctx, conn, q)
	if err != nil {
		return relay.AgentPage{}, err
	}
	list, err := search(ctx, conn, q, until)
	if err != nil {
		return relay.AgentPage{}, err
	}
	size, more := 0, len(list) > q.Limit
	var seqs []int64
	for i, f := range list {
		size += f.size
		if len(seqs) == q.Limit || q.MaxBytes > 0 && len(seqs) > 0 && size > q.MaxBytes {
			list, more = list[:i], true
			break
		}
		if page.Next = f.n; f.size > 0 { // else its event was removed in the meantime
			seqs = append(seqs, f.seq)
		}
	}
	bodies, err := bodiesOf(ctx, conn, seqs)
	if err != nil {
		return relay.AgentPage{}, err
	}
	for _, f := range list {
		if f.Manifest = bodies[f.seq]; len(f.Manifest) > 0 {
			page.Agents = append(page.Agents, f.Agent)
		}
	}
	switch {
	case more:
		page.More = true
	case until > 0:
		page.More, page.Partial, page.Next = true, true, until
	}
	return page, nil
}

// bodiesOf returns the bodies of events by their numbers.
func bodiesOf(ctx context.Context, conn *pgx.Conn, seqs []int64) (map[int64][]byte, error) {
	bodies := map[int64][]byte{}
	rows, err := conn.Query(ctx, "SELECT seq, body FROM event WHERE seq = ANY($1)", seqs)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var seq int64
		var body []byte
		if err := rows.Scan(&seq, &body); err != nil {
			return nil, err
		}
		bodies[seq] = body
	}
	return bodies, rows.Err()
}

// directoryBound returns the number of the last manifest up to which q examines no more than q.MaxExamined manifests,
// or 0 if q may examine all.
func directoryBound(ctx context.Context, conn *pgx.Conn, q relay.AgentQuery) (until int64, err error) {
	if q.MaxExamined <= 0 || q.DID != "" { // an agent has few manifests
		return 0, nil
	}
	text, args := listed(q, q.MaxExamined)
	err = conn.QueryRow(ctx, schema.Numbered(text+" ORDER BY n LIMIT 1 OFFSET ?"), append(args, q.MaxExamined-1)...).
		Scan(&until)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	return until, err
}

// listed selects the numbers of the manifests that q may show: those with q.Intent, or all. It returns at most limit
// numbers for each audience. Each audience has an index, so no time is spent on manifests that the reader may not see.
func listed(q relay.AgentQuery, limit int) (text string, args []any) {
	table, first := "manifest WHERE ", []any{}
	if q.Intent != "" {
		table, first = "manifest_intent WHERE intent = ? AND ", []any{hashOf(q.Intent)}
	}
	var texts []string
	add := func(audience string, of ...any) {
		texts = append(texts, "(SELECT n FROM "+table+audience+"n > ? ORDER BY n LIMIT ?)")
		args = append(append(append(args, first...), of...), q.After, limit)
	}
	if v := q.Viewer; !v.Limited {
		add("")
	} else {
		add("recipient = '' AND ")
		if did := []byte(v.DID); len(did) > 0 {
			add("recipient = ? AND ", did)
			// The agent's own manifests, except those that the other conditions select. An agent has few.
			add("n IN (SELECT n FROM manifest WHERE sender = ?) AND recipient <> '' AND recipient <> ? AND ", did, did)
		}
	}
	return "SELECT n FROM (" + strings.Join(texts, " UNION ALL ") + ") l", args
}

// search returns the manifests that match q, in order and without bodies. It returns up to q.Limit+1 of them.
func search(ctx context.Context, conn *pgx.Conn, q relay.AgentQuery, until int64) (list []foundManifest, err error) {
	where, args := "m.n > ? AND m.expires > ?", []any{q.After, nanos(q.Now)}
	add := func(condition string, values ...any) {
		where += " AND " + condition
		args = append(args, values...)
	}
	switch {
	case q.DID != "":
		add("m.sender = ?", []byte(q.DID))
		if v := q.Viewer; v.Limited {
			add("(m.recipient = '' OR m.recipient = ? OR m.sender = ?)", []byte(v.DID), []byte(v.DID))
		}
	case q.Intent != "" || q.Viewer.Limited:
		limit := q.MaxExamined // until is 0 only if there are fewer
		if limit <= 0 {
			limit = 1 << 30
		}
		numbers, of := listed(q, limit)
		add("m.n IN ("+numbers+")", of...)
	}
	if until > 0 {
		add("m.n <= ?", until)
	}
	if q.Text != "" {
		add("position(? IN m.text) > 0", []byte(q.Text))
	}
	// The rows are read one by one until the page is full. So the search ends early.
	rows, err := conn.Query(ctx, schema.Numbered("SELECT m.n, m.seq, m.sender, a.seen, "+
		"coalesce(length(e.body), 0), coalesce(e.network, 0) = ? FROM manifest m JOIN agent a ON a.did = m.sender "+
		"LEFT JOIN event e ON e.seq = m.seq "+
		"WHERE "+where+" ORDER BY m.n"), append([]any{relay.MirrorNetwork}, args...)...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for len(list) <= q.Limit && rows.Next() {
		var f foundManifest
		var did []byte
		var seen int64
		if err := rows.Scan(&f.n, &f.seq, &did, &seen, &f.size, &f.Mirrored); err != nil {
			return nil, err
		}
		f.DID, f.LastSeen = didkey.DID(did), instant(seen)
		if q.OnlineSince.IsZero() || q.IsOnline(f.Agent) != q.OfflineOnly {
			list = append(list, f)
		}
	}
	rows.Close()
	return list, rows.Err()
}
