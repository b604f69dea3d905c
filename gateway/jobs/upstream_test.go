package jobs_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
)

// This file has programs that send the requests of upstream's programs, and check that the answers have what these
// programs need. Upstream is HeatoXSophi/chorus at d292c46 (JOBS §8).

// localhost is a machine on which upstream's agents run. Each listens on its own port.
type localhost struct {
	mu        sync.Mutex
	listening map[string]string // by the port: the address of the listener
}

// dial connects the relay to an agent. It is the Dial of the relay's calls.
func (l *localhost) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if host == "localhost" {
		l.mu.Lock()
		addr = l.listening[port] // empty: the connection is refused
		l.mu.Unlock()
	}
	return gatetest.DialPipe(ctx, network, addr)
}

func (l *localhost) listen(port, addr string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listening[port] = addr
}

// withUpstream runs a test in a bubble, with a relay that has --outbound-allow localhost.
func withUpstream(t *testing.T, test func(t *testing.T, f *fixture, l *localhost)) {
	l := &localhost{listening: map[string]string{}}
	inBubble(t, func(t *testing.T, f *fixture) { test(t, f, l) }, func(f *fixture) {
		exception, err := gateway.ParseException("localhost")
		f.must(err)
		f.Outgoing.Exceptions = append(f.Outgoing.Exceptions, exception)
		f.Outgoing.Dial = l.dial
	})
}

// program is a program of upstream. It knows no keys, and has been given a base URL with the key.
type program struct {
	*fixture
	base string
}

func (f *fixture) program(key string) program {
	return program{f, gatetest.PublicURL + "/jobs/k/" + key}
}

// keyholder returns the key of a new principal, which has its initial credits left.
func (f *fixture) keyholder(owner string) string {
	f.t.Helper()
	return text(f.want(f.do("POST", "/accounts", "", object{"owner_id": owner, "initial_balance": 0}), 201), "api_key")
}

// send sends a request to a URL, and waits as long as upstream's clients do.
func (p program) send(method, target string, body any) (answer, error) {
	p.t.Helper()
	path, found := strings.CutPrefix(target, gatetest.PublicURL)
	if !found {
		p.t.Fatalf("%s is no URL of this relay", target)
	}
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	return gatetest.Do(ctx, p.Client, p.URL, gatetest.Call{Method: method, Path: path, Body: body})
}

// sendTo does the same as send, for a path below the base URL. The answer must have the status want.
func (p program) sendTo(method, path string, body any, want int) answer {
	p.t.Helper()
	a, err := p.send(method, p.base+path, body)
	p.must(err)
	return p.want(a, want)
}

// decimals returns a number of an answer with two decimals. Upstream's programs cannot print anything but a number.
func (p program) decimals(a answer, path ...any) string {
	p.t.Helper()
	n, ok := member(a, path...).(float64)
	if !ok {
		p.t.Fatalf("%v of the answer %v is not a number", path, a)
	}
	return fmt.Sprintf("%.2f", n)
}

// timestamp returns the time as upstream's programs write it.
func timestamp() string { return time.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00") }

// agentService is services/agent_service.py. It makes an agent_id when it starts, registers, and answers POST /jobs.
type agentService struct {
	program
	id, name, owner, skill string
	cost                   json.Number
	close                  func()

	mu  sync.Mutex
	got []object
}

// startAgent starts an agent that listens on a port of localhost.
func (p program) startAgent(l *localhost, name, owner, skill, cost, port string) *agentService {
	p.t.Helper()
	s := &agentService{program: p, id: newID(), name: name, owner: owner, skill: skill, cost: json.Number(cost)}
	pipes := gatetest.NewPipeListener("")
	server := &http.Server{Handler: s}
	go server.Serve(pipes)
	l.listen(port, pipes.Addr().String())
	s.close = sync.OnceFunc(func() {
		l.listen(port, "")
		if err := server.Close(); err != nil {
			p.t.Error(err)
		}
	})
	p.t.Cleanup(s.close)
	a := p.sendTo("POST", "/register", object{"agent_id": s.id, "agent_name": name, "owner_id": owner,
		"api_endpoint": "http://localhost:" + port, "version": "0.1", "timestamp_utc": timestamp(),
		"skills": []object{{"skill_name": skill, "description": "Skill: " + skill, "cost_per_call": s.cost,
			"input_schema": object{}, "output_schema": object{}}}}, 201)
	if text(a, "agent_id") != s.id || text(a, "status") != "registered" || number(a, "reputation_score") != "50.0" {
		p.t.Errorf("the registration is answered %v", a)
	}
	return s
}

// ServeHTTP answers like upstream's web framework.
func (s *agentService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != "POST" || r.URL.Path != "/jobs" {
		says(404, object{"detail": "Not Found"})(w, r, nil)
		return
	}
	var job object
	if err := json.NewDecoder(r.Body).Decode(&job); err != nil || !isJobRequest(job) {
		wrong := object{"loc": []any{"body"}, "msg": "not a JobRequest", "type": "value_error"}
		says(422, object{"detail": []object{wrong}})(w, r, nil)
		return
	}
	s.mu.Lock()
	s.got = append(s.got, job)
	s.mu.Unlock()
	result := object{"job_id": job["job_id"], "agent_id": s.id, "status": "FAILURE", "output_data": nil,
		"execution_cost": 0.0, "execution_time_ms": 0, "error_message": nil, "error_code": nil, "timestamp_utc": timestamp()}
	budget, _ := job["budget"].(float64)
	cost, _ := s.cost.Float64() // the test wrote it
	number, ok := job["input_data"].(object)["primary_number"].(float64)
	switch {
	case job["skill_name"] != s.skill:
		result["error_code"], result["error_message"] = "SKILL_MISMATCH", "I have another skill"
	case budget < cost:
		result["error_code"], result["error_message"] = "BUDGET_INSUFFICIENT", "I cost more"
	case s.skill == "calculate" && !ok:
		result["error_code"], result["error_message"] = "EXECUTION_ERROR", "Execution error: no number"
	default:
		result["status"], result["output_data"], result["execution_cost"] = "SUCCESS", object{"result": 2 * number}, s.cost
	}
	says(200, result)(w, r, nil)
}

// isJobRequest reports whether a job has the members that upstream's model of a JobRequest needs ([003] §3.3).
func isJobRequest(job object) bool {
	for _, name := range []string{"job_id", "orchestrator_id", "skill_name", "currency", "callback_url", "timestamp_utc"} {
		if _, ok := job[name].(string); !ok {
			return false
		}
	}
	_, isNumber := job["budget"].(float64)
	_, isObject := job["input_data"].(object)
	return isNumber && isObject
}

// jobs returns what the agent got so far.
func (s *agentService) jobs() []object {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// idCount counts the ids that newID has made.
var idCount atomic.Int64

// newID returns a UUID that no other call returns.
func newID() string { return uuid(900_000 + int(idCount.Add(1))) }

// demo is demo/phase1_network.py. It returns what the program prints, in short. err is the error that ends the program.
func (p program) demo() (lines []string, err error) {
	p.t.Helper()
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	for range 2 { // the registry and the ledger
		say("health %s", text(p.sendTo("GET", "/health", nil, 200), "status"))
	}
	for _, account := range []object{{"owner_id": "demo_user", "initial_balance": json.Number("10.0")},
		{"owner_id": "demo_owner", "initial_balance": json.Number("0.0")},
		{"owner_id": "math_corp", "initial_balance": json.Number("0.0")}} {
		a := p.sendTo("POST", "/accounts", account, 201)
		say("account %s %s", text(a, "owner_id"), p.decimals(a, "balance"))
	}
	offered := p.sendTo("GET", "/skills", nil, 200)
	skills, _ := member(offered, "skills").([]any)
	say("skills %v of %v agents", skills, member(offered, "total_agents"))
	found := p.sendTo("GET", "/discover?skill=analyze_text", nil, 200)
	agents, _ := member(found, "agents").([]any)
	if member(found, "total") != float64(len(agents)) {
		p.t.Errorf("%v does not say how many agents there are", found)
	}
	numbers := map[string]int{} // of the jobs
	for _, skill := range skills {
		job := newID()
		numbers[job] = len(numbers) + 1
		did, err := p.order(skill.(string), job)
		if err != nil {
			return lines, err
		}
		say("job %d: %s", numbers[job], did)
	}
	economy := p.sendTo("GET", "/economy", nil, 200)
	balances, _ := member(economy, "all_balances").(object)
	for _, owner := range slices.Sorted(maps.Keys(balances)) {
		say("%s has %s", owner, p.decimals(economy, "all_balances", owner))
	}
	say("volume %s", p.decimals(economy, "total_volume"))
	audit := p.sendTo("GET", "/audit", nil, 200)
	transactions, _ := member(audit, "transactions").([]any)
	for i := range transactions {
		job, isText := member(audit, "transactions", i, "job_id").(string)
		if !isText {
			p.t.Errorf("the job_id of %v is not a text", transactions[i])
		}
		if n := numbers[job]; n != 0 {
			say("job %d: %s to %s %s", n, text(audit, "transactions", i, "from_owner"),
				text(audit, "transactions", i, "to_owner"), p.decimals(audit, "transactions", i, "amount"))
		}
	}
	return lines, nil
}

// order does what the demo does for each skill. It finds an agent, hires it, and pays the agent if it was successful.
// Then it reports the success. The demo ignores the answer to that, which must be 403 here (JOBS §2).
func (p program) order(skill, job string) (string, error) {
	p.t.Helper()
	found := p.sendTo("GET", "/discover?skill="+url.QueryEscape(skill), nil, 200)
	a, err := p.send("POST", text(found, "agents", 0, "api_endpoint")+"/jobs", object{"job_id": job,
		"orchestrator_id": "demo_orchestrator", "skill_name": skill, "budget": json.Number("1.0"),
		"input_data": object{"primary_number": 42000}, "currency": "chorus_credits_v1", "callback_url": "",
		"timestamp_utc": timestamp()})
	if err != nil {
		return "", err
	}
	if p.want(a, 200); text(a, "status") != "SUCCESS" {
		return fmt.Sprintf("%s %s: %s", skill, text(a, "status"), text(a, "error_message")), nil
	}
	paid := p.sendTo("POST", "/transfer", object{"from_owner": "demo_user", "job_id": text(a, "job_id"),
		"to_owner": text(found, "agents", 0, "owner_id"), "amount": member(a, "execution_cost")}, 200)
	p.sendTo("POST", "/reputation/"+text(found, "agents", 0, "agent_id")+"/success?job_id="+text(a, "job_id")+
		"&contractor_reputation=50.0", nil, 403)
	return fmt.Sprintf("%s SUCCESS %v for %s, sender has %s", skill, member(a, "output_data", "result"),
		p.decimals(a, "execution_cost"), p.decimals(paid, "sender_balance")), nil
}

// wantLines checks what a program has printed.
func wantLines(t *testing.T, what string, got []string, want string) {
	t.Helper()
	if got := strings.Join(got, "\n"); got != strings.TrimSpace(want) {
		t.Errorf("%s, the demo prints:\n%s\nwant:\n%s", what, got, strings.TrimSpace(want))
	}
}

// TestUpstreamDemo runs upstream's two agents, and its demo twice. Escrow pays the jobs, and the transfers of the demo
// move nothing (J-5). The reported successes do not count, and neither do jobs within one principal (J-15). Amounts are
// numbers, and each job_id is a text (JOBS §8).
func TestUpstreamDemo(t *testing.T) {
	withUpstream(t, func(t *testing.T, f *fixture, l *localhost) {
		p := f.program(f.keyholder("me"))
		agents := []*agentService{p.startAgent(l, "TextAnalyzer", "demo_owner", "analyze_text", "0.05", "8010"),
			p.startAgent(l, "Calculator", "math_corp", "calculate", "0.05", "8011")}
		first, err := p.demo()
		f.must(err)
		wantLines(t, "at first", first, `
health healthy
health healthy
account demo_user 10.00
account demo_owner 0.00
account math_corp 0.00
skills [analyze_text calculate] of 2 agents
job 1: analyze_text SUCCESS 84000 for 0.05, sender has 9.95
job 2: calculate SUCCESS 84000 for 0.05, sender has 9.90
demo_owner has 0.05
demo_user has 9.90
math_corp has 0.05
me has 0.00
volume 0.10
job 1: demo_user to @escrow 1.00
job 1: @escrow to demo_owner 0.05
job 1: @escrow to demo_user 0.95
job 2: demo_user to @escrow 1.00
job 2: @escrow to math_corp 0.05
job 2: @escrow to demo_user 0.95`)
		second, err := p.demo()
		f.must(err)
		wantLines(t, "the second time", second, `
health healthy
health healthy
account demo_user 9.90
account demo_owner 0.05
account math_corp 0.05
skills [analyze_text calculate] of 2 agents
job 1: analyze_text SUCCESS 84000 for 0.05, sender has 9.85
job 2: calculate SUCCESS 84000 for 0.05, sender has 9.80
demo_owner has 0.10
demo_user has 9.80
math_corp has 0.10
me has 0.00
volume 0.20
job 1: demo_user to @escrow 1.00
job 1: @escrow to demo_owner 0.05
job 1: @escrow to demo_user 0.95
job 2: demo_user to @escrow 1.00
job 2: @escrow to math_corp 0.05
job 2: @escrow to demo_user 0.95`)
		for _, s := range agents {
			if got := f.score(s.id); got != "50.0" {
				t.Errorf("the score of %s is %s, want 50.0", s.name, got)
			}
			jobs := s.jobs()
			if len(jobs) != 2 {
				t.Fatalf("%s got %v, want 2 jobs", s.name, jobs)
			}
			f.want(f.callback(jobs[0], result(jobs[0]["job_id"].(string), s.id, "FAILURE")), 409) // it has ended
		}
	})
}

// TestUpstreamHirer checks upstream's requests of a hirer that has another key than the agent. The agent is paid once,
// and the job counts once (J-5). The agent cannot pay with the hirer's account (J-27).
func TestUpstreamHirer(t *testing.T) {
	withUpstream(t, func(t *testing.T, f *fixture, l *localhost) {
		s := f.program(f.keyholder("corp")).startAgent(l, "Calculator", "corp", "calculate", "0.05", "8011")
		hirer := f.user("demo_user")
		p := f.program(hirer.key)
		for i, want := range []string{"sender has 99.95", "sender has 99.90"} {
			job := newID()
			got, err := p.order("calculate", job)
			f.must(err)
			if got != "calculate SUCCESS 84000 for 0.05, "+want {
				t.Errorf("job %d: %s, want that the %s", i+1, got, want)
			}
			again := object{"from_owner": "demo_user", "to_owner": "corp", "amount": 0.05, "job_id": job}
			p.sendTo("POST", "/transfer", again, 200)
			s.sendTo("POST", "/transfer", again, 403)
		}
		if got := f.score(s.id); got != "52.0" {
			t.Errorf("after two jobs the score is %s, want 52.0", got)
		}
		wantBalance("after two jobs", "99.9", hirer)
	})
}

// TestUpstreamWrongKey checks that each request of upstream's programs is refused if their base URL has a wrong key
// (J-30).
func TestUpstreamWrongKey(t *testing.T) {
	withUpstream(t, func(t *testing.T, f *fixture, l *localhost) {
		s := f.program(f.keyholder("corp")).startAgent(l, "Calculator", "corp", "calculate", "0.05", "8011")
		p := f.program(gateway.NewKey(gateway.Principal))
		for _, path := range []string{"/health", "/skills", "/discover?skill=calculate", "/economy", "/audit"} {
			p.sendTo("GET", path, nil, 401)
		}
		for _, path := range []string{"/accounts", "/register", "/a/" + s.id + "/jobs", "/transfer",
			"/reputation/" + s.id + "/success?job_id=&contractor_reputation=50.0"} {
			p.sendTo("POST", path, object{"owner_id": "me"}, 401)
		}
	})
}

// TestUpstreamAgentFails checks that the hirer learns why an agent has failed, and gets the credits back (J-21).
func TestUpstreamAgentFails(t *testing.T) {
	withUpstream(t, func(t *testing.T, f *fixture, l *localhost) {
		s := f.program(f.keyholder("corp")).startAgent(l, "Calculator", "corp", "calculate", "0.05", "8011")
		hirer := f.user("demo_user")
		a := f.want(hirer.do("POST", "/a/"+s.id+"/jobs", object{"orchestrator_id": "demo_orchestrator",
			"skill_name": "calculate", "input_data": object{"primary_number": "many"}, "budget": 1.0}), 200)
		if statusOf(a) != "FAILURE EXECUTION_ERROR" || text(a, "error_message") != "Execution error: no number" ||
			number(a, "execution_cost") != "0" {
			t.Errorf("the job is %v", a)
		}
		wantBalance("after the failure", "100", hirer)
		if got := f.score(s.id); got != "45.5" {
			t.Errorf("the score is %s, want 45.5", got)
		}
	})
}

// TestUpstreamAgentStops checks what happens when an agent has stopped. The demo gives up after its own 10 seconds.
// The job ends after five minutes, and the budget is returned. After that, the demo does not find the agent (J-20,
// J-21).
func TestUpstreamAgentStops(t *testing.T) {
	withUpstream(t, func(t *testing.T, f *fixture, l *localhost) {
		p := f.program(f.keyholder("me"))
		s := p.startAgent(l, "Calculator", "math_corp", "calculate", "0.05", "8011")
		s.close()
		if lines, err := p.demo(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("without an agent the demo ends with %v, after\n%s", err, strings.Join(lines, "\n"))
		}
		if got := p.decimals(p.sendTo("GET", "/accounts/demo_user", nil, 200), "balance"); got != "9.00" {
			t.Errorf("while the job is tried again, the balance is %s, want 9.00", got)
		}
		f.pass(dispatchTime)
		lines, err := p.demo()
		f.must(err)
		wantLines(t, "after five minutes", lines, `
health healthy
health healthy
account demo_user 10.00
account demo_owner 0.00
account math_corp 0.00
skills [] of 0 agents
demo_owner has 0.00
demo_user has 10.00
math_corp has 0.00
me has 0.00
volume 0.00`)
	})
}

// TestUpstreamAgentStartsAgain checks agents that are started again. Such an agent has a new agent_id and the old port. It
// is paid for jobs of both agent_ids.
func TestUpstreamAgentStartsAgain(t *testing.T) {
	withUpstream(t, func(t *testing.T, f *fixture, l *localhost) {
		owner, hirer := f.keyholder("corp"), f.user("demo_user")
		old := f.program(owner).startAgent(l, "Calculator", "corp", "calculate", "0.05", "8011")
		old.close()
		waiting := newID()
		job := changed(order(waiting), "skill_name", "calculate", "input_data", object{"primary_number": 4})
		f.want(hirer.do("POST", "/a/"+old.id+"/jobs?wait=0", job), 202)
		time.Sleep(time.Second)
		again := f.program(owner).startAgent(l, "Calculator", "corp", "calculate", "0.05", "8011")
		time.Sleep(time.Minute)
		if got := again.jobs(); len(got) != 1 || got[0]["job_id"] != waiting {
			t.Errorf("the new agent got %v, want the job of the old one", got)
		}
		hirer.wantStatus("for the old agent_id", waiting, "SUCCESS")
		wantBalance("after that job", "99.95", hirer)
		a := f.want(hirer.do("POST", "/a/"+again.id+"/jobs", changed(job, "job_id", newID())), 200)
		if statusOf(a) != "SUCCESS" || member(a, "output_data", "result") != 8.0 {
			t.Errorf("the new agent's job is %v", a)
		}
		wantBalance("after the new agent's job", "99.9", hirer)
	})
}

// TestUpstreamDeploy replays services/deploy_service.py. It registers an agent whose name is not ASCII, then creates
// the account, and removes the agent in the end. The agent's results have other members than those of
// agent_service.py.
func TestUpstreamDeploy(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		p, id, hirer := f.program(f.keyholder("me")), uuid(1), f.user("demo_user")
		e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request, job object) {
			result := object{"job_id": job["job_id"], "agent_id": id, "status": "FAILURE", "error_message": "'text'",
				"error_code": "EXECUTION_ERROR", "execution_cost": 0, "execution_time_ms": 1}
			if in, ok := job["input_data"].(object)["text"].(string); ok {
				result = object{"job_id": job["job_id"], "agent_id": id, "status": "SUCCESS",
					"output_data": object{"upper": strings.ToUpper(in)}, "execution_cost": 0.1, "execution_time_ms": 1,
					"error_message": nil, "deployment_mode": "serverless"}
			}
			says(200, result)(w, r, job)
		})
		p.sendTo("POST", "/register", object{"agent_id": id, "agent_name": "☁️ Upper", "owner_id": "cloud",
			"api_endpoint": e.url, "skills": []object{{"skill_name": "upper", "description": "Serverless agent: upper",
				"cost_per_call": 0.1, "input_schema": object{}, "output_schema": object{}}}, "version": "0.1-serverless"}, 201)
		p.sendTo("POST", "/accounts", object{"owner_id": "cloud", "initial_balance": json.Number("0.0")}, 201)
		for input, want := range map[string]string{`{"text":"abc"}`: `SUCCESS {"upper":"ABC"}`,
			`{}`: "FAILURE EXECUTION_ERROR {}"} {
			a := f.want(hirer.do("POST", "/a/"+id+"/jobs", object{"orchestrator_id": "x", "skill_name": "upper",
				"input_data": json.RawMessage(input), "budget": 0.1}), 200)
			if got := statusOf(a) + " " + number(a, "output_data"); got != want {
				t.Errorf("the job with %s is %s, want %s", input, got, want)
			}
		}
		wantBalance("after a success and a failure", "99.9", hirer)
		p.sendTo("DELETE", "/agents/"+id, nil, 200)
		if a := p.sendTo("GET", "/discover?skill=upper", nil, 200); member(a, "total") != 0.0 {
			t.Errorf("after it was removed, the agent is found: %v", a)
		}
	})
}
