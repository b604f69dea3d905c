package jobs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

type (
	answer = gatetest.Answer
	object = map[string]any
)

// fixture is a relay with a jobs gateway.
type fixture struct {
	*gatetest.Site
	t       testing.TB
	options jobs.Options
	gateway *jobs.Gateway
}

// start returns a running fixture. configure may change it before.
func start(t testing.TB, configure ...func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{Site: &gatetest.Site{Extensions: []relay.Extension{jobs.Extension}}, t: t, options: jobs.Defaults}
	f.Open = func(c *gateway.Core) (gatetest.Served, error) {
		g, err := jobs.New(context.Background(), c, f.options)
		if err != nil {
			return gatetest.Served{}, err
		}
		f.gateway = g
		return gatetest.Served{Prefix: "/jobs", API: jobs.API, Mounts: g.Mounts, Run: g.Run}, nil
	}
	for _, c := range configure {
		c(f)
	}
	f.Start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(f.Logged())
		}
	})
	return f
}

// inBubble runs a test in a bubble of testing/synctest. There, time is fake, and connections are in memory.
func inBubble(t *testing.T, test func(t *testing.T, f *fixture), configure ...func(*fixture)) {
	t.Helper()
	racing.Skip(t, "one call after another")
	racesInBubble(t, test, configure...)
}

// racesInBubble is the same as inBubble for tests in which calls race.
func racesInBubble(t *testing.T, test func(t *testing.T, f *fixture), configure ...func(*fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(t, start(t, append(configure, func(f *fixture) { f.Bubble = true })...))
	})
}

// pass sets the relay's clock forward, and waits until the gateway has noticed it. To sleep for so long would take the
// test some seconds for each hour.
func (f *fixture) pass(d time.Duration) {
	f.Ahead.Add(int64(d))
	time.Sleep(2 * time.Second)
	synctest.Wait()
}

// must ends the test if there is an error.
func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// do sends a request to the gateway. key may be empty.
func (f *fixture) do(method, path, key string, body any) answer {
	f.t.Helper()
	a, err := gatetest.Do(f.t.Context(), f.Client, f.URL+"/jobs",
		gatetest.Call{Method: method, Path: path, Key: key, Body: body})
	if err != nil {
		f.t.Fatal(err)
	}
	return a
}

// member returns a member of an answer. A number in path is the index of an element.
func member(a answer, path ...any) any {
	var value any
	_ = json.Unmarshal(a.Body, &value) // then the value is nil
	for _, step := range path {
		switch s := step.(type) {
		case string:
			o, _ := value.(object)
			value = o[s]
		case int:
			list, _ := value.([]any)
			if s >= len(list) {
				return nil
			}
			value = list[s]
		}
	}
	return value
}

func text(a answer, path ...any) string {
	value, _ := member(a, path...).(string)
	return value
}

// number returns a number of an answer as it was sent.
func number(a answer, name string) string {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(a.Body, &all) // then the number is empty
	return string(all[name])
}

// want checks the status of an answer, and the form of an error.
func (f *fixture) want(a answer, status int) answer {
	f.t.Helper()
	detail := member(a, "detail")
	_, isText := detail.(string)
	list, isList := detail.([]any)
	switch {
	case a.Status != status:
		f.t.Fatalf("the answer is %v, want %d", a, status)
	case status < 400 && detail != nil:
		f.t.Fatalf("the answer %v is an error", a)
	case status == 422 && (!isList || len(list) == 0), status >= 400 && status != 422 && !isText:
		f.t.Fatalf("the answer %v does not have the form of an error", a)
	}
	return a
}

// wantField checks that an answer refuses a field, such as "body.skills.0.cost_per_call".
func (f *fixture) wantField(a answer, field string) {
	f.t.Helper()
	f.want(a, 422)
	var e struct{ Detail []struct{ Loc []any } }
	_ = json.Unmarshal(a.Body, &e) // then there is no field
	for _, wrong := range e.Detail {
		if joined(wrong.Loc) == field {
			return
		}
	}
	f.t.Fatalf("the answer %v does not refuse %s", a, field)
}

func joined(loc []any) string {
	var all []string
	for _, part := range loc {
		all = append(all, fmt.Sprint(part))
	}
	return strings.Join(all, ".")
}

// user is a principal with an account.
type user struct {
	f          *fixture
	key, owner string
}

// user creates a principal with an account of 100 credits.
func (f *fixture) user(owner string) user {
	f.t.Helper()
	a := f.want(f.do("POST", "/accounts", "", object{"owner_id": owner}), 201)
	return user{f, text(a, "api_key"), owner}
}

// do sends a request with the user's key.
func (u user) do(method, path string, body any) answer {
	u.f.t.Helper()
	return u.f.do(method, path, u.key, body)
}

// balance returns the balance of the user's account.
func (u user) balance() string {
	u.f.t.Helper()
	return number(u.f.want(u.do("GET", "/accounts/"+u.owner, nil), 200), "balance")
}

// wantBalance checks balances of users.
func wantBalance(what, want string, users ...user) {
	got := ""
	for _, u := range users {
		u.f.t.Helper()
		got += " " + u.balance()
	}
	if got = strings.TrimSpace(got); got != want {
		users[0].f.t.Errorf("%s: the balances are %s, want %s", what, got, want)
	}
}

// skilled returns a registration with one skill, named echo.
func skilled(id, owner, endpoint string, cost any) object {
	return object{"agent_id": id, "agent_name": "Agent of " + owner, "owner_id": owner, "api_endpoint": endpoint,
		"skills": []object{{"skill_name": "echo", "description": "Returns its input.", "cost_per_call": cost}}}
}

// agent registers an agent of the user. It has the skill echo, for 0.1 credits.
func (u user) agent(id, endpoint string) string {
	u.f.t.Helper()
	u.f.want(u.do("POST", "/register", skilled(id, u.owner, endpoint, 0.1)), 201)
	return id
}

// uuid returns a different UUID for each number.
func uuid(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// order returns a JobRequest with a budget of 0.15.
func order(id string) object {
	return object{"job_id": id, "orchestrator_id": "me", "skill_name": "echo", "input_data": object{"text": "hello"},
		"budget": 0.15}
}

// changed returns an object with other members. A nil value removes a member.
func changed(o object, changes ...any) object {
	all := object{}
	for name, value := range o {
		all[name] = value
	}
	for i := 0; i < len(changes); i += 2 {
		if all[changes[i].(string)] = changes[i+1]; changes[i+1] == nil {
			delete(all, changes[i].(string))
		}
	}
	return all
}

// hire orders a job and does not wait for its end.
func (u user) hire(agent, job string, changes ...any) answer {
	u.f.t.Helper()
	return u.do("POST", "/a/"+agent+"/jobs?wait=0", changed(order(job), changes...))
}

// result returns a JobResult.
func result(job, agent, status string, changes ...any) object {
	return changed(object{"job_id": job, "agent_id": agent, "status": status, "output_data": object{"text": "done"},
		"execution_cost": 0.1, "execution_time_ms": 12, "error_message": nil}, changes...)
}

// deliver reports a result of an agent.
func (u user) deliver(job, agent, status string, changes ...any) answer {
	u.f.t.Helper()
	return u.do("POST", "/agents/"+agent+"/results", result(job, agent, status, changes...))
}

// pull returns the ids of the jobs that the agent gets now.
func (u user) pull(agent string) (ids []string) {
	u.f.t.Helper()
	a := u.f.want(u.do("GET", "/agents/"+agent+"/jobs", nil), 200)
	list, _ := member(a, "jobs").([]any)
	for _, j := range list {
		ids = append(ids, j.(object)["job_id"].(string))
	}
	return ids
}

// status returns the status and the error code of a job, such as "FAILURE AGENT_OFFLINE".
func (u user) status(job string) string {
	u.f.t.Helper()
	return statusOf(u.f.want(u.do("GET", "/jobs/"+job, nil), 200))
}

func statusOf(a answer) string {
	return strings.TrimSpace(text(a, "status") + " " + text(a, "error_code"))
}

// wantStatus checks what has become of a job.
func (u user) wantStatus(what, job, want string) {
	u.f.t.Helper()
	if got := u.status(job); got != want {
		u.f.t.Errorf("%s: the job is %s, want %s", what, got, want)
	}
}

// score returns the score of an agent.
func (f *fixture) score(agent string) string {
	f.t.Helper()
	return number(f.want(f.do("GET", "/reputation/"+agent, "", nil), 200), "score")
}

// call is a request that an endpoint has got.
type call struct {
	at     time.Time
	path   string
	header http.Header
	body   object
}

// endpoint is a server of an agent or a hirer.
type endpoint struct {
	url string

	mu    sync.Mutex
	reply func(http.ResponseWriter, *http.Request, object)
	got   []call
}

// newEndpoint starts an endpoint in a bubble. nil: it answers 200 with an empty body.
func newEndpoint(t testing.TB, reply func(http.ResponseWriter, *http.Request, object)) *endpoint {
	l := gatetest.NewPipeListener("")
	e := &endpoint{url: "http://" + l.Addr().String(), reply: reply}
	server := &http.Server{Handler: e}
	go server.Serve(l)
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := call{at: time.Now(), path: r.URL.Path, header: r.Header}
	if err := json.NewDecoder(r.Body).Decode(&c.body); err != nil {
		w.WriteHeader(400)
		return
	}
	e.mu.Lock()
	e.got = append(e.got, c)
	reply := e.reply
	e.mu.Unlock()
	if reply != nil {
		reply(w, r, c.body)
	}
}

// answers changes what the endpoint answers.
func (e *endpoint) answers(reply func(http.ResponseWriter, *http.Request, object)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reply = reply
}

// calls returns what the endpoint got so far.
func (e *endpoint) calls() []call {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]call{}, e.got...)
}

// says returns a reply with a status and a JSON body.
func says(status int, body any) func(http.ResponseWriter, *http.Request, object) {
	return func(w http.ResponseWriter, _ *http.Request, _ object) {
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // the relay may have gone
	}
}

// does returns a reply with a JobResult for each job.
func does(agent, status string, changes ...any) func(http.ResponseWriter, *http.Request, object) {
	return func(w http.ResponseWriter, r *http.Request, job object) {
		id, _ := job["job_id"].(string)
		says(200, result(id, agent, status, changes...))(w, r, job)
	}
}

// callback posts a result to the callback of a job.
func (f *fixture) callback(job object, body any) answer {
	f.t.Helper()
	target, _ := job["callback_url"].(string)
	u, err := url.Parse(target)
	if err != nil || !strings.HasPrefix(target, gatetest.PublicURL+"/jobs/cb/tok_") {
		f.t.Fatalf("the job %v has no callback of this relay", job)
	}
	return f.do("POST", strings.TrimPrefix(u.Path, "/jobs"), "", body)
}
