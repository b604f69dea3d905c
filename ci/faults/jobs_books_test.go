package faults

import "sync"

// jobsBooks are what the ledger must have. The test computes them from what was answered, and from what agents have
// delivered.
type jobsBooks struct {
	mu       sync.Mutex
	balances map[string]int64 // by owner_id; the accounts that must exist
	keys     map[string]string
	issued   int64
	records  int64
	volume   int64
	counted  map[*jobsAgent]map[string][2]int // jobs that can change the score, by hirer: successes and failures
	outcomes map[string]int
}

// move adds a record to the books. Accounts of the relay have no balance there.
func (b *jobsBooks) move(from, to *account, amount int64) {
	b.records++
	if from != nil {
		b.balances[from.id] -= amount
	}
	if to != nil {
		b.balances[to.id] += amount
	}
}

// openIn adds an account with its initial balance to the books.
func (l *jobsLoad) openIn(b *jobsBooks, a *account) {
	b.balances[a.id] = 0
	b.keys[a.id] = a.key
	if a.initial > 0 {
		b.issued += a.initial
		b.move(nil, a, a.initial)
	}
}

// balance returns the balance of an account, as the operator sees it.
func (l *jobsLoad) balance(id string) (balance int64, exists bool) {
	a := l.ask(jobsCall{"GET", "/accounts/" + id, l.operator, nil})
	if a.status != 200 && a.status != 404 {
		l.t.Errorf("the account %s: %d %s", id, a.status, a.text)
	}
	return micro(a.Balance), a.status == 200
}

// auditTransfer checks that a transfer was made exactly once if it was answered, and otherwise at most once.
func (l *jobsLoad) auditTransfer(b *jobsBooks, m *creditTransfer) {
	if m.answer != "" && l.oneIn(5) {
		l.send(m)
	}
	records := l.recordsOf(m.label)
	if len(records) > 1 || len(records) == 0 && m.answer != "" || len(records) == 1 && m.refused {
		l.t.Errorf("%s (refused: %t), which was answered with %q, has the records %v", m.label, m.refused, m.answer,
			records)
	}
	if len(records) != 1 {
		return
	}
	r := records[0]
	want := jobsRecord{r.ID, m.from.id, m.to.id, credits(m.amount), m.label, "transfer"}
	if r != want || m.id != "" && m.id != r.ID {
		l.t.Errorf("%s has the record %v, want %v", m.label, r, want)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.volume += m.amount
	b.move(m.from, m.to, m.amount)
}

// auditIssued checks the records that have issued credits. Before it, the books must have all accounts with their
// initial balances, and nothing else.
func (l *jobsLoad) auditIssued(b *jobsBooks) {
	t := l.t
	made := map[string]jobsRecord{}
	initial := map[string]int64{}
	a := l.ask(jobsCall{"GET", "/audit?limit=500&owner_id=@issue", l.operator, nil})
	if a.status != 200 || a.Total != int64(len(a.Records)) {
		t.Errorf("the records of @issue: %d, %d of %d", a.status, len(a.Records), a.Total)
	}
	sum := int64(0)
	for _, r := range a.Records {
		sum += micro(r.Amount)
		switch {
		case r.Kind == "initial" && r.From == "@issue" && initial[r.To] == 0:
			initial[r.To] = micro(r.Amount)
		case r.Kind == "grant" && r.From == "@issue" && made[r.ID].ID == "":
			made[r.ID] = r
		default:
			t.Errorf("the ledger has issued credits by the record %v", r)
		}
	}
	for id, issued := range initial {
		if balance, known := b.balances[id]; !known || balance != issued {
			t.Errorf("the initial balance of %s is %d, want %d", id, issued, balance)
		}
	}
	for _, m := range l.transfers {
		r, exists := made[m.id]
		delete(made, m.id)
		switch {
		case !m.grant:
		case !exists && m.answer != "":
			t.Errorf("grant %s was answered with %s and has no record", m.id, m.answer)
		case exists && (r.To != m.to.id || micro(r.Amount) != m.amount):
			t.Errorf("grant %s of %d to %s has the record %v", m.id, m.amount, m.to.id, r)
		case exists:
			b.issued += m.amount
			b.move(nil, m.to, m.amount)
		}
	}
	if len(made) > 0 || sum != b.issued {
		t.Errorf("the ledger has issued %d, want %d; grants of nobody: %v", sum, b.issued, made)
	}
}

// auditBalances compares all balances with the books. They sum to what was issued, because no job runs.
func (l *jobsLoad) auditBalances(b *jobsBooks) {
	sum := int64(0)
	for id, want := range b.balances {
		got, exists := l.balance(id)
		if sum += got; got != want || got < 0 || !exists {
			l.t.Errorf("the account %s (exists: %t) has %d, want %d", id, exists, got, want)
		}
		if key := b.keys[id]; key != "" {
			if own := l.ask(jobsCall{"GET", "/accounts/" + id, key, nil}); micro(own.Balance) != got {
				l.t.Errorf("the account %s has %d, and for its principal: %s", id, got, own.text)
			}
		}
	}
	if sum != b.issued {
		l.t.Errorf("all accounts have %d, and %d were issued", sum, b.issued)
	}
	if e := l.ask(jobsCall{"GET", "/economy", "", nil}); e.TotalCount != b.records || micro(e.Volume) != b.volume {
		l.t.Errorf("the economy is %s, want %d records and the volume %d", e.text, b.records, b.volume)
	}
}

// auditScore compares the reputation of an agent with its jobs. Of each hirer, the first 20 jobs count.
func (l *jobsLoad) auditScore(b *jobsBooks, a *jobsAgent) {
	got := l.ask(jobsCall{"GET", "/reputation/" + a.id, "", nil})
	s, total, least, most := got.Stats, 0, [2]int{}, [2]int{}
	for _, n := range b.counted[a] {
		total += min(20, n[0]+n[1])
		for i := range n {
			least[i] += max(0, min(20, n[0]+n[1])-n[1-i])
			most[i] += min(20, n[i])
		}
	}
	if s.Total != total || s.Successes+s.Failures != total || s.Successes < least[0] || s.Successes > most[0] {
		l.t.Errorf("agent %s has the stats %+v, want %d jobs, of which %d to %d are successes", a.id, s, total, least[0],
			most[0])
	}
	want := 50 + float64(s.Successes) - 4.5*float64(s.Failures)
	if s.Failures > 11 || s.Successes > 50 { // the score may have reached 0 or 100
		want = min(max(got.Score, 0), 100)
	}
	if got.Score != want {
		l.t.Errorf("agent %s has the stats %+v and the score %v, want %v", a.id, s, got.Score, want)
	}
}
