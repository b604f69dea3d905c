package jobs_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// TestBannedPrincipal checks that a principal whose DID is banned can do nothing, by signed calls or by callbacks, and
// that its agent gets no jobs.
func TestBannedPrincipal(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, err := didkey.Generate()
		f.must(err)
		bob := f.user("bob")
		server := newEndpoint(t, says(202, object{"job_id": uuid(1), "status": "PENDING"}))
		register := fmt.Sprintf(`{"agent_id":%q,"agent_name":"spammer","owner_id":%q,"api_endpoint":%q,"skills":[{"skill_name":"echo",`+
			`"cost_per_call":0.1}]}`, uuid(9), key.DID(), server.url)
		call := func(method, path, body string) answer {
			return f.at(f.URL+"/jobs", method, path, body, f.signed(key, method, path, body))
		}
		f.want(call("POST", "/register", register), 201)
		f.want(bob.hire(uuid(9), uuid(1)), 202)
		synctest.Wait()
		f.Relay.Gate().SetBans(relay.Bans{Agents: []didkey.DID{key.DID()}})
		f.want(call("POST", "/register", register), 403)
		f.want(call("GET", "/audit", ""), 403)
		f.want(f.callback(server.calls()[0].body, result(uuid(1), uuid(9), "SUCCESS")), 403)
		f.want(bob.hire(uuid(9), uuid(2)), 202)
		time.Sleep(6 * time.Minute)
		if n := len(server.calls()); n != 1 {
			t.Errorf("the endpoint got %d calls, want 1", n)
		}
		bob.wantStatus("the agent is banned", uuid(2), "FAILURE AGENT_OFFLINE")
		f.Relay.Gate().SetBans(relay.Bans{})
		f.want(f.callback(server.calls()[0].body, result(uuid(1), uuid(9), "SUCCESS")), 200)
		bob.wantStatus("the ban has ended", uuid(1), "SUCCESS")
	})
}

// TestBannedHirer checks that the callback of a hirer who is banned is not called.
func TestBannedHirer(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, err := didkey.Generate()
		f.must(err)
		call := func(method, path, body string) answer {
			return f.at(f.URL+"/jobs", method, path, body, f.signed(key, method, path, body))
		}
		bob := f.user("bob")
		agent := bob.agent(uuid(9), "")
		f.want(call("POST", "/accounts", fmt.Sprintf(`{"owner_id":%q}`, key.DID())), 201)
		hirer := newEndpoint(t, nil)
		f.want(call("POST", "/a/"+agent+"/jobs?wait=0", fmt.Sprintf(`{"job_id":%q,"orchestrator_id":"me","skill_name":"echo",`+
			`"input_data":{},"budget":0.15,"callback_url":%q}`, uuid(1), hirer.url)), 202)
		bob.pull(agent)
		f.Relay.Gate().SetBans(relay.Bans{Agents: []didkey.DID{key.DID()}})
		f.want(bob.deliver(uuid(1), agent, "SUCCESS"), 200)
		time.Sleep(time.Minute)
		if n := len(hirer.calls()); n != 0 {
			t.Errorf("the callback was called %d times", n)
		}
	})
}

// TestBannedAddress checks that a banned address can do nothing, and that its waiting request ends.
func TestBannedAddress(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		bob := f.user("bob")
		agent := bob.agent(uuid(9), "")
		waiting := make(chan answer, 1)
		go func() { waiting <- bob.do("GET", "/agents/"+agent+"/jobs?wait=60", nil) }()
		synctest.Wait()
		began := time.Now()
		f.Relay.Gate().SetBans(relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}})
		<-waiting
		if took := time.Since(began); took > time.Second {
			t.Errorf("the request of a banned client ends after %v", took)
		}
		f.want(bob.do("GET", "/audit", nil), 403)
		f.want(f.do("GET", "/skills", "", nil), 403)
		f.want(bob.hire(agent, uuid(1)), 403)
	}, func(f *fixture) { f.From = "203.0.113.9:9" })
}

// TestRemove checks what becomes of the jobs and the agents that the operator removes.
func TestRemove(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		bob, eve := f.user("bob"), f.user("eve")
		hirer := newEndpoint(t, nil)
		agent := eve.agent(uuid(9), "")
		secret := object{"text": "secret"}
		for i := 1; i <= 3; i++ { // ended, handed out, not handed out
			if i == 3 {
				eve.pull(agent)
				f.want(eve.deliver(uuid(1), agent, "SUCCESS", "output_data", secret), 200)
			}
			f.want(bob.hire(agent, uuid(i), "input_data", secret, "callback_url", hirer.url), 202)
		}
		score := f.score(agent)
		f.Relay.Pause() // a paused relay can be governed
		for i := 1; i <= 3; i++ {
			f.must(f.gateway.Remove(t.Context(), strings.ToUpper(uuid(i))))
		}
		f.Relay.Resume()
		for i, want := range []string{"SUCCESS", "FAILURE EXECUTION_ERROR", "FAILURE EXECUTION_ERROR"} {
			a := f.want(bob.do("GET", "/jobs/"+uuid(i+1), nil), 200)
			if statusOf(a) != want || text(a, "error_message") != "the operator of this registry has removed this" ||
				strings.Contains(string(a.Body), "secret") {
				t.Errorf("job %d is shown as %v", i+1, a)
			}
		}
		wantBalance("what was held is paid back", "99.9 100.1", bob, eve)
		if got := f.score(agent); got != score {
			t.Errorf("the score is %s, want %s", got, score)
		}
		if got := eve.pull(agent); len(got) != 0 {
			t.Errorf("the agent gets %v", got)
		}
		f.want(eve.deliver(uuid(2), agent, "SUCCESS"), 409)
		for _, c := range hirer.calls() {
			if id := c.body["job_id"]; id != uuid(1) && strings.Contains(fmt.Sprint(c.body), "secret") {
				t.Errorf("the hirer gets %v", c.body)
			}
		}
		f.must(f.gateway.Remove(t.Context(), agent))
		if a := f.do("GET", "/agents/"+agent, "", nil); a.Status != http.StatusNotFound {
			t.Errorf("the removed agent: %v", a)
		}
		if a := f.want(f.do("GET", "/skills", "", nil), 200); strings.Contains(string(a.Body), "echo") {
			t.Errorf("the skills are %s", a.Body)
		}
		if err := f.gateway.Remove(t.Context(), uuid(7)); envelope.CodeOf(err) != envelope.CodeNotFound {
			t.Errorf("an unknown id: %v", err)
		}
		f.pass(31 * 24 * time.Hour)
	})
}

// TestRemoveSender checks what the removal of a principal removes: its agents, the jobs that it has ordered, and the
// jobs of its agents, all or since a time. It must remove nothing else.
func TestRemoveSender(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, err := didkey.Generate()
		f.must(err)
		bob := f.user("bob")
		call := func(method, path, body string) answer {
			return f.at(f.URL+"/jobs", method, path, body, f.signed(key, method, path, body))
		}
		f.want(call("POST", "/accounts", fmt.Sprintf(`{"owner_id":%q}`, key.DID())), 201)
		f.want(call("POST", "/register", fmt.Sprintf(`{"agent_id":%q,"agent_name":"spammer","owner_id":%q,"skills":[{`+
			`"skill_name":"echo","cost_per_call":0.1}]}`, uuid(9), key.DID())), 201)
		agent := bob.agent(uuid(8), "")
		secret := object{"text": "secret"}
		f.want(bob.hire(uuid(9), uuid(1), "input_data", secret), 202)
		f.want(bob.hire(agent, uuid(2), "input_data", secret), 202)
		time.Sleep(time.Minute)
		f.want(call("POST", "/a/"+agent+"/jobs?wait=0", fmt.Sprintf(`{"job_id":%q,"orchestrator_id":"me","skill_name":"echo",`+
			`"input_data":{"text":"spam"},"budget":0.15}`, uuid(3))), 202)
		remove := func(sender string, since time.Time, limit, want int) {
			t.Helper()
			if n, err := f.gateway.RemoveSender(t.Context(), sender, since, limit); err != nil || n != want {
				t.Errorf("%d things of %s are removed, want %d, %v", n, sender, want, err)
			}
		}
		did := string(key.DID())
		remove("bob@relay.example", time.Time{}, 9, 0)
		remove(did, time.Now().Add(-30*time.Second), 9, 1)
		remove(did, time.Time{}, 1, 1)
		remove(did, time.Time{}, 9, 1)
		remove(did, time.Time{}, 9, 0)
		if a := f.do("GET", "/agents/"+uuid(9), "", nil); a.Status != http.StatusNotFound {
			t.Errorf("the removed agent: %v", a)
		}
		bob.wantStatus("done by the agent", uuid(1), "FAILURE EXECUTION_ERROR")
		bob.wantStatus("of others", uuid(2), "PENDING")
	})
}
