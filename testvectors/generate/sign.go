package main

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// signings returns the vectors of sign.json. Their texts are spelled as people and other libraries may spell them: with
// whitespace, unnecessary escapes, and members in any order.
func signings() (vectors []testvectors.SignVector) {
	for _, c := range signTable {
		text := strings.NewReplacer("ALICE", alice.did, "BOB", bob.did).Replace(c.text)
		unsigned := canonical([]byte(text))
		sig := base64.RawURLEncoding.EncodeToString(ed25519.Sign(c.by.private, unsigned))
		body := strings.TrimSpace(text)
		envelope := canonical([]byte(body[:len(body)-1] + `,"sig":"` + sig + `"}`))
		sum := sha256.Sum256(envelope)
		vectors = append(vectors, testvectors.SignVector{Name: c.name, SeedHex: hex.EncodeToString(c.by.seed),
			Input: []byte(text), Expect: testvectors.Accept, Signed: unsigned, Sig: sig, Envelope: envelope,
			SHA256: hex.EncodeToString(sum[:])})
	}
	return vectors
}

var signTable = []struct {
	name string
	by   key
	text string
}{
	{"request", alice, `{
  "version": "1.0",
  "id": "msg_01",
  "ts": "2026-02-02T12:00:00Z",
  "type": "REQUEST",
  "sender": {"id": "ALICE", "name": "Alice", "url": "https://alice.example"},
  "recipient": {"id": "BOB"},
  "payload": {
    "request_id": "req_01",
    "intent": "translation.en_zh",
    "title": "Translate greeting",
    "params": {"text": "Hello world", "target_lang": "zh"},
    "constraints": {"max_cost_usd": 0.010, "max_latency_ms": 5e3}
  },
  "thread": {"id": "thread_01"},
  "meta": {"ttl": 300, "hop": 0}
}`},
	{"offer", bob, `{"type":"OFFER","version":"1.0","id":"msg_02","ts":"2026-02-02T12:00:01.000Z","sender":{"id":"BOB"},` +
		`"recipient":{"id":"ALICE"},"thread":{"id":"thread_01"},"payload":{"request_id":"req_01","plan":"word by word",` +
		`"price":{"currency":"USD","amount":5E-3},"eta_seconds":2.0,"valid_until":"2026-02-02T12:05:00Z"}}`},
	{"accept", alice, `{"version":"1.0","ts":"2026-02-02T12:00:02.5+00:00","id":"msg_03","type":"ACCEPT","sender":{"id":"ALICE"},` +
		`"recipient":{"id":"BOB"},"payload":{"terms":{"price_usd":0.0050},"request_id":"req_01"},"thread":{"id":"thread_01"}}`},
	{"result", bob, `{"version":"1.0","id":"msg_04","ts":"2026-02-02T20:00:03+08:00","type":"RESULT","sender":{"id":"BOB"},` +
		`"recipient":{"id":"ALICE"},"payload":{"request_id":"req_01","status":"success","artifacts":[ ],` +
		`"output":{"translation":"\u4f60\u597d\uff0c\u4e16\u754c","confidence":0.99},"metrics":{"latency_ms":1200}},"thread":{"id":"thread_01"}}`},
	{"error", bob, `{"version":"1.0","id":"msg_05","ts":"2026-02-02T12:00:04Z","type":"ERROR","sender":{"id":"BOB"},` +
		`"payload":{"code":"INSUFFICIENT_BUDGET","message":"Request budget too low","details":{"min_required":0.01,"provided":1e-3}},` +
		`"thread":{"id":"thread_01"}}`},
	{"cancel", alice, `{"version":"1.0","id":"msg_06","ts":"2026-02-02T12:00:05Z","type":"CANCEL","sender":{"id":"ALICE"},` +
		`"payload":{"request_id":"req_01","reason":"changed my mind \/ sorry"}}`},
	{"manifest", bob, `{"version":"1.0","id":"msg_07","ts":"2026-02-02T12:00:06Z","type":"MANIFEST","sender":{"id":"BOB","name":"Bob"},` +
		`"payload":{"id":"cap_translation","name":"Translation","version":"1.0.0","intents":[{"id":"translation.en_zh",` +
		`"input_schema":{"type":"object","$ref":"#"}}],"pricing":{"model":"metered","currency":"USD","metered_unit":"character",` +
		`"metered_rate":0.00001},"supported_languages":["zh","en"],"auth":{"methods":["ed25519"]}},"meta":{"ttl":86400}}`},
	{"broadcast-by-request-id", alice, `{"version":"1.0","id":"msg_08","ts":"2026-02-02T12:00:07Z","type":"REQUEST",` +
		`"sender":{"id":"ALICE"},"payload":{"request_id":"req_08","intent":"echo"}}`},
	{"bound-to-relays", alice, `{"version":"1.0","id":"msg_09","ts":"2026-02-02T12:00:08Z","type":"REQUEST","sender":{"id":"ALICE"},` +
		`"payload":{"request_id":"req_09","intent":"echo"},"meta":{"relay":["https://relay.example","https://other.example"],"ttl":3.00e2,"hop":-0}}`},
	{"bound-to-one-relay", alice, `{"version":"1.0","id":"msg_10","ts":"2026-02-02T12:00:09Z","type":"REQUEST","sender":{"id":"ALICE"},` +
		`"payload":{"request_id":"req_10","intent":"echo"},"meta":{"relay":"https:\/\/relay.example"}}`},
	{"unicode", alice, `{"version":"1.0","id":"msg_11","ts":"2026-02-02T12:00:10Z","type":"REQUEST","sender":{"id":"ALICE",` +
		`"name":"Ali\u0063e \ud83d\ude00"},"payload":{"request_id":"req_11","intent":"echo","params":{"\uff61":1,"\ud83d\ude00":2,` +
		`"e\u0301":3,"\u00e9":4,"\u2028":"\u2029","\u007f":"\u0080","html":"<&>'","nul":"\u0000","solidus":"\/","noncharacter":"\uffff"}}}`},
	{"numbers", alice, `{"version":"1.0","id":"msg_12","ts":"2026-02-02T12:00:11Z","type":"REQUEST","sender":{"id":"ALICE"},` +
		`"payload":{"request_id":"req_12","intent":"echo","params":[1.0,-0,1e21,1e20,1e-6,1e-7,0.1,9007199254740993,` +
		`333333333.33333329,5e-324,1.7976931348623157e308,4.50,2e-3,1424953923781206.25]}}`},
	{"unknown-members", alice, `{"zz":[{"b":2,"a":1}],"version":"1.0","id":"msg_13","ts":"2026-02-02T12:00:12Z","type":"REQUEST",` +
		`"sender":{"id":"ALICE","more":true},"payload":{"request_id":"req_13","intent":"echo"},"thread":{"id":"thread_13","parent":null},` +
		`"meta":{"TTL":"kept","trace":"x"},"si":1,"sigh":2,"\u0000":3,"sig\"":4,"":5,"\ud83d\ude00":{"sig":"not the signature"}}`},
	{"sig-inside-payload", alice, `{"version":"1.0","id":"msg_14","ts":"2026-02-02T12:00:13Z","type":"REQUEST","sender":{"id":"ALICE"},` +
		`"payload":{"request_id":"req_14","intent":"echo","sig":"stays","params":{"sig":"stays too"}}}`},
	{"fraction-of-nine-digits", alice, `{"version":"1.0","id":"msg_15","ts":"2026-02-02T12:00:14.123456789Z","type":"REQUEST",` +
		`"sender":{"id":"ALICE"},"payload":{"request_id":"req_15","intent":"echo"}}`},
	{"longest-ids", alice, `{"version":"1.0","id":"` + strings.Repeat("i", 128) + `","ts":"2026-02-02T12:00:15Z","type":"REQUEST",` +
		`"sender":{"id":"ALICE"},"payload":{"request_id":"req_16","intent":"echo"},"thread":{"id":"` + strings.Repeat("t", 128) + `"}}`},
	{"empty-payload-of-an-accept", alice, "\t{\r\n\"version\":\"1.0\",\"id\":\"msg_17\",\"ts\":\"2026-02-02T12:00:16Z\",\"type\":\"ACCEPT\"," +
		"\"sender\":{\"id\":\"ALICE\"},\"payload\":{ },\"thread\":{\"id\":\"thread_17\"}}\n"},
	{"large", alice, `{"version":"1.0","id":"msg_18","ts":"2026-02-02T12:00:17Z","type":"REQUEST","sender":{"id":"ALICE"},` +
		`"payload":{"request_id":"req_18","intent":"echo","params":{"text":"` + strings.Repeat(`\u4f60`, 1000) + `"}}}`},
}
