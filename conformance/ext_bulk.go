package conformance

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

const manyMessages = overHTTP + " (posting many messages)"

// bulkChecks test POST /events/bulk.
var bulkChecks = []relayCheck{
	{Number: "X-64", Title: "Each line of a bulk request has its own result, in order, and a refused line stops no other",
		Cites: manyMessages, run: bulkResults},
	{Number: "X-65", Title: "The messages of a bulk request are delivered in the order of the lines, as they were signed",
		Cites: manyMessages, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			var lines [][]byte
			var sent []signedMessage
			for range 12 {
				m := p.request(client, agent).sign(client)
				sent, lines = append(sent, m), append(lines, m.body)
			}
			p.checkResults(p.bulk("", joined(lines...)), receipts(sent...)...)
			p.checkInOrder(p.events("cursor", "0", "recipient", agent.did(), "timeout", "0"), sent...)
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
				lines, want = append(lines, m.body), append(want, wantedLine{id: m.id, code: step.code})
			}
			p.checkResults(p.bulk("REQUEST, RESULT, OFFER, ACCEPT, RESULT, CANCEL of one thread", joined(lines...)), want...)
		}},
	{Number: "X-67", Title: "The last line of a bulk request may lack its LF, and a body without lines has no results",
		Cites: manyMessages, run: func(p *relayProbe) {
			client := p.actor("a client")
			m := p.request(client, p.actor("an agent")).sign(client)
			p.checkResults(p.bulk("without LF at the end", m.body), wantedLine{id: m.id})
			p.checkResults(p.bulk("no line", nil))
		}},
	{Number: "X-68", Title: "A bulk request stops at a line that is empty or too long, and answers the lines before it",
		Cites: manyMessages, wait: second, run: bulkStops},
	{Number: "X-69", Title: "A bulk request with a parameter or a Content-Encoding is refused, and stores nothing",
		Cites: manyMessages, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			body := joined(p.request(client, agent).sign(client).body)
			p.checkRefused(p.call("a parameter", http.MethodPost, "/events/bulk?wait=true", nil, body, 0), invalid)
			gzip := http.Header{"Content-Encoding": {"gzip"}}
			p.checkRefused(p.call("Content-Encoding: gzip", http.MethodPost, "/events/bulk", gzip, body, 0),
				refused(http.StatusUnsupportedMediaType, envelope.CodeUnsupportedMedia))
			p.checkEvents(p.events("cursor", "0", "recipient", agent.did(), "timeout", "0"))
		}},
	{Number: "X-70", Title: "The well-known document lists the feature bulk", Cites: manyMessages,
		run: func(p *relayProbe) { p.checkFeature("bulk") }},
}

// joined returns lines, each with LF at its end.
func joined(lines ...[]byte) []byte { return append(bytes.Join(lines, []byte("\n")), '\n') }

// wantedLine says what the result of a line must be. With a code it is a refusal, otherwise a receipt with this id.
type wantedLine struct {
	id        string
	duplicate bool
	code      envelope.Code
}

func receipts(messages ...signedMessage) (want []wantedLine) {
	for _, m := range messages {
		want = append(want, wantedLine{id: m.id})
	}
	return want
}

// bulkAnswer has the results of the lines that were sent, and why the relay has stopped; nil: it has not.
type bulkAnswer struct {
	answer
	results []answer
	stopped *answer
}

// bulk posts a body to /events/bulk. If the relay stops at its rate limit, bulk waits and posts the lines that have no
// result yet. It returns any other stop.
func (p *relayProbe) bulk(what string, body []byte) bulkAnswer { return p.bulkTo("", what, body) }

// bulkTo is bulk with a query.
func (p *relayProbe) bulkTo(query, what string, body []byte) (b bulkAnswer) {
	for deadline := time.Now().Add(rateLimitTimeout); ; {
		b.answer = p.call(what, http.MethodPost, "/events/bulk"+query, nil, body, 0)
		p.expect(`status 200 with {"ok":true,"results":[…]}`)
		results, isList := b.list("results")
		if ok, _ := b.ok(); b.status != http.StatusOK || !ok || !isList {
			p.failf("%s", b)
		}
		for _, text := range results {
			var result answer
			result.body = text
			if json.Unmarshal(text, &result.members) != nil {
				p.failf("a result is not an object: %s", b)
			}
			b.results = append(b.results, result)
		}
		b.stopped = nil
		if stopped := b.object("stopped"); stopped.members != nil {
			stopped.body = b.members["stopped"]
			b.stopped = &stopped
		}
		if b.stopped == nil || b.stopped.code() != string(envelope.CodeRateLimited) || time.Now().After(deadline) {
			return b
		}
		for range results {
			_, body, _ = bytes.Cut(body, []byte("\n"))
		}
		p.sleep(second)
	}
}

// checkResults ends the check unless the results are these, and the relay has not stopped.
func (p *relayProbe) checkResults(b bulkAnswer, want ...wantedLine) {
	p.checkFirstResults(b, want...)
	if b.stopped != nil {
		p.failf("the relay has stopped: %s", b.stopped)
	}
}

func (p *relayProbe) checkFirstResults(b bulkAnswer, want ...wantedLine) {
	p.expect("%d results: %+v", len(want), want)
	if len(b.results) != len(want) {
		p.failf("the answer has %d results: %s", len(b.results), b)
	}
	for i, w := range want {
		result := b.results[i]
		duplicate, present := result.flag("duplicate")
		_, err := time.Parse(time.RFC3339, result.text("expiresAt"))
		isReceipt := result.text("id") == w.id && present && duplicate == w.duplicate && err == nil
		isRefusal := result.text("id") == "" && result.text("message") != ""
		if result.code() != string(w.code) || w.code == "" && !isReceipt || w.code != "" && !isRefusal {
			p.failf("line %d has another result: %s", i+1, result)
		}
	}
}

func bulkResults(p *relayProbe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	request := func() signedMessage { return p.request(client, agent).sign(client) }
	first, second, third := request(), request(), request()
	changed := []byte(strings.Replace(string(second.body), "conformance.check", "conformance.chess", 1))
	p.checkResults(p.bulk("a message, {}, the message again, a changed message, and two messages",
		joined(first.body, []byte("{}"), first.body, changed, second.body, third.body)),
		wantedLine{id: first.id}, wantedLine{code: envelope.CodeUnsupportedVersion},
		wantedLine{id: first.id, duplicate: true}, wantedLine{code: envelope.CodeInvalidSignature},
		wantedLine{id: second.id}, wantedLine{id: third.id})
	p.checkInOrder(p.events("cursor", "0", "recipient", agent.did(), "timeout", "0"), first, second, third)
}

func bulkStops(p *relayProbe) {
	limit := 128 << 10
	var document struct {
		Limits struct{ BodyBytes int } `json:"limits"`
	}
	if json.Unmarshal(p.document().body, &document) == nil {
		limit = max(limit, document.Limits.BodyBytes)
	}
	for what, c := range map[string]struct {
		line []byte
		code envelope.Code
	}{
		"an empty line":           {nil, envelope.CodeInvalidRequest},
		"a line that is too long": {bytes.Repeat([]byte(" "), limit+1), envelope.CodePayloadTooLarge},
	} {
		client, agent := p.actor("a client"), p.actor("an agent")
		before, behind := p.request(client, agent).sign(client), p.request(client, agent).sign(client)
		b := p.bulk("a message, "+what+", and another message", joined(before.body, c.line, behind.body))
		p.checkFirstResults(b, wantedLine{id: before.id})
		p.expect("stopped with the error %s", c.code)
		if b.stopped == nil || b.stopped.code() != string(c.code) || b.stopped.text("message") == "" {
			p.failf("%s", b)
		}
		p.checkEvents(p.events("cursor", "0", "recipient", agent.did(), "timeout", "0"), before)
	}
}
