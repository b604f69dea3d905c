package httpapi_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// naughty are strings that have broken logs, databases, terminals, templates and parsers.
var naughty = []string{
	"a\r\n{\"level\":\"ERROR\",\"msg\":\"forged\"}", "a\nb", "\x1b[2J\x1b]0;title\x07", "a\x00b", "\u202edrow\u2069\u200b", "\ufeffbom", "\u2028\u2029\u0085",
	"'; DROP TABLE event; --", "\" OR 1=1 --", "') UNION SELECT value FROM meta --", "%' ESCAPE '%", "a;b", "?1", ":id", "@p", "$1", "[event]", "`event`", "/*", "x'00'",
	"${jndi:ldap://127.0.0.1:1/a}", "{{7*7}}", "<script>alert(1)</script>", "&amp;", "%s%n%x%d%!v(BADINDEX)", "%00", "%2e%2e/", "../../etc/passwd", "..\\..", "$(id)", "|id", "`id`",
	"NULL", "null", "undefined", "true", "NaN", "Infinity", "-1", "1e400", "0x10", "١٢٣", "__proto__", "constructor", "ı İ ß ﬁ K ſ", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "Z͑ͫ̓ͪ̂ͫ̽͏̴̙̤̞͉͚̯̞̠͍A̴̵̜̰͔ͫ͗͢", "\\", "\\u0000", "\"", "'", "",
	" ", "\t", "\x7f", "\uffff", "did:key:z6Mk", "Authorization: Bearer x", strings.Repeat("long ", 4000),
}

// logTo returns a logger for this level and those above, and a function that returns the text it has logged.
func logTo(level slog.Level) (*slog.Logger, func() string) {
	var w lockedBuffer
	return slog.New(slog.NewJSONHandler(&w, &slog.HandlerOptions{Level: level})), w.text
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *lockedBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *lockedBuffer) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

const (
	bodySecret  = "SECRETINTHEBODY"
	tokenSecret = "SECRETTOKEN"
	querySecret = "SECRETINTHEQUERY"
)

// checkLog checks that every line of a log is one JSON object, that no line was forged by a client, and that no line
// contains a body, a token or a query.
func checkLog(t *testing.T, text string) {
	t.Helper()
	lines := 0
	for line := range strings.Lines(text) {
		lines++
		var object map[string]any
		if err := json.Unmarshal([]byte(line), &object); err != nil || object["time"] == nil || object["msg"] == "forged" {
			t.Errorf("the log has the line %q (%v)", line, err)
		}
		for _, secret := range []string{bodySecret, tokenSecret, querySecret} {
			if strings.Contains(line, secret) {
				t.Errorf("%s is in the log: %.200s", secret, line)
			}
		}
		if object["level"] == "ERROR" {
			t.Errorf("an error was logged: %.300s", line)
		}
	}
	if lines == 0 {
		t.Error("nothing was logged")
	}
}

// TestNaughtyStrings puts each naughty string into every field, path, parameter and header. Every answer is JSON and
// never a 5xx or a redirect, and the log stays intact.
func TestNaughtyStrings(t *testing.T) {
	engine.OnlySQLite(t, "it is about HTTP, not about what is stored")
	racing.Skip(t, "one thing after another")
	log, logged := logTo(slog.LevelDebug)
	h := newFront(t, start(t), httpapi.Options{Log: log, Build: "b"}).Handler(false)
	try := func(r *http.Request) {
		t.Helper()
		r.Header.Set("Authorization", "Agora "+tokenSecret)
		if a := call(t, h, r); a.status >= 500 || a.status >= 300 && a.status < 400 {
			t.Errorf("%s %q: %d %s", r.Method, r.URL, a.status, a.body)
		}
	}
	for _, text := range naughty {
		path, query := url.PathEscape(text), url.QueryEscape(text)
		targets := []string{"/" + path, "/threads/" + path, "/agents/" + path, "/v1/agents/" + path, "/events?x" + query + "=" + querySecret,
			"/threads/a?client=" + query, "/threads/" + path + "?client=" + querySecret, "/agents?intent=" + query, "/agents?q=" + query,
			"/agents?cursor=" + query, "/agents?limit=" + query, "/agents?online=" + query}
		for _, name := range []string{"cursor", "since"} {
			targets = append(targets, "/events?timeout=0&"+name+"="+query)
		}
		for _, name := range []string{"recipient", "sender", "type", "thread", "broadcast", "timeout", "limit"} {
			targets = append(targets, "/events?cursor=x"+querySecret+"&"+name+"="+query)
		}
		for _, target := range targets {
			try(httptest.NewRequest("GET", target, nil))
		}
		for _, name := range []string{"User-Agent", "Content-Type", "X-Forwarded-For", "Forwarded", "Origin", "Host", "X-Request-Id", "Content-Encoding"} {
			r := httptest.NewRequest("POST", "/events", strings.NewReader(bodySecret+text))
			r.Header[name] = []string{text}
			try(r)
		}
		r := httptest.NewRequest("GET", "/health", nil)
		r.Method, r.Host = "GET"+text, text
		try(r)
		for _, body := range naughtyBodies(t, text) {
			try(httptest.NewRequest("POST", "/events", bytes.NewReader(body)))
		}
	}
	checkLog(t, logged())
}

// naughtyBodies returns envelopes with text in each of their fields, with and without a signature.
func naughtyBodies(t *testing.T, text string) (bodies [][]byte) {
	t.Helper()
	quoted, err := json.Marshal(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{
		`{"type":"REQUEST","id":%s,"thread":{"id":"t"},"payload":{"intent":"i"}}`, `{"type":%s,"id":"a","payload":{}}`,
		`{"type":"REQUEST","id":"b","thread":{"id":%s},"payload":{"intent":"i"}}`, `{"type":"REQUEST","id":"c","thread":{"id":"t"},"payload":{"intent":%s,"note":"` + bodySecret + `"}}`,
		`{"type":"REQUEST","id":"d","thread":{"id":"t"},"payload":{"intent":"i","request_id":%s}}`, `{"type":"REQUEST","id":"e","payload":{"intent":"i","request_id":%s}}`,
		`{"type":"REQUEST","id":"f","thread":{"id":"t"},"payload":{"intent":"i"},"recipient":{"id":%s}}`, `{"type":"REQUEST","id":"g","thread":{"id":"t"},"payload":{"intent":"i"},"meta":{"relay":%s,"ttl":60}}`,
		`{"type":"MANIFEST","id":"h","payload":{"id":"m","name":%s,"description":%[1]s,"intents":[{"id":%[1]s,"name":%[1]s}]}}`, `{"type":"MANIFEST","id":"i","payload":{"id":%s,"intents":[]}}`,
		`{"type":"REQUEST","id":"j","thread":{"id":"t"},"payload":{"intent":"i"},%s:"` + bodySecret + `"}`, `{"type":"ERROR","id":"k","thread":{"id":"t"},"payload":{"code":%s,"message":%[1]s}}`,
	} {
		body := fmt.Sprintf(form, quoted)
		bodies = append(bodies, []byte(body), signedAs(t, []byte(body)))
	}
	return bodies
}

// TestNaughtyStringsAreKept stores messages that contain naughty strings. Reads and searches return the same bytes, and
// a search for a string finds the manifest that contains it.
func TestNaughtyStringsAreKept(t *testing.T) {
	racing.Skip(t, "one thing after another")
	h := newFront(t, unlimited(t), httpapi.Options{Log: quiet}).Handler(false)
	var sent [][]byte
	for i, text := range naughty {
		if text == "" {
			continue // an intent must not be empty
		}
		sender := key(t)
		e := sign(t, sender, envelope.Draft{ID: fmt.Sprint("n", i), SenderName: text, Recipient: sender.DID(),
			Payload: envelope.Request{RequestID: text[:min(len(text), 20)], Intent: text, Title: text}, Thread: fmt.Sprint("t", i)})
		post(t, h, "/events", e.Canonical()).want(t, 200, "")
		sent = append(sent, e.Canonical())
		a := get(t, h, "/events?cursor=0&timeout=0&recipient="+string(sender.DID()))
		if len(a.Events) != 1 || !bytes.Equal(a.Events[0], e.Canonical()) {
			t.Errorf("%q: the inbox has %s", text, a.Events)
		}
		a = get(t, h, "/threads/"+e.Thread)
		if len(a.Events) != 1 || !bytes.Equal(a.Events[0], e.Canonical()) {
			t.Errorf("%q: the thread has %s", text, a.Events)
		}
		m := sign(t, sender, envelope.Draft{Payload: envelope.Manifest{ID: "m", Name: text, Intents: []envelope.Intent{{ID: text}}}})
		post(t, h, "/events", m.Canonical()).want(t, 200, "")
		if a = get(t, h, "/agents?intent="+url.QueryEscape(text)); len(a.Agents) != 1 || !bytes.Contains(a.Agents[0], m.Canonical()) {
			t.Errorf("%q: a search for this intent finds %s", text, a.Agents)
		}
		searched := strings.ToValidUTF8(text[:min(len(text), 256)], "")
		if a = get(t, h, "/agents?limit=1000&q="+url.QueryEscape(searched)); !slices.ContainsFunc(a.Agents, func(row json.RawMessage) bool { return bytes.Contains(row, m.Canonical()) }) {
			t.Errorf("%q: a search for this text does not find its manifest", text)
		}
	}
	a := get(t, h, "/events?cursor=0&timeout=0&limit=1000&type=REQUEST")
	if len(a.Events) != len(sent) {
		t.Fatalf("%d of %d events were found", len(a.Events), len(sent))
	}
	for i := range sent {
		if !bytes.Equal(a.Events[i], sent[i]) {
			t.Errorf("event %d is %s, want %s", i, a.Events[i], sent[i])
		}
	}
}
