package faults

import (
	"math/rand/v2"
	"os/exec"
	"sync"
	"testing"
	"time"
)

const (
	jobsKillRounds     = 8
	thousandKillRounds = 4
	// How many kills a relay gets at most. Then the test continues with a new one, because the audit of a large ledger
	// takes long.
	jobsKillsOfRelay = 25
	jobsTimeout      = 3 * time.Second
)

// TestJobsKillLoop kills a relay with a jobs gateway again and again, while it is used from all sides. What was
// answered with 2xx must be there, whole and once (G-4). What was not answered must be there whole or not at all (G-5).
// No balance is negative (J-3), and all balances sum to what was issued (J-8). Repeats of transfers, jobs and grants
// move credits once (J-4, J-6, J-10), and a payment for a settled job moves none (J-5). Each hold ends once (J-7), and
// each hirer with a callback gets the result (J-24).
//
// A job fails 3 seconds after its agent has got it. So agents race with the relay, and the jobs that a kill has lost on
// their way to an agent that pulls end too.
func TestJobsKillLoop(t *testing.T) {
	killJobs(t, jobsKillRounds, func(relay *server, r *rand.Rand, rounds int) *jobsLoad {
		l := startJobsLoad(t, relay, r)
		for range rounds {
			sleep(minUptime + time.Duration(r.Int64N(int64(maxUptime-minUptime))))
			relay.kill()
			if r.IntN(5) == 0 { // kill it once more, perhaps before it listens
				must(t, relay.launch())
				sleep(time.Duration(r.Int64N(int64(maxUptime / 10))))
				relay.kill()
			}
			relay.start()
		}
		l.stopWork()
		l.workers.Wait()
		return l
	}, "--jobs-timeout", jobsTimeout.String())
}

// TestThousandJobsKillLoop kills a relay in the middle of 1,000 jobs that run at the same time. Each must end as its
// agent has said.
func TestThousandJobsKillLoop(t *testing.T) {
	killJobs(t, thousandKillRounds, func(relay *server, r *rand.Rand, rounds int) *jobsLoad {
		l := startThousandJobs(t, relay, r)
		for i := range rounds {
			// Jobs end between all kills, and after the last one.
			from := i * thousandJobs / (rounds + 1)
			within(t, 2*time.Minute, "some more jobs have ended", func() bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				return l.done >= from+1
			})
			sleep(time.Duration(r.Int64N(int64(50 * time.Millisecond))))
			relay.kill()
			relay.start()
		}
		return l
	})
}

// killJobs runs a load with so many kills, on one relay after the other, and audits each. load returns after the last
// kill, when nobody hires any more.
func killJobs(
	t *testing.T, rounds int, load func(relay *server, r *rand.Rand, rounds int) *jobsLoad, args ...string,
) {
	r := random(t)
	if rounds = max(scaled(rounds), 3); *roundsFlag > 0 {
		rounds = *roundsFlag
	}
	for rounds > 0 && !t.Failed() {
		began, kills := time.Now(), min(rounds, jobsKillsOfRelay)
		rounds -= kills
		relay := newServer(t, append(args, "--jobs", "--outbound-allow", "127.0.0.1", "--log-level", "warn")...)
		relay.start()
		l := load(relay, r, kills)
		l.drain()
		relay.kill()
		relay.start()
		summary := l.audit()
		connections.CloseIdleConnections() // the relay would wait for one that has sent no request yet
		if code := relay.stop(); code != 0 {
			t.Errorf("the relay ended with exit code %d", code)
		}
		if out, err := exec.Command(binary, "check", "--data", relay.data).CombinedOutput(); err != nil {
			t.Errorf("agora check: %v\n%s", err, out)
		}
		t.Logf("%d kills in %s: %s", kills+1, time.Since(began).Round(time.Second), summary)
	}
}

// thousandJobs is how many jobs one principal can have at a time.
const thousandJobs = 1000

// startThousandJobs makes ten agents and 1,000 jobs, of which none has ended. Then the agents begin to deliver.
func startThousandJobs(t *testing.T, relay *server, r *rand.Rand) *jobsLoad {
	l := newJobsLoad(t, relay, r)
	hirer := l.open("hirer", 100_000_000)
	l.hirers = []*account{hirer}
	l.move(&creditTransfer{id: l.uuid(), to: hirer, amount: 1_000_000_000, grant: true})
	// The last three refuse their jobs until all jobs are posted, and get each again and again meanwhile.
	for _, kind := range []agentKind{pulls, pulls, pulls, pulls, callsBack, callsBack, callsBack, answers, answers,
		answersAfter404} {
		l.startAgent(kind)
	}
	next := make(chan *jobsAgent)
	var hiring sync.WaitGroup
	for range 16 {
		hiring.Go(func() {
			for a := range next {
				l.post(l.newJob(hirer, a), 0, false)
			}
		})
	}
	for i := range thousandJobs {
		next <- l.agents[i*len(l.agents)/thousandJobs]
	}
	close(next)
	hiring.Wait()
	// One more is refused, so all of them run.
	more := l.order(&hiredJob{id: l.uuid(), hirer: hirer, agent: l.agents[0]}, 0)
	if a := l.must(more, 429); a.Limit != "unfinishedJobs" {
		t.Errorf("one job more than %d is refused with %s", thousandJobs, a.text)
	}
	within(t, 2*time.Minute, "the agents have got their jobs", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.handed == thousandJobs*7/10 // the other agents answer with the result
	})
	close(l.closed)
	return l
}

// unfinished returns the jobs that run.
func (l *jobsLoad) unfinished() (all []*hiredJob) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range l.jobs {
		if j.final == "" && !j.refused {
			all = append(all, j)
		}
	}
	return all
}

// drain waits until all jobs have ended, and all hirers with a callback have got the result. Then it stops the agents.
func (l *jobsLoad) drain() {
	t := l.t
	t.Helper()
	within(t, 2*time.Minute, "all jobs have ended", func() bool {
		for _, j := range l.unfinished() {
			a := l.must(jobsCall{"GET", "/jobs/" + j.id, j.hirer.key, nil}, 200, 403)
			if a.status == 200 {
				l.saw(j, a)
			}
			if a.Status == "PENDING" {
				return false
			}
		}
		return true
	})
	within(t, 2*time.Minute, "all hirers have got their results", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, j := range l.jobs {
			if j.callback && j.final != "" && len(l.told[j.id]) == 0 {
				return false
			}
		}
		return true
	})
	l.stopAgents()
	l.delivering.Wait()
}
