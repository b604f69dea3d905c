package relay

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

const manyMessages = overHTTP + " (posting many messages)"

// bulkChecks test POST /events/bulk.
var bulkChecks = []relayCheck{
	{Number: "X-64", Title: "Each line of a bulk request has its own result, in order, and a refused line stops no other",
		Cites: manyMessages, run: bulkResults},
	{Number: "X-65", Title: "The messages of a bulk request are delivered in the order of the lines, as they were signed",
		Cites: manyMessages, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			var lines [][]byte
			var sent []kit.SignedMessage
			for range 12 {
				m := p.Request(client, agent).Sign(client)
				sent, lines = append(sent, m), append(lines, m.Body)
			}
			p.checkResults(p.bulk("", joined(lines...)), receipts(sent...)...)
			p.checkInOrder(p.Events("cursor", "0", "recipient", agent.DID(), "timeout", "0"), sent...)
		}},
	{Number: "X-66", Title: "The messages of a thread may come in one bulk request, in the order of the thread",
		Cites: manyMessages, run: func(p *relayProbe) {
			t := p.conversation()
			var lines [][]byte
			var want []wantedLine
			for _, step := range []struct {
				move string
				code envelope.Code
			}{
				{"c.REQUEST>a", ""}, {"a.RESULT", envelope.CodeInvalidTransition}, {"a.OFFER", ""}, {"c.ACCEPT>a", ""},
				{"a.RESULT", ""}, {"c.CANCEL", envelope.CodeInvalidTransition},
			} {
				m := t.signed(step.move)
				lines, want = append(lines, m.Body), append(want, wantedLine{id: m.ID, code: step.code})
			}
			p.checkResults(p.bulk("REQUEST, RESULT, OFFER, ACCEPT, RESULT, CANCEL of one thread", joined(lines...)), want...)
		}},
	{Number: "X-67", Title: "The last line of a bulk request may lack its LF, and a body without lines has no results",
		Cites: manyMessages, run: func(p *relayProbe) {
			client := p.Actor("a client")
			m := p.Request(client, p.Actor("an agent")).Sign(client)
			p.checkResults(p.bulk("without LF at the end", m.Body), wantedLine{id: m.ID})
			p.checkResults(p.bulk("no line", nil))
		}},
	{Number: "X-68", Title: "A bulk request stops at a line that is empty or too long, and answers the lines before it",
		Cites: manyMessages, wait: time.Second, run: bulkStops},
	{Number: "X-69", Title: "A bulk request with a parameter or a Content-Encoding is refused, and stores nothing",
		Cites: manyMessages, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			body := joined(p.Request(client, agent).Sign(client).Body)
			p.CheckRefused(p.Call("a parameter", http.MethodPost, "/events/bulk?wait=true", nil, body, 0), invalid)
			gzip := http.Header{"Content-Encoding": {"gzip"}}
			p.CheckRefused(p.Call("Content-Encoding: gzip", http.MethodPost, "/events/bulk", gzip, body, 0),
				kit.Refused(http.StatusUnsupportedMediaType, envelope.CodeUnsupportedMedia))
			p.CheckEvents(p.Events("cursor", "0", "recipient", agent.DID(), "timeout", "0"))
		}},
	{Number: "X-70", Title: "The well-known document lists the feature bulk", Cites: manyMessages,
		run: func(p *relayProbe) { p.CheckFeature("bulk") }},
}

// joined returns lines, each with LF at its end.
func joined(lines ...[]byte) []byte { return append(bytes.Join(lines, []byte("\n")), '\n') }

// wantedLine says what the result of a line must be. With a code it is a refusal, otherwise a receipt with this id.
type wantedLine struct {
	id        string
	duplicate bool
	code      envelope.Code
}

func receipts(messages ...kit.SignedMessage) (want []wantedLine) {
	for _, m := range messages {
		want = append(want, wantedLine{id: m.ID})
	}
	return want
}

// bulkAnswer has the results of the lines that were sent, and why the relay has stopped; nil: it has not.
type bulkAnswer struct {
	kit.Answer
	results []kit.Answer
	stopped *kit.Answer
}

// bulk posts a body to /events/bulk. If the relay stops at its rate limit, bulk waits and posts the lines that have no
// result yet. It returns any other stop.
func (p *relayProbe) bulk(what string, body []byte) bulkAnswer { return p.bulkTo("", what, body) }

// bulkTo is bulk with a query.
func (p *relayProbe) bulkTo(query, what string, body []byte) (b bulkAnswer) {
	for deadline := time.Now().Add(kit.RateLimitTimeout); ; {
		b.Answer = p.Call(what, http.MethodPost, "/events/bulk"+query, nil, body, 0)
		p.Expect(`status 200 with {"ok":true,"results":[…]}`)
		results, isList := b.List("results")
		if ok, _ := b.OK(); b.Status != http.StatusOK || !ok || !isList {
			p.Failf("%s", b)
		}
		for _, text := range results {
			var result kit.Answer
			result.Body = text
			if json.Unmarshal(text, &result.Members) != nil {
				p.Failf("a result is not an object: %s", b)
			}
			b.results = append(b.results, result)
		}
		b.stopped = nil
		if stopped := b.Object("stopped"); stopped.Members != nil {
			stopped.Body = b.Members["stopped"]
			b.stopped = &stopped
		}
		if b.stopped == nil || b.stopped.Code() != string(envelope.CodeRateLimited) || time.Now().After(deadline) {
			return b
		}
		for range results {
			_, body, _ = bytes.Cut(body, []byte("\n"))
		}
		p.Sleep(time.Second)
	}
}

// checkResults ends the check unless the results are these, and the relay has not stopped.
func (p *relayProbe) checkResults(b bulkAnswer, want ...wantedLine) {
	p.checkFirstResults(b, want...)
	if b.stopped != nil {
		p.Failf("the relay has stopped: %s", b.stopped)
	}
}

func (p *relayProbe) checkFirstResults(b bulkAnswer, want ...wantedLine) {
	p.Expect("%d results: %+v", len(want), want)
	if len(b.results) != len(want) {
		p.Failf("the answer has %d results: %s", len(b.results), b)
	}
	for i, w := range want {
		result := b.results[i]
		duplicate, present := result.Flag("duplicate")
		_, err := time.Parse(time.RFC3339, result.Text("expiresAt"))
		isReceipt := result.Text("id") == w.id && present && duplicate == w.duplicate && err == nil
		isRefusal := result.Text("id") == "" && result.Text("message") != ""
		if result.Code() != string(w.code) || w.code == "" && !isReceipt || w.code != "" && !isRefusal {
			p.Failf("line %d has another result: %s", i+1, result)
		}
	}
}

func bulkResults(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	request := func() kit.SignedMessage { return p.Request(client, agent).Sign(client) }
	first, second, third := request(), request(), request()
	changed := []byte(strings.Replace(string(second.Body), "conformance.check", "conformance.chess", 1))
	p.checkResults(p.bulk("a message, {}, the message again, a changed message, and two messages",
		joined(first.Body, []byte("{}"), first.Body, changed, second.Body, third.Body)),
		wantedLine{id: first.ID}, wantedLine{code: envelope.CodeUnsupportedVersion},
		wantedLine{id: first.ID, duplicate: true}, wantedLine{code: envelope.CodeInvalidSignature},
		wantedLine{id: second.ID}, wantedLine{id: third.ID})
	p.checkInOrder(p.Events("cursor", "0", "recipient", agent.DID(), "timeout", "0"), first, second, third)
}

func bulkStops(p *relayProbe) {
	limit := 128 << 10
	var document struct {
		Limits struct{ BodyBytes int } `json:"limits"`
	}
	if json.Unmarshal(p.Document().Body, &document) == nil {
		limit = max(limit, document.Limits.BodyBytes)
	}
	for what, c := range map[string]struct {
		line []byte
		code envelope.Code
	}{
		"an empty line":           {nil, envelope.CodeInvalidRequest},
		"a line that is too long": {bytes.Repeat([]byte(" "), limit+1), envelope.CodePayloadTooLarge},
	} {
		client, agent := p.Actor("a client"), p.Actor("an agent")
		before, behind := p.Request(client, agent).Sign(client), p.Request(client, agent).Sign(client)
		b := p.bulk("a message, "+what+", and another message", joined(before.Body, c.line, behind.Body))
		p.checkFirstResults(b, wantedLine{id: before.ID})
		p.Expect("stopped with the error %s", c.code)
		if b.stopped == nil || b.stopped.Code() != string(c.code) || b.stopped.Text("message") == "" {
			p.Failf("%s", b)
		}
		p.CheckEvents(p.Events("cursor", "0", "recipient", agent.DID(), "timeout", "0"), before)
	}
}
