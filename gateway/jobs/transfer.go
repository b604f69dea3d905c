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

// This file moves credits between accounts.

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
	admit := g.payment(r)
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
		made, balance, err := g.transfer(o, payer, payee, p, admit)
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
// It returns the record, and the balance of the payer after it. A transfer that stores something is admitted first.
func (g *Gateway) transfer(
	o *gateway.Op, payer, payee owner, p transfer, admit func(account int64) error,
) (made record, balance credits.Amount, err error) {
	earlier, balance, err := known(o, payer, payee, p)
	if err != nil || earlier.n != 0 {
		return earlier, balance, err
	}
	if err := admit(payer.n); err != nil {
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
