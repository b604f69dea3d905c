package a2a_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/gateway/gatetest"
	wire "github.com/agora-relay/agora/internal/a2a"
	"github.com/agora-relay/agora/internal/racing"
)

// a card is served byte for byte, with max-age, ETag and 304. A-8: also with a slash at the end.
func TestCardIsServed(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	k := newKey(t)
	a := f.agentWith(k, wire.Public, wire.ModeMessage, nil)
	card := strings.Replace(f.card(k, wire.Public, nil), `{"capabilities"`, "{ \"capabilities\"", 1)
	f.want(a.publish(card, wire.Public, wire.ModeMessage), 200, "")
	for _, path := range []string{"", "/", "/.well-known/agent-card.json", "/.well-known/agent-card.json/"} {
		got := f.do(call{"GET", a.path + path, "", nil, nil})
		if got.Status != 200 || string(got.Body) != card || got.Header.Get("Cache-Control") != "public, max-age=300" ||
			got.Header.Get("Last-Modified") == "" || got.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %v %v", path, got, got.Header)
		}
		again := f.do(call{"GET", a.path + path, "", nil, map[string]string{"If-None-Match": got.Header.Get("ETag")}})
		if again.Status != 304 || len(again.Body) != 0 {
			t.Errorf("%s with If-None-Match: %v", path, again)
		}
	}
	keys := f.do(call{"GET", a.path + "/jwks.json", "", nil, nil})
	if string(keys.Body) != string(a.at.JWKS()) {
		t.Errorf("the key set is %v", keys)
	}
	own, err := gatetest.Do(t.Context(), f.Client, f.Own, gatetest.Call{Method: "GET", Path: a.path})
	if f.must(err); string(own.Body) != card {
		t.Errorf("the own listener answers %v", own)
	}
	for _, path := range []string{"/zzz", "/z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK", a.path + "/other", a.path + "//"} {
		if got := f.do(call{"GET", path, "", nil, nil}); got.Status != 404 || member(got.Body, "error", "status") != "NOT_FOUND" {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// a card without the DID's signature, with another URL, with another access, or with an empty, false, null or
// numeric value is refused.
func TestCardIsChecked(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	k, other := newKey(t), newKey(t)
	a := f.agentWith(k, wire.Public, wire.ModeMessage, nil)
	good := f.card(k, wire.Public, nil)
	with := func(name string, value any) string {
		var members map[string]any
		f.must(json.Unmarshal([]byte(good), &members))
		members[name] = value
		text, err := json.Marshal(members)
		f.must(err)
		return string(text)
	}
	for what, card := range map[string]string{
		"of another DID": f.card(other, wire.Public, nil), "for keys": f.card(k, wire.Keys, nil), "changed": with("name", "x"),
		"empty": with("iconUrl", ""), "false": with("x", false), "null": with("x", nil), "a number": with("x", 1),
		"an empty list": with("signatures", []any{}), "too large": with("name", strings.Repeat("x", 40_000)),
	} {
		if got := a.publish(card, wire.Public, wire.ModeMessage); got.Status != 400 || text(got.Body, "error") != "INVALID_REQUEST" {
			t.Errorf("%s: %v", what, got)
		}
	}
	if got := f.do(call{"GET", a.path, "", nil, nil}); string(got.Body) != good {
		t.Errorf("the card is now %v", got)
	}
}

// only the owner changes an endpoint or its keys. A-7: a revoked key is 401 at once.
func TestOwner(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	a, other := f.agent(wire.Keys), newKey(t)
	for _, c := range []call{{"PUT", "/endpoint", "", "{}", nil}, {"GET", "/endpoint", "", nil, nil}, {"DELETE", "/endpoint", "", nil, nil},
		{"GET", "/keys", "", nil, nil}, {"POST", "/keys", "", `{"name":"x"}`, nil}, {"DELETE", "/keys/x", "", nil, nil}} {
		f.want(f.signed(other, c.Method, a.path+c.Path, c.Body), 403, "FORBIDDEN")
		f.want(f.do(call{c.Method, a.path + c.Path, "", c.Body, nil}), 401, "UNAUTHORIZED")
	}
	key := a.newKey("alice")
	f.want(f.signed(a.key, "POST", a.path+"/keys", `{"name":"alice"}`), 409, "CONFLICT")
	if got := f.want(f.signed(a.key, "GET", a.path+"/keys", nil), 200, ""); text(got.Body, "keys", 0, "name") != "alice" {
		t.Errorf("the keys are %v", got)
	}
	if got := f.want(f.signed(a.key, "GET", a.path+"/endpoint", nil), 200, ""); text(got.Body, "url") != a.at.Base() ||
		text(got.Body, "endpoint", "access") != "keys" {
		t.Errorf("the endpoint is %v", got)
	}
	alice := caller{agent: a, key: key}
	alice.sayAtOnce("hello")
	f.want(f.signed(a.key, "DELETE", a.path+"/keys/alice", nil), 200, "")
	for _, c := range []caller{alice, {agent: a}, {agent: a, key: "aa_x"}, {agent: a, key: f.Operator}} {
		got := c.post("/rpc", object{"jsonrpc": "2.0", "id": 1, "method": "ListTasks"})
		if got.Status != 401 || got.Header.Get("WWW-Authenticate") != "Bearer" || text(got.Body, "error", "status") != "UNAUTHENTICATED" {
			t.Errorf("without a key: %v", got)
		}
	}
	signer := newKey(t)
	caller{agent: a, did: &signer}.sayAtOnce("signed")
	f.want(f.signed(a.key, "DELETE", a.path+"/endpoint", nil), 200, "")
	f.want(f.signed(a.key, "GET", a.path+"/endpoint", nil), 404, "NOT_FOUND")
	if got := f.do(call{"GET", a.path, "", nil, nil}); got.Status != 404 {
		t.Errorf("the card of a deleted endpoint: %v", got)
	}
}

// TestEndpointsAreLimited checks the limits on endpoints and keys, and that a deleted endpoint leaves nothing.
func TestEndpointsAreLimited(t *testing.T) {
	inBubble(t, func(t *testing.T, f *fixture) {
		first := f.agent(wire.Public)
		a := f.agent(wire.Public)
		third := &agent{f: f, key: newKey(t)}
		third.path = "/" + third.key.DID().Multibase()
		f.want(third.publish(f.card(third.key, wire.Public, nil), wire.Public, wire.ModeMessage), 429, "RATE_LIMITED")
		f.gateway.SetKeys(3)
		for i := range 3 {
			a.newKey(fmt.Sprint("k", i))
		}
		f.want(f.signed(a.key, "POST", a.path+"/keys", `{"name":"one-more"}`), 429, "RATE_LIMITED")
		caller{agent: a}.sayAtOnce("hello")
		f.want(f.signed(a.key, "DELETE", a.path+"/endpoint", nil), 200, "")
		synctest.Wait()
		f.wantRows(t, "a2a_key", 0)
		f.wantRows(t, "a2a_event", 0)
		f.wantRows(t, "a2a_endpoint", 1)
		// An agent that was not heard from for 90 days loses its endpoint.
		f.pass(91 * 24 * time.Hour)
		if got := f.do(call{"GET", first.path, "", nil, nil}); got.Status != 404 {
			t.Errorf("after 91 days: %v", got)
		}
	}, func(f *fixture) { f.options.Endpoints = 2 })
}

// TestAgentsAreFound checks the list of endpoints.
func TestAgentsAreFound(t *testing.T) {
	racing.Skip(t, "one call after another")
	f := start(t)
	a := f.agentWith(newKey(t), wire.Public, wire.ModeMessage, func(c *wire.Card) { c.Description = "Écho of the Alps" })
	b := f.agent(wire.Keys)
	hidden := f.agent(wire.Keys)
	f.want(f.signed(hidden.key, "PUT", hidden.path+"/endpoint", `{"access":"keys","mode":"message","card":`+
		f.card(hidden.key, wire.Keys, nil)+"}"), 200, "")
	page := f.want(f.do(call{"GET", "/agents?limit=1", "", nil, nil}), 200, "")
	next := f.want(f.do(call{"GET", "/agents/?cursor=" + text(page.Body, "cursor"), "", nil, nil}), 200, "")
	if text(page.Body, "agents", 0, "url") != a.at.Base() || member(page.Body, "hasMore") != true ||
		text(next.Body, "agents", 0, "url") != b.at.Base() || member(next.Body, "hasMore") != false || member(next.Body, "agents", 1) != nil {
		t.Errorf("the pages are %v and %v", page, next)
	}
	found := f.want(f.do(call{"GET", "/agents?q=alps", "", nil, nil}), 200, "")
	if text(found.Body, "agents", 0, "did") != string(a.key.DID()) || member(found.Body, "agents", 1) != nil ||
		member(found.Body, "agents", 0, "online") != false {
		t.Errorf("the search finds %v", found)
	}
	f.want(f.do(call{"GET", "/agents?limit=101", "", nil, nil}), 400, "INVALID_REQUEST")
}
