package httpapi_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

const origin = "https://relay.example"

// privateHandler returns the handler of a relay that shows directed messages to their sender and recipient only.
func privateHandler(t *testing.T) http.Handler {
	t.Helper()
	r := startWith(t, asIs, relay.Config{Origin: origin, Reads: relay.ToParties})
	return newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
}

// authorization returns the header Authorization of a read that k signs.
func authorization(t testing.TB, k didkey.Key, target string) string {
	t.Helper()
	token, err := envelope.Read{Audience: origin, Method: "GET", Target: target, TS: time.Now()}.Sign(k)
	if err != nil {
		t.Fatal(err)
	}
	return "Agora " + token
}

// getWith sends a GET with these Authorization headers.
func getWith(t testing.TB, h http.Handler, target string, headers ...string) answer {
	t.Helper()
	req := httptest.NewRequest("GET", target, nil)
	for _, value := range headers {
		req.Header.Add("Authorization", value)
	}
	return call(t, h, req)
}

// getAs sends a GET that k signs.
func getAs(t testing.TB, h http.Handler, k didkey.Key, target string) answer {
	t.Helper()
	return getWith(t, h, target, authorization(t, k, target))
}

// unauthorized checks that an answer is a 401 with this reason and the right headers.
func unauthorized(t *testing.T, name string, a answer, reason string) {
	t.Helper()
	if a.status != 401 || a.Error != envelope.CodeUnauthorized || a.OK == nil || *a.OK || a.Message == "" || a.Retryable == nil || *a.Retryable ||
		a.Details["reason"] != reason || a.header.Get("WWW-Authenticate") != "Agora" || a.header.Get("Cache-Control") != "no-store" ||
		a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%s: want 401 for %q, got %d %v %s", name, reason, a.status, a.header, a.body)
	}
}

func TestSignedReads(t *testing.T) {
	h := privateHandler(t)
	alice, bob, eve := key(t), key(t), key(t)
	e := sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "echo"}, Recipient: bob.DID()})
	post(t, h, "/events", e.Canonical())
	for _, path := range []string{"/events", "/v1/messages"} {
		inbox := path + "?cursor=0&timeout=0&recipient=" + url.QueryEscape(string(bob.DID()))
		if a := getAs(t, h, bob, inbox); a.status != 200 || len(a.Events) != 1 || a.header.Get("WWW-Authenticate") != "" {
			t.Errorf("bob's inbox: %d %s", a.status, a.body)
		}
		all := path + "?timeout=0&since=2026-01-01T00:00:00Z"
		if a := getAs(t, h, alice, all); a.status != 200 || len(a.Events) != 1 {
			t.Errorf("what alice sent: %d %s", a.status, a.body)
		}
		for name, a := range map[string]answer{"an anonymous reader": get(t, h, all), "eve": getAs(t, h, eve, all)} {
			if a.status != 200 || len(a.Events) != 0 {
				t.Errorf("%s sees %s", name, a.body)
			}
		}
		unauthorized(t, "an anonymous reader", get(t, h, inbox), envelope.ReasonUnsigned)
		unauthorized(t, "eve", getAs(t, h, eve, inbox), envelope.ReasonUnsigned)
		good := authorization(t, bob, inbox)
		// An invalid token is refused, even if a read without a token would be answered.
		for target, headers := range map[string][]string{inbox: {good, good}, all: {good}} {
			reason := envelope.ReasonMalformed
			if len(headers) == 1 {
				reason = envelope.ReasonRequest
			}
			unauthorized(t, "a token for another target, or two headers", getWith(t, h, target, headers...), reason)
		}
		for name, header := range map[string]string{"no scheme": good[6:], "another scheme": "Bearer " + good[6:], "nothing": "", "only the scheme": "Agora",
			"no token": "Agora ", "two tokens": good + " " + good[6:], "two with a comma": good + ", " + good, "text": "Agora !"} {
			unauthorized(t, name, getWith(t, h, all, header), envelope.ReasonMalformed)
		}
		unauthorized(t, "the query in another order", getWith(t, h, strings.Replace(inbox, "cursor=0&timeout=0", "timeout=0&cursor=0", 1), good), envelope.ReasonRequest)
		if a := getWith(t, h, inbox, strings.Replace(good, "Agora", "agora", 1)); a.status != 200 {
			t.Errorf("the scheme in lower case: %s", a.body)
		}
		unauthorized(t, "a used token", getWith(t, h, inbox, good), envelope.ReasonUsed)
	}
	if a := post(t, h, "/events", e.Canonical()); !bytes.Contains(a.body, []byte(`"thread":{"id":"`+e.Thread+`","client":"`+string(alice.DID())+`"}`)) {
		t.Errorf("the receipt of a duplicate: %s", a.body)
	}
	for _, path := range []string{"/agents", "/v1/agents", "/agents/" + string(bob.DID()), "/threads/" + e.Thread} {
		unauthorized(t, path, getWith(t, h, path, "Agora x"), envelope.ReasonMalformed)
	}
	// With these a client can find out why its reads fail.
	for _, path := range []string{"/health", "/.well-known/agora.json"} {
		if a := getWith(t, h, path, "Agora x"); a.status != 200 {
			t.Errorf("%s: %s", path, a.body)
		}
	}
	if a := get(t, h, "/.well-known/agora.json"); !bytes.Contains(a.body, []byte(`"reads":"parties"`)) {
		t.Errorf("%s", a.body)
	}
	stale, err := envelope.Read{Audience: origin, Method: "GET", Target: "/agents", TS: time.Now().Add(-2 * time.Minute)}.Sign(bob)
	if err != nil {
		t.Fatal(err)
	}
	a := getWith(t, h, "/agents", "Agora "+stale)
	now, ok := envelope.ParseTime(fmt.Sprint(a.Details["now"]))
	if unauthorized(t, "stale", a, envelope.ReasonTime); !ok || time.Since(now).Abs() > time.Minute {
		t.Errorf("the answer does not contain the relay's time: %s", a.body)
	}
}

// TestHiddenThreadLooksMissing checks that a reader gets the same bytes for a thread that is hidden from it as for a
// thread that does not exist.
func TestHiddenThreadLooksMissing(t *testing.T) {
	h := privateHandler(t)
	alice, bob, eve := key(t), key(t), key(t)
	e := sign(t, alice, envelope.Draft{Payload: envelope.Request{RequestID: "r1", Intent: "echo"}, Thread: "there", Recipient: bob.DID()})
	post(t, h, "/events", e.Canonical())
	for _, who := range []didkey.Key{alice, bob} {
		if a := getAs(t, h, who, "/threads/there"); a.status != 200 || len(a.Events) != 1 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	for _, query := range []string{"", "?client=" + string(alice.DID()), "?client=" + string(bob.DID())} {
		for name, ask := range map[string]func(id string) answer{
			"anonymous": func(id string) answer { return get(t, h, "/threads/"+id+query) },
			"eve":       func(id string) answer { return getAs(t, h, eve, "/threads/"+id+query) },
		} {
			hidden, none := ask("there"), ask("nowhere")
			if hidden.status != 404 || !bytes.Equal(hidden.body, none.body) || !reflect.DeepEqual(hidden.header, none.header) {
				t.Errorf("%s%s: %v %s\nand %v %s", name, query, hidden.header, hidden.body, none.header, none.body)
			}
		}
	}
	for _, payload := range []envelope.Payload{envelope.Offer{RequestID: "r1"}, envelope.Result{RequestID: "r1", Status: "success"}, envelope.Cancel{RequestID: "r1"}} {
		try := func(id string) answer {
			return post(t, h, "/events", sign(t, eve, envelope.Draft{Payload: payload, Thread: id, Recipient: alice.DID()}).Canonical())
		}
		if hidden, none := try("there"), try("nowhere"); hidden.status != 404 || !bytes.Equal(hidden.body, none.body) || !reflect.DeepEqual(hidden.header, none.header) {
			t.Errorf("%T: %s\nand %s", payload, hidden.body, none.body)
		}
	}
}

// TestOpenRelayRefusesNoToken checks that an open relay gives exactly the same answer with any Authorization as without
// one. A valid token has one effect: its signer counts as online.
func TestOpenRelayRefusesNoToken(t *testing.T) {
	racing.Skip(t, "one thing after another")
	var c clock
	r := startWith(t, asIs, relay.Config{Origin: origin, Now: c.now})
	h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
	alice, bob := key(t), key(t)
	e := sign(t, alice, envelope.Draft{Payload: envelope.Request{Intent: "echo"}, Recipient: bob.DID()})
	receipt := post(t, h, "/events", e.Canonical())
	if want := receipt.Cursor; want[8] != '-' {
		t.Errorf("a receipt's cursor is %s", want)
	}
	post(t, h, "/events", sign(t, bob, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}).Canonical())
	for _, target := range []string{
		"/events?cursor=0&timeout=0&recipient=" + string(bob.DID()), "/events?since=2026-01-01T00:00:00Z&timeout=0", "/v1/messages?cursor=0&timeout=0",
		"/events?cursor=" + receipt.Cursor + "&timeout=0", "/events?before=end", "/events?before=" + receipt.Cursor, "/threads/" + e.Thread, "/threads/nowhere", "/agents", "/v1/agents", "/agents?online=true",
		"/agents/" + string(bob.DID()), "/events", "/.well-known/agora.json", "/nowhere",
	} {
		plain := get(t, h, target)
		if plain.header.Get("WWW-Authenticate") != "" {
			t.Errorf("%s: %v", target, plain.header)
		}
		for _, headers := range [][]string{{authorization(t, alice, target)}, {"Agora x"}, {"Bearer x", "Basic y"}, {""}} {
			if a := getWith(t, h, target, headers...); a.status != plain.status || !bytes.Equal(a.body, plain.body) || !reflect.DeepEqual(a.header, plain.header) {
				t.Errorf("%s with %q: %d %s\nwithout: %d %s", target, headers, a.status, a.body, plain.status, plain.body)
			}
		}
	}
	if a := get(t, h, "/.well-known/agora.json"); !bytes.Contains(a.body, []byte(`"reads":"open"`)) {
		t.Errorf("%s", a.body)
	}
	c.advance(10 * time.Minute)
	const target = "/events?since=2026-01-01T00:00:00Z&timeout=0"
	token, err := envelope.Read{Audience: origin, Method: "GET", Target: target, TS: c.now()}.Sign(bob)
	if err != nil {
		t.Fatal(err)
	}
	for _, headers := range [][]string{{"Agora x"}, {"Bearer " + token}, {"Agora " + token, "Agora " + token}, {authorization(t, bob, target)}, {"agora " + token}} {
		if a := get(t, h, "/agents?online=true"); bytes.Contains(a.body, []byte(bob.DID())) {
			t.Errorf("the agent is online before the read with %q: %s", headers, a.body)
		}
		if a := getWith(t, h, target, headers...); a.status != 200 {
			t.Errorf("%q: %d", headers, a.status)
		}
	}
	if a := get(t, h, "/agents?online=true"); !bytes.Contains(a.body, []byte(bob.DID())) {
		t.Errorf("the agent is not online after a read with a valid token: %s", a.body)
	}
}

// TestOpenRelayLimitsReadsBeforeTokens checks that a read that is refused by a rate limit does not mark its signer as
// present.
func TestOpenRelayLimitsReadsBeforeTokens(t *testing.T) {
	var c clock
	r := startWith(t, asIs, relay.Config{Origin: origin, Now: c.now, Limits: relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.001, Burst: 1}}})
	h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
	bob := key(t)
	post(t, h, "/events", sign(t, bob, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}}}).Canonical())
	c.advance(10 * time.Minute)
	token, err := envelope.Read{Audience: origin, Method: "GET", Target: "/events", TS: c.now()}.Sign(bob)
	if err != nil {
		t.Fatal(err)
	}
	get(t, h, "/nowhere")
	if a := getWith(t, h, "/events", "Agora "+token); a.status != 429 {
		t.Errorf("a read over the rate limit: %d", a.status)
	}
	if all, _, err := r.Agent(t.Context(), relay.Peer{Local: true}, bob.DID()); err != nil || len(all) != 1 || r.Online(all[0]) {
		t.Errorf("a refused read marks its signer as online: %v, %v", all, err)
	}
}

// TestTokensAreNotLogged checks that the log, at level debug, contains no token, no query and no recipient of a reader.
func TestTokensAreNotLogged(t *testing.T) {
	var log bytes.Buffer
	r := startWith(t, asIs, relay.Config{Origin: origin, Reads: relay.ToParties})
	h := newFront(t, r, httpapi.Options{Log: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}).Handler(false)
	bob := key(t)
	target := "/events?cursor=0&timeout=0&recipient=" + string(bob.DID())
	good := authorization(t, bob, target)
	getWith(t, h, target, good)
	getWith(t, h, target, good)
	getWith(t, h, target, "Agora secret-secret")
	for _, secret := range []string{good[6:60], "secret", string(bob.DID()), "cursor=0"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("%q is in the log: %s", secret, log.String())
		}
	}
	if !strings.Contains(log.String(), "/events") {
		t.Error("nothing was logged at all")
	}
}

// TestRateLimitComesBeforeTokens checks that a read over the rate limit is refused before its token is verified. The
// token can be used later.
func TestRateLimitComesBeforeTokens(t *testing.T) {
	r := startWith(t, asIs, relay.Config{Origin: origin, Reads: relay.ToParties,
		Limits: relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 0.001, Burst: 1}}})
	h := newFront(t, r, httpapi.Options{Log: quiet}).Handler(false)
	bob := key(t)
	if a := getWith(t, h, "/agents", "Agora x"); a.status != 401 {
		t.Errorf("the first read: %d", a.status)
	}
	good := authorization(t, bob, "/agents")
	if a := getWith(t, h, "/agents", good); a.status != 429 {
		t.Errorf("the second read: %d", a.status)
	}
	if _, err := r.VerifyRead(t.Context(), good[6:], "GET", "/agents"); err != nil {
		t.Errorf("the token of the refused read is used up: %v", err)
	}
}
