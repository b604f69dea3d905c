package relay

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
)

// healthChecks test the health check of a relay.
var healthChecks = []relayCheck{
	{Number: "C-1", Title: "GET /health returns ok true and the protocol version",
		Cites: "spec: Health Check", run: health},
}

// submitChecks test which messages a relay accepts, and whether it verifies their signatures.
var submitChecks = []relayCheck{
	{Number: "C-2", Title: "A signed envelope is accepted, and the answer has ok true and the id of the envelope",
		Cites: "spec: Submit Event",
		run: func(p *relayProbe) {
			client := p.Actor("a client")
			p.PostAccepted(client, p.Request(client, kit.Actor{}))
		}},
	{Number: "C-3", Title: "An envelope is delivered as it was signed, so that readers can verify it",
		Cites: "spec: Signing Process; Client Subscription Loop", run: deliveredAsSigned},
	{Number: "C-4", Title: "The signature covers the RFC 8785 form, whatever JSON formatting the body has",
		Cites: "spec: Signing Process",
		run:   otherSpellings},
	{Number: "C-5", Title: "An envelope that was changed after signing is refused and not delivered",
		Cites: "spec: Security Considerations (signature verification is mandatory)", wait: time.Second,
		run: refuses(kit.AnyRefusal,
			variant{what: "the payload changed after signing", text: replace("conformance.check", "conformance.chess")},
			variant{what: "thread.id changed after signing", text: replace(`"thread_`, `"threat_`)},
			variant{what: "meta.ttl changed after signing", text: replace(`"ttl":180`, `"ttl":181`)},
			variant{what: "a member added after signing", text: replace(`"version"`, `"unsigned":true,"version"`)},
		)},
	{Number: "C-6", Title: "An envelope that is not signed with the key of sender.id is refused",
		Cites: "spec: Security Considerations", wait: time.Second, run: signedByOtherKey},
	{Number: "C-7", Title: "An envelope without a signature is refused",
		Cites: "spec: Security Considerations (all messages must be signed)",
		wait:  time.Second, run: refuses(kit.AnyRefusal,
			variant{what: "no sig", sign: func(m kit.Message, from kit.Actor) kit.SignedMessage { return m.Encode(from) }},
			variant{what: "an empty sig", sign: withSig("")},
			variant{what: "a sig of 64 zero bytes",
				sign: withSig(base64.RawURLEncoding.EncodeToString(make([]byte, 64)))},
			variant{what: "a sig that is null",
				sign: func(m kit.Message, from kit.Actor) kit.SignedMessage { m["sig"] = nil; return m.Encode(from) }},
		)},
	{Number: "C-8", Title: "A signature over JSON text that is not the RFC 8785 form is refused",
		Cites: "spec: Signing Process", wait: time.Second, run: refuses(kit.AnyRefusal,
			variant{what: "a signature over indented JSON", sign: signedIndented})},
	{Number: "C-9", Title: "The version must be exactly 1.0",
		Cites: "spec: Version Compatibility", wait: time.Second, run: refuses(kit.AnyRefusal,
			variant{what: "version 2.0", edit: kit.Set("version", "2.0")},
			variant{what: "version 1.0.0", edit: kit.Set("version", "1.0.0")},
			variant{what: "no version", edit: kit.Without("version")},
		)},
	{Number: "C-10", Title: "A sender's did:key must use base58-btc, which has the prefix z",
		Cites: "spec: Validation Rules 1", wait: time.Second,
		run: refuses(kit.AnyRefusal,
			variant{what: "the sender's key in base64url, prefix u",
				edit: respell(
					func(key []byte) string { return "did:key:u" + base64.RawURLEncoding.EncodeToString(key) })},
			variant{what: "the sender's key in hexadecimal, prefix f", edit: respell(hexDID)},
			variant{what: "a sender that is not a did:key", edit: kit.Set("sender.id", "did:web:agent.example")},
		)},
	{Number: "C-11", Title: "A sender's did:key must have the multicodec prefix 0xed01",
		Cites: "spec: Validation Rules 2", wait: time.Second,
		run: refuses(kit.AnyRefusal, variant{what: "the prefix of X25519, 0xec01, before the sender's key",
			edit: respell(func(key []byte) string { return base58DID(append([]byte{0xec, 1}, key[2:]...)) })})},
	{Number: "C-12", Title: "A sender's did:key must contain exactly 32 key bytes",
		Cites: "spec: Validation Rules 3", wait: time.Second,
		run: refuses(kit.AnyRefusal,
			variant{what: "a sender's did with 31 key bytes",
				edit: respell(func(key []byte) string { return base58DID(key[:33]) })},
			variant{what: "a sender's did with 33 key bytes",
				edit: respell(func(key []byte) string { return base58DID(append(key, 0)) })},
		)},
	{Number: "C-13", Title: "A body that is not a JSON object is refused, and the relay keeps running",
		Cites: "spec: Error Codes (INVALID_REQUEST)",
		run: func(p *relayProbe) {
			for what, body := range map[string]string{"an incomplete object": `{"version":"1.0",`, "an array": `[1,2]`,
				"a string": `"hello"`, "an empty body": ``, "null": `null`} {
				p.PostRefused(kit.AnyRefusal, what, []byte(body))
			}
			client := p.Actor("a client")
			p.PostAccepted(client, p.Request(client, kit.Actor{}))
		}},
}

func health(p *relayProbe) {
	a := p.Call("", "GET", "/health", nil, nil, 0)
	p.Expect(`status 200 with {"ok":true,"version":"1.0.0"}`)
	if ok, _ := a.OK(); a.Status != 200 || !ok || a.Text("version") != "1.0.0" {
		p.Failf("%s", a)
	}
}

// hardToEncode sets payload.params to numbers, names and texts that careless encoders change.
func hardToEncode(m kit.Message) {
	kit.Set("payload.params", json.RawMessage(
		`{"text":"<b>“你好” & \u2028 \u0007 \ud83d\ude00</b>","big":1e21,"small":1e-7,"tenth":0.1,`+
			`"whole":5.0,"long":9007199254740993,"zero":-0,"\ud83d\ude00":1,"\ufb01":2,"é":3,`+
			`"deep":[[{"a":null,"b":[true,false]}]],"empty":{}}`))(m)
}

func deliveredAsSigned(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	m := p.Request(client, agent)
	hardToEncode(m)
	sent := p.PostAccepted(client, m)
	e := p.CheckInbox(agent, sent)[0]
	p.CheckUnchanged(e, sent)
	p.Expect("the signature of the delivered event verifies with the key of sender.id")
	if err := e.Verify(); err != nil {
		p.Failf("%v: %s", err, kit.Excerpt(e.Raw, 400))
	}
}

func otherSpellings(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	var sent []kit.SignedMessage
	for what, respell := range map[string]func(string) string{
		"indented":                          indented,
		"with escaped letters":              replace(`"REQUEST"`, `"\u0052EQUEST"`),
		"with its members in another order": membersReversed,
		"with its numbers written differently": func(body string) string {
			return strings.NewReplacer(`"ttl":180`, `"ttl":1.8E2`, `1e-7`, `0.0000001`, `"whole":5`, `"whole":5.000`).
				Replace(body)
		},
	} {
		m := p.Request(client, agent)
		hardToEncode(m)
		signed := m.Sign(client)
		p.CheckAccepted(
			p.Post("a REQUEST "+what+", signed over its RFC 8785 form", []byte(respell(string(signed.Body)))), signed)
		sent = append(sent, signed)
	}
	p.CheckInbox(agent, sent...)
}

func signedByOtherKey(p *relayProbe) {
	refuses(kit.AnyRefusal, variant{what: "a signature with another key", sign: func(m kit.Message,
		_ kit.Actor) kit.SignedMessage {
		return m.Sign(p.Actor("a stranger"))
	}})(p)
}

func replace(old, new string) func(string) string {
	return func(body string) string { return strings.Replace(body, old, new, 1) }
}

func withSig(sig string) func(kit.Message, kit.Actor) kit.SignedMessage {
	return func(m kit.Message, from kit.Actor) kit.SignedMessage {
		m["sig"] = sig
		return m.Encode(from)
	}
}

func signedIndented(m kit.Message, from kit.Actor) kit.SignedMessage {
	sig, err := from.Key.Sign([]byte(indented(string(kit.Canonical(m)))))
	if err != nil {
		panic(err)
	}
	return withSig(base64.RawURLEncoding.EncodeToString(sig))(m, from)
}
