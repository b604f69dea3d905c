package jobsclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	gatewayURL = "https://relay.example/jobs"
	agentID    = "a3b8d1b6-0b3b-4b1a-9c1a-1a2b3c4d5e6f"
)

var (
	cj = "cj_" + strings.Repeat("A", keyLength)
	op = "op_" + strings.Repeat("B", keyLength)
)

// fakeGateway is a jobs gateway with one agent, which pulls its jobs. It is the HTTP transport of its clients. It keeps
// what is asked of it. faults change the outcome of the next requests.
type fakeGateway struct {
	mu      sync.Mutex // a request holds it, except while it waits
	faults  []fault
	asked   []asked
	answers map[string]string   // by method and target: the status and the answer
	jobs    map[string]*fakeJob // by job_id
	queue   []string            // what the next pull gets
	paid    map[string]string   // transfers by their id, and the answers
	beats   []time.Time         // of the heartbeats
	news    chan struct{}       // gets an element when something changes while a request waits
	refuse  func(report Result) int
}

// asked is a request that the gateway got.
type asked struct{ method, target, auth, body string }

func (a asked) String() string { return strings.TrimSpace(a.method + " " + a.target + " " + a.body) }

type fakeJob struct {
	body    string
	result  string // empty: it runs
	reports int
}

// fault answers a request in place of the gateway, which serve calls.
type fault func(r *http.Request, serve func() *http.Response) (*http.Response, error)

func newFakeGateway() *fakeGateway {
	return &fakeGateway{answers: map[string]string{}, jobs: map[string]*fakeJob{}, paid: map[string]string{}, news: make(chan struct{}, 1)}
}

func (f *fakeGateway) client(url string) *Client {
	return &Client{URL: url, HTTP: &http.Client{Transport: f}, Log: slog.New(slog.DiscardHandler)}
}

// changed wakes a request that waits.
func (f *fakeGateway) changed() {
	select {
	case f.news <- struct{}{}:
	default:
	}
}

// offer lets the next pull hand out jobs.
func (f *fakeGateway) offer(ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		if f.jobs[id] == nil {
			f.jobs[id] = &fakeJob{body: `{"job_id":"` + id + `","skill_name":"s","input_data":{"n":1},"budget":1}`}
		}
	}
	f.queue = append(f.queue, ids...)
	f.changed()
}

// fail adds faults of the next requests.
func (f *fakeGateway) fail(faults ...fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, faults...)
}

func (f *fakeGateway) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, asked{r.Method, strings.TrimPrefix(r.URL.RequestURI(), "/jobs"), r.Header.Get("Authorization"), string(body)})
	serve := func() *http.Response {
		w := httptest.NewRecorder()
		status, text := f.serve(r, body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
		return w.Result()
	}
	if len(f.faults) > 0 {
		next := f.faults[0]
		if f.faults = f.faults[1:]; next != nil {
			return next(r, serve)
		}
	}
	if r.Context().Err() != nil {
		return nil, r.Context().Err()
	}
	return serve(), nil
}

func (f *fakeGateway) serve(r *http.Request, body []byte) (status int, text string) {
	if known := f.answers[r.Method+" "+strings.TrimPrefix(r.URL.RequestURI(), "/jobs")]; known != "" {
		number, text, _ := strings.Cut(known, " ")
		status, _ = strconv.Atoi(number)
		return status, text
	}
	wait, _ := strconv.Atoi(r.URL.Query().Get("wait"))
	switch path := strings.TrimPrefix(r.URL.Path, "/jobs"); {
	case r.Method == "POST" && path == "/heartbeat":
		f.beats = append(f.beats, time.Now())
		return 200, `{"status":"ok"}`
	case r.Method == "POST" && path == "/transfer":
		var t Transfer
		if json.Unmarshal(body, &t) != nil {
			return 422, `{"detail":[]}`
		}
		if f.paid[t.ID] == "" {
			f.paid[t.ID] = fmt.Sprintf(`{"status":"completed","transfer":{"transfer_id":%q,"from_owner":%q,"to_owner":%q,"amount":%v,"job_id":"","timestamp_utc":"2026-02-11T14:15:09.000Z","kind":"transfer"},"sender_balance":%d.5,"receiver_balance":1}`,
				t.ID, t.From, t.To, t.Amount, 90-len(f.paid))
		}
		return 200, f.paid[t.ID]
	case r.Method == "POST" && path == "/a/"+agentID+"/jobs":
		return f.start(string(body), wait)
	case r.Method == "GET" && strings.HasPrefix(path, "/jobs/") && f.jobs[path[6:]] != nil:
		_, text = f.shown(path[6:])
		return 200, text
	case r.Method == "GET" && path == "/agents/"+agentID+"/jobs":
		return f.handOut(r, wait)
	case r.Method == "POST" && path == "/agents/"+agentID+"/results":
		return f.report(body)
	}
	return 404, `{"detail":"Not Found"}`
}

func (f *fakeGateway) start(body string, wait int) (int, string) {
	var j Job
	if json.Unmarshal([]byte(body), &j) != nil || j.ID == "" {
		return 422, `{"detail":[{"loc":["body","job_id"],"msg":"a job_id","type":"value_error"}]}`
	}
	known := f.jobs[j.ID]
	switch {
	case known == nil:
		f.jobs[j.ID] = &fakeJob{body: body}
		f.queue = append(f.queue, j.ID)
		f.changed()
	case known.body != body:
		return 409, `{"detail":"another job has this job_id"}`
	}
	for end := time.Now().Add(time.Duration(wait) * time.Second); known == nil && f.jobs[j.ID].result == "" && time.Now().Before(end); {
		f.mu.Unlock()
		time.Sleep(time.Second)
		f.mu.Lock()
	}
	return f.shown(j.ID)
}

// shown returns a job as it stands.
func (f *fakeGateway) shown(id string) (int, string) {
	if result := f.jobs[id].result; result != "" {
		return 200, result
	}
	return 202, `{"job_id":"` + id + `","agent_id":"` + agentID + `","status":"PENDING","output_data":null,"execution_cost":null,"execution_time_ms":null,"error_message":null,"error_code":null}`
}

func (f *fakeGateway) handOut(r *http.Request, wait int) (int, string) {
	if len(f.queue) == 0 && wait > 0 {
		select {
		case <-f.news:
		default:
		}
		f.mu.Unlock()
		select {
		case <-f.news:
		case <-time.After(time.Duration(wait) * time.Second):
		case <-r.Context().Done():
		}
		f.mu.Lock()
	}
	var all []string
	for _, id := range f.queue {
		all = append(all, f.jobs[id].body)
	}
	f.queue = nil
	return 200, `{"jobs":[` + strings.Join(all, ",") + `]}`
}

func (f *fakeGateway) report(body []byte) (int, string) {
	var r Result
	if json.Unmarshal(body, &r) != nil || f.jobs[r.JobID] == nil {
		return 422, `{"detail":[]}`
	}
	j := f.jobs[r.JobID]
	j.reports++
	if f.refuse != nil {
		if status := f.refuse(r); status != 0 {
			return status, `{"detail":[{"loc":["body","output_data"],"msg":"too large"}]}`
		}
	}
	if j.result != "" && j.result != string(body) {
		return 409, `{"detail":"the job has ended with another result"}`
	}
	j.result = string(body)
	return 200, `{"status":"ok"}`
}

// result returns the reported result of a job.
func (f *fakeGateway) result(id string) (r Result, reports int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.jobs[id] == nil {
		return Result{}, 0
	}
	_ = json.Unmarshal([]byte(f.jobs[id].result), &r)
	return r, f.jobs[id].reports
}

// Faults.
func lose(_ *http.Request, serve func() *http.Response) (*http.Response, error) {
	serve()
	return nil, errors.New("connection reset")
}

func unsent(*http.Request, func() *http.Response) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
}

// answer returns a fault that answers with these headers.
func answer(status int, text string, header ...string) fault {
	return func(*http.Request, func() *http.Response) (*http.Response, error) {
		w := httptest.NewRecorder()
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
		return w.Result(), nil
	}
}

func refuse(status int, header ...string) fault {
	return answer(status, `{"detail":"refused"}`, header...)
}
