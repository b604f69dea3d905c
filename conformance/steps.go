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

// The steps that checks are made of. Each says what it sends and expects before the relay answers, and ends the check
// if the answer is another.

// post posts a body.
func (p *probe) post(what string, body []byte) answer {
	return p.call(what, "POST", "/events", nil, body, 0)
}

// accept posts a message that a relay must take, signed by from, and returns it.
func (p *probe) accept(from actor, m message) letter {
	return p.acceptLetter(m.sign(from))
}

func (p *probe) acceptLetter(l letter) letter {
	p.accepted(p.post(l.what, l.body), l)
	return l
}

// accepted judges an answer to a message that a relay must take.
func (p *probe) accepted(a answer, l letter) {
	p.expect(`it is accepted: status 200 with {"ok":true,"id":%q}`, l.id)
	if ok, _ := a.ok(); a.status != 200 || !ok {
		p.failf("it is refused: %s", a)
	}
	if a.text("id") != l.id {
		p.failf("the answer names another id: %s", a)
	}
}

// refusal is how a relay must refuse.
type refusal struct {
	status int             // 0: any way, the specification names none
	codes  []envelope.Code // one of them
	hidden bool            // or as if there were no such thread
}

// anyhow is all the original specification asks of a refusal.
var anyhow = refusal{}

func refused(status int, codes ...envelope.Code) refusal {
	return refusal{status: status, codes: codes}
}

func (r refusal) String() string {
	if r.status == 0 {
		return `it is refused: {"ok":false,…}`
	}
	codes := make([]string, len(r.codes))
	for i, code := range r.codes {
		codes[i] = string(code)
	}
	return fmt.Sprintf("it is refused with status %d and the error %s", r.status, strings.Join(codes, " or "))
}

// refused judges an answer to something that a relay must refuse.
func (p *probe) refused(a answer, want refusal) {
	p.expect("%s", want)
	ok, said := a.ok()
	switch {
	case a.err != nil:
		p.failf("%s", a)
	case ok || !said && a.status < 300:
		p.failf("it is accepted: %s", a)
	case a.status >= 500:
		p.failf("the relay fails at it instead of refusing it: %s", a)
	case !said && a.status < 400:
		p.failf("it is neither accepted nor refused: %s", a)
	case want.status == 0:
	case !said:
		p.failf("the refusal is not JSON with ok: %s", a)
	case want.hidden && a.status == http.StatusNotFound && a.code() == string(envelope.CodeThreadNotFound):
	case a.status != want.status || !slices.Contains(want.codes, envelope.Code(a.code())):
		p.failf("it is refused in another way: %s", a)
	}
}

// refuse posts a body that must be refused.
func (p *probe) refuse(want refusal, what string, body []byte) answer {
	again := isLimit
	if want.status == http.StatusTooManyRequests {
		again = isOtherLimit
	}
	a := p.callUnless(again, what, http.MethodPost, "/events", nil, body, 0)
	p.refused(a, p.relay.signing.hidden(want, body))
	return a
}

// query writes names and values as a query string.
func query(pairs ...string) string {
	var parts []string
	for i := 0; i+1 < len(pairs); i += 2 {
		parts = append(parts, pairs[i]+"="+url.QueryEscape(pairs[i+1]))
	}
	return "?" + strings.Join(parts, "&")
}

// poll asks for events with these parameters, names and values in turn.
func (p *probe) poll(pairs ...string) answer {
	hold := 30 * time.Second
	for i := 0; i+1 < len(pairs); i += 2 {
		if seconds, err := strconv.ParseFloat(pairs[i+1], 64); pairs[i] == "timeout" && err == nil && seconds >= 0 {
			hold = time.Duration(min(seconds, 60) * float64(time.Second))
		}
	}
	return p.call("", "GET", "/events"+query(pairs...), nil, nil, hold)
}

// page judges an answer to a poll by its shape and returns its events.
func (p *probe) page(a answer) []event {
	before := p.expected
	p.expect(`status 200 with {"ok":true,"events":[…],"hasMore":true or false}`)
	events, isList := eventsOf(a)
	ok, _ := a.ok()
	if _, said := a.flag("hasMore"); a.status != 200 || !ok || !isList || !said {
		p.failf("%s", a)
	}
	p.expected = before
	return events
}

// events polls once and returns what comes.
func (p *probe) events(pairs ...string) []event { return p.page(p.poll(pairs...)) }

// hour is a since before everything a run posts.
func (p *probe) hour() string { return stamp(p.now().Add(-time.Hour)) }

// inbox returns what is stored for somebody, asking as the specification does. It takes a second if that is nothing.
func (p *probe) inbox(of actor) []event {
	return p.events("since", p.hour(), "recipient", of.did(), "timeout", "1")
}

// delivers ends the check unless events are exactly these letters, in any order, each once.
func (p *probe) delivers(events []event, letters ...letter) {
	want := make([]string, len(letters))
	for i, l := range letters {
		want[i] = l.id
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
			p.failf("an event that does not belong here is delivered: %s (all: %s)", excerpt(e.raw, 300), ids(events))
		}
		if seen[e.id()] == 2 {
			p.failf("%s is delivered twice (all: %s)", e.id(), ids(events))
		}
	}
	for _, id := range want {
		if seen[id] == 0 {
			p.failf("%s is not delivered; there is: %s", id, ids(events))
		}
	}
}

// arrives ends the check unless these letters stand in somebody's inbox and nothing else does.
func (p *probe) arrives(at actor, letters ...letter) []event {
	events := p.inbox(at)
	p.delivers(events, letters...)
	return events
}

// genuine ends the check unless e is l as it was signed.
func (p *probe) genuine(e event, l letter) {
	p.expect("%s is delivered as it was signed", l.id)
	form, err := envelope.Canonicalize(e.raw)
	if err != nil {
		p.failf("what is delivered is no valid JSON (%v): %s", err, excerpt(e.raw, 400))
	}
	if !bytes.Equal(form, l.body) {
		p.failf("another envelope is delivered; its RFC 8785 form is %s where %s was signed", differing(form, l.body), differing(l.body, form))
	}
}

// differing shows a from shortly before the first byte where b is another.
func differing(a, b []byte) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-24)
	return "…" + excerpt(a[from:min(len(a), i+60)], 100) + "…"
}

// variant is one way to get a message wrong, or right.
type variant struct {
	what string
	edit func(message)               // before it is signed
	text func(string) string         // after
	sign func(message, actor) letter // instead of signing properly
}

// letter returns a REQUEST with the change made.
func (v variant) letter(p *probe, from, to actor) letter {
	m := p.request(from, to)
	if v.edit != nil {
		v.edit(m)
	}
	sign := message.sign
	if v.sign != nil {
		sign = v.sign
	}
	l := sign(m, from)
	if v.text != nil {
		l.body = []byte(v.text(string(l.body)))
	}
	l.what = "a REQUEST, well signed but for: " + v.what
	return l
}

// refuses returns a check that posts a good REQUEST, which must be accepted, and then each variant of it, which must be
// refused and not delivered.
func refuses(want refusal, variants ...variant) func(*probe) {
	return func(p *probe) {
		from, to := p.actor("a client"), p.actor("an agent")
		good := p.accept(from, p.request(from, to))
		for _, v := range variants {
			l := v.letter(p, from, to)
			p.refuse(want, l.what, l.body)
		}
		p.sending("GET /events for the recipient of what was refused")
		p.arrives(to, good)
		p.note("%d refused, none delivered", len(variants))
	}
}

// accepts returns a check that posts each variant of a good REQUEST, which must be accepted and delivered as signed.
func accepts(variants ...variant) func(*probe) {
	return func(p *probe) {
		from, to := p.actor("a client"), p.actor("an agent")
		sent := map[string]letter{}
		for _, v := range variants {
			l := v.letter(p, from, to)
			p.accepted(p.post("a REQUEST with "+v.what, l.body), l)
			sent[l.id] = l
		}
		events := p.inbox(to)
		p.expect("%d events, as they were accepted", len(variants))
		if len(events) != len(variants) {
			p.failf("%d events: %s", len(events), ids(events))
		}
		for _, e := range events {
			l, ok := sent[e.id()]
			if !ok {
				p.failf("an event nobody posted: %s", excerpt(e.raw, 300))
			}
			form, err := envelope.Canonicalize(l.body)
			if err != nil {
				panic(err) // a variant that is accepted is JSON
			}
			if inner, wrapped := unwrap(form); wrapped {
				form = inner
			}
			l.body = form
			p.genuine(e, l)
		}
		p.note("%d accepted and delivered", len(variants))
	}
}

// unwrap returns the envelope in {"envelope":…}.
func unwrap(form []byte) ([]byte, bool) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(form, &members); err != nil || len(members) != 1 {
		return nil, false
	}
	inner, ok := members["envelope"]
	return inner, ok
}
