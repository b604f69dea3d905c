package jobs_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// J-23: endpoints registered with and without /jobs are reached.
func TestEndpointPaths(t *testing.T) {
	for endpoint, want := range map[string][2]string{
		"https://a.example":          {"https://a.example/jobs", "https://a.example/jobs"},
		"https://a.example/":         {"https://a.example/jobs", "https://a.example/jobs"},
		"https://a.example/x":        {"https://a.example/x/jobs", "https://a.example/x/jobs"},
		"https://a.example/jobs":     {"https://a.example/jobs", "https://a.example/jobs/jobs"},
		"https://a.example/x/jobs?k": {"https://a.example/x/jobs?k", "https://a.example/x/jobs/jobs?k"},
		"https://a.example/x%2Fy":    {"https://a.example/x%2Fy/jobs", "https://a.example/x%2Fy/jobs"},
	} {
		for i, appended := range []bool{false, true} {
			if got, err := jobs.JobsURL(endpoint, appended); err != nil || got != want[i] {
				t.Errorf("%s, %v: %s, %v, want %s", endpoint, appended, got, err, want[i])
			}
		}
	}
	for path, serves := range map[string]string{"": "/jobs", "/agent": "/agent/jobs", "/jobs": "/jobs", "/deep/jobs": "/deep/jobs/jobs"} {
		for _, missing := range []int{404, 405} {
			inBubble(t, func(t *testing.T, f *fixture) {
				alice, bob := f.user("alice"), f.user("bob")
				e := newEndpoint(t, nil)
				a := alice.agent(uuid(1), e.url+path)
				e.answers(func(w http.ResponseWriter, r *http.Request, job object) {
					if r.URL.Path != serves {
						w.WriteHeader(missing)
						return
					}
					does(a, "SUCCESS")(w, r, job)
				})
				began := time.Now()
				if got := f.want(bob.do("POST", "/a/"+a, order(uuid(100))), 200); statusOf(got) != "SUCCESS" || time.Since(began) > 0 {
					t.Errorf("%q: after %v the job is %v, the calls are %v", path, time.Since(began), got, e.calls())
				}
			})
		}
	}
}

// TestEndpointAnswers checks what the answers of endpoints mean (J-20 to J-22).
func TestEndpointAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, nil)
		a := alice.agent(uuid(1), e.url)
		next := 100
		const broken = "FAILURE EXECUTION_ERROR"
		for _, c := range []struct {
			what  string
			reply func(http.ResponseWriter, *http.Request, object)
			want  string
			score string // how the job changes it
		}{
			{"success", does(a, "SUCCESS"), "SUCCESS", "51.0"},
			{"failure", does(a, "FAILURE"), broken, "45.5"},
			{"failure with a code", does(a, "FAILURE", "error_code", "SKILL_MISMATCH"), "FAILURE SKILL_MISMATCH", "45.5"},
			{"nulls", does(a, "SUCCESS", "output_data", nil, "execution_cost", nil, "agent_id", nil), "SUCCESS", "51.0"},
			{"no body", says(200, nil), broken, "45.5"},
			{"no JobResult", says(200, object{"ok": true}), broken, "45.5"},
			{"a text", says(201, "done"), broken, "45.5"},
			{"a result of another job", says(200, result(uuid(1), a, "SUCCESS")), broken, "45.5"},
			{"a result of another agent", does(uuid(2), "SUCCESS"), broken, "45.5"},
			{"a bad cost", does(a, "SUCCESS", "execution_cost", -1), broken, "45.5"},
			{"too much", does(a, "SUCCESS", "output_data", object{"x": strings.Repeat("x", 49_152)}), broken, "45.5"},
			{"another protocol", func(w http.ResponseWriter, _ *http.Request, _ object) {
				conn, _, err := w.(http.Hijacker).Hijack()
				f.must(err)
				t.Cleanup(func() { _ = conn.Close() }) // the relay has closed it
				_, err = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"))
				f.must(err)
			}, broken, "50.0"},
			{"400", says(400, object{}), broken, "50.0"},
			{"404", says(404, object{}), broken, "50.0"},
			{"302", func(w http.ResponseWriter, r *http.Request, _ object) { http.Redirect(w, r, "/x", http.StatusFound) }, broken, "50.0"},
		} {
			next++
			f.must(f.gateway.SetScore(t.Context(), a, 50_000_000))
			e.answers(c.reply)
			before := bob.balance()
			got := f.want(bob.do("POST", "/a/"+a, order(uuid(next))), 200)
			if statusOf(got) != c.want || f.score(a) != c.score {
				t.Errorf("%s: the score is %s, and the job is %v; want %s and %s", c.what, f.score(a), got, c.score, c.want)
			}
			if after := bob.balance(); (after == before) != (c.want != "SUCCESS") {
				t.Errorf("%s: the hirer had %s and has %s", c.what, before, after)
			}
		}
	})
}

// TestRestartedAgent checks that an endpoint may answer as another agent of the same principal. Upstream's agents take a
// new agent_id at each start.
func TestRestartedAgent(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob, eve := f.user("alice"), f.user("bob"), f.user("eve")
		e := newEndpoint(t, nil)
		old, now := alice.agent(uuid(1), e.url), alice.agent(uuid(2), e.url)
		foreign, moved := eve.agent(uuid(3), e.url), alice.agent(uuid(4), e.url+"/x")
		for i, c := range []struct{ as, want, message string }{{now, "SUCCESS", ""}, {old, "SUCCESS", ""},
			{foreign, "FAILURE EXECUTION_ERROR", "the agent's endpoint answered with the result of another agent"},
			{moved, "FAILURE EXECUTION_ERROR", "the agent's endpoint answered with the result of another agent"}} {
			e.answers(does(c.as, "SUCCESS"))
			got := f.want(bob.do("POST", "/a/"+old, order(uuid(100+i))), 200)
			if statusOf(got) != c.want || text(got, "agent_id") != old || text(got, "error_message") != c.message {
				t.Errorf("as %s: the job is %v, want %s", c.as, got, c.want)
			}
		}
		e.answers(does(now, "PENDING"))
		f.want(bob.hire(old, uuid(109)), 202)
		calls := e.calls()
		f.wantField(f.callback(calls[len(calls)-1].body, result(uuid(109), foreign, "SUCCESS")), "body.agent_id")
		f.want(f.callback(calls[len(calls)-1].body, result(uuid(109), now, "SUCCESS")), 200)
		n := len(calls)
		e.answers(func(_ http.ResponseWriter, r *http.Request, _ object) { <-r.Context().Done() })
		f.want(bob.hire(old, uuid(111)), 202)
		synctest.Wait()
		alice.agent(old, e.url+"/") // the silent call is not repeated at the new endpoint
		time.Sleep(dispatchTime + time.Minute)
		if calls := e.calls(); len(calls) != n+1 {
			t.Errorf("an agent that registers again gets %d calls", len(calls)-n)
		}
		e.answers(does(old, "SUCCESS", "status", "OK"))
		const notResult = "the agent's endpoint answered with something that is not a JobResult"
		if got := text(f.want(bob.do("POST", "/a/"+old, order(uuid(110))), 200), "error_message"); got !=
			notResult+": body.status: must be SUCCESS, FAILURE or PENDING" {
			t.Errorf("the message is %s", got)
		}
		// G-16: hirers do not learn what servers answer that are no agents.
		for i, answer := range []string{`{"status":"OK"}`, "not JSON", "", `{"job_id":"x"}`, strings.Repeat("[", 70)} {
			e.answers(func(w http.ResponseWriter, _ *http.Request, _ object) { _, _ = w.Write([]byte(answer)) })
			if got := text(f.want(bob.do("POST", "/a/"+old, order(uuid(120+i))), 200), "error_message"); got != notResult {
				t.Errorf("%q: the message is %s", answer, got)
			}
		}
	})
}

// TestEndpointRetries checks that no connection, 408, 425, 429 and 5xx are retried, with the same job_id and with a new
// callback each time.
func TestEndpointRetries(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, nil)
		a := alice.agent(uuid(1), e.url)
		statuses := []int{500, 503, 429, 408, 425}
		callbacks := map[any]bool{}
		e.answers(func(w http.ResponseWriter, r *http.Request, job object) {
			callbacks[job["callback_url"]] = true
			if len(statuses) > 0 {
				w.WriteHeader(statuses[0])
				statuses = statuses[1:]
				return
			}
			does(a, "SUCCESS")(w, r, job)
		})
		if got := f.want(bob.do("POST", "/a/"+a+"?wait=120", order(uuid(100))), 200); statusOf(got) != "SUCCESS" || len(callbacks) != 6 {
			t.Errorf("with %d callbacks the job is %v", len(callbacks), got)
		}
		nobody := "http://127.0.0.1:2009" // the listeners of tests have ports up to 1000
		f.want(alice.do("POST", "/register", skilled(a, "alice", nobody, 0.1)), 201)
		f.want(bob.hire(a, uuid(101)), 202)
		f.pass(dispatchTime - 3*time.Second)
		bob.wantStatus("without a connection", uuid(101), "PENDING")
		f.pass(3 * time.Second)
		bob.wantStatus("without a connection", uuid(101), "FAILURE AGENT_OFFLINE")
		if got := statusOf(f.want(bob.hire(a, uuid(102)), 200)); got != "FAILURE AGENT_OFFLINE" {
			t.Errorf("the next job is %s", got)
		}
		f.want(alice.do("POST", "/heartbeat", object{"agent_id": a}), 200)
		f.want(bob.hire(a, uuid(102)), 202)
		wantBalance("in the end", "100.1 99.75", alice, bob)
	})
}

// TestEndpointComesBack checks that a job reaches an endpoint that works again within five minutes.
func TestEndpointComesBack(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, says(503, nil))
		a := alice.agent(uuid(1), e.url)
		f.want(bob.hire(a, uuid(100)), 202)
		time.Sleep(3 * time.Minute)
		e.answers(does(a, "SUCCESS"))
		time.Sleep(2*time.Minute - time.Second)
		bob.wantStatus("after some attempts", uuid(100), "SUCCESS")
	})
}

// J-25: an endpoint that is silent for 300 seconds is not called again. J-26: its callback ends the job.
func TestSilentEndpoint(t *testing.T) {
	for _, status := range []string{"SUCCESS", "FAILURE", ""} {
		inBubble(t, func(t *testing.T, f *fixture) {
			alice, bob := f.user("alice"), f.user("bob")
			e := newEndpoint(t, func(_ http.ResponseWriter, r *http.Request, _ object) { <-r.Context().Done() })
			a, j := alice.agent(uuid(1), e.url), uuid(100)
			f.want(bob.hire(a, j), 202)
			time.Sleep(20 * time.Minute)
			calls := e.calls()
			if len(calls) != 1 {
				t.Fatalf("the endpoint got %d calls", len(calls))
			}
			bob.wantStatus("while the endpoint is silent", j, "PENDING")
			if status == "" {
				f.pass(45 * time.Minute)
				bob.wantStatus("after the timeout", j, "FAILURE EXECUTION_ERROR")
				f.want(f.callback(calls[0].body, result(j, a, "SUCCESS")), 409)
				wantBalance("after the timeout", "100 100", alice, bob)
				return
			}
			f.want(f.callback(calls[0].body, result(j, a, status)), 200)
			if got := bob.status(j); !strings.HasPrefix(got, status) {
				t.Errorf("after %s the job is %s", status, got)
			}
			f.want(f.callback(calls[0].body, result(j, a, status)), 200)
			f.want(f.callback(calls[0].body, result(j, a, status, "execution_time_ms", 13)), 409)
		})
	}
}

// TestHangingEndpoints checks that the endpoints of one principal take 8 calls at a time, and that the jobs of another one
// do not wait for them. An agent is not offline because its job was not sent.
func TestHangingEndpoints(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		thief, alice, bob := f.user("thief"), f.user("alice"), f.user("bob")
		hangs := func(_ http.ResponseWriter, r *http.Request, _ object) { <-r.Context().Done() }
		first, second := newEndpoint(t, hangs), newEndpoint(t, hangs)
		one, two := thief.agent(uuid(1), first.url), thief.agent(uuid(2), second.url)
		for i := range 10 {
			f.want(thief.hire(one, uuid(100+i)), 202)
			f.want(thief.hire(two, uuid(200+i)), 202)
		}
		if n := len(first.calls()) + len(second.calls()); n != 8 {
			t.Errorf("the endpoints of one principal got %d calls", n)
		}
		e := newEndpoint(t, nil)
		a := alice.agent(uuid(3), e.url)
		e.answers(does(a, "SUCCESS"))
		began := time.Now()
		if got := f.want(bob.do("POST", "/a/"+a, order(uuid(300))), 200); statusOf(got) != "SUCCESS" || time.Since(began) > 0 {
			t.Errorf("after %v the job is %v", time.Since(began), got)
		}
		time.Sleep(dispatchTime + 5*time.Second)
		failed := 0
		for i := range 10 {
			for _, j := range []string{uuid(100 + i), uuid(200 + i)} {
				if thief.status(j) == "FAILURE AGENT_OFFLINE" {
					failed++
				}
			}
		}
		if failed == 0 || text(f.do("GET", "/agents/"+one, "", nil), "status") != "online" {
			t.Errorf("%d jobs were never sent, and the agent is %v", failed, f.do("GET", "/agents/"+one, "", nil))
		}
	})
}

// J-22: a callback ends a job whose endpoint has answered PENDING.
func TestCallback(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, nil)
		a, j := alice.agent(uuid(1), e.url), uuid(100)
		e.answers(does(a, "PENDING"))
		f.want(bob.hire(a, j), 202)
		job := e.calls()[0].body
		f.pass(dispatchTime)
		bob.wantStatus("after PENDING", j, "PENDING")
		f.want(f.do("POST", "/cb/tok_"+strings.Repeat("x", 43), "", result(j, a, "SUCCESS")), 404)
		f.want(f.do("POST", "/cb/"+bob.key, "", result(j, a, "SUCCESS")), 404)
		ofChannel := gateway.NewKey(gateway.Callback)
		f.must(f.Relay.Update(t.Context(), relay.Peer{Local: true}, func(tx relay.ExtTx) error {
			return gateway.AddKey(tx, ofChannel, gateway.Holder{Kind: gateway.Callback, Owner: 1})
		}))
		f.want(f.do("POST", "/cb/"+ofChannel, "", result(j, a, "SUCCESS")), 404)
		f.wantField(f.callback(job, result(uuid(101), a, "SUCCESS")), "body.job_id")
		f.wantField(f.callback(job, result(j, uuid(2), "SUCCESS")), "body.agent_id")
		f.want(f.callback(job, result(j, a, "PENDING")), 200)
		f.want(f.callback(job, result(j, a, "SUCCESS")), 200)
		f.want(alice.deliver(j, a, "SUCCESS"), 200) // the same result
		f.want(alice.deliver(j, a, "FAILURE"), 409)
		wantBalance("after the job", "100.1 99.9", alice, bob)
		f.pass(8 * 24 * time.Hour)
		f.want(f.callback(job, result(j, a, "SUCCESS")), 404)
	})
}

// TestCallbackBeforeAnswer checks that an agent may report the result before its endpoint answers.
func TestCallbackBeforeAnswer(t *testing.T) {
	racesInBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, nil)
		a, j := alice.agent(uuid(1), e.url), uuid(100)
		e.answers(func(w http.ResponseWriter, r *http.Request, job object) {
			if got := f.callback(job, result(j, a, "SUCCESS")); got.Status != 200 {
				t.Errorf("the callback gets %v", got)
			}
			says(500, nil)(w, r, job)
		})
		if got := f.want(bob.do("POST", "/a/"+a, order(j)), 200); statusOf(got) != "SUCCESS" {
			t.Errorf("the job is %v", got)
		}
		time.Sleep(10 * time.Minute)
		if len(e.calls()) != 1 || f.score(a) != "51.0" {
			t.Errorf("the endpoint got %d calls, and the score is %s", len(e.calls()), f.score(a))
		}
	})
}

// J-24: the hirer's callback_url gets the result, until it takes it.
func TestHirersCallback(t *testing.T) {
	engine.OnlySQLite(t, "it waits for hours; other tests run the same statements")
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		h := newEndpoint(t, says(503, nil))
		f.want(bob.hire(a, j, "callback_url", h.url+"/results"), 202)
		alice.pull(a)
		f.want(alice.deliver(j, a, "SUCCESS"), 200)
		time.Sleep(time.Minute)
		h.answers(says(200, nil))
		time.Sleep(10 * time.Minute)
		calls := h.calls()
		got := bob.do("GET", "/jobs/"+j, nil)
		last := calls[len(calls)-1]
		if len(calls) < 2 || last.path != "/results" || last.header.Get("Idempotency-Key") != j ||
			fmt.Sprint(last.body) != fmt.Sprint(member(got)) {
			t.Errorf("after %d calls the hirer has %v, and the job is %v", len(calls), last, got)
		}
		time.Sleep(time.Hour)
		if n := len(h.calls()); n != len(calls) {
			t.Errorf("after the success there were %d further calls", n-len(calls))
		}
		for _, url := range []string{"http://hirer.example/", "https://localhost/", gatetest.PublicURL + "/jobs/cb/x", "ftp://x.example/", "x"} {
			f.wantField(bob.hire(a, uuid(101), "callback_url", url), "body.callback_url")
			f.wantField(alice.do("POST", "/register", skilled(a, "alice", url, 1)), "body.api_endpoint")
		}
	})
}

// TestEndpointGiven checks that an agent can begin and stop to pull.
func TestEndpointGiven(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, says(503, nil))
		a := alice.agent(uuid(1), e.url)
		f.want(bob.hire(a, uuid(100)), 202)
		if got := alice.pull(a); len(got) != 0 {
			t.Errorf("the agent can pull %v, which is sent to its endpoint", got)
		}
		alice.agent(a, "")
		if got := alice.pull(a); len(got) != 1 {
			t.Errorf("without an endpoint the agent pulls %v", got)
		}
		n := len(e.calls())
		f.want(bob.hire(a, uuid(101)), 202)
		time.Sleep(time.Minute)
		if calls := e.calls(); len(calls) != n {
			t.Errorf("the endpoint got %d further calls", len(calls)-n)
		}
		e.answers(does(a, "SUCCESS"))
		alice.agent(a, e.url)
		synctest.Wait()
		bob.wantStatus("with an endpoint", uuid(101), "SUCCESS")
		bob.wantStatus("pulled before", uuid(100), "PENDING")
		if got := alice.pull(a); len(got) != 0 {
			t.Errorf("the agent pulls %v", got)
		}
		// A job for an agent that was deleted is sent if it is registered again.
		e.answers(says(503, nil))
		f.want(bob.hire(a, uuid(102)), 202)
		f.want(alice.do("DELETE", "/agents/"+a, nil), 200)
		time.Sleep(4 * time.Minute)
		e.answers(does(a, "SUCCESS"))
		alice.agent(a, e.url)
		synctest.Wait()
		bob.wantStatus("registered again", uuid(102), "SUCCESS")
		f.want(alice.do("DELETE", "/agents/"+a, nil), 200)
		f.want(alice.deliver(uuid(100), a, "SUCCESS"), 200)
		f.want(bob.hire(a, uuid(103)), 404)
		synctest.Wait()
	})
}
