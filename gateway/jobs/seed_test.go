package jobs_test

import (
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/store/storetest/engine"
)

// This file sends the examples of the seed ([003] §3.1 to §3.5) as they are written there. It replaces only the words
// that stand for something else, such as "uuid".

// The examples of the seed.
const (
	seedRegistration = `{
  "agent_id": "uuid",
  "agent_name": "Human-readable name",
  "owner_id": "Owner identifier",
  "api_endpoint": "https://agent-host:port/jobs",
  "skills": [
    {
      "skill_name": "analyze_text",
      "description": "Extracts structured data from unstructured text",
      "cost_per_call": 0.10,
      "input_schema": {"text": "string"},
      "output_schema": {"entities": "list"}
    }
  ],
  "version": "0.1",
  "timestamp_utc": "2026-02-11T14:15:09Z"
}`
	seedRegistered = `{
  "status": "registered",
  "agent_id": "uuid",
  "reputation_score": 50.0
}`
	seedFound = `{
  "agents": [
    {
      "agent_id": "uuid",
      "agent_name": "Text-Analyst-3000",
      "api_endpoint": "https://...",
      "skill": {
        "skill_name": "analyze_text",
        "cost_per_call": 0.10
      },
      "reputation_score": 92.3,
      "status": "online"
    }
  ]
}`
	seedRequest = `{
  "job_id": "uuid",
  "orchestrator_id": "uuid",
  "skill_name": "analyze_text",
  "input_data": {
    "text": "Revenue for Q3 was $42,000..."
  },
  "budget": 0.15,
  "currency": "chorus_credits_v1",
  "callback_url": "https://orchestrator/results",
  "timestamp_utc": "2026-02-11T14:15:09Z"
}`
	seedResult = `{
  "job_id": "uuid",
  "agent_id": "uuid",
  "status": "SUCCESS",
  "output_data": {
    "entities": [{"type": "revenue", "value": 42000, "period": "Q3"}]
  },
  "execution_cost": 0.10,
  "execution_time_ms": 1250,
  "error_message": null,
  "timestamp_utc": "2026-02-11T14:15:09Z"
}`
	seedTransfer = `{
  "transfer_id": "uuid",
  "from_owner": "orchestrator_owner_id",
  "to_owner": "agent_owner_id",
  "amount": 0.10,
  "job_id": "uuid",
  "timestamp_utc": "2026-02-11T14:15:09Z"
}`
)

// The ids of the seed ([003] §2). Its job_id is a UUID of version 1.
const (
	seedAgent = "a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f"
	seedJob   = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
)

// filled returns an example in which a word that stands for something else is replaced. pairs are such words and their
// replacements. Each word must be there.
func filled(t *testing.T, example string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if !strings.Contains(example, pairs[i]) {
			t.Fatalf("the example does not have %s:\n%s", pairs[i], example)
		}
		example = strings.Replace(example, pairs[i], pairs[i+1], 1)
	}
	return example
}

// wantMembers checks that an answer has every member of an example, with the same value. It may have more.
func wantMembers(t *testing.T, what, example string, got []byte) {
	t.Helper()
	var want, have any
	if err := json.Unmarshal([]byte(example), &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got, &have); err != nil || !includes(have, want) {
		t.Errorf("%s: the answer is\n%s\nwithout all of\n%s", what, got, example)
	}
}

// includes reports whether a value has everything of another one. An object may have more members.
func includes(have, want any) bool {
	switch w := want.(type) {
	case object:
		h, ok := have.(object)
		for name, value := range w {
			had, there := h[name]
			ok = ok && there && includes(had, value)
		}
		return ok
	case []any:
		h, ok := have.([]any)
		ok = ok && len(h) == len(w)
		for i := range w {
			ok = ok && includes(h[i], w[i])
		}
		return ok
	}
	return reflect.DeepEqual(have, want)
}

// TestSeed sends the examples of the seed, from the registration to the transfer. An agent can read §3.3 in two ways:
// jobs are posted to its endpoint, which ends in /jobs, or to the endpoint with another /jobs after it (J-23).
func TestSeed(t *testing.T) {
	engine.OnlySQLite(t, "the texts are the same in both stores")
	for _, path := range []string{"/jobs", "/jobs/jobs"} {
		t.Run("POST "+path, func(t *testing.T) {
			inBubble(t, func(t *testing.T, f *fixture) { testSeed(t, f, path) })
		})
	}
}

func testSeed(t *testing.T, f *fixture, path string) {
	done := filled(t, seedResult, `"job_id": "uuid"`, `"job_id": "`+seedJob+`"`, `"agent_id": "uuid"`, `"agent_id": "`+
		seedAgent+`"`)
	agent := newEndpoint(t, func(w http.ResponseWriter, r *http.Request, _ object) {
		if r.URL.Path != path {
			w.WriteHeader(404)
			return
		}
		_, _ = w.Write([]byte(done)) // the relay may have gone
	})
	results := newEndpoint(t, nil)
	boss := f.user("orchestrator_owner_id")
	bossID := boss.agent(uuid(1), "")

	// §3.1: no authentication is needed. The account is made, with balance 0.
	registered := f.want(f.do("POST", "/register", "", filled(t, seedRegistration, "uuid", seedAgent, "Owner identifier",
		"agent_owner_id", "https://agent-host:port", agent.url)), 201)
	wantMembers(t, "§3.1", filled(t, seedRegistered, "uuid", seedAgent), registered.Body)
	worker := user{f, text(registered, "api_key"), "agent_owner_id"}

	// §3.2: the bounds may be equal to what the agent has.
	found := f.want(boss.do("GET", "/discover?skill=analyze_text&min_reputation=50&max_cost=0.10", nil), 200)
	wantMembers(t, "§3.2", filled(t, seedFound, "uuid", seedAgent, "Text-Analyst-3000", "Human-readable name",
		"https://...", agent.url+"/jobs", "92.3", "50.0"), found.Body)
	for _, none := range []string{"&min_reputation=50.01", "&max_cost=0.09", "er"} {
		if a := f.want(boss.do("GET", "/discover?skill=analyze_text"+none, nil), 200); member(a, "total") != 0.0 {
			t.Errorf("§3.2: %s finds %v", none, a)
		}
	}

	// §3.3 and §3.4: the agent gets the request. The hirer gets the result, as the answer and at its callback_url.
	base := f.program(boss.key)
	under := base.sendTo("GET", "/discover?skill=analyze_text", nil, 200)
	sent := filled(t, seedRequest, "uuid", seedJob, "uuid", bossID, "https://orchestrator", results.url)
	a, err := base.send("POST", text(under, "agents", 0, "api_endpoint")+"/jobs", sent)
	f.must(err)
	answered := filled(t, done, "2026-02-11T14:15:09Z", text(a, "timestamp_utc"))
	wantMembers(t, "§3.4", answered, f.want(a, 200).Body)
	calls := agent.calls()
	last := calls[len(calls)-1].body
	got, err := json.Marshal(last)
	f.must(err)
	wantMembers(t, "§3.3", filled(t, sent, results.url+"/results", last["callback_url"].(string), "2026-02-11T14:15:09Z",
		last["timestamp_utc"].(string)), got)
	told := results.calls()
	if len(told) != 1 || told[0].path != "/results" {
		t.Fatalf("§3.4: the callback_url got %v", told)
	}
	got, err = json.Marshal(told[0].body)
	f.must(err)
	wantMembers(t, "§3.4, at the callback_url", answered, got)
	wantBalance("after the job", "99.9 0.1", boss, worker)
	if got := f.score(seedAgent); got != "51.0" { // §4: 50 + 2.0 × 50 / 100
		t.Errorf("§4: the score is %s, want 51.0", got)
	}

	// §3.5: the settlement of the job is the answer, and nothing moves (J-5). For another job it moves credits once
	// (J-4).
	transfer := filled(t, seedTransfer, `"transfer_id": "uuid"`, `"transfer_id": "`+uuid(2)+`"`, `"job_id": "uuid"`,
		`"job_id": "`+seedJob+`"`)
	settled := f.want(boss.do("POST", "/transfer", transfer), 200)
	if text(settled, "status") != "completed" || text(settled, "transfer", "kind") != "settle" ||
		number(settled, "sender_balance") != "99.9" || number(settled, "receiver_balance") != "0.1" {
		t.Errorf("§3.5: the transfer for the job is answered %v", settled)
	}
	wantBalance("after the transfer for the job", "99.9 0.1", boss, worker)
	transfer = filled(t, filled(t, transfer, seedJob, uuid(3)), uuid(2), uuid(4))
	for range 2 {
		made := f.want(boss.do("POST", "/transfer", transfer), 200)
		wantMembers(t, "§3.5", `{"status": "completed", "transfer": `+filled(t, transfer, "2026-02-11T14:15:09Z",
			text(made, "transfer", "timestamp_utc"))+`, "sender_balance": 99.8, "receiver_balance": 0.2}`, made.Body)
		wantBalance("after another transfer", "99.8 0.2", boss, worker)
		time.Sleep(time.Second)
	}
}

// TestSeedPlaceholders checks that the words of the examples that stand for something else are refused by name. The
// hosts in the examples have no dot, so the relay would not call them.
func TestSeedPlaceholders(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		a := alice.agent(uuid(1), "")
		for _, field := range []string{"agent_id", "owner_id", "api_endpoint"} {
			f.wantField(alice.do("POST", "/register", seedRegistration), "body."+field)
		}
		for _, field := range []string{"job_id", "callback_url"} {
			f.wantField(alice.do("POST", "/a/"+a+"/jobs", seedRequest), "body."+field)
		}
		f.wantField(alice.do("POST", "/agents/"+a+"/results", seedResult), "body.job_id")
		f.wantField(alice.do("POST", "/transfer", seedTransfer), "body.transfer_id")
	})
}
