package jobs_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
)

// at sends a request to a base URL.
func (f *fixture) at(base, method, path string, body any, header map[string]string) answer {
	f.t.Helper()
	a, err := gatetest.Do(f.t.Context(), f.Client, base, gatetest.Call{Method: method, Path: path, Body: body, Header: header})
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

func bearer(key string) map[string]string { return map[string]string{"Authorization": "Bearer " + key} }

// G-2, G-3: the gateway's own listener has the same routes at its root, and no route of the relay.
func TestOwnListener(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		alice.agent(uuid(1), "")
		for _, path := range []string{"/accounts/alice", "/discover?skill=echo", "/skills", "/economy", "/audit", "/nothing", "/agents/" + uuid(1),
			"/k/" + alice.key + "/accounts/alice", "/k/" + alice.key + "/discover?skill=echo"} {
			one, two := f.at(f.URL, "GET", "/jobs"+path, nil, bearer(alice.key)), f.at(f.Own, "GET", path, nil, bearer(alice.key))
			if one.Status != two.Status || !bytes.Equal(one.Body, two.Body) {
				t.Errorf("%s: %v and %v", path, one, two)
			}
		}
		for _, path := range []string{"/events", "/.well-known/agora.json", "/", "/threads/x"} {
			f.want(f.at(f.Own, "GET", path, nil, nil), 404)
		}
	})
}

// J-30: a base with a wrong key is 401 on every path. J-27, J-28: so is a request with a wrong key.
func TestKeys(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		wrong := gateway.NewKey(gateway.Principal)
		for _, path := range []string{"/health", "/skills", "/discover?skill=echo", "/accounts/alice", "/economy", "/nothing", "/", "",
			"/agents/" + uuid(1), "/k/" + alice.key + "/health"} {
			for _, key := range []string{wrong, f.Operator, alice.key[1:], "x"} {
				got := f.want(f.do("GET", "/k/"+key+path, "", nil), 401)
				if got.Header.Get("WWW-Authenticate") != "Bearer" {
					t.Errorf("%s: %v", path, got.Header)
				}
			}
			f.want(f.do("GET", "/k/"+wrong+path, alice.key, nil), 401)
			f.want(f.do("GET", "/k/"+alice.key+path, bob.key, nil), 401)
		}
		f.want(f.do("POST", "/k/"+wrong+"/accounts", "", object{"owner_id": "x"}), 401)
		f.want(f.do("POST", "/accounts", wrong, object{"owner_id": "x"}), 401)
		f.want(f.do("GET", "/health", wrong, nil), 401)
		base := "/k/" + alice.key
		f.want(f.do("GET", base+"/accounts/alice", "", nil), 200)
		f.want(f.do("GET", base+"/accounts/alice", alice.key, nil), 200)
		f.want(f.do("GET", base+"/accounts/bob", "", nil), 403)
		f.want(f.do("GET", base+"/nothing", "", nil), 404)
		f.want(f.do("GET", base, "", nil), 404)
		f.want(f.do("POST", base+"/register", "", skilled(uuid(1), "alice", "", 0.1)), 201)
		f.want(f.do("POST", "/k/"+bob.key+"/a/"+uuid(1)+"/jobs?wait=0", "", order(uuid(100))), 202)
		f.want(bob.do("DELETE", "/agents/"+uuid(1), nil), 403)
		f.want(f.do("DELETE", "/agents/"+uuid(1), "", nil), 401)
		f.want(bob.do("DELETE", "/agents/"+uuid(2), nil), 404)
		f.want(alice.do("DELETE", "/agents/"+uuid(1), nil), 200)
		f.want(f.do("POST", "/a/"+uuid(1), "", order(uuid(101))), 401)
		f.want(f.do("POST", "/a/"+uuid(1), f.Operator, order(uuid(101))), 403)
		f.want(bob.do("POST", "/a/x", order(uuid(101))), 404)
	})
}

// signed returns the header of a signed call.
func (f *fixture) signed(k didkey.Key, method, path, body string) map[string]string {
	f.t.Helper()
	token, err := envelope.Call{Body: sha256.Sum256([]byte(body)), Read: envelope.Read{Audience: gatetest.PublicURL,
		Method: method, Target: "/jobs" + path, TS: f.Now()}}.Sign(k)
	f.must(err)
	return map[string]string{"Authorization": "Agora " + token}
}

// G-12, G-13: a DID is a principal. Its calls are accepted once, for their method, target and body.
func TestSignedCalls(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		key, err := didkey.Generate()
		f.must(err)
		other, err := didkey.Generate()
		f.must(err)
		did := string(key.DID())
		call := func(k didkey.Key, method, path, body string) answer {
			t.Helper()
			var sent any
			if body != "" {
				sent = body
			}
			return f.at(f.URL+"/jobs", method, path, sent, f.signed(k, method, path, body))
		}
		account := fmt.Sprintf(`{"owner_id":%q}`, did)
		f.want(f.do("POST", "/accounts", "", account), 403)
		f.want(f.user("bob").do("POST", "/accounts", account), 403)
		f.want(call(other, "POST", "/accounts", account), 403)
		if got := f.want(call(key, "POST", "/accounts", account), 201); text(got, "api_key") != "" || number(got, "balance") != "100" {
			t.Errorf("the account is %v", got)
		}
		f.want(call(key, "POST", "/accounts", account), 201)
		f.want(call(key, "GET", "/accounts/"+did, ""), 200)
		f.want(call(other, "GET", "/accounts/"+did, ""), 403)
		f.want(call(key, "POST", "/register", fmt.Sprintf(`{"agent_id":%q,"agent_name":"signer","owner_id":%q}`, uuid(1), did)), 201)
		f.want(call(key, "GET", "/agents/"+uuid(1)+"/jobs", ""), 200)
		f.want(call(other, "GET", "/agents/"+uuid(1)+"/jobs", ""), 403)
		if got := f.want(call(other, "POST", "/a/"+uuid(1), `{"orchestrator_id":"x","skill_name":"y","budget":0}`), 200); statusOf(got) != "FAILURE SKILL_MISMATCH" {
			t.Errorf("the job is %v", got)
		}
		f.want(call(other, "GET", "/audit", ""), 200)

		header := f.signed(key, "POST", "/accounts", account)
		for _, c := range []struct{ base, method, path, body, reason string }{
			{f.URL + "/jobs", "POST", "/register", account, "request"}, {f.URL + "/jobs", "PUT", "/accounts", account, "request"},
			{f.URL + "/jobs", "POST", "/accounts", account + " ", "body"}, {f.Own, "POST", "/accounts", account, "audience"},
			{f.URL + "/jobs", "POST", "/accounts", account, ""}, {f.URL + "/jobs", "POST", "/accounts", account, "used"},
		} {
			got := f.at(c.base, c.method, c.path, c.body, header)
			if c.reason == "" {
				f.want(got, 201)
			} else if f.want(got, 401); text(got, "reason") != c.reason || got.Header.Get("WWW-Authenticate") != "Agora" {
				t.Errorf("%s %s: %v, want %s", c.method, c.path, got, c.reason)
			}
		}
		f.want(f.at(f.URL+"/jobs/k/"+f.user("carol").key, "GET", "/health", nil, f.signed(key, "GET", "/health", "")), 401)
		f.want(f.at(f.URL+"/jobs", "GET", "/health", nil, map[string]string{"Authorization": "Agora x"}), 401)
	})
}

// G-25 to G-27: bodies that are too large, too deep, not I-JSON or encoded are refused, in the form of the gateway.
func TestBodies(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		a := alice.agent(uuid(1), "")
		good := fmt.Sprintf(`{"job_id":%q,"orchestrator_id":"me","skill_name":"echo","budget":1,"x":0}`, uuid(100))
		with := func(x string) string { return strings.Replace(good, `"x":0`, `"x":`+x, 1) }
		nested := func(levels int) string { return with(strings.Repeat("[", levels-1) + strings.Repeat("]", levels-1)) }
		padded := func(size int) string { return with(`"` + strings.Repeat("y", size-len(with(`""`))) + `"`) }
		for _, c := range []struct {
			body   string
			status int
		}{{padded(65536), 202}, {padded(65537), 413}, {nested(64), 202}, {nested(65), 422}, {with(`0,"x":0`), 422},
			{with(`"\udc00"`), 422}, {with(`"\u0000"`), 422}, {with(`{"\u0000":1}`), 422}, {with(`"\\u0000"`), 202}, {good + " {}", 422}, {"null", 422}, {"[]", 422}, {"", 422}, {"\xff", 422}} {
			got := f.want(bob.do("POST", "/a/"+a+"?wait=0", c.body), c.status)
			if c.status == 422 && text(got, "detail", 0, "loc", 0) != "body" {
				t.Errorf("the answer is %v", got)
			}
		}
		f.want(f.at(f.URL+"/jobs", "POST", "/accounts", "{}", map[string]string{"Content-Encoding": "gzip"}), 415)
		for path, allow := range map[string]string{"/accounts": "POST", "/agents/" + a: "DELETE, GET", "/health": "GET", "/register": "POST"} {
			if got := f.want(f.do("PUT", path, "", nil), 405); got.Header.Get("Allow") != allow {
				t.Errorf("%s: %v", path, got.Header)
			}
		}
		for _, path := range []string{"/nothing", "/accounts/", "//accounts", "/a", "/k", "/k/"} {
			if got := f.do("GET", path, "", nil); got.Status != 404 && got.Status != 401 {
				t.Errorf("%s: %v", path, got)
			}
		}
		f.want(bob.hire(a, uuid(103), "orchestrator_id", "a\x00b"), 422)
		f.wantField(f.do("GET", "/discover?skill=%00", "", nil), "query.skill")
		f.wantField(bob.do("GET", "/audit?job_id=%ff", nil), "query.job_id")
		f.want(bob.do("GET", "/accounts/%00", nil), 404)
		f.want(bob.do("GET", "/jobs/%00", nil), 403)
		f.want(f.do("GET", "/agents/%ff", "", nil), 404)
		alice.pull(a)
		f.want(alice.deliver(uuid(100), a, "FAILURE", "error_message", "a\x00b"), 422)
		big := object{"x": strings.Repeat("x", 49_152-len(`{"x":""}`))}
		f.want(bob.hire(a, uuid(101), "input_data", big), 202)
		big["x"] = big["x"].(string) + "x"
		f.wantField(bob.hire(a, uuid(102), "input_data", big), "body.input_data")
		for field, value := range map[string]any{"orchestrator_id": strings.Repeat("x", 129), "currency": "euro", "skill_name": "a b",
			"budget": 0.0000001, "job_id": "x", "input_data": "x"} {
			f.wantField(bob.hire(a, uuid(103), field, value), "body."+field)
		}
		for _, field := range []string{"orchestrator_id", "skill_name", "budget"} {
			f.wantField(bob.hire(a, uuid(103), field, nil), "body."+field)
		}
		both := bob.do("POST", "/a/"+a+"?wait=x", changed(order(uuid(103)), "budget", -1))
		f.wantField(both, "query.wait")
		f.wantField(both, "body.budget")
	})
}

// Each caller may send 40 changing requests at once, and then 20 a second.
func TestCallerRate(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		alice.agent(uuid(1), "")
		time.Sleep(time.Minute)
		for range 40 {
			f.want(alice.do("POST", "/heartbeat", object{"agent_id": uuid(1)}), 200)
			f.want(alice.do("GET", "/accounts/alice", nil), 200)
		}
		got := f.want(alice.do("POST", "/heartbeat", object{"agent_id": uuid(1)}), 429)
		if text(got, "limit") != "requests" || got.Header.Get("Retry-After") != "1" {
			t.Errorf("%v %v", got, got.Header)
		}
	}, func(f *fixture) { f.Public, f.From = true, "203.0.113.9:9" })
}
