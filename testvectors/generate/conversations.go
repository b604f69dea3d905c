package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/testvectors"
)

// after returns the time that is this number of seconds after noon.
func after(seconds int) string {
	start, err := time.Parse(time.RFC3339, noon)
	if err != nil {
		panic(err)
	}
	return start.Add(time.Duration(seconds) * time.Second).Format(time.RFC3339)
}

// msg returns a message of thread th_1 about req_1, with a ts this number of seconds after noon. Its payload has the
// members that its type requires.
func msg(k key, typ, id string, seconds int) draft {
	return draft{key: k, members: []member{
		{"version", `"1.0"`}, {"id", quote(id)}, {"ts", quote(after(seconds))}, {"type", quote(typ)}, {"sender", party(k.did)},
		{"payload", payloads[typ]}, {"thread", `{"id":"th_1"}`}, {"meta", `{"ttl":86400}`},
	}}
}

var payloads = map[string]string{
	"REQUEST": `{"request_id":"req_1","intent":"translation.en_zh","params":{"text":"Hello world"}}`,
	"OFFER":   `{"request_id":"req_1","price":{"amount":0.005,"currency":"USD"},"eta_seconds":2}`,
	"ACCEPT":  `{"request_id":"req_1","terms":{"price_usd":0.005}}`,
	"RESULT":  `{"request_id":"req_1","status":"success","output":{"translation":"` + "\u4f60\u597d\uff0c\u4e16\u754c" + `"}}`,
	"ERROR":   `{"request_id":"req_1","code":"UNAVAILABLE","message":"not today"}`,
	"CANCEL":  `{"request_id":"req_1","reason":"changed my mind"}`,
}

func (d draft) to(k key) draft { return d.with("recipient", party(k.did)) }

// bare returns d as existing SDKs send it: without recipient, and without thread, so payload.request_id is the thread
// id.
func (d draft) bare() draft { return d.with("thread", "").with("recipient", "") }

// script collects the steps of a conversation.
type script struct {
	steps []testvectors.ConversationStep
}

// accept adds a step that posts a body this number of seconds after noon. It must be accepted. state and client may be
// empty.
func (s *script) accept(seconds int, body, state, client string) {
	s.steps = append(s.steps, testvectors.ConversationStep{Now: after(seconds), Body: []byte(body), Expect: testvectors.Accept,
		State: state, Client: client})
}

// duplicate adds a step that posts a duplicate of a stored message.
func (s *script) duplicate(seconds int, body string) {
	s.steps = append(s.steps, testvectors.ConversationStep{Now: after(seconds), Body: []byte(body), Expect: testvectors.Accept, Duplicate: true})
}

// reject adds a step that posts a body that must be refused.
func (s *script) reject(seconds int, body, code, reason string) {
	s.steps = append(s.steps, testvectors.ConversationStep{Now: after(seconds), Body: []byte(body), Expect: testvectors.Reject,
		Code: code, Reason: reason})
}

func conversations() (vectors []testvectors.Conversation) {
	names := map[string]bool{}
	for _, c := range conversationTable {
		var s script
		c.play(&s)
		if names[c.name] {
			panic(fmt.Sprintf("two conversations have the name %s", c.name))
		}
		names[c.name] = true
		vectors = append(vectors, testvectors.Conversation{Name: c.name, Steps: s.steps})
	}
	return vectors
}

// respelled returns the same envelope in another spelling: with whitespace, escapes and another form of a number.
func respelled(envelope string) string {
	return strings.NewReplacer(`"type"`, `"\u0074ype"`, `,"`, " ,\n \"", `"meta":{"ttl":86400}`, `"meta":{"ttl":8.64e4}`).Replace(envelope)
}
