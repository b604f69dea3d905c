package jobs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/jobs"
)

// TestStatements checks the statements of the gateway, including those that no test runs.
func TestStatements(t *testing.T) { gatetest.Statements(t, gateway.Extension, jobs.Extension) }

// TestPull checks a job that its agent pulls, from the order to the payment (J-22).
func TestPull(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		f.want(bob.hire(a, j), 202)
		wantBalance("while the job runs", "100 99.85", alice, bob)
		if got := alice.pull(a); len(got) != 1 || got[0] != j {
			t.Errorf("the agent gets %v, want %s", got, j)
		}
		bob.wantStatus("before the result", j, "PENDING")
		f.want(alice.deliver(j, a, "SUCCESS"), 200)
		done := f.want(bob.do("GET", "/jobs/"+j, nil), 200)
		if statusOf(done) != "SUCCESS" || number(done, "execution_cost") != "0.1" || text(done, "output_data", "text") != "done" {
			t.Errorf("the job is %v", done)
		}
		wantBalance("after the job", "100.1 99.9", alice, bob)
		if got := f.score(a); got != "51.0" {
			t.Errorf("the score is %s, want 51.0", got)
		}
	})
}

// TestEndpoint checks a job that is sent to an endpoint (J-22).
func TestEndpoint(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		e := newEndpoint(t, nil)
		a, j := alice.agent(uuid(1), e.url), uuid(100)
		e.answers(does(a, "SUCCESS"))
		done := f.want(bob.do("POST", "/a/"+a, order(j)), 200)
		if statusOf(done) != "SUCCESS" {
			t.Errorf("the job is %v", done)
		}
		calls := e.calls()
		if len(calls) != 1 || calls[0].path != "/jobs" || calls[0].header.Get("Idempotency-Key") != j {
			t.Errorf("the endpoint got %v", calls)
		}
		wantBalance("after the job", "100.1 99.9", alice, bob)
	})
}

// TestOffline checks that a job ends if its agent does not get it in five minutes (J-20, J-21).
func TestOffline(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a, j := alice.agent(uuid(1), ""), uuid(100)
		f.want(bob.hire(a, j), 202)
		f.pass(5*time.Minute - 3*time.Second)
		bob.wantStatus("before 5 minutes", j, "PENDING")
		f.pass(3 * time.Second)
		bob.wantStatus("after 5 minutes", j, "FAILURE AGENT_OFFLINE")
		wantBalance("after the job", "100 100", alice, bob)
		synctest.Wait()
	})
}
