package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver"
	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver/spending"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/jobs/credits"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
)

// testRelay is a relay on a loopback socket that can be restarted.
type testRelay struct {
	t        *testing.T
	URL      string
	database string
	key      didkey.Key
	stop     func()
	// filter answers a request itself and returns true, or returns false; nil: all requests reach the relay.
	mu     sync.Mutex
	filter func(http.ResponseWriter, *http.Request) bool
}

func startRelay(t *testing.T) *testRelay {
	t.Helper()
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	r := &testRelay{t: t, database: filepath.Join(t.TempDir(), "agora.db"), key: key}
	r.start("127.0.0.1:0")
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *testRelay) start(address string) {
	r.t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		r.t.Fatal(err)
	}
	r.URL = "http://" + l.Addr().String()
	core, stopRelay := gatetest.Run(r.t, r.database, sqlite.Options{}, relay.Config{Key: r.key, Origin: r.URL})
	handler := httpapi.New(core, httpapi.Options{Log: slog.New(slog.DiscardHandler)}).Handler(true)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.mu.Lock()
		filter := r.filter
		r.mu.Unlock()
		if filter == nil || !filter(w, q) {
			handler.ServeHTTP(w, q)
		}
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(l) }) // it ends when the server is closed
	r.stop = sync.OnceFunc(func() {
		core.Drain()
		_ = server.Close()
		serving.Wait()
		stopRelay()
	})
}

// restart stops the relay and starts it again over the same database at the same address.
func (r *testRelay) restart() {
	r.stop()
	r.start(strings.TrimPrefix(r.URL, "http://"))
}

func (r *testRelay) setFilter(f func(http.ResponseWriter, *http.Request) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.filter = f
}

// agent is an identity with its files, and a session of an MCP client with its server.
type agent struct {
	t       *testing.T
	did     didkey.DID
	key     didkey.Key
	book    *spending.Book
	client  *client.Client
	options mcpserver.Options
	session *mcp.ClientSession
	stop    func()

	mu       sync.Mutex
	progress []string
}

func newAgent(t *testing.T, r *testRelay, perJob, perDay credits.Amount) *agent {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "agent.key")
	key, err := didkey.LoadOrCreate(file)
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{t: t, did: key.DID(), key: key}
	if a.book, err = spending.Open(file, key.DID(), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.book.SetLimits(t.Context(), func(l *spending.Limits) { l.PerJob, l.PerDay = perJob, perDay }); err != nil {
		t.Fatal(err)
	}
	if a.client, err = client.New(r.URL, key, client.Options{Attempts: 2}); err != nil {
		t.Fatal(err)
	}
	a.options = mcpserver.Options{Client: a.client, DID: key.DID(), Relay: r.URL, Book: a.book, Folder: folder,
		RaiseLimits: "agora mcp limits --key alice.key", Settle: 50 * time.Millisecond, Patience: 50 * time.Millisecond}
	a.connect()
	t.Cleanup(func() { a.stop() })
	return a
}

// connect starts a server over the agent's files, and a session with it.
func (a *agent) connect() {
	a.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ours, theirs := mcp.NewInMemoryTransports()
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := mcpserver.New(a.options).Run(ctx, theirs); err != nil {
			a.t.Errorf("the server ended with %v", err)
		}
	})
	session, err := a.newClient().Connect(ctx, ours, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	a.session = session
	a.stop = sync.OnceFunc(func() {
		_ = session.Close() // the server may have ended first
		cancel()
		serving.Wait()
	})
}

func (a *agent) newClient() *mcp.Client {
	return mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.progress = append(a.progress, r.Params.Message)
		}})
}

// reconnect ends the server and starts another one over the same files.
func (a *agent) reconnect() {
	a.stop()
	a.connect()
}

// try calls a tool. It decodes the structured answer into out, unless out is nil. isError reports whether the tool
// answered with an error.
func (a *agent) try(tool string, args map[string]any, out any) (text string, isError bool) {
	a.t.Helper()
	params := &mcp.CallToolParams{Name: tool, Arguments: args}
	params.SetProgressToken("p")
	result, err := a.session.CallTool(a.t.Context(), params)
	if err != nil {
		a.t.Fatalf("%s: %v", tool, err)
	}
	for _, c := range result.Content {
		content, ok := c.(*mcp.TextContent)
		if !ok {
			a.t.Fatalf("%s answers with %T", tool, c)
		}
		text += content.Text
	}
	if out != nil && !result.IsError {
		encoded, err := json.Marshal(result.StructuredContent)
		if err == nil {
			err = json.Unmarshal(encoded, out)
		}
		if err != nil {
			a.t.Fatalf("%s answers with %v: %v", tool, result.StructuredContent, err)
		}
	}
	return text, result.IsError
}

// call does the same as try, for a tool that must succeed.
func (a *agent) call(tool string, args map[string]any, out any) (text string) {
	a.t.Helper()
	text, isError := a.try(tool, args, out)
	if isError {
		a.t.Fatalf("%s %v failed: %s", tool, args, text)
	}
	return text
}

// refused does the same as try, for a tool that must fail. It checks that the error has all these words.
func (a *agent) refused(tool string, args map[string]any, words ...string) {
	a.t.Helper()
	text, isError := a.try(tool, args, nil)
	for _, word := range words {
		if !isError || !strings.Contains(text, word) {
			a.t.Errorf("%s %v answers %q, want an error with %q", tool, args, text, word)
		}
	}
}

func (a *agent) reserved() credits.Amount {
	a.t.Helper()
	status, err := a.book.Status(a.t.Context())
	if err != nil {
		a.t.Fatal(err)
	}
	return status.Reserved
}

// foreignText and requestView are the parts of the answers that the tests use.
type foreignText struct {
	From string `json:"from"`
	Text string `json:"untrusted_text"`
	Cut  int    `json:"cut_bytes"`
	Rest string `json:"rest"`
}

type requestView struct {
	Thread string `json:"thread"`
	State  string `json:"state"`
	Offers []struct {
		Offer    string      `json:"offer"`
		Agent    string      `json:"agent"`
		PriceUSD *float64    `json:"price_usd"`
		Allowed  bool        `json:"allowed"`
		WhyNot   string      `json:"why_not"`
		Payload  foreignText `json:"payload"`
	} `json:"offers"`
	Agent   string       `json:"agent"`
	Result  *foreignText `json:"result"`
	Problem *foreignText `json:"problem"`
}

type jobView struct {
	Waiting  bool         `json:"waiting"`
	Thread   string       `json:"thread"`
	ThreadID *foreignText `json:"thread_id"`
	Client   string       `json:"client"`
	Intent   string       `json:"intent"`
	Request  *foreignText `json:"request"`
}

// offer declares one service.
func (a *agent) offer(intent string, price float64) {
	a.t.Helper()
	a.call("offer_work", map[string]any{"name": "Bob", "services": []any{map[string]any{"intent": intent, "price_usd": price,
		"plan": "as fast as I can", "eta_seconds": 2}}}, nil)
}

// nextJob starts to wait for a job, and returns a function that returns it.
func (a *agent) nextJob(seconds int) (wait func() jobView) {
	done := make(chan jobView, 1)
	go func() { // ends with the call
		var job jobView
		a.call("next_job", map[string]any{"wait_seconds": seconds}, &job)
		done <- job
	}()
	return func() jobView {
		a.t.Helper()
		select {
		case job := <-done:
			return job
		case <-a.t.Context().Done():
			a.t.Fatal("next_job does not return")
			return jobView{}
		}
	}
}

// work does all jobs until the test ends.
func (a *agent) work(output any) {
	ctx, stop := context.WithCancel(context.Background())
	var working sync.WaitGroup
	call := func(tool string, args map[string]any, out any) bool {
		result, err := a.session.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args})
		if ctx.Err() != nil {
			return false
		}
		if err == nil && result.IsError {
			err = errors.New(result.Content[0].(*mcp.TextContent).Text)
		}
		encoded, _ := json.Marshal(result.StructuredContent) // it was decoded from JSON
		if err = errors.Join(err, json.Unmarshal(encoded, out)); err != nil {
			a.t.Errorf("%s: %v", tool, err)
		}
		return err == nil
	}
	working.Go(func() {
		for {
			var job jobView
			if !call("next_job", map[string]any{"wait_seconds": 20}, &job) ||
				!job.Waiting && !call("deliver", deliverTo(job, output), new(struct{})) {
				return
			}
		}
	})
	a.t.Cleanup(func() {
		stop()
		working.Wait()
	})
}

func deliverTo(job jobView, output any) map[string]any {
	return map[string]any{"thread": job.Thread, "client": job.Client, "output": output}
}

const usd = credits.One

// resource reads a resource.
func (a *agent) resource(uri string) string {
	a.t.Helper()
	result, err := a.session.ReadResource(a.t.Context(), &mcp.ReadResourceParams{URI: uri})
	if err != nil || len(result.Contents) != 1 {
		a.t.Fatalf("%s: %v", uri, err)
	}
	return result.Contents[0].Text
}
