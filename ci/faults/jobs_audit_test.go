package faults

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// inParallel calls f for all elements, some at a time.
func inParallel[T any](all []T, f func(T)) {
	work := make(chan T)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for x := range work {
				f(x)
			}
		})
	}
	for _, x := range all {
		work <- x
	}
	close(work)
	workers.Wait()
}

// ask sends a request to a relay that runs. Unlike must, any goroutine may call it.
func (l *jobsLoad) ask(c jobsCall) jobsAnswer {
	a, err := l.try(l.t.Context(), c)
	if err != nil {
		l.t.Errorf("%s %s: %v", c.method, c.path, err)
	}
	return a
}

// recordsOf returns the records of a job_id, as the operator sees them.
func (l *jobsLoad) recordsOf(id string) []jobsRecord {
	a := l.ask(jobsCall{"GET", "/audit?limit=500&job_id=" + url.QueryEscape(id), l.operator, nil})
	if a.status != 200 || a.Total != int64(len(a.Records)) {
		l.t.Errorf("the records of %s: %d %s", id, a.status, a.text)
	}
	return a.Records
}

// audit compares what was answered with what the relay has. No job runs, and nobody uses the relay. The result is a
// summary.
func (l *jobsLoad) audit() string {
	b := &jobsBooks{balances: map[string]int64{}, keys: map[string]string{}, counted: map[*jobsAgent]map[string][2]int{},
		outcomes: map[string]int{}}
	for _, a := range l.hirers {
		l.openIn(b, a)
	}
	for _, a := range l.agents {
		l.openIn(b, a.account)
		b.counted[a] = map[string][2]int{}
	}
	for _, n := range l.newcomers {
		l.auditNewcomer(b, n)
	}
	l.auditIssued(b)
	inParallel(slices.Collect(maps.Values(l.jobs)), func(j *hiredJob) { l.auditJob(b, j) })
	inParallel(l.transfers, func(m *creditTransfer) {
		if !m.grant {
			l.auditTransfer(b, m)
		}
	})
	l.auditBalances(b)
	if b.outcomes["SUCCESS"] == 0 {
		l.t.Error("no job has succeeded")
	}
	for _, a := range l.agents {
		l.auditScore(b, a)
	}
	return fmt.Sprintf("%d jobs %v, %d transfers and grants, %d newcomers; %d requests were sent again", len(l.jobs),
		b.outcomes, len(l.transfers), len(l.newcomers), l.resent)
}

// auditNewcomer checks a principal that was created during the kills: its accounts are there whole or not at all.
func (l *jobsLoad) auditNewcomer(b *jobsBooks, n *newcomer) {
	for i, a := range []*account{&n.first, &n.second} {
		_, exists := l.balance(a.id)
		if !exists && a.key != "" {
			l.t.Errorf("the account %s was answered with 201 and does not exist", a.id)
		}
		if exists {
			a.initial = []int64{60_000_000, 40_000_000}[i]
			l.openIn(b, a)
		}
	}
}

// repeat sometimes posts a job or its result again. That must change nothing.
func (l *jobsLoad) repeat(j *hiredJob) {
	if j.accepted && l.oneIn(10) {
		l.post(j, 0, false)
	}
	if j.begun && j.agent.kind == pulls && l.oneIn(10) {
		l.report(j, "/agents/"+j.agent.id+"/results", j.agent.account.key, planned)
	}
}

// auditJob checks that a job that was answered exists and has ended once, as its agent has said. A job that was not
// answered must be there whole or not at all.
func (l *jobsLoad) auditJob(b *jobsBooks, j *hiredJob) {
	t := l.t
	l.repeat(j)
	a := l.ask(jobsCall{"GET", "/jobs/" + j.id, j.hirer.key, nil})
	records := l.recordsOf(j.id)
	if a.status != 200 {
		if a.status != 403 || j.accepted || j.final != "" || len(records) > 0 || len(l.told[j.id]) > 0 || j.begun {
			t.Errorf("job %s (accepted: %t) is answered with %d %s, has the records %v and the callbacks %v", j.id, j.accepted,
				a.status, a.text, records, l.told[j.id])
		}
		b.count("not made")
		return
	}
	if l.saw(j, a); j.final == "" || j.refused {
		t.Errorf("job %s (refused: %t) is %s", j.id, j.refused, a.text)
		return
	}
	r := parseFinal(t, j, j.final)
	cost := l.auditOutcome(b, j, r)
	want := []jobsRecord{{Kind: "hold", From: j.hirer.id, To: "@escrow", Amount: credits(j.budget), JobID: j.id},
		{Kind: "settle", From: "@escrow", To: j.agent.account.id, Amount: credits(cost), JobID: j.id},
		{Kind: "refund", From: "@escrow", To: j.hirer.id, Amount: credits(j.budget - cost), JobID: j.id}}
	want = slices.DeleteFunc(want, func(r jobsRecord) bool { return r.Amount == 0 })
	for i := range records {
		records[i].ID = ""
	}
	if !slices.Equal(records, want) {
		t.Errorf("job %s, which is %s, has the records %v, want %v", j.id, j.final, records, want)
	}
	for i, got := range l.told[j.id] {
		if got != j.final {
			t.Errorf("job %s: the hirer got %s in callback %d, and the job is %s", j.id, got, i+1, j.final)
		}
	}
	if got := len(l.told[j.id]); (got > 0) != j.callback {
		t.Errorf("job %s (callback: %t) has come %d times to its hirer", j.id, j.callback, got)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.move(j.hirer, nil, j.budget)
	if cost > 0 {
		b.volume += cost
		b.move(nil, j.agent.account, cost)
	}
	if j.budget > cost {
		b.move(nil, j.hirer, j.budget-cost)
	}
	if j.hirer != j.agent.account {
		n := b.counted[j.agent][j.hirer.id]
		switch {
		case r.Status == "FAILURE":
			n[1]++
		case cost > 0:
			n[0]++
		}
		b.counted[j.agent][j.hirer.id] = n
	}
}

func (b *jobsBooks) count(outcome string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes[outcome]++
}

// The messages of jobs that the relay has ended begin so.
const (
	lateMessage   = "the agent has not delivered in time"
	brokenMessage = "the agent's endpoint answered with something that is not a JobResult"
)

// auditOutcome checks that a job has ended as its agent or the relay have decided, and returns what it must have cost.
func (l *jobsLoad) auditOutcome(b *jobsBooks, j *hiredJob, r finalResult) (cost int64) {
	status, variant := "FAILURE", r.Output.Variant
	byRelay := variant == ""
	if !byRelay {
		status, cost = j.status(variant)
		b.count(status)
	}
	switch late := strings.HasPrefix(r.Message, lateMessage); {
	case byRelay && late && l.timeout > 0 && j.agent.kind != answers && j.agent.kind != answersAfter404:
		b.count("late")
	case byRelay && (!strings.HasPrefix(r.Message, brokenMessage) || !j.broken) || j.broken && !byRelay:
		l.t.Errorf("job %s (broken: %t) has ended as %s", j.id, j.broken, j.final)
	case byRelay:
		b.count("broken")
	}
	if r.Status != status || micro(r.Cost) != cost || (status == "FAILURE") != (r.Code == "EXECUTION_ERROR") {
		l.t.Errorf("job %s has ended as %s, want %s with the cost %d", j.id, j.final, status, cost)
	}
	if asked := j.agent.kind == pulls || j.agent.kind == callsBack; asked && !byRelay && !j.taken[variant] {
		l.t.Errorf("job %s has ended by a result that was not answered with 200: %s", j.id, j.final)
	}
	for taken, ok := range j.taken {
		if ok != (taken == variant) {
			l.t.Errorf("job %s: the %s result was taken: %t, and the job is %s", j.id, taken, ok, j.final)
		}
	}
	return cost
}
