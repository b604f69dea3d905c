package jobs_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// found returns the agents that GET /discover finds, in order.
func (f *fixture) found(query string) (all string) {
	f.t.Helper()
	a := f.want(f.do("GET", "/discover?"+query, "", nil), 200)
	list, _ := member(a, "agents").([]any)
	for _, one := range list {
		all += strings.TrimLeft(one.(object)["agent_id"].(string)[24:], "0") + " "
	}
	if total, _ := member(a, "total").(float64); int(total) != len(list) {
		f.t.Errorf("total is %v, and there are %d agents", total, len(list))
	}
	return strings.TrimSpace(all)
}

// J-18: /discover filters and sorts by reputation, cost and agent_id.
func TestDiscover(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		for n, c := range map[int]struct {
			score int64
			cost  float64
		}{1: {50_000_000, 0.3}, 2: {50_000_000, 0.1}, 3: {92_300_000, 9}, 4: {50_000_000, 0.3}, 5: {50_000_001, 5}, 6: {0, 0}} {
			f.want(alice.do("POST", "/register", skilled(uuid(n), "alice", "", c.cost)), 201)
			f.must(f.gateway.SetScore(t.Context(), uuid(n), c.score))
		}
		f.want(alice.do("POST", "/register", object{"agent_id": uuid(7), "agent_name": "mute", "owner_id": "alice"}), 201)
		for query, want := range map[string]string{
			"skill=echo": "3 5 2 1 4 6", "skill=echo&min_reputation=50": "3 5 2 1 4", "skill=echo&max_cost=0.3": "2 1 4 6",
			"skill=echo&min_reputation=50.000001": "3 5", "skill=echo&min_reputation=92.3&max_cost=9": "3", "skill=sing": "",
			"skill=echo&max_cost=0": "6", "skill=echo&min_reputation=100": "", "skill=echo&other=x&other=y": "3 5 2 1 4 6",
		} {
			if got := f.found(query); got != want {
				t.Errorf("%s finds %s, want %s", query, got, want)
			}
		}
		for query, field := range map[string]string{"": "skill", "skill=": "skill", "skill=a%20b": "skill", "skill=a&skill=b": "skill",
			"skill=a&min_reputation=100.1": "min_reputation", "skill=a&min_reputation=-1": "min_reputation",
			"skill=a&max_cost=x": "max_cost", "skill=a&max_cost=-1": "max_cost"} {
			f.wantField(f.do("GET", "/discover?"+query, "", nil), "query."+field)
		}
		f.wantField(f.do("GET", "/discover?skill=%zz", "", nil), "query")
		row := f.want(f.do("GET", "/discover?skill=echo&min_reputation=90", "", nil), 200)
		const want = `{"agent_id":"00000000-0000-4000-8000-000000000003","agent_name":"Agent of alice","owner_id":"alice","api_endpoint":"https://relay.example/jobs/a/00000000-0000-4000-8000-000000000003","job_url":"https://relay.example/jobs/a/00000000-0000-4000-8000-000000000003/jobs","skill":{"skill_name":"echo","description":"Returns its input.","cost_per_call":9,"input_schema":{},"output_schema":{}},"skills":[{"skill_name":"echo","description":"Returns its input.","cost_per_call":9,"input_schema":{},"output_schema":{}}],"reputation_score":92.3,"status":"online","registered_at":"2000-01-01T00:00:00.000Z","last_heartbeat":"2000-01-01T00:00:00.000Z"}`
		if got := strings.TrimSpace(string(row.Body)); got != `{"agents":[`+want+`],"total":1}` {
			t.Errorf("the row is %s", got)
		}
		if got := f.want(f.do("GET", "/agents/"+uuid(3), "", nil), 200); strings.TrimSpace(string(got.Body)) != want {
			t.Errorf("the agent is %v", got)
		}
		base := "/k/" + alice.key
		if got := text(f.want(f.do("GET", base+"/discover?skill=echo", "", nil), 200), "agents", 0, "api_endpoint"); got !=
			f.gateway.URL()+base+"/a/"+uuid(3) {
			t.Errorf("under a base with a key, api_endpoint is %s", got)
		}
		f.want(alice.do("POST", "/register", skilled(uuid(3), "alice", "https://agent.example/x", 9)), 201)
		if got := text(f.do("GET", "/agents/"+uuid(3), "", nil), "api_endpoint"); got != "https://agent.example/x" {
			t.Errorf("api_endpoint is %s", got)
		}
		if got := text(f.do("GET", base+"/agents/"+uuid(3), "", nil), "api_endpoint"); got != f.gateway.URL()+base+"/a/"+uuid(3) {
			t.Errorf("under a base with a key, api_endpoint is %s", got)
		}
		if got := fmt.Sprint(member(f.do("GET", "/skills", "", nil))); got != "map[skills:[echo] total_agents:7]" {
			t.Errorf("the skills are %s", got)
		}
		if got := fmt.Sprint(member(f.do("GET", "/health", "", nil))); got !=
			"map[agents_online:7 service:chorus-registry status:healthy total_accounts:1 total_skills:1]" {
			t.Errorf("the health is %s", got)
		}
	})
}

// TestLongDiscovery checks that agents with very long skills do not hide others, and that the answer stays small.
func TestLongDiscovery(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		long := object{"x": strings.Repeat("x", 40_000)}
		for n := range 30 {
			registration := skilled(uuid(n), "alice", "", 0.1)
			registration["skills"] = append(registration["skills"].([]object),
				object{"skill_name": "other", "cost_per_call": 1, "input_schema": long})
			f.want(alice.do("POST", "/register", registration), 201)
		}
		a := f.want(f.do("GET", "/discover?skill=echo", "", nil), 200)
		if total := member(a, "total"); total != 30. || len(a.Body) > 400_000 {
			t.Errorf("%v agents in %d bytes", total, len(a.Body))
		}
		for i, want := range map[int]string{0: "2 skills, echo for 0.1", 29: "1 skills, echo for 0.1"} {
			skills, _ := member(a, "agents", i, "skills").([]any)
			if got := fmt.Sprintf("%d skills, %v for %v", len(skills), text(a, "agents", i, "skill", "skill_name"),
				member(a, "agents", i, "skill", "cost_per_call")); got != want {
				t.Errorf("agent %d has %s, want %s", i, got, want)
			}
		}
		if skills, _ := member(f.do("GET", "/agents/"+uuid(29), "", nil), "skills").([]any); len(skills) != 2 {
			t.Errorf("the agent has %d skills", len(skills))
		}
	})
}

// J-19: an agent disappears 90 seconds after its last heartbeat, or after 24 hours without any.
func TestOnline(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice, bob := f.user("alice"), f.user("bob")
		quiet, loud := alice.agent(uuid(1), ""), alice.agent(uuid(2), "")
		f.want(bob.do("POST", "/heartbeat", object{"agent_id": loud}), 403)
		f.want(f.do("POST", "/heartbeat", "", object{"agent_id": loud}), 401)
		f.want(alice.do("POST", "/heartbeat", object{"agent_id": uuid(3)}), 404)
		f.wantField(alice.do("POST", "/heartbeat", object{}), "body.agent_id")
		beat := f.want(alice.do("POST", "/heartbeat", object{"agent_id": strings.ToUpper(loud)}), 200)
		if text(beat, "status") != "ok" || text(beat, "agent_id") != loud || text(beat, "timestamp") == "" {
			t.Errorf("the answer is %v", beat)
		}
		wantFound := func(after time.Duration, want string) {
			t.Helper()
			f.pass(after - 2*time.Second)
			if got := f.found("skill=echo"); got != want {
				t.Errorf("found %s, want %s", got, want)
			}
		}
		wantFound(89*time.Second, "1 2")
		wantFound(3*time.Second, "1")
		if got := text(f.do("GET", "/agents/"+loud, "", nil), "status"); got != "offline" {
			t.Errorf("the agent is %s", got)
		}
		f.want(alice.do("POST", "/heartbeat", object{"agent_id": loud}), 200)
		wantFound(2*time.Second, "1 2")
		wantFound(24*time.Hour-100*time.Second, "1")
		wantFound(100*time.Second, "")
		alice.agent(quiet, "")
		alice.agent(loud, "")
		wantFound(2*time.Second, "1 2") // both were heard from
		wantFound(91*time.Second, "1")
		// A job that ends counts as a sign of life.
		wantFound(23*time.Hour, "1")
		f.want(bob.hire(quiet, uuid(100)), 202)
		alice.pull(quiet)
		f.want(alice.deliver(uuid(100), quiet, "SUCCESS"), 200)
		wantFound(23*time.Hour, "1")
		// A job that could not be dispatched makes the agent offline, until the agent calls again.
		f.want(bob.hire(quiet, uuid(101)), 202)
		wantFound(dispatchTime+2*time.Second, "")
		alice.pull(quiet)
		wantFound(2*time.Second, "1")
	})
}

// TestRegisterBounds checks the fields of a registration on both sides of their bounds.
func TestRegisterBounds(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		alice := f.user("alice")
		good := skilled(uuid(1), "alice", "", 0.1)
		skill := func(changes ...any) []object { return []object{changed(good["skills"].([]object)[0], changes...)} }
		many := func(n int) (all []object) {
			for i := range n {
				all = append(all, object{"skill_name": fmt.Sprintf("s%d", i), "cost_per_call": i})
			}
			return all
		}
		schema := func(n int) object { return object{"x": strings.Repeat("x", n-len(`{"x":""}`))} }
		for _, c := range []struct {
			name  string
			value any
			field string // empty: it is taken
		}{
			{"agent_id", strings.ToUpper("a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f"), ""}, {"agent_id", nil, ""},
			{"agent_id", "a3b8d1b60b3b4b1a9c1a1a2b3c4d5e6f", "body.agent_id"}, {"agent_id", 1, "body.agent_id"},
			{"agent_id", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", ""},
			{"agent_name", strings.Repeat("é", 64), ""}, {"agent_name", strings.Repeat("é", 64) + "x", "body.agent_name"},
			{"agent_name", "", "body.agent_name"}, {"agent_name", nil, "body.agent_name"},
			{"owner_id", nil, "body.owner_id"}, {"owner_id", "-x", "body.owner_id"}, {"owner_id", strings.Repeat("x", 129), "body.owner_id"},
			{"owner_id", "a b", "body.owner_id"}, {"owner_id", strings.Repeat("x", 128), ""}, {"owner_id", "0._:@-", ""},
			{"skills", nil, ""}, {"skills", []object{}, ""}, {"skills", many(64), ""}, {"skills", many(65), "body.skills"},
			{"skills", object{}, "body.skills"}, {"skills", []any{1}, "body.skills.0"},
			{"skills", skill("skill_name", "a.b:c-_"), ""}, {"skills", skill("skill_name", "a@b"), "body.skills.0.skill_name"},
			{"skills", skill("skill_name", strings.Repeat("x", 128)), ""}, {"skills", skill("skill_name", strings.Repeat("x", 129)), "body.skills.0.skill_name"},
			{"skills", append(skill(), skill()...), "body.skills.1.skill_name"},
			{"skills", skill("cost_per_call", nil), "body.skills.0.cost_per_call"}, {"skills", skill("cost_per_call", -0.1), "body.skills.0.cost_per_call"},
			{"skills", skill("cost_per_call", 0), ""}, {"skills", skill("cost_per_call", 999999999.999999), ""},
			{"skills", skill("cost_per_call", 1e9), "body.skills.0.cost_per_call"}, {"skills", skill("cost_per_call", "0.1"), "body.skills.0.cost_per_call"},
			{"skills", skill("description", strings.Repeat("x", 2000)), ""}, {"skills", skill("description", strings.Repeat("x", 2001)), "body.skills.0.description"},
			{"skills", skill("description", nil), ""}, {"skills", skill("input_schema", "x"), "body.skills.0.input_schema"},
			{"skills", skill("input_schema", schema(49_152)), ""}, {"skills", skill("output_schema", schema(49_153)), "body.skills.0.output_schema"},
			{"api_endpoint", "local://memory", ""}, {"api_endpoint", nil, ""}, {"api_endpoint", 1, "body.api_endpoint"},
			{"api_endpoint", "https://10.0.0.1/", "body.api_endpoint"}, {"api_endpoint", "https://u:p@a.example/", "body.api_endpoint"},
			{"version", 7, ""}, {"timestamp_utc", "yesterday", ""}, {"more", object{}, ""},
		} {
			got := alice.do("POST", "/register", changed(good, c.name, c.value))
			if c.field == "" {
				f.want(got, 201)
			} else {
				f.wantField(got, c.field)
			}
		}
	})
}

// TestAccountLimits checks how many principals, accounts and agents there may be.
func TestAccountLimits(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		wantLimit := func(a answer, limit string) {
			t.Helper()
			if f.want(a, 429); text(a, "limit") != limit || a.Header.Get("Retry-After") == "" {
				t.Errorf("the answer is %v, want the limit %s", a, limit)
			}
		}
		alice := f.user("alice")
		for i := range 9 {
			f.user(fmt.Sprint("user", i))
		}
		wantLimit(f.do("POST", "/accounts", "", object{"owner_id": "one-more"}), "principals")
		wantLimit(f.do("POST", "/register", "", skilled(uuid(1), "one-more", "", 0)), "principals")
		f.pass(24*time.Hour + time.Minute)
		f.user("one-more")
		for i := range 15 {
			f.want(alice.do("POST", "/accounts", object{"owner_id": fmt.Sprint("alice", i)}), 201)
		}
		wantLimit(alice.do("POST", "/accounts", object{"owner_id": "alice15"}), "owners")
		wantLimit(alice.do("POST", "/register", skilled(uuid(1), "alice15", "", 0)), "owners")
		f.want(f.do("GET", "/accounts/alice15", f.Operator, nil), 404)
		for i := range 100 {
			alice.agent(uuid(i), "")
			time.Sleep(100 * time.Millisecond)
		}
		wantLimit(alice.do("POST", "/register", skilled(uuid(100), "alice", "", 0)), "agents")
		alice.agent(uuid(5), "") // it exists
		f.want(alice.do("DELETE", "/agents/"+uuid(5), nil), 200)
		alice.agent(uuid(100), "")
		wantLimit(alice.do("POST", "/register", skilled(uuid(5), "alice", "", 0)), "agents")
	}, func(f *fixture) { f.Public, f.From = true, "192.0.2.1:9" })
}
