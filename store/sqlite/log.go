package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

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

// loadLog reads the tree of the relay's log for the ledger. If this relay has no log in this epoch, it begins one.
func (w *writer) loadLog(ctx context.Context) error {
	if w.store.options.LogOf == "" {
		return nil
	}
	origin := proof.Origin{DID: w.store.options.LogOf, Epoch: w.store.epoch}
	err := w.conn.QueryRowContext(ctx, "SELECT n FROM log WHERE origin = ?", origin.String()).Scan(&w.log)
	if errors.Is(err, sql.ErrNoRows) {
		err = w.transact(func() error { return w.beginLog(ctx, origin) })
	}
	if err != nil {
		return err
	}
	log, err := readLog(ctx, w.conn, w.log)
	if err != nil {
		return err
	}
	w.ledger.KeepLog(log)
	return nil
}

// beginLog stores leaf 0 of a new log.
func (w *writer) beginLog(ctx context.Context, origin proof.Origin) error {
	start := proof.Start{Began: w.store.options.Now()}
	var before string
	err := w.conn.QueryRowContext(ctx, "SELECT n, origin FROM log ORDER BY n DESC LIMIT 1").Scan(&w.log, &before)
	if err == nil {
		start.Previous = &proof.Previous{}
		if start.Previous.Origin, err = proof.ParseOrigin(before); err != nil {
			return err
		}
		log, err := readLog(ctx, w.conn, w.log)
		if err != nil {
			return err
		}
		start.Previous.Size, start.Previous.Root = log.Tree.Size, log.Tree.Root()
	} else if !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	w.log++
	if _, err := w.conn.ExecContext(ctx, "INSERT INTO log (n, origin, start, published) VALUES (?, ?, ?, '')", w.log,
		origin.String(), start.String()); err != nil {
		return err
	}
	leaf := tlog.RecordHash([]byte(start.String()))
	return w.writeLog(ledger.LogChange{Growth: new(proof.Tree).Grow([]proof.Hash{leaf}), Leaves: []proof.Hash{leaf}}, w.last)
}

// writeLog stores leaves, and the subtrees that they complete. last is the number of the last event.
func (w *writer) writeLog(c ledger.LogChange, last relay.Seq) error {
	hashes := make([]byte, 0, len(c.Leaves)*len(proof.Hash{}))
	for _, hash := range c.Leaves {
		hashes = append(hashes, hash[:]...)
	}
	var latest int64
	if !c.Latest.IsZero() {
		latest = nanos(c.Latest)
	}
	if _, err := w.stmts.addLeaves.Exec(w.log<<leafShift|c.First, latest, int64(last), hashes); err != nil {
		return err
	}
	for _, n := range c.Tiled() {
		if _, err := w.stmts.addNode.Exec(w.log<<nodeShift|int64(n.Level)<<levelShift|n.N, n.Hash[:]); err != nil {
			return err
		}
	}
	return nil
}

// rowQueryer is a connection.
type rowQueryer interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
}

// readLog reads the tree of the log with this number.
func readLog(ctx context.Context, conn rowQueryer, number int64) (log ledger.Log, err error) {
	var first, latest int64
	var hashes []byte
	err = eachRow(func(scan scanner) error { return scan(&first, &latest, &hashes) }, func() (*sql.Rows, error) {
		return conn.QueryContext(ctx, "SELECT at, latest, hashes FROM log_leaf WHERE at < ? ORDER BY at DESC LIMIT 1",
			(number+1)<<leafShift)
	})
	if err == nil && first>>leafShift != number {
		err = fmt.Errorf("the log %d has no leaves", number)
	}
	if err != nil {
		return log, err
	}
	if latest > 0 {
		log.Latest = instant(latest)
	}
	size := first&(1<<leafShift-1) + int64(len(hashes)/len(proof.Hash{}))
	log.Tree, err = proof.LoadTree(size, func(level int, first, n int64) ([]proof.Hash, error) {
		return readHashes(ctx, conn, number, level, first, n)
	})
	return log, err
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
		var at int64
		var some []byte
		if err := scan(&at, &some); err != nil {
			return err
		}
		for i := range int64(len(some) / len(proof.Hash{})) {
			if number := at - key + i; number >= first && number < first+n {
				hashes = append(hashes, proof.Hash(some[i*int64(len(proof.Hash{})):][:len(proof.Hash{})]))
			}
		}
		return nil
	}, func() (*sql.Rows, error) { return conn.QueryContext(ctx, text, key+first, key+first+n-1) })
	return hashes, err
}
