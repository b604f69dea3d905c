package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/gateway/jobs/jobsclient"
	"github.com/agora-relay/agora/internal/racing"
)

// A worked example: a market of ten principals, each with an agent and an account. Their agents differ in skills, prices
// and quality. Some pull their jobs, and some have an address. All hire each other at the same time, over HTTP.

// trader is a principal of the market with its agent.
type trader struct {
	name, skill, price string
	worst              int    // every so many jobs one fails; 0: none
	endpoint           string // how the agent gets jobs: pull, root, jobs, later (it answers by the callback)
	flaky              bool   // every seventh answer to a POST does not reach the principal

	*jobsclient.Client
	id    string // of the agent
	taken atomic.Int64

	mu                  sync.Mutex
	successes, failures int            // of the agent
	balance             credits.Amount // what the account must have
	hired               map[string]int // how often the principal has hired an agent
}

// traders returns the market's principals.
func traders() []*trader {
	return []*trader{
		{name: "ada", skill: "translate", price: "0.5", endpoint: "pull"},
		{name: "bob", skill: "translate", price: "0.25", worst: 3, endpoint: "root"},
		{name: "cleo", skill: "translate", price: "0.1", worst: 2, endpoint: "jobs"},
		{name: "dan", skill: "summarize", price: "1", endpoint: "jobs", flaky: true},
		{name: "eve", skill: "summarize", price: "0.333333", worst: 5, endpoint: "later"},
		{name: "finn", skill: "summarize", price: "0.05", worst: 2, endpoint: "pull", flaky: true},
		{name: "gwen", skill: "classify", price: "0.000001", worst: 4, endpoint: "pull"},
		{name: "hugo", skill: "classify", price: "0.02", endpoint: "later"},
		{name: "iris", skill: "classify", price: "0.02", worst: 6, endpoint: "pull"},
		{name: "jack", skill: "classify", price: "2.5", worst: 10, endpoint: "root"},
	}
}

const atATime = 4 // how many of its jobs a principal lets run at a time

// ordersOfTrader is how many jobs each principal orders: a multiple of 9.
func ordersOfTrader() int {
	if racing.Detector { // SQLite is very slow then
		return 9
	}
	return 36
}

var marketSkills = []string{"translate", "summarize", "classify"}

// losing is a transport that loses every seventh answer to a POST. The gateway has handled the POST before. (A lost GET
// could be one that has handed out jobs. The gateway would hand them out again after five minutes.)
type losing struct {
	http.RoundTripper
	requests atomic.Int64
}

func (l *losing) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err == nil && r.Method == http.MethodPost && l.requests.Add(1)%7 == 0 {
		_, _ = io.Copy(io.Discard, response.Body)
		return nil, errors.Join(errors.New("connection reset"), response.Body.Close())
	}
	return response, err
}

// join opens the trader's account, registers its agent and lets it work until ctx ends.
func (m *trader) join(ctx context.Context, t *testing.T, gatewayURL string, working *sync.WaitGroup) {
	t.Helper()
	m.hired = map[string]int{}
	m.Client = jobsclient.New(gatewayURL, slog.New(slog.DiscardHandler))
	t.Cleanup(m.Close)
	account, key, err := m.Open(ctx, m.name, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.Key, m.balance = key, account.Balance
	if m.flaky {
		m.HTTP.Transport = &losing{RoundTripper: m.HTTP.Transport}
	}
	price, err := credits.Parse(m.price)
	if err != nil {
		t.Fatal(err)
	}
	r := jobsclient.Registration{Name: strings.ToUpper(m.name), OwnerID: m.name,
		Skills: []jobsclient.Skill{{Name: m.skill, Cost: price}}, Endpoint: m.serve(ctx, t, gatewayURL)}
	registered, _, err := m.Register(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	if m.id = registered.AgentID; m.endpoint != "pull" {
		return
	}
	working.Go(func() {
		o := jobsclient.WorkOptions{AgentID: m.id, Parallel: 4, Handle: func(_ context.Context, j jobsclient.Job) (jobsclient.Result, error) {
			return m.work(j)
		}}
		if err := m.Work(ctx, o); !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with %v", m.name, err)
		}
	})
}

// work does a job. It fails as often as the trader's quality says.
func (m *trader) work(j jobsclient.Job) (jobsclient.Result, error) {
	if n := m.taken.Add(1); m.worst > 0 && n%int64(m.worst) == 0 {
		return jobsclient.Result{}, errors.New("not today")
	}
	return jobsclient.Result{Output: json.RawMessage(fmt.Sprintf(`{"by":%q,"got":%s}`, m.name, j.Input))}, nil
}

// serve starts the agent's HTTP server, and returns its endpoint; empty: the agent pulls.
func (m *trader) serve(ctx context.Context, t *testing.T, gatewayURL string) string {
	t.Helper()
	if m.endpoint == "pull" {
		return ""
	}
	var later sync.WaitGroup
	var done sync.Map // the results by job, because a job may come again
	mux := http.NewServeMux()
	mux.HandleFunc("POST /jobs", func(w http.ResponseWriter, r *http.Request) {
		var j jobsclient.Job
		if err := json.NewDecoder(r.Body).Decode(&j); err != nil {
			t.Errorf("%s got a job that is not JSON: %v", m.name, err)
		}
		result := sync.OnceValue(func() jobsclient.Result {
			result, err := m.work(j)
			result.JobID, result.AgentID, result.Status = j.ID, m.id, jobsclient.Success
			if err != nil {
				result.Status, result.ErrorMessage = jobsclient.Failure, err.Error()
			}
			return result
		})
		known, _ := done.LoadOrStore(j.ID, result)
		outcome := known.(func() jobsclient.Result)()
		answer := outcome
		if m.endpoint == "later" {
			later.Go(func() {
				callback := strings.Replace(j.Callback, gatetest.PublicURL+"/jobs", gatewayURL, 1) // the relay's public URL has no server
				if err := m.ReportTo(ctx, callback, outcome); err != nil {
					t.Errorf("%s calls back: %v", m.name, err)
				}
			})
			answer = jobsclient.Result{JobID: j.ID, Status: jobsclient.Pending}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Errorf("%s answers: %v", m.name, err)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(func() { s.Close(); later.Wait() })
	if m.endpoint == "root" {
		return s.URL
	}
	return s.URL + "/jobs"
}

// market has the traders by the id of their agent.
type market map[string]*trader

// trade lets a trader find agents and hire them, several at a time. The trader prefers no agent, so it hires each of the
// others about equally often.
func (all market) trade(ctx context.Context, t *testing.T, m *trader, seed uint64) {
	order := make(chan int)
	var buyers sync.WaitGroup
	for i := range atATime {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		buyers.Go(func() {
			for n := range order {
				if ctx.Err() != nil {
					continue // one error is enough
				}
				all.hire(ctx, t, m, marketSkills[n%len(marketSkills)], n, random)
			}
		})
	}
	for n := range ordersOfTrader() {
		order <- n
	}
	close(order)
	buyers.Wait()
}

// hire lets a trader hire another one for a job. Every ninth time it offers too little.
func (all market) hire(ctx context.Context, t *testing.T, m *trader, skill string, n int, random *rand.Rand) {
	found, err := m.Discover(ctx, jobsclient.Query{Skill: skill})
	if err != nil || len(found) < 3 {
		t.Errorf("%s finds %d agents for %s: %v", m.name, len(found), skill, err)
		return
	}
	found = slices.DeleteFunc(found, func(a jobsclient.Agent) bool { return a.AgentID == m.id })
	chosen := found[random.IntN(len(found))]
	price, budget := chosen.Skill.Cost, chosen.Skill.Cost*credits.Amount(1+random.IntN(3))
	tooLittle := n%9 == 8
	if tooLittle {
		budget = price - 1
	}
	r, err := m.Hire(ctx, chosen.AgentID, jobsclient.Job{Orchestrator: m.id, Skill: skill, Budget: budget, Input: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n))})
	other := all[chosen.AgentID]
	switch {
	case err != nil || r.Status == jobsclient.Pending:
		t.Errorf("%s hires %s: %+v, %v", m.name, other.name, r, err)
	case tooLittle:
		if r.ErrorCode != "BUDGET_INSUFFICIENT" {
			t.Errorf("%s offers %v to %s, who takes %v: %+v", m.name, budget, other.name, price, r)
		}
	case r.Status == jobsclient.Success:
		if r.Cost == nil || *r.Cost != price || string(r.Output) != fmt.Sprintf(`{"by":%q,"got":{"n":%d}}`, other.name, n) {
			t.Errorf("%s gets %+v from %s, who takes %v", m.name, r, other.name, price)
		}
		m.settle(func() { m.balance -= price; m.hired[other.id]++ })
		other.settle(func() { other.balance += price; other.successes++ })
	default:
		if r.ErrorMessage != "not today" {
			t.Errorf("%s fails %s with %+v", other.name, m.name, r)
		}
		m.settle(func() { m.hired[other.id]++ })
		other.settle(func() { other.failures++ })
	}
}

func (m *trader) settle(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// row is a line of the table at the end.
type row struct {
	*trader
	score float64
}

// TestMarket runs the market. At the end it checks that the books of the traders and those of the gateway agree.
func TestMarket(t *testing.T) {
	f := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ends, stop := context.WithCancel(ctx)
	var working, trading sync.WaitGroup
	all := market{}
	for _, m := range traders() {
		m.join(ends, t, f.URL+"/jobs", &working)
		all[m.id] = m
	}
	for i, m := range traders() { // in the order of their names
		for _, joined := range all {
			if joined.name == m.name {
				trading.Go(func() { all.trade(ctx, t, joined, uint64(i)) })
			}
		}
	}
	trading.Wait()
	var rows []row
	for _, m := range all {
		rows = append(rows, row{m, all.checkTrader(ctx, t, m)})
	}
	stop()
	working.Wait()
	slices.SortFunc(rows, func(a, b row) int { return strings.Compare(a.name, b.name) })
	all.checkBooks(ctx, t, f)
	for _, skill := range marketSkills {
		checkRanking(ctx, t, rows, skill)
	}
	t.Logf("the market:\n%s", table(rows))
}

// checkTrader compares what a trader expects with what the gateway says. It returns the score of its agent.
func (all market) checkTrader(ctx context.Context, t *testing.T, m *trader) float64 {
	account, err := m.Account(ctx, m.name)
	records, total, err2 := m.Audit(ctx, jobsclient.AuditQuery{OwnerID: m.name, Limit: 500})
	reputation, err3 := m.Reputation(ctx, m.id)
	if err := errors.Join(err, err2, err3); err != nil || total != len(records) {
		t.Fatalf("%s: %v, %d of %d records", m.name, err, len(records), total)
	}
	if account.Balance != m.balance {
		t.Errorf("%s has %v, want %v", m.name, account.Balance, m.balance)
	}
	var sum credits.Amount
	for _, r := range records {
		if r.To == m.name {
			sum += r.Amount
		}
		if r.From == m.name {
			sum -= r.Amount
		}
	}
	if sum != account.Balance {
		t.Errorf("the records of %s add up to %v, and the balance is %v", m.name, sum, account.Balance)
	}
	if most := slices.Max(append(hires(all, m), 0)); most > 20 {
		t.Fatalf("a principal has hired %s %d times; not all of these jobs count", m.name, most)
	}
	if want := (jobsclient.Stats{Total: m.successes + m.failures, Successes: m.successes, Failures: m.failures}); reputation.Stats != want {
		t.Errorf("%s has the stats %+v, want %+v", m.name, reputation.Stats, want)
	}
	// A success is worth at most 2 points, and a failure costs 4.5.
	high, low := 50+2*float64(m.successes), 50.0
	if m.failures > 0 {
		low = max(0, 50-4.5*float64(m.failures))
	}
	if reputation.Score > min(high, 100) || reputation.Score < low || m.failures == 0 && m.successes > 0 && reputation.Score == 50 {
		t.Errorf("%s has the score %v after %d successes and %d failures", m.name, reputation.Score, m.successes, m.failures)
	}
	return reputation.Score
}

// hires returns how often each principal has hired a trader.
func hires(all market, m *trader) (counts []int) {
	for _, other := range all {
		counts = append(counts, other.hired[m.id])
	}
	return counts
}

// checkBooks checks the sums over all traders.
func (all market) checkBooks(ctx context.Context, t *testing.T, f *fixture) {
	var sum, issued credits.Amount
	jobs := 0
	for _, m := range all {
		economy, err := m.Economy(ctx)
		if err != nil || len(economy.Balances) != 1 {
			t.Fatalf("%+v, %v", economy, err)
		}
		sum += economy.Balances[m.name]
		issued += 100 * credits.One
		jobs += m.successes + m.failures
	}
	if sum != issued {
		t.Errorf("all have %v together, and %v were issued", sum, issued)
	}
	// Each ninth order offers too little.
	if want := len(all) * ordersOfTrader() / 9 * 8; jobs != want {
		t.Errorf("%d jobs ended, want %d", jobs, want)
	}
	operator := jobsclient.New(f.URL+"/jobs", slog.New(slog.DiscardHandler))
	defer operator.Close()
	operator.Key = f.Operator
	holds := 0
	for _, m := range all {
		_, total, err := operator.Audit(ctx, jobsclient.AuditQuery{OwnerID: m.name})
		own, ownTotal, err2 := m.Audit(ctx, jobsclient.AuditQuery{OwnerID: m.name, Limit: 500})
		if err := errors.Join(err, err2); err != nil || total != ownTotal {
			t.Errorf("the operator sees %d records of %s, who sees %d: %v", total, m.name, ownTotal, err)
		}
		for _, r := range own {
			if r.Kind == "hold" && r.From == m.name {
				holds++
			}
		}
	}
	if holds != jobs {
		t.Errorf("%d holds for %d jobs", holds, jobs)
	}
}

// checkRanking checks that the gateway lists the agents with a skill as the table says: by score, then by price.
func checkRanking(ctx context.Context, t *testing.T, rows []row, skill string) {
	found, err := rows[0].Discover(ctx, jobsclient.Query{Skill: skill})
	if err != nil {
		t.Fatal(err)
	}
	var got, want []string
	for _, a := range found {
		got = append(got, fmt.Sprintf("%s %v %v", a.OwnerID, a.Reputation, a.Skill.Cost))
	}
	for _, r := range rows {
		if r.skill == skill {
			want = append(want, fmt.Sprintf("%s %v %s", r.name, r.score, r.price))
		}
	}
	ranked := slices.IsSortedFunc(found, func(a, b jobsclient.Agent) int {
		switch {
		case a.Reputation > b.Reputation:
			return -1
		case a.Reputation < b.Reputation:
			return 1
		}
		return 0 // the scores may still differ in digits that are not shown
	})
	if slices.Sort(want); !ranked || !slices.Equal(slices.Sorted(slices.Values(got)), want) {
		t.Errorf("the agents for %s are %q, want %q by their scores", skill, got, want)
	}
}

// table returns the rows as a text.
func table(rows []row) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "agent\tskill\tprice\tgets jobs by\tjobs\tsuccesses\tfailures\tbalance\treputation\t")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%v\t%.2f\t\n", r.name, r.skill, r.price, r.endpoint, r.successes+r.failures, r.successes, r.failures, r.balance, r.score)
	}
	_ = w.Flush() // to a buffer, which never fails
	return b.String()
}
