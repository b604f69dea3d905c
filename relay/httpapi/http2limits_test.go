package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// These tests check the limits of HTTP/2, what its headers mean, and where its requests come from.

// TestHTTP2StreamsAreLimited checks how many streams a connection may have at once. The relay announces the number, and
// resets streams beyond it. The others are answered.
func TestHTTP2StreamsAreLimited(t *testing.T) {
	for limit, want := range map[int]uint32{0: 64, 3: 3, 1: 1, 1000: 250, relay.Unlimited: 250} {
		synctest.Test(t, func(t *testing.T) {
			r := limited(t, relay.Limits{RequestsPerAddress: limit, PollsPerAddress: relay.Unlimited,
				ReadsPerAddress: relay.Rate{PerSecond: relay.Unlimited}})
			l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
			h := l.dialH2(t, stranger)
			h.exchange()
			if got := h.settings[http2.SettingMaxConcurrentStreams]; got != want {
				t.Fatalf("limit %d: %d streams are announced, want %d", limit, got, want)
			}
			for id, most := range map[http2.SettingID]uint32{
				http2.SettingMaxHeaderListSize: 17 << 10, http2.SettingMaxFrameSize: 16 << 10,
				http2.SettingInitialWindowSize: 64 << 10, http2.SettingHeaderTableSize: 4096,
			} {
				if got := h.settings[id]; got == 0 || got > most {
					t.Errorf("%v is %d, want at most %d", id, got, most)
				}
			}
			var polls []uint32
			for range want {
				polls = append(polls, h.get("/events?cursor=0&timeout=30"))
			}
			for range 5 {
				h.answer(h.get("/health")).wantReset(t, http2.ErrCodeProtocol, http2.ErrCodeRefusedStream)
			}
			synctest.Wait()
			if got := r.Waiting(); got != int(want) {
				t.Errorf("limit %d: %d polls wait, want %d", limit, got, want)
			}
			for _, id := range polls {
				h.answer(id).want(t, "200", `"events":[]`)
			}
			h.exchange()
		})
	}
}

// TestHTTP2LimitsCountStreams checks that the limits on requests and polls count the streams of all connections of an
// address, and also its requests over HTTP/1.1. Other addresses are not affected. A stream that is reset counts no
// more.
func TestHTTP2LimitsCountStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := limited(t, relay.Limits{RequestsPerAddress: 5, PollsPerAddress: 3})
		l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
		first, second, other := l.dialH2(t, "192.0.2.1:1"), l.dialH2(t, "192.0.2.1:2"), l.dialH2(t, "192.0.2.2:1")
		for _, h := range []*h2Client{first, second, other} {
			h.exchange()
		}
		const poll = "/events?cursor=0&timeout=60"
		waiting := first.get(poll)
		first.get(poll)
		second.get(poll)
		synctest.Wait()
		second.answer(second.get(poll)).wantLimit(t, envelope.LimitPollsPerAddress)
		second.answer(second.get("/events?cursor=0&timeout=0")).want(t, "200", `"events":[]`)
		first.open(false, "POST", "/events")
		slow := second.open(false, "POST", "/events")
		synctest.Wait()
		for _, h := range []*h2Client{first, second} {
			h.answer(h.get("/agents")).wantLimit(t, envelope.LimitRequestsPerAddress)
			h.answer(h.post("/events", []byte("{}"))).wantLimit(t, envelope.LimitRequestsPerAddress)
			h.answer(h.get("/health")).want(t, "200", `"ok":true`)
		}
		if status := statusOf(t, l.dialTLS(t, "192.0.2.1:3", "http/1.1"), "/agents", "x"); status != 429 {
			t.Errorf("over HTTP/1.1: %d, want 429", status)
		}
		other.answer(other.get("/agents")).want(t, "200", `"agents":[]`)
		other.answer(other.get("/events?cursor=0&timeout=1")).want(t, "200", `"events":[]`)

		second.check(second.out.WriteRSTStream(slow, http2.ErrCodeCancel))
		synctest.Wait()
		second.answer(second.get("/agents")).want(t, "200", `"agents":[]`)
		first.check(first.out.WriteRSTStream(waiting, http2.ErrCodeCancel))
		synctest.Wait()
		second.answer(second.get("/events?cursor=0&timeout=1")).want(t, "200", `"events":[]`)
	})
}

// TestHTTP2RatesAreLimited uses up the rate of reads with streams. Refusals come before the body is read.
func TestHTTP2RatesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		once := relay.Rate{PerSecond: 0.5, Burst: 1}
		l, _ := serveTLS(t, limited(t, relay.Limits{PostsPerAddress: once, ReadsPerAddress: once}), httpapi.Options{Log: quiet})
		h := l.dialH2(t, stranger)
		h.exchange()
		h.answer(h.get("/nowhere")).want(t, "404", "NOT_FOUND")
		h.answer(h.post("/nowhere", []byte("{}"))).want(t, "404", "NOT_FOUND")
		h.answer(h.get("/agents")).wantLimit(t, envelope.LimitReadsPerAddress)
		h.answer(h.open(false, "POST", "/events", "content-length", "100")).wantLimit(t, envelope.LimitPostsPerAddress)
		time.Sleep(2 * time.Second)
		h.answer(h.get("/agents")).want(t, "200", `"agents":[]`)
	})
}

// TestHTTP2BannedNetwork bans an address that has an open connection. Its next streams get 403.
func TestHTTP2BannedNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
		h := l.dialH2(t, stranger)
		h.exchange()
		r.Gate().SetBans(relay.Bans{Networks: networks("192.0.2.0/24")})
		h.answer(h.get("/agents")).want(t, "403", "FORBIDDEN")
		h.answer(h.post("/events", []byte("{}"))).want(t, "403", "FORBIDDEN")
		if l.tryHandshake(t, stranger) {
			t.Error("a new connection was served")
		}
	})
}

// TestHTTP2HeaderListIsLimited sends headers of more than 16 KiB: with large values, with many names, and with short
// references to values that were sent before. The request is refused, or the connection is closed. The handler does not
// see the request.
func TestHTTP2HeaderListIsLimited(t *testing.T) {
	racing.Skip(t, "one thing after another")
	var many []string
	for i := range 600 {
		many = append(many, fmt.Sprint("x-", i), "")
	}
	references := slices.Repeat([]string{"x-a", strings.Repeat("~", 4000)}, 5)
	for name, c := range map[string]struct {
		header []string
		status string // empty: the connection is closed
	}{
		"within the limit": {[]string{"x-a", strings.Repeat("~", 15<<10)}, "200"},
		"two values":       {[]string{"x-a", strings.Repeat("~", 9<<10), "x-b", strings.Repeat("~", 9<<10)}, "431"},
		"many names":       {many, "431"},
		"references":       {references, "431"},
		"one value":        {[]string{"x-a", strings.Repeat("~", 20<<10)}, ""},
		"a megabyte":       {[]string{"x-a", strings.Repeat("~", 1<<20)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log, logged := logTo(slog.LevelDebug)
				l, _ := serveTLS(t, unlimited(t), httpapi.Options{Log: log, AccessLog: true})
				h := l.dialH2(t, stranger)
				h.exchange()
				h.last += 2
				id, block := h.last-1, h.requestBlock("GET", "/agents", c.header...)
				var sending sync.WaitGroup
				sending.Go(func() { h.sendHeader(id, block) })
				a := h.answer(id)
				sending.Wait()
				if c.status != "" {
					a.want(t, c.status, "")
					h.exchange()
				} else if h.goAway == nil || a.status != "" {
					t.Errorf("answered %+v, GOAWAY %v", a, h.goAway)
				}
				if got := strings.Contains(logged(), "/agents"); got != (c.status == "200") {
					t.Errorf("the handler was called: %v", got)
				}
			})
		})
	}
}

// TestHTTP2OddRequests sends requests that HTTP/1.1 cannot express, or that HTTP/2 forbids. None is answered with
// success, none panics, and the connection can be used after them.
func TestHTTP2OddRequests(t *testing.T) {
	log, logged := logTo(slog.LevelDebug)
	l, _ := serveTLS(t, unlimited(t), httpapi.Options{Log: log})
	h := l.dialH2(t, stranger)
	h.exchange()
	const get, https, host = ":method GET", ":scheme https", ":authority localhost"
	for name, c := range map[string]struct {
		status string   // empty: the stream is reset
		fields []string // each is a name, a space and a value
	}{
		"CONNECT":                   {"404", []string{":method CONNECT", host}},
		"CONNECT with a path":       {"", []string{":method CONNECT", host, https, ":path /events"}},
		"extended CONNECT":          {"", []string{":method CONNECT", host, https, ":path /events", ":protocol websocket"}},
		"OPTIONS *":                 {"404", []string{":method OPTIONS", host, https, ":path *"}},
		"no path":                   {"", []string{get, host, https}},
		"an empty path":             {"", []string{get, host, https, ":path "}},
		"a path without a slash":    {"", []string{get, host, https, ":path events"}},
		"two paths":                 {"", []string{get, host, https, ":path /health", ":path /agents"}},
		"an absolute path":          {"404", []string{get, host, https, ":path https://localhost/nowhere"}},
		"two slashes":               {"404", []string{get, host, https, ":path //events?cursor=0&timeout=0"}},
		"no method":                 {"", []string{host, https, ":path /health"}},
		"a method in lower case":    {"405", []string{":method get", host, https, ":path /agents"}},
		"another scheme":            {"", []string{get, host, ":scheme ftp", ":path /health"}},
		"an unknown pseudo-header":  {"", []string{get, host, https, ":path /health", ":x y"}},
		"a late pseudo-header":      {"", []string{get, https, ":path /health", "x-a a", host}},
		"a header in upper case":    {"", []string{get, host, https, ":path /health", "X-A a"}},
		"a header with a slash":     {"", []string{get, host, https, ":path /health", "x/a a"}},
		"an empty name":             {"", []string{get, host, https, ":path /health", " a"}},
		"a line feed in a value":    {"", []string{get, host, https, ":path /health", "x-a a\r\nx-b: b"}},
		"NUL in a value":            {"", []string{get, host, https, ":path /health", "x-a a\x00"}},
		"a line feed in the path":   {"", []string{get, host, https, ":path /health\r\n"}},
		"a space in the path":       {"404", []string{get, host, https, ":path /nowhere HTTP/1.1"}},
		"Connection":                {"400", []string{get, host, https, ":path /health", "connection close"}},
		"Transfer-Encoding":         {"400", []string{":method POST", host, https, ":path /events", "transfer-encoding chunked"}},
		"Upgrade":                   {"400", []string{get, host, https, ":path /health", "upgrade h2c"}},
		"a wrong Content-Length":    {"400", []string{":method POST", host, https, ":path /events", "content-length 5"}},
		"a negative Content-Length": {"400", []string{":method POST", host, https, ":path /events", "content-length -5"}},
		"a post without a body":     {"400", []string{":method POST", host, https, ":path /events"}},
		"Content-Encoding":          {"415", []string{":method POST", host, https, ":path /events", "content-encoding gzip"}},
		"Expect something else":     {"400", []string{":method POST", host, https, ":path /events", "expect tea"}},
	} {
		var fields []string
		for _, field := range c.fields {
			name, value, _ := strings.Cut(field, " ")
			fields = append(fields, name, value)
		}
		h.last += 2
		id := h.last - 1
		h.sendHeader(id, h.encode(fields...))
		a := h.answer(id)
		if a.status != c.status || (a.reset == nil) != (c.status != "") {
			t.Errorf("%s: answered %+v %s, want %q", name, a, a.body.String(), c.status)
		}
		if h.err != nil {
			t.Fatalf("%s: %v", name, h.err)
		}
	}
	h.exchange()
	for line := range strings.Lines(logged()) {
		if !strings.Contains(line, `"level":"DEBUG"`) || strings.Contains(line, "panic") {
			t.Errorf("logged %s", line)
		}
	}
}

// client returns an HTTP client that connects to l from an address. It uses HTTP/2 if the relay offers it, or HTTP/1.1.
func (l *pipeListener) client(t testing.TB, from string, useHTTP2 bool) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP2(useHTTP2)
	protocols.SetHTTP1(!useHTTP2)
	transport := &http.Transport{Protocols: protocols, TLSClientConfig: clientConfig(t),
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			c, _ := l.dialWatched(t, from)
			return c, nil
		}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// fetch sends a request and returns the answer with its whole body.
func fetch(t testing.TB, c *http.Client, req *http.Request) (*http.Response, string) {
	t.Helper()
	response, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// TestHTTP2SignedRequests posts a message to a private relay and reads it with a token. HTTP/2 sends the names of
// headers in lower case. Without the token, with the token of another path, and with a used token, the read is refused.
func TestHTTP2SignedRequests(t *testing.T) {
	racing.Skip(t, "one thing after another")
	r := startWith(t, asIs, relay.Config{Origin: origin, Reads: relay.ToParties})
	l, _ := serveTLS(t, r, httpapi.Options{Log: quiet})
	h := l.dialH2(t, stranger)
	h.exchange()
	alice, bob := key(t), key(t)
	e := sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "echo"}, Recipient: bob.DID()})
	h.answer(h.post("/events", e.Canonical())).want(t, "200", `{"ok":true,"id":"`+e.ID)
	inbox := "/events?cursor=0&timeout=0&recipient=" + url.QueryEscape(string(bob.DID()))
	token := authorization(t, bob, inbox)
	h.answer(h.get(inbox)).want(t, "401", "UNAUTHORIZED")
	h.answer(h.get(inbox, "authorization", authorization(t, alice, inbox))).want(t, "401", "UNAUTHORIZED")
	h.answer(h.get(inbox+"&limit=5", "authorization", token)).want(t, "401", "UNAUTHORIZED")
	h.answer(h.get(inbox, "authorization", token, "authorization", token)).want(t, "401", "UNAUTHORIZED")
	h.answer(h.get(inbox, "authorization", token)).want(t, "200", string(e.Canonical()))
	used := h.answer(h.get(inbox, "authorization", token))
	used.want(t, "401", `"reason":"used"`)
	if used.header["www-authenticate"] != "Agora" || used.header["content-type"] != "application/json" {
		t.Errorf("the header of a refusal is %v", used.header)
	}

	// The same with the client of net/http.
	c := l.client(t, stranger, true)
	req, err := http.NewRequest("GET", "https://localhost"+inbox, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", authorization(t, bob, inbox))
	response, body := fetch(t, c, req)
	if response.StatusCode != 200 || response.ProtoMajor != 2 || !strings.Contains(body, string(e.Canonical())) {
		t.Errorf("%s %d %s", response.Proto, response.StatusCode, body)
	}
}

// TestHTTP2PeersAreAsOverHTTP1 sends the same requests over HTTP/2 and HTTP/1.1. Both give the same status, the same
// address of the client, and the same answer to whether the request is local.
func TestHTTP2PeersAreAsOverHTTP1(t *testing.T) {
	racing.Skip(t, "one thing after another")
	ownProxy := httpapi.Options{Proxies: httpapi.Proxies{Networks: networks("127.0.0.1/32")}}
	proxied := httpapi.Options{Proxies: httpapi.Proxies{Networks: networks("10.0.0.0/8")}}
	plain, limitLocal, public := httpapi.Options{}, httpapi.Options{LimitLocal: true}, httpapi.Options{PublicURL: origin}
	const local, proxy, relayName = "127.0.0.1:9", "10.0.0.1:9", "relay.example"
	const forwarded = "X-Forwarded-For: 198.51.100.7"
	r := unlimited(t)
	for name, c := range map[string]struct {
		addr       net.Addr
		o          httpapi.Options
		from, host string
		header     string
		status     int
		peer       string // address, and whether the request is local
	}{
		"loopback":                 {loopback, plain, local, "localhost", "", 200, "127.0.0.1 true"},
		"loopback, with a port":    {loopback, plain, local, "localhost:8789", "", 200, "127.0.0.1 true"},
		"loopback 6":               {loopback, plain, "[::1]:9", "[::1]:8789", "", 200, "::1 true"},
		"loopback, mapped":         {loopback, plain, "[::ffff:127.0.0.1]:9", "127.0.0.1", "", 200, "127.0.0.1 true"},
		"another loopback address": {loopback, plain, "127.8.9.10:9", "127.0.0.1", "", 200, "127.8.9.10 true"},
		"another name":             {loopback, plain, local, "evil.example", "", 422, ""},
		"on all interfaces":        {allInterfaces, plain, local, "localhost", "", 200, "127.0.0.1 false"},
		"with LimitLocal":          {loopback, limitLocal, local, "localhost", "", 200, "127.0.0.1 false"},
		"a public URL":             {loopback, public, local, "localhost", "", 200, "127.0.0.1 false"},
		"the name of a public URL": {loopback, public, local, relayName, "", 200, "127.0.0.1 false"},
		"another machine":          {loopback, plain, stranger, "localhost", "", 200, "192.0.2.1 false"},
		"an IPv6 address":          {allInterfaces, plain, "[2001:db8::7]:9", relayName, "", 200, "2001:db8::7 false"},
		"X-Forwarded-For":          {loopback, plain, local, "localhost", forwarded, 200, "127.0.0.1 false"},
		"Forwarded":                {loopback, plain, local, "localhost", "Forwarded: for=198.51.100.7", 200, "127.0.0.1 false"},
		"Via":                      {loopback, plain, local, "localhost", "Via: 2 proxy", 200, "127.0.0.1 false"},
		"a browser":                {loopback, plain, local, "localhost", "Sec-Fetch-Site: none", 200, "127.0.0.1 false"},
		"a page of another origin": {loopback, plain, local, "localhost", "Origin: https://evil.example", 200, "127.0.0.1 false"},
		"its own page origin":      {loopback, plain, local, "localhost", "Origin: https://localhost", 200, "127.0.0.1 false"},
		"a trusted proxy":          {allInterfaces, proxied, proxy, relayName, forwarded, 200, "198.51.100.7 false"},
		"a proxy without a header": {allInterfaces, proxied, proxy, relayName, "", 200, "10.0.0.1 false"},
		"a stranger as proxy":      {allInterfaces, proxied, stranger, relayName, forwarded, 200, "192.0.2.1 false"},
		"a proxy for this machine": {allInterfaces, proxied, proxy, "localhost", "X-Forwarded-For: 127.0.0.1", 200, "127.0.0.1 false"},
		"a proxy on this machine":  {loopback, ownProxy, local, "localhost", "", 200, "127.0.0.1 false"},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Log = quiet
			l := newPipeListener(c.addr)
			runFront(t, httpapi.New(r, c.o), httpapi.Listener{Listener: l, TLS: serverConfig(t),
				Mounts: []httpapi.Mount{gateway{r}.mount("")}})
			for _, useHTTP2 := range []bool{false, true} {
				req, err := http.NewRequest("GET", "https://localhost/", nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Host = c.host
				if name, value, found := strings.Cut(c.header, ": "); found {
					req.Header.Set(name, value)
				}
				response, body := fetch(t, l.client(t, c.from, useHTTP2), req)
				var seen struct {
					From  netip.Addr
					Local bool
				}
				if err := json.Unmarshal([]byte(body), &seen); err != nil {
					t.Fatal(err)
				}
				got := ""
				if response.StatusCode == 200 {
					got = fmt.Sprint(seen.From, seen.Local)
				}
				if response.StatusCode != c.status || got != c.peer || (response.ProtoMajor == 2) != useHTTP2 {
					t.Errorf("%s: %d %q, want %d %q", response.Proto, response.StatusCode, got, c.status, c.peer)
				}
			}
		})
	}
}
