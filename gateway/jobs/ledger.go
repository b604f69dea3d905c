package jobs

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file moves credits. Nothing else changes a balance.

// The accounts of the relay. An owner_id cannot begin with @.
const (
	issueID  = "@issue"  // minus all credits that were ever issued
	escrowID = "@escrow" // what is held for running jobs
)

// The kinds of records.
const (
	kindInitial  = "initial"
	kindGrant    = "grant"
	kindHold     = "hold"
	kindSettle   = "settle"
	kindRefund   = "refund"
	kindTransfer = "transfer"
)

// record is a row of jobs_record.
type record struct {
	n            int64
	id           string
	kind         string
	payer, payee int64
	behalf       int64 // of a settle: the account whose hold it uses; else 0
	amount       credits.Amount
	job          int64
	jobID        string
	named        bool
	ts           int64
}

const (
	recordTable   = "jobs_record"
	recordColumns = "n, id, kind, payer, payee, behalf, amount, job, job_id, named, ts"
)

func (r record) values() []any {
	return []any{r.n, r.id, r.kind, r.payer, r.payee, r.behalf, int64(r.amount), r.job, r.jobID, flag(r.named), r.ts}
}

func (r *record) fields() []any {
	return []any{&r.n, &r.id, &r.kind, &r.payer, &r.payee, &r.behalf, &r.amount, &r.job, &r.jobID, &r.named, &r.ts}
}

func recordByID(q relay.Querier, id string) (r record, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+recordColumns+" FROM jobs_record WHERE id = ?", id)
	return r, err
}

// records returns the records that a SELECT of recordColumns finds.
func records(q relay.Querier, text string, args ...any) (all []record, err error) {
	err = q.Query(func(scan gateway.Scanner) error {
		var r record
		err := scan(r.fields()...)
		all = append(all, r)
		return err
	}, text, args...)
	return all, err
}

func recordByNumber(q relay.Querier, n int64) (r record, err error) {
	err = q.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+recordColumns+" FROM jobs_record WHERE n = ?", n)
	return r, err
}

// entry is a row of jobs_entry.
type entry struct {
	owner, record int64
	amount        credits.Amount
	balance       credits.Amount
}

const (
	entryTable   = "jobs_entry"
	entryColumns = "owner, record, amount, balance"
)

func (e entry) values() []any {
	return []any{e.owner, e.record, int64(e.amount), int64(e.balance)}
}

// balanceAfter returns the balance that an account had after a record.
func balanceAfter(q relay.Querier, owner, record int64) (credits.Amount, error) {
	n, err := gateway.Number(q, "SELECT balance FROM jobs_entry WHERE owner = ? AND record = ?", owner, record)
	return credits.Amount(n), err
}

// totalTable has the sums over all records that were ever made.
const (
	totalTable   = "jobs_total"
	totalColumns = "id, records, volume"
)

// totals are the sums over all records.
type totals struct {
	records int64
	volume  *big.Int // millionths of a credit that were paid or transferred
}

// readTotals returns the sums over all records that were ever made, also those that were folded.
func readTotals(q relay.Querier) (totals, error) {
	return readSums(q, totalTable, "SELECT records, volume FROM jobs_total WHERE id = 1")
}

// readSums returns the sums in the one row of a table.
func readSums(q relay.Querier, table, text string) (t totals, err error) {
	volume := "0"
	if err = q.Query(func(scan gateway.Scanner) error { return scan(&t.records, &volume) }, text); err != nil {
		return t, err
	}
	var ok bool
	if t.volume, ok = new(big.Int).SetString(volume, 10); !ok {
		return t, fmt.Errorf("%s has the volume %q, which is not a number", table, volume)
	}
	return t, nil
}

func writeTotals(tx relay.ExtTx, t totals) error {
	values := gateway.WithSum(totalTable, []any{int64(1), t.records, t.volume.String()})
	return gateway.Exec(tx, "INSERT INTO jobs_total (id, records, volume, sum) VALUES (?, ?, ?, ?) ON CONFLICT (id) "+
		"DO UPDATE SET records = excluded.records, volume = excluded.volume, sum = excluded.sum", values...)
}

// add counts a record.
func (t *totals) add(r record) {
	t.records++
	if r.kind == kindSettle || r.kind == kindTransfer {
		t.volume.Add(t.volume, big.NewInt(int64(r.amount)))
	}
}

// errBooks is the error of a move that the caller has found to be possible before.
var errBooks = errors.New("an account of the jobs gateway has less than it must have; run agora check")

// openBooks creates the accounts of the relay.
func (g *Gateway) openBooks(o *gateway.Op) error {
	for _, of := range []struct {
		id   string
		into *int64
	}{{issueID, &g.issue}, {escrowID, &g.escrow}} {
		a, err := ownerByID(o, of.id)
		if err != nil {
			return err
		}
		if a.n == 0 {
			if a.n, err = gateway.Next(o.ExtTx, ownerCounter); err != nil {
				return err
			}
			a.id, a.opened = of.id, true
			if err := insertOwner(o.ExtTx, a); err != nil {
				return err
			}
		}
		*of.into = a.n
	}
	return nil
}

// move moves r.amount from one account to the other, and stores the record. It fills in the number, the time and, if it
// is empty, the id. enough is false if the payer has too little; then nothing is changed. Only @issue may have less than 0.
func (g *Gateway) move(o *gateway.Op, r record) (moved record, enough bool, err error) {
	payer, err := ownerByNumber(o, r.payer)
	if err != nil {
		return r, false, err
	}
	if r.payer != g.issue && payer.balance < r.amount {
		return r, false, nil
	}
	if r.n, err = gateway.Next(o.ExtTx, recordCounter); err != nil {
		return r, false, err
	}
	r.ts = o.Now
	if r.id == "" {
		r.id = newUUID()
	}
	if err := gateway.Exec(o.ExtTx, "INSERT INTO jobs_record ("+recordColumns+", sum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, "+
		"?, ?, ?)", gateway.WithSum(recordTable, r.values())...); err != nil {
		return r, false, err
	}
	for _, e := range []entry{{owner: r.payer, amount: -r.amount}, {owner: r.payee, amount: r.amount}} {
		if err := enter(o, r, e); err != nil {
			return r, false, err
		}
	}
	if err := countRecord(o.ExtTx, r, 1); err != nil {
		return r, false, err
	}
	t, err := readTotals(o)
	if err != nil {
		return r, false, err
	}
	t.add(r)
	return r, true, writeTotals(o.ExtTx, t)
}

// enter changes the balance of an account, and stores the entry.
func enter(o *gateway.Op, r record, e entry) error {
	a, err := ownerByNumber(o, e.owner)
	if err != nil {
		return err
	}
	if a.n == 0 {
		return fmt.Errorf("record %d moves credits of the account %d, which does not exist", r.n, e.owner)
	}
	a.balance += e.amount
	if err := updateOwner(o.ExtTx, a); err != nil {
		return err
	}
	e.record, e.balance = r.n, a.balance
	return gateway.Exec(o.ExtTx, "INSERT INTO jobs_entry ("+entryColumns+", sum) VALUES (?, ?, ?, ?, ?)",
		gateway.WithSum(entryTable, e.values())...)
}

// issueTo pays new credits to an account. They must be within the supply, see supply.
func (g *Gateway) issueTo(o *gateway.Op, to int64, amount credits.Amount, kind, id string) (record, error) {
	r, _, err := g.move(o, record{id: id, kind: kind, payer: g.issue, payee: to, amount: amount, named: id != ""})
	return r, err
}

// supply returns how many credits may still be issued.
func (g *Gateway) supply(q relay.Querier) (credits.Amount, error) {
	issue, err := ownerByNumber(q, g.issue)
	return max(0, g.options.Supply+issue.balance), err
}

// newUUID returns a random UUID (RFC 9562 §5.4).
func newUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never returns an error (crypto/rand)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	x := hex.EncodeToString(b[:])
	return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
}
