package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// All nodes append to one log (docs/PROOFS.md). The committer of each keeps the tree. When its transaction has the lock,
// it first appends what other nodes have stored, in the round trip of the lock (LOG L-15). After each new connection it
// reads the tree again.

var _ relay.LogStore = (*Store)(nil)

// The statements of the log.
const (
	newestRow = "SELECT first, latest, seq, hashes FROM log_leaf WHERE log = $1 ORDER BY first DESC LIMIT 1"
	rowsFrom  = "SELECT first, latest, seq, hashes FROM log_leaf WHERE log = $1 AND first >= $2 ORDER BY first LIMIT $3"
	addLeaves = "INSERT INTO log_leaf (log, first, latest, seq, hashes) VALUES ($1, $2, $3, $4, $5)"
	mergeTile = "WITH old AS (DELETE FROM log_leaf WHERE log = $1 AND first >= $2 AND first < $2 + $3 RETURNING *) " +
		"INSERT INTO log_leaf (log, first, latest, seq, hashes) " +
		"SELECT $1, $2, max(latest), max(seq), string_agg(hashes, '' ORDER BY first) FROM old"
	addNode   = "INSERT INTO log_node (log, level, n, hash) VALUES ($1, $2, $3, $4)"
	dropTiles = "DELETE FROM log_leaf l USING (SELECT newest, $3 % newest + 1 AS turn FROM " +
		"(SELECT max(n) AS newest FROM log) logs) logs CROSS JOIN LATERAL (SELECT log, first, latest, length(hashes) AS size, " +
		"lead(first) OVER (PARTITION BY log ORDER BY first) AS next FROM " +
		"((SELECT * FROM log_leaf WHERE log = newest ORDER BY first LIMIT 128) UNION ALL " +
		"(SELECT * FROM log_leaf WHERE log = turn AND turn < newest ORDER BY first LIMIT 128)) oldest) o " +
		"WHERE l.log = o.log AND l.first = o.first AND o.latest < $1 AND o.size = $2 AND o.next IS NOT NULL"
)

// KeepLog implements relay.LogStore.
func (s *Store) KeepLog(ctx context.Context, did didkey.DID) (all []relay.StoredLog, current int64, err error) {
	origin := proof.Origin{DID: did, Epoch: s.epoch}
	err = s.task(ctx, func(w *writer) error {
		return w.transact(func() (err error) {
			w.begin()
			if err := w.flush(); err != nil {
				return err
			}
			all, err = w.keepLog(origin)
			return err
		})
	})
	return all, s.log.Load(), err
}

// keepLog begins the log with this origin, if there is none, and reads its tree for the ledger. It returns all logs. The
// transaction has the lock.
func (w *writer) keepLog(origin proof.Origin) (all []relay.StoredLog, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), groupTime)
	defer cancel()
	var n int64
	find := func() error {
		all, n = nil, 0
		rows, err := w.conn.Query(ctx, "SELECT n, origin, start FROM log ORDER BY n")
		if err != nil {
			return err
		}
		var l relay.StoredLog
		_, err = pgx.ForEachRow(rows, []any{&l.Number, &l.Origin, &l.Start}, func() error {
			if all = append(all, l); l.Origin == origin.String() {
				n = l.Number
			}
			return nil
		})
		return err
	}
	if err = find(); err == nil && n == 0 {
		if err = w.beginLog(ctx, origin); err == nil {
			err = find()
		}
	}
	if err != nil {
		return nil, err
	}
	if n < all[len(all)-1].Number {
		return nil, ledger.ErrLogFollowed
	}
	log, err := readLog(ctx, w.conn, n)
	if err != nil {
		return nil, err
	}
	var lost bool
	if err := w.conn.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM event WHERE leaf IS NOT NULL AND seq > "+
		"(SELECT max(seq) FROM log_leaf))").Scan(&lost); err != nil {
		return nil, err
	}
	if lost {
		return nil, ledger.ErrLogLost
	}
	w.store.log.Store(n)
	w.ledger.KeepLog(log)
	return all, nil
}

// beginLog stores leaf 0 of a new log.
func (w *writer) beginLog(ctx context.Context, origin proof.Origin) error {
	var n int64
	var before string
	var previous *proof.Previous
	err := w.conn.QueryRow(ctx, "SELECT n, origin FROM log ORDER BY n DESC LIMIT 1").Scan(&n, &before)
	if err == nil {
		log, err := readLog(ctx, w.conn, n)
		if previous, err = ledger.PreviousLog(before, log, err); err != nil {
			return err
		}
	} else if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	start, c := ledger.NewLog(w.store.options.Now(), previous)
	if _, err := w.conn.Exec(ctx, "INSERT INTO log (n, origin, start, published) VALUES ($1, $2, $3, '')", n+1,
		origin.String(), start); err != nil {
		return err
	}
	w.writeLog(n+1, c, w.last)
	return w.flush()
}

// writeLog queues the statements that store leaves of the log n, and the subtrees that they complete. last is the number
// of the last event.
func (w *writer) writeLog(n int64, c *ledger.LogChange, last relay.Seq) {
	for _, r := range c.Rows(last) {
		w.batch.Queue(addLeaves, n, r.First, r.Latest, int64(r.Last), r.Hashes)
		if first, ok := r.Fills(); ok {
			w.batch.Queue(mergeTile, n, first, int64(ledger.LogTile))
		}
	}
	for _, node := range c.Tiled() {
		w.batch.Queue(addNode, n, int16(node.Level), node.N, node.Hash[:])
	}
}

// maxFollow is how many rows of other nodes a node appends to its tree, at most. With more, it reads the tree again.
const maxFollow = 2 * ledger.LogTile

// followLog queues the statement that reads what other nodes have appended. Its tile may have become one row since.
func (w *writer) followLog() {
	size := w.ledger.LogSize()
	if size == 0 {
		return
	}
	w.batch.Queue(rowsFrom, w.store.log.Load(), size-size%ledger.LogTile, maxFollow).Query(func(rows pgx.Rows) error {
		n := 0
		for ; rows.Next(); n++ {
			r, err := scanLogRow(rows)
			if err == nil {
				err = w.ledger.FollowLog(r)
			}
			if err != nil {
				return err
			}
		}
		w.logBehind = n == maxFollow
		return rows.Err()
	})
}

func scanLogRow(row pgx.Row) (r ledger.LogRow, err error) {
	err = row.Scan(&r.First, &r.Latest, &r.Last, &r.Hashes)
	return r, err
}

// reloadLog reads the tree again, if the ledger keeps a log.
func (w *writer) reloadLog(ctx context.Context) error {
	w.logBehind = false
	n := w.store.log.Load()
	if n == 0 {
		return nil
	}
	log, err := readLog(ctx, w.conn, n)
	if err == nil {
		w.ledger.KeepLog(log)
	}
	return err
}

// logReader is a connection.
type logReader interface {
	QueryRow(ctx context.Context, text string, args ...any) pgx.Row
	Query(ctx context.Context, text string, args ...any) (pgx.Rows, error)
}

// readLog reads the tree of the log with this number.
func readLog(ctx context.Context, conn logReader, number int64) (log ledger.Log, err error) {
	last, err := scanLogRow(conn.QueryRow(ctx, newestRow, number))
	if errors.Is(err, pgx.ErrNoRows) {
		err = ledger.ErrLogLost
	}
	if err != nil {
		return log, err
	}
	return ledger.LoadLog(last, func(level int, first, n int64) ([]proof.Hash, error) {
		return readHashes(ctx, conn, number, level, first, n)
	})
}

// readHashes returns n hashes of a level of a log, from the number first on.
func readHashes(ctx context.Context, conn logReader, log int64, level int, first, n int64) (hashes []proof.Hash, err error) {
	text, from := "SELECT n, hash FROM log_node WHERE log = $1 AND n >= $2 AND n < $3 AND level = $4 ORDER BY n", first
	args := []any{log, from, first + n, int16(level)}
	if level == 0 {
		// The row with the first leaf may begin before it, in the same tile.
		text = "SELECT first, hashes FROM log_leaf WHERE log = $1 AND first >= $2 AND first < $3 ORDER BY first"
		args = []any{log, first - first%ledger.LogTile, first + n}
	}
	rows, err := conn.Query(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	var r ledger.LogRow
	_, err = pgx.ForEachRow(rows, []any{&r.First, &r.Hashes}, func() error {
		hashes = append(hashes, r.Leaves(first, first+n)...)
		return nil
	})
	return hashes, err
}

// readingLog shows what f reads of the log.
func (s *Store) readingLog(ctx context.Context, f func(context.Context, *pgx.Conn) error) error {
	if s.log.Load() == 0 {
		return errors.New("the store keeps no log; call KeepLog first")
	}
	return s.showingAll(ctx, f)
}

// LogSize implements relay.LogStore. What another node has stored may not be durable yet, so it waits (LOG L-10).
func (s *Store) LogSize(ctx context.Context, log int64) (size int64, err error) {
	var last ledger.LogRow
	err = s.readingLog(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		last, err = scanLogRow(conn.QueryRow(ctx, newestRow, log))
		return err
	})
	return last.End(), err
}

// LogHashes implements relay.LogStore.
func (s *Store) LogHashes(ctx context.Context, log int64, level int, first, n int64) (hashes []proof.Hash, err error) {
	const most, levels = 1 << 40, 5 // as in package sqlite
	if level < 0 || level > levels || first < 0 || n < 0 || n > most || first > most-n {
		return nil, nil
	}
	err = s.readingLog(ctx, func(ctx context.Context, conn *pgx.Conn) (err error) {
		hashes, err = readHashes(ctx, conn, log, level, first, n)
		return err
	})
	return hashes, err
}

// LogLeaf implements relay.LogStore. The logs follow each other, so the event is in the first one that reaches its number.
func (s *Store) LogLeaf(ctx context.Context, event relay.Seq) (log, index int64, leaf proof.Leaf, err error) {
	err = s.readingLog(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		var received int64
		var salt, body []byte
		var row ledger.Row
		err := conn.QueryRow(ctx, "SELECT (SELECT min(n) FROM log WHERE e.seq <= "+
			"(SELECT seq FROM log_leaf WHERE log_leaf.log = log.n ORDER BY first DESC LIMIT 1)), e.leaf, e.salt, e.received, e.body, "+
			"coalesce(t.record, '') FROM event e LEFT JOIN thread t ON t.n = e.thread AND e.thread > 0 "+
			"WHERE e.seq = $1 AND e.leaf IS NOT NULL AND e.salt IS NOT NULL", int64(event)).
			Scan(&log, &index, &salt, &received, &body, &row.Record)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err == nil {
			leaf, err = ledger.LeafOf(body, salt, received, row)
		}
		return err
	})
	return log, index, leaf, err
}

// FirstLeaf implements relay.LogStore.
func (s *Store) FirstLeaf(ctx context.Context, log int64) (index int64, err error) {
	err = s.readingLog(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT first FROM log_leaf WHERE log = $1 ORDER BY first LIMIT 1", log).Scan(&index)
	})
	return index, err
}

// Publishes implements relay.LogStore.
func (s *Store) Publishes() bool { return s.Leads() }

// Published implements relay.LogStore.
func (s *Store) Published(ctx context.Context, log int64) (checkpoint string, err error) {
	err = s.readingLog(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, "SELECT published FROM log WHERE n = $1", log).Scan(&checkpoint)
	})
	return checkpoint, err
}

// Publish implements relay.LogStore. Only the node with the lease publishes.
func (s *Store) Publish(ctx context.Context, before, checkpoint string) error {
	if !s.Publishes() {
		return nil
	}
	return s.change(ctx, func(w *writer) error {
		w.batch.Queue("UPDATE log SET published = $1 WHERE n = $2 AND published = $3", checkpoint, s.log.Load(), before)
		return nil
	})
}

// dropTiles removes full tiles of leaves that all came before the time due, the oldest first, but never the last row of a
// log (LOG L-16). Each call looks at the newest log, and at one of the others in turn.
func (w *writer) dropTiles(due time.Time) {
	w.sweptLog++
	w.batch.Queue(dropTiles, nanos(due), ledger.LogTile*len(proof.Hash{}), w.sweptLog)
}
