package jobs_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// model is what the gateway should have stored. Amounts are millionths of a credit, as are points of scores.
type model struct {
	*rapid.T
	f         *fixture
	round     int
	users     []user
	balances  []int64
	agents    []modelAgent // agents[i] belongs to users[i]; it has the skill echo, for 0.1 credits
	jobs      map[string]*modelJob
	transfers map[string]string // the answers by transfer_id
}

type modelAgent struct {
	id      string
	score   int64
	offline bool
	active  time.Time
	counted map[int][]time.Time // when jobs that counted have ended, by hirer
}

type modelJob struct {
	hirer, agent int
	budget, cost int64
	status       string // of GET /jobs
	dispatched   bool
	handed, due  time.Time
	result       string // that ended the job; empty: it has not ended, or by itself
}

const price = 100_000

// newModel creates some users, each with an agent.
func newModel(t *rapid.T, f *fixture, round int) *model {
	m := &model{T: t, f: f, round: round, jobs: map[string]*modelJob{}, transfers: map[string]string{}}
	for i := range 3 {
		u := f.user(fmt.Sprintf("user-%d-%d", round, i))
		id := uuid(1_000_000 + round*10 + i)
		u.agent(id, "")
		m.users, m.balances = append(m.users, u), append(m.balances, 100_000_000)
		m.agents = append(m.agents, modelAgent{id: id, score: 50_000_000, active: f.Now(), counted: map[int][]time.Time{}})
	}
	return m
}

// user draws a user.
func (m *model) user(label string) int { return rapid.IntRange(0, len(m.users)-1).Draw(m.T, label) }

// job draws a job; empty: there is none.
func (m *model) job(label string) string {
	ids := slices.Sorted(maps.Keys(m.jobs))
	if len(ids) == 0 {
		return ""
	}
	return rapid.SampledFrom(ids).Draw(m.T, label)
}

// want checks the status of an answer.
func (m *model) want(what string, a answer, status int) {
	m.Helper()
	if a.Status != status {
		m.Fatalf("%s: the answer is %v, want %d", what, a, status)
	}
}

// end ends a job.
func (m *model) end(j *modelJob, status string, cost int64) {
	a := &m.agents[j.agent]
	j.status, j.cost = status, cost
	m.balances[j.agent] += cost
	m.balances[j.hirer] += j.budget - cost
	now := m.f.Now()
	a.active, a.offline = now, a.offline || status == "FAILURE AGENT_OFFLINE"
	recent := 0
	for _, t := range a.counted[j.hirer] {
		if t.After(now.Add(-24 * time.Hour)) {
			recent++
		}
	}
	if j.hirer == j.agent || !j.dispatched || status == "SUCCESS" && cost == 0 || recent >= 20 {
		return
	}
	a.counted[j.hirer] = append(a.counted[j.hirer], now)
	if status == "SUCCESS" {
		a.score = min(100_000_000, a.score+1_000_000)
	} else {
		a.score = max(0, a.score-4_500_000)
	}
}

// expire ends the jobs whose time is over.
func (m *model) expire() {
	for _, id := range slices.Sorted(maps.Keys(m.jobs)) {
		j := m.jobs[id]
		if j.status != "PENDING" || m.f.Now().Before(j.due) {
			continue
		}
		if j.dispatched {
			m.end(j, "FAILURE EXECUTION_ERROR", 0)
		} else {
			m.end(j, "FAILURE AGENT_OFFLINE", 0)
		}
	}
}

// hire orders a job, or repeats an order.
func (m *model) hire() {
	id := uuid(2_000_000 + m.round*1000 + len(m.jobs))
	if known := m.job("repeated job"); known != "" && rapid.Bool().Draw(m.T, "repeat") {
		j := m.jobs[known]
		a := m.users[j.hirer].hire(m.agents[j.agent].id, known, "budget", credits.Amount(j.budget))
		if a.Status >= 300 || statusOf(a) != j.status {
			m.Fatalf("the repeat of a job that is %s gets %v", j.status, a)
		}
		m.want("another's repeat", m.users[(j.hirer+1)%len(m.users)].hire(m.agents[j.agent].id, known), 409)
		return
	}
	hirer, to := m.user("hirer"), m.user("agent")
	budget := rapid.SampledFrom([]int64{0, 99_999, 100_000, 100_001, 1_500_000, 60_000_000, 200_000_000}).Draw(m.T, "budget")
	a := m.users[hirer].hire(m.agents[to].id, id, "budget", credits.Amount(budget))
	agent := &m.agents[to]
	want := "PENDING"
	switch {
	case budget < price:
		want = "FAILURE BUDGET_INSUFFICIENT"
	case agent.offline || !agent.active.After(m.f.Now().Add(-24*time.Hour)):
		want = "FAILURE AGENT_OFFLINE"
	case m.balances[hirer] < budget:
		want = "FAILURE TRANSFER_FAILED"
	}
	if statusOf(a) != want {
		m.Fatalf("hiring for %d gets %v, want %s", budget, a, want)
	}
	if want == "PENDING" {
		m.balances[hirer] -= budget
		m.jobs[id] = &modelJob{hirer: hirer, agent: to, budget: budget, status: want, due: m.f.Now().Add(dispatchTime)}
	}
}

// pull lets an agent pull its jobs.
func (m *model) pull() {
	i := m.user("pulling agent")
	var want []string
	for _, id := range slices.Sorted(maps.Keys(m.jobs)) { // the ids grow with the jobs
		j := m.jobs[id]
		if j.agent != i || j.status != "PENDING" || j.handed.After(m.f.Now().Add(-300*time.Second)) || len(want) == 20 {
			continue
		}
		want = append(want, id)
		if j.handed = m.f.Now(); !j.dispatched {
			j.dispatched, j.due = true, m.f.Now().Add(time.Hour)
		}
	}
	m.agents[i].offline = false
	if got := m.users[i].pull(m.agents[i].id); !slices.Equal(got, want) {
		m.Fatalf("the agent pulls %v, want %v", got, want)
	}
}

// deliver reports a result for a job.
func (m *model) deliver() {
	id := m.job("delivered job")
	if id == "" {
		return
	}
	j := m.jobs[id]
	cost := rapid.SampledFrom([]int64{0, 1, 99_999, 100_000, 5_000_000}).Draw(m.T, "cost")
	status := rapid.SampledFrom([]string{"SUCCESS", "FAILURE", "PENDING"}).Draw(m.T, "status")
	took := rapid.IntRange(0, 1_000_000_000).Draw(m.T, "time")
	a := m.users[j.agent].deliver(id, m.agents[j.agent].id, status, "execution_cost", credits.Amount(cost),
		"execution_time_ms", took)
	result := fmt.Sprint(status, cost, took)
	if j.status != "PENDING" && j.result == result {
		m.want("a repeated result", a, 200)
		return
	}
	if j.status != "PENDING" {
		m.want("a late result", a, 409)
		return
	}
	m.want("a result", a, 200)
	m.agents[j.agent].offline = false
	if status != "PENDING" {
		j.result = result
	}
	switch status {
	case "SUCCESS":
		m.end(j, status, min(cost, price))
	case "FAILURE":
		m.end(j, "FAILURE EXECUTION_ERROR", 0)
	}
}

// transfer moves credits, or repeats a transfer.
func (m *model) transfer() {
	from, to := m.user("from"), m.user("to")
	amount := rapid.SampledFrom([]int64{1, 333_333, 50_000_000, 150_000_000}).Draw(m.T, "amount")
	id := uuid(3_000_000 + m.round*1000 + rapid.IntRange(0, 9).Draw(m.T, "transfer"))
	a := m.users[from].do("POST", "/transfer", send(m.users[from].owner, m.users[to].owner, credits.Amount(amount),
		"transfer_id", id))
	content := fmt.Sprint(from, to, amount)
	switch known := m.transfers[id]; {
	case from == to:
		m.want("a transfer to oneself", a, 422)
	case known == content:
		m.want("a repeat", a, 200)
	case known != "":
		m.want("another transfer with this id", a, 409)
	case m.balances[from] < amount:
		m.want("a transfer without cover", a, 400)
	default:
		m.want("a transfer", a, 200)
		m.balances[from] -= amount
		m.balances[to] += amount
		m.transfers[id] = content
	}
}

// crash lets operations fail, and starts the relay again.
func (m *model) crash() {
	m.f.Broken.Store(true)
	from := m.user("unlucky")
	a := m.users[from].do("POST", "/transfer", send(m.users[from].owner, m.users[(from+1)%3].owner, 1))
	if a.Status < 400 {
		m.Fatalf("a transfer that cannot be stored gets %v", a)
	}
	if id := m.job("unlucky job"); id != "" {
		j := m.jobs[id]
		if a := m.users[j.agent].deliver(id, m.agents[j.agent].id, "SUCCESS"); a.Status < 500 && j.status == "PENDING" {
			m.Fatalf("a result that cannot be stored gets %v", a)
		}
	}
	m.f.Stop()
	m.f.Broken.Store(false)
	m.f.Run()
}

// check compares everything that users see with the model.
func (m *model) check() {
	for i, u := range m.users {
		if got, want := u.balance(), credits.Amount(m.balances[i]).String(); got != want {
			m.Fatalf("user %d has %s, want %s", i, got, want)
		}
		if got, want := m.f.score(m.agents[i].id), points(m.agents[i].score); got != want {
			m.Fatalf("agent %d has the score %s, want %s", i, got, want)
		}
	}
	for id, j := range m.jobs {
		a := m.users[j.hirer].do("GET", "/jobs/"+id, nil)
		if statusOf(a) != j.status || number(a, "execution_cost") != credits.Amount(j.cost).String() {
			m.Fatalf("the job is %v, want %s for %d", a, j.status, j.cost)
		}
	}
	err := m.f.Relay.View(m.f.t.Context(), relay.Peer{Local: true}, func(q relay.Querier) error {
		return jobs.Extension.Check(q, func(where, what string) { m.Fatalf("%s %s", where, what) })
	})
	if err != nil {
		m.Fatal(err)
	}
}

// points returns a score as answers show it. All scores of the model are multiples of half a point.
func points(score int64) string { return fmt.Sprintf("%.1f", float64(score)/1_000_000) }

// noDeadline hides the deadline of a test, which cannot be read in a bubble.
type noDeadline struct{ rapid.TB }

// TestLedgerProperties compares the gateway with a model, for any interleaving of jobs, results, timeouts, transfers and
// crashes: no credit is lost or made, no balance is negative, no job is paid twice (J-2 to J-7, J-15 to J-17).
func TestLedgerProperties(t *testing.T) {
	engine.OnlySQLite(t, "it repeats for long what the other tests do")
	inBubble(t, func(t *testing.T, f *fixture) {
		round := 0
		rapid.Check(noDeadline{t}, func(rt *rapid.T) {
			round++
			f.Broken.Store(false) // the round before may have failed
			if f.Stop == nil {
				f.Run()
			}
			m := newModel(rt, f, round)
			steps := map[string]func(*rapid.T){}
			for name, step := range map[string]func(){"hire": m.hire, "hire more": m.hire, "pull": m.pull, "pull more": m.pull,
				"deliver": m.deliver, "deliver more": m.deliver, "transfer": m.transfer, "crash": m.crash} {
				steps[name] = func(inner *rapid.T) {
					m.T = inner
					step()
				}
			}
			steps["wait"] = func(inner *rapid.T) {
				wait := rapid.SampledFrom([]time.Duration{time.Second, 4 * time.Minute, 50 * time.Minute, 9 * time.Hour}).Draw(inner, "wait")
				f.pass(wait)
				m.T = inner
				m.expire()
			}
			steps["check"] = func(inner *rapid.T) {
				m.T = inner
				m.check()
			}
			rt.Repeat(steps)
			m.T = rt
			m.check()
			for _, u := range m.users { // those of the next round do not see their agents
				f.want(u.do("DELETE", "/agents/"+m.agents[slices.Index(m.users, u)].id, nil), 200)
			}
		})
		synctest.Wait()
	}, func(f *fixture) { f.options.Supply = credits.Limit - 1 })
}
