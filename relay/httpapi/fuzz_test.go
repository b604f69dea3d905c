package httpapi_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gowebpki/jcs"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// reencode writes a poll as a query string with all its parameters. before is the text of that parameter.
func reencode(p relay.Poll, before string) string {
	v := url.Values{"limit": {strconv.Itoa(p.Limit)}, "broadcast": {strconv.FormatBool(p.Broadcast)}}
	for name, value := range map[string]string{"recipient": string(p.Recipient), "sender": string(p.Sender), "type": string(p.Type), "thread": p.Thread} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if before != "" {
		v.Set("before", before)
		return v.Encode()
	}
	v.Set("timeout", fmt.Sprintf("%d.%09d", p.Wait/time.Second, p.Wait%time.Second))
	if p.Since.IsZero() {
		v.Set("cursor", p.Cursor.String())
	} else {
		v.Set("since", p.Since.UTC().Format(time.RFC3339Nano))
	}
	return v.Encode()
}

// FuzzQuery checks query strings. An accepted query string, parsed and encoded again, means the same poll. A recipient
// in it is never ignored, because the answer would then contain the messages of all recipients. A refused query string
// gets 400 with a reason.
func FuzzQuery(f *testing.F) {
	const did = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
	for _, text := range []string{"cursor=0", "cursor=00000001-7&limit=1000&timeout=0.5", "since=2026-02-02T12:00:00%2B08:00&broadcast=true&recipient=" + did,
		"cursor=0&recipient=" + did + ";x", "cursor=0&%72ecipient=" + did, "cursor=0&Recipient=" + did, "cursor=0&type=OFFER&thread=recipient&sender=" + did,
		"since=0001-01-01T00:00:00Z&timeout=1e9", "cursor=0&recipient=%", "cursor=0&&limit=1", "cursor=0&timeout=-0",
		"before=end&limit=3", "before=00000001-7&type=OFFER", "before=end&timeout=0", "before=0&cursor=0", "before="} {
		f.Add(text)
	}
	h := httpapi.New(unlimited(f), httpapi.Options{Log: quiet}).Handler(false)
	f.Fuzz(func(t *testing.T, text string) {
		request := func(query string) *http.Request {
			r := httptest.NewRequest("GET", "/events", nil)
			r.URL.RawQuery = query
			return r
		}
		poll, before, err := httpapi.ParsePoll(request(text))
		if err != nil {
			if a := call(t, h, request(text)); a.status != 400 || a.Error != envelope.CodeInvalidRequest && a.Error != envelope.CodeInvalidDID {
				t.Errorf("%q: %d %s", text, a.status, a.body)
			}
			return
		}
		encoded := reencode(*poll, before)
		again, _, err := httpapi.ParsePoll(request(encoded))
		if d := again.Wait - poll.Wait; err != nil || d < -1 || d > 1 { // a float64 of seconds may round to the next nanosecond
			t.Fatalf("%q was encoded again as %q, which means %v (%v)", text, encoded, again, err)
		}
		if again.Wait = poll.Wait; !again.Since.Equal(poll.Since) || again.Filter != poll.Filter || again.Cursor != poll.Cursor || again.Limit != poll.Limit {
			t.Errorf("%q means %+v, but encoded again as %q it means %+v", text, poll, encoded, again)
		}
		if poll.Limit < 1 || poll.Limit > relay.MaxPage || poll.Wait < 0 || poll.Wait > relay.MaxWait || (poll.Cursor != relay.Cursor{}) && !poll.Since.IsZero() {
			t.Errorf("%q: %+v", text, poll)
		}
		for pair := range strings.SplitSeq(text, "&") {
			name, value, _ := strings.Cut(pair, "=")
			name, _ = url.QueryUnescape(name)
			value, _ = url.QueryUnescape(value)
			if strings.EqualFold(strings.TrimSpace(name), "recipient") && (string(poll.Recipient) != value || value == "") {
				t.Errorf("%q asks for the messages to %q", text, poll.Recipient)
			}
		}
	})
}

// signedAs turns a JSON object into a complete, signed envelope if it can. So faults in the object are found by the
// checks that come after the signature. It returns other text unchanged.
func signedAs(t testing.TB, body []byte) []byte {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil || members == nil {
		return body
	}
	me := key(t)
	set := func(name, value string) {
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		members[name] = text
	}
	set("version", "1.0")
	set("ts", time.Now().UTC().Format(time.RFC3339Nano))
	members["sender"] = json.RawMessage(`{"id":"` + string(me.DID()) + `"}`)
	delete(members, "sig")
	unsigned, err := json.Marshal(members)
	if err != nil {
		return body
	}
	canonical, err := jcs.Transform(unsigned)
	if err != nil {
		return body
	}
	sig, err := me.Sign(canonical)
	if err != nil {
		t.Fatal(err)
	}
	set("sig", base64.RawURLEncoding.EncodeToString(sig))
	whole, err := json.Marshal(members)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

var postStatuses = []int{200, 400, 403, 404, 409, 413, 429}

// FuzzPost posts arbitrary bytes, with and without a signature. The answer is JSON, and its status is one of
// postStatuses, never a 5xx. After a 200 the event can be read, in the canonical form of package jcs.
func FuzzPost(f *testing.F) {
	for _, text := range []string{
		`{"type":"REQUEST","id":"a","thread":{"id":"t"},"payload":{"intent":"echo","request_id":"r"},"meta":{"ttl":300.0,"hop":3}}`,
		`{"type":"MANIFEST","id":"a","payload":{"id":"m","name":"N","intents":[{"id":"i"}]}}`,
		`{"type":"OFFER","id":"a","thread":{"id":"t"},"payload":{"request_id":"r"}}`,
		`{"type":"REQUEST","id":"a","thread":{"id":"t"},"payload":{"intent":"\u0000\ud83d\ude00","n":[1e20,-0,1e-7]},"x":{"":null}}`,
		`{"envelope":{"type":"REQUEST"}}`, `{"Type":"CANCEL","type":"REQUEST"}`, `[[[[`, `{"a":1e400}`, "\xef\xbb\xbf{}", `{"a":1,"\u0061":2}`, ""} {
		f.Add([]byte(text), true)
		f.Add([]byte(text), false)
	}
	h := httpapi.New(unlimited(f), httpapi.Options{Log: quiet}).Handler(false)
	f.Fuzz(func(t *testing.T, body []byte, signed bool) {
		if signed {
			body = signedAs(t, body)
		}
		a := post(t, h, "/events", body)
		if !slices.Contains(postStatuses, a.status) {
			t.Errorf("%q: %d %s", body, a.status, a.body)
		}
		if a.status != 200 {
			return
		}
		e, err := envelope.Parse(body, 0)
		if err != nil || e.ID != a.ID {
			t.Fatalf("%q was stored as %s; %v", body, a.ID, err)
		}
		if e.ExpiresAt().Before(time.Now().Add(time.Minute)) {
			return // it may expire before it is read
		}
		epoch, seq, _ := strings.Cut(a.Cursor, "-")
		n, err := strconv.Atoi(seq)
		if err != nil {
			t.Fatal(err)
		}
		page := get(t, h, fmt.Sprintf("/events?timeout=0&limit=1&cursor=%s-%d", epoch, n-1))
		want, err := jcs.Transform(body)
		if err != nil || len(page.Events) != 1 || !bytes.Equal(page.Events[0], want) {
			t.Errorf("%q was stored as %s, want %s (%v)", body, page.Events, want, err)
		}
	})
}

// overRaw sends bytes to a server. It returns the bytes that the server sent until it closed the connection.
func overRaw(l *pipeListener, request []byte) []byte {
	c := &halfClosed{sent: bytes.NewReader(request), closed: make(chan struct{})}
	l.conns <- c
	<-c.closed
	return c.answer.Bytes()
}

// serverStatuses are the statuses of the plain-text answers that net/http gives before a handler gets the request.
var serverStatuses = []int{400, 417, 431, 501, 505}

// relayStatuses are the statuses of the relay's own answers. A poll whose client has closed the connection gets 503.
var relayStatuses = []int{200, 400, 403, 404, 405, 409, 413, 415, 429, 503}

// checkRaw checks the first answer to raw bytes and returns its status, 0 if there was no answer.
func checkRaw(t testing.TB, request, answer []byte) int {
	t.Helper()
	if len(answer) == 0 {
		return 0
	}
	asked, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(request)))
	if err != nil {
		asked = nil
	}
	answer = bytes.TrimPrefix(answer, []byte("HTTP/1.1 100 Continue\r\n\r\n"))
	response, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), asked)
	if err != nil {
		t.Errorf("%q: %q is not an HTTP answer: %v", request, answer, err)
		return 0
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%q: the body of %q is incomplete: %v", request, answer, err)
	}
	var a struct {
		OK    *bool         `json:"ok"`
		Error envelope.Code `json:"error"`
	}
	switch ours := response.Header.Get("Content-Type") == "application/json"; {
	case !ours && !slices.Contains(serverStatuses, response.StatusCode), ours && !slices.Contains(relayStatuses, response.StatusCode):
		t.Errorf("%q: answered %q", request, answer)
	case ours && (asked == nil || asked.Method != "HEAD") && (json.Unmarshal(body, &a) != nil || a.OK == nil || *a.OK != (response.StatusCode == 200)):
		t.Errorf("%q: answered %q", request, answer)
	}
	return response.StatusCode
}

// storedCount returns how many events a relay has stored since it was created.
func storedCount(t testing.TB, r *relay.Relay) int {
	t.Helper()
	count := 0
	err := r.View(t.Context(), relay.Peer{Local: true}, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error { return scan(&count) }, "SELECT coalesce(max(seq), 0) FROM event")
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// FuzzConnection sends arbitrary bytes over a connection. The first answer is HTTP with one of serverStatuses or
// relayStatuses, so it is never a redirect. It is JSON, except for the answers of net/http. Events are stored only if
// an answer is 200.
func FuzzConnection(f *testing.F) {
	for _, text := range []string{
		"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", "POST //events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}",
		"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"GET /events?cursor=0&timeout=60 HTTP/1.0\r\n\r\n", "GET http://y/threads/a?client=%00 HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x00"} {
		f.Add([]byte(text))
	}
	r := unlimited(f)
	l, _ := serve(f, r)
	before := 0
	f.Fuzz(func(t *testing.T, request []byte) {
		answer := overRaw(l, request)
		checkRaw(t, request, answer)
		now := storedCount(t, r)
		if now != before && !bytes.Contains(answer, []byte("HTTP/1.1 200 ")) && !bytes.Contains(answer, []byte("HTTP/1.0 200 ")) {
			t.Errorf("%q stored %d events, but the answer was %q", request, now-before, answer)
		}
		before = now
	})
}
