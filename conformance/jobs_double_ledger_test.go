package conformance_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The accounts and the ledger of a double of a registry. They run while its mutex is held.

// doubleRecord is a movement of credits.
type doubleRecord struct {
	id, from, to, job, kind string
	amount                  int64
	at                      time.Time
	by                      *doublePrincipal
	named                   bool // with a transfer_id
	sender, receiver        int64
}

// stranger makes a principal for a request without a key. It returns its key, or the empty string.
func (d *jobsDouble) stranger(c *jobsCall) string {
	if c.from != nil {
		return ""
	}
	if d.strangers++; d.strangers > 20 {
		panic(doubleError{status: http.StatusTooManyRequests, limit: "principals"})
	}
	c.from = &doublePrincipal{key: newKey("cj_"), counted: map[*doubleAgent]int{}}
	d.principals[c.from.key] = c.from
	return c.from.key
}

// account returns an account of the caller. It makes a new one.
func (d *jobsDouble) account(c *jobsCall, id string) *doubleAccount {
	found := d.accounts[id]
	if found == nil {
		if len(c.from.owners) == 16 && !d.has("has no limit of accounts") {
			panic(doubleError{status: http.StatusTooManyRequests, limit: "owners"})
		}
		found = &doubleAccount{id: id, of: c.from}
		d.accounts[id], c.from.owners = found, append(c.from.owners, found)
	}
	return found
}

// pay gives an account its initial credits.
func (d *jobsDouble) pay(a *doubleAccount, asked int64) {
	again := a.paid && d.has("pays accounts again")
	if a.paid && !again {
		return
	}
	d.pause("pays at once")
	a.paid = true
	n := min(asked, 100_000_000-a.of.issued)
	if again || d.has("pays what accounts ask for") {
		n = asked
	}
	if n > 0 {
		a.of.issued += n
		d.move(&doubleRecord{id: newUUID(), from: "@issue", to: a.id, amount: n, kind: "initial", by: a.of})
	}
}

// move moves credits, and writes the record.
func (d *jobsDouble) move(r *doubleRecord) *doubleRecord {
	from, to := d.accounts[r.from], d.accounts[r.to]
	d.pause("transfers without a lock")
	from.balance -= r.amount
	to.balance += r.amount
	r.sender, r.receiver, r.at = from.balance, to.balance, time.Now()
	if !d.has("forgets refunds") || r.kind != "refund" {
		d.records = append(d.records, r)
	}
	return r
}

func (d *jobsDouble) open(c *jobsCall) {
	d.read(c)
	id := d.owner(c, "owner_id")
	asked, given := d.amount(c.body, "initial_balance", "body")
	if !given {
		asked = 100_000_000
	}
	if a := d.accounts[id]; a != nil && a.of != c.from && !d.has("adds accounts of others") {
		refuse(http.StatusConflict)
	}
	d.pause("looks for accounts too early")
	key := d.stranger(c)
	a := d.account(c, id)
	d.pay(a, asked)
	body := object{"owner_id": id, "balance": d.credit(a.balance)}
	if key != "" {
		body["api_key"] = key
	} else if c.from.did != "" && d.has("gives DIDs a key") {
		body["api_key"] = newKey("cj_")
	}
	d.answer(c, http.StatusCreated, body)
}

func (d *jobsDouble) showAccount(c *jobsCall) {
	d.mustPrincipal(c)
	a := d.accounts[c.id]
	if a == nil || strings.HasPrefix(c.id, "@") {
		refuse(http.StatusNotFound)
	}
	if a.of != c.from && !c.from.operator && !d.has("shows foreign accounts") {
		refuse(http.StatusForbidden)
	}
	body := object{"owner_id": c.id, "balance": d.credit(a.balance)}
	if d.has("shows the key again") {
		body["api_key"] = a.of.key
	}
	d.answer(c, http.StatusOK, body)
}

func (d *jobsDouble) showRecord(r *doubleRecord) object {
	return object{"transfer_id": r.id, "from_owner": r.from, "to_owner": r.to, "amount": d.credit(r.amount),
		"job_id": r.job, "timestamp_utc": milliseconds(r.at), "kind": r.kind}
}

// known returns an account that takes part in transfers.
func (d *jobsDouble) known(id string) *doubleAccount {
	a := d.accounts[id]
	if a == nil || strings.HasPrefix(id, "@") {
		refuse(http.StatusNotFound)
	}
	return a
}

func (d *jobsDouble) transfer(c *jobsCall) {
	d.mustPrincipal(c)
	d.read(c)
	_, named := c.body["transfer_id"]
	r := &doubleRecord{id: d.uuid(c.body, "transfer_id"), named: named, kind: "transfer", by: c.from}
	r.from, r.to = d.mustText(c.body, "from_owner", 1, 128, "body"), d.mustText(c.body, "to_owner", 1, 128, "body")
	r.amount = d.mustAmount(c.body, "amount", "body")
	r.job, _ = d.text(c.body, "job_id", 1, 128, "body")
	if lower := strings.ToLower(r.job); doubleUUID.MatchString(lower) && !d.has("compares the spelling of job ids") {
		r.job = lower
	}
	if r.amount == 0 && !d.has("takes transfers of nothing") {
		invalid("body", "amount")
	}
	if r.from == r.to {
		invalid("body", "to_owner")
	}
	if d.has("keeps cents") {
		r.amount -= r.amount % 10_000
	}
	if d.has("makes accounts for payees") && doubleOwner.MatchString(r.to) && d.accounts[r.to] == nil {
		d.accounts[r.to] = &doubleAccount{id: r.to, of: &doublePrincipal{}}
	}
	payer := d.known(r.from)
	d.known(r.to)
	if payer.of != c.from && !d.has("moves everybody's credits") {
		refuse(http.StatusForbidden)
	}
	if done := d.repeated(r, payer); done != nil {
		d.answerTransfer(c, done)
		return
	}
	if payer.balance < r.amount {
		panic(doubleCode("TRANSFER_FAILED"))
	}
	before := payer.balance
	d.move(r)
	if d.has("tells the balance before") {
		r.sender = before
	}
	d.answerTransfer(c, r)
}

func (d *jobsDouble) answerTransfer(c *jobsCall, r *doubleRecord) {
	d.answer(c, http.StatusOK, object{"status": "completed", "transfer": d.showRecord(r),
		"sender_balance": d.credit(r.sender), "receiver_balance": d.credit(r.receiver)})
}

// repeated returns the record that a transfer repeats, or nil.
func (d *jobsDouble) repeated(r *doubleRecord, payer *doubleAccount) *doubleRecord {
	for _, old := range d.records {
		same := old.from == r.from && old.to == r.to && old.amount == r.amount && old.job == r.job
		switch {
		case r.named && old.id == r.id && !d.has("forgets transfer ids"):
			if !same {
				refuse(http.StatusConflict)
			}
			return old
		case !r.named && same && old.kind == "transfer" && !d.has("knows repeats only by transfer_id"):
			return old
		}
	}
	if first := d.settled[r.id]; first != nil && *first != [4]any{r.from, r.to, r.amount, r.job} &&
		!d.has("forgets the ids of settlements") {
		refuse(http.StatusConflict)
	}
	j := d.jobs[r.job]
	if j != nil && j.hirer == payer.of && j.settled != nil && j.settled.to == r.to && !d.has("pays settled jobs again") {
		d.settled[r.id] = &[4]any{r.from, r.to, r.amount, r.job}
		return j.settled
	}
	return nil
}

func (d *jobsDouble) audit(c *jobsCall) {
	d.mustPrincipal(c)
	limit := d.number(c, "limit", 1, 500, 50)
	owner, job := c.values.Get("owner_id"), c.values.Get("job_id")
	var rows []any
	for _, r := range d.records {
		mine := d.accounts[r.from].of == c.from || d.accounts[r.to].of == c.from || c.from.operator ||
			(r.kind == "settle" && r.by == c.from)
		if c.from.operator && d.has("hides records from the operator") {
			mine = false
		}
		if d.has("shows the records of all") {
			mine = true
		}
		if owner != "" && r.from != owner && r.to != owner && !d.has("ignores owner_id") {
			mine = mine && r.kind == "settle" && d.jobs[r.job] != nil && d.jobs[r.job].payer.id == owner
		}
		if mine && (job == "" || r.job == job) {
			rows = append(rows, d.showRecord(r))
		}
	}
	total := len(rows)
	rows = rows[max(0, total-limit):]
	if d.has("shows the newest record first") {
		slices.Reverse(rows)
	}
	d.answer(c, http.StatusOK, object{"transactions": append([]any{}, rows...), "total": total})
}

// number returns a parameter that is a whole number.
func (d *jobsDouble) number(c *jobsCall, name string, least, most, usual int) int {
	if !c.values.Has(name) {
		return usual
	}
	n, err := strconv.Atoi(c.values.Get(name))
	switch bad := err != nil || n < least || n > most; {
	case bad && name == "wait" && d.has("ignores a bad wait"):
		return 0
	case bad:
		invalid("query", name)
	}
	return n
}

func (d *jobsDouble) economy(c *jobsCall) {
	volume, balances := int64(0), object{}
	for _, r := range d.records {
		if r.kind == "settle" || r.kind == "transfer" {
			volume += r.amount
		}
	}
	for id, a := range d.accounts {
		if a.of == c.from || d.has("shows all balances") {
			balances[id] = d.credit(a.balance)
		}
	}
	d.answer(c, http.StatusOK, object{"total_accounts": len(d.accounts) - 2, "total_transactions": len(d.records),
		"total_volume": d.credit(volume), "all_balances": balances})
}

func (d *jobsDouble) grant(c *jobsCall) {
	d.mustPrincipal(c)
	if !c.from.operator && !d.has("lets principals grant") {
		refuse(http.StatusForbidden)
	}
	d.read(c)
	r := &doubleRecord{id: d.uuid(c.body, "grant_id"), from: "@issue", to: d.mustText(c.body, "owner_id", 1, 128, "body"),
		amount: d.mustAmount(c.body, "amount", "body"), kind: "grant", by: c.from, named: true}
	d.known(r.to)
	for _, old := range d.records {
		if old.id == r.id && !d.has("repeats grants") {
			if old.to != r.to || old.amount != r.amount {
				refuse(http.StatusConflict)
			}
			d.answer(c, http.StatusCreated, d.showRecord(old))
			return
		}
	}
	if r.amount-d.accounts["@issue"].balance > 1_000_000_000_000 && !d.has("has no supply") {
		refuse(http.StatusConflict)
	}
	d.answer(c, http.StatusCreated, d.showRecord(d.move(r)))
}

func (d *jobsDouble) health(c *jobsCall) {
	body := object{"service": "chorus-registry", "status": "healthy", "agents_online": len(d.agents),
		"total_skills": len(d.skills()), "total_accounts": len(d.accounts) - 2}
	if d.has("counts no skills") {
		delete(body, "total_skills")
	}
	d.answer(c, http.StatusOK, body)
}

// skills returns the names of all skills of agents that are online.
func (d *jobsDouble) skills() (names []string) {
	for _, a := range d.agents {
		if !d.online(a) && !(a.deleted && d.has("lists the skills of deleted agents")) {
			continue
		}
		for _, s := range a.skills {
			if name := fmt.Sprint(s["skill_name"]); !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
