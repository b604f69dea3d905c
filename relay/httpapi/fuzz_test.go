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

// reencode writes a poll as a query string, every parameter by its value.
func reencode(p relay.Poll) string {
	v := url.Values{"limit": {strconv.Itoa(p.Limit)}, "broadcast": {strconv.FormatBool(p.Broadcast)},
		"timeout": {fmt.Sprintf("%d.%09d", p.Wait/time.Second, p.Wait%time.Second)}}
	for name, value := range map[string]string{"recipient": string(p.Recipient), "sender": string(p.Sender), "type": string(p.Type), "thread": p.Thread} {
		if value != "" {
			v.Set(name, value)
		}
	}
	if p.Since.IsZero() {
		v.Set("cursor", p.Cursor.String())
	} else {
		v.Set("since", p.Since.UTC().Format(time.RFC3339Nano))
	}
	return v.Encode()
}

// FuzzQuery: a query string that is accepted means one poll, the same when that is written out again, and never drops a
// recipient in silence, which would show everybody's mail. One that is refused gets 400 and its reason.
func FuzzQuery(f *testing.F) {
	const did = "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp"
	for _, text := range []string{"cursor=0", "cursor=00000001-7&limit=1000&timeout=0.5", "since=2026-02-02T12:00:00%2B08:00&broadcast=true&recipient=" + did,
		"cursor=0&recipient=" + did + ";x", "cursor=0&%72ecipient=" + did, "cursor=0&Recipient=" + did, "cursor=0&type=OFFER&thread=recipient&sender=" + did,
		"since=0001-01-01T00:00:00Z&timeout=1e9", "cursor=0&recipient=%", "cursor=0&&limit=1", "cursor=0&timeout=-0"} {
		f.Add(text)
	}
	h := httpapi.New(unlimited(f), httpapi.Options{Log: quiet}).Handler(false)
	f.Fuzz(func(t *testing.T, text string) {
		request := func(query string) *http.Request {
			r := httptest.NewRequest("GET", "/events", nil)
			r.URL.RawQuery = query
			return r
		}
		poll, _, err := httpapi.ParsePoll(request(text))
		if err != nil {
			if a := call(t, h, request(text)); a.status != 400 || a.Error != envelope.CodeInvalidRequest && a.Error != envelope.CodeInvalidDID {
				t.Errorf("%q: %d %s", text, a.status, a.body)
			}
			return
		}
		again, _, err := httpapi.ParsePoll(request(reencode(*poll)))
		if d := again.Wait - poll.Wait; err != nil || d < -1 || d > 1 { // a double holds a nanosecond of 60 s, but not always the same
			t.Fatalf("%q becomes %q: %v, %v", text, reencode(*poll), again, err)
		}
		if again.Wait = poll.Wait; !again.Since.Equal(poll.Since) || again.Filter != poll.Filter || again.Cursor != poll.Cursor || again.Limit != poll.Limit {
			t.Errorf("%q is %+v, and %q is %+v", text, poll, reencode(*poll), again)
		}
		if poll.Limit < 1 || poll.Limit > relay.MaxPage || poll.Wait < 0 || poll.Wait > relay.MaxWait || (poll.Cursor != relay.Cursor{}) && !poll.Since.IsZero() {
			t.Errorf("%q: %+v", text, poll)
		}
		for pair := range strings.SplitSeq(text, "&") {
			name, value, _ := strings.Cut(pair, "=")
			name, _ = url.QueryUnescape(name)
			value, _ = url.QueryUnescape(value)
			if strings.EqualFold(strings.TrimSpace(name), "recipient") && (string(poll.Recipient) != value || value == "") {
				t.Errorf("%q asks for the mail of %q", text, poll.Recipient)
			}
		}
	})
}

// signedAs makes of a JSON object an envelope that is whole and signed, wherever that is possible: what is wrong with
// it is then behind the signature. Other text stays as it is.
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

// FuzzPost: whatever is posted, bare or signed, is answered with JSON and a status of the list, never a 5xx. After a
// 200 the event is there, as jcs writes it.
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
			return // it may have gone before it is looked for
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

// overRaw sends bytes to a server and returns what came back until either side was done.
func overRaw(l *pipeListener, request []byte) []byte {
	c := &halfClosed{sent: bytes.NewReader(request), closed: make(chan struct{})}
	l.conns <- c
	<-c.closed
	return c.answer.Bytes()
}

// byServer are the answers that net/http gives in plain text before a handler sees the request.
var byServer = []int{400, 417, 431, 501, 505}

// byRelay are the relay's own. 503 is a poll whose client has hung up.
var byRelay = []int{200, 400, 403, 404, 405, 409, 413, 415, 429, 503}

// checkRaw looks at the first of the answers to raw bytes and returns its status; 0: there was none.
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
		t.Errorf("%q: %q is no answer: %v", request, answer, err)
		return 0
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Errorf("%q: %q breaks off: %v", request, answer, err)
	}
	var a struct {
		OK    *bool         `json:"ok"`
		Error envelope.Code `json:"error"`
	}
	switch ours := response.Header.Get("Content-Type") == "application/json"; {
	case !ours && !slices.Contains(byServer, response.StatusCode), ours && !slices.Contains(byRelay, response.StatusCode):
		t.Errorf("%q: answered %q", request, answer)
	case ours && (asked == nil || asked.Method != "HEAD") && (json.Unmarshal(body, &a) != nil || a.OK == nil || *a.OK != (response.StatusCode == 200)):
		t.Errorf("%q: answered %q", request, answer)
	}
	return response.StatusCode
}

// stored says how many events a relay has ever stored.
func stored(t testing.TB, r *relay.Relay) int {
	t.Helper()
	count := 0
	err := r.View(t.Context(), relay.Peer{Local: true}, func(q relay.Querier) error {
		return q.Query(func(scan func(...any) error) error { return scan(&count) }, "SELECT ifnull(max(seq), 0) FROM event")
	})
	if err != nil {
		t.Fatal(err)
	}
	return count
}

// FuzzConnection: whatever bytes come over a connection, the first answer is HTTP with a status of the list, no
// redirect, and JSON unless net/http gave it; nothing is stored unless something was answered 200.
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
		now := stored(t, r)
		if now != before && !bytes.Contains(answer, []byte("HTTP/1.1 200 ")) && !bytes.Contains(answer, []byte("HTTP/1.0 200 ")) {
			t.Errorf("%q stored %d events, and was answered %q", request, now-before, answer)
		}
		before = now
	})
}
