package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/ledger"
)

// The log of an epoch and a relay (docs/PROOFS.md) begins when the relay first opens the database. Its leaves are stored
// with their events, one row for each group. The ledger keeps the tree. A start reads it from the rows.

// Shifts of the keys of log_leaf and log_node.
const (
	leafShift  = 40
	nodeShift  = 48
	levelShift = 40
)

var _ relay.LogStore = (*Store)(nil)

// KeepLog implements relay.LogStore.
func (s *Store) KeepLog(ctx context.Context, did didkey.DID) (all []relay.StoredLog, current int64, err error) {
	err = s.task(ctx, func(w *writer) (err error) {
		all, err = w.keepLog(proof.Origin{DID: did, Epoch: s.epoch})
		return err
	})
	return all, s.log.Load(), err
}

// keepLog reads the tree of a log for the ledger. If there is no such log, it begins one. It returns all logs.
func (w *writer) keepLog(origin proof.Origin) (all []relay.StoredLog, err error) {
	ctx := context.Background()
	var n int64
	find := func() error {
		all, n = nil, 0
		return eachRow(func(scan scanner) error {
			var l relay.StoredLog
			err := scan(&l.Number, &l.Origin, &l.Start)
			if all = append(all, l); l.Origin == origin.String() {
				n = l.Number
			}
			return err
		}, func() (*sql.Rows, error) {
			return w.conn.QueryContext(ctx, "SELECT n, origin, start FROM log ORDER BY n")
		})
	}
	if err = find(); err == nil && n == 0 {
		if err = w.transact(func() error { return w.beginLog(ctx, origin) }); err == nil {
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
	if err := w.conn.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM event WHERE leaf IS NOT NULL AND seq > "+
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
	err := w.conn.QueryRowContext(ctx, "SELECT n, origin FROM log ORDER BY n DESC LIMIT 1").Scan(&n, &before)
	if err == nil {
		log, err := readLog(ctx, w.conn, n)
		if previous, err = ledger.PreviousLog(before, log, err); err != nil {
			return err
		}
	} else if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	start, c := ledger.NewLog(w.store.options.Now(), previous)
	if _, err := w.conn.ExecContext(ctx, "INSERT INTO log (n, origin, start, published) VALUES (?, ?, ?, '')", n+1,
		origin.String(), start); err != nil {
		return err
	}
	return w.writeLog(n+1, c, w.last)
}

// writeLog stores leaves of the log n, and the subtrees that they complete. last is the number of the last event.
func (w *writer) writeLog(n int64, c *ledger.LogChange, last relay.Seq) error {
	for _, r := range c.Rows(last) {
		if first, ok := r.Fills(); ok {
			var err error
			if r, err = w.takeTile(n<<leafShift|first, r); err != nil {
				return err
			}
		}
		if _, err := w.stmts.addLeaves.Exec(n<<leafShift|r.First, r.Latest, int64(r.Last), r.Hashes); err != nil {
			return err
		}
	}
	for _, node := range c.Tiled() {
		if _, err := w.stmts.addNode.Exec(n<<nodeShift|int64(node.Level)<<levelShift|node.N, node.Hash[:]); err != nil {
			return err
		}
	}
	return nil
}

// takeTile removes the rows of a tile and returns them as one row, with last at its end. at is the key of its first row.
func (w *writer) takeTile(at int64, last ledger.LogRow) (tile ledger.LogRow, err error) {
	tile = last
	tile.First, tile.Hashes = at&(1<<leafShift-1), nil
	err = eachRow(func(scan scanner) error {
		var hashes []byte
		err := scan(&hashes)
		tile.Hashes = append(tile.Hashes, hashes...)
		return err
	}, func() (*sql.Rows, error) { return w.stmts.tileRows.Query(at, at+ledger.LogTile) })
	if err != nil {
		return tile, err
	}
	tile.Hashes = append(tile.Hashes, last.Hashes...)
	_, err = w.stmts.dropLeaves.Exec(at, at+ledger.LogTile)
	return tile, err
}

// rowQueryer is a connection.
type rowQueryer interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// readLog reads the tree of the log with this number.
func readLog(ctx context.Context, conn rowQueryer, number int64) (log ledger.Log, err error) {
	last := ledger.LogRow{First: -1}
	err = eachRow(func(scan scanner) error { return scan(&last.First, &last.Latest, &last.Hashes) }, func() (*sql.Rows, error) {
		return conn.QueryContext(ctx, "SELECT at, latest, hashes FROM log_leaf WHERE at < ? ORDER BY at DESC LIMIT 1",
			(number+1)<<leafShift)
	})
	if err == nil && last.First>>leafShift != number {
		err = ledger.ErrLogLost
	}
	if err != nil {
		return log, err
	}
	last.First &= 1<<leafShift - 1
	return ledger.LoadLog(last, func(level int, first, n int64) ([]proof.Hash, error) {
		return readHashes(ctx, conn, number, level, first, n)
	})
}

// readHashes returns n hashes of a level of a log, from the number first on.
func readHashes(ctx context.Context, conn rowQueryer, log int64, level int, first, n int64) (hashes []proof.Hash, err error) {
	text, key := "SELECT at, hash FROM log_node WHERE at BETWEEN ? AND ? ORDER BY at", log<<nodeShift|int64(level)<<levelShift
	if level == 0 {
		// The row with the first leaf may begin before it.
		text = "SELECT at, hashes FROM log_leaf WHERE at BETWEEN (SELECT max(at) FROM log_leaf WHERE at <= ?1) AND ?2 ORDER BY at"
		key = log << leafShift
	}
	err = eachRow(func(scan scanner) error {
		r := ledger.LogRow{}
		if err := scan(&r.First, &r.Hashes); err != nil {
			return err
		}
		r.First -= key
		hashes = append(hashes, r.Leaves(first, first+n)...)
		return nil
	}, func() (*sql.Rows, error) { return conn.QueryContext(ctx, text, key+first, key+first+n-1) })
	return hashes, err
}

// LogSize implements relay.LogStore.
func (s *Store) LogSize(ctx context.Context, log int64) (size int64, err error) {
	err = s.readLog(ctx, func() error {
		var first, bytes int64
		err := s.readDB.QueryRowContext(ctx, "SELECT at, length(hashes) FROM log_leaf WHERE at < ? ORDER BY at DESC LIMIT 1",
			(log+1)<<leafShift).Scan(&first, &bytes)
		size = first&(1<<leafShift-1) + bytes/int64(len(proof.Hash{}))
		return err
	})
	return size, err
}

// readLog runs f, which reads the log, on a reader.
func (s *Store) readLog(ctx context.Context, f func() error) error {
	if s.log.Load() == 0 {
		return errors.New("the store keeps no log; call KeepLog first")
	}
	var err error
	if stopped := s.onReader(ctx, func() { err = f() }); stopped != nil {
		return stopped
	}
	return s.handleReadError(err)
}

// LogHashes implements relay.LogStore.
func (s *Store) LogHashes(ctx context.Context, log int64, level int, first, n int64) (hashes []proof.Hash, err error) {
	// The most leaves of a log, and the levels above them. Larger numbers do not fit into the keys.
	const most, levels = 1 << leafShift, leafShift / 8
	if level < 0 || level > levels || first < 0 || n < 0 || n > most || first > most-n {
		return nil, nil
	}
	err = s.readLog(ctx, func() (err error) {
		hashes, err = readHashes(ctx, s.readDB, log, level, first, n)
		return err
	})
	return hashes, err
}

// LogLeaf implements relay.LogStore. The logs follow each other, so the event is in the first one that reaches its number.
func (s *Store) LogLeaf(ctx context.Context, event relay.Seq) (log, index int64, leaf proof.Leaf, err error) {
	err = s.readLog(ctx, func() error {
		var received int64
		var salt, body []byte
		var row ledger.Row
		err := s.readDB.QueryRowContext(ctx, "SELECT (SELECT min(n) FROM log WHERE e.seq <= "+
			"(SELECT seq FROM log_leaf WHERE at < (log.n + 1) << ? ORDER BY at DESC LIMIT 1)), e.leaf, e.salt, e.received, e.body, "+
			"ifnull(t.record, x'') FROM event e LEFT JOIN thread t ON t.n = e.thread "+
			"WHERE e.seq = ? AND e.leaf IS NOT NULL AND e.salt IS NOT NULL", leafShift, int64(event)).
			Scan(&log, &index, &salt, &received, &body, &row.Record)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			leaf, err = ledger.LeafOf(body, salt, received, row)
		}
		return err
	})
	return log, index, leaf, err
}

// Publishes implements relay.LogStore.
func (s *Store) Publishes() bool { return true }

// Published implements relay.LogStore.
func (s *Store) Published(ctx context.Context, log int64) (checkpoint string, err error) {
	err = s.readLog(ctx, func() error {
		return s.readDB.QueryRowContext(ctx, "SELECT published FROM log WHERE n = ?", log).Scan(&checkpoint)
	})
	return checkpoint, err
}

// Publish implements relay.LogStore.
func (s *Store) Publish(ctx context.Context, before, checkpoint string) error {
	return s.task(ctx, func(w *writer) error {
		if err := w.refusal(); err != nil {
			return err
		}
		return w.transact(func() error {
			_, err := w.conn.ExecContext(context.Background(), "UPDATE log SET published = ? WHERE n = ? AND published = ?",
				checkpoint, s.log.Load(), before)
			return err
		})
	})
}

// FirstLeaf implements relay.LogStore.
func (s *Store) FirstLeaf(ctx context.Context, log int64) (index int64, err error) {
	err = s.readLog(ctx, func() error {
		return s.readDB.QueryRowContext(ctx, "SELECT at & ? FROM log_leaf WHERE at >= ? ORDER BY at LIMIT 1", 1<<leafShift-1,
			log<<leafShift).Scan(&index)
	})
	return index, err
}

// dropTiles removes full tiles of leaves that all came before the time due, the oldest first, but never the last row of a
// log (LOG L-16). Each call looks at the newest log, and at one of the others in turn.
func (w *writer) dropTiles(due time.Time) error {
	var newest int64
	if err := eachRow(func(scan scanner) error { return scan(&newest) }, func() (*sql.Rows, error) {
		return w.stmts.newestLog.Query()
	}); err != nil || newest == 0 {
		return err
	}
	w.sweptLog = w.sweptLog%newest + 1
	err := w.dropTilesOf(newest, due)
	if err == nil && w.sweptLog < newest {
		err = w.dropTilesOf(w.sweptLog, due)
	}
	return err
}

func (w *writer) dropTilesOf(log int64, due time.Time) error {
	var old []int64
	before := int64(-1) // the key of the row before, if it may be removed
	err := eachRow(func(scan scanner) error {
		var at, latest, size int64
		if err := scan(&at, &latest, &size); err != nil {
			return err
		}
		if before >= 0 {
			old = append(old, before)
		}
		if before = -1; size == ledger.LogTile*int64(len(proof.Hash{})) && latest < nanos(due) {
			before = at
		}
		return nil
	}, func() (*sql.Rows, error) { return w.stmts.oldestRows.Query(log<<leafShift, (log+1)<<leafShift) })
	for _, at := range old {
		if err == nil {
			_, err = w.stmts.dropLeaves.Exec(at, at+1)
		}
	}
	return err
}
