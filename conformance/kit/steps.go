package kit

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

// Post sends body with POST /events. The text what describes the body in the report.
func (p *Probe) Post(what string, body []byte) Answer {
	return p.Call(what, "POST", "/events", nil, body, 0)
}

// PostAccepted signs m as from, posts it and returns it. The relay must accept it.
func (p *Probe) PostAccepted(from Actor, m Message) SignedMessage {
	return p.PostSigned(m.Sign(from))
}

func (p *Probe) PostSigned(signed SignedMessage) SignedMessage {
	p.CheckAccepted(p.Post(signed.What, signed.Body), signed)
	return signed
}

// CheckAccepted ends the check unless the answer a shows that the relay has accepted the message.
func (p *Probe) CheckAccepted(a Answer, signed SignedMessage) {
	p.Expect(`accepted: status 200 with {"ok":true,"id":%q}`, signed.ID)
	if ok, _ := a.OK(); a.Status != 200 || !ok {
		p.Failf("the relay refused it: %s", a)
	}
	if a.Text("id") != signed.ID {
		p.Failf("the answer has another id: %s", a)
	}
}

// Refusal describes how a relay must refuse.
type Refusal struct {
	status     int             // 0: any refusal is right, because the specification names no status
	codes      []envelope.Code // the error must be one of these
	orNotFound bool            // 404 THREAD_NOT_FOUND is right too, see readSigner.allowNotFound
}

// AnyRefusal accepts any refusal. The original specification requires no more.
var AnyRefusal = Refusal{}

func Refused(status int, codes ...envelope.Code) Refusal {
	return Refusal{status: status, codes: codes}
}

func (r Refusal) String() string {
	if r.status == 0 {
		return `refused: {"ok":false,…}`
	}
	codes := make([]string, len(r.codes))
	for i, code := range r.codes {
		codes[i] = string(code)
	}
	return fmt.Sprintf("refused: status %d with the error %s", r.status, strings.Join(codes, " or "))
}

// CheckRefused ends the check unless a is a refusal as want describes it.
func (p *Probe) CheckRefused(a Answer, want Refusal) {
	p.Expect("%s", want)
	ok, present := a.OK()
	switch {
	case a.Err != nil:
		p.Failf("%s", a)
	case ok || !present && a.Status < 300:
		p.Failf("the relay accepted it: %s", a)
	case a.Status >= 500:
		p.Failf("the relay failed instead of refusing it: %s", a)
	case !present && a.Status < 400:
		p.Failf("the answer is neither an acceptance nor a refusal: %s", a)
	case want.status == 0:
	case !present:
		p.Failf("the refusal is not JSON with the member ok: %s", a)
	case want.orNotFound && a.Status == http.StatusNotFound && a.Code() == string(envelope.CodeThreadNotFound):
	case a.Status != want.status || !slices.Contains(want.codes, envelope.Code(a.Code())):
		p.Failf("the relay refused it with another status or error: %s", a)
	}
}

// PostRefused posts a body that the relay must refuse, and returns the answer.
func (p *Probe) PostRefused(want Refusal, what string, body []byte) Answer {
	retry := IsRateLimit
	if want.status == http.StatusTooManyRequests {
		retry = isOtherRateLimit
	}
	a := p.callRetrying(retry, what, http.MethodPost, "/events", nil, body, 0)
	p.CheckRefused(a, p.Relay.Signer.allowNotFound(want, body))
	return a
}

// Document returns the well-known document.
func (p *Probe) Document() Answer {
	return p.Call("", http.MethodGet, "/.well-known/agora.json", nil, nil, 0)
}

// HasFeature reports whether the well-known document lists a feature.
func HasFeature(document Answer, name string) bool {
	features, _ := document.List("features")
	return slices.ContainsFunc(features, func(f json.RawMessage) bool { return string(f) == `"`+name+`"` })
}

// CheckFeature ends the check unless the well-known document lists a feature.
func (p *Probe) CheckFeature(name string) {
	a := p.Document()
	p.Expect("%q in features", name)
	if !HasFeature(a, name) {
		p.Failf("%s", a)
	}
}

// Query returns a query string. The pairs are names and values in turn.
func Query(pairs ...string) string {
	var parts []string
	for i := 0; i+1 < len(pairs); i += 2 {
		parts = append(parts, pairs[i]+"="+url.QueryEscape(pairs[i+1]))
	}
	return "?" + strings.Join(parts, "&")
}

// Poll sends GET /events with these parameters. The pairs are names and values in turn.
func (p *Probe) Poll(pairs ...string) Answer {
	hold := 30 * time.Second
	for i := 0; i+1 < len(pairs); i += 2 {
		if seconds, err := strconv.ParseFloat(pairs[i+1], 64); pairs[i] == "timeout" && err == nil && seconds >= 0 {
			hold = time.Duration(min(seconds, 60) * float64(time.Second))
		}
	}
	return p.Call("", "GET", "/events"+Query(pairs...), nil, nil, hold)
}

// CheckPage ends the check unless a is a well-formed answer to a poll. It returns the events of the answer.
func (p *Probe) CheckPage(a Answer) []Event {
	before := p.expected
	p.Expect(`status 200 with {"ok":true,"events":[…],"hasMore":true or false}`)
	events, isList := EventsOf(a)
	ok, _ := a.OK()
	if _, present := a.Flag("hasMore"); a.Status != 200 || !ok || !isList || !present {
		p.Failf("%s", a)
	}
	p.expected = before
	return events
}

// Events polls once and returns the events of the answer.
func (p *Probe) Events(pairs ...string) []Event { return p.CheckPage(p.Poll(pairs...)) }

// HourAgo returns a value of since that is older than all messages of the run.
func (p *Probe) HourAgo() string { return FormatTime(p.Now().Add(-time.Hour)) }

// Inbox returns the stored events for reader. It polls as the specification describes, with since and recipient. If
// there are no events, the poll takes a second.
func (p *Probe) Inbox(reader Actor) []Event {
	return p.Events("since", p.HourAgo(), "recipient", reader.DID(), "timeout", "1")
}

// CheckEvents ends the check unless events are exactly these messages, in any order, each once.
func (p *Probe) CheckEvents(events []Event, messages ...SignedMessage) {
	want := make([]string, len(messages))
	for i, signed := range messages {
		want[i] = signed.ID
	}
	if len(want) == 0 {
		p.Expect("no events")
	} else {
		p.Expect("exactly the events %s, each once", strings.Join(want, ", "))
	}
	seen := map[string]int{}
	for _, e := range events {
		seen[e.ID()]++
		if !slices.Contains(want, e.ID()) {
			p.Failf("the answer contains an unexpected event: %s (all events: %s)", Excerpt(e.Raw, 300), IDs(events))
		}
		if seen[e.ID()] == 2 {
			p.Failf("event %s is delivered twice (all events: %s)", e.ID(), IDs(events))
		}
	}
	for _, id := range want {
		if seen[id] == 0 {
			p.Failf("event %s is missing; the answer contains: %s", id, IDs(events))
		}
	}
}

// CheckInbox ends the check unless the inbox of reader contains exactly these messages. It returns the events.
func (p *Probe) CheckInbox(reader Actor, messages ...SignedMessage) []Event {
	events := p.Inbox(reader)
	p.CheckEvents(events, messages...)
	return events
}

// CheckUnchanged ends the check unless the event e is exactly the envelope that was signed.
func (p *Probe) CheckUnchanged(e Event, signed SignedMessage) {
	p.Expect("event %s is delivered exactly as it was signed", signed.ID)
	form, err := envelope.Canonicalize(e.Raw)
	if err != nil {
		p.Failf("the delivered event is not valid JSON (%v): %s", err, Excerpt(e.Raw, 400))
	}
	if !bytes.Equal(form, signed.Body) {
		p.Failf("the delivered envelope differs from the signed one: its RFC 8785 form contains %s instead of %s",
			FirstDifference(form, signed.Body), FirstDifference(signed.Body, form))
	}
}

// FirstDifference returns an excerpt of a around the first byte that differs from b.
func FirstDifference(a, b []byte) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	from := max(0, i-24)
	return "…" + Excerpt(a[from:min(len(a), i+60)], 100) + "…"
}
