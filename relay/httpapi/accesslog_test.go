package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// logLine is a line of the log, with the members of all lines about requests.
type logLine struct {
	Level, Msg, ID, Addr, Proto, Method, Path, Agent string
	Status                                           int
	Bytes                                            int64
	MS                                               *float64
	Traceparent                                      string
}

// linesOf returns the lines of a log that have this text as their message.
func linesOf(t testing.TB, log, msg string) (lines []logLine) {
	t.Helper()
	for line := range strings.Lines(log) {
		var l logLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Errorf("the log has the line %q: %v", line, err)
		}
		if l.Msg == msg {
			lines = append(lines, l)
		}
	}
	return lines
}

// TestAccessLog sends requests over HTTP/1.1 and HTTP/2. Each has one line in the log, with the status and the bytes of
// the answer that its client got. The line has the id that the answer has. It has no query, token or body.
func TestAccessLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, logged := logTo(slog.LevelInfo)
		r := startWith(t, asIs, relay.Config{Origin: origin, Reads: relay.ToParties,
			Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: 0.01, Burst: 4}}})
		l := newPipeListener(allInterfaces)
		runFront(t, newFront(t, r, httpapi.Options{Log: log, AccessLog: true, Origins: []string{"https://app.example"},
			Redact: func(path string) string { return strings.ReplaceAll(path, tokenSecret, "…") },
			Mounts: []httpapi.Mount{gateway{r}.mount("/gateway")}}), httpapi.Listener{Listener: l, TLS: serverConfig(t)})
		me := key(t)
		stored := sign(t, me, envelope.Draft{Payload: envelope.Request{Intent: "echo", Title: bodySecret}})
		inbox := "/events?timeout=0&cursor=0&recipient=" + string(me.DID())
		ids := map[string]bool{}
		for from, useHTTP2 := range map[string]bool{"192.0.2.1": false, "2001:db8::7": true} {
			c := l.client(t, netip.AddrPortFrom(netip.MustParseAddr(from), 9).String(), useHTTP2)
			for _, request := range []struct {
				method, target, body string
				status               int
				path                 string
				header               []string
			}{
				{"GET", "/health", "", 200, "/health", nil},
				{"HEAD", "/health", "", 200, "/health", nil},
				{"GET", "/agents?q=" + querySecret, "", 200, "/agents", nil},
				{"GET", "/nowhere?" + querySecret, "", 404, "/nowhere", nil},
				{"GET", inbox, "", 200, "/events", []string{"Authorization", authorization(t, me, inbox)}},
				{"GET", "/events?cursor=0", "", 401, "/events", []string{"Authorization", "Agora " + tokenSecret}},
				{"GET", "/events?cursor=0&type=RESULT&timeout=1", "", 200, "/events", nil},
				{"POST", "/events", string(stored.Canonical()), 200, "/events", nil},
				{"POST", "/events?" + querySecret, bodySecret, 400, "/events", nil},
				{"GET", "/gateway/items/first?" + querySecret, "", 200, "/gateway/items/first", nil},
				{"GET", "/gateway/items/" + tokenSecret, "", 410, "/gateway/items/…", nil},
				{"OPTIONS", "/events", "", 204, "/events", []string{"Origin", "https://app.example", "Access-Control-Request-Method", "POST"}},
				{"PUT", "/events", bodySecret, 403, "/events", []string{"Cookie", tokenSecret, "Origin", "https://" + querySecret}},
				{"PUT", "/events", bodySecret, 405, "/events", []string{"X-Forwarded-For", "198.51.100.1"}},
				{"PUT", "/events", bodySecret, 429, "/events", []string{"X-Request-Id", "chosen"}},
			} {
				before := len(logged())
				req, err := http.NewRequest(request.method, "https://localhost"+request.target, strings.NewReader(request.body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("User-Agent", "the-agent/1")
				for i := 0; i < len(request.header); i += 2 {
					req.Header.Set(request.header[i], request.header[i+1])
				}
				response, body := fetch(t, c, req)
				synctest.Wait()
				text := logged()[before:]
				lines := linesOf(t, text, "request")
				if len(lines) != 1 || strings.Count(text, "\n") != 1 {
					t.Fatalf("%s %s is logged as %s", request.method, request.target, text)
				}
				line, id := lines[0], response.Header.Get("X-Request-Id")
				if line.MS == nil || *line.MS < 0 || strings.HasSuffix(request.target, "timeout=1") != (*line.MS == 1000) {
					t.Errorf("%s %s: the time is %v ms", request.method, request.target, *line.MS)
				}
				want := logLine{"INFO", "request", id, from, response.Proto, request.method, request.path, "the-agent/1",
					request.status, int64(len(body)), line.MS, ""}
				if line != want || response.StatusCode != request.status || (response.ProtoMajor == 2) != useHTTP2 {
					t.Errorf("%s %s is logged as\n%+v, want\n%+v", request.method, request.target, line, want)
				}
				if ids[id] || len(id) != 26 {
					t.Errorf("the id %q is not new", id)
				}
				ids[id] = true
				checkLog(t, text)
				for _, secret := range []string{string(me.DID()), "cursor=0", "chosen"} {
					if strings.Contains(text, secret) {
						t.Errorf("%q is in the log: %s", secret, text)
					}
				}
			}
		}
	})
}

// TestAccessLogIsOff checks that without AccessLog a request has no line at the level INFO, and its answer has no id.
// At the level DEBUG it has both.
func TestAccessLogIsOff(t *testing.T) {
	log, logged := logTo(slog.LevelInfo)
	r := unlimited(t)
	a := get(t, newFront(t, r, httpapi.Options{Log: log}).Handler(false), "/agents")
	if id := a.header["X-Request-Id"]; id != nil || logged() != "" {
		t.Errorf("logged %s, id %q", logged(), id)
	}
	log, logged = logTo(slog.LevelDebug)
	a = get(t, newFront(t, r, httpapi.Options{Log: log}).Handler(false), "/agents")
	lines := linesOf(t, logged(), "request")
	if len(lines) != 1 || lines[0].Level != "DEBUG" || lines[0].ID != a.header.Get("X-Request-Id") || lines[0].ID == "" {
		t.Errorf("logged %s, id %q", logged(), a.header["X-Request-Id"])
	}
}

// startPoll sends a poll and waits until the relay waits for events. leave disconnects the client.
func startPoll(t *testing.T, c *http.Client, url string) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		response, err := c.Do(req)
		if err == nil {
			err = response.Body.Close()
		}
		ended <- err
	}()
	synctest.Wait()
	return func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the poll ended with %v", err)
		}
	}
}

// TestAccessLogOfBrokenAnswers looks at the lines about requests whose answers did not arrive as a whole: the client
// left during a poll, and the store failed after a part of the answer was sent.
func TestAccessLogOfBrokenAnswers(t *testing.T) {
	for _, useHTTP2 := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			log, logged := logTo(slog.LevelInfo)
			r := unlimited(t)
			l := newPipeListener(allInterfaces)
			abort := func(w http.ResponseWriter, _ *http.Request, _ relay.Peer) error {
				httpapi.SetHeader(w, "text/plain")
				fmt.Fprint(w, "a part")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			mounts := []httpapi.Mount{{Prefix: "/aborts", Handler: abort}}
			runFront(t, newFront(t, r, httpapi.Options{Log: log, AccessLog: true, Mounts: mounts}),
				httpapi.Listener{Listener: l, TLS: serverConfig(t)})
			c := l.client(t, stranger, useHTTP2)
			leave := startPoll(t, c, "https://localhost/events?cursor=0&timeout=60")
			leave()
			synctest.Wait()
			if response, err := c.Get("https://localhost/aborts"); err == nil {
				_ = response.Body.Close()
			}
			synctest.Wait()
			lines := linesOf(t, logged(), "request")
			if len(lines) != 2 {
				t.Fatalf("HTTP/2 %v: logged %s", useHTTP2, logged())
			}
			left, aborted := lines[0], lines[1]
			if left.Path != "/events" || left.Status != 503 || aborted.Path != "/aborts" || aborted.Status != 200 || aborted.Bytes != 6 {
				t.Errorf("HTTP/2 %v: logged %s", useHTTP2, logged())
			}
		})
	}
}

// TestRequestIDs checks which ids of requests are taken over: those that a trusted proxy gives and that have the right
// form. All other requests get a new id.
func TestRequestIDs(t *testing.T) {
	const trusted = "10.0.0.1:9"
	r := unlimited(t)
	for _, c := range []struct {
		from  string
		ids   []string
		taken bool
	}{
		{trusted, []string{"a"}, true}, {trusted, []string{"A-Z.0_9"}, true}, {trusted, []string{strings.Repeat("x", 64)}, true},
		{trusted, []string{"..."}, true}, {"[::ffff:10.0.0.1]:9", []string{"abc"}, true},
		{stranger, []string{"a"}, false}, {"127.0.0.1:9", []string{"a"}, false}, {"@", []string{"a"}, false},
		{trusted, nil, false}, {trusted, []string{""}, false}, {trusted, []string{strings.Repeat("x", 65)}, false},
		{trusted, []string{"a b"}, false}, {trusted, []string{"a\n"}, false}, {trusted, []string{"\"a\""}, false},
		{trusted, []string{"ä"}, false}, {trusted, []string{"a/b"}, false}, {trusted, []string{"a,b"}, false},
		{trusted, []string{"a", "a"}, false}, {trusted, []string{"a", "b"}, false},
	} {
		log, logged := logTo(slog.LevelInfo)
		h := newFront(t, r, httpapi.Options{Log: log, AccessLog: true,
			Proxies: httpapi.Proxies{Networks: networks("10.0.0.0/8")}}).Handler(false)
		req := httptest.NewRequest("GET", "/health", nil)
		req.RemoteAddr, req.Header["X-Request-Id"] = c.from, c.ids
		id := call(t, h, req).header.Get("X-Request-Id")
		lines := linesOf(t, logged(), "request")
		if len(lines) != 1 || lines[0].ID != id || id == "" || (len(c.ids) > 0 && id == c.ids[0]) != c.taken || !c.taken && len(id) != 26 {
			t.Errorf("%s %q: the answer has the id %q, logged %s", c.from, c.ids, id, logged())
		}
	}
}

// TestTraceOfRequests checks that the access log has the header traceparent, if it has the form of W3C Trace Context.
func TestTraceOfRequests(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r := unlimited(t)
	for given, want := range map[string]string{trace: trace, "": "", trace[1:]: "", trace + "0": "", strings.ToUpper(trace): "",
		trace + "\n": "", "00-\u2028": ""} {
		log, logged := logTo(slog.LevelInfo)
		req := httptest.NewRequest("GET", "/health", nil)
		req.Header["Traceparent"] = []string{given}
		call(t, newFront(t, r, httpapi.Options{Log: log, AccessLog: true}).Handler(false), req)
		if lines := linesOf(t, logged(), "request"); len(lines) != 1 || lines[0].Traceparent != want {
			t.Errorf("%q is logged as %s", given, logged())
		}
	}
}

// TestAccessLogOfHostileRequests puts strings that have broken logs into the User-Agent, the path, the method and the
// Host. Each request has one line of valid JSON. Its User-Agent has at most 200
// bytes, and its path at most 512.
func TestAccessLogOfHostileRequests(t *testing.T) {
	r := unlimited(t)
	for _, text := range append(slices.Clone(naughty), "\xff\xfe", strings.Repeat("é", 150), "a"+strings.Repeat("é", 150),
		`","level":"ERROR`, "\n\n\n") {
		log, logged := logTo(slog.LevelInfo)
		h := newFront(t, r, httpapi.Options{Log: log, AccessLog: true}).Handler(false)
		req := httptest.NewRequest("GET", "/", nil)
		req.URL.Path, req.Host = "/"+text, text
		req.Header["User-Agent"] = []string{text, "a second one"}
		id := call(t, h, req).header.Get("X-Request-Id")
		lines := linesOf(t, logged(), "request")
		if len(lines) != 1 || strings.Count(logged(), "\n") != 1 || !utf8.ValidString(logged()) {
			t.Errorf("%q is logged as %q", text, logged())
			continue
		}
		l := lines[0]
		if l.Level != "INFO" || l.ID != id || l.Status != 404 {
			t.Errorf("%q is logged as %s", text, logged())
		}
		if !utf8.ValidString(text) {
			continue // it is logged with replacements
		}
		agent := strings.TrimSuffix(l.Agent, "\ufffd") // half a character at its end
		if want := "/" + text; l.Path != want[:min(len(want), 512)] || len(agent) > 200 || len(text) <= 200 && agent != strings.TrimSuffix(text, "\ufffd") {
			t.Errorf("%q is logged as %s", text, logged())
		}
	}
}

// TestFailuresAreLoggedWithTheirID checks that a panic and an unknown error are logged with the id that the answer has,
// with and without an access log. So an operator finds the reason for an answer that a user shows.
func TestFailuresAreLoggedWithTheirID(t *testing.T) {
	r := startWrapped(t, func(s relay.Store) relay.Store { return panicking{&fragile{Store: s, fails: true}} })
	for _, accessLog := range []bool{false, true} {
		for msg, request := range map[string]*http.Request{
			"panic": httptest.NewRequest("GET", "/agents", nil),
			"request failed": httptest.NewRequest("POST", "/events",
				bytes.NewReader(sign(t, key(t), envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical())),
		} {
			log, logged := logTo(slog.LevelInfo)
			a := call(t, newFront(t, r, httpapi.Options{Log: log, AccessLog: accessLog}).Handler(false), request)
			a.want(t, 500, envelope.CodeInternal)
			id := a.header.Get("X-Request-Id")
			lines := linesOf(t, logged(), msg)
			if len(lines) != 1 || lines[0].ID != id || id == "" || lines[0].Level != "ERROR" ||
				!strings.Contains(a.Message, "X-Request-Id") {
				t.Errorf("%s: the answer has the id %q and the message %q; logged %s", msg, id, a.Message, logged())
			}
			lines = linesOf(t, logged(), "request")
			if accessLog != (len(lines) == 1) || accessLog && (lines[0].ID != id || lines[0].Status != 500) {
				t.Errorf("the access log %v has %+v", accessLog, lines)
			}
		}
	}
}
