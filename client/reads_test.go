package client_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// recordingTransport is a transport that records the requests of a client. It can replace the relay's document.
type recordingTransport struct {
	mu       sync.Mutex
	document map[string]any // sent instead of the relay's document; nil: the relay's document
	asked    []*http.Request
}

func (w *recordingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.asked = append(w.asked, r)
	document := w.document
	w.mu.Unlock()
	if document != nil && r.URL.Path == "/.well-known/agora.json" {
		document["ok"] = true
		text, err := json.Marshal(document)
		return response(200, string(text)), err
	}
	return http.DefaultTransport.RoundTrip(r)
}

func (w *recordingTransport) setDocument(document map[string]any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.document = document
}

// tokens returns the Authorization headers of all requests, except those for the document. "" is a request without one.
func (w *recordingTransport) tokens() (all []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.asked {
		if r.URL.Path != "/.well-known/agora.json" {
			all = append(all, r.Header.Get("Authorization"))
		}
	}
	return all
}

// startPrivate starts a private relay (PROTOCOL §8).
func startPrivate(t *testing.T) *realRelay {
	t.Helper()
	r, err := newRealRelay(relay.ToParties)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// clientOf returns a client of the relay at url, and the transport that records its requests.
func clientOf(t *testing.T, url string, key envelope.Signer, o client.Options) (*client.Client, *recordingTransport) {
	t.Helper()
	w := &recordingTransport{}
	o.HTTPClient = &http.Client{Transport: w}
	c, err := client.New(url, key, o)
	if err != nil {
		t.Fatal(err)
	}
	return c, w
}

// TestPrivateCall runs a whole call at a private relay. Neither side needs code for that. Other readers see nothing of
// the call.
func TestPrivateCall(t *testing.T) {
	r := startPrivate(t)
	alice, bob, eve := newKey(t), newKey(t), newKey(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	var serving sync.WaitGroup
	serving.Go(func() {
		agent, _ := clientOf(t, r.URL, bob, client.Options{RequireParties: true})
		err := agent.Serve(ctx, client.ServeOptions{Intents: []string{"echo"}}, client.Handler{Work: func(_ context.Context, job client.Job) (envelope.Result, error) {
			return envelope.Result{Output: job.Request.Params}, nil
		}})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the agent ended: %v", err)
		}
	})
	c, _ := clientOf(t, r.URL, alice, client.Options{RequireParties: true})
	call, err := c.Request(ctx, client.RequestOptions{Intent: "echo", Params: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	for offer, err := range call.Offers(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if err := call.Accept(ctx, offer); err != nil {
			t.Fatal(err)
		}
		break
	}
	result, err := call.Result(ctx)
	if err != nil || string(result.Output) != `"hello"` {
		t.Fatalf("%+v, %v", result, err)
	}
	if record, err := c.Thread(ctx, call.Thread, ""); err != nil || len(record.Events) != 4 {
		t.Errorf("%+v, %v", record, err)
	}
	stranger, _ := clientOf(t, r.URL, eve, client.Options{})
	anonymous, seen := clientOf(t, r.URL, nil, client.Options{})
	for name, c := range map[string]*client.Client{"a stranger": stranger, "an anonymous reader": anonymous} {
		if _, err := c.Thread(ctx, call.Thread, alice.DID()); !hasCode(err, envelope.CodeThreadNotFound) {
			t.Errorf("%s sees the thread: %v", name, err)
		}
		err := c.Follow(ctx, client.FollowOptions{Filter: client.Filter{Recipient: alice.DID()}, FromOldest: true}, nil)
		if !hasCode(err, envelope.CodeUnauthorized) {
			t.Errorf("%s follows the inbox of another identity: %v", name, err)
		}
	}
	for _, token := range seen.tokens() {
		if token != "" {
			t.Errorf("a client without a signer sent the token %s", token)
		}
	}
	stop()
	serving.Wait()
}

// TestTokensAreOnlyForTheGivenRelay: a relay whose document names another origin gets no token. A relay that claims to
// be open gets no token for other reads than polls. With RequireParties the client does not use such a relay at all.
func TestTokensAreOnlyForTheGivenRelay(t *testing.T) {
	r := startPrivate(t)
	key := newKey(t)
	read := func(c *client.Client) error {
		_, err := c.Agents(t.Context(), client.AgentQuery{})
		return err
	}
	for name, document := range map[string]map[string]any{
		"another relay": {"reads": "parties", "url": "https://relay.example"}, "another port": {"reads": "parties", "url": "http://127.0.0.1:1"},
		"another scheme": {"reads": "parties", "url": strings.Replace(r.URL, "http", "https", 1)}, "a path": {"reads": "parties", "url": r.URL + "/x"},
		"no url": {"reads": "parties"}, "unknown reads": {"reads": "Parties", "url": r.URL},
	} {
		c, seen := clientOf(t, r.URL, key, client.Options{})
		seen.setDocument(document)
		if err := read(c); !hasCode(err, envelope.CodeUnauthorized) || len(seen.tokens()) != 0 {
			t.Errorf("%s: %v, requests with the tokens %q", name, err, seen.tokens())
		}
	}
	for name, document := range map[string]map[string]any{"open": {"reads": "open", "url": r.URL}, "no reads": {"did": key.DID()}} {
		c, seen := clientOf(t, r.URL, key, client.Options{})
		seen.setDocument(document)
		if err := read(c); err != nil || len(seen.tokens()) != 1 || seen.tokens()[0] != "" {
			t.Errorf("%s: %v, %q", name, err, seen.tokens())
		}
		c, seen = clientOf(t, r.URL, key, client.Options{RequireParties: true})
		seen.setDocument(document)
		_, _, posting := c.Post(t.Context(), envelope.Draft{Payload: envelope.Request{Intent: "secret"}})
		if err := read(c); !errors.Is(err, client.ErrOpenReads) || !errors.Is(posting, client.ErrOpenReads) || len(seen.tokens()) != 0 {
			t.Errorf("%s, with RequireParties: %v, %v, requests with the tokens %q", name, err, posting, seen.tokens())
		}
	}
	// A client that has signed its reads once continues to sign them.
	c, seen := clientOf(t, strings.Replace(r.URL, "127.0.0.1", "localhost", 1), key, client.Options{})
	if err := read(c); err != nil {
		t.Fatal(err)
	}
	seen.setDocument(map[string]any{"reads": "open", "url": r.URL})
	if err := read(c); err != nil {
		t.Fatal(err)
	}
	tokens := seen.tokens()
	for i, token := range tokens {
		text, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(token, "Agora "))
		if err != nil || !strings.Contains(string(text), `"aud":"`+r.URL+`"`) || i > 0 && token == tokens[0] {
			t.Errorf("%s, %v", text, err)
		}
	}
	if len(tokens) != 2 {
		t.Errorf("%d reads", len(tokens))
	}
}

// TestRefusedTokensAreReplaced: after a refused read the client sends a new token. The relay refuses reads because the
// client's clock is wrong, because the transport has sent the request twice, and because the relay has become private.
func TestRefusedTokensAreReplaced(t *testing.T) {
	r := startPrivate(t)
	key := newKey(t)
	inbox := func(c *client.Client) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		enough := errors.New("enough")
		if _, _, err := c.Post(ctx, envelope.Draft{Payload: envelope.Request{Intent: "echo"}, Recipient: key.DID()}); err != nil {
			return err
		}
		err := c.Follow(ctx, client.FollowOptions{Filter: client.Filter{Recipient: key.DID()}, FromOldest: true},
			func(context.Context, *envelope.Envelope) error { return enough })
		if errors.Is(err, enough) {
			return nil
		}
		return err
	}
	c, seen := clientOf(t, r.URL, key, client.Options{Now: func() time.Time { return time.Now().Add(-4 * time.Minute) }})
	if _, err := c.Agents(t.Context(), client.AgentQuery{}); err != nil || len(seen.tokens()) != 2 {
		t.Errorf("a clock four minutes behind: %v, %d requests", err, len(seen.tokens()))
	}
	c, seen = clientOf(t, r.URL, key, client.Options{Now: func() time.Time { return time.Now().Add(23 * time.Hour) }})
	if _, err := c.Agents(t.Context(), client.AgentQuery{}); err != nil || len(seen.tokens()) != 2 {
		t.Errorf("a clock 23 hours ahead: %v, %d requests", err, len(seen.tokens()))
	}
	for _, off := range []time.Duration{-16 * time.Minute, 25 * time.Hour} {
		c, seen = clientOf(t, r.URL, key, client.Options{Now: func() time.Time { return time.Now().Add(off) }})
		if _, err := c.Agents(t.Context(), client.AgentQuery{}); !hasCode(err, envelope.CodeUnauthorized) ||
			!strings.Contains(err.Error(), "set this machine's clock") || len(seen.tokens()) != 1 {
			t.Errorf("a clock %v ahead: %v, %d requests", off, err, len(seen.tokens()))
		}
	}
	c, seen = clientOf(t, r.URL, key, client.Options{})
	seen.setDocument(map[string]any{"reads": "open"})
	if _, err := c.Agents(t.Context(), client.AgentQuery{}); err != nil {
		t.Fatal(err)
	}
	seen.setDocument(nil)
	if err := inbox(c); err != nil {
		t.Errorf("a relay that has become private: %v", err)
	}
	doubled := &doublingTransport{}
	c, err := client.New(r.URL, key, client.Options{HTTPClient: &http.Client{Transport: doubled}})
	if err != nil {
		t.Fatal(err)
	}
	if err := inbox(c); err != nil || doubled.lost != 1 {
		t.Errorf("a request that was sent twice: %v, %d lost responses", err, doubled.lost)
	}
}

// doublingTransport loses the first response to a read of events and sends the request again. Transports may do so.
type doublingTransport struct{ lost int }

func (d *doublingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/events" && r.Method == http.MethodGet && d.lost == 0 {
		d.lost++
		lost, err := http.DefaultTransport.RoundTrip(r.Clone(r.Context()))
		if err != nil {
			return nil, err
		}
		if err := lost.Body.Close(); err != nil {
			return nil, err
		}
	}
	return http.DefaultTransport.RoundTrip(r)
}

// TestOpenRelaysGetTokensOfFollow: at an open relay the polls of Follow are signed, and a read of the directory is not.
// The tokens have the relay's origin as their audience.
func TestOpenRelaysGetTokensOfFollow(t *testing.T) {
	r, err := newRealRelay(relay.ToAll)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	key := newKey(t)
	if _, _, err := newClientVia(t, r.URL, key, http.DefaultTransport.RoundTrip).Post(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	c, seen := clientOf(t, r.URL, key, client.Options{})
	if err := followOne(t, c); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Agents(t.Context(), client.AgentQuery{}); err != nil {
		t.Fatal(err)
	}
	tokens := seen.tokens()
	if len(tokens) != 2 || tokens[1] != "" {
		t.Fatalf("requests with the tokens %q; want one for Follow, none for Agents", tokens)
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimPrefix(tokens[0], "Agora "))
	if err != nil || !strings.Contains(string(text), `"aud":"`+r.URL+`"`) || !strings.Contains(string(text), string(key.DID())) {
		t.Errorf("%s, %v", text, err)
	}
	withUser := strings.Replace(r.URL, "http://", "http://user:secret@", 1)
	for name, test := range map[string]struct {
		url      string
		document map[string]any
		key      envelope.Signer
	}{
		"another relay": {r.URL, map[string]any{"reads": "open", "url": "https://relay.example"}, key}, "no url": {r.URL, map[string]any{"reads": "open"}, key},
		"no reads": {r.URL, map[string]any{"url": r.URL}, key}, "another name": {strings.Replace(r.URL, "127.0.0.1", "localhost", 1), nil, key},
		"a user in the URL": {withUser, nil, key}, "no signer": {r.URL, nil, nil},
	} {
		c, seen := clientOf(t, test.url, test.key, client.Options{})
		seen.setDocument(test.document)
		if err := followOne(t, c); err != nil || strings.Contains(strings.Join(seen.tokens(), " "), "Agora") {
			t.Errorf("%s: %v, %q", name, err, seen.tokens())
		}
	}
}

// TestProxiesMayRefuseTokens: a proxy in front of an open relay refuses the Authorization header. The reader then sends
// unsigned polls.
func TestProxiesMayRefuseTokens(t *testing.T) {
	r, err := newRealRelay(relay.ToAll)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	key := newKey(t)
	if _, _, err := newClientVia(t, r.URL, key, http.DefaultTransport.RoundTrip).Post(t.Context(), request); err != nil {
		t.Fatal(err)
	}
	for _, status := range []int{401, 403, 431} {
		signed := 0
		c := newClientVia(t, r.URL, key, func(q *http.Request) (*http.Response, error) {
			if q.Header.Get("Authorization") != "" {
				signed++
				return response(status, `{"ok":false,"error":"UNAUTHORIZED","message":"who are you?"}`), nil
			}
			return http.DefaultTransport.RoundTrip(q)
		})
		for range 2 {
			if err := followOne(t, c); err != nil || signed != 1 {
				t.Errorf("%d: %v, %d signed reads", status, err, signed)
			}
		}
	}
}

// followOne follows from the oldest event until one event has arrived.
func followOne(t *testing.T, c *client.Client) error {
	enough := errors.New("enough")
	err := c.Follow(t.Context(), client.FollowOptions{FromOldest: true},
		func(context.Context, *envelope.Envelope) error { return enough })
	if errors.Is(err, enough) {
		return nil
	}
	return err
}

// TestFollowOutlivesRepeatedRequests: a proxy sends the first reads to the relay twice, and returns the second answer,
// which says that the token was used before. Follow continues until the proxy stops doing so.
func TestFollowOutlivesRepeatedRequests(t *testing.T) {
	r, key, repeats := startPrivate(t), newKey(t), 0
	c := newClientVia(t, r.URL, key, func(q *http.Request) (*http.Response, error) {
		if q.Header.Get("Authorization") != "" && repeats < 5 {
			repeats++
			first, err := http.DefaultTransport.RoundTrip(q.Clone(q.Context()))
			if err = errors.Join(err, first.Body.Close()); err != nil {
				return nil, err
			}
		}
		return http.DefaultTransport.RoundTrip(q)
	})
	if _, _, err := c.Post(t.Context(), envelope.Draft{
		Payload: envelope.Request{Intent: "echo"}, Recipient: key.DID()}); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	err := c.Follow(t.Context(), client.FollowOptions{Filter: client.Filter{Recipient: key.DID()}, FromOldest: true},
		func(context.Context, *envelope.Envelope) error { return enough })
	if !errors.Is(err, enough) || repeats != 5 {
		t.Errorf("Follow ended with %v after %d repeated reads", err, repeats)
	}
}
