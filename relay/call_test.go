package relay_test

import (
	"crypto/sha256"
	"encoding/base64"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
)

const callTarget = "/jobs/offers?a=%20"

var callBody = []byte(`{"price":5}`)

// newCall returns a call with callBody to callTarget at ownOrigin, now.
func newCall() envelope.Call {
	return envelope.Call{Read: envelope.Read{Audience: ownOrigin, Method: "POST", Target: callTarget, TS: time.Now()},
		Body: sha256.Sum256(callBody)}
}

// signCall returns the token of c. change edits its JSON after it is signed; nil leaves it as it is.
func signCall(t *testing.T, k didkey.Key, c envelope.Call, change func(string) string) string {
	t.Helper()
	token, err := c.Sign(k)
	if err != nil {
		t.Fatal(err)
	}
	if change == nil {
		return token
	}
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(change(string(text))))
}

// wantReason checks that err refuses a token for this reason, and has the details that belong to it.
func wantReason(t *testing.T, name string, err error, reason string) {
	t.Helper()
	e := wantCode(t, err, envelope.CodeUnauthorized)
	if e.Reason() != reason {
		t.Errorf("%s: refused because of %q, want %q", name, e.Reason(), reason)
	}
	now, ok := e.Now()
	if ok != (reason == envelope.ReasonTime) || ok && !now.Equal(time.Now().Truncate(time.Millisecond)) {
		t.Errorf("%s: details %v", name, e.Details)
	}
	if aud := e.Details[envelope.DetailAudience]; (aud == ownOrigin) != (reason == envelope.ReasonAudience) {
		t.Errorf("%s: details %v", name, e.Details)
	}
}

// G-12: a signed call is accepted once, for its method, target, body, origin and minute, also by an open relay.
func TestCallsAreForOneRequest(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, config := range []relay.Config{privateConfig, {Origin: ownOrigin}} {
		synctest.Test(t, func(t *testing.T) {
			r := start(t, config)
			time.Sleep(10 * time.Minute)
			k := key(t)
			verify := func(token string) (didkey.DID, error) {
				return r.VerifyCall(t.Context(), token, "POST", callTarget, callBody)
			}
			once := newCall()
			once.Nonce = "one-and-the-same-nonce"
			for name, c := range map[string]struct {
				change func(*envelope.Call)
				reason string
			}{
				"another origin":   {func(c *envelope.Call) { c.Audience = "https://there.example" }, envelope.ReasonAudience},
				"no origin":        {func(c *envelope.Call) { c.Audience = "" }, envelope.ReasonAudience},
				"another method":   {func(c *envelope.Call) { c.Method = "PUT" }, envelope.ReasonRequest},
				"a method in case": {func(c *envelope.Call) { c.Method = "post" }, envelope.ReasonRequest},
				"another target":   {func(c *envelope.Call) { c.Target = "/jobs/offers" }, envelope.ReasonRequest},
				"a decoded target": {func(c *envelope.Call) { c.Target = "/jobs/offers?a= " }, envelope.ReasonRequest},
				"too old":          {func(c *envelope.Call) { c.TS = c.TS.Add(-relay.ReadSkew) }, envelope.ReasonTime},
				"too new":          {func(c *envelope.Call) { c.TS = c.TS.Add(relay.ReadSkew) }, envelope.ReasonTime},
				"another body":     {func(c *envelope.Call) { c.Body[31] ^= 1 }, envelope.ReasonBody},
				"no body":          {func(c *envelope.Call) { c.Body = sha256.Sum256(nil) }, envelope.ReasonBody},
			} {
				call := once
				c.change(&call)
				_, err := verify(signCall(t, k, call, nil))
				wantReason(t, name, err, c.reason)
			}
			// None of the refused tokens has used up the nonce.
			token := signCall(t, k, once, nil)
			if did, err := verify(token); err != nil || did != k.DID() {
				t.Fatalf("%s, %v", did, err)
			}
			for range 2 {
				_, err := verify(token)
				wantReason(t, "a used token", err, envelope.ReasonUsed)
			}
			time.Sleep(relay.ReadSkew)
			_, err := verify(token)
			wantReason(t, "a used token, after its minute", err, envelope.ReasonTime)
		})
	}
}

// G-12: the body may be empty, and the edges of the minute are accepted.
func TestCallsOfOtherForms(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Origin: ownOrigin})
		time.Sleep(10 * time.Minute)
		k := key(t)
		for _, age := range []time.Duration{relay.ReadSkew - time.Millisecond, 0, time.Millisecond - relay.ReadSkew} {
			call := newCall()
			call.Method, call.Body, call.TS = "DELETE", sha256.Sum256(nil), call.TS.Add(-age)
			did, err := r.VerifyCall(t.Context(), signCall(t, k, call, nil), "DELETE", callTarget, nil)
			if err != nil || did != k.DID() {
				t.Errorf("a call that is %v old: %s %v", age, did, err)
			}
		}
	})
}

// G-13: each failed check is named. A token that fails several checks is refused because of the first one.
func TestCallsNameTheFirstFailedCheck(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Origin: ownOrigin})
		time.Sleep(10 * time.Minute)
		k := key(t)
		eve := key(t)
		const nonce = "one-and-the-same-nonce"
		replaced := func(old, new string) func(string) string {
			return func(s string) string { return strings.Replace(s, old, new, 1) }
		}
		// The checks in their order. Each step makes a token fail one check.
		type fault struct {
			reason string
			before func(*envelope.Call) // changes the token before it is signed
			after  func(string) string  // changes its JSON after it is signed
		}
		order := []fault{
			{reason: envelope.ReasonMalformed, after: replaced(`"body"`, `"Body"`)},
			{reason: envelope.ReasonAudience, before: func(c *envelope.Call) { c.Audience = "https://there.example" }},
			{reason: envelope.ReasonRequest, before: func(c *envelope.Call) { c.Method = "GET" }},
			{reason: envelope.ReasonTime, before: func(c *envelope.Call) { c.TS = c.TS.Add(-time.Hour) }},
			{reason: envelope.ReasonBody, before: func(c *envelope.Call) { c.Body[0]++ }},
			{reason: envelope.ReasonMalformed, after: replaced(`"did":"`+string(k.DID()), `"did":"`+string(eve.DID()))},
			{reason: envelope.ReasonUsed},
		}
		used := newCall()
		used.Nonce = nonce
		if _, err := r.VerifyCall(t.Context(), signCall(t, k, used, nil), "POST", callTarget, callBody); err != nil {
			t.Fatal(err)
		}
		for i, first := range order {
			for j := i; j < len(order); j++ { // the token fails the checks i and j, and that of the nonce
				call := newCall()
				call.Nonce = nonce
				after := func(s string) string { return s }
				for _, f := range []fault{first, order[j]} {
					if f.before != nil {
						f.before(&call)
					}
					if f.after != nil {
						earlier := after
						after = func(s string) string { return f.after(earlier(s)) }
					}
				}
				_, err := r.VerifyCall(t.Context(), signCall(t, k, call, after), "POST", callTarget, callBody)
				wantReason(t, "the checks "+first.reason+" and "+order[j].reason, err, first.reason)
			}
		}
	})
}

// TestCallsAndReads checks that a token of one kind is refused as one of the other kind, and that both share the memory
// of nonces.
func TestCallsAndReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, privateConfig)
		time.Sleep(10 * time.Minute)
		k := key(t)
		call := newCall()
		call.Method, call.Nonce = "GET", "one-and-the-same-nonce"
		callToken := signCall(t, k, call, nil)
		readToken, err := call.Read.Sign(k)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.VerifyRead(t.Context(), callToken, "GET", callTarget)
		wantReason(t, "a call as a read", err, envelope.ReasonMalformed)
		_, err = r.VerifyCall(t.Context(), readToken, "GET", callTarget, callBody)
		wantReason(t, "a read as a call", err, envelope.ReasonMalformed)
		if _, err := r.VerifyRead(t.Context(), readToken, "GET", callTarget); err != nil {
			t.Error(err)
		}
		_, err = r.VerifyCall(t.Context(), callToken, "GET", callTarget, callBody)
		wantReason(t, "a call with the nonce of a read", err, envelope.ReasonUsed)
	})
}

// TestCallsNeedAnOrigin checks that a relay without an origin accepts no token, not even one without an audience.
func TestCallsNeedAnOrigin(t *testing.T) {
	r := start(t, relay.Config{})
	call := newCall()
	call.Audience = ""
	_, err := r.VerifyCall(t.Context(), signCall(t, key(t), call, nil), "POST", callTarget, callBody)
	if e := wantCode(t, err, envelope.CodeUnauthorized); e.Reason() != envelope.ReasonAudience {
		t.Errorf("refused because of %q", e.Reason())
	}
}
