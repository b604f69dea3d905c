package httpapi_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// start runs a relay over a new database until the test ends.
func start(t testing.TB) *relay.Relay {
	t.Helper()
	return startWrapped(t, asIs)
}

// startWrapped runs a relay whose store is a new database, wrapped by wrap.
func startWrapped(t testing.TB, wrap func(relay.Store) relay.Store) *relay.Relay {
	t.Helper()
	return startWith(t, wrap, relay.Config{})
}

// limited runs a relay with these limits.
func limited(t *testing.T, l relay.Limits) *relay.Relay {
	t.Helper()
	return startWith(t, asIs, relay.Config{Limits: l})
}

// unlimited runs a relay without limits.
func unlimited(t testing.TB) *relay.Relay {
	t.Helper()
	return startWith(t, asIs, relay.Config{Limits: noLimits})
}

var noRate = relay.Rate{PerSecond: relay.Unlimited}

// noLimits turns off all limits.
var noLimits = relay.Limits{PostsPerAddress: noRate, ReadsPerAddress: noRate, PostsPerAgent: noRate,
	ConnectionsPerAddress: relay.Unlimited, RequestsPerAddress: relay.Unlimited, PollsPerAddress: relay.Unlimited,
	Polls: relay.Unlimited}

// asIs returns the store unwrapped; see startWrapped.
func asIs(s relay.Store) relay.Store { return s }

// startWith runs a relay with this configuration, to which it adds the store, a key and a logger.
func startWith(t testing.TB, wrap func(relay.Store) relay.Store, c relay.Config) *relay.Relay {
	t.Helper()
	if engine.InBubble() {
		engine.OnlySQLite(t, "it waits in synthetic time, and both stores leave waiting to the relay")
	}
	store, err := engine.Open(t, filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 22})
	if err != nil {
		t.Fatal(err)
	}
	c.Store, c.Key, c.Log = wrap(store), key(t), quiet
	r, err := relay.New(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(engine.Run(t, r, store))
	return r
}

// clock is a relay's clock. It shows the real time plus an offset, which a test may change while the relay runs.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.offset.Load())) }

func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

var quiet = slog.New(slog.DiscardHandler)

func key(t testing.TB) didkey.Key {
	t.Helper()
	k, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t testing.TB, k didkey.Key, d envelope.Draft) *envelope.Envelope {
	t.Helper()
	e, err := d.Sign(k, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// answer is an answer of the relay, with the members of all kinds of answers.
type answer struct {
	status int
	header http.Header
	body   []byte

	OK        *bool             `json:"ok"`
	Error     envelope.Code     `json:"error"`
	Message   string            `json:"message"`
	Retryable *bool             `json:"retryable"`
	Details   map[string]any    `json:"details"`
	ID        string            `json:"id"`
	Cursor    string            `json:"cursor"`
	Duplicate bool              `json:"duplicate"`
	Events    []json.RawMessage `json:"events"`
	HasMore   bool              `json:"hasMore"`
	LastTS    string            `json:"lastTs"`
	After     string            `json:"after"`
	Count     int               `json:"count"`
	Expired   *int              `json:"expired"`
	Agents    []json.RawMessage `json:"agents"`
}

func call(t testing.TB, h http.Handler, req *http.Request) answer {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	a := answer{status: w.Code, header: w.Header(), body: w.Body.Bytes()}
	if err := json.Unmarshal(a.body, &a); err != nil || a.OK == nil {
		t.Fatalf("%s %s: the answer is not JSON of the relay: %q", req.Method, req.URL, a.body)
	}
	for name, want := range map[string]string{"Content-Type": "application/json", "Cache-Control": "no-store",
		"X-Content-Type-Options": "nosniff"} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s %s: %s is %q, want %q", req.Method, req.URL, name, got, want)
		}
	}
	if *a.OK != (a.status == 200) || !*a.OK && (a.Error == "" || a.Message == "" || a.Retryable == nil) {
		t.Errorf("%s %s: status %d with %s", req.Method, req.URL, a.status, a.body)
	}
	return a
}

func get(t testing.TB, h http.Handler, target string) answer {
	t.Helper()
	return call(t, h, httptest.NewRequest("GET", target, nil))
}

func post(t testing.TB, h http.Handler, target string, body []byte) answer {
	t.Helper()
	return call(t, h, httptest.NewRequest("POST", target, bytes.NewReader(body)))
}

func (a answer) want(t testing.TB, status int, code envelope.Code) {
	t.Helper()
	if a.status != status || a.Error != code {
		t.Errorf("got %d %s (%s), want %d %s", a.status, a.Error, a.Message, status, code)
	}
}

func TestPostAndRead(t *testing.T) {
	h := newFront(t, start(t), httpapi.Options{}).Handler(false)
	client, agent := key(t), key(t)
	e := sign(t, client, envelope.Draft{Thread: "t1", Recipient: agent.DID(),
		Payload: envelope.Request{RequestID: "r1", Intent: "echo", Params: json.RawMessage(`{"html":"<b>&</b>","n":1e3}`)}})

	var pretty bytes.Buffer
	if err := json.Indent(&pretty, e.Canonical(), "", "\t"); err != nil {
		t.Fatal(err)
	}
	wrapped := fmt.Appendf(nil, `{"envelope":%s}`, e.Canonical())
	for i, c := range []struct {
		path string
		body []byte
	}{{"/events", pretty.Bytes()}, {"/events", e.Canonical()}, {"/v1/messages", wrapped}} {
		a := post(t, h, c.path, c.body)
		a.want(t, 200, "")
		if a.ID != e.ID || a.Duplicate != (i > 0) || !strings.HasSuffix(a.Cursor, "-1") || !bytes.Contains(a.body, []byte(`"state":"PENDING"`)) {
			t.Errorf("post %d: %s", i, a.body)
		}
	}
	for _, path := range []string{"/events", "/v1/messages"} {
		a := get(t, h, path+"?cursor=0&timeout=0&recipient="+string(agent.DID()))
		a.want(t, 200, "")
		if len(a.Events) != 1 || !bytes.Equal(a.Events[0], e.Canonical()) || !bytes.Contains(a.body, e.Canonical()) {
			t.Errorf("delivered %s, signed %s", a.body, e.Canonical())
		}
		if a.LastTS != e.TS.UTC().Format(time.RFC3339Nano) || a.HasMore {
			t.Errorf("%s", a.body)
		}
	}
	since := "2026-01-01T00:00:00+08:00"
	a := get(t, h, "/events?timeout=0&recipient="+string(client.DID())+"&since="+url.QueryEscape(since))
	a.want(t, 200, "")
	if len(a.Events) != 0 || a.LastTS != since || !bytes.Contains(a.body, []byte(`"events":[]`)) {
		t.Errorf("the lastTs of an empty answer is not the since of the request: %s", a.body)
	}
	a = get(t, h, "/threads/t1?client="+string(client.DID()))
	a.want(t, 200, "")
	if len(a.Events) != 1 || a.Expired == nil || !bytes.Contains(a.body, []byte(`"deadline":"20`)) {
		t.Errorf("%s", a.body)
	}
}

func TestRefusals(t *testing.T) {
	h := newFront(t, start(t), httpapi.Options{}).Handler(false)
	did := string(key(t).DID())
	for _, c := range []struct {
		method, target, body string
		status               int
		code                 envelope.Code
	}{
		{"POST", "/events", "", 400, envelope.CodeInvalidRequest},
		{"POST", "/events", "[]", 400, envelope.CodeInvalidRequest},
		{"POST", "/events", "{}", 400, envelope.CodeUnsupportedVersion},
		{"POST", "/events", strings.Repeat("[", 100), 400, envelope.CodeInvalidRequest},
		{"POST", "/events", strings.Repeat(" ", 128<<10+1), 413, envelope.CodePayloadTooLarge},
		{"POST", "/events?x=1", "{}", 400, envelope.CodeInvalidRequest},
		{"PUT", "/events", "", 405, envelope.CodeMethodNotAllowed},
		{"HEAD", "/events", "", 405, envelope.CodeMethodNotAllowed},
		{"GET", "/events?cursor=0&limit=%2B5", "", 400, envelope.CodeInvalidRequest},
		{"OPTIONS", "/events", "", 405, envelope.CodeMethodNotAllowed},
		{"POST", "//events", "{}", 404, envelope.CodeNotFound},
		{"POST", "/events/", "{}", 404, envelope.CodeNotFound},
		{"POST", "/x/../events", "{}", 404, envelope.CodeNotFound},
		{"GET", "/", "", 404, envelope.CodeNotFound},
		{"GET", "/events", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&since=2026-01-01T00:00:00Z", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=00000001-1", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&cursor=0", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&recipent=" + did, "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&recipient=" + did + ";x", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&recipient=", "", 400, envelope.CodeInvalidDID},
		{"GET", "/events?cursor=0&sender=did:web:x", "", 400, envelope.CodeInvalidDID},
		{"GET", "/events?cursor=0&type=request", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&thread=a%20b", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&broadcast=yes", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&timeout=-1", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&timeout=NaN", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&timeout=1s", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&limit=0", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?cursor=0&limit=1001", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?before=", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?before=END", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?before=00000001-1", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?before=end&limit=0", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?before=end&recipent=" + did, "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?before=end&before=end", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/agents?before=end", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?since=2026-01-01", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/events?since=2026-01-01T00:00:00+08:00", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/threads/nope", "", 404, envelope.CodeThreadNotFound},
		{"GET", "/threads/nope?client=x", "", 400, envelope.CodeInvalidDID},
		{"GET", "/agents?online=1", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/agents?cursor=x", "", 400, envelope.CodeInvalidRequest},
		{"GET", "/agents/" + did, "", 404, envelope.CodeAgentNotFound},
		{"GET", "/agents/nobody", "", 400, envelope.CodeInvalidDID},
	} {
		t.Run(c.method+" "+c.target, func(t *testing.T) {
			a := call(t, h, httptest.NewRequest(c.method, c.target, strings.NewReader(c.body)))
			a.want(t, c.status, c.code)
			if a.status == 405 && a.header.Get("Allow") != "GET, POST" {
				t.Errorf("Allow: %q", a.header.Get("Allow"))
			}
		})
	}
	t.Run("Content-Encoding", func(t *testing.T) {
		req := httptest.NewRequest("POST", "/events", strings.NewReader("{}"))
		req.Header.Set("Content-Encoding", "gzip")
		call(t, h, req).want(t, 415, envelope.CodeUnsupportedMedia)
	})
	t.Run("a + that means a space is explained", func(t *testing.T) {
		if a := get(t, h, "/events?since=2026-01-01T00:00:00+08:00"); !strings.Contains(a.Message, "%2B") {
			t.Errorf("%s", a.Message)
		}
	})
}

func TestSinceFarFromToday(t *testing.T) {
	r := start(t)
	h := newFront(t, r, httpapi.Options{}).Handler(false)
	post(t, h, "/events", sign(t, key(t), envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical()).want(t, 200, "")
	for since, want := range map[string]int{"0001-01-01T00:00:00Z": 1, "1677-01-01T00:00:00Z": 1, "9999-12-31T23:59:59Z": 0} {
		a := get(t, h, "/events?timeout=0&since="+since)
		a.want(t, 200, "")
		if len(a.Events) != want {
			t.Errorf("since %s: %d events, want %d", since, len(a.Events), want)
		}
	}
}

// TestSeedIsLocal checks which requests count as local. They may use POST /seed. TestSeedFromPages has the requests of
// web pages.
func TestSeedIsLocal(t *testing.T) {
	racing.Skip(t, "one thing after another")
	r := start(t)
	local := setting{httpapi.Options{Log: quiet}, true}
	public := setting{httpapi.Options{Log: quiet, PublicURL: "https://relay.example"}, true}
	demo := public
	demo.Demo = true
	trusting := setting{httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}}, true}
	type test struct {
		options      setting
		peer, host   string
		header, text string
		change       func(*http.Request)
		want         int
	}
	tests := map[string]test{
		"loopback":               {options: local, want: 200},
		"loopback 6":             {options: local, peer: "[::1]:9", host: "[::1]:8789", want: 200},
		"loopback, mapped":       {options: local, peer: "[::ffff:127.0.0.1]:9", want: 200},
		"a request of a browser": {options: local, header: "User-Agent", text: "Mozilla/5.0", want: 200},
		"keep-alive":             {options: local, header: "Connection", text: "keep-alive", want: 200},
		"foreign Host":           {options: local, host: "evil.example", want: 403},
		"no Host":                {options: local, host: "-", want: 403},
		"another machine":        {options: local, peer: "192.0.2.1:9", want: 404},
		"on all interfaces":      {options: setting{httpapi.Options{Log: quiet}, false}, want: 404},
		"with LimitLocal":        {options: setting{httpapi.Options{Log: quiet, LimitLocal: true}, true}, want: 404},
		"from a trusted proxy":   {options: trusting, want: 404},
		"HTTP/1.0, like nginx":   {options: local, change: func(r *http.Request) { r.ProtoMinor = 0 }, want: 404},
		"close, like nginx":      {options: local, change: func(r *http.Request) { r.Close = true }, want: 404},
		"a foreign web page":     {options: local, header: "Origin", text: "http://evil.example", want: 403},
		"typed into a browser":   {options: local, header: "Sec-Fetch-Site", text: "none", want: 404},
		"public relay":           {options: public, want: 404},
		"public relay, own name": {options: public, host: "relay.example", want: 404},
		"demo":                   {options: demo, peer: "192.0.2.1:9", host: "relay.example", want: 200},
	}
	for _, header := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Anything", "Via", "X-Real-Ip", "X-Client-Ip",
		"X-Cluster-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "Cdn-Loop", "Proxy-Connection", "X-Envoy-External-Address"} {
		tests["with "+header] = test{options: local, header: header, text: "for=192.0.2.1", want: 404}
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest("POST", "/seed", nil)
			req.RemoteAddr, req.Host = cmp.Or(c.peer, "127.0.0.1:9"), strings.TrimPrefix(cmp.Or(c.host, "localhost:8789"), "-")
			if c.header != "" {
				req.Header.Set(c.header, c.text)
			}
			if c.change != nil {
				c.change(req)
			}
			a := call(t, c.options.handler(t, r), req)
			if a.status != c.want || a.status == 200 && a.Count != 15 {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
}

func TestInternalErrorsAreNotShown(t *testing.T) {
	var log bytes.Buffer
	r := startWrapped(t, func(s relay.Store) relay.Store { return &fragile{Store: s, fails: true} })
	h := newFront(t, r, httpapi.Options{Log: slog.New(slog.NewJSONHandler(&log, nil))}).Handler(false)
	a := post(t, h, "/events", sign(t, key(t), envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical())
	a.want(t, 500, envelope.CodeInternal)
	if !*a.Retryable || bytes.Contains(a.body, []byte("secret")) || !strings.Contains(log.String(), "secret") {
		t.Errorf("answer %s, log %s", a.body, log.String())
	}
	get(t, h, "/health").want(t, 200, "")
	r.Drain()
	get(t, h, "/events?cursor=0&timeout=20").want(t, 200, "") // does not wait
	a = get(t, h, "/agents")
	a.want(t, 503, envelope.CodeUnavailable)
	if a.header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	get(t, h, "/health").want(t, 503, envelope.CodeUnavailable)
}

// TestHealthTellsProtocolAndBuildApart checks that /health and the well-known document name the version of the protocol
// and that of the program.
func TestHealthTellsProtocolAndBuildApart(t *testing.T) {
	h := newFront(t, start(t), httpapi.Options{Log: quiet, Build: "7.8.9"}).Handler(false)
	for _, target := range []string{"/health", "/.well-known/agora.json"} {
		a := get(t, h, target)
		a.want(t, 200, "")
		var got struct{ Protocol, Version, Build string }
		if err := json.Unmarshal(a.body, &got); err != nil {
			t.Fatal(err)
		}
		if got.Protocol != "1.0" || got.Version != "1.0.0" || got.Build != "7.8.9" {
			t.Errorf("%s: %+v", target, got)
		}
	}
}

// TestHealthOfANode checks that a node describes itself when it is well and when it is not.
func TestHealthOfANode(t *testing.T) {
	r := start(t)
	const node = `{"state":"ok","role":"leader","durability":"standby","last":7,"lag":0}`
	h := newFront(t, r, httpapi.Options{Log: quiet, Node: func() any { return json.RawMessage(node) }}).Handler(false)
	a := get(t, h, "/health")
	a.want(t, 200, "")
	if !strings.Contains(string(a.body), `"node":`+node) {
		t.Errorf("healthy: %s", a.body)
	}
	r.Drain()
	a = get(t, h, "/health")
	a.want(t, 503, envelope.CodeUnavailable)
	if !strings.Contains(string(a.body), `"node":`+node) || a.header.Get("Retry-After") == "" {
		t.Errorf("not healthy: %s, Retry-After %q", a.body, a.header.Get("Retry-After"))
	}
}

func TestPanicIsAnswered(t *testing.T) {
	r := startWrapped(t, func(s relay.Store) relay.Store { return panicking{s} })
	a := get(t, newFront(t, r, httpapi.Options{Log: quiet}).Handler(false), "/agents")
	a.want(t, 500, envelope.CodeInternal)
}

type panicking struct{ relay.Store }

func (panicking) Agents(context.Context, relay.AgentQuery) (relay.AgentPage, error) { panic("boom") }

// setting is the configuration of a handler in the tests of where requests come from.
type setting struct {
	httpapi.Options
	loopback bool
}

func (s setting) handler(t testing.TB, r *relay.Relay) http.Handler {
	return newFront(t, r, s.Options).Handler(s.loopback)
}

// pipeListener is a listener of in-memory pipes instead of sockets, so that it works with the fake time of synctest.
type pipeListener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
}

// Addresses of listeners.
var (
	loopback      = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
	allInterfaces = &net.TCPAddr{IP: net.IPv4zero}
)

func newPipeListener(addr net.Addr) *pipeListener {
	return &pipeListener{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return l.addr }

func (l *pipeListener) dial() net.Conn {
	ours, theirs := net.Pipe()
	l.conns <- theirs
	return ours
}

func serve(t testing.TB, r *relay.Relay) (l *pipeListener, stop func()) {
	t.Helper()
	return serveOn(t, allInterfaces, r, httpapi.Options{Log: quiet})
}

// serveOn runs a Front with one listener at addr until stop is called, or the test ends. stop waits until Run has
// returned.
func serveOn(t testing.TB, addr net.Addr, r *relay.Relay, o httpapi.Options) (l *pipeListener, stop func()) {
	t.Helper()
	l = newPipeListener(addr)
	return l, runFront(t, newFront(t, r, o), httpapi.Listener{Listener: l})
}

func runFront(t testing.TB, f *httpapi.Front, listeners ...httpapi.Listener) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx, listeners...) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func readAll(t testing.TB, c net.Conn) string {
	t.Helper()
	text, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestOversizedPage reads many events with equal timestamps by since. Rule 3 of since does not allow a page to end
// between them. So all of them come in one answer, sent in pieces, although the answer exceeds the limit and the 4 MiB
// of other pages.
func TestOversizedPage(t *testing.T) {
	racing.Skip(t, "one thing after another")
	h := newFront(t, unlimited(t), httpapi.Options{}).Handler(false)
	me, ts := key(t).DID(), time.Now()
	big := json.RawMessage(`"` + strings.Repeat("x", 120<<10) + `"`)
	const count = 48 // about 6 MB
	for range count {
		e := sign(t, key(t), envelope.Draft{TS: ts, Recipient: me, Payload: envelope.Request{Intent: "echo", Params: big}})
		post(t, h, "/events", e.Canonical()).want(t, 200, "")
	}
	a := get(t, h, "/events?timeout=0&limit=1&recipient="+string(me)+"&since=2026-01-01T00:00:00Z")
	if len(a.Events) != count || a.HasMore || a.LastTS == "" || !strings.HasSuffix(a.Cursor, fmt.Sprint("-", count)) {
		t.Errorf("%d events of %d bytes, more %v, cursor %s", len(a.Events), len(a.body), a.HasMore, a.Cursor)
	}
	if a.header.Get("Content-Length") != "" {
		t.Error("the answer has a Content-Length, so all of it was in memory")
	}
	a = get(t, h, "/events?timeout=0&recipient="+string(me)+"&cursor=0")
	if len(a.body) > 5<<20 || !a.HasMore {
		t.Errorf("a page by cursor has %d bytes", len(a.body))
	}
	newest := get(t, h, "/events?recipient="+string(me)+"&before=end")
	if len(newest.body) > 5<<20 || len(newest.Events) != len(a.Events) || !newest.HasMore ||
		newest.header.Get("Content-Length") != "" {
		t.Errorf("a page before the end has %d events, %d bytes, and the header %v", len(newest.Events), len(newest.body),
			newest.header)
	}
}
