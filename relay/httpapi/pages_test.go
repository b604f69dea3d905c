package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// Web pages: which may read answers, and which are not answered at all.

// corsHeaders returns what of an answer's header is about web pages.
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
		"off":                    {nil, "/events", "https://app.example", "POST", "content-type", 405, ""},
		"listed":                 {listed, "/events", "https://app.example", "POST", "content-type", 204, "Origin=https://app.example Methods=POST Headers=content-type"},
		"the other listed":       {listed, "/events", "http://localhost:3000", "GET", "authorization", 204, "Origin=http://localhost:3000 Methods=GET Headers=authorization"},
		"both headers":           {listed, "/v1/messages", "https://app.example", "POST", "authorization,content-type", 204, "Origin=https://app.example Methods=POST Headers=authorization,content-type"},
		"without headers":        {listed, "/health", "https://app.example", "HEAD", "", 204, "Origin=https://app.example Methods=HEAD"},
		"any":                    {all, "/events", "https://anywhere.example", "POST", "content-type", 204, "Origin=* Methods=POST Headers=content-type"},
		"any, a page of no site": {all, "/events", "null", "GET", "authorization", 204, "Origin=* Methods=GET Headers=authorization"},
		"a path of none":         {listed, "/nowhere", "https://app.example", "GET", "authorization", 204, "Origin=https://app.example Methods=GET Headers=authorization"},
		"not listed":             {listed, "/events", "https://evil.example", "POST", "content-type", 204, ""},
		"begins like a listed":   {listed, "/events", "https://app.example.evil.example", "POST", "", 204, ""},
		"ends like a listed":     {listed, "/events", "https://evilapp.example", "POST", "", 204, ""},
		"another scheme":         {listed, "/events", "http://app.example", "POST", "", 204, ""},
		"another port":           {listed, "/events", "https://app.example:8443", "POST", "", 204, ""},
		"null":                   {listed, "/events", "null", "POST", "", 204, ""},
		"another method":         {all, "/events", "https://app.example", "DELETE", "", 204, ""},
		"another header":         {all, "/events", "https://app.example", "POST", "x-token", 204, ""},
		"one header too many":    {all, "/events", "https://app.example", "POST", "content-type,x-token", 204, ""},
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
			httpapi.New(r, httpapi.Options{Log: quiet, Origins: c.origins}).ServeHTTP(w, req)
			if got := corsHeaders(w.Header()); w.Code != c.status || got != c.want {
				t.Errorf("%d with %q, want %d with %q", w.Code, got, c.status, c.want)
			}
			if w.Code == 204 && (w.Body.Len() > 0 || !strings.Contains(w.Header().Get("Vary"), "Origin")) {
				t.Errorf("body %q, Vary %q", w.Body, w.Header().Get("Vary"))
			}
		})
	}
}

// TestPagesReadErrors holds that a page which may read the relay's answers may read its refusals, and what to wait for.
func TestPagesReadErrors(t *testing.T) {
	ask := func(h http.Handler, method, path, origin string) answer {
		req := httptest.NewRequest(method, path, strings.NewReader("{"))
		req.Header.Set("Origin", origin)
		return call(t, h, req)
	}
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 4}})
	h := httpapi.New(r, httpapi.Options{Log: quiet, Origins: []string{"https://app.example"}})
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/health", 200}, {"GET", "/nowhere", 404}, {"GET", "/events", 400}, {"POST", "/events", 400}, {"OPTIONS", "/events", 405},
		{"GET", "/health", 429},
	} {
		a := ask(h, c.method, c.path, "https://app.example")
		if got := a.header.Get("Access-Control-Allow-Origin"); a.status != c.status || got != "https://app.example" {
			t.Errorf("%s %s: %d for %q", c.method, c.path, a.status, got)
		}
		if got := a.header.Get("Access-Control-Expose-Headers"); got != "Retry-After, Www-Authenticate" {
			t.Errorf("%s %s: exposed %q", c.method, c.path, got)
		}
		if a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Error("credentials")
		}
	}
	if a := ask(h, "POST", "/events", "https://evil.example"); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("another page may read")
	}
	off := httpapi.New(start(t), httpapi.Options{Log: quiet})
	for name := range ask(off, "GET", "/health", "https://app.example").header {
		if name == "Vary" || strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("%s, though CORS is off", name)
		}
	}
}

func TestPreflightsCount(t *testing.T) {
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 3}})
	h := httpapi.New(r, httpapi.Options{Log: quiet, Origins: []string{"*"}})
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

func TestReboundPagesAreRefused(t *testing.T) {
	r := limited(t, relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: relay.Unlimited}})
	home := httpapi.Options{Log: quiet, Loopback: true}
	with := func(change func(*httpapi.Options)) httpapi.Options {
		o := home
		change(&o)
		return o
	}
	for name, c := range map[string]struct {
		options             httpapi.Options
		host, header, value string
		refused             bool
	}{
		"rebound, by script":     {home, "evil.example:8789", "Origin", "http://evil.example:8789", true},
		"rebound, same origin":   {home, "evil.example:8789", "Sec-Fetch-Site", "same-origin", true},
		"rebound, with referer":  {home, "evil.example:8789", "Referer", "http://evil.example:8789/", true},
		"rebound, an old one":    {home, "evil.example:8789", "User-Agent", "Mozilla/5.0 (X11)", true},
		"looks like localhost":   {home, "localhost.evil.example", "User-Agent", "Mozilla/5.0", true},
		"an address not its own": {home, "192.0.2.1:8789", "User-Agent", "Mozilla/5.0", true},
		"another's origin only":  {with(func(o *httpapi.Options) { o.Origins = []string{"https://app.example"} }), "evil.example", "Origin", "http://evil.example", true},
		"listed, but no origin":  {with(func(o *httpapi.Options) { o.Origins = []string{"http://evil.example"} }), "evil.example", "Referer", "http://evil.example/", true},

		"a browser at home":       {home, "localhost:8789", "User-Agent", "Mozilla/5.0", false},
		"a browser at home, IPv4": {home, "127.0.0.1:8789", "Sec-Fetch-Site", "none", false},
		"a browser at home, IPv6": {home, "[::1]:8789", "Sec-Fetch-Site", "none", false},
		"no browser":              {home, "relay.internal:8789", "User-Agent", "curl/8", false},
		"a listed page":           {with(func(o *httpapi.Options) { o.Origins = []string{"https://app.example"} }), "relay.internal", "Origin", "https://app.example", false},
		"every page":              {with(func(o *httpapi.Options) { o.Origins = []string{"*"} }), "relay.internal", "Referer", "https://x.example/", false},
		"a public relay":          {with(func(o *httpapi.Options) { o.Public = true }), "relay.example", "User-Agent", "Mozilla/5.0", false},
		"behind a proxy":          {with(func(o *httpapi.Options) { o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")} }), "relay.example", "User-Agent", "Mozilla/5.0", false},
		"open to the network":     {httpapi.Options{Log: quiet}, "relay.internal", "User-Agent", "Mozilla/5.0", false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, target := range []string{"/health", "/events?cursor=0&timeout=0", "/seed"} {
				req := httptest.NewRequest("GET", target, nil)
				req.RemoteAddr, req.Host = "127.0.0.1:9", c.host
				req.Header.Set(c.header, c.value)
				if target == "/seed" {
					req.Method = "POST"
				}
				a := call(t, httpapi.New(r, c.options), req)
				switch {
				case c.refused:
					a.want(t, 403, envelope.CodeForbidden)
					if !strings.Contains(a.Message, "--public-url") {
						t.Error(a.Message)
					}
				case target != "/seed" && a.status != 200:
					t.Errorf("%s: %d %s", target, a.status, a.body)
				}
			}
		})
	}
}
