package jobs

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file moves credits between accounts, and shows the ledger.

// transfer is the body of POST /transfer.
type transfer struct {
	id       string // empty: absent
	from, to string
	amount   credits.Amount
	jobID    string // empty: absent
}

func parseTransfer(f *form) transfer {
	p := transfer{id: f.uuid("transfer_id"), from: f.text("from_owner", true, 1, maxName),
		to: f.text("to_owner", true, 1, maxName), amount: f.amount("amount", true),
		jobID: asJobID(f.text("job_id", false, 1, maxName))}
	if f.err() == nil && p.amount == 0 {
		f.fail("amount", "must be above 0")
	}
	if f.err() == nil && p.from == p.to {
		f.fail("to_owner", "must not be the same account as from_owner")
	}
	return p
}

// asJobID returns a UUID in lower case, as the ids of jobs are kept, and any other text as it is.
func asJobID(text string) string {
	if uuidForm.MatchString(text) {
		return strings.ToLower(text)
	}
	return text
}

// content returns a hash of what a transfer says, to recognize its repeats.
func (p transfer) content() []byte {
	hash := sha256.Sum256(fmt.Appendf(nil, "%q %q %d %q", p.from, p.to, int64(p.amount), p.jobID))
	return hash[:]
}

// shownRecord is a record as answers show it.
type shownRecord struct {
	ID        string         `json:"transfer_id"`
	From      string         `json:"from_owner"`
	To        string         `json:"to_owner"`
	Amount    credits.Amount `json:"amount"`
	JobID     string         `json:"job_id"`
	Timestamp stamp          `json:"timestamp_utc"`
	Kind      string         `json:"kind"`
}

func showRecord(q relay.Querier, r record) (s shownRecord, err error) {
	payer, err := ownerByNumber(q, r.payer)
	if err != nil {
		return s, err
	}
	payee, err := ownerByNumber(q, r.payee)
	return shownRecord{r.id, payer.id, payee.id, r.amount, r.jobID, stamp(r.ts), r.kind}, err
}

// postTransfer is the handler of POST /transfer.
func (g *Gateway) postTransfer(r *request) error {
	if err := r.needPrincipal(); err != nil {
		return err
	}
	f, err := g.read(r.from, r.body)
	if err != nil {
		return err
	}
	p := parseTransfer(f)
	if err := f.err(); err != nil {
		return err
	}
	answer := struct {
		Status   string         `json:"status"`
		Transfer shownRecord    `json:"transfer"`
		Sender   credits.Amount `json:"sender_balance"`
		Receiver credits.Amount `json:"receiver_balance"`
	}{Status: "completed"}
	err = g.Update(r.detached(), r.from, func(o *gateway.Op) error {
		payer, err := ownerByID(o, p.from)
		if err != nil {
			return err
		}
		payee, err := ownerByID(o, p.to)
		switch {
		case err != nil:
			return err
		case payer.n == 0 || payer.principal == 0:
			return notFound("there is no account with the owner_id in from_owner")
		case !r.caller.owns(payer.principal):
			return forbidden("only the principal of an account can pay from it")
		case payee.n == 0 || payee.principal == 0:
			return notFound("there is no account with the owner_id in to_owner; its owner must create it before")
		}
		made, balance, err := g.transfer(o, payer, payee, p)
		if err != nil {
			return err
		}
		answer.Sender = balance
		if answer.Transfer, err = showRecord(o, made); err != nil {
			return err
		}
		answer.Receiver, err = balanceAfter(o, payee.n, made.n)
		return err
	})
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, answer)
}

// transfer moves credits, unless they were moved before: by the same transfer, or by the end of the job that they are for.
// It returns the record, and the balance of the payer after it.
func (g *Gateway) transfer(o *gateway.Op, payer, payee owner, p transfer) (made record, balance credits.Amount, err error) {
	earlier, balance, err := known(o, payer, payee, p)
	if err != nil || earlier.n != 0 {
		return earlier, balance, err
	}
	if p.jobID != "" {
		paid, err := settlement(o, payer.principal, payee, p.jobID)
		if err != nil || paid.n != 0 {
			return paid, payer.balance, cmp.Or(err, remember(o, payer, p, paid))
		}
	}
	made, enough, err := g.move(o, record{id: p.id, kind: kindTransfer, payer: payer.n, payee: payee.n, amount: p.amount,
		jobID: p.jobID, named: p.id != ""})
	if err == nil && !enough {
		err = &refusal{http.StatusBadRequest, codeTransfer, tooLittle(payer, p.amount)}
	}
	return made, payer.balance - p.amount, err
}

// tooLittle says that an account has less than an amount. Only the account's principal may see it.
func tooLittle(a owner, amount credits.Amount) string {
	return fmt.Sprintf("the account %s has %v, which is less than %v", a.id, a.balance, amount)
}

// known returns the record with which a transfer was answered before.
func known(o *gateway.Op, payer, payee owner, p transfer) (r record, balance credits.Amount, err error) {
	taken := conflict("this transfer_id was used for something else; use a new one for another transfer")
	if p.id == "" {
		if r, err = repeated(o, payer, payee, p); err != nil || r.n == 0 {
			return r, 0, err
		}
	} else if r, err = recordByID(o, p.id); err != nil {
		return r, 0, err
	} else if r.n == 0 {
		var content []byte
		number := int64(0)
		err := o.Query(func(scan gateway.Scanner) error { return scan(&content, &number, &balance) },
			"SELECT content, record, balance FROM jobs_settled WHERE id = ?", p.id)
		if err != nil || number == 0 {
			return r, 0, err
		}
		if !bytes.Equal(content, p.content()) {
			return r, 0, taken
		}
		r, err = recordByNumber(o, number)
		return r, balance, err
	} else if r.kind != kindTransfer || r.payer != payer.n || r.payee != payee.n || r.amount != p.amount || r.jobID != p.jobID {
		return r, 0, taken
	}
	balance, err = balanceAfter(o, payer.n, r.n)
	return r, balance, err
}

// jobs_settled has the transfer_ids that were answered with the payment of a job.
const (
	settledTable   = "jobs_settled"
	settledColumns = "id, content, record, balance"
)

// remember records that a transfer was answered with the payment of a job. A transfer without an id is not remembered: its
// repeats get that payment again.
func remember(o *gateway.Op, payer owner, p transfer, paid record) error {
	if p.id == "" {
		return nil
	}
	return gateway.Exec(o.ExtTx, "INSERT INTO jobs_settled ("+settledColumns+", sum) VALUES (?, ?, ?, ?, ?)",
		gateway.WithSum(settledTable, []any{p.id, p.content(), paid.n, int64(payer.balance)})...)
}

// settlement returns the record with which a job of a principal has paid an account. A job has three records at most, so
// this takes no longer if there are many other transfers with its job_id.
func settlement(q relay.Querier, hirer int64, payee owner, jobID string) (r record, err error) {
	j, err := jobByID(q, jobID)
	if err != nil || j.n == 0 || j.hirer != hirer {
		return r, err
	}
	err = q.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+recordColumns+" FROM jobs_record WHERE job = ? AND kind = 'settle' AND payee = ? ORDER BY n LIMIT 1", j.n, payee.n)
	return r, err
}

// repeated returns the transfer that one without an id repeats.
func repeated(o *gateway.Op, payer, payee owner, p transfer) (r record, err error) {
	err = o.Query(func(scan gateway.Scanner) error { return scan(r.fields()...) },
		"SELECT "+recordColumns+" FROM jobs_record WHERE payer = ? AND payee = ? AND amount = ? AND job_id = ? AND ts > ? AND "+
			"named = 0 AND kind = 'transfer' ORDER BY ts DESC LIMIT 1", payer.n, payee.n, int64(p.amount), p.jobID,
		o.Now-int64(repeatTime))
	return r, err
}

// Bounds of the parameter limit of GET /audit.
const (
	maxAudit     = 500
	defaultAudit = 50
)

// getAudit is the handler of GET /audit.
func (g *Gateway) getAudit(r *request) error {
	if r.caller.kind == anyone {
		return unauthorized()
	}
	query, err := newQuery(r.Request, "job_id", "owner_id", "limit")
	if err != nil {
		return err
	}
	limit := query.number("limit", 1, maxAudit, defaultAudit)
	if err := query.err(); err != nil {
		return err
	}
	found := struct {
		Transactions []shownRecord `json:"transactions"`
		Total        int64         `json:"total"`
	}{}
	err = g.Relay.View(r.Context(), r.from, func(q relay.Querier) error {
		found.Transactions = []shownRecord{}
		of, err := ownerByID(q, query.values["owner_id"])
		if err != nil || of.n == 0 && query.values["owner_id"] != "" {
			return err
		}
		records, total, err := audit(q, r.caller, of.n, asJobID(query.values["job_id"]), limit)
		found.Total = total
		for i := len(records) - 1; i >= 0 && err == nil; i-- {
			var s shownRecord
			s, err = showRecord(q, records[i])
			found.Transactions = append(found.Transactions, s)
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, found)
}

// These conditions select the records of an account, those of a job_id, and those that a principal may see: the records of
// its accounts, and the payments of its jobs.
const (
	ofAccount = "(CAST(? AS BIGINT) = 0 OR payer = ? OR payee = ? OR behalf = ?)"
	ofJob     = "job_id = ? AND job_id <> ''"
	ofOwn     = "EXISTS (SELECT 1 FROM jobs_owner w WHERE w.principal = ? AND (w.n = payer OR w.n = payee OR w.n = behalf))"
	allOwn    = "(SELECT e.record AS visible FROM jobs_entry e JOIN jobs_owner w ON w.n = e.owner WHERE w.principal = ? " +
		"UNION SELECT b.n FROM jobs_record b JOIN jobs_owner w ON w.n = b.behalf WHERE b.behalf > 0 AND w.principal = ?) AS v " +
		"JOIN jobs_record ON n = v.visible"
)

// audit returns the newest records that the caller may see, the newest first, and how many there are. of is the number of
// an account; 0: all. jobID is empty: all.
func audit(q relay.Querier, c caller, of int64, jobID string, limit int64) (all []record, total int64, err error) {
	var count, page string
	var args []any
	account := []any{of, of, of, of}
	switch isOperator := c.kind == theOperator; {
	case isOperator && jobID == "":
		count = "SELECT COUNT(*) FROM jobs_record WHERE " + ofAccount
		page = "SELECT " + recordColumns + " FROM jobs_record WHERE " + ofAccount + " ORDER BY n DESC LIMIT ?"
		args = account
	case isOperator:
		count = "SELECT COUNT(*) FROM jobs_record WHERE " + ofJob + " AND " + ofAccount
		page = "SELECT " + recordColumns + " FROM jobs_record WHERE " + ofJob + " AND " + ofAccount + " ORDER BY n DESC LIMIT ?"
		args = append([]any{jobID}, account...)
	case jobID == "":
		count = "SELECT COUNT(*) FROM " + allOwn + " WHERE " + ofAccount
		page = "SELECT " + recordColumns + " FROM " + allOwn + " WHERE " + ofAccount + " ORDER BY n DESC LIMIT ?"
		args = append([]any{c.principal, c.principal}, account...)
	default:
		count = "SELECT COUNT(*) FROM jobs_record WHERE " + ofJob + " AND " + ofOwn + " AND " + ofAccount
		page = "SELECT " + recordColumns + " FROM jobs_record WHERE " + ofJob + " AND " + ofOwn + " AND " + ofAccount +
			" ORDER BY n DESC LIMIT ?"
		args = append([]any{jobID, c.principal}, account...)
	}
	if total, err = gateway.Number(q, count, args...); err != nil {
		return nil, 0, err
	}
	err = q.Query(func(scan gateway.Scanner) error {
		var r record
		err := scan(r.fields()...)
		all = append(all, r)
		return err
	}, page, append(args, limit)...)
	return all, total, err
}

// getEconomy is the handler of GET /economy.
func (g *Gateway) getEconomy(r *request) error {
	e := struct {
		Accounts     int64                     `json:"total_accounts"`
		Transactions int64                     `json:"total_transactions"`
		Volume       raw                       `json:"total_volume"`
		Balances     map[string]credits.Amount `json:"all_balances"`
	}{}
	err := g.Relay.View(r.Context(), r.from, func(q relay.Querier) (err error) {
		e.Balances = map[string]credits.Amount{}
		if e.Accounts, err = countAccounts(q); err != nil {
			return err
		}
		t, err := readTotals(q)
		if err != nil {
			return err
		}
		e.Transactions, e.Volume = t.records, raw(credits.Format(t.volume))
		own, err := visibleOwners(q, r.caller)
		for _, a := range own {
			e.Balances[a.id] = a.balance
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.answer(http.StatusOK, e)
}

// visibleOwners returns the accounts whose balance the caller may see in GET /economy.
func visibleOwners(q relay.Querier, c caller) ([]owner, error) {
	if c.kind != aPrincipal || c.principal == 0 {
		return nil, nil
	}
	return ownersOf(q, c.principal)
}
