package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// jobsLoad uses a jobs gateway from all sides while its relay is killed again and again: principals hire agents and
// transfer credits, agents deliver results, and the operator grants credits.
type jobsLoad struct {
	t        testing.TB
	relay    *server
	operator string // key
	hirers   []*account
	agents   []*jobsAgent
	hook     *httptest.Server // gets the results for hirers with a callback

	workers     sync.WaitGroup // hirers, payers and the operator
	stopWork    context.CancelFunc
	delivering  sync.WaitGroup // agents
	stopAgents  context.CancelFunc
	agentsUntil context.Context
	closed      chan struct{} // agents deliver nothing before this is closed
	timeout     time.Duration // of jobs; 0: no job of the test takes so long

	mu        sync.Mutex // guards what follows, and the jobs
	random    *rand.Rand
	names     int
	jobs      map[string]*hiredJob // by job_id
	transfers []*creditTransfer
	newcomers []*newcomer
	told      map[string][]string // what the hook got and took, by job_id
	handed    int                 // jobs that their agents have got, without those whose result is in the answer
	done      int                 // jobs for which an agent has sent a result
	resent    int                 // requests that were sent again
}

// account is an account of a principal. Amounts are millionths of a credit.
type account struct {
	id, key string
	initial int64
}

// hiredJob is a job that a hirer has posted.
type hiredJob struct {
	id       string
	hirer    *account
	agent    *jobsAgent
	budget   int64
	claim    int64 // execution_cost in the result; negative: it is absent
	fails    bool  // the agent's result is FAILURE
	broken   bool  // the agent answers with something that is not a JobResult
	callback bool

	accepted bool            // answered with 200 or 202
	refused  bool            // answered with 200 and a code that says that no job was made
	called   bool            // the agent has got the job with a callback
	begun    bool            // the agent has begun to send the result
	taken    map[string]bool // by variant of the result: the relay has answered 200 (true) or 409 (false)
	final    string          // the JobResult after the end, as it was first seen
}

// creditTransfer is a transfer or a grant of the operator.
type creditTransfer struct {
	id       string // transfer_id or grant_id; empty: it has none
	label    string // job_id; no other transfer has it
	from, to *account
	amount   int64
	answer   string // the first with 2xx; empty: there was none
	refused  bool   // the account had too little
	grant    bool
}

// newcomer is a principal that was created during the kills, with two accounts.
type newcomer struct{ first, second account }

// jobsCall is a request to the gateway.
type jobsCall struct {
	method, path, key string
	body              any
}

// jobsAnswer has members of all answers.
type jobsAnswer struct {
	status int
	text   string

	Status     string       `json:"status"`
	Code       string       `json:"error_code"`
	Key        string       `json:"api_key"`
	Balance    float64      `json:"balance"`
	Limit      string       `json:"limit"`
	Jobs       []jobRequest `json:"jobs"`
	Records    []jobsRecord `json:"transactions"`
	Total      int64        `json:"total"`
	TotalCount int64        `json:"total_transactions"`
	Volume     float64      `json:"total_volume"`
	Score      float64      `json:"score"`
	Stats      struct{ Total, Successes, Failures int }
}

type jobRequest struct {
	JobID    string `json:"job_id"`
	Callback string `json:"callback_url"`
}

// jobsRecord is a record of the ledger.
type jobsRecord struct {
	ID     string  `json:"transfer_id"`
	From   string  `json:"from_owner"`
	To     string  `json:"to_owner"`
	Amount float64 `json:"amount"`
	JobID  string  `json:"job_id"`
	Kind   string  `json:"kind"`
}

// credits and micro convert millionths of a credit to the numbers on the wire, and back.
func credits(n int64) float64 { return float64(n) / 1e6 }

func micro(c float64) int64 { return int64(math.Round(c * 1e6)) }

// try sends a request to the gateway, as soon as it runs. An error means that no whole answer has come.
func (l *jobsLoad) try(ctx context.Context, c jobsCall) (a jobsAnswer, err error) {
	relay, err := l.relay.address(ctx)
	if err != nil {
		return a, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), exchangeTimeout)
	defer cancel()
	body, err := json.Marshal(c.body)
	if err != nil {
		return a, err
	}
	r, err := http.NewRequestWithContext(ctx, c.method, relay+"/jobs"+c.path, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	if c.key != "" {
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	response, err := connections.Do(r)
	if err != nil {
		return a, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return a, err
	}
	a.status, a.text = response.StatusCode, strings.TrimSpace(string(text))
	return a, json.Unmarshal(text, &a)
}

// insist sends a request again and again until it is answered, and not with 429 or 503. If mayLeave is true, it
// sometimes gives up after an error; then the result is false.
func (l *jobsLoad) insist(c jobsCall, mayLeave bool) (a jobsAnswer, answered bool) {
	for {
		a, err := l.try(l.t.Context(), c)
		switch {
		case l.t.Context().Err() != nil:
			return a, false
		case err != nil && mayLeave && l.oneIn(10):
			return a, false
		case err == nil && a.status != http.StatusTooManyRequests && a.status != http.StatusServiceUnavailable:
			return a, true
		case err == nil:
			sleep(20 * time.Millisecond)
		}
		l.mu.Lock()
		l.resent++
		l.mu.Unlock()
	}
}

// must sends a request to a relay that is not killed meanwhile. It fails the test unless the answer has one of these
// statuses.
func (l *jobsLoad) must(c jobsCall, statuses ...int) jobsAnswer {
	l.t.Helper()
	a, err := l.try(l.t.Context(), c)
	if err != nil || !slices.Contains(statuses, a.status) {
		l.t.Fatalf("%s %s: %d %s, %v; want %d", c.method, c.path, a.status, a.text, err, statuses)
	}
	return a
}

func (l *jobsLoad) intN(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.random.IntN(n)
}

func (l *jobsLoad) oneIn(n int) bool { return l.intN(n) == 0 }

// pause waits for a random time.
func (l *jobsLoad) pause(most time.Duration) { sleep(time.Duration(l.intN(int(most)))) }

// uuid returns a new UUID.
func (l *jobsLoad) uuid() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", l.names)
}

// newJobsLoad returns the load for a relay that runs.
func newJobsLoad(t testing.TB, relay *server, r *rand.Rand) *jobsLoad {
	operator, err := os.ReadFile(filepath.Join(relay.data, "operator.key"))
	must(t, err)
	l := &jobsLoad{t: t, relay: relay, operator: strings.TrimSpace(string(operator)), closed: make(chan struct{}),
		random: newRandom(r), jobs: map[string]*hiredJob{}, told: map[string][]string{}}
	l.agentsUntil, l.stopAgents = context.WithCancel(t.Context())
	t.Cleanup(func() {
		l.stopAgents()
		l.delivering.Wait()
	})
	l.hook = httptest.NewServer(http.HandlerFunc(l.takeResult))
	t.Cleanup(l.hook.Close)
	return l
}

// open creates a principal with an account.
func (l *jobsLoad) open(id string, initial int64) *account {
	l.t.Helper()
	a := l.must(jobsCall{"POST", "/accounts", "",
		map[string]any{"owner_id": id, "initial_balance": credits(initial)}}, 201)
	return &account{id, a.Key, initial}
}

// startJobsLoad makes principals and agents, and starts to use them.
func startJobsLoad(t testing.TB, relay *server, r *rand.Rand) *jobsLoad {
	l := newJobsLoad(t, relay, r)
	l.timeout = jobsTimeout
	close(l.closed)
	for i := range 5 {
		initial := int64(100_000_000)
		if i == 4 {
			initial = 2_000_000 // it often has too little
		}
		l.hirers = append(l.hirers, l.open(fmt.Sprint("hirer", i), initial))
	}
	for _, kind := range []agentKind{pulls, pulls, answers, answersAfter404, callsBack, callsBack} {
		l.startAgent(kind)
	}
	ctx, stop := context.WithCancel(t.Context())
	l.stopWork = stop
	t.Cleanup(func() {
		stop()
		l.workers.Wait()
	})
	for i, a := range l.hirers {
		// An agent has two hirers at most. So not so many jobs count that its score reaches 100.
		mine := l.agents[i : i+2]
		for range 2 {
			l.workers.Go(func() { l.hire(ctx, a, mine) })
		}
		l.workers.Go(func() { l.transfer(ctx, a) })
	}
	own := l.agents[0]
	l.workers.Go(func() { l.hire(ctx, own.account, []*jobsAgent{own, l.agents[5]}) }) // its own jobs do not count
	l.workers.Go(func() { l.grant(ctx) })
	l.workers.Go(func() { l.arrive(ctx) })
	return l
}
