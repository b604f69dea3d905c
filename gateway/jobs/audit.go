package jobs

import (
	"math"
	"net/http"
	"slices"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
)

// This file shows the ledger. Records are found by indexes, the newest first, and their number is read from a counter. So
// an answer takes as long for a million records as for a thousand.

// Bounds of GET /audit: of its parameter limit, and how many records it counts where there is no counter.
const (
	maxAudit     = 500
	defaultAudit = 50
	maxCounted   = maxAudit
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
	a := auditor{limit: int(limit), escrow: g.escrow, all: r.caller.kind == theOperator}
	var found []record // the newest first
	var total int64
	err = g.Relay.View(r.Context(), r.from, func(q relay.Querier) error {
		found, total = nil, 0
		of, err := ownerByID(q, query.values["owner_id"])
		if err != nil || of.n == 0 && query.values["owner_id"] != "" {
			return err
		}
		a.q, a.of, a.jobID = q, of.n, asJobID(query.values["job_id"])
		a.own, a.names = nil, map[int64]string{}
		found, total, err = a.audit(r.caller)
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(found)
	return r.list("transactions", gateway.List(r.Context(), g.Core, r.from, found,
		func(q relay.Querier, left []record, p *gateway.Piece) ([]record, bool, error) {
			a.q = q
			done, err := gateway.AddRows(p, left, func(made record) error {
				shown, err := a.show(made)
				p.Add(shown)
				return err
			})
			return left[done:], done < len(left), err
		}), totalTail("total", &total))
}

// auditor finds the records of one answer of GET /audit.
type auditor struct {
	q      relay.Querier
	of     int64  // the number of an account; 0: all
	jobID  string // empty: all
	limit  int
	escrow int64
	all    bool             // the caller is the operator, who sees all records
	own    []int64          // the accounts of any other caller
	names  map[int64]string // owner_ids by the numbers of accounts
}

// audit returns the newest records that the caller may see, the newest first, and how many there are. Where there is no
// counter, total is at most maxCounted.
func (a *auditor) audit(c caller) (all []record, total int64, err error) {
	if !a.all {
		if c.principal == 0 {
			return nil, 0, nil
		}
		owners, err := ownersOf(a.q, c.principal)
		if err != nil {
			return nil, 0, err
		}
		for _, o := range owners {
			a.own, a.names[o.n] = append(a.own, o.n), o.id
		}
	}
	total = -1
	var streams []stream
	switch {
	case a.jobID != "":
		streams, err = a.ofJob()
	case a.of == 0 && a.all:
		streams = []stream{{"SELECT n FROM jobs_record WHERE n < ? ORDER BY n DESC LIMIT ?", nil}}
		total, err = presentRecords(a.q)
	case a.of == 0:
		streams = ofAccounts(a.own...)
		total, err = counted(a.q, countOfPrincipal, c.principal)
	case a.all || slices.Contains(a.own, a.of):
		streams = ofAccounts(a.of)
		total, err = counted(a.q, countOfAccount, a.of)
	default:
		streams = a.sharedWith()
	}
	if err != nil {
		return nil, 0, err
	}
	if total >= 0 {
		all, err = a.newest(streams, a.limit)
		return all, total, err
	}
	all, err = a.newest(streams, maxCounted)
	return all[:min(len(all), a.limit)], int64(len(all)), err
}

// presentRecords returns how many records there are that were not folded.
func presentRecords(q relay.Querier) (int64, error) {
	t, err := readTotals(q)
	if err != nil {
		return 0, err
	}
	folded, err := readFolded(q)
	return t.records - folded.records, err
}

// stream finds numbers of records with an index, the newest first. text has two more parameters than args: a number that
// is above those wanted, and how many are wanted.
type stream struct {
	text string
	args []any
}

// onBehalf finds the payments that use the holds of an account.
const onBehalf = "SELECT n FROM jobs_record WHERE behalf = ? AND behalf > 0 AND n < ? ORDER BY n DESC LIMIT ?"

// ofAccounts finds the records in which one of these accounts takes part.
func ofAccounts(accounts ...int64) (all []stream) {
	for _, n := range accounts {
		all = append(all,
			stream{"SELECT record FROM jobs_entry WHERE owner = ? AND record < ? ORDER BY record DESC LIMIT ?", []any{n}},
			stream{onBehalf, []any{n}})
	}
	return all
}

// sharedWith finds the records between an account of the caller and the account a.of.
func (a *auditor) sharedWith() (all []stream) {
	const (
		between = "SELECT n FROM jobs_record WHERE payer = ? AND payee = ? AND n < ? ORDER BY n DESC LIMIT ?"
		paying  = "SELECT n FROM jobs_record WHERE behalf = ? AND payee = ? AND behalf > 0 AND n < ? ORDER BY n DESC LIMIT ?"
	)
	for _, own := range a.own {
		all = append(all, stream{between, []any{own, a.of}}, stream{between, []any{a.of, own}},
			stream{paying, []any{own, a.of}}, stream{paying, []any{a.of, own}})
		if a.of == a.escrow { // it makes all payments
			all = append(all, stream{onBehalf, []any{own}})
		}
	}
	return all
}

// ofJob finds the records with a job_id: those of the job, and the transfers that name it.
func (a *auditor) ofJob() (all []stream, err error) {
	if a.all {
		return []stream{{"SELECT n FROM jobs_record WHERE job_id = ? AND job_id <> '' AND n < ? ORDER BY n DESC LIMIT ?",
			[]any{a.jobID}}}, nil
	}
	j, err := jobByID(a.q, a.jobID)
	if err != nil {
		return nil, err
	}
	if j.n != 0 {
		all = append(all, stream{"SELECT n FROM jobs_record WHERE job = ? AND n < ? ORDER BY n DESC LIMIT ?", []any{j.n}})
	}
	for _, own := range a.own {
		all = append(all,
			stream{"SELECT n FROM jobs_record WHERE payer = ? AND job_id = ? AND kind = 'transfer' AND job_id <> '' AND n < ? " +
				"ORDER BY n DESC LIMIT ?", []any{own, a.jobID}},
			stream{"SELECT n FROM jobs_record WHERE payee = ? AND job_id = ? AND kind = 'transfer' AND job_id <> '' AND n < ? " +
				"ORDER BY n DESC LIMIT ?", []any{own, a.jobID}})
	}
	return all, nil
}

// streamStep is how many numbers one query of a stream finds at most.
const streamStep = 64

// newest returns the newest records that the streams find and that are visible, at most this many, without repeats. It
// examines maxCounted records.
func (a *auditor) newest(streams []stream, most int) (all []record, err error) {
	heads := make([][]int64, len(streams)) // the numbers that each stream has found and that were not used yet
	bounds := make([]int64, len(streams))  // where each stream continues; 0: it has ended
	for i := range bounds {
		bounds[i] = math.MaxInt64
	}
	for examined := 0; len(all) < most && examined < maxCounted; examined++ {
		largest := int64(0)
		for i, s := range streams {
			if len(heads[i]) == 0 && bounds[i] > 0 {
				step := min(streamStep, most)
				if heads[i], err = gateway.Numbers(a.q, s.text, append(slices.Clone(s.args), bounds[i], step)...); err != nil {
					return nil, err
				}
				if bounds[i] = 0; len(heads[i]) == step {
					bounds[i] = heads[i][step-1]
				}
			}
			if len(heads[i]) > 0 {
				largest = max(largest, heads[i][0])
			}
		}
		if largest == 0 {
			break
		}
		for i := range heads {
			if len(heads[i]) > 0 && heads[i][0] == largest {
				heads[i] = heads[i][1:]
			}
		}
		r, err := recordByNumber(a.q, largest)
		if err != nil {
			return nil, err
		}
		if a.sees(r) {
			all = append(all, r)
		}
	}
	return all, nil
}

// sees reports whether a record is one of the caller and of the account a.of. A stream may find others, because a job has
// records of both of its sides.
func (a *auditor) sees(r record) bool {
	of := func(n int64) bool { return n != 0 && (r.payer == n || r.payee == n || r.behalf == n) }
	return (a.of == 0 || of(a.of)) && (a.all || slices.ContainsFunc(a.own, of))
}

// show returns a record as answers show it.
func (a *auditor) show(r record) (shownRecord, error) {
	for _, n := range []int64{r.payer, r.payee} {
		if _, known := a.names[n]; !known {
			o, err := ownerByNumber(a.q, n)
			if err != nil {
				return shownRecord{}, err
			}
			a.names[n] = o.id
		}
	}
	return shownRecord{r.id, a.names[r.payer], a.names[r.payee], r.amount, r.jobID, stamp(r.ts), r.kind}, nil
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
		f, err := readFigures(q, g.Relay.Now().UnixNano())
		if err != nil {
			return err
		}
		e.Accounts = f.accounts
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
