package agentprobe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// doubleURL is the connection string of the double, and oldURL one that it had before.
const (
	doubleURL = "http://agent.test/inbox/sk_right"
	oldURL    = "http://agent.test/inbox/sk_before"
)

// double is an agent. Without a fault it does everything right.
type double struct {
	fault  string
	ctx    context.Context
	client *http.Client
	tasks  sync.WaitGroup

	mu        sync.Mutex
	seen      map[string]bool   // the messages that it has answered
	callbacks map[string]string // the first callback of each channel
	working   int
	bad       int // bad requests so far
	down      bool
}

// incoming is a delivery as the double reads it.
type incoming struct {
	Channel struct{ ID, Name, Service, Context string }
	Message struct {
		ID, Sender string
		Content    *string
	}
	Callback string
	MCP      json.RawMessage
}

type server struct {
	Name, URL string
	Headers   map[string]string
}

// startDouble starts an agent on a network.
func startDouble(t *testing.T, n *network, fault string) (stop func()) {
	t.Helper()
	listener, err := n.listen("agent.test:80")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	transport := n.transport()
	a := &double{fault: fault, ctx: ctx, client: &http.Client{Transport: transport}, seen: map[string]bool{}, callbacks: map[string]string{}}
	server := &http.Server{Handler: a}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	return func() {
		cancel()
		a.tasks.Wait()
		transport.CloseIdleConnections()
		_ = server.Close()
		serving.Wait()
	}
}

func (a *double) is(faults ...string) bool {
	for _, fault := range faults {
		if a.fault == fault {
			return true
		}
	}
	return false
}

// sleep waits, at most until the agent is stopped.
func (a *double) sleep(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-a.ctx.Done():
	}
}

func (a *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case a.is("slow"):
		a.sleep(4 * time.Second)
	case a.is("too slow"):
		a.sleep(11 * time.Second)
	}
	status := a.handle(r)
	if status == http.StatusTemporaryRedirect {
		w.Header().Set("Location", doubleURL)
	}
	a.mu.Lock()
	if status >= 400 {
		a.bad++
	}
	locked := a.is("locks itself") && a.bad > 3
	a.mu.Unlock()
	if locked {
		status = http.StatusForbidden
	}
	w.WriteHeader(status)
	if status == http.StatusBadRequest {
		_, _ = io.WriteString(w, "the double does not want this") // if the probe has left, nobody needs it
	}
}

// handle takes a request, and returns the status of the answer.
func (a *double) handle(r *http.Request) (status int) {
	secret := strings.TrimPrefix(r.URL.Path, "/inbox/")
	switch {
	case secret == "sk_right":
	case a.is("old secret valid") && secret == "sk_before":
	case a.is("any secret"):
	case a.is("redirects") && secret == "sk_before":
		return http.StatusTemporaryRedirect
	case a.is("wrong secret crashes"):
		return http.StatusInternalServerError
	default:
		return http.StatusNotFound
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return http.StatusBadRequest
	}
	d, status := a.read(body)
	if status != 0 {
		return status
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.down || a.working > 0 && a.is("one channel") {
		return http.StatusServiceUnavailable
	}
	if id := d.Channel.ID + " " + d.Message.ID; a.seen[id] && !a.is("answers repeats") {
		if a.is("refuses repeats") {
			return http.StatusConflict
		}
		return http.StatusOK
	} else {
		a.seen[id] = true
	}
	if first := a.callbacks[d.Channel.ID]; first == "" {
		a.callbacks[d.Channel.ID] = d.Callback
	} else if a.is("one callback") {
		d.Callback = first
	}
	a.working++
	if a.is("works first") {
		a.mu.Unlock()
		a.work(d)
		a.mu.Lock()
		return http.StatusOK
	}
	a.tasks.Go(func() { a.work(d) })
	return http.StatusOK
}

// read reads a delivery. status is 0 if it is good.
func (a *double) read(body []byte) (d incoming, status int) {
	var value any
	switch err := json.Unmarshal(body, &value); {
	case err != nil && a.is("JSON crashes"):
		return d, http.StatusInternalServerError
	case err != nil:
		return d, http.StatusBadRequest
	}
	if _, list := value.([]any); list && a.is("list crashes") {
		return d, http.StatusInternalServerError
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if a.is("strict") {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(&d); err != nil {
		return d, http.StatusBadRequest
	}
	if d.Message.Content == nil && !a.is("content optional") {
		return d, http.StatusBadRequest
	}
	text := string(d.MCP)
	if text == "" && a.is("needs mcp") || d.Channel.Name == "" && a.is("needs name") || strings.HasPrefix(text, "{") && a.is("needs list") ||
		strings.HasPrefix(text, "[") && a.is("needs object") || text == "[]" && a.is("needs server") {
		return d, http.StatusBadRequest
	}
	return d, 0
}

// work answers a delivery.
func (a *double) work(d incoming) {
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.working--
	}()
	if a.is("says nothing") || a.is("ignores nameless") && d.Channel.Name == "" {
		return
	}
	if a.is("reports an error") {
		a.post(d, `{"type":"error","message":"no model"}`)
		return
	}
	if !a.is("no lifecycle") && !a.post(d, `{"type":"lifecycle","status":"processing"}`) && a.is("needs lifecycle") {
		return
	}
	a.sleep(100 * time.Millisecond) // thinks
	switch a.fault {
	case "floods":
		for range maxEvents {
			a.post(d, `{"type":"status","status":"thinking"}`)
		}
	case "unknown type":
		a.post(d, `{"type":"typing"}`)
	case "no type":
		a.post(d, `{"content":"hello"}`)
	case "bad members":
		a.post(d, `{"type":"status","text":"thinking"}`)
	case "list":
		a.post(d, `[{"type":"status","status":"thinking"}]`)
	case "two objects":
		a.post(d, `{"type":"status","status":"a"} {"type":"status","status":"b"}`)
	case "strays":
		e := d
		e.Callback = strings.Replace(e.Callback, "/inbox/", "/log/", 1)
		a.post(e, `{"type":"status","status":"thinking"}`)
	case "result first":
		a.post(d, `{"type":"tool_result","id":"1","content":"x"}`)
		a.post(d, `{"type":"tool_call","id":"1","name":"web","args":{}}`)
	}
	if a.is("message after idle") {
		a.post(d, `{"type":"lifecycle","status":"idle"}`)
	}
	a.speak(d)
	if !a.is("no lifecycle", "message after idle") {
		a.post(d, `{"type":"lifecycle","status":"idle"}`)
	}
}

// speak uses the tools of a delivery, and says something.
func (a *double) speak(d incoming) {
	said := false
	if server, given := pick(d.MCP); given && !a.is("no tools") {
		a.post(d, `{"type":"tool_call","id":"t","name":"get_messages","args":{}}`)
		said = a.useTools(server)
		a.post(d, `{"type":"tool_result","id":"t","content":"done"}`)
	}
	if said {
		return
	}
	if a.is("all at once") {
		var posting sync.WaitGroup
		posting.Go(func() { a.post(d, `{"type":"status","status":"done"}`) })
		posting.Go(func() { a.post(d, `{"type":"message","content":"hello"}`) })
		posting.Wait()
		return
	}
	a.post(d, `{"type":"message","content":"hello"}`)
}

// pick returns the first server of tools in either form.
func pick(text json.RawMessage) (one server, given bool) {
	var list []server
	switch {
	case len(text) == 0 || json.Unmarshal(text, &list) == nil && len(list) == 0:
		return one, false
	case len(list) > 0:
		return list[0], true
	}
	return one, json.Unmarshal(text, &one) == nil && one.URL != ""
}

// withHeaders adds headers to requests.
type withHeaders struct {
	http.RoundTripper
	headers map[string]string
}

func (w withHeaders) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	for name, value := range w.headers {
		r.Header.Set(name, value)
	}
	return w.RoundTripper.RoundTrip(r)
}

// useTools reads the channel with the SDK's client. It reports whether it has also said something.
func (a *double) useTools(s server) (said bool) {
	switch a.fault {
	case "no Authorization":
		s.Headers = nil
	case "own Authorization":
		s.Headers = map[string]string{"Authorization": "Bearer own"}
	case "other channel":
		s.URL += "x"
	}
	ctx, cancel := context.WithTimeout(a.ctx, time.Minute)
	defer cancel()
	session, err := mcp.NewClient(&mcp.Implementation{Name: "double", Version: "1"}, nil).Connect(ctx, &mcp.StreamableClientTransport{
		Endpoint: s.URL, DisableStandaloneSSE: true, MaxRetries: -1,
		HTTPClient: &http.Client{Transport: withHeaders{a.client.Transport, s.Headers}},
	}, nil)
	if err != nil {
		return false
	}
	defer func() { _ = session.Close() }()
	result, err := session.CallTool(ctx, &mcp.CallToolParams{Name: "get_messages", Arguments: map[string]any{"limit": 5}})
	if err != nil || result.IsError || !a.is("says by tool") {
		return false
	}
	result, err = session.CallTool(ctx, &mcp.CallToolParams{Name: "send_message", Arguments: map[string]any{"content": "hello"}})
	return err == nil && !result.IsError
}

// post posts an event, and repeats it while the callback fails. It reports whether the event was taken.
func (a *double) post(d incoming, body string) bool {
	for range 4 {
		status, err := a.postOnce(d.Callback, body)
		switch {
		case err == nil && status < 300:
			return true
		case err == nil && status < 500, a.is("drops"), a.ctx.Err() != nil:
			return false
		}
		if a.is("dies of 503") {
			a.mu.Lock()
			a.down = true
			a.mu.Unlock()
			return false
		}
		a.sleep(500 * time.Millisecond)
	}
	return false
}

func (a *double) postOnce(to, body string) (status int, err error) {
	r, err := http.NewRequestWithContext(a.ctx, http.MethodPost, to, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if !a.is("no Content-Type") {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := a.client.Do(r)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, errors.Join(err, response.Body.Close())
}
