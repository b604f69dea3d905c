package httpapi_test

import (
	"bufio"
	"cmp"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// pageRequest is a request with headers of a browser.
type pageRequest struct {
	options    setting
	peer, host string // empty: those of the relay's own page
	header     map[string]string
	change     func(*http.Request)

	status int  // of POST /seed
	listed bool // the feature seed, in the answer to GET /.well-known/agora.json
}

func (c pageRequest) request(method, target string) *http.Request {
	r := httptest.NewRequest(method, target, nil)
	r.RemoteAddr, r.Host = cmp.Or(c.peer, "127.0.0.1:9"), cmp.Or(c.host, "localhost:8789")
	for name, value := range c.header {
		r.Header.Set(name, value)
	}
	if c.change != nil {
		c.change(r)
	}
	return r
}

func pageRequests() map[string]pageRequest {
	local := setting{httpapi.Options{Log: quiet}, true}
	public := setting{httpapi.Options{Log: quiet, PublicURL: "http://localhost:8789"}, true}
	limit := setting{httpapi.Options{Log: quiet, LimitLocal: true}, true}
	trusting := setting{httpapi.Options{Log: quiet, Proxies: httpapi.Proxies{Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}}}, true}
	wide := setting{httpapi.Options{Log: quiet}, false}
	all := setting{httpapi.Options{Log: quiet, Origins: []string{"*"}}, true}
	demo := setting{httpapi.Options{Log: quiet, Demo: true}, false}
	const own = "http://localhost:8789"
	page := func(origin, site string) map[string]string {
		h := map[string]string{"User-Agent": "Mozilla/5.0", "Sec-Fetch-Mode": "cors"}
		for name, value := range map[string]string{"Origin": origin, "Sec-Fetch-Site": site} {
			if value != "" {
				h[name] = value
			}
		}
		return h
	}
	with := func(name, value string) map[string]string {
		h := page(own, "same-origin")
		h[name] = value
		return h
	}
	twice := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Add(name, value) }
	}
	requests := map[string]pageRequest{
		"its own page":                      {options: local, header: page(own, "same-origin"), status: 200, listed: true},
		"its own page, older browser":       {options: local, header: page(own, ""), status: 200, listed: true},
		"its own page, IPv6":                {options: local, peer: "[::1]:9", host: "[::1]:8789", header: page("http://[::1]:8789", "same-origin"), status: 200, listed: true},
		"its own page, default port":        {options: local, host: "127.0.0.1", header: page("http://127.0.0.1", "same-origin"), status: 200, listed: true},
		"without Origin":                    {options: local, header: page("", "same-origin"), status: 404, listed: true},
		"the fetch of Node":                 {options: local, header: map[string]string{"User-Agent": "node", "Sec-Fetch-Mode": "cors", "Accept-Language": "*"}, status: 200, listed: true},
		"typed into the browser":            {options: local, header: page("", "none"), status: 404},
		"another page":                      {options: local, header: page("https://evil.example", "cross-site"), status: 403},
		"another page that claims the site": {options: local, header: page("https://evil.example", "same-origin"), status: 403},
		"another page, older browser":       {options: local, header: page("https://evil.example", ""), status: 403},
		"another page, no Origin":           {options: local, header: page("", "cross-site"), status: 403},
		"its origin, but cross-site":        {options: local, header: page(own, "cross-site"), status: 403},
		"its origin, but same-site":         {options: local, header: page(own, "same-site"), status: 403},
		"its origin, but none":              {options: local, header: page(own, "none"), status: 404},
		"another port":                      {options: local, header: page("http://localhost:3000", "same-site"), status: 403},
		"another port, older browser":       {options: local, header: page("http://localhost:3000", ""), status: 403},
		"another name of this machine":      {options: local, header: page("http://127.0.0.1:8789", "cross-site"), status: 403},
		"https":                             {options: local, header: page("https://localhost:8789", "same-origin"), status: 404},
		"another spelling":                  {options: local, header: page("http://LOCALHOST:8789", "same-origin"), status: 404},
		"a slash at the end":                {options: local, header: page(own+"/", "same-origin"), status: 404},
		"an opaque origin":                  {options: local, header: page("null", "same-origin"), status: 403},
		"two origins":                       {options: local, header: page(own, "same-origin"), change: twice("Origin", own), status: 403},
		"two sites":                         {options: local, header: page(own, "same-origin"), change: twice("Sec-Fetch-Site", "same-origin"), status: 404},
		"a rebound name":                    {options: local, host: "evil.example:8789", header: page("http://evil.example:8789", "same-origin"), status: 403},
		"another machine":                   {options: local, peer: "192.0.2.1:9", header: page(own, "same-origin"), status: 404},
		"on all interfaces":                 {options: wide, header: page(own, "same-origin"), status: 404},
		"with a public URL":                 {options: public, header: page(own, "same-origin"), status: 404},
		"with LimitLocal":                   {options: limit, header: page(own, "same-origin"), status: 404},
		"from a trusted proxy":              {options: trusting, header: page(own, "same-origin"), status: 404},
		"HTTP/1.0":                          {options: local, header: page(own, "same-origin"), change: func(r *http.Request) { r.ProtoMinor = 0 }, status: 404},
		"close":                             {options: local, header: page(own, "same-origin"), change: func(r *http.Request) { r.Close = true }, status: 404},
		"a page that CORS admits":           {options: all, header: page("https://app.example", "cross-site"), status: 404},
		"CORS, its own page":                {options: all, header: page(own, "same-origin"), status: 200, listed: true},
		"demo":                              {options: demo, peer: "192.0.2.1:9", header: page("", "none"), status: 200, listed: true},
		"no page":                           {options: local, status: 200, listed: true},
		"no page, another machine":          {options: wide, peer: "192.0.2.1:9", status: 404},
	}
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Anything", "Via", "X-Real-Ip",
		"Cf-Connecting-Ip", "Proxy-Connection"} {
		requests["with "+name] = pageRequest{options: local, header: with(name, "localhost:8789"), status: 404}
	}
	return requests
}

// TestSeedFromPages checks which web pages may use POST /seed, and that the document lists the feature for those that
// may.
func TestSeedFromPages(t *testing.T) {
	racing.Skip(t, "one thing after another")
	r := unlimited(t)
	for name, c := range pageRequests() {
		t.Run(name, func(t *testing.T) {
			h := c.options.handler(t, r)
			if a := call(t, h, c.request("POST", "/seed")); a.status != c.status || a.status == 200 && a.Count != 15 {
				t.Errorf("POST /seed: %d %s, want %d", a.status, a.body, c.status)
			}
			a := call(t, h, c.request("GET", "/.well-known/agora.json"))
			if listed := strings.Contains(string(a.body), `"seed"`); a.status == 200 && listed != c.listed || a.status != 200 && c.listed {
				t.Errorf("%d, the feature is listed: %v, want %v", a.status, listed, c.listed)
			}
		})
	}
}

// TestOwnPageIsLimited checks that requests of the relay's own page count as remote for all limits.
func TestOwnPageIsLimited(t *testing.T) {
	once := relay.Rate{PerSecond: 0.01, Burst: 1}
	h := newFront(t, limited(t, relay.Limits{PostsPerAddress: once, ReadsPerAddress: once}), httpapi.Options{Log: quiet}).Handler(true)
	page := pageRequest{header: map[string]string{"Origin": "http://localhost:8789", "Sec-Fetch-Site": "same-origin"}}
	call(t, h, page.request("POST", "/seed"))
	// How long to wait depends on the time that the first request took in the store.
	refused := call(t, h, page.request("POST", "/seed"))
	if refused.want(t, 429, envelope.CodeRateLimited); refused.Details["limit"] != envelope.LimitPostsPerAddress {
		t.Errorf("the refusal is %s", refused.body)
	}
	call(t, h, page.request("GET", "/.well-known/agora.json")).want(t, 200, "")
	call(t, h, page.request("GET", "/.well-known/agora.json")).wantLimit(t, envelope.LimitReadsPerAddress, "100")
}

// TestSeedOverUnixSocket checks that a request with a browser's headers may not use POST /seed over a Unix socket whose
// clients are local. Only a proxy can have sent it.
func TestSeedOverUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer runFront(t, newFront(t, unlimited(t), httpapi.Options{Log: quiet}), httpapi.Listener{Listener: l, Local: true})()
	for origin, want := range map[string]int{"": 200, "http://localhost": 404} {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		header := ""
		if origin != "" {
			header = "Origin: " + origin + "\r\n"
		}
		fmt.Fprintf(conn, "POST /seed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n%s\r\n", header)
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != want {
			t.Errorf("Origin %q: %d, want %d", origin, response.StatusCode, want)
		}
	}
}
