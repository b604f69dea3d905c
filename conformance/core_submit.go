package conformance

import (
	"encoding/base64"
	"encoding/json"
	"strings"
)

// healthChecks are about the relay being there.
var healthChecks = []Check{
	{Number: "C-1", Title: "GET /health answers ok and the protocol's version", Cites: "spec: Health Check", run: health},
}

// submitChecks are about what a relay takes in and whether it knows who signed it.
var submitChecks = []Check{
	{Number: "C-2", Title: "A signed envelope is accepted with ok and its id", Cites: "spec: Submit Event",
		run: func(p *probe) {
			client := p.actor("a client")
			p.accept(client, p.request(client, actor{}))
		}},
	{Number: "C-3", Title: "An envelope is delivered as it was signed, so that readers can verify it",
		Cites: "spec: Signing Process; Client Subscription Loop", run: deliveredAsSigned},
	{Number: "C-4", Title: "The signature covers the RFC 8785 form, however the body is written", Cites: "spec: Signing Process",
		run: otherSpellings},
	{Number: "C-5", Title: "An envelope changed after it was signed is refused and not delivered",
		Cites: "spec: Security Considerations (signature verification is mandatory)", wait: second, run: refuses(anyhow,
			variant{what: "a changed payload", text: replace("conformance.check", "conformance.chess")},
			variant{what: "another thread", text: replace(`"thread_`, `"threat_`)},
			variant{what: "another ttl", text: replace(`"ttl":180`, `"ttl":181`)},
			variant{what: "an added member", text: replace(`"version"`, `"unsigned":true,"version"`)},
		)},
	{Number: "C-6", Title: "An envelope signed by another key than sender.id's is refused",
		Cites: "spec: Security Considerations", wait: second, run: signedByAnother},
	{Number: "C-7", Title: "An envelope without a signature is refused", Cites: "spec: Security Considerations (all messages must be signed)",
		wait: second, run: refuses(anyhow,
			variant{what: "no sig", sign: func(m message, from actor) letter { return m.sealed(from) }},
			variant{what: "an empty sig", sign: withSig("")},
			variant{what: "a sig of 64 zero bytes", sign: withSig(base64.RawURLEncoding.EncodeToString(make([]byte, 64)))},
			variant{what: "a sig that is null", sign: func(m message, from actor) letter { m["sig"] = nil; return m.sealed(from) }},
		)},
	{Number: "C-8", Title: "A signature over the JSON as it was written, instead of its RFC 8785 form, is refused",
		Cites: "spec: Signing Process", wait: second, run: refuses(anyhow,
			variant{what: "a signature over indented JSON", sign: signedIndented})},
	{Number: "C-9", Title: "The version must match exactly", Cites: "spec: Version Compatibility", wait: second, run: refuses(anyhow,
		variant{what: "version 2.0", edit: set("version", "2.0")},
		variant{what: "version 1.0.0", edit: set("version", "1.0.0")},
		variant{what: "no version", edit: without("version")},
	)},
	{Number: "C-10", Title: "A sender's did:key must use base58-btc, the prefix z", Cites: "spec: Validation Rules 1", wait: second,
		run: refuses(anyhow,
			variant{what: "the sender's key in base64url, prefix u", edit: respell(func(key []byte) string { return "did:key:u" + base64.RawURLEncoding.EncodeToString(key) })},
			variant{what: "the sender's key in hexadecimal, prefix f", edit: respell(hexDID)},
			variant{what: "a sender that is no did:key", edit: set("sender.id", "did:web:agent.example")},
		)},
	{Number: "C-11", Title: "A sender's did:key must have the multicodec prefix 0xed01", Cites: "spec: Validation Rules 2", wait: second,
		run: refuses(anyhow, variant{what: "the prefix of X25519, 0xec01, before the sender's key",
			edit: respell(func(key []byte) string { return base58DID(append([]byte{0xec, 1}, key[2:]...)) })})},
	{Number: "C-12", Title: "A sender's did:key must hold exactly 32 bytes of key", Cites: "spec: Validation Rules 3", wait: second,
		run: refuses(anyhow,
			variant{what: "31 bytes of key", edit: respell(func(key []byte) string { return base58DID(key[:33]) })},
			variant{what: "33 bytes of key", edit: respell(func(key []byte) string { return base58DID(append(key, 0)) })},
		)},
	{Number: "C-13", Title: "What is no JSON object is refused, and the relay lives on", Cites: "spec: Error Codes (INVALID_REQUEST)",
		run: func(p *probe) {
			for what, body := range map[string]string{"half an object": `{"version":"1.0",`, "an array": `[1,2]`, "a string": `"hello"`, "nothing": ``, "null": `null`} {
				p.refuse(anyhow, what, []byte(body))
			}
			client := p.actor("a client")
			p.accept(client, p.request(client, actor{}))
		}},
}

func health(p *probe) {
	a := p.call("", "GET", "/health", nil, nil, 0)
	p.expect(`status 200 with {"ok":true,"version":"1.0.0"}`)
	if ok, _ := a.ok(); a.status != 200 || !ok || a.text("version") != "1.0.0" {
		p.failf("%s", a)
	}
}

// awkward is a payload that shows who re-encodes: it has numbers, names and text that careless writers change.
func awkward(m message) {
	set("payload.params", json.RawMessage(`{"text":"<b>“你好” & \u2028 \u0007 \ud83d\ude00</b>","big":1e21,"small":1e-7,"tenth":0.1,`+
		`"whole":5.0,"long":9007199254740993,"zero":-0,"\ud83d\ude00":1,"\ufb01":2,"é":3,"deep":[[{"a":null,"b":[true,false]}]],"empty":{}}`))(m)
}

func deliveredAsSigned(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	m := p.request(client, agent)
	awkward(m)
	sent := p.accept(client, m)
	e := p.arrives(agent, sent)[0]
	p.genuine(e, sent)
	p.expect("the signature of what is delivered verifies under sender.id")
	if err := e.verify(); err != nil {
		p.failf("%v: %s", err, excerpt(e.raw, 400))
	}
}

func otherSpellings(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	var sent []letter
	for what, respell := range map[string]func(string) string{
		"indented":                    indented,
		"with escaped letters":        replace(`"REQUEST"`, `"\u0052EQUEST"`),
		"with members in other order": membersReversed,
		"with its numbers written differently": func(body string) string {
			return strings.NewReplacer(`"ttl":180`, `"ttl":1.8E2`, `1e-7`, `0.0000001`, `"whole":5`, `"whole":5.000`).Replace(body)
		},
	} {
		m := p.request(client, agent)
		awkward(m)
		l := m.sign(client)
		p.accepted(p.post("a REQUEST written "+what+" and signed in its RFC 8785 form", []byte(respell(string(l.body)))), l)
		sent = append(sent, l)
	}
	p.arrives(agent, sent...)
}

func signedByAnother(p *probe) {
	refuses(anyhow, variant{what: "a signature by another key", sign: func(m message, _ actor) letter {
		return m.sign(p.actor("a stranger"))
	}})(p)
}

func replace(old, new string) func(string) string {
	return func(body string) string { return strings.Replace(body, old, new, 1) }
}

func withSig(sig string) func(message, actor) letter {
	return func(m message, from actor) letter {
		m["sig"] = sig
		return m.sealed(from)
	}
}

func signedIndented(m message, from actor) letter {
	sig, err := from.key.Sign([]byte(indented(string(canonical(m)))))
	if err != nil {
		panic(err)
	}
	return withSig(base64.RawURLEncoding.EncodeToString(sig))(m, from)
}
