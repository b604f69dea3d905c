package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/storetest/engine"
)

func (a answer) wantLimit(t *testing.T, limit, retryAfter string) {
	t.Helper()
	a.want(t, 429, envelope.CodeRateLimited)
	if a.Details["limit"] != limit || a.header.Get("Retry-After") != retryAfter || a.Retryable == nil || !*a.Retryable {
		t.Errorf("%s with Retry-After %q; want %s and %q", a.body, a.header.Get("Retry-After"), limit, retryAfter)
	}
}

// unread is a request body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, errors.New("unread")
}

// TestLimitsComeBeforeReading sends each request to a relay whose limit of one request is used up. It must be refused
// before its body is read.
func TestLimitsComeBeforeReading(t *testing.T) {
	engine.OnlySQLite(t, "it is about HTTP, not about what is stored")
	racing.Skip(t, "one thing after another")
	once := relay.Rate{PerSecond: 0.5, Burst: 1}
	for _, asked := range []string{
		"POST /events", "POST /v1/messages", "POST /events?nonsense", "POST /nowhere", "POST //events", "POST /seed", "POST /health",
		"GET /events?cursor=0&timeout=0", "GET /events?before=end", "GET /events", "GET /v1/messages", "GET /threads/x", "GET /agents", "GET /agents/x", "GET /v1/agents",
		"GET /.well-known/agora.json", "GET /nowhere", "GET /events/", "PUT /events", "DELETE /x", "OPTIONS /events",
	} {
		t.Run(asked, func(t *testing.T) {
			h := newFront(t, limited(t, relay.Limits{PostsPerAddress: once, ReadsPerAddress: once}), httpapi.Options{Log: quiet, Demo: true}).Handler(false)
			method, target, _ := strings.Cut(asked, " ")
			first, other, limit := "GET", "POST", envelope.LimitReadsPerAddress
			if method == "POST" || method == "PUT" || method == "DELETE" {
				first, other, limit = other, first, envelope.LimitPostsPerAddress
			}
			call(t, h, httptest.NewRequest(first, "/nowhere", nil)).want(t, 404, envelope.CodeNotFound)
			call(t, h, httptest.NewRequest(method, target, unread{t})).wantLimit(t, limit, "2")
			// The other rate is counted separately.
			call(t, h, httptest.NewRequest(other, "/nowhere", nil)).want(t, 404, envelope.CodeNotFound)
		})
	}
}

// TestHealthIsAlwaysAnswered makes health checks from an address that has used up its limits.
func TestHealthIsAlwaysAnswered(t *testing.T) {
	once := relay.Rate{PerSecond: 0.01, Burst: 1}
	h := newFront(t, limited(t, relay.Limits{PostsPerAddress: once, ReadsPerAddress: once}), httpapi.Options{Log: quiet}).Handler(false)
	for range 1000 {
		get(t, h, "/health").want(t, 200, "")
	}
	if a := call(t, h, httptest.NewRequest("HEAD", "/health", nil)); a.status != 200 {
		t.Errorf("HEAD: %d", a.status)
	}
	get(t, h, "/nowhere").want(t, 404, envelope.CodeNotFound)
	for _, target := range []string{"/health/", "//health", "/nowhere", "/health%2f"} {
		get(t, h, target).wantLimit(t, envelope.LimitReadsPerAddress, "100")
	}
	call(t, h, httptest.NewRequest("OPTIONS", "/health", nil)).wantLimit(t, envelope.LimitReadsPerAddress, "100")
	call(t, h, httptest.NewRequest("PUT", "/health", nil)).want(t, 405, envelope.CodeMethodNotAllowed)
	call(t, h, httptest.NewRequest("POST", "/health", nil)).wantLimit(t, envelope.LimitPostsPerAddress, "100")
}

func TestDefaultRatesOverHTTP(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		h := newFront(t, start(t), httpapi.Options{Log: quiet}).Handler(false)
		for range 100 {
			post(t, h, "/events", []byte("{}")).want(t, 400, envelope.CodeUnsupportedVersion)
		}
		post(t, h, "/events", []byte("{}")).wantLimit(t, envelope.LimitPostsPerAddress, "1")
		for range 200 {
			get(t, h, "/.well-known/agora.json").want(t, 200, "")
		}
		get(t, h, "/.well-known/agora.json").wantLimit(t, envelope.LimitReadsPerAddress, "1")

		h = newFront(t, limited(t, relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited},
			BroadcastsPerAddress: relay.Rate{PerSecond: relay.Unlimited}}), httpapi.Options{Log: quiet}).Handler(false)
		alice := key(t)
		message := func() []byte {
			return sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical()
		}
		for range 40 {
			post(t, h, "/events", message()).want(t, 200, "")
		}
		post(t, h, "/events", message()).wantLimit(t, envelope.LimitPostsPerAgent, "1")
	})
}

func TestLocalRequestsAreExempt(t *testing.T) {
	racing.Skip(t, "one thing after another")
	r := limited(t, relay.Limits{PostsPerAddress: relay.Rate{PerSecond: 1}, ReadsPerAddress: relay.Rate{PerSecond: 1},
		PostsPerAgent: relay.Rate{PerSecond: 1}})
	h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(true)
	alice := key(t)
	for range 50 {
		body := sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical()
		for _, req := range []*http.Request{httptest.NewRequest("POST", "/events", bytes.NewReader(body)), httptest.NewRequest("GET", "/.well-known/agora.json", nil)} {
			req.RemoteAddr, req.Host = "127.0.0.1:9", "localhost:8789"
			call(t, h, req).want(t, 200, "")
		}
	}
}

// TestProxyOnThisMachineIsNotExempt checks requests of a trusted proxy that adds no header and sends a loopback name as
// Host, as some proxies do by default. They must not count as local, because they come from anybody.
func TestProxyOnThisMachineIsNotExempt(t *testing.T) {
	req := httptest.NewRequest("GET", "/health", nil)
	req.RemoteAddr, req.Host = "127.0.0.1:9", "127.0.0.1:8789"
	for proxy, local := range map[string]bool{"127.0.0.0/8": false, "10.0.0.1/32": true} {
		o := httpapi.Options{Proxies: httpapi.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix(proxy)}}}
		if got := httpapi.Peer(o, true, req); got.Local != local {
			t.Errorf("with the trusted proxy %s, a request over loopback is local: %v", proxy, got.Local)
		}
	}
}

func TestWaitingPollsOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := limited(t, relay.Limits{PollsPerAddress: 3})
		h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
		localHandler := newFront(t, r, httpapi.Options{Log: quiet}).Handler(true)
		for range 3 {
			go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/events?cursor=0", nil))
		}
		synctest.Wait()
		get(t, h, "/events?cursor=0").wantLimit(t, envelope.LimitPollsPerAddress, "5")
		get(t, h, "/events?cursor=0&timeout=0").want(t, 200, "")
		for addr, h := range map[string]http.Handler{"192.0.2.2:9": h, "127.0.0.1:9": localHandler} {
			req := httptest.NewRequest("GET", "/events?cursor=0&timeout=1", nil)
			req.RemoteAddr, req.Host = addr, "localhost"
			call(t, h, req).want(t, 200, "")
		}
		r.Drain()
	})
}

// TestConcurrentRequestsPerAddress sends requests whose bodies do not end, from one address, until its slots are used
// up. A slot is free again however its request ended, also with a panic.
func TestConcurrentRequestsPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWith(t, func(s relay.Store) relay.Store { return panicking{s} }, relay.Config{Limits: relay.Limits{RequestsPerAddress: 3}})
		h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
		localHandler := newFront(t, r, httpapi.Options{Log: quiet}).Handler(true)
		const document = "/.well-known/agora.json"
		for range 10 {
			get(t, h, "/agents").want(t, 500, envelope.CodeInternal)
			get(t, h, "/nothing").want(t, 404, envelope.CodeNotFound)
		}
		body, end := io.Pipe()
		for range 3 {
			go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/events", body))
		}
		synctest.Wait()
		get(t, h, document).wantLimit(t, envelope.LimitRequestsPerAddress, "5")
		for addr, h := range map[string]http.Handler{"192.0.2.2:9": h, "127.0.0.1:9": localHandler} {
			req := httptest.NewRequest("GET", document, nil)
			req.RemoteAddr, req.Host = addr, "localhost"
			call(t, h, req).want(t, 200, "")
		}
		get(t, h, "/health").want(t, 200, "") // health checks are not counted
		if err := end.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		get(t, h, document).want(t, 200, "")
	})
}

// TestClientAddress checks which address is taken as the client's, with and without proxies.
func TestClientAddress(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:aa::/48"), netip.MustParsePrefix("127.0.0.1/32")}
	for name, c := range map[string]struct {
		connection string
		forwarded  []string // X-Forwarded-For headers
		want       string
	}{
		"no proxy":                   {"192.0.2.1:9", nil, "192.0.2.1"},
		"not a trusted proxy":        {"192.0.2.1:9", []string{"198.51.100.1"}, "192.0.2.1"},
		"a proxy":                    {"10.0.0.1:9", []string{"198.51.100.1"}, "198.51.100.1"},
		"a proxy, mapped":            {"[::ffff:10.0.0.1]:9", []string{"198.51.100.1"}, "198.51.100.1"},
		"a proxy on this machine":    {"127.0.0.1:9", []string{"198.51.100.1"}, "198.51.100.1"},
		"another process here":       {"[::1]:9", []string{"198.51.100.1"}, "::1"},
		"a proxy without the header": {"10.0.0.1:9", nil, "10.0.0.1"},
		"an entry of the client":     {"10.0.0.1:9", []string{"203.0.113.7, 198.51.100.1"}, "198.51.100.1"},
		"in two headers":             {"10.0.0.1:9", []string{"203.0.113.7", "198.51.100.1"}, "198.51.100.1"},
		"two proxies":                {"10.0.0.1:9", []string{"203.0.113.7, 198.51.100.1, 2001:db8:aa::1"}, "198.51.100.1"},
		"two proxies, two headers":   {"10.0.0.1:9", []string{"203.0.113.7,198.51.100.1", "2001:db8:aa::1"}, "198.51.100.1"},
		"from a proxy itself":        {"10.0.0.1:9", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		"garbage":                    {"10.0.0.1:9", []string{"198.51.100.1, garbage"}, "10.0.0.1"},
		"garbage before a proxy":     {"10.0.0.1:9", []string{"198.51.100.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		"empty":                      {"10.0.0.1:9", []string{""}, "10.0.0.1"},
		"an empty entry":             {"10.0.0.1:9", []string{"198.51.100.1,"}, "10.0.0.1"},
		"with ports":                 {"10.0.0.1:9", []string{"198.51.100.1:4711"}, "198.51.100.1"},
		"IPv6":                       {"10.0.0.1:9", []string{"2001:db8::7"}, "2001:db8::7"},
		"IPv6 in brackets":           {"10.0.0.1:9", []string{"[2001:db8::7]"}, "2001:db8::7"},
		"IPv6 with a port":           {"10.0.0.1:9", []string{"[2001:db8::7]:4711"}, "2001:db8::7"},
		"mapped by the proxy":        {"10.0.0.1:9", []string{"::ffff:198.51.100.1"}, "198.51.100.1"},
		"a zone":                     {"[fe80::1%eth0]:9", nil, "fe80::1"},
		"not an address":             {"@", []string{"198.51.100.1"}, "invalid IP"},
		"spaces":                     {"10.0.0.1:9", []string{"  198.51.100.1 ,\t10.0.0.2 "}, "198.51.100.1"},
		"a name that looks trusted":  {"10.0.0.1:9", []string{"10.0.0.2.example"}, "10.0.0.1"},
		"one octet too many":         {"10.0.0.1:9", []string{"198.51.100.1, 10.0.0.1.2"}, "10.0.0.1"},
		"Forwarded is ignored":       {"10.0.0.1:9", nil, "10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest("GET", "/health", nil)
			req.RemoteAddr = c.connection
			req.Header["X-Forwarded-For"] = c.forwarded
			req.Header.Set("Forwarded", "for=203.0.113.9")
			if got := httpapi.Peer(httpapi.Options{Proxies: httpapi.Proxies{Networks: proxies}}, false, req); got.Addr.String() != c.want || got.Local {
				t.Errorf("%v, want %s", got, c.want)
			}
		})
	}
}

// TestForwardedForOfStrangersIsIgnored checks that a client cannot evade a rate limit by inventing addresses, and that
// each client of a trusted proxy has its own rate limit.
func TestForwardedForOfStrangersIsIgnored(t *testing.T) {
	racing.Skip(t, "one thing after another")
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 10}})
	h := newFront(t, r, httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}}}).Handler(false)
	ask := func(connection, forwarded string) answer {
		req := httptest.NewRequest("GET", "/.well-known/agora.json", nil)
		req.RemoteAddr = connection
		req.Header.Set("X-Forwarded-For", forwarded)
		return call(t, h, req)
	}
	served := func(n int, ask func(i int) answer) {
		t.Helper()
		got := 0
		for i := range 50 {
			if ask(i).status == 200 {
				got++
			}
		}
		if got != n {
			t.Errorf("%d requests were answered, want %d", got, n)
		}
	}
	served(10, func(i int) answer { return ask("192.0.2.66:9", fmt.Sprint("198.51.100.", i)) })
	served(10, func(i int) answer { return ask("10.0.0.1:9", fmt.Sprintf("198.51.100.%d, 192.0.2.77", i)) })
	served(50, func(i int) answer { return ask("10.0.0.1:9", fmt.Sprint("203.0.113.", i)) })
	served(10, func(i int) answer { return ask("10.0.0.1:9", fmt.Sprintf("2001:db8::%x", i+1)) })
	served(10, func(i int) answer { return ask(fmt.Sprintf("[2001:db8:1::%x]:9", i+1), "") })
}

func TestWellKnownNamesTheLimits(t *testing.T) {
	racing.Skip(t, "one thing after another")
	ask := func(r *relay.Relay, o httpapi.Options) (limits map[string]json.RawMessage, features string) {
		t.Helper()
		var document struct {
			Limits   map[string]json.RawMessage `json:"limits"`
			Features []string                   `json:"features"`
		}
		a := get(t, newFront(t, r, o).Handler(false), "/.well-known/agora.json")
		if err := json.Unmarshal(a.body, &document); err != nil {
			t.Fatal(err)
		}
		return document.Limits, strings.Join(document.Features, " ")
	}
	limits, features := ask(start(t), httpapi.Options{})
	for name, want := range map[string]string{"connectionsPerAddress": "256", "pollsPerAddress": "32", "polls": "10000", "writesPerAddress": "4",
		"costlyNumbers": "1000",
		"rates":         `{"broadcastsPerAddress":{"perSecond":5,"burst":20},"newConnectionsPerAddress":{"perSecond":200,"burst":400},"postsPerAddress":{"perSecond":50,"burst":100},"postsPerAgent":{"perSecond":20,"burst":40},"readsPerAddress":{"perSecond":100,"burst":200}}`} {
		if string(limits[name]) != want {
			t.Errorf("%s is %s, want %s", name, limits[name], want)
		}
	}
	if features != "cursor before sse broadcast threads agents duplicate-receipts openapi bulk home" {
		t.Error(features)
	}
	none := relay.Rate{PerSecond: relay.Unlimited}
	limits, features = ask(limited(t, relay.Limits{PostsPerAddress: none, ReadsPerAddress: none,
		PostsPerAgent: relay.Rate{PerSecond: 0.5}, BroadcastsPerAddress: none, NewConnectionsPerAddress: none, PollsPerAddress: relay.Unlimited, Polls: relay.Unlimited}), httpapi.Options{Origins: []string{"*"}})
	if _, named := limits["polls"]; named || string(limits["rates"]) != `{"postsPerAgent":{"perSecond":0.5,"burst":1}}` || limits["pollsPerAddress"] != nil {
		t.Errorf("%s", limits)
	}
	if !strings.HasSuffix(features, " cors") {
		t.Error(features)
	}
	limits, _ = ask(limited(t, relay.Limits{PostsPerAddress: none, ReadsPerAddress: none, PostsPerAgent: none, BroadcastsPerAddress: none,
		NewConnectionsPerAddress: none}), httpapi.Options{})
	if limits["rates"] != nil {
		t.Errorf("rates: %s", limits["rates"])
	}
}
