package httpapi_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	"github.com/agora-relay/agora/store/storetest/engine"
)

// TestRawRequests sends requests that no HTTP library would send, and checks the status of each. An event is stored
// only if the answer is 200, and no answer is a redirect.
func TestRawRequests(t *testing.T) {
	engine.OnlySQLite(t, "it is about HTTP, not about what is stored")
	racing.Skip(t, "one thing after another")
	r := start(t)
	l, _ := serve(t, r)
	body := func() string {
		return string(sign(t, key(t), envelope.Draft{Payload: envelope.Request{Intent: "echo"}}).Canonical())
	}
	// %s is the body, %d its length.
	const plain, length = "Host: x\r\nContent-Length: %[2]d\r\n\r\n%[1]s", "Content-Length: %[2]d\r\n"
	for name, c := range map[string]struct {
		request string
		status  []int // accepted statuses; 0: the connection is closed without an answer
	}{
		"a correct request":       {"POST /events HTTP/1.1\r\n" + plain, []int{200}},
		"HTTP/1.0":                {"POST /events HTTP/1.0\r\n" + length + "\r\n%[1]s", []int{200}},
		"absolute form":           {"POST http://other.example/events HTTP/1.1\r\n" + plain, []int{200}},
		"absolute form, two //":   {"POST http://other.example//events HTTP/1.1\r\n" + plain, []int{404}},
		"bare line feeds":         {"POST /events HTTP/1.1\nHost: x\nContent-Length: %[2]d\n\n%[1]s", []int{200, 400}},
		"Expect":                  {"POST /events HTTP/1.1\r\nExpect: 100-continue\r\n" + plain, []int{200}},
		"Expect something else":   {"POST /events HTTP/1.1\r\nExpect: tea\r\n" + plain, []int{417}},
		"chunks":                  {"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%[2]x\r\n%[1]s\r\n0\r\n\r\n", []int{200}},
		"length and chunks":       {"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n%[2]x\r\n%[1]s\r\n0\r\n\r\n", []int{200, 400}},
		"chunked without chunks":  {"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n" + length + "\r\n%[1]s", []int{400}},
		"invalid chunk size":      {"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n%[1]s", []int{400}},
		"an incomplete chunk":     {"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\n%[1]s", []int{400}},
		"another coding":          {"POST /events HTTP/1.1\r\nTransfer-Encoding: gzip\r\n" + plain, []int{501}},
		"chunked, padded":         {"POST /events HTTP/1.1\r\nTransfer-Encoding: \vchunked\r\n" + plain, []int{501, 400}},
		"two lengths":             {"POST /events HTTP/1.1\r\nContent-Length: 1\r\n" + plain, []int{400}},
		"one length, twice":       {"POST /events HTTP/1.1\r\n" + length + plain, []int{200, 400}},
		"negative length":         {"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: -%[2]d\r\n\r\n%[1]s", []int{400}},
		"length with a plus":      {"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: +%[2]d\r\n\r\n%[1]s", []int{400}},
		"length beyond 64 bits":   {"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n%[1]s", []int{400}},
		"length beyond the limit": {"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n\r\n%[1]s", []int{413}},
		"length beyond the body":  {"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n%[1]s", []int{400}},
		"no length":               {"POST /events HTTP/1.1\r\nHost: x\r\n\r\n%[1]s", []int{400}},
		"no Host":                 {"POST /events HTTP/1.1\r\n" + length + "\r\n%[1]s", []int{400}},
		"two Hosts":               {"POST /events HTTP/1.1\r\nHost: y\r\n" + plain, []int{400}},
		"gzip":                    {"POST /events HTTP/1.1\r\nContent-Encoding: gzip\r\n" + plain, []int{415}},
		"deflate":                 {"POST /events HTTP/1.1\r\nContent-Encoding: deflate\r\n" + plain, []int{415}},
		"br":                      {"POST /events HTTP/1.1\r\nContent-Encoding: br\r\n" + plain, []int{415}},
		"identity and gzip":       {"POST /events HTTP/1.1\r\nContent-Encoding: identity, gzip\r\n" + plain, []int{415}},
		"identity, then gzip":     {"POST /events HTTP/1.1\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\n" + plain, []int{415}},
		"empty, then gzip":        {"POST /events HTTP/1.1\r\nContent-Encoding:\r\nContent-Encoding: gzip\r\n" + plain, []int{415}},
		"any Content-Type":        {"POST /events HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\n" + plain, []int{200}},
		"multipart":               {"POST /events HTTP/1.1\r\nContent-Type: multipart/form-data; boundary=x\r\n" + plain, []int{200}},
		"method in lower case":    {"post /events HTTP/1.1\r\n" + plain, []int{405}},
		"method overridden":       {"GET /events HTTP/1.1\r\nX-HTTP-Method-Override: POST\r\n" + plain, []int{400}},
		"PUT":                     {"PUT /events HTTP/1.1\r\n" + plain, []int{405}},
		"PATCH":                   {"PATCH /events HTTP/1.1\r\n" + plain, []int{405}},
		"DELETE":                  {"DELETE /events HTTP/1.1\r\n" + plain, []int{405}},
		"TRACE":                   {"TRACE /events HTTP/1.1\r\n" + plain, []int{405}},
		"CONNECT":                 {"CONNECT /events HTTP/1.1\r\n" + plain, []int{405, 404}},
		"OPTIONS":                 {"OPTIONS /events HTTP/1.1\r\n" + plain, []int{405}},
		"OPTIONS *":               {"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", []int{404}},
		"a preflight":             {"OPTIONS /events HTTP/1.1\r\nHost: x\r\nOrigin: https://x.example\r\nAccess-Control-Request-Method: POST\r\n\r\n", []int{405}},
		"HEAD":                    {"HEAD /events HTTP/1.1\r\nHost: x\r\n\r\n", []int{405}},
		"two slashes":             {"POST //events HTTP/1.1\r\n" + plain, []int{404}},
		"three slashes":           {"POST ///events HTTP/1.1\r\n" + plain, []int{404}},
		"trailing slash":          {"POST /events/ HTTP/1.1\r\n" + plain, []int{404}},
		"a dot":                   {"POST /./events HTTP/1.1\r\n" + plain, []int{404}},
		"two dots":                {"POST /x/../events HTTP/1.1\r\n" + plain, []int{404}},
		"two dots, escaped":       {"POST /x/%%2e%%2e/events HTTP/1.1\r\n" + plain, []int{404}},
		"a slash, escaped":        {"POST %%2fevents HTTP/1.1\r\n" + plain, []int{400}},
		"a letter, escaped":       {"POST /%%65vents HTTP/1.1\r\n" + plain, []int{200, 404}},
		"other case":              {"POST /Events HTTP/1.1\r\n" + plain, []int{404}},
		"a fragment":              {"POST /events#x HTTP/1.1\r\n" + plain, []int{404, 400}},
		"a parameter":             {"POST /events;x=1 HTTP/1.1\r\n" + plain, []int{404}},
		"a query":                 {"POST /events?x HTTP/1.1\r\n" + plain, []int{400}},
		"NUL in the path":         {"POST /events\x00 HTTP/1.1\r\n" + plain, []int{400}},
		"NUL escaped in the path": {"POST /events%%00 HTTP/1.1\r\n" + plain, []int{404}},
		"NUL in a header":         {"POST /events HTTP/1.1\r\nX-A: a\x00b\r\n" + plain, []int{400}},
		"space before a colon":    {"POST /events HTTP/1.1\r\nX-A : a\r\n" + plain, []int{400}},
		"a header without name":   {"POST /events HTTP/1.1\r\n: a\r\n" + plain, []int{400}},
		"a folded header":         {"POST /events HTTP/1.1\r\nX-A: a\r\n b\r\n" + plain, []int{200, 400}},
		"a carriage return alone": {"POST /events HTTP/1.1\r\nX-A: a\rContent-Length: 1\r\n" + plain, []int{400}},
		"a long header":           {"POST /events HTTP/1.1\r\nX-A: " + strings.Repeat("a", 32<<10) + "\r\n" + plain, []int{431}},
		"many headers":            {"POST /events HTTP/1.1\r\n" + strings.Repeat("X-A: a\r\n", 4<<10) + plain, []int{431}},
		"a long path":             {"POST /" + strings.Repeat("a", 32<<10) + " HTTP/1.1\r\n" + plain, []int{431}},
		"HTTP/2 preface":          {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", []int{404, 505, 400}},
		"HTTP/3.7":                {"POST /events HTTP/3.7\r\n" + plain, []int{505}},
		"HTTP/0.9":                {"GET /events\r\n", []int{400}},
		"another protocol":        {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", []int{400, 0}},
		"upgrade to h2c":          {"POST /events HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n" + plain, []int{200}},
		"a websocket":             {"GET /events HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", []int{400}},
		"a trailer":               {"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: Content-Encoding\r\n\r\n%[2]x\r\n%[1]s\r\n0\r\nContent-Encoding: gzip\r\n\r\n", []int{200, 415}},
	} {
		t.Run(name, func(t *testing.T) {
			text := body()
			request := fmt.Appendf(nil, c.request, text, len(text))
			if i := bytes.Index(request, []byte("%!(EXTRA")); i >= 0 {
				request = request[:i] // the request does not contain the body
			}
			before := storedCount(t, r)
			answer := overRaw(l, request)
			status := checkRaw(t, request, answer)
			if !slices.Contains(c.status, status) {
				t.Errorf("%d, want %v: %.300s", status, c.status, answer)
			}
			want := 0
			if status == 200 {
				want = 1
			}
			if got := storedCount(t, r) - before; got != want {
				t.Errorf("%d events were stored: %.300s", got, answer)
			}
			if status >= 300 && status < 400 || bytes.Contains(answer, []byte("Location:")) || bytes.Contains(answer, []byte("Access-Control")) {
				t.Errorf("%.300s", answer)
			}
		})
	}
}

// The following tests check deadlines of connections. slow_test.go checks the others.

func TestIdleConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serve(t, start(t))
		c := l.dial()
		reader := bufio.NewReader(c)
		var answered time.Time
		for range 3 { // each answer starts the idle timeout again
			fmt.Fprint(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				t.Fatal(err)
			}
			answered = time.Now()
			time.Sleep(74 * time.Second)
		}
		if _, err := reader.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("an idle connection ended with %v", err)
		}
		if took := time.Since(answered); took != 75*time.Second {
			t.Errorf("closed after %v, want 75s", took)
		}
	})
}

// TestEachBodyHasItsOwnDeadline checks that each body on a connection has the full time to arrive, and not more.
func TestEachBodyHasItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := serve(t, start(t))
		c := l.dial()
		reader := bufio.NewReader(c)
		for range 3 {
			fmt.Fprint(c, "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
			time.Sleep(9 * time.Second)
			fmt.Fprint(c, "}")
			response, err := http.ReadResponse(reader, nil)
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(response.Body)
			if err != nil || !bytes.Contains(text, []byte("UNSUPPORTED_VERSION")) {
				t.Fatalf("%s %v", text, err)
			}
		}
		began := time.Now()
		fmt.Fprint(c, "POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{")
		text, err := io.ReadAll(reader)
		if took := time.Since(began); err != nil || took < 10*time.Second || took > 11*time.Second || !bytes.Contains(text, []byte("INVALID_REQUEST")) {
			t.Errorf("after %v: %s %v", took, text, err)
		}
	})
}

// TestStreamedPage reads a page that is sent in pieces. One client reads slowly, but each piece in time, and gets the
// whole page. Another client stops reading and is cut off.
func TestStreamedPage(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t)
		me, ts := key(t).DID(), time.Now()
		big := json.RawMessage(`"` + strings.Repeat("x", 120<<10) + `"`)
		const count = 80 // about 10 MB, three pieces
		for range count {
			e := sign(t, key(t), envelope.Draft{TS: ts, Recipient: me, Payload: envelope.Request{Intent: "echo", Params: big}})
			if _, err := r.Post(t.Context(), relay.Peer{Local: true}, e.Canonical()); err != nil {
				t.Fatal(err)
			}
		}
		l, _ := serve(t, r)
		for name, pauses := range map[string][]time.Duration{
			"slow": {29 * time.Second, 29 * time.Second, 29 * time.Second}, "stopped": {29 * time.Second, 31 * time.Second},
		} {
			c := l.dial()
			fmt.Fprintf(c, "GET /events?timeout=0&recipient=%s&since=%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", me, "1999-01-01T00:00:00Z")
			// Read a part of the answer, pause for almost the whole deadline of a piece (or for longer), and so on.
			var got int64
			for _, pause := range pauses {
				n, err := io.CopyN(io.Discard, c, 4<<20)
				if got += n; err != nil && !errors.Is(err, io.EOF) {
					t.Fatal(err)
				}
				if n < 4<<20 {
					break
				}
				time.Sleep(pause)
				synctest.Wait()
			}
			n, err := io.Copy(io.Discard, c)
			got += n
			whole := got > count*120<<10
			if whole != (name == "slow") || err != nil {
				t.Errorf("%s: %d bytes, %v", name, got, err)
			}
			synctest.Wait()
			if r.Waiting() != 0 {
				t.Errorf("%s: the poll has not ended", name)
			}
		}
	})
}

// endless is a body without end. It counts the bytes that are read.
type endless struct{ read int }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	e.read += len(b)
	if e.read > 64<<20 {
		return 0, errors.New("too much was read")
	}
	return len(b), nil
}

// TestEndlessBody checks that a body without a Content-Length is read only up to the size limit, and 256 KiB more.
func TestEndlessBody(t *testing.T) {
	body := &endless{}
	a := call(t, newFront(t, start(t), httpapi.Options{Log: quiet}).Handler(false), httptest.NewRequest("POST", "/events", body))
	a.want(t, 413, envelope.CodePayloadTooLarge)
	if body.read > envelope.DefaultMaxBytes+260<<10 {
		t.Errorf("%d bytes were read", body.read)
	}
}
