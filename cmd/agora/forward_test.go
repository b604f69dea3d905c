package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/relay/httpapi"
)

// newLocalPage returns the handler of agora page for the relay at url, and what it logs.
func newLocalPage(t *testing.T, url string) (http.Handler, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	forward := newForwarder(url, cli.NewLog(cli.Environment{Stderr: &log}))
	t.Cleanup(forward.transport.CloseIdleConnections)
	return localOnly{httpapi.Routes("", forward.routes()...), slog.New(slog.NewTextHandler(&log, nil))}, &log
}

// askPage sends a GET with these headers, which are pairs of name and value.
func askPage(h http.Handler, target string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", target, nil)
	r.Host = "localhost:8788"
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestForwardedRequests checks what reaches the relay: path and query as they were sent, and no header but
// Authorization. Other requests do not reach it.
func TestForwardedRequests(t *testing.T) {
	var got *http.Request
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "a=b")
		fmt.Fprint(w, "{}")
	}))
	defer relay.Close()
	h, _ := newLocalPage(t, relay.URL)
	for _, target := range []string{
		"/events", "/events?", "/events?cursor=0&recipient=did:key:z6Mk&timeout=30", "/events?cursor=%30&x=a+b%2f;&&=",
		"/threads/a?client=did%3akey", "/threads/did%3Akey%3Az6", "/threads/a~b.c:d", "/agents", "/agents/did:key:z6Mk",
		"/agents?q=%E4%BD%A0", "/health", "/.well-known/agora.json", "/openapi.json",
	} {
		got = nil
		w := askPage(h, target, "Authorization", "Agora token", "Cookie", "a=b", "Referer", "http://x/", "Origin", "http://x",
			"X-Forwarded-For", "1.2.3.4", "Range", "bytes=0-1", "Sec-Fetch-Site", "same-origin")
		if got == nil || w.Code != 200 {
			t.Errorf("%s: %d", target, w.Code)
			continue
		}
		if got.RequestURI != target || got.Method != "GET" || got.Host != strings.TrimPrefix(relay.URL, "http://") {
			t.Errorf("%s arrives as %s %s at %s", target, got.Method, got.RequestURI, got.Host)
		}
		want := http.Header{"Accept": {"application/json"}, "User-Agent": {"agora-page/1.0"}, "Authorization": {"Agora token"}}
		if fmt.Sprint(got.Header) != fmt.Sprint(want) {
			t.Errorf("%s arrives with %v", target, got.Header)
		}
		if w.Header().Get("Set-Cookie") != "" || w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s is answered with %v", target, w.Header())
		}
	}
	got = nil
	for target, headers := range map[string][]string{
		"/": nil, "/seed": nil, "/hub/health": nil, "/v1/messages": nil, "//events": nil, "/events/": nil, "/threads/": nil,
		"/threads/a/b": nil, "/threads/a%2Fb": nil, "/threads/..": nil, "/threads/%2e%2e": nil, "/agents/../seed": nil,
		"/threads/a%00": nil, "/Events": nil, "/proofs/x": nil, "/log/0000002a/tile/0/000": nil, "/log/../checkpoint": nil,
		"/health": {"Host", "evil.example"}, "/agents": {"Sec-Fetch-Site", "cross-site"},
		"/events":                 {"Sec-Fetch-Site", "same-site"},
		"/events?cursor=0":        {"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Site", "cross-site"},
		"/.well-known/agora.json": {"Host", "localhost.evil.example"},
	} {
		if w := askPage(h, target, headers...); w.Code != 403 && w.Code != 404 || got != nil {
			t.Errorf("%s %v: %d, forwarded: %v", target, headers, w.Code, got != nil)
		}
	}
}

// TestForwardedAnswers checks what the page gets for each kind of answer.
func TestForwardedAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		answer  string // status and headers, without Content-Length
		body    string
		status  int
		headers string // Retry-After and WWW-Authenticate
		passed  bool   // the body is passed on
	}{
		"refusal":            {"400 x\r\nContent-Type: application/json", `{"ok":false}`, 400, " ", true},
		"with a charset":     {"200 x\r\nContent-Type: application/json; charset=utf-8", `{}`, 200, " ", true},
		"busy":               {"429 x\r\nContent-Type: application/json\r\nRetry-After: 7", `{}`, 429, "7 ", true},
		"unsigned":           {"401 x\r\nContent-Type: application/json\r\nWWW-Authenticate: Agora", `{}`, 401, " Agora", true},
		"asks for passwords": {"401 x\r\nContent-Type: application/json\r\nWWW-Authenticate: Basic realm=x", `{}`, 401, " ", true},
		"a page":             {"200 x\r\nContent-Type: text/html", "<script>alert(1)</script>", 502, " ", false},
		"no type":            {"200 x", "<script>alert(1)</script>", 502, " ", false},
		"a wrong type":       {"200 x\r\nContent-Type: application/json-seq", "{}", 502, " ", false},
		"a redirect":         {"302 x\r\nLocation: http://127.0.0.1:1/\r\nContent-Type: application/json", "{}", 502, " ", false},
		"busy proxy":         {"503 x\r\nContent-Type: text/html\r\nRetry-After: 9", "<p>", 503, "9 ", false},
		"busy proxy's date":  {"429 x\r\nContent-Type: text/html\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT", "<p>", 429, "1 ", false},
		"failing proxy":      {"500 x\r\nContent-Type: text/html", "<p>", 502, " ", false},
	} {
		t.Run(name, func(t *testing.T) {
			url := hostileRelay(t, func(*http.Request) string { return raw(c.answer, []byte(c.body)) })
			h, _ := newLocalPage(t, url)
			w := askPage(h, "/events?cursor=0")
			if got := w.Header().Get("Retry-After") + " " + w.Header().Get("WWW-Authenticate"); w.Code != c.status || got != c.headers {
				t.Errorf("%d %q, want %d %q", w.Code, got, c.status, c.headers)
			}
			if passed := w.Body.String() == c.body; passed != c.passed || w.Header().Get("Content-Type") != "application/json" {
				t.Errorf("the page gets %s %s", w.Header().Get("Content-Type"), w.Body)
			}
			if !c.passed && !strings.HasPrefix(w.Body.String(), `{"ok":false,"error":"UNAVAILABLE"`) {
				t.Errorf("the page gets %s", w.Body)
			}
		})
	}
}

// TestForwardedTexts checks that proofs and checkpoints are passed on as plain text, and nothing else at their paths.
func TestForwardedTexts(t *testing.T) {
	const text, data = "text/plain; charset=utf-8", "application/json"
	for _, c := range []struct {
		target, answer string
		status         int
		as             string
	}{
		{"/proofs?sender=did:key:z6Mk&id=a", "200 x\r\nContent-Type: text/plain", 200, text},
		{"/log/0000002a/checkpoint", "200 x\r\nContent-Type: text/plain; charset=utf-8", 200, text},
		{"/proofs?id=a", "404 x\r\nContent-Type: application/json", 404, data},
		{"/proofs?id=a", "404 x\r\nContent-Type: text/plain", 502, data},
		{"/proofs?id=a", "200 x\r\nContent-Type: text/html", 502, data},
		{"/proofs?id=a", "200 x\r\nContent-Type: application/json", 502, data},
		{"/events?cursor=0", "200 x\r\nContent-Type: text/plain", 502, data},
	} {
		var asked string
		url := hostileRelay(t, func(r *http.Request) string {
			asked = r.RequestURI
			return raw(c.answer, []byte("the body"))
		})
		h, _ := newLocalPage(t, url)
		w := askPage(h, c.target)
		if got := w.Header().Get("Content-Type"); w.Code != c.status || got != c.as || asked != c.target {
			t.Errorf("%s %q: %d %s, asked for %s", c.target, c.answer, w.Code, got, asked)
		}
		if passed := w.Body.String() == "the body"; passed != (c.status != 502) {
			t.Errorf("%s %q: %s", c.target, c.answer, w.Body)
		}
	}
}

// TestUnreachableRelay checks that the page learns that there is no relay, and that the terminal shows the reason.
func TestUnreachableRelay(t *testing.T) {
	h, log := newLocalPage(t, "http://127.0.0.1:1")
	w := askPage(h, "/health")
	if w.Code != 502 || !strings.Contains(w.Body.String(), `"error":"UNAVAILABLE"`) || strings.Contains(w.Body.String(), "127.0.0.1") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if !strings.Contains(log.String(), "the relay cannot be reached") || !strings.Contains(log.String(), "refused") {
		t.Errorf("the log is %q", log)
	}
}

// TestLongAnswers checks that an answer is passed on in parts, and that one that is too large or breaks off does not
// look complete.
func TestLongAnswers(t *testing.T) {
	more, part := make(chan bool), strings.Repeat(" ", 1<<20)
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.RawQuery {
		case "parts":
			fmt.Fprint(w, "first")
			_ = http.NewResponseController(w).Flush()
			<-more
			fmt.Fprint(w, "last")
		case "announced":
			w.Header().Set("Content-Length", fmt.Sprint(forwardBytes+1))
		case "endless":
			for r.Context().Err() == nil {
				fmt.Fprint(w, part)
			}
		case "broken":
			fmt.Fprint(w, part)
			panic(http.ErrAbortHandler)
		}
	}))
	relay.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	defer relay.Close()
	h, _ := newLocalPage(t, relay.URL)
	page := httptest.NewServer(h)
	defer page.Close()
	get := func(query string) *http.Response {
		t.Helper()
		answer, err := http.Get(page.URL + "/events?" + query)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { answer.Body.Close() })
		return answer
	}
	answer := get("parts")
	first := make([]byte, 5)
	if _, err := io.ReadFull(answer.Body, first); err != nil || string(first) != "first" {
		t.Errorf("the first part is %q, %v", first, err)
	}
	close(more)
	if rest, err := io.ReadAll(answer.Body); err != nil || string(rest) != "last" {
		t.Errorf("the last part is %q, %v", rest, err)
	}
	if answer := get("announced"); answer.StatusCode != 502 {
		t.Errorf("an answer that announces too many bytes: %d", answer.StatusCode)
	}
	for _, query := range []string{"endless", "broken"} {
		if n, err := io.Copy(io.Discard, get(query).Body); err == nil || n > forwardBytes {
			t.Errorf("%s: %d bytes, %v", query, n, err)
		}
	}
}

// TestPageEndsWithItsPolls checks that agora page ends soon when it is interrupted, although a poll waits.
func TestPageEndsWithItsPolls(t *testing.T) {
	polled := make(chan bool)
	relay := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		polled <- true
		<-r.Context().Done()
	}))
	defer relay.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan int, 1)
	var stderr bytes.Buffer
	go func() {
		ended <- run(cli.Environment{Ctx: ctx, Stdout: in, Stderr: &stderr}, []string{"page", relay.URL, "--addr", "127.0.0.1:0"})
	}()
	lines := bufio.NewScanner(out)
	at := ""
	for at == "" && lines.Scan() {
		at, _ = strings.CutPrefix(lines.Text(), "page at ")
		if at == lines.Text() {
			at = ""
		}
	}
	answered := make(chan error, 1)
	go func() {
		answer, err := http.Get(at + "events?cursor=0")
		if err == nil {
			err = answer.Body.Close()
		}
		answered <- err
	}()
	<-polled
	began := time.Now()
	interrupt()
	if code := <-ended; code != cli.ExitOK || time.Since(began) > 20*time.Second {
		t.Errorf("ended with %d after %v: %s", code, time.Since(began), stderr.String())
	}
	<-answered
	http.DefaultClient.CloseIdleConnections()
}
