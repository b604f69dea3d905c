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

// ifFeature returns a check that runs only if the well-known document lists a feature. run gets the document.
func ifFeature(name string, run func(p *probe, document answer)) func(*probe) {
	return func(p *probe) {
		a := p.document()
		if !hasFeature(a, name) {
			p.end(NotTested, "the well-known document does not list the feature %q", name)
		}
		run(p, a)
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

// checkInOrder ends the check unless events are exactly these messages, in this order.
func (p *probe) checkInOrder(events []event, messages ...signedMessage) {
	p.checkEvents(events, messages...)
	p.expect("the events in the order %s", names(messages))
	for i, e := range events {
		if e.id() != messages[i].id {
			p.failf("the events are in the order %s", ids(events))
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

// variant is one change to a good message, which makes it wrong or keeps it right.
type variant struct {
	what string
	edit func(message)                      // changes the message before it is signed; may be nil
	text func(string) string                // changes the signed text; may be nil
	sign func(message, actor) signedMessage // signs instead of message.sign; may be nil
}

// signed returns a REQUEST with the change.
func (v variant) signed(p *probe, from, to actor) signedMessage {
	m := p.request(from, to)
	if v.edit != nil {
		v.edit(m)
	}
	sign := message.sign
	if v.sign != nil {
		sign = v.sign
	}
	signed := sign(m, from)
	if v.text != nil {
		signed.body = []byte(v.text(string(signed.body)))
	}
	signed.what = "a REQUEST that is correct except for: " + v.what
	return signed
}

// refuses returns a check that posts a good REQUEST, which the relay must accept, and then each variant of it. The
// relay must refuse the variants and must not deliver them.
func refuses(want refusal, variants ...variant) func(*probe) {
	return func(p *probe) {
		from, to := p.actor("a client"), p.actor("an agent")
		good := p.postAccepted(from, p.request(from, to))
		for _, v := range variants {
			signed := v.signed(p, from, to)
			p.postRefused(want, signed.what, signed.body)
		}
		p.describe("GET /events for the recipient of the refused messages")
		p.checkInbox(to, good)
		p.note("%d messages refused, none delivered", len(variants))
	}
}

// accepts returns a check that posts each variant of a good REQUEST. The relay must accept each and deliver it as
// signed.
func accepts(variants ...variant) func(*probe) {
	return func(p *probe) {
		from, to := p.actor("a client"), p.actor("an agent")
		sent := map[string]signedMessage{}
		for _, v := range variants {
			signed := v.signed(p, from, to)
			p.checkAccepted(p.post("a REQUEST with "+v.what, signed.body), signed)
			sent[signed.id] = signed
		}
		events := p.inbox(to)
		p.expect("%d events, one for each accepted message", len(variants))
		if len(events) != len(variants) {
			p.failf("%d events: %s", len(events), ids(events))
		}
		for _, e := range events {
			signed, ok := sent[e.id()]
			if !ok {
				p.failf("the answer contains an event that was not posted: %s", excerpt(e.raw, 300))
			}
			form, err := envelope.Canonicalize(signed.body)
			if err != nil {
				panic(err) // cannot happen: an accepted variant is JSON
			}
			if inner, wrapped := unwrap(form); wrapped {
				form = inner
			}
			signed.body = form
			p.checkUnchanged(e, signed)
		}
		p.note("%d messages accepted and delivered", len(variants))
	}
}

// unwrap returns the envelope in {"envelope":…}. It reports false if form is something else.
func unwrap(form []byte) ([]byte, bool) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(form, &members); err != nil || len(members) != 1 {
		return nil, false
	}
	inner, ok := members["envelope"]
	return inner, ok
}
