package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// The steps of checks. Each step records what it sends and what it expects before the relay answers. It ends the check
// as failed if the answer is not the expected one.

// post sends body with POST /events. The text what describes the body in the report.
func (p *probe) post(what string, body []byte) answer {
	return p.call(what, "POST", "/events", nil, body, 0)
}

// postAccepted signs m as from, posts it and returns it. The relay must accept it.
func (p *probe) postAccepted(from actor, m message) signedMessage {
	return p.postSigned(m.sign(from))
}

func (p *probe) postSigned(signed signedMessage) signedMessage {
	p.checkAccepted(p.post(signed.what, signed.body), signed)
	return signed
}

// checkAccepted ends the check unless the answer a shows that the relay has accepted the message.
func (p *probe) checkAccepted(a answer, signed signedMessage) {
	p.expect(`accepted: status 200 with {"ok":true,"id":%q}`, signed.id)
	if ok, _ := a.ok(); a.status != 200 || !ok {
		p.failf("the relay refused it: %s", a)
	}
	if a.text("id") != signed.id {
		p.failf("the answer has another id: %s", a)
	}
}

// refusal describes how a relay must refuse.
type refusal struct {
	status     int             // 0: any refusal is right, because the specification names no status
	codes      []envelope.Code // the error must be one of these
	orNotFound bool            // 404 THREAD_NOT_FOUND is right too, see readSigner.allowNotFound
}

// anyRefusal accepts any refusal. The original specification requires no more.
var anyRefusal = refusal{}

func refused(status int, codes ...envelope.Code) refusal {
	return refusal{status: status, codes: codes}
}

func (r refusal) String() string {
	if r.status == 0 {
		return `refused: {"ok":false,…}`
	}
	codes := make([]string, len(r.codes))
	for i, code := range r.codes {
		codes[i] = string(code)
	}
	return fmt.Sprintf("refused: status %d with the error %s", r.status, strings.Join(codes, " or "))
}

// checkRefused ends the check unless a is a refusal as want describes it.
func (p *probe) checkRefused(a answer, want refusal) {
	p.expect("%s", want)
	ok, present := a.ok()
	switch {
	case a.err != nil:
		p.failf("%s", a)
	case ok || !present && a.status < 300:
		p.failf("the relay accepted it: %s", a)
	case a.status >= 500:
		p.failf("the relay failed instead of refusing it: %s", a)
	case !present && a.status < 400:
		p.failf("the answer is neither an acceptance nor a refusal: %s", a)
	case want.status == 0:
	case !present:
		p.failf("the refusal is not JSON with the member ok: %s", a)
	case want.orNotFound && a.status == http.StatusNotFound && a.code() == string(envelope.CodeThreadNotFound):
	case a.status != want.status || !slices.Contains(want.codes, envelope.Code(a.code())):
		p.failf("the relay refused it with another status or error: %s", a)
	}
}

// postRefused posts a body that the relay must refuse, and returns the answer.
func (p *probe) postRefused(want refusal, what string, body []byte) answer {
	retry := isRateLimit
	if want.status == http.StatusTooManyRequests {
		retry = isOtherRateLimit
	}
	a := p.callRetrying(retry, what, http.MethodPost, "/events", nil, body, 0)
	p.checkRefused(a, p.relay.signer.allowNotFound(want, body))
	return a
}

// document returns the well-known document.
func (p *probe) document() answer {
	return p.call("", http.MethodGet, "/.well-known/agora.json", nil, nil, 0)
}

// hasFeature reports whether the well-known document lists a feature.
func hasFeature(document answer, name string) bool {
	features, _ := document.list("features")
	return slices.ContainsFunc(features, func(f json.RawMessage) bool { return string(f) == `"`+name+`"` })
}

// checkFeature ends the check unless the well-known document lists a feature.
func (p *probe) checkFeature(name string) {
	a := p.document()
	p.expect("%q in features", name)
	if !hasFeature(a, name) {
		p.failf("%s", a)
	}
}

// query returns a query string. The pairs are names and values in turn.
func query(pairs ...string) string {
	var parts []string
	for i := 0; i+1 < len(pairs); i += 2 {
		parts = append(parts, pairs[i]+"="+url.QueryEscape(pairs[i+1]))
	}
	return "?" + strings.Join(parts, "&")
}

// poll sends GET /events with these parameters. The pairs are names and values in turn.
func (p *probe) poll(pairs ...string) answer {
	hold := 30 * time.Second
	for i := 0; i+1 < len(pairs); i += 2 {
		if seconds, err := strconv.ParseFloat(pairs[i+1], 64); pairs[i] == "timeout" && err == nil && seconds >= 0 {
			hold = time.Duration(min(seconds, 60) * float64(time.Second))
		}
	}
	return p.call("", "GET", "/events"+query(pairs...), nil, nil, hold)
}

// checkPage ends the check unless a is a well-formed answer to a poll. It returns the events of the answer.
func (p *probe) checkPage(a answer) []event {
	before := p.expected
	p.expect(`status 200 with {"ok":true,"events":[…],"hasMore":true or false}`)
	events, isList := eventsOf(a)
	ok, _ := a.ok()
	if _, present := a.flag("hasMore"); a.status != 200 || !ok || !isList || !present {
		p.failf("%s", a)
	}
	p.expected = before
	return events
}

// events polls once and returns the events of the answer.
func (p *probe) events(pairs ...string) []event { return p.checkPage(p.poll(pairs...)) }

// hourAgo returns a value of since that is older than all messages of the run.
func (p *probe) hourAgo() string { return formatTime(p.now().Add(-time.Hour)) }

// inbox returns the stored events for reader. It polls as the specification describes, with since and recipient. If
// there are no events, the poll takes a second.
func (p *probe) inbox(reader actor) []event {
	return p.events("since", p.hourAgo(), "recipient", reader.did(), "timeout", "1")
}

// checkEvents ends the check unless events are exactly these messages, in any order, each once.
func (p *probe) checkEvents(events []event, messages ...signedMessage) {
	want := make([]string, len(messages))
	for i, signed := range messages {
		want[i] = signed.id
	}
	if len(want) == 0 {
		p.expect("no events")
	} else {
		p.expect("exactly the events %s, each once", strings.Join(want, ", "))
	}
	seen := map[string]int{}
	for _, e := range events {
		seen[e.id()]++
		if !slices.Contains(want, e.id()) {
			p.failf("the answer contains an unexpected event: %s (all events: %s)", excerpt(e.raw, 300), ids(events))
		}
		if seen[e.id()] == 2 {
			p.failf("event %s is delivered twice (all events: %s)", e.id(), ids(events))
		}
	}
	for _, id := range want {
		if seen[id] == 0 {
			p.failf("event %s is missing; the answer contains: %s", id, ids(events))
		}
	}
}

// checkInbox ends the check unless the inbox of reader contains exactly these messages. It returns the events.
func (p *probe) checkInbox(reader actor, messages ...signedMessage) []event {
	events := p.inbox(reader)
	p.checkEvents(events, messages...)
	return events
}

// checkUnchanged ends the check unless the event e is exactly the envelope that was signed.
func (p *probe) checkUnchanged(e event, signed signedMessage) {
	p.expect("event %s is delivered exactly as it was signed", signed.id)
	form, err := envelope.Canonicalize(e.raw)
	if err != nil {
		p.failf("the delivered event is not valid JSON (%v): %s", err, excerpt(e.raw, 400))
	}
	if !bytes.Equal(form, signed.body) {
		p.failf("the delivered envelope differs from the signed one: its RFC 8785 form contains %s instead of %s",
			firstDifference(form, signed.body), firstDifference(signed.body, form))
	}
}

// firstDifference returns an excerpt of a around the first byte that differs from b.
func firstDifference(a, b []byte) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-24)
	return "…" + excerpt(a[from:min(len(a), i+60)], 100) + "…"
}
