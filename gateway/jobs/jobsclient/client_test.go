package jobsclient

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/internal/exchange"
)

func amount(t *testing.T, text string) credits.Amount {
	t.Helper()
	a, err := credits.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestCalls checks the request of each call, and what it makes of the answer.
func TestCalls(t *testing.T) {
	tenth, two := amount(t, "0.1"), amount(t, "2")
	at := time.Date(2026, 2, 11, 14, 15, 9, 0, time.UTC)
	const row = `{"agent_id":"` + agentID + `","agent_name":"Ann","owner_id":"acme","api_endpoint":"https://x.example","job_url":"u","skill":{"skill_name":"s","cost_per_call":0.1},` +
		`"skills":[{"skill_name":"s","cost_per_call":0.1}],"reputation_score":92.3,"status":"online","registered_at":"2026-02-11T14:15:09.000Z","last_heartbeat":null,"new":1}`
	agent := Agent{AgentID: agentID, Name: "Ann", OwnerID: "acme", Endpoint: "https://x.example", JobURL: "u", Skill: &Skill{Name: "s", Cost: tenth},
		Skills: []Skill{{Name: "s", Cost: tenth}}, Reputation: 92.3, Status: "online", RegisteredAt: at}
	const moved = `{"transfer_id":"t","from_owner":"a","to_owner":"b","amount":0.1,"job_id":"j","timestamp_utc":"2026-02-11T14:15:09.000Z","kind":"settle"}`
	record := Record{Transfer{"t", "a", "b", tenth, "j"}, at, "settle"}
	const pending = `{"job_id":"j","status":"PENDING","output_data":null,"execution_cost":null}`
	took := int64(1250)
	for _, test := range []struct {
		do            func(ctx context.Context, c *Client) (any, error)
		asked, answer string
		want          any
	}{
		{func(ctx context.Context, c *Client) (any, error) {
			a, key, err := c.Open(ctx, "acme", &tenth)
			return []any{a, key}, err
		}, `POST /accounts {"owner_id":"acme","initial_balance":0.1}`, `201 {"owner_id":"acme","balance":0.1}`, []any{Account{"acme", tenth}, ""}},
		{func(ctx context.Context, c *Client) (any, error) {
			c.Key = ""
			a, key, err := c.Open(ctx, "acme", nil)
			return []any{a, key}, err
		}, `POST /accounts {"owner_id":"acme"}`, `201 {"owner_id":"acme","balance":2,"api_key":"` + cj + `"}`, []any{Account{"acme", two}, cj}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Account(ctx, "a/b") },
			`GET /accounts/a%2Fb`, `200 {"owner_id":"a/b","balance":2}`, Account{"a/b", two}},
		{func(ctx context.Context, c *Client) (any, error) {
			done, key, err := c.Register(ctx, Registration{AgentID: agentID, Name: "Ann", OwnerID: "acme", Endpoint: "https://x.example",
				Skills: []Skill{{Name: "s", Cost: tenth, Description: "d", InputSchema: json.RawMessage(`{"a":1}`)}}})
			return []any{done, key}, err
		}, `POST /register {"agent_id":"` + agentID + `","agent_name":"Ann","owner_id":"acme","api_endpoint":"https://x.example","skills":[{"skill_name":"s","description":"d","cost_per_call":0.1,"input_schema":{"a":1}}]}`,
			`201 {"status":"registered","agent_id":"` + agentID + `","reputation_score":50.0,"job_url":"u"}`, []any{Registered{agentID, 50, "u"}, ""}},
		{func(ctx context.Context, c *Client) (any, error) {
			return c.Discover(ctx, Query{Skill: "a b", MinReputation: 50.5, MaxCost: &tenth})
		}, `GET /discover?max_cost=0.1&min_reputation=50.5&skill=a+b`, `200 {"agents":[` + row + `],"total":1}`, []Agent{agent}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Discover(ctx, Query{Skill: "s"}) },
			`GET /discover?skill=s`, `200 {"agents":[],"total":0}`, []Agent{}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Skills(ctx) }, `GET /skills`, `200 {"skills":["a","b"],"total_agents":2}`, []string{"a", "b"}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Agent(ctx, agentID) }, `GET /agents/` + agentID, `200 ` + row, agent},
		{func(ctx context.Context, c *Client) (any, error) { return nil, c.Unregister(ctx, agentID) },
			`DELETE /agents/` + agentID, `200 {"status":"unregistered"}`, nil},
		{func(ctx context.Context, c *Client) (any, error) { return nil, c.Heartbeat(ctx, "x") }, `POST /heartbeat {"agent_id":"x"}`, `200 {"status":"ok"}`, nil},
		{func(ctx context.Context, c *Client) (any, error) { return c.Reputation(ctx, "x") }, `GET /reputation/x`,
			`200 {"agent_id":"x","score":51.6,"stats":{"total":3,"successes":2,"failures":1}}`, Reputation{"x", 51.6, Stats{3, 2, 1}}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Transfer(ctx, record.Transfer) },
			`POST /transfer {"transfer_id":"t","from_owner":"a","to_owner":"b","amount":0.1,"job_id":"j"}`,
			`200 {"status":"completed","transfer":` + moved + `,"sender_balance":2,"receiver_balance":0.1}`, Transferred{record, two, tenth}},
		{func(ctx context.Context, c *Client) (any, error) {
			records, total, err := c.Audit(ctx, AuditQuery{"j", "a", 7})
			return []any{records, total}, err
		}, `GET /audit?job_id=j&limit=7&owner_id=a`, `200 {"transactions":[` + moved + `],"total":9}`, []any{[]Record{record}, 9}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Economy(ctx) }, `GET /economy`,
			`200 {"total_accounts":3,"total_transactions":4,"total_volume":12345678901.5,"all_balances":{"acme":0.1}}`, Economy{3, 4, "12345678901.5", map[string]credits.Amount{"acme": tenth}}},
		{func(ctx context.Context, c *Client) (any, error) { c.Key = op; return c.Grant(ctx, "g", "acme", two) },
			`POST /operator/grants {"grant_id":"g","owner_id":"acme","amount":2}`, `201 ` + moved, record},
		{func(ctx context.Context, c *Client) (any, error) { return c.Health(ctx) }, `GET /health`,
			`200 {"service":"chorus-registry","status":"healthy","agents_online":1,"total_skills":2,"total_accounts":3}`, Health{"chorus-registry", "healthy", 1, 2, 3}},
		{func(ctx context.Context, c *Client) (any, error) {
			return c.Start(ctx, "x", Job{ID: "j", Orchestrator: "acme", Skill: "s", Budget: two, Callback: "https://c.example"}, 1500*time.Millisecond)
		}, `POST /a/x/jobs?wait=1 {"job_id":"j","orchestrator_id":"acme","skill_name":"s","input_data":{},"budget":2,"callback_url":"https://c.example"}`,
			`202 ` + pending, Result{JobID: "j", Status: Pending, Output: json.RawMessage("null")}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Job(ctx, "j") }, `GET /jobs/j`,
			`200 {"job_id":"j","agent_id":"x","status":"SUCCESS","output_data":{"a":1},"execution_cost":0.1,"execution_time_ms":1250,"error_message":null,"error_code":null}`,
			Result{JobID: "j", AgentID: "x", Status: Success, Output: json.RawMessage(`{"a":1}`), Cost: &tenth, TimeMS: &took}},
		{func(ctx context.Context, c *Client) (any, error) { return c.Pull(ctx, "x", time.Hour) }, `GET /agents/x/jobs?wait=60`,
			`200 {"jobs":[{"job_id":"j","orchestrator_id":"acme","skill_name":"s","input_data":{"a":1},"budget":2,"currency":"chorus_credits_v1","callback_url":""}]}`,
			[]Job{{ID: "j", Orchestrator: "acme", Skill: "s", Input: json.RawMessage(`{"a":1}`), Budget: two}}},
		{func(ctx context.Context, c *Client) (any, error) {
			return nil, c.Report(ctx, "x", Result{JobID: "j", AgentID: "x", Status: Failure, ErrorMessage: "m", ErrorCode: ExecutionError})
		}, `POST /agents/x/results {"job_id":"j","agent_id":"x","status":"FAILURE","error_message":"m","error_code":"EXECUTION_ERROR"}`, `200 {"status":"ok"}`, nil},
		{func(ctx context.Context, c *Client) (any, error) {
			return nil, c.ReportTo(ctx, gatewayURL+"/cb/tok_1", Result{JobID: "j", Status: Success, Output: json.RawMessage("{}"), Cost: &tenth})
		}, `POST /cb/tok_1 {"job_id":"j","status":"SUCCESS","output_data":{},"execution_cost":0.1}`, `200 {"status":"ok"}`, nil},
	} {
		f := newFakeGateway()
		method, rest, _ := strings.Cut(test.asked, " ")
		target, _, _ := strings.Cut(rest, " ")
		f.answers[method+" "+target] = test.answer
		c := f.client(gatewayURL)
		c.Key = cj
		got, err := test.do(t.Context(), c)
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, %v", test.asked, got, err)
		}
		wantAuth := "Bearer " + c.Key
		if c.Key == "" || strings.Contains(target, "/cb/") {
			wantAuth = ""
		}
		if len(f.asked) != 1 || f.asked[0].String() != test.asked || f.asked[0].auth != wantAuth {
			t.Errorf("want %s (%s), got %q", test.asked, wantAuth, f.asked)
		}
	}
}

// TestIDs checks that calls without an id make a new UUID of version 4.
func TestIDs(t *testing.T) {
	f := newFakeGateway()
	c := f.client(gatewayURL)
	c.Key = cj
	f.answers["POST /register"] = `201 {"agent_id":"x"}`
	for range 2 {
		_, _, err := c.Register(t.Context(), Registration{Name: "Ann", OwnerID: "acme"})
		_, err2 := c.Transfer(t.Context(), Transfer{From: "a", To: "b", Amount: 1})
		_, err3 := c.Start(t.Context(), agentID, Job{Skill: "s"}, 0)
		if err := errors.Join(err, err2, err3); err != nil {
			t.Fatal(err)
		}
	}
	id := regexp.MustCompile(`"(?:agent|transfer|job)_id":"([0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})"`)
	seen := map[string]bool{}
	for _, a := range f.asked {
		if m := id.FindStringSubmatch(a.body); m == nil || seen[m[1]] {
			t.Errorf("no new id in %s", a.body)
		} else {
			seen[m[1]] = true
		}
	}
	if strings.Contains(f.asked[0].body, "null") || !strings.Contains(f.asked[2].body, `"orchestrator_id":"-",`) {
		t.Errorf("asked %s and %s", f.asked[0], f.asked[2])
	}
}

// TestRepeats checks which requests are sent again after which failures. A repeat has the same bytes.
func TestRepeats(t *testing.T) {
	busy, failing, forLong := refuse(429, "Retry-After", "3"), refuse(503), refuse(429, "Retry-After", "600")
	transfer := func(ctx context.Context, c *Client) error {
		_, err := c.Transfer(ctx, Transfer{From: "a", To: "b", Amount: 1})
		return err
	}
	open := func(ctx context.Context, c *Client) error { _, _, err := c.Open(ctx, "acme", nil); return err }
	openAnonymously := func(ctx context.Context, c *Client) error { c.Key = ""; return open(ctx, c) }
	registerAnonymously := func(ctx context.Context, c *Client) error {
		c.Key = ""
		_, _, err := c.Register(ctx, Registration{Name: "Ann", OwnerID: "acme"})
		return err
	}
	unregister := func(ctx context.Context, c *Client) error { return c.Unregister(ctx, agentID) }
	for name, test := range map[string]struct {
		do       func(context.Context, *Client) error
		faults   []fault
		requests int
		fails    bool
	}{
		"transfer, lost, failing":    {transfer, []fault{lose, failing, busy, unsent}, 5, false},
		"transfer, lost for long":    {transfer, slices.Repeat([]fault{lose}, 6), 6, true},
		"transfer, busy for long":    {transfer, []fault{forLong}, 1, true},
		"transfer, refused":          {transfer, []fault{refuse(400)}, 1, true},
		"transfer, timeout":          {transfer, []fault{refuse(408)}, 2, false},
		"open, lost":                 {open, []fault{lose, failing}, 3, false},
		"open anonymously, lost":     {openAnonymously, []fault{lose}, 1, true},
		"open anonymously, failing":  {openAnonymously, []fault{failing}, 1, true},
		"open anonymously, not sent": {openAnonymously, []fault{unsent, busy}, 3, false},
		"register anonymously, lost": {registerAnonymously, []fault{lose}, 1, true},
		"unregister, lost":           {unregister, []fault{lose}, 2, false},
		"unregister, unknown":        {unregister, nil, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeGateway()
				f.answers["POST /accounts"] = `201 {"owner_id":"acme","balance":2,"api_key":"` + cj + `"}`
				f.faults = test.faults
				c := f.client(gatewayURL)
				c.Key = cj
				began := time.Now()
				if err := test.do(t.Context(), c); (err != nil) != test.fails || len(f.asked) != test.requests {
					t.Errorf("%v after %q", err, f.asked)
				}
				for _, a := range f.asked {
					if a != f.asked[0] {
						t.Errorf("%v was repeated as %v", f.asked[0], a)
					}
				}
				if strings.HasPrefix(name, "transfer, lost") && len(f.paid) != 1 {
					t.Errorf("paid %v", f.paid)
				}
				if name == "transfer, lost, failing" && time.Since(began) < 3*time.Second {
					t.Errorf("waited only %v", time.Since(began))
				}
			})
		})
	}
}

// TestRefusedCalls checks what an error has of a refusal, and what its text says.
func TestRefusedCalls(t *testing.T) {
	for text, test := range map[string]struct {
		fault fault
		want  Error
	}{
		"status 400, TRANSFER_FAILED: too little": {answer(400, `{"detail":"too little","error_code":"TRANSFER_FAILED"}`), Error{Status: 400, Detail: "too little", Code: "TRANSFER_FAILED"}},
		"status 422: body.skills.0.cost_per_call: too small; body: odd": {answer(422, `{"detail":[{"loc":["body","skills",0,"cost_per_call"],"msg":"too small","type":"value_error"},{"loc":["body"],"msg":"odd"}]}`),
			Error{Status: 422, Detail: "body.skills.0.cost_per_call: too small; body: odd"}},
		"status 429: slower (limit: unfinishedJobs); try again in 10m0s": {answer(429, `{"detail":"slower","limit":"unfinishedJobs"}`, "Retry-After", "600"),
			Error{Status: 429, Detail: "slower", Limit: "unfinishedJobs", RetryAfter: 10 * time.Minute}},
		"status 401: no; signed calls go to https://other.example": {answer(401, `{"detail":"no","reason":"audience","aud":"https://other.example"}`),
			Error{Status: 401, Detail: "no", Reason: "audience", aud: "https://other.example"}},
		"status 404; is the URL right? A relay has a jobs gateway at URL/jobs if it runs with --jobs": {answer(404, "<html>"), Error{Status: 404}},
		"status 418: " + strings.Repeat("x", exchange.MaxText) + "…":                                  {answer(418, `{"detail":"`+strings.Repeat("x", 1000)+`"}`), Error{Status: 418, Detail: strings.Repeat("x", exchange.MaxText) + "…"}},
		"status 302": {answer(302, "", "Location", "https://x.example"), Error{Status: 302}},
	} {
		f := newFakeGateway()
		f.faults = []fault{test.fault}
		c := f.client(gatewayURL)
		c.HTTP.CheckRedirect = New(gatewayURL, nil).HTTP.CheckRedirect
		_, err := c.Health(t.Context())
		got, ok := errors.AsType[*Error](err)
		if !ok || *got != test.want || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %+v", err, got)
		}
		if Unknown(err) {
			t.Errorf("it is unknown what %v has done", err)
		}
	}
}

// TestUnknown checks that an error says whether it is unknown what the gateway has done, and that it does not show a key
// in the URL.
func TestUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		fault   fault
		unknown bool
	}{"lost": {lose, true}, "not sent": {unsent, false}, "failing": {refuse(500), true}, "refused": {refuse(400), false}} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeGateway()
			f.faults = slices.Repeat([]fault{test.fault}, exchange.Attempts)
			_, err := f.client(gatewayURL+"/k/"+cj).Transfer(t.Context(), Transfer{})
			if err == nil || Unknown(err) != test.unknown || strings.Contains(err.Error(), cj) {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestUnknownRepeat checks that a request whose first answer was lost stays unknown if its repeat is refused for now.
func TestUnknownRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGateway()
		f.faults = []fault{lose, refuse(429, "Retry-After", "600")}
		_, err := f.client(gatewayURL).Transfer(t.Context(), Transfer{})
		if refused, ok := errors.AsType[*Error](err); !ok || refused.Status != 429 || !Unknown(err) {
			t.Errorf("%v", err)
		}
	})
}

// TestStrangeAnswers checks answers that no jobs gateway gives.
func TestStrangeAnswers(t *testing.T) {
	for _, text := range []string{"", "<html>", "[]", `{"agents":7}`, `{"agents":[` + strings.Repeat(" ", maxAnswer) + "]}"} {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeGateway()
			f.faults = slices.Repeat([]fault{answer(200, text)}, exchange.Attempts)
			agents, err := f.client(gatewayURL).Discover(t.Context(), Query{Skill: "s"})
			if err == nil || strings.Contains(err.Error(), "has more than") != (len(text) > maxAnswer) {
				t.Errorf("%.40q was taken: %v, %v", text, agents, err)
			}
		})
	}
	for _, text := range []string{"{}", `{"job_id":"other","status":"SUCCESS"}`, `{"job_id":"j","status":"DONE"}`} {
		f := newFakeGateway()
		f.answers["GET /jobs/j"] = "200 " + text
		if r, err := f.client(gatewayURL).Job(t.Context(), "j"); err == nil || r.JobID != "j" || r.Status != Pending {
			t.Errorf("%s was taken: %+v, %v", text, r, err)
		}
	}
	for name, do := range map[string]func(*Client) error{
		"accounts": func(c *Client) error { _, _, err := c.Open(t.Context(), "acme", nil); return err },
		"register": func(c *Client) error {
			_, _, err := c.Register(t.Context(), Registration{})
			return err
		},
	} {
		f := newFakeGateway()
		f.answers["POST /"+name] = `201 {"owner_id":"acme","agent_id":"x"}`
		if err := do(f.client(gatewayURL)); err == nil || !strings.Contains(err.Error(), "no key") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeyInURL checks that a base URL with a key is used as it is, without a header.
func TestKeyInURL(t *testing.T) {
	f := newFakeGateway()
	f.answers["POST /k/"+cj+"/accounts"] = `201 {"owner_id":"acme","balance":2}`
	checked, err := CheckURL(gatewayURL + "/k/" + cj + "/")
	if err != nil {
		t.Fatal(err)
	}
	if _, key, err := f.client(checked).Open(t.Context(), "acme", nil); err != nil || key != "" || f.asked[0].auth != "" {
		t.Errorf("%q, %v, %q", key, err, f.asked)
	}
}

// TestSignedCalls checks that a call with a signer has a token for its method, target and body, and that a token which
// was refused because of its time or its nonce is replaced.
func TestSignedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		key, err := didkey.Generate()
		if err != nil {
			t.Fatal(err)
		}
		f := newFakeGateway()
		c := f.client(gatewayURL)
		c.Signer = key
		ahead := time.Now().Add(3 * time.Minute)
		f.faults = []fault{answer(401, `{"detail":"no","reason":"used"}`), answer(401, `{"detail":"no","reason":"time","now":"`+envelope.FormatTime(ahead)+`"}`)}
		if _, err := c.Transfer(t.Context(), Transfer{From: "a", To: "b", Amount: 1}); err != nil || len(f.asked) != 3 || len(f.paid) != 1 {
			t.Fatalf("%v after %q", err, f.asked)
		}
		seen := map[string]bool{}
		for i, a := range f.asked {
			token, ok := strings.CutPrefix(a.auth, "Agora ")
			call, err := envelope.ParseCall(token)
			if !ok || err != nil {
				t.Fatalf("%q: %v", a.auth, err)
			}
			if i == 2 && !call.TS.Equal(ahead) {
				t.Errorf("the token is of %v, want %v", call.TS, ahead)
			}
			if call.Method != "POST" || call.Target != "/jobs/transfer" || call.Audience != "https://relay.example" || call.Reader != key.DID() || seen[call.Nonce] || a.body != f.asked[0].body {
				t.Errorf("%+v", call)
			}
			seen[call.Nonce] = true
			if err := call.Verify(); err != nil || call.Body != sha256.Sum256([]byte(a.body)) {
				t.Errorf("%v, body %x", err, call.Body)
			}
		}
		f.faults = slices.Repeat([]fault{answer(401, `{"detail":"no","reason":"used"}`)}, tokenAttempts)
		if _, err := c.Economy(t.Context()); err == nil || len(f.asked) != 3+tokenAttempts {
			t.Errorf("%v after %d requests", err, len(f.asked))
		}
		f.answers["GET /economy"] = "200 {}"
		f.faults = []fault{answer(401, `{"detail":"no","reason":"time","now":"2020-01-01T00:00:00.000Z"}`)}
		if _, err := c.Economy(t.Context()); err == nil {
			t.Error("a token was dated forward by years")
		}
	})
}

// TestHire checks that a job is posted once, and followed to its end.
func TestHire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGateway()
		c := f.client(gatewayURL)
		c.Key = cj
		end := func(status Status, after time.Duration) {
			time.Sleep(after)
			f.mu.Lock()
			defer f.mu.Unlock()
			for id, j := range f.jobs {
				if j.result == "" {
					j.result = fmt.Sprintf(`{"job_id":%q,"status":%q,"output_data":{"n":2},"execution_cost":0.1}`, id, status)
				}
			}
		}
		for name, test := range map[string]struct {
			faults   []fault
			status   Status
			after    time.Duration
			requests int // at most
		}{
			"at once":                 {nil, Success, 5 * time.Second, 1},
			"later":                   {nil, Success, 10 * time.Minute, 70},
			"failure":                 {nil, Failure, 5 * time.Second, 1},
			"answers lost":            {[]fault{lose, lose, nil, refuse(503)}, Success, 70 * time.Second, 15},
			"gateway away for longer": {append([]fault{nil}, slices.Repeat([]fault{unsent}, 20)...), Success, 80 * time.Second, 40},
		} {
			f.faults, f.asked, f.jobs = test.faults, nil, map[string]*fakeJob{}
			go end(test.status, test.after)
			r, err := c.Hire(t.Context(), agentID, Job{Skill: "s", Input: json.RawMessage(`{"n":1}`), Budget: 1})
			if err != nil || r.Status != test.status || len(f.jobs) != 1 || f.jobs[r.JobID] == nil || len(f.asked) > test.requests {
				t.Errorf("%s: %+v, %v, %d jobs, %d requests", name, r, err, len(f.jobs), len(f.asked))
			}
			synctest.Wait()
		}
		f.jobs = map[string]*fakeJob{}
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		if r, err := c.Hire(ctx, agentID, Job{ID: "mine", Skill: "s"}); !errors.Is(err, context.DeadlineExceeded) || r.JobID != "mine" || r.Status != Pending {
			t.Errorf("%+v, %v", r, err)
		}
		go end(Success, 30*time.Second)
		if r, err := c.Hire(t.Context(), agentID, Job{ID: "mine", Skill: "s"}); err != nil || r.Status != Success || string(r.Output) != `{"n":2}` {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := c.Hire(t.Context(), agentID, Job{ID: "mine", Skill: "other"}); err == nil || r.JobID != "mine" || r.Status != "" {
			t.Errorf("%+v, %v", r, err)
		}
		f.faults = slices.Repeat([]fault{lose}, exchange.Attempts)
		if r, err := c.Start(t.Context(), agentID, Job{ID: "lost", Skill: "s"}, 0); err == nil || r.JobID != "lost" || r.Status != Pending {
			t.Errorf("%+v, %v", r, err)
		}
		f.faults = []fault{nil, refuse(403)}
		if _, err := c.Wait(t.Context(), "unknown"); err == nil {
			t.Error("waits for an unknown job")
		}
	})
}

func TestCheckURL(t *testing.T) {
	for text, want := range map[string]string{
		"https://r.example/jobs": "https://r.example/jobs", "http://r.example:1/": "http://r.example:1", "https://r.example/jobs/k/" + cj: "https://r.example/jobs/k/" + cj,
		"https://r.example/jobs/k/" + op: "", "https://r.example/jobs/k/cj_": "", "https://r.example/k": "https://r.example/k", "jobs": "", "ftp://r.example/jobs": "",
		"https://a:b@r.example/jobs": "", "https://r.example/jobs?x=1": "", "https://r.example/jobs#x": "",
	} {
		if got, err := CheckURL(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for text, want := range map[string]Key{cj: PrincipalKey, op: OperatorKey, "": "", "cj_": "", "sk_" + cj[3:]: "", cj + "A": ""} {
		if got, err := ParseKey(text); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	c := New(gatewayURL, slog.New(slog.DiscardHandler))
	defer c.Close()
	if c.HTTP.CheckRedirect(nil, nil) != http.ErrUseLastResponse || !c.HTTP.Transport.(*http.Transport).DisableCompression {
		t.Error("follows redirects, or takes compressed answers")
	}
}
