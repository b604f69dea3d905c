package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// bulkAnswer is the answer to a bulk request.
type bulkAnswer struct {
	OK      bool
	Results []struct {
		ID, ExpiresAt string
		Duplicate     *bool
		Error         envelope.Code
		Message       string
		Details       map[string]any
	}
	Stopped *struct {
		Error      envelope.Code
		Message    string
		RetryAfter int
		Details    map[string]any
	}
}

// parseBulk parses the body of an answer with the status 200.
func parseBulk(t testing.TB, body []byte) (a bulkAnswer) {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&a); err != nil || !a.OK || a.Results == nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	return a
}

// postBulk posts a body to a handler.
func postBulk(t testing.TB, h http.Handler, body []byte) bulkAnswer {
	t.Helper()
	a := post(t, h, "/events/bulk", body)
	a.want(t, 200, "")
	return parseBulk(t, a.body)
}

// bulkBody returns envelopes as lines.
func bulkBody(all ...*envelope.Envelope) (body []byte) {
	for _, e := range all {
		body = append(append(body, e.Canonical()...), '\n')
	}
	return body
}

func someRequests(t testing.TB, n int) (all []*envelope.Envelope) {
	by := key(t)
	for range n {
		all = append(all, sign(t, by, envelope.Draft{Recipient: key(t).DID(), Payload: envelope.Request{Intent: "echo"}}))
	}
	return all
}

// TestBulk checks the form of the answer, and what counts as a line (RELAYS ).
func TestBulk(t *testing.T) {
	h := newFront(t, unlimited(t), httpapi.Options{}).Handler(false)
	all := someRequests(t, 3)
	full := bulkBody(all...)
	a := post(t, h, "/events/bulk", full)
	a.want(t, 200, "")
	want := fmt.Sprintf(`{"ok":true,"results":[{"id":"%s","duplicate":false,"expiresAt":"%s"},`, all[0].ID,
		all[0].ExpiresAt().UTC().Format(time.RFC3339Nano))
	if !strings.HasPrefix(string(a.body), want) || strings.Contains(string(a.body), "stopped") {
		t.Errorf("the answer is %s, want %s", a.body, want)
	}

	huge, stored := strings.Repeat(" ", 128<<10), make([]envelope.Code, 3)
	const invalid, tooLarge = envelope.CodeInvalidRequest, envelope.CodePayloadTooLarge
	for name, c := range map[string]struct {
		body    string
		results []envelope.Code // "": stored
		stopped envelope.Code
	}{
		"no LF at the end":         {strings.TrimSuffix(string(full), "\n"), stored, ""},
		"CR LF":                    {strings.ReplaceAll(string(full), "\n", "\r\n"), stored, ""},
		"nothing":                  {"", nil, ""},
		"an empty line":            {"\n" + string(full), nil, invalid},
		"an empty line at the end": {string(full) + "\n", stored, invalid},
		"no message":               {"{}\n[]\n1\n", []envelope.Code{envelope.CodeUnsupportedVersion, invalid, invalid}, ""},
		"the longest line":         {huge + "\n" + string(full), []envelope.Code{invalid, "", "", ""}, ""},
		"a line that is too long":  {string(full) + huge + " \n" + string(full), stored, tooLarge},
		"too long without an end":  {string(full) + huge + huge, stored, tooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			a := postBulk(t, h, []byte(c.body))
			if len(a.Results) != len(c.results) {
				t.Fatalf("%d results: %+v", len(a.Results), a)
			}
			for i, r := range a.Results {
				isReceipt := r.Duplicate != nil && *r.Duplicate && r.ID != ""
				if r.Error != c.results[i] || (r.Error == "") != isReceipt || (r.Error == "") == (r.Message != "") {
					t.Errorf("line %d: %+v", i+1, r)
				}
			}
			if s := a.Stopped; (s == nil) != (c.stopped == "") || s != nil && (s.Error != c.stopped || s.Message == "") {
				t.Errorf("stopped: %+v, want %s", s, c.stopped)
			}
		})
	}

	post(t, h, "/events/bulk?proof=true", full).want(t, 400, envelope.CodeInvalidRequest)
	encoded := httptest.NewRequest("POST", "/events/bulk", bytes.NewReader(full))
	encoded.Header.Set("Content-Encoding", "gzip")
	call(t, h, encoded).want(t, 415, envelope.CodeUnsupportedMedia)
	get(t, h, "/events/bulk").want(t, 405, envelope.CodeMethodNotAllowed)
	var document struct {
		Features []string
		Limits   struct{ Bulks, BulkLines, BulkBytes int }
	}
	err := json.Unmarshal(get(t, h, "/.well-known/agora.json").body, &document)
	limits := document.Limits
	if err != nil || !slices.Contains(document.Features, "bulk") || limits.BulkLines != 10_000 ||
		limits.BulkBytes != 16<<20 || limits.Bulks != 4 {
		t.Errorf("the well-known document: %+v, %v", document, err)
	}
}

// TestBulkFailure checks that the reason of an internal error stays in the log.
func TestBulkFailure(t *testing.T) {
	r := startWrapped(t, func(s relay.Store) relay.Store { return failingStore{s} })
	h := newFront(t, r, httpapi.Options{}).Handler(false)
	a := post(t, h, "/events/bulk", bulkBody(someRequests(t, 2)...))
	if b := parseBulk(t, a.body); len(b.Results) != 0 || b.Stopped == nil || b.Stopped.Error != envelope.CodeInternal ||
		strings.Contains(string(a.body), "secret") {
		t.Errorf("%s", a.body)
	}
}

// sendBulk sends the head of a bulk request and returns its connection, and a channel with the answer.
func sendBulk(t *testing.T, l *pipeListener, head string) (c net.Conn, answered chan bulkAnswer) {
	t.Helper()
	c, answered = l.dial(), make(chan bulkAnswer, 1)
	fmt.Fprint(c, "POST /events/bulk HTTP/1.1\r\nHost: x\r\n"+head+"\r\n\r\n")
	go func() {
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Error(err)
			close(answered)
			return
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Error(err)
		}
		answered <- parseBulk(t, body)
	}()
	return c, answered
}

func chunk(c io.Writer, body []byte) { fmt.Fprintf(c, "%x\r\n%s\r\n", len(body), body) }

// TestBulkWaitsForLines sends lines slowly. Each may take 10 seconds, all of them a minute (RELAYS R-25). A line that
// has come is stored at once.
func TestBulkWaitsForLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := unlimited(t)
		l, _ := serve(t, r)
		all := someRequests(t, 8)
		c, answered := sendBulk(t, l, "Transfer-Encoding: chunked")
		for i := range 4 {
			chunk(c, bulkBody(all[i]))
			time.Sleep(9 * time.Second)
			if n := storedCount(t, r); n != i+1 {
				t.Errorf("%d messages are stored after %d lines", n, i+1)
			}
		}
		chunk(c, all[4].Canonical()[:100]) // not a whole line
		began := time.Now()
		a := <-answered
		if took := time.Since(began); took > time.Second || len(a.Results) != 4 || a.Stopped == nil ||
			a.Stopped.Error != envelope.CodeInvalidRequest {
			t.Errorf("after %v without a line: %+v", took+9*time.Second, a)
		}

		c, answered = sendBulk(t, l, "Transfer-Encoding: chunked")
		began = time.Now()
		for _, e := range all[:6] {
			chunk(c, bulkBody(e))
			time.Sleep(9 * time.Second)
		}
		chunk(c, bulkBody(all[6]))
		if a, took := <-answered, time.Since(began); took > 63*time.Second || len(a.Results) != 7 || a.Stopped == nil ||
			a.Stopped.Error != envelope.CodePayloadTooLarge {
			t.Errorf("after %v: %+v", took, a)
		}
	})
}

// TestBulkBreaksOff ends a connection in the middle of a line. The lines before are stored, and this one is not.
func TestBulkBreaksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := unlimited(t)
		l, _ := serve(t, r)
		all := someRequests(t, 3)
		body := bulkBody(all...)
		c := l.dial()
		fmt.Fprintf(c, "POST /events/bulk HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:len(body)-1])
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := storedCount(t, r); n != 2 {
			t.Errorf("%d messages are stored, want 2", n)
		}
	})
}

// TestBulkEndsWithTheRelay shuts down a relay while a bulk request waits for lines. Its client gets the results.
func TestBulkEndsWithTheRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, stop := serve(t, unlimited(t))
		c, answered := sendBulk(t, l, "Transfer-Encoding: chunked")
		chunk(c, bulkBody(someRequests(t, 2)...))
		synctest.Wait()
		began := time.Now()
		stop()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("the relay has waited %v for the request", took)
		}
		if a := <-answered; len(a.Results) != 2 || a.Stopped == nil || a.Stopped.Error != envelope.CodeUnavailable {
			t.Errorf("%+v", a)
		}
	})
}

// TestBulkRestIsDropped sends more than a request may have. The client gets the answer, although it reads only after it
// has sent everything (RELAYS R-25). What was dropped is charged to its address.
func TestBulkRestIsDropped(t *testing.T) {
	r := limited(t, relay.Limits{PostsPerAddress: relay.Rate{PerSecond: relay.Unlimited},
		ReadsPerAddress: relay.Rate{PerSecond: .01, Burst: 200}}) // a slow test gets no more
	server := httptest.NewServer(newFront(t, r, httpapi.Options{LimitLocal: true}).Handler(true))
	defer server.Close()
	lines := bytes.Repeat([]byte("{}\n"), 10_000)
	body := append(lines, bytes.Repeat([]byte(strings.Repeat("x", 1000)+"\n"), 3000)...)
	response, err := http.Post(server.URL+"/events/bulk", "application/x-ndjson", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := parseBulk(t, text)
	if len(a.Results) != 10_000 || a.Stopped == nil || a.Stopped.Error != envelope.CodePayloadTooLarge {
		t.Errorf("%d results, %+v", len(a.Results), a.Stopped)
	}
	read := func() int {
		response, err := http.Get(server.URL + "/agents")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body)
		return response.StatusCode
	}
	ok := 0
	for ; ok < 200 && read() == 200; ok++ {
	}
	if ok < 1 || ok > 20 { // of 200; 3 MB are 183 units, and a store that is slow takes some of the rest
		t.Errorf("%d reads after 3 MB were dropped", ok)
	}
}

// TestBulkLeavesTheConnection uses a connection for a long poll after a bulk request, and after one that takes more
// than the time of a body until it is stored.
func TestBulkLeavesTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startWrapped(t, func(s relay.Store) relay.Store { return slowAppends{s} })
		l, _ := serve(t, r)
		c := l.dial()
		reader := bufio.NewReader(c)
		emptyLine := append(bulkBody(someRequests(t, 1)...), '\n')
		for i, body := range [][]byte{bulkBody(someRequests(t, 2)...), []byte("{}"), emptyLine} {
			fmt.Fprintf(c, "POST /events/bulk HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			for range 2 {
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(response.Body)
				if err != nil || response.StatusCode != 200 || response.Close {
					t.Fatalf("request %d: %d %s, close %v, %v", i, response.StatusCode, text, response.Close, err)
				}
				if strings.Contains(string(text), "results") {
					fmt.Fprintf(c, "GET /events?cursor=0&recipient=%s&timeout=30 HTTP/1.1\r\nHost: x\r\n\r\n", key(t).DID())
				}
			}
		}
	})
}

// slowAppends is a store that takes 15 seconds to append.
type slowAppends struct{ relay.Store }

func (s slowAppends) AppendAll(ctx context.Context, entries []relay.Entry) []relay.Outcome {
	time.Sleep(15 * time.Second)
	return s.Store.AppendAll(ctx, entries)
}

// TestBulkOverHTTP2 posts over HTTP/2.
func TestBulkOverHTTP2(t *testing.T) {
	racing.Skip(t, "one thing after another")
	server := httptest.NewUnstartedServer(newFront(t, unlimited(t), httpapi.Options{}).Handler(true))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	body := bytes.NewReader(bulkBody(someRequests(t, 400)...))
	response, err := server.Client().Post(server.URL+"/events/bulk", "application/x-ndjson", body)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.ProtoMajor != 2 {
		t.Fatal(err, response.Proto)
	}
	if a := parseBulk(t, text); len(a.Results) != 400 || a.Stopped != nil || a.Results[399].Error != "" {
		t.Errorf("%d results, %+v", len(a.Results), a.Stopped)
	}
}

// failingStore is a store that fails.
type failingStore struct{ relay.Store }

func (failingStore) AppendAll(_ context.Context, entries []relay.Entry) []relay.Outcome {
	return slices.Repeat([]relay.Outcome{{Err: errors.New("a secret reason")}}, len(entries))
}
