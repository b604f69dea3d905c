package conformance_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
)

// jobsDouble is a registry of jobs in memory, under the path /jobs. It has no faults but those in doubleFaults.
type jobsDouble struct {
	doubleFaults
	url      string // of the registry
	origin   string
	operator string // the operator's key
	urls     gateway.Destinations
	client   *http.Client
	ctx      context.Context
	work     sync.WaitGroup
	requests atomic.Int64

	mu         sync.Mutex // guards what follows, and all that it contains
	changed    chan struct{}
	principals map[string]*doublePrincipal // by key or DID
	strangers  int                         // principals that had no key
	accounts   map[string]*doubleAccount
	agents     map[string]*doubleAgent
	jobs       map[string]*doubleJob
	callbacks  map[string]*doubleJob
	records    []*doubleRecord
	settled    map[string]*[4]any // what transfers said that were answered with a settlement, by transfer_id
	nonces     map[string]bool
}

type doublePrincipal struct {
	key, did string
	operator bool
	issued   int64 // initial credits, in millionths
	owners   []*doubleAccount
	counted  map[*doubleAgent]int // jobs of each agent that counted
}

type doubleAccount struct {
	id      string
	of      *doublePrincipal
	balance int64
	paid    bool // it has got its initial credits
}

// startJobsDouble runs a double with these faults until the test ends.
func startJobsDouble(t *testing.T, faults ...string) *jobsDouble {
	t.Helper()
	loopback, err := gateway.ParseException("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &jobsDouble{doubleFaults: faults, operator: newKey("op_"), ctx: ctx, changed: make(chan struct{}),
		principals: map[string]*doublePrincipal{}, accounts: map[string]*doubleAccount{}, agents: map[string]*doubleAgent{},
		jobs: map[string]*doubleJob{}, callbacks: map[string]*doubleJob{}, nonces: map[string]bool{},
		settled: map[string]*[4]any{},
		client: &http.Client{Timeout: 10 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}}
	d.principals[d.operator] = &doublePrincipal{operator: true}
	for _, id := range []string{"@issue", "@escrow"} {
		d.accounts[id] = &doubleAccount{id: id, of: &doublePrincipal{}, paid: true}
	}
	server := httptest.NewServer(http.HandlerFunc(d.serve))
	d.origin, d.url = server.URL, server.URL+"/jobs"
	d.urls = gateway.Destinations{Origin: server.URL, Exceptions: []gateway.Exception{loopback}}
	t.Cleanup(func() {
		cancel()
		server.Close()
		d.work.Wait()
		d.client.CloseIdleConnections()
	})
	return d
}

// jobsCall is a request that the double handles.
type jobsCall struct {
	*doubleCall
	from   *doublePrincipal // nil: no key
	base   string           // {B}, with the key of the path
	values url.Values
	id     string
}

// invalid ends the handling of a request with 422.
func invalid(loc ...any) {
	panic(doubleInvalid(loc))
}

// doubleInvalid is a refusal with 422. It says where the bad value is.
type doubleInvalid []any

// doubleCode is a refusal with 400 and an error_code.
type doubleCode string

func (d *jobsDouble) serve(w http.ResponseWriter, r *http.Request) {
	c := &jobsCall{doubleCall: &doubleCall{Request: r, w: w}, base: d.url}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case doubleError, doubleInvalid, doubleCode:
			d.answerError(c, e)
		default:
			panic(e)
		}
	}()
	if r.URL.Path == "/.well-known/agora.json" {
		d.answer(c, http.StatusOK, object{"url": d.origin})
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/jobs")
	if d.requests.Add(1)%10 == 0 && d.has("limits the rate of requests") {
		w.Header().Set("Retry-After", "0")
		d.answer(c, http.StatusTooManyRequests, object{"detail": "too fast", "limit": "requests"})
		return
	}
	if d.has("redirects double slashes") && strings.Contains(path, "//") {
		http.Redirect(w, r, "/jobs/health", http.StatusMovedPermanently)
		return
	}
	if d.has("takes the Host header as its own address") {
		c.base = "http://" + r.Host + "/jobs"
	}
	if !ok {
		refuse(http.StatusNotFound)
	}
	d.route(c, d.authenticate(c, path))
}

// route handles a request. path has no key.
func (d *jobsDouble) route(c *jobsCall, path string) {
	handlers := d.handlers(c, path)
	if handlers == nil {
		refuse(http.StatusNotFound)
	}
	handle := handlers[c.Method]
	if handle == nil {
		var allow []string
		for method := range handlers {
			allow = append(allow, method)
		}
		if !d.has("has no Allow header") {
			c.w.Header().Set("Allow", strings.Join(allow, ", "))
		}
		refuse(http.StatusMethodNotAllowed)
	}
	values, err := url.ParseQuery(c.URL.RawQuery)
	for _, name := range []string{"skill", "min_reputation", "max_cost", "wait", "limit", "job_id", "owner_id"} {
		if (err != nil || len(values[name]) > 1) && !d.has("ignores repeated parameters") {
			invalid("query", name)
		}
	}
	c.values = values
	d.mu.Lock()
	defer d.mu.Unlock()
	handle(c)
}

// tell tells those who wait that something has changed.
func (d *jobsDouble) tell() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// waitFor waits until done is true, for at most so many seconds. The mutex is free meanwhile.
func (d *jobsDouble) waitFor(c *jobsCall, seconds int, done func() bool) {
	timer := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timer.Stop()
	for over := seconds == 0; !over && !done(); {
		changed := d.changed
		d.mu.Unlock()
		select {
		case <-changed:
		case <-timer.C:
			over = true
		case <-c.Context().Done():
			over = true
		case <-d.ctx.Done():
			over = true
		}
		d.mu.Lock()
	}
}

// pause lets other requests run, for faults that only races show.
func (d *jobsDouble) pause(fault string) {
	if d.has(fault) {
		d.mu.Unlock()
		time.Sleep(250 * time.Millisecond) // longer than requests made at the same time take to arrive
		d.mu.Lock()
	}
}

func (d *jobsDouble) answer(c *jobsCall, status int, body object) {
	c.w.Header().Set("Content-Type", "application/json")
	c.w.WriteHeader(status)
	_, _ = c.w.Write(encode(body)) // the client may be gone
}

func (d *jobsDouble) answerError(c *jobsCall, err any) {
	body, status := object{"detail": "the double refuses this"}, http.StatusUnprocessableEntity
	switch e := err.(type) {
	case doubleInvalid:
		loc := []any(e)
		if d.has("does not say where the bad value is") {
			loc = loc[:1]
		}
		body["detail"] = []any{object{"loc": loc, "msg": "is wrong", "type": "value_error"}}
	case doubleCode:
		status = http.StatusBadRequest
		if !d.has("names no error code") {
			body["error_code"] = string(e)
		}
	case doubleError:
		status = e.status
		if status == http.StatusRequestEntityTooLarge && d.has("refuses large bodies with 400") {
			status = http.StatusBadRequest
		}
		if status == http.StatusUnauthorized && !d.has("does not say how to authorize") {
			c.w.Header().Set("WWW-Authenticate", "Bearer")
		}
		if e.limit != "" {
			c.w.Header().Set("Retry-After", "60")
			if !d.has("names no limit") {
				body["limit"] = e.limit
			}
		}
		if status == http.StatusUnauthorized && e.code != doubleCodes[status] {
			body["reason"], body["now"], body["aud"] = e.code, milliseconds(time.Now()), d.origin
		}
	}
	if _, isText := body["detail"].(string); isText && d.has("has refusals without a text") {
		body["detail"] = object{"message": body["detail"]}
	}
	d.answer(c, status, body)
}

// authenticate finds out who calls, and returns the path without a key.
func (d *jobsDouble) authenticate(c *jobsCall, path string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	rest, inBase := strings.CutPrefix(path, "/k/")
	key := ""
	if inBase {
		key, rest, _ = strings.Cut(rest, "/")
		path = "/" + rest
		c.base += "/k/" + key
	}
	if (inBase || strings.HasPrefix(path, "/cb/")) && !d.has("lets answers be stored") {
		c.w.Header().Set("Cache-Control", "no-store")
		c.w.Header().Set("Referrer-Policy", "no-referrer")
	}
	if inBase {
		if c.from = d.principals[key]; c.from == nil || c.from.key == "" {
			if d.has("serves open paths under wrong keys") && (path == "/health" || path == "/skills") {
				return path
			}
			refuse(http.StatusUnauthorized)
		}
	}
	if inBase && d.has("authenticates only GET in bases") && c.Method != http.MethodGet {
		c.from = nil
	}
	if len(c.Header["Authorization"]) > 0 {
		caller := d.caller(c)
		if c.from != nil && caller != c.from && !d.has("prefers the key in Authorization") {
			refuse(http.StatusUnauthorized)
		}
		c.from = caller
	}
	return path
}

// caller returns who the header Authorization names.
func (d *jobsDouble) caller(c *jobsCall) *doublePrincipal {
	all := c.Header["Authorization"]
	if len(all) > 1 {
		refuse(http.StatusUnauthorized)
	}
	scheme, key, _ := strings.Cut(all[0], " ")
	if strings.EqualFold(scheme, "Agora") {
		return d.signer(c, key)
	}
	if d.has("takes any scheme") {
		scheme, key = "Bearer", all[0][strings.LastIndexByte(all[0], ' ')+1:]
	}
	found := d.principals[key]
	if found == nil || !strings.EqualFold(scheme, "Bearer") || d.has("compares the scheme exactly") && scheme != "Bearer" {
		refuse(http.StatusUnauthorized)
	}
	return found
}

// signer returns the DID that has signed the call.
func (d *jobsDouble) signer(c *jobsCall, token string) *doublePrincipal {
	fail := func(reason string) { panic(doubleError{status: http.StatusUnauthorized, code: reason}) }
	call, err := envelope.ParseCall(token)
	if err != nil {
		fail("malformed")
	}
	text := readBody(c.Request)
	switch {
	case call.Audience != d.origin:
		fail("audience")
	case call.Method != c.Method || call.Target != c.URL.RequestURI():
		fail("request")
	case time.Since(call.TS).Abs() > time.Minute:
		fail("time")
	case call.Body != sha256.Sum256(text):
		fail("body")
	case call.Verify() != nil:
		fail("malformed")
	case d.nonces[call.Nonce] && !d.has("takes tokens twice"):
		fail("used")
	}
	d.nonces[call.Nonce] = true
	did := string(call.Reader)
	if d.principals[did] == nil {
		d.principals[did] = &doublePrincipal{did: did, counted: map[*doubleAgent]int{}}
	}
	return d.principals[did]
}

// handlers returns the handlers of a path by method, or nil.
func (d *jobsDouble) handlers(c *jobsCall, path string) map[string]func(*jobsCall) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if slices.Contains(parts, "") || len(parts) > 3 {
		return nil
	}
	if len(parts) > 1 && parts[0] != "operator" {
		c.id = parts[1]
		parts[1] = "{}"
	}
	return map[string]map[string]func(*jobsCall){
		"accounts":              {"POST": d.open},
		"accounts/{}":           {"GET": d.showAccount},
		"register":              {"POST": d.register},
		"discover":              {"GET": d.discover},
		"heartbeat":             {"POST": d.heartbeat},
		"agents/{}":             {"GET": d.showAgent, "DELETE": d.unregister},
		"skills":                {"GET": d.listSkills},
		"reputation/{}":         {"GET": d.showReputation},
		"reputation/{}/success": {"POST": d.outcome},
		"reputation/{}/failure": {"POST": d.outcome},
		"a/{}":                  {"POST": d.hire},
		"a/{}/jobs":             {"POST": d.hire},
		"jobs/{}":               {"GET": d.showJob},
		"agents/{}/jobs":        {"GET": d.handOut},
		"agents/{}/results":     {"POST": d.report},
		"cb/{}":                 {"POST": d.callback},
		"transfer":              {"POST": d.transfer},
		"audit":                 {"GET": d.audit},
		"economy":               {"GET": d.economy},
		"operator/grants":       {"POST": d.grant},
		"health":                {"GET": d.health},
	}[strings.Join(parts, "/")]
}

// mustPrincipal ends the handling of a request without a key of a principal.
func (d *jobsDouble) mustPrincipal(c *jobsCall) {
	if c.from == nil {
		refuse(http.StatusUnauthorized)
	}
}

// read reads the body of a request.
func (d *jobsDouble) read(c *jobsCall) {
	defer func() {
		if e := recover(); e != nil {
			if e, ok := e.(doubleError); ok && e.status == http.StatusUnprocessableEntity {
				invalid("body")
			}
			panic(e)
		}
	}()
	d.doubleFaults.read(c.doubleCall, http.StatusUnprocessableEntity)
	decoder := json.NewDecoder(strings.NewReader(c.form))
	decoder.UseNumber()
	if decoder.Decode(&c.body) != nil {
		panic(errors.New("the body was JSON before"))
	}
}

// newUUID returns a random UUID.
func newUUID() string {
	b := randomBytes(16)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
