package httpapi_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// These tests check which web pages may read answers, and which requests of web pages are refused.

// corsHeaders returns the Access-Control-Allow headers of an answer as one line.
func corsHeaders(h http.Header) string {
	var text []string
	for _, name := range []string{"Origin", "Methods", "Headers", "Credentials", "Private-Network"} {
		if value := h.Get("Access-Control-Allow-" + name); value != "" {
			text = append(text, name+"="+value)
		}
	}
	return strings.Join(text, " ")
}

func TestPreflight(t *testing.T) {
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: relay.Unlimited}})
	listed, all := []string{"https://app.example", "http://localhost:3000"}, []string{"*"}
	for name, c := range map[string]struct {
		origins                       []string
		path, origin, method, headers string
		status                        int
		want                          string
	}{
		"off":                 {nil, "/events", "https://app.example", "POST", "content-type", 405, ""},
		"listed":              {listed, "/events", "https://app.example", "POST", "content-type", 204, "Origin=https://app.example Methods=POST Headers=content-type"},
		"also listed":         {listed, "/events", "http://localhost:3000", "GET", "authorization", 204, "Origin=http://localhost:3000 Methods=GET Headers=authorization"},
		"both headers":        {listed, "/v1/messages", "https://app.example", "POST", "authorization,content-type", 204, "Origin=https://app.example Methods=POST Headers=authorization,content-type"},
		"of a stream":         {listed, "/events", "https://app.example", "GET", "authorization,last-event-id", 204, "Origin=https://app.example Methods=GET Headers=authorization,last-event-id"},
		"without headers":     {listed, "/health", "https://app.example", "HEAD", "", 204, "Origin=https://app.example Methods=HEAD"},
		"any":                 {all, "/events", "https://anywhere.example", "POST", "content-type", 204, "Origin=* Methods=POST Headers=content-type"},
		"any, opaque origin":  {all, "/events", "null", "GET", "authorization", 204, "Origin=* Methods=GET Headers=authorization"},
		"unknown path":        {listed, "/nowhere", "https://app.example", "GET", "authorization", 204, "Origin=https://app.example Methods=GET Headers=authorization"},
		"not listed":          {listed, "/events", "https://evil.example", "POST", "content-type", 204, ""},
		"begins like listed":  {listed, "/events", "https://app.example.evil.example", "POST", "", 204, ""},
		"ends like listed":    {listed, "/events", "https://evilapp.example", "POST", "", 204, ""},
		"another scheme":      {listed, "/events", "http://app.example", "POST", "", 204, ""},
		"another port":        {listed, "/events", "https://app.example:8443", "POST", "", 204, ""},
		"null":                {listed, "/events", "null", "POST", "", 204, ""},
		"another method":      {all, "/events", "https://app.example", "DELETE", "", 204, ""},
		"another header":      {all, "/events", "https://app.example", "POST", "x-token", 204, ""},
		"one header too many": {all, "/events", "https://app.example", "POST", "content-type,x-token", 204, ""},
	} {
		t.Run(name, func(t *testing.T) {
			req := httptest.NewRequest("OPTIONS", c.path, nil)
			req.Header.Set("Origin", c.origin)
			req.Header.Set("Access-Control-Request-Method", c.method)
			req.Header.Set("Access-Control-Request-Private-Network", "true")
			if c.headers != "" {
				req.Header.Set("Access-Control-Request-Headers", c.headers)
			}
			w := httptest.NewRecorder()
			newFront(t, r, httpapi.Options{Log: quiet, Origins: c.origins}).Handler(false).ServeHTTP(w, req)
			if got := corsHeaders(w.Header()); w.Code != c.status || got != c.want {
				t.Errorf("%d with %q, want %d with %q", w.Code, got, c.status, c.want)
			}
			if w.Code == 204 && (w.Body.Len() > 0 || !strings.Contains(w.Header().Get("Vary"), "Origin")) {
				t.Errorf("body %q, Vary %q", w.Body, w.Header().Get("Vary"))
			}
		})
	}
}

// TestPagesReadErrors checks that a page that may read the relay's answers may also read its refusals, with the headers
// Retry-After, WWW-Authenticate and X-Request-Id.
func TestPagesReadErrors(t *testing.T) {
	ask := func(h http.Handler, method, path, origin string) answer {
		req := httptest.NewRequest(method, path, strings.NewReader("{"))
		req.Header.Set("Origin", origin)
		return call(t, h, req)
	}
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 3}})
	h := newFront(t, r, httpapi.Options{Log: quiet, Origins: []string{"https://app.example"}}).Handler(false)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/health", 200}, {"GET", "/nowhere", 404}, {"GET", "/events", 400}, {"POST", "/events", 400}, {"OPTIONS", "/events", 405},
		{"GET", "/events", 429},
	} {
		a := ask(h, c.method, c.path, "https://app.example")
		if got := a.header.Get("Access-Control-Allow-Origin"); a.status != c.status || got != "https://app.example" {
			t.Errorf("%s %s: %d for %q", c.method, c.path, a.status, got)
		}
		if got := a.header.Get("Access-Control-Expose-Headers"); got != "Retry-After, Www-Authenticate, X-Request-Id" {
			t.Errorf("%s %s: exposed %q", c.method, c.path, got)
		}
		if a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Error("credentials are allowed")
		}
	}
	if a := ask(h, "POST", "/events", "https://evil.example"); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("a page of an origin that is not listed may read the answer")
	}
	off := newFront(t, start(t), httpapi.Options{Log: quiet}).Handler(false)
	for name := range ask(off, "GET", "/health", "https://app.example").header {
		if name == "Vary" || strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("the answer has the header %s although CORS is off", name)
		}
	}
}

func TestPreflightsCountAsReads(t *testing.T) {
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 3}})
	h := newFront(t, r, httpapi.Options{Log: quiet, Origins: []string{"*"}}).Handler(false)
	for i := range 4 {
		req := httptest.NewRequest("OPTIONS", "/events", nil)
		req.Header.Set("Origin", "https://app.example")
		req.Header.Set("Access-Control-Request-Method", "POST")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if want := []int{204, 204, 204, 429}[i]; w.Code != want {
			t.Errorf("preflight %d: %d, want %d", i+1, w.Code, want)
		}
	}
}

// TestReboundPagesAreRefused checks which names in Host are accepted by a relay that listens on its own machine only.
// The other headers make no difference.
func TestReboundPagesAreRefused(t *testing.T) {
	engine.OnlySQLite(t, "it is about HTTP, not about what is stored")
	racing.Skip(t, "one thing after another")
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: relay.Unlimited}, PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}})
	local := setting{httpapi.Options{Log: quiet}, true}
	public := setting{httpapi.Options{Log: quiet, PublicURL: "https://relay.example"}, true}
	odd := setting{httpapi.Options{Log: quiet, PublicURL: "http://relay.example:8080"}, true}
	trusting := setting{httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}}, true}
	pages := setting{httpapi.Options{Log: quiet, Origins: []string{"*"}}, true}
	for name, c := range map[string]struct {
		options setting
		refused bool
		hosts   []string
	}{
		"loopback names": {local, false, []string{"localhost", "LocalHost:8789", "127.0.0.1", "127.0.0.1:8789", "127.200.3.4:1", "[::1]", "[::1]:8789",
			"[0:0::1]:8789", "[::ffff:127.0.0.1]:8789"}},
		"other names": {local, true, []string{"", "evil.example", "evil.example:8789", "localhost.evil.example", "localhost.evil", "evil.localhost", "localhost.",
			"127.0.0.1.", "127.0.0.1.evil.example", "127.1", "127.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "0.0.0.0", "0.0.0.0:8789", "0", "[::]", "[::]:8789",
			"::1", "192.0.2.1:8789", "10.0.0.1", "[fe80::1]", "[::1%25lo]:8789", "[::1%lo]", "[127.0.0.1]", "[localhost]", "localhost:", "localhost:x",
			"localhost:99999", "localhost:80:80", "localhost@evil.example", "[::1", "::1]", "relay.example", "localhost,evil.example"}},
		"the public name":                {public, false, []string{"relay.example", "RELAY.example", "relay.example:443", "localhost:8789", "127.0.0.1"}},
		"other names of a public relay":  {public, true, []string{"", "evil.example", "relay.example.evil.example", "relay.example:8789", "relay.example.", "www.relay.example"}},
		"a public name with a port":      {odd, false, []string{"relay.example:8080", "[::1]"}},
		"the same name without its port": {odd, true, []string{"relay.example", "relay.example:80", "relay.example:8789"}},
		"behind a proxy, its own Host":   {trusting, true, []string{"relay.example"}},
		"behind a proxy, loopback Host":  {trusting, false, []string{"127.0.0.1:8789"}},
		"pages that may read":            {pages, true, []string{"evil.example"}},
		"on all interfaces":              {setting{httpapi.Options{Log: quiet}, false}, false, []string{"relay.internal", "192.0.2.1:8789"}},
	} {
		for _, host := range c.hosts {
			for _, header := range [][2]string{{"User-Agent", "curl/8"}, {"User-Agent", "Mozilla/5.0"}, {"Origin", "http://" + host}, {"Sec-Fetch-Site", "same-origin"}, {"X-Forwarded-Host", "localhost"}} {
				for _, target := range []string{"GET /health", "GET /events?cursor=0&timeout=0", "GET /nowhere", "OPTIONS /events", "POST /events"} {
					method, path, _ := strings.Cut(target, " ")
					req := httptest.NewRequest(method, path, strings.NewReader("{"))
					req.RemoteAddr, req.Host = "127.0.0.1:9", host
					req.Header.Set(header[0], header[1])
					a := call(t, c.options.handler(t, r), req)
					if (a.status == 403) != c.refused || c.refused && !strings.Contains(a.Message, "--public-url") {
						t.Errorf("%s: %s with Host %q and %s %s: %d %s", name, target, host, header[0], header[1], a.status, a.body)
					}
				}
			}
		}
	}
}

// pagePost is a POST that a web page can send, and whether the relay must refuse it.
type pagePost struct {
	options setting
	origin  []string
	site    string
	refused bool
}

func pagePosts() map[string]pagePost {
	local := setting{httpapi.Options{Log: quiet}, true}
	listed := setting{httpapi.Options{Log: quiet, Origins: []string{"https://app.example"}}, true}
	all := setting{httpapi.Options{Log: quiet, Origins: []string{"*"}}, true}
	open := setting{httpapi.Options{Log: quiet}, false}
	return map[string]pagePost{
		"no page":                         {local, nil, "", false},
		"its own page":                    {local, []string{"http://localhost:8789"}, "same-origin", false},
		"its own page, older browser":     {local, []string{"http://LOCALHOST:8789"}, "", false},
		"typed into the browser":          {local, nil, "none", false},
		"another page":                    {local, []string{"https://evil.example"}, "cross-site", true},
		"another page, older browser":     {local, []string{"https://evil.example"}, "", true},
		"another page, without an origin": {local, nil, "cross-site", true},
		"another port":                    {local, []string{"http://localhost:3000"}, "same-site", true},
		"another port, older browser":     {local, []string{"http://localhost:3000"}, "", true},
		"another name of this machine":    {local, []string{"http://127.0.0.1:8789"}, "cross-site", true},
		"an opaque origin":                {local, []string{"null"}, "", true},
		"an empty origin":                 {local, []string{""}, "", true},
		"two origins":                     {local, []string{"http://localhost:8789", "https://evil.example"}, "", true},
		"two of the same":                 {local, []string{"http://localhost:8789", "http://localhost:8789"}, "", true},
		"an unknown Sec-Fetch-Site":       {local, nil, "unknown", true},
		"an origin with a path":           {local, []string{"http://localhost:8789/x"}, "", true},
		"a file":                          {local, []string{"file://"}, "", true},
		"a listed page":                   {listed, []string{"https://app.example"}, "cross-site", false},
		"a page that is not listed":       {listed, []string{"https://evil.example"}, "cross-site", true},
		"an opaque origin, not listed":    {listed, []string{"null"}, "cross-site", true},
		"no origin, although some listed": {listed, nil, "cross-site", true},
		"any page":                        {all, []string{"https://evil.example"}, "cross-site", false},
		"any page, opaque origin":         {all, []string{"null"}, "cross-site", false},
		"another page, all interfaces":    {open, []string{"https://evil.example"}, "cross-site", true},
	}
}

// TestForeignPagesDoNotPost checks which web pages may post.
func TestForeignPagesDoNotPost(t *testing.T) {
	racing.Skip(t, "one thing after another")
	r := limited(t, relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}, ReadsPerAddress: relay.Rate{PerSecond: relay.Unlimited}})
	for name, c := range pagePosts() {
		t.Run(name, func(t *testing.T) {
			for _, target := range []string{"/events", "/v1/messages", "/seed", "/nowhere"} {
				req := httptest.NewRequest("POST", target, strings.NewReader("{}"))
				req.RemoteAddr, req.Host = "127.0.0.1:9", "localhost:8789"
				req.Header.Set("Content-Type", "text/plain")
				if req.Header["Origin"] = c.origin; c.origin == nil {
					delete(req.Header, "Origin")
				}
				if c.site != "" {
					req.Header.Set("Sec-Fetch-Site", c.site)
				}
				a := call(t, c.options.handler(t, r), req)
				if (a.status == 403) != c.refused || c.refused && !strings.Contains(a.Message, "--cors-origin") {
					t.Errorf("%s: %d %s", target, a.status, a.body)
				}
			}
			// GET is allowed, because the page cannot read the answer.
			req := httptest.NewRequest("GET", "/events?cursor=0&timeout=0", nil)
			req.RemoteAddr, req.Host = "127.0.0.1:9", "localhost:8789"
			if req.Header["Origin"] = c.origin; c.origin == nil {
				delete(req.Header, "Origin")
			}
			call(t, c.options.handler(t, r), req).want(t, 200, "")
		})
	}
}

// TestReboundRawRequests sends raw requests to a relay that listens on its own machine only. HTTP libraries would not
// send many of them.
func TestReboundRawRequests(t *testing.T) {
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: relay.Unlimited}, PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited}})
	l, _ := serveOn(t, loopback, r, httpapi.Options{Log: quiet})
	const read = "/agents" // its answer does not depend on whether the client has closed its side
	for request, status := range map[string]int{
		"GET " + read + " HTTP/1.1\r\nHost: localhost:8789\r\n\r\n":                                               200,
		"GET " + read + " HTTP/1.0\r\nHost: localhost:8789\r\n\r\n":                                               200,
		"GET " + read + " HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                                 403,
		"GET " + read + " HTTP/1.0\r\nHost: evil.example\r\n\r\n":                                                 403,
		"GET " + read + " HTTP/1.0\r\n\r\n":                                                                       403,
		"GET " + read + " HTTP/1.1\r\nHost:\r\n\r\n":                                                              403,
		"GET " + read + " HTTP/1.1\r\n\r\n":                                                                       400,
		"GET " + read + " HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n":                              400,
		"GET http://evil.example" + read + " HTTP/1.1\r\nHost: localhost\r\n\r\n":                                 403,
		"GET http://localhost:8789" + read + " HTTP/1.1\r\nHost: localhost:8789\r\n\r\n":                          200,
		"GET http://localhost@evil.example" + read + " HTTP/1.1\r\nHost: localhost\r\n\r\n":                       403,
		"GET //localhost" + read + " HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                      403,
		"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n":                                             403,
		"OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n\r\n":                                                        403,
		"POST /events HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\nContent-Length: 2\r\n\r\n{}":                 403,
		"POST /events HTTP/1.1\r\nHost: localhost\r\norigin: https://evil.example\r\nContent-Length: 2\r\n\r\n{}": 403,
		"POST /events HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}":                                                    403,
		"POST /events HTTP/1.1\r\nHost: LOCALHOST\r\nContent-Length: 2\r\n\r\n{}":                                 400,
	} {
		if got := checkRaw(t, []byte(request), overRaw(l, []byte(request))); got != status {
			t.Errorf("%q: %d, want %d", request, got, status)
		}
	}
}

// TestGuardHost checks that a further listener on loopback, such as the one for metrics, answers only at its own names.
func TestGuardHost(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	front := httpapi.New(unlimited(t), httpapi.Options{Log: quiet, PublicURL: "https://relay.example", Hosts: []string{"bücher.example"}})
	pages := front.GuardHost(l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{"localhost:9464": 200, "127.0.0.1": 200, "[::1]:1": 200, "relay.example": 200,
		"Relay.Example": 200, "relay.example.": 403, "xn--bcher-kva.example:1": 200, "evil.example": 403, "evil.example:9464": 403, "": 403, "127.0.0.1.evil.example": 403} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		if pages.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%q: %d, want %d", host, w.Code, want)
		}
	}
}
