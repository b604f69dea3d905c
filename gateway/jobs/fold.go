package jobs

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/big"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file folds old records: it removes them, and adds what they have moved to one row for each account. Every balance
// stays the same. It also removes old jobs that have ended, and keeps how many of them counted for their agents.

// MinFoldAge is how old a record or the end of a job must be before it may be folded. After that, its id is unknown: a
// transfer or a job that uses it again is a new one.
const MinFoldAge = contentLife

// foldBatch is how many records or jobs one Update folds.
const foldBatch = 50

// Folded says how much was folded.
type Folded struct {
	Records int64 `json:"records"` // transfers, and the records of the jobs
	Jobs    int64 `json:"jobs"`
}

// Foldable returns how many records and jobs of a time before the given one there are.
func Foldable(q relay.Querier, before time.Time) (f Folded, err error) {
	if f.Jobs, err = gateway.Number(q, "SELECT COUNT(*) FROM jobs_job WHERE ended > 0 AND ended < ?", before.UnixNano()); err != nil {
		return f, err
	}
	f.Records, err = gateway.Number(q, "SELECT COUNT(*) FROM jobs_record r WHERE r.ts < ? AND (r.job = 0 OR EXISTS "+
		"(SELECT 1 FROM jobs_job j WHERE j.n = r.job AND j.ended > 0 AND j.ended < ?))", before.UnixNano(), before.UnixNano())
	return f, err
}

// Fold folds the records and the jobs of a time before the given one, in small Updates. If it is interrupted, what it has
// done so far stays done, and the rest can be folded later. No gateway may use the store meanwhile.
func Fold(ctx context.Context, store relay.Extender, before time.Time) (done Folded, err error) {
	for _, f := range []func(*folding, int64) error{(*folding).foldJobs, (*folding).foldRecords} {
		for more := true; more; {
			if err := ctx.Err(); err != nil {
				return done, err
			}
			var batch Folded
			err := relay.UpdateStore(ctx, store, func(tx relay.ExtTx) error {
				w := folding{tx: tx, accounts: map[int64]folded{}, total: totals{volume: new(big.Int)}}
				if err := f(&w, before.UnixNano()); err != nil {
					return err
				}
				batch, more = w.done, w.taken == foldBatch
				return w.write()
			})
			if err != nil {
				return done, err
			}
			done.Records, done.Jobs = done.Records+batch.Records, done.Jobs+batch.Jobs
		}
	}
	return done, nil
}

// folded is what the folded records of an account have moved.
type folded struct{ amount, initial credits.Amount }

// folding is one Update of Fold.
type folding struct {
	tx       relay.ExtTx
	accounts map[int64]folded // what to add to each account
	total    totals           // what to add to jobs_folded_total
	done     Folded
	taken    int // rows that this Update has taken from the list of what is due
}

// foldJobs folds the oldest jobs that have ended, with all of their records.
func (w *folding) foldJobs(before int64) error {
	all, err := jobs(w.tx, "SELECT "+jobColumns+" FROM jobs_job WHERE ended > 0 AND ended < ? ORDER BY ended, n LIMIT ?", before,
		foldBatch)
	w.taken = len(all)
	for _, j := range all {
		if err != nil {
			return err
		}
		if err = w.foldJob(j); err == nil {
			w.done.Jobs++
		}
	}
	return err
}

func (w *folding) foldJob(j job) error {
	records, err := records(w.tx, "SELECT "+recordColumns+" FROM jobs_record WHERE job = ? ORDER BY n", j.n)
	if err != nil {
		return err
	}
	for _, r := range records {
		if err := cmp.Or(gateway.Exec(w.tx, "DELETE FROM jobs_settled WHERE record = ?", r.n), w.fold(r)); err != nil {
			return err
		}
	}
	if j.counted {
		if err := addFoldedJob(w.tx, j); err != nil {
			return err
		}
	}
	return gateway.Exec(w.tx, "DELETE FROM jobs_job WHERE n = ?", j.n)
}

// foldRecords folds the oldest records that belong to no job.
func (w *folding) foldRecords(before int64) error {
	all, err := records(w.tx, "SELECT "+recordColumns+" FROM jobs_record WHERE job = 0 AND ts < ? ORDER BY ts, n LIMIT ?", before,
		foldBatch)
	w.taken = len(all)
	for _, r := range all {
		if err != nil {
			return err
		}
		err = w.fold(r)
	}
	return err
}

// fold removes a record and its entries, and notes what it has moved.
func (w *folding) fold(r record) error {
	payer, payee := w.accounts[r.payer], w.accounts[r.payee]
	payer.amount, payee.amount = payer.amount-r.amount, payee.amount+r.amount
	if r.kind == kindInitial {
		payee.initial += r.amount
	}
	w.accounts[r.payer], w.accounts[r.payee] = payer, payee
	w.total.add(r)
	w.done.Records++
	return cmp.Or(gateway.Exec(w.tx, "DELETE FROM jobs_entry WHERE record = ?", r.n),
		gateway.Exec(w.tx, "DELETE FROM jobs_record WHERE n = ?", r.n), countRecord(w.tx, r, -1))
}

// write adds what the Update has folded to the rows that have the sums.
func (w *folding) write() error {
	for owner, add := range w.accounts {
		before := folded{}
		if err := w.tx.Query(func(scan gateway.Scanner) error { return scan(&before.amount, &before.initial) },
			"SELECT amount, initial FROM jobs_folded WHERE owner = ?", owner); err != nil {
			return err
		}
		if err := gateway.Exec(w.tx, "INSERT INTO jobs_folded ("+foldedColumns+", sum) VALUES (?, ?, ?, ?) ON CONFLICT (owner) DO "+
			"UPDATE SET amount = excluded.amount, initial = excluded.initial, sum = excluded.sum",
			gateway.WithSum(foldedTable, []any{owner, int64(before.amount + add.amount), int64(before.initial + add.initial)})...); err != nil {
			return err
		}
	}
	t, err := readFolded(w.tx)
	if err != nil || w.total.records == 0 {
		return err
	}
	t.records += w.total.records
	t.volume.Add(t.volume, w.total.volume)
	return gateway.Exec(w.tx, "INSERT INTO jobs_folded_total (id, records, volume, sum) VALUES (?, ?, ?, ?) ON CONFLICT (id) "+
		"DO UPDATE SET records = excluded.records, volume = excluded.volume, sum = excluded.sum",
		gateway.WithSum(foldedTotalTable, []any{int64(1), t.records, t.volume.String()})...)
}

// The tables of what was folded.
const (
	foldedTable        = "jobs_folded"
	foldedColumns      = "owner, amount, initial"
	foldedTotalTable   = "jobs_folded_total"
	foldedTotalColumns = "id, records, volume"
	foldedAgentTable   = "jobs_folded_agent"
	foldedAgentColumns = "agent, successes, failures"
)

// readFolded returns the sums over all records that were folded.
func readFolded(q relay.Querier) (totals, error) {
	return readSums(q, foldedTotalTable, "SELECT records, volume FROM jobs_folded_total WHERE id = 1")
}

// addFoldedJob counts a folded job that has counted for its agent.
func addFoldedJob(tx relay.ExtTx, j job) error {
	successes, failures := int64(0), int64(0)
	if err := tx.Query(func(scan gateway.Scanner) error { return scan(&successes, &failures) },
		"SELECT successes, failures FROM jobs_folded_agent WHERE agent = ?", j.agent); err != nil {
		return err
	}
	if j.state == success {
		successes++
	} else {
		failures++
	}
	return gateway.Exec(tx, "INSERT INTO jobs_folded_agent ("+foldedAgentColumns+", sum) VALUES (?, ?, ?, ?) ON CONFLICT (agent) "+
		"DO UPDATE SET successes = excluded.successes, failures = excluded.failures, sum = excluded.sum",
		gateway.WithSum(foldedAgentTable, []any{j.agent, successes, failures})...)
}

// Books are the books of a ledger, added up from its entries and from what was folded, not from the balances that the
// accounts have. They are the same before and after Fold.
type Books struct {
	Accounts int64          `json:"accounts"` // with those of the relay
	Issued   credits.Amount `json:"issued"`   // credits that were ever issued
	Records  int64          `json:"records"`  // ever made
	Hash     string         `json:"hash"`     // SHA-256 of the number and the balance of each account, in order, and of the totals
}

// ReadBooks adds up the books.
func ReadBooks(q relay.Querier) (b Books, err error) {
	hash, sum := sha256.New(), credits.Amount(0)
	err = q.Query(func(scan gateway.Scanner) error {
		var n int64
		var balance, stored credits.Amount
		var id string
		if err := scan(&n, &id, &stored, &balance); err != nil {
			return err
		}
		if balance != stored {
			return fmt.Errorf("the account %s has %v, but its entries sum to %v; run agora check", id, stored, balance)
		}
		if id == issueID {
			b.Issued = -balance
		}
		b.Accounts++
		sum += balance
		fmt.Fprintf(hash, "%d %d\n", n, int64(balance))
		return nil
	}, "SELECT a.n, a.id, a.balance, CAST(COALESCE(f.amount, 0) + COALESCE((SELECT SUM(e.amount) FROM jobs_entry e WHERE "+
		"e.owner = a.n), 0) AS BIGINT) FROM jobs_owner a LEFT JOIN jobs_folded f ON f.owner = a.n ORDER BY a.n")
	if err != nil {
		return b, err
	}
	if sum != 0 {
		return b, fmt.Errorf("the balances of all accounts sum to %d millionths of a credit and not to 0; run agora check", int64(sum))
	}
	t, err := readTotals(q)
	if err != nil {
		return b, err
	}
	b.Records = t.records
	fmt.Fprintf(hash, "%d %v\n", t.records, t.volume)
	b.Hash = hex.EncodeToString(hash.Sum(nil))
	return b, nil
}
