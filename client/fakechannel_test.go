package client_test

import (
	"crypto/sha256"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// fakeChannel is a channel gateway in memory (CHANNEL §4), at the relay http://relay.test. It is the HTTP transport of
// its clients.
type fakeChannel struct {
	relay    *fakeRelay
	key      didkey.Key
	document map[string]any // the well-known document

	mu      sync.Mutex
	faults  []fault // for the next requests to the gateway
	skew    time.Duration
	nonces  map[string]bool
	inboxes []client.Inbox
	urls    int
	calls   []string // method and path of each request to the gateway
	keys    []string // the Idempotency-Keys of these requests
	posted  []string // the bodies that /out has taken, each once
}

func newFakeChannel() *fakeChannel {
	key, err := didkey.Generate()
	if err != nil {
		panic(err)
	}
	f := &fakeChannel{relay: newFakeRelay(), key: key, nonces: map[string]bool{}}
	f.document = map[string]any{"ok": true, "did": f.relay.key.DID(), "url": f.relay.URL, "reads": "open",
		"gateways": map[string]any{"did": f.key.DID(), "channel": map[string]any{"url": f.relay.URL + "/channel"}}}
	return f
}

// client returns a client of the relay.
func (f *fakeChannel) client(t *testing.T, key envelope.Signer) *client.Client {
	return newClientVia(t, f.relay.URL, key, f.RoundTrip)
}

func (f *fakeChannel) RoundTrip(r *http.Request) (*http.Response, error) {
	switch {
	case r.URL.Path == document:
		text, err := json.Marshal(f.document)
		return response(200, string(text)), err
	case !strings.HasPrefix(r.URL.Path, "/channel/"):
		return f.relay.RoundTrip(r)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r.Method+" "+strings.TrimPrefix(r.URL.Path, "/channel"))
	f.keys = append(f.keys, r.Header.Get("Idempotency-Key"))
	if len(f.faults) > 0 {
		next := f.faults[0]
		if f.faults = f.faults[1:]; next != nil {
			return next(r, roundTripFunc(f.serve))
		}
	}
	return f.serve(r)
}

// serve answers a request to the gateway. The caller holds f.mu.
func (f *fakeChannel) serve(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	if token, ok := strings.CutPrefix(r.URL.Path, "/channel/out/"); ok {
		return f.out(r, token, string(body)), nil
	}
	caller, refused := f.verify(r, body)
	if refused != nil {
		return refused, nil
	}
	return f.manage(r, caller, body), nil
}

func answer(status int, members map[string]any) *http.Response {
	members["ok"] = status < 300
	text, err := json.Marshal(members)
	if err != nil {
		panic(err)
	}
	return response(status, string(text))
}

func refusal(status int, code string, details map[string]any) *http.Response {
	return answer(status, map[string]any{"error": code, "message": "refused", "details": details})
}

// verify checks the token of a signed call (GATEWAYS §3).
func (f *fakeChannel) verify(r *http.Request, body []byte) (caller didkey.DID, refused *http.Response) {
	bad := func(reason string) (didkey.DID, *http.Response) {
		return "", refusal(401, "UNAUTHORIZED", map[string]any{"reason": reason, "now": envelope.FormatTime(time.Now().Add(f.skew))})
	}
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Agora ")
	call, err := envelope.ParseCall(token)
	switch {
	case err != nil:
		return bad("malformed")
	case call.Audience != f.relay.URL:
		return bad("audience")
	case call.Method != r.Method || call.Target != r.URL.RequestURI():
		return bad("request")
	case call.TS.Sub(time.Now().Add(f.skew)).Abs() > 30*time.Second:
		return bad("time")
	case call.Body != sha256.Sum256(body):
		return bad("body")
	case call.Verify() != nil:
		return bad("malformed")
	case f.nonces[string(call.Once())]:
		return bad("used")
	}
	f.nonces[string(call.Once())] = true
	return call.Reader, nil
}

// url returns a new connection string.
func (f *fakeChannel) url() string {
	f.urls++
	return f.relay.URL + "/channel/inbox/sk_" + strings.Repeat("a", f.urls)
}

// manage answers the signed calls about inboxes.
func (f *fakeChannel) manage(r *http.Request, caller didkey.DID, body []byte) *http.Response {
	path := strings.TrimPrefix(r.URL.Path, "/channel/inboxes")
	own := slices.DeleteFunc(slices.Clone(f.inboxes), func(i client.Inbox) bool { return i.Owner != caller })
	switch {
	case path == "" && r.Method == http.MethodPost:
		var asked struct{ Label string }
		if json.Unmarshal(body, &asked) != nil {
			return refusal(400, "INVALID_REQUEST", nil)
		}
		inbox := client.Inbox{ID: "in_" + strings.Repeat("b", f.urls+1), Label: asked.Label, Owner: caller,
			CreatedAt: time.Now().UTC().Truncate(time.Millisecond)}
		f.inboxes = append(f.inboxes, inbox)
		return answer(201, map[string]any{"inbox": inbox, "url": f.url()})
	case path == "":
		return answer(200, map[string]any{"inboxes": own})
	}
	id, rotate := strings.CutSuffix(strings.TrimPrefix(path, "/"), "/rotate")
	if !slices.ContainsFunc(own, func(i client.Inbox) bool { return i.ID == id }) {
		return refusal(403, "FORBIDDEN", nil)
	}
	if rotate {
		return answer(200, map[string]any{"url": f.url()})
	}
	f.inboxes = slices.DeleteFunc(f.inboxes, func(i client.Inbox) bool { return i.ID == id })
	return answer(200, map[string]any{})
}

// out takes an event at a callback.
func (f *fakeChannel) out(r *http.Request, token, body string) *http.Response {
	if token != "tok_secret" || r.Header.Get("Authorization") != "" {
		return refusal(404, "NOT_FOUND", nil)
	}
	record := r.Header.Get("Idempotency-Key") + " " + body
	if !slices.Contains(f.posted, record) {
		f.posted = append(f.posted, record)
	}
	return answer(200, map[string]any{"seq": len(f.posted)})
}

// deliver posts a delivery to an agent, signed by sender. It returns what the relay has then.
func (f *fakeChannel) deliver(t *testing.T, sender, agent didkey.Key, params string, seal bool) *envelope.Envelope {
	t.Helper()
	c := newClient(t, f.relay, sender, client.Options{})
	_, _, err := c.Post(t.Context(), envelope.Draft{Recipient: agent.DID(), Thread: "dlv_1", Seal: seal,
		Payload: envelope.Request{RequestID: "dlv_1", Intent: client.ChannelIntent, Params: json.RawMessage(params)}})
	if err != nil {
		t.Fatal(err)
	}
	return f.relay.last()
}

// sampleDelivery are the params of a delivery.
const sampleDelivery = `{"inbox":"in_1","channel":{"id":"ch_1","name":"ops","service":"S","context":"c"},` +
	`"message":{"id":"msg_1","sender":"alice","content":"hello"},"callback":"http://relay.test/channel/out/tok_secret",` +
	`"mcp":[{"name":"mcp1","url":"https://x.example/mcp","headers":{"Authorization":"Bearer t"}}]}`
