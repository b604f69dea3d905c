package jobs_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// J-20: each code of a failure occurs. J-21: no failure leaves a hold.
func TestFailures(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		quiet := alice.agent(uuid(2), "")
		f.want(alice.do("POST", "/heartbeat", object{"agent_id": quiet}), 200)
		f.pass(90 * time.Second)
		for i, c := range []struct {
			agent   string
			changes []any
			want    string
		}{
			{a, []any{"skill_name", "sing"}, "FAILURE SKILL_MISMATCH"},
			{a, []any{"budget", 0.099999}, "FAILURE BUDGET_INSUFFICIENT"},
			{quiet, nil, "FAILURE AGENT_OFFLINE"},
			{a, []any{"budget", 100.000001}, "FAILURE TRANSFER_FAILED"},
			{quiet, []any{"skill_name", "sing", "budget", 0}, "FAILURE SKILL_MISMATCH"},
			{quiet, []any{"budget", 0}, "FAILURE BUDGET_INSUFFICIENT"},
			{quiet, []any{"budget", 1000}, "FAILURE AGENT_OFFLINE"},
		} {
			got := f.want(bob.hire(c.agent, uuid(100+i), c.changes...), 200)
			if statusOf(got) != c.want || text(got, "error_message") == "" || text(got, "job_id") != uuid(100+i) ||
				text(got, "agent_id") != c.agent || number(got, "execution_cost") != "0" {
				t.Errorf("%v: the answer is %v, want %s", c.changes, got, c.want)
			}
			f.want(bob.do("GET", "/jobs/"+uuid(100+i), nil), 403) // no job was made
		}
		wantBalance("after failures without a job", "100", bob)

		f.want(bob.hire(a, uuid(200)), 202)
		alice.pull(a)
		f.want(alice.deliver(uuid(200), a, "FAILURE", "error_message", "out of paint"), 200)
		got := bob.do("GET", "/jobs/"+uuid(200), nil)
		if statusOf(got) != "FAILURE EXECUTION_ERROR" || text(got, "error_message") != "out of paint" {
			t.Errorf("the job is %v", got)
		}
		f.want(bob.hire(a, uuid(201)), 202)
		alice.pull(a)
		f.want(alice.deliver(uuid(201), a, "FAILURE", "error_code", "SKILL_MISMATCH"), 200)
		bob.wantStatus("with a code of the agent", uuid(201), "FAILURE SKILL_MISMATCH")
		f.want(bob.hire(a, uuid(202)), 202)
		alice.pull(a)
		f.want(alice.deliver(uuid(202), a, "FAILURE", "error_code", "OWN", "error_message", strings.Repeat("é", 1001)), 200)
		got = bob.do("GET", "/jobs/"+uuid(202), nil)
		if statusOf(got) != "FAILURE EXECUTION_ERROR" || text(got, "error_message") != strings.Repeat("é", 1000) {
			t.Errorf("the job is %v", got)
		}
		wantBalance("after failures", "100 100", alice, bob)
	})
}

// J-6: a repeated job is held and paid once.
func TestRepeatedJob(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, eve := f.user("alice"), f.user("bob"), f.user("eve")
		a, j := alice.agent(uuid(1), ""), uuid(0xabc)
		other := alice.agent(uuid(2), "")
		first := f.want(bob.hire(a, j), 202)
		if first.Header.Get("Location") != f.gateway.URL()+"/jobs/"+j {
			t.Errorf("Location is %q", first.Header.Get("Location"))
		}
		began := time.Now()
		repeat := f.want(bob.do("POST", "/a/"+strings.ToUpper(a), changed(order(strings.ToUpper(j)), "timestamp_utc", "later", "more", 1)), 202)
		if string(repeat.Body) != string(first.Body) || time.Since(began) > 0 {
			t.Errorf("after %v the repeat gets %v, and the first got %v", time.Since(began), repeat, first)
		}
		wantBalance("after a repeat", "99.85", bob)
		f.want(eve.hire(a, j), 409)
		f.want(bob.hire(other, j), 409)
		for _, change := range [][]any{{"budget", 0.16}, {"skill_name", "sing"}, {"input_data", object{"text": "bye"}},
			{"orchestrator_id", "you"}, {"callback_url", "https://hirer.example/cb"}} {
			f.want(bob.hire(a, j, change...), 409)
		}
		alice.pull(a)
		f.want(alice.deliver(j, a, "SUCCESS"), 200)
		if got := f.want(bob.hire(a, j, "callback_url", "local://memory", "currency", "chorus_credits_v1"), 200); statusOf(got) != "SUCCESS" {
			t.Errorf("after the end the repeat gets %v", got)
		}
		wantBalance("after the end", "100.1 99.9", alice, bob)
		made := f.want(bob.hire(a, "", "job_id", nil), 202)
		if id := text(made, "job_id"); len(id) != 36 || id == j {
			t.Errorf("the job without an id has %q", id)
		}
	})
}

// TestResults checks who may report what, and when (J-7, J-29).
func TestResults(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, eve := f.user("alice"), f.user("bob"), f.user("eve")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		b := alice.agent(uuid(2), "")
		f.want(bob.hire(a, j), 202)
		alice.pull(a)
		f.want(f.do("POST", "/agents/"+a+"/results", "", result(j, a, "SUCCESS")), 401)
		f.want(eve.deliver(j, a, "SUCCESS"), 403)
		f.want(bob.deliver(j, a, "SUCCESS"), 403)
		f.want(alice.do("POST", "/agents/"+b+"/results", result(j, b, "SUCCESS")), 403)
		f.want(alice.do("POST", "/agents/"+uuid(77)+"/results", result(j, a, "SUCCESS")), 404)
		f.want(alice.deliver(uuid(101), a, "SUCCESS"), 403)
		f.wantField(alice.do("POST", "/agents/"+a+"/results", result(j, b, "SUCCESS")), "body.agent_id")
		for field, value := range map[string]any{"status": "DONE", "job_id": "x", "output_data": []int{1}, "execution_cost": -1,
			"execution_time_ms": -1, "error_message": 1, "error_code": 1} {
			f.wantField(alice.deliver(j, a, "SUCCESS", field, value), "body."+field)
		}
		f.wantField(alice.deliver(j, a, "SUCCESS", "job_id", nil), "body.job_id")
		f.wantField(alice.deliver(j, a, "SUCCESS", "status", nil), "body.status")
		f.want(alice.deliver(j, a, "PENDING"), 200)
		bob.wantStatus("after PENDING", j, "PENDING")
		f.want(alice.deliver(j, a, "SUCCESS", "execution_cost", 0.2, "timestamp_utc", "now"), 200)
		f.want(alice.deliver(j, a, "SUCCESS", "execution_cost", 0.2, "timestamp_utc", "later"), 200)
		f.want(alice.deliver(j, a, "SUCCESS"), 409)
		f.want(alice.deliver(j, a, "PENDING"), 409)
		f.want(alice.deliver(j, a, "FAILURE"), 409)
		wantBalance("a cost above the price", "100.1 99.9", alice, bob)
		for i, c := range []struct {
			cost any
			want string
		}{{0.04, "0.04"}, {nil, "0.1"}, {0, "0"}, {0.1, "0.1"}} {
			j := uuid(200 + i)
			f.want(bob.hire(a, j), 202)
			alice.pull(a)
			f.want(alice.deliver(j, a, "SUCCESS", "execution_cost", c.cost), 200)
			if got := number(bob.do("GET", "/jobs/"+j, nil), "execution_cost"); got != c.want {
				t.Errorf("a result with the cost %v: paid %s, want %s", c.cost, got, c.want)
			}
		}
		f.want(eve.do("GET", "/jobs/"+j, nil), 403)
		f.want(alice.do("GET", "/jobs/"+j, nil), 200)
		f.want(f.do("GET", "/jobs/"+j, "", nil), 401)
	})
}

// TestPrice checks that a job costs what it cost when it was made.
func TestPrice(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		f.want(bob.hire(a, uuid(100), "budget", 5), 202)
		f.want(alice.do("POST", "/register", skilled(a, "alice", "", 5)), 201)
		alice.pull(a)
		f.want(alice.deliver(uuid(100), a, "SUCCESS", "execution_cost", 5), 200)
		wantBalance("after the job", "100.1 99.9", alice, bob)
	})
}

// TestPayer checks which account pays for a job.
func TestPayer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		bob := f.user("bob")
		a := alice.agent(uuid(1), "")
		for _, owner := range []string{"bob2", "bob3"} {
			f.want(bob.do("POST", "/accounts", object{"owner_id": owner}), 201)
			f.want(bob.do("POST", "/transfer", send("bob", owner, 10)), 200)
		}
		f.want(bob.do("POST", "/register", skilled(uuid(9), "bob3", "", 1)), 201)
		balances := func() string {
			return strings.Join([]string{user{f, bob.key, "bob"}.balance(), user{f, bob.key, "bob2"}.balance(),
				user{f, bob.key, "bob3"}.balance()}, " ")
		}
		for i, c := range []struct {
			orchestrator string
			budget       any
			want, status string
		}{
			{"whoever", 1, "79 10 10", "PENDING"},
			{"bob2", 1, "79 9 10", "PENDING"},
			{uuid(9), 1, "79 9 9", "PENDING"},
			{"bob2", 9.5, "79 9 9", "FAILURE TRANSFER_FAILED"},
			{"alice", 79, "0 9 9", "PENDING"},
			{"whoever", 9, "0 0 9", "PENDING"},
			{uuid(1), 9, "0 0 0", "PENDING"}, // an agent of another principal
			{"whoever", 0.1, "0 0 0", "FAILURE TRANSFER_FAILED"},
		} {
			got := bob.hire(a, uuid(100+i), "orchestrator_id", c.orchestrator, "budget", c.budget)
			if statusOf(got) != c.status || balances() != c.want {
				t.Errorf("%s pays %v: %v, and the balances are %s, want %s and %s", c.orchestrator, c.budget, got, balances(),
					c.status, c.want)
			}
		}
	})
}

// TestWait checks how long a hirer and an agent wait.
func TestWait(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		began := time.Now()
		f.want(bob.do("POST", "/a/"+a+"/jobs", order(uuid(100))), 202)
		if took := time.Since(began).Round(time.Second); took != time.Minute {
			t.Errorf("without wait it took %v", took)
		}
		alice.pull(a)
		began = time.Now()
		if got := f.want(alice.do("GET", "/agents/"+a+"/jobs?wait=60", nil), 200); member(got, "jobs", 0) != nil ||
			time.Since(began).Round(time.Second) != time.Minute {
			t.Errorf("after %v: %v", time.Since(began), got)
		}
		answers := make(chan answer, 2)
		began = time.Now()
		go func() { answers <- alice.do("GET", "/agents/"+a+"/jobs?wait=60", nil) }()
		synctest.Wait()
		go func() { answers <- bob.do("POST", "/a/"+a+"?wait=120", order(uuid(101))) }()
		if got := f.want(<-answers, 200); text(got, "jobs", 0, "job_id") != uuid(101) || time.Since(began) > 0 {
			t.Errorf("after %v the agent gets %v", time.Since(began), got)
		}
		time.Sleep(100 * time.Second)
		f.want(alice.deliver(uuid(101), a, "SUCCESS"), 200)
		if got := f.want(<-answers, 200); statusOf(got) != "SUCCESS" || time.Since(began).Round(time.Second) != 100*time.Second {
			t.Errorf("after %v the hirer gets %v", time.Since(began), got)
		}
		f.wantField(bob.do("POST", "/a/"+a+"?wait=121", order(uuid(102))), "query.wait")
		f.wantField(alice.do("GET", "/agents/"+a+"/jobs?wait=61", nil), "query.wait")
	})
}

// TestManyWait checks that a hirer whose address has too many waiting requests gets 202, and that the job is made.
func TestManyWait(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		answers := make(chan answer)
		go func() { answers <- bob.do("POST", "/a/"+a, order(uuid(100))) }()
		synctest.Wait()
		began := time.Now()
		f.want(bob.do("POST", "/a/"+a, order(uuid(101))), 202)
		if took := time.Since(began); took > 0 {
			t.Errorf("the second hirer waits for %v", took)
		}
		if got := alice.pull(a); len(got) != 2 {
			t.Errorf("the agent pulls %v", got)
		}
		f.want(<-answers, 202)
	}, func(f *fixture) { f.Public, f.From, f.Limits = true, "192.0.2.1:9", relay.Limits{PollsPerAddress: 1} })
}

// TestHandedAgain checks that a job that was handed out is handed out again after 300 seconds, until it ends.
func TestHandedAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, eve := f.user("alice"), f.user("bob"), f.user("eve")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		f.want(bob.hire(a, j, "callback_url", "https://hirer.example/secret"), 202)
		f.want(eve.do("GET", "/agents/"+a+"/jobs", nil), 403)
		f.want(bob.do("GET", "/agents/"+a+"/jobs", nil), 403)
		f.want(f.do("GET", "/agents/"+a+"/jobs", "", nil), 401)
		got := f.want(alice.do("GET", "/agents/"+a+"/jobs", nil), 200)
		const want = `map[budget:0.15 callback_url: currency:chorus_credits_v1 input_data:map[text:hello] job_id:00000000-0000-4000-8000-000000000100 orchestrator_id:me skill_name:echo timestamp_utc:2000-01-01T00:00:00.000Z]`
		if job := fmt.Sprint(member(got, "jobs", 0)); job != want {
			t.Errorf("the agent gets %s, want %s", job, want)
		}
		for after, want := range []int{0, 0, 1, 0, 1} {
			if got := alice.pull(a); len(got) != want {
				t.Errorf("pull %d gets %v, want %d jobs", after, got, want)
			}
			f.pass(150 * time.Second)
		}
		f.want(alice.deliver(j, a, "FAILURE"), 200)
		f.pass(300 * time.Second)
		if got := alice.pull(a); len(got) != 0 {
			t.Errorf("after the end the agent gets %v", got)
		}
	})
}

// TestTimeout checks that a job that was dispatched ends after the timeout (J-21, J-22).
func TestTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		f.want(bob.hire(a, j), 202)
		alice.pull(a)
		f.pass(10*time.Minute - 3*time.Second)
		bob.wantStatus("before the timeout", j, "PENDING")
		f.Ahead.Add(int64(time.Minute)) // no time passes in which the gateway could notice
		f.want(alice.deliver(j, a, "SUCCESS"), 409)
		bob.wantStatus("after the timeout", j, "FAILURE EXECUTION_ERROR")
		wantBalance("after the timeout", "100 100", alice, bob)
		if got := f.score(a); got != "45.5" {
			t.Errorf("the score is %s", got)
		}
	}, func(f *fixture) {
		f.options = jobs.Options{Initial: jobs.Defaults.Initial, Supply: jobs.Defaults.Supply, Timeout: 10 * time.Minute}
	})
}

// TestForgotten checks that the contents of a job are forgotten 30 days after its end, and that its payment is not.
func TestForgotten(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		f.want(bob.hire(a, j), 202)
		alice.pull(a)
		f.want(alice.deliver(j, a, "SUCCESS"), 200)
		f.pass(30*24*time.Hour - time.Minute)
		if got := bob.do("GET", "/jobs/"+j, nil); text(got, "output_data", "text") != "done" {
			t.Errorf("after 30 days the job is %v", got)
		}
		f.pass(time.Minute)
		got := f.want(bob.hire(a, j), 200)
		if statusOf(got) != "SUCCESS" || number(got, "execution_cost") != "0.1" || number(got, "output_data") != "{}" {
			t.Errorf("after more than 30 days the job is %v", got)
		}
		f.want(alice.deliver(j, a, "SUCCESS"), 200) // the same result
		wantBalance("in the end", "100.1 99.9", alice, bob)
	})
}

// TestJobLimits checks the limits on unfinished jobs.
func TestJobLimits(t *testing.T) {
	engine.OnlySQLite(t, "it repeats for long what the other tests do")
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		var agents []string
		for i := range 11 {
			agents = append(agents, alice.agent(uuid(i), ""))
		}
		n := 1000
		for i := range 10 {
			for range 100 {
				n++
				f.want(bob.hire(agents[i], uuid(n), "budget", 0.1), 202)
			}
			if i == 0 {
				full := f.want(f.user("carol").hire(agents[0], uuid(n+5000)), 429)
				if text(full, "limit") != "unfinishedJobs" || full.Header.Get("Retry-After") == "" {
					t.Errorf("the answer is %v", full)
				}
			}
		}
		f.want(bob.hire(agents[10], uuid(n+1), "budget", 0), 429)
		f.want(bob.hire(agents[0], uuid(1001), "budget", 0.1), 202) // a repeat
		for range 5 {
			alice.pull(agents[0])
		}
		f.want(alice.deliver(uuid(1001), agents[0], "FAILURE"), 200)
		f.want(bob.hire(agents[0], uuid(n+1), "budget", 0.1), 202)
		f.want(f.user("dave").hire(agents[10], uuid(n+2), "budget", 0.1), 202)
	})
}
