package faults

import (
	"context"
	"fmt"
	"time"
)

// newJob returns a job that was not posted yet, with a random plan.
func (l *jobsLoad) newJob(hirer *account, agent *jobsAgent) *hiredJob {
	price := agent.price
	j := &hiredJob{id: l.uuid(), hirer: hirer, agent: agent, budget: price + int64(l.intN(2)*l.intN(100_000)),
		claim: []int64{-1, price / 3, price, 2 * price}[l.intN(4)], fails: l.oneIn(8), callback: l.oneIn(3),
		broken: agent.kind == answers && l.oneIn(20), taken: map[string]bool{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jobs[j.id] = j
	return j
}

// order returns the request that posts a job.
func (l *jobsLoad) order(j *hiredJob, wait int) jobsCall {
	body := map[string]any{"job_id": j.id, "orchestrator_id": j.hirer.id, "skill_name": "work",
		"budget": credits(j.budget), "input_data": map[string]any{"text": "for " + j.id}}
	if j.callback {
		body["callback_url"] = l.hook.URL + "/results"
	}
	return jobsCall{"POST", fmt.Sprintf("/a/%s/jobs?wait=%d", j.agent.id, wait), j.hirer.key, body}
}

// hire posts jobs until ctx ends. Each is posted until it is answered, but sometimes the hirer gives up.
func (l *jobsLoad) hire(ctx context.Context, hirer *account, agents []*jobsAgent) {
	for ctx.Err() == nil {
		j := l.newJob(hirer, agents[l.intN(len(agents))])
		l.post(j, l.intN(2), true)
		for untilEnd := l.oneIn(3); untilEnd && ctx.Err() == nil && l.runs(j); {
			sleep(20 * time.Millisecond)
			l.post(j, 0, false)
		}
		l.thank(j)
		l.pause(40 * time.Millisecond)
	}
}

// post posts a job until it is answered, and records the answer.
func (l *jobsLoad) post(j *hiredJob, wait int, mayLeave bool) {
	a, answered := l.insist(l.order(j, wait), mayLeave)
	if !answered {
		return
	}
	refused := map[string]bool{"SKILL_MISMATCH": true, "BUDGET_INSUFFICIENT": true, "AGENT_OFFLINE": true,
		"TRANSFER_FAILED": true}[a.Code]
	switch {
	case a.status == 202 && a.Status == "PENDING", a.status == 200 && !refused:
		l.saw(j, a)
	case a.status != 200 || a.Code != "TRANSFER_FAILED":
		l.t.Errorf("job %s was refused: %d %s", j.id, a.status, a.text)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if j.accepted, j.refused = j.accepted || !refused, j.refused || refused; j.accepted && j.refused {
		l.t.Errorf("job %s was first taken, and then refused: %s", j.id, a.text)
	}
}

// runs reports whether a job was taken and has not ended, as far as its hirer knows.
func (l *jobsLoad) runs(j *hiredJob) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return j.accepted && j.final == ""
}

// saw records a JobResult that the relay has shown. After the end of the job it must always be the same.
func (l *jobsLoad) saw(j *hiredJob, a jobsAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case a.Status != "PENDING" && j.final == "":
		j.final = a.text
	case j.final != "" && a.text != j.final:
		l.t.Errorf("job %s has ended as %s, and then is %s", j.id, j.final, a.text)
	}
}

// thank sends the payment for a job that has been paid, as programs of upstream do. It must move nothing (J-5).
func (l *jobsLoad) thank(j *hiredJob) {
	l.mu.Lock()
	final := j.final
	l.mu.Unlock()
	r := parseFinal(l.t, j, final)
	if r.Cost == 0 || j.hirer == j.agent.account {
		return
	}
	a, answered := l.insist(jobsCall{"POST", "/transfer", j.hirer.key, map[string]any{"from_owner": j.hirer.id,
		"to_owner": j.agent.account.id, "amount": r.Cost, "job_id": j.id}}, true)
	if answered && a.status != 200 {
		l.t.Errorf("the payment for job %s, which has been paid: %d %s", j.id, a.status, a.text)
	}
}

func (l *jobsLoad) anyHirer() *account { return l.hirers[l.intN(len(l.hirers))] }

// transfer moves credits from an account to others until ctx ends.
func (l *jobsLoad) transfer(ctx context.Context, from *account) {
	for ctx.Err() == nil {
		l.pause(100 * time.Millisecond)
		m := &creditTransfer{id: l.uuid(), from: from, to: l.anyHirer(), amount: 1 + int64(l.intN(300_000))}
		if m.label = "transfer " + m.id; m.to == from {
			m.to = l.agents[0].account
		}
		if l.oneIn(3) {
			m.id = "" // then it is recognized by the payer, the payee, the amount and the label
		}
		l.move(m)
	}
}

// grant grants credits until ctx ends. One page of the ledger shows all records that have issued credits.
func (l *jobsLoad) grant(ctx context.Context) {
	for n := 0; n < 200 && ctx.Err() == nil; n++ {
		l.move(&creditTransfer{id: l.uuid(), to: l.anyHirer(), amount: 1 + int64(l.intN(200_000)), grant: true})
		l.pause(100 * time.Millisecond)
	}
}

// move makes a transfer or a grant. Sometimes it sends it once more, as if the answer had been lost.
func (l *jobsLoad) move(m *creditTransfer) {
	l.mu.Lock()
	l.transfers = append(l.transfers, m)
	l.mu.Unlock()
	if l.send(m) && l.oneIn(2) {
		l.send(m)
	}
}

// send sends a transfer or a grant until it is answered, but sometimes gives up. The result is whether it was made.
func (l *jobsLoad) send(m *creditTransfer) bool {
	c := jobsCall{"POST", "/operator/grants", l.operator, map[string]any{"grant_id": m.id, "owner_id": m.to.id,
		"amount": credits(m.amount)}}
	want := 201
	if !m.grant {
		c = jobsCall{"POST", "/transfer", m.from.key, map[string]any{"from_owner": m.from.id, "to_owner": m.to.id,
			"amount": credits(m.amount), "job_id": m.label}}
		if want = 200; m.id != "" {
			c.body.(map[string]any)["transfer_id"] = m.id
		}
	}
	a, answered := l.insist(c, true)
	switch {
	case !answered:
	case a.status == want && (m.answer == "" || m.answer == a.text):
		m.answer = a.text
		return true
	case a.status == 400 && a.Code == "TRANSFER_FAILED" && m.answer == "":
		m.refused = true
	default:
		l.t.Errorf("%s %v: %d %s, after %q", c.path, c.body, a.status, a.text, m.answer)
	}
	return false
}

// arrive creates principals until ctx ends. A principal whose key was lost in a kill cannot do anything.
func (l *jobsLoad) arrive(ctx context.Context) {
	for n := 0; n < 100 && ctx.Err() == nil; n++ {
		p := &newcomer{first: account{id: fmt.Sprint("newcomer", n)}, second: account{id: fmt.Sprint("second", n)}}
		l.mu.Lock()
		l.newcomers = append(l.newcomers, p)
		l.mu.Unlock()
		a, err := l.try(ctx, jobsCall{"POST", "/accounts", "",
			map[string]any{"owner_id": p.first.id, "initial_balance": 60}})
		if err == nil && a.status == 201 {
			p.first.key, p.first.initial = a.Key, micro(a.Balance)
			// The principal has 40 initial credits left.
			if a, answered := l.insist(jobsCall{"POST", "/accounts", p.first.key, map[string]any{"owner_id": p.second.id}},
				true); answered {
				if p.second.key, p.second.initial = p.first.key, micro(a.Balance); a.status != 201 || a.Balance != 40 {
					l.t.Errorf("the second account of %s: %d %s, want the balance 40", p.first.id, a.status, a.text)
				}
			}
		}
		l.pause(100 * time.Millisecond)
	}
}
