package mcpserver_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/agora-relay/agora/cmd/agora/internal/mcpserver"
)

const token = "a-token-of-more-than-20-characters"

// serveHTTP serves the tools of a over HTTP until the test ends.
func (a *agent) serveHTTP() (url string) {
	a.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := mcpserver.New(a.options).RunHTTP(ctx, l, token); err != nil {
			a.t.Errorf("serving HTTP ended with %v", err)
		}
	})
	a.t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	return "http://" + l.Addr().String() + mcpserver.Path
}

// withToken adds the token to each request.
type withToken struct{ http.RoundTripper }

func (w withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return w.RoundTripper.RoundTrip(r)
}

// connectHTTP replaces the session of a by one over HTTP.
func (a *agent) connectHTTP() {
	a.t.Helper()
	a.stop()
	url := a.serveHTTP()
	transport := new(http.Transport)
	session, err := a.newClient().Connect(a.t.Context(), &mcp.StreamableClientTransport{Endpoint: url, MaxRetries: -1,
		HTTPClient: &http.Client{Transport: withToken{transport}}}, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	a.session = session
	a.stop = func() {
		_ = session.Close() // the server may have ended first
		transport.CloseIdleConnections()
	}
	a.t.Cleanup(a.stop)
}

// TestHTTP walks through a conversation over HTTP, with a restart of the relay in the middle.
func TestHTTP(t *testing.T) {
	r := startRelay(t)
	alice, bob := newAgent(t, r, usd, usd), newAgent(t, r, 0, 0)
	alice.connectHTTP()
	bob.connectHTTP()
	bob.offer("echo", 0.5)
	job := bob.nextJob(60)
	shown := alice.offers(alice.ask("echo"))
	r.restart()
	alice.call("accept_offer", acceptArgs(shown), nil)
	bob.call("deliver", deliverTo(job(), "over HTTP"), nil)
	if v := alice.offers(shown.Thread); v.State != "done" || !strings.Contains(v.Result.Text, "over HTTP") {
		t.Errorf("done: %+v", v)
	}
	alice.mu.Lock()
	defer alice.mu.Unlock()
	if len(alice.progress) == 0 {
		t.Error("no progress was reported")
	}
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

// TestHTTPGuard checks which requests reach the tools.
func TestHTTPGuard(t *testing.T) {
	r := startRelay(t)
	alice := newAgent(t, r, 0, 0)
	url := alice.serveHTTP()
	host := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), mcpserver.Path)
	_, port, _ := net.SplitHostPort(host)
	post := func(change func(*http.Request)) int {
		t.Helper()
		q, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(initialize))
		if err != nil {
			t.Fatal(err)
		}
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Accept", "application/json, text/event-stream")
		q.Header.Set("Authorization", "Bearer "+token)
		q.Close = true
		change(q)
		response, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		return response.StatusCode
	}
	for name, c := range map[string]struct {
		change func(*http.Request)
		status int
	}{
		"no token":         {func(q *http.Request) { q.Header.Del("Authorization") }, 401},
		"a wrong token":    {func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token+"x") }, 401},
		"another scheme":   {func(q *http.Request) { q.Header.Set("Authorization", "Basic "+token) }, 401},
		"a foreign page":   {func(q *http.Request) { q.Header.Set("Origin", "https://evil.example") }, 403},
		"a sandboxed page": {func(q *http.Request) { q.Header.Set("Origin", "null") }, 403},
		"a local page":     {func(q *http.Request) { q.Header.Set("Origin", "http://127.0.0.1:1") }, 403},
		"a rebound page":   {func(q *http.Request) { q.Host = "evil.example:" + port }, 403},
		"a rebound origin": {func(q *http.Request) { q.Host = "evil.example:" + port; q.Header.Set("Origin", "http://"+q.Host) }, 403},
		"another path":     {func(q *http.Request) { q.URL.Path = "/" }, 404},
		"a large body": {func(q *http.Request) {
			q.Body = io.NopCloser(bytes.NewReader(make([]byte, 2<<20)))
			q.ContentLength = -1
		}, 413},
		"localhost":         {func(q *http.Request) { q.Host = "localhost:" + port }, 200},
		"its own origin":    {func(q *http.Request) { q.Header.Set("Origin", "http://"+host) }, 200},
		"scheme in capital": {func(q *http.Request) { q.Header.Set("Authorization", "BEARER "+token) }, 200},
	} {
		if got := post(c.change); got != c.status {
			t.Errorf("%s: status %d, want %d", name, got, c.status)
		}
	}
	statuses := map[int]int{}
	for range 20 { // three sessions are open already
		statuses[post(func(*http.Request) {})]++
	}
	if statuses[200] != 13 || statuses[503] != 7 {
		t.Errorf("statuses of 20 more sessions: %v", statuses)
	}
}

// TestHTTPIsLocal checks that the tools are not served to other machines, or without a token.
func TestHTTPIsLocal(t *testing.T) {
	server := mcpserver.New(mcpserver.Options{})
	for address, token := range map[string]string{"0.0.0.0:0": token, "127.0.0.1:0": ""} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if err := server.RunHTTP(t.Context(), l, token); err == nil {
			t.Errorf("%s with the token %q is served", address, token)
		}
	}
}
