package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	sqlite "modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// maxGroup is how many envelopes share a transaction at most. Nobody waits for a group to fill: it is what has come
// in while the one before was being written.
const maxGroup = 256

// job is work for the writer: an envelope to append, or a task that gets a transaction of its own.
type job struct {
	entry relay.Entry
	task  func(*writer) ([]relay.Posted, error)
	done  chan outcome // holds one, so the writer never waits for a caller who left
}

type outcome struct {
	receipt relay.Receipt
	posted  *relay.Posted // nil for a duplicate
	err     error
}

// writer is the one goroutine that writes; it owns all of its fields.
type writer struct {
	store   *Store
	conn    *sql.Conn
	stmts   statements
	made    []*sql.Stmt          // all of stmts
	parties map[didkey.DID]int64 // a cache of the table party
	agents  map[int64]struct{}   // the parties with a manifest
	inboxes map[int64]inbox      // what waits for a party, for those that somebody has written to
}

type statements struct {
	begin, commit, rollback                                    *sql.Stmt
	party, addParty, seen                                      *sql.Stmt
	known, addEvent, addManifest, manifests, waiting           *sql.Stmt
	ownThread, threadsOf, threadsWith, addThread, updateThread *sql.Stmt
	dueThreads, dropThread, dropEvents, dropManifests          *sql.Stmt
}

// maxParties bounds the cache of parties, some 20 MB.
const maxParties = 200_000

func newWriter(ctx context.Context, s *Store) (*writer, error) {
	w := &writer{store: s, parties: map[didkey.DID]int64{}, agents: map[int64]struct{}{}, inboxes: map[int64]inbox{}}
	var err error
	if w.conn, err = s.writeDB.Conn(ctx); err != nil {
		return nil, err
	}
	for _, p := range []struct {
		stmt **sql.Stmt
		text string
	}{
		{&w.stmts.begin, "BEGIN IMMEDIATE"},
		{&w.stmts.commit, "COMMIT"},
		{&w.stmts.rollback, "ROLLBACK"},
		{&w.stmts.party, "SELECT id FROM party WHERE did = ?"},
		{&w.stmts.addParty, "INSERT INTO party (did) VALUES (?)"},
		{&w.stmts.seen, "UPDATE party SET seen = max(seen, ?) WHERE id = ?"},
		{&w.stmts.known, "SELECT seq, expires, thread, body FROM event WHERE sender = ? AND id = ?"},
		{&w.stmts.addEvent, "INSERT INTO event (sender, id, recipient, type, thread, ts, received, expires, forget, body) " +
			"VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
		{&w.stmts.addManifest, "INSERT INTO manifest (sender, id, seq, ts, expires, intents, text) VALUES (?, ?, ?, ?, ?, ?, ?) " +
			"ON CONFLICT (sender, id) DO UPDATE SET seq = excluded.seq, ts = excluded.ts, expires = excluded.expires, " +
			"intents = excluded.intents, text = excluded.text WHERE excluded.ts >= ts"},
		{&w.stmts.manifests, "SELECT count(*) FROM manifest WHERE sender = ? AND id <> ? AND expires > ?"},
		{&w.stmts.waiting, "SELECT count(*), ifnull(sum(bytes), 0), min(expires) FROM (SELECT length(body) AS bytes, expires FROM event " +
			"WHERE recipient = ? AND +expires > ? LIMIT ?)"},
		{&w.stmts.ownThread, "SELECT n, keep, record FROM thread WHERE id = ? AND client = ?"},
		{&w.stmts.threadsOf, "SELECT n, keep, record FROM thread WHERE id = ? AND client IN (?, ?) ORDER BY n"},
		{&w.stmts.threadsWith, "SELECT n, keep, record FROM thread WHERE id = ? ORDER BY n LIMIT " + strconv.Itoa(maxCandidates)},
		{&w.stmts.addThread, "INSERT INTO thread (id, client, due, keep, record) VALUES (?, ?, ?, ?, ?)"},
		{&w.stmts.updateThread, "UPDATE thread SET due = ?, keep = ?, record = ? WHERE n = ?"},
		{&w.stmts.dueThreads, "SELECT n, keep, record FROM thread WHERE due <= ? ORDER BY due LIMIT " + strconv.Itoa(expireThreads)},
		{&w.stmts.dropThread, "DELETE FROM thread WHERE n = ?"},
		{&w.stmts.dropEvents, "DELETE FROM event WHERE seq IN (SELECT seq FROM event WHERE forget <= ? LIMIT " + strconv.Itoa(expireEvents) + ")"},
		{&w.stmts.dropManifests, "DELETE FROM manifest WHERE expires <= ?"},
	} {
		if *p.stmt, err = w.conn.PrepareContext(ctx, p.text); err != nil {
			return nil, errors.Join(fmt.Errorf("prepare %q: %w", p.text, err), w.close())
		}
		w.made = append(w.made, *p.stmt)
	}
	if err := w.load(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

// close gives the connection back. Its statements are closed first: database/sql leaves those of a sql.Conn alone, and
// with one of them open SQLite keeps the connection, its files and the write-ahead log.
func (w *writer) close() error {
	var errs []error
	for _, stmt := range w.made {
		errs = append(errs, stmt.Close())
	}
	return errors.Join(append(errs, w.conn.Close())...)
}

// load reads what the store and its writer keep in memory.
func (w *writer) load(ctx context.Context) error {
	var epoch string
	if err := w.conn.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'epoch'").Scan(&epoch); err != nil {
		return err
	}
	number, err := strconv.ParseUint(epoch, 16, 32)
	if err != nil {
		return fmt.Errorf("the database's epoch is damaged: %w", err)
	}
	w.store.epoch = uint32(number)
	var head int64
	err = w.conn.QueryRowContext(ctx, "SELECT seq FROM sqlite_sequence WHERE name = 'event'").Scan(&head)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	w.store.head.Store(head)
	return w.each(func(scan scanner) error {
		var id int64
		err := scan(&id)
		w.agents[id] = struct{}{}
		return err
	}, func() (*sql.Rows, error) { return w.conn.QueryContext(ctx, "SELECT DISTINCT sender FROM manifest") })
}

// run works until the store is closed. What it has begun it finishes; callers still waiting are told by Store.do.
func (w *writer) run() {
	defer close(w.store.stopped)
	for {
		select {
		case <-w.store.stop:
			// A failing close loses nothing: everything acknowledged is in the write-ahead log.
			_ = w.close()
			return
		case j := <-w.store.appends:
			w.appendGroup(w.group(j))
		case j := <-w.store.tasks:
			w.runTask(j)
		}
	}
}

// group returns first and what waits behind it.
func (w *writer) group(first job) []job {
	group := []job{first}
	for len(group) < maxGroup {
		select {
		case j := <-w.store.appends:
			group = append(group, j)
		default:
			return group
		}
	}
	return group
}

// appendGroup stores the jobs' entries in one transaction and tells each caller after the commit. If the database
// itself fails, nothing of the group is stored and all are told.
func (w *writer) appendGroup(group []job) {
	outcomes := make([]outcome, len(group))
	err := w.transact(func() error {
		for i, j := range group {
			receipt, posted, err := w.append(j.entry)
			var refusal *envelope.Error
			if err != nil && !errors.As(err, &refusal) {
				return err
			}
			outcomes[i] = outcome{receipt, posted, err}
		}
		return nil
	})
	var posted []relay.Posted
	for i := range outcomes {
		if err != nil {
			outcomes[i] = outcome{err: err}
		} else if outcomes[i].posted != nil {
			posted = append(posted, *outcomes[i].posted)
		}
	}
	w.store.publish(posted)
	for i, j := range group {
		j.done <- outcomes[i]
	}
}

func (w *writer) runTask(j job) {
	var posted []relay.Posted
	err := w.transact(func() (err error) {
		posted, err = j.task(w)
		return err
	})
	if err == nil {
		w.store.publish(posted)
	}
	j.done <- outcome{err: err}
}

// transact runs f in an immediate transaction. The caller's context plays no part: a commit that was given up half-way
// would leave him not knowing.
func (w *writer) transact(f func() error) (err error) {
	ctx := context.Background()
	if _, err = w.stmts.begin.ExecContext(ctx); err == nil {
		if err = f(); err == nil {
			_, err = w.stmts.commit.ExecContext(ctx)
		}
		if err != nil {
			clear(w.parties) // some may not be there any more
			clear(w.inboxes)
			if _, failed := w.stmts.rollback.ExecContext(ctx); failed != nil {
				err = fmt.Errorf("%w (and then rolling back: %v)", err, failed)
			}
		}
	}
	return unavailable(err)
}

// unavailable turns a full disk into the refusal it is; the caller may try again.
func unavailable(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL {
		return envelope.Errorf(envelope.CodeUnavailable, "the relay's disk is full; nothing was stored, try again later")
	}
	return err
}

// do hands a job to the writer and waits for its outcome. If ctx ends first the outcome is unknown, and ctx's error
// says so.
func (s *Store) do(ctx context.Context, queue chan<- job, j job) (relay.Receipt, error) {
	j.done = make(chan outcome, 1)
	select {
	case queue <- j:
	case <-s.stop:
		return relay.Receipt{}, relay.ErrShuttingDown
	case <-ctx.Done():
		return relay.Receipt{}, ctx.Err()
	}
	select {
	case o := <-j.done:
		return o.receipt, o.err
	case <-s.stopped:
		select {
		case o := <-j.done:
			return o.receipt, o.err
		default:
			return relay.Receipt{}, relay.ErrShuttingDown
		}
	case <-ctx.Done():
		return relay.Receipt{}, ctx.Err()
	}
}

type scanner func(...any) error

// each calls f for every row of a query.
func (w *writer) each(f func(scanner) error, query func() (*sql.Rows, error)) error {
	rows, err := query()
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := f(rows.Scan); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}
