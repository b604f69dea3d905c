package conformance

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// This file has what the kits for hubs and for registries of jobs share about agents whose endpoint is their DID. Such an
// agent gets its work as sealed REQUESTs from the gateways of a relay.

// agoraTheme is the theme of the checks that need the key of an agent.
const agoraTheme = "Agora"

// Reasons why a check of the theme Agora is not tested.
const (
	needsDID      = "this needs the key file of an agent with a DID (--key)"
	needsGateways = "this needs the main listener of a relay, whose /.well-known/agora.json has the DID of its gateways"
)

// agoraPart is what a run knows of the relay of its gateway, and of the agent with a DID that the run plays.
type agoraPart struct {
	root     *relayClient // its targets are relative to the root of the gateway's server
	prefix   string       // the path of the gateway's address; empty: it has none
	agent    actor        // the zero actor: the run has none
	required bool         // without an agent, the checks that need one fail

	audience string // of signed calls; empty: the server is no relay
	gateway  string // the DID of the relay's gateways; empty: it has none
}

// newAgoraPart returns the part for a gateway. key may be the zero Key.
func newAgoraPart(client *relayClient, key didkey.Key, required bool) *agoraPart {
	part := &agoraPart{required: required}
	part.root, part.prefix = client.atRoot()
	part.root.signer = readSigner{keys: map[string]didkey.Key{}, threads: map[string][2]string{}}
	if key.DID() != "" {
		part.agent = actor{"the agent", key}
		part.root.signer.addKey(key)
	}
	return part
}

// connect reads the well-known document of the relay, if the gateway's server is one.
func (part *agoraPart) connect(ctx context.Context) {
	document := part.root.do(ctx, http.MethodGet, "/.well-known/agora.json", nil, nil)
	part.audience, part.gateway = document.text("url"), document.object("gateways").text("did")
	if document.text("reads") == "parties" {
		part.root.signer.audience = part.audience
	}
}

// need ends a check that needs an agent if the run has none.
func (part *agoraPart) need(p *probe, needs string) {
	switch {
	case needs != needsDID:
	case part.gateway == "":
		p.end(NotTested, needsGateways)
	case part.agent.name != "":
	case part.required:
		p.describe("nothing")
		p.expect("a run with all its options, because this is CI")
		p.end(Failed, needsDID)
	default:
		p.end(NotTested, needsDID)
	}
}

// token returns the token of a signed call. change may change the call before it is signed; nil: it does not.
func (part *agoraPart) token(from actor, method, target string, body []byte, now time.Time, change func(*envelope.Call),
) (string, error) {
	call := envelope.Call{Read: envelope.Read{Audience: part.audience, Method: method, Target: part.prefix + target,
		TS: now}, Body: sha256.Sum256(body)}
	if change != nil {
		change(&call)
	}
	return call.Sign(from.key)
}

// sign sends a signed call of an identity. change may change the call before it is signed, and edit the token.
func (p *gatewayProbe) sign(from actor, method, target string, body any, change func(*envelope.Call),
	edit func(token string) string,
) answer {
	text := encodeBody(body)
	token, err := p.agora.token(from, method, target, text, p.now(), change)
	if err != nil {
		p.end(Skipped, "cannot sign a call: %v", err)
	}
	if edit != nil {
		token = edit(token)
	}
	var sent any
	if text != nil {
		sent = text
	}
	return p.ask("signed by "+from.did(), method, target, "", http.Header{"Authorization": {"Agora " + token}}, sent)
}

// asAgent sends a signed call of the run's agent.
func (p *gatewayProbe) asAgent(method, target string, body any) answer {
	return p.sign(p.agora.agent, method, target, body, nil, nil)
}

// endpoint returns the endpoint that names the DID of an agent.
func (a actor) endpoint() string { return "agora:" + a.did() }

// work is a REQUEST that the gateway has sent to the run's agent.
type work struct {
	sent *envelope.Envelope // as the relay has delivered it
	says answer             // its payload, decrypted
}

// requestLife is the ttl of a REQUEST of a gateway (B-2).
const requestLife = 24 * time.Hour

// fromGateway returns the messages of the gateway to the run's agent, the oldest first. It returns those of the last
// minutes, which are all that a check needs.
func (p *gatewayProbe) fromGateway() (all []*envelope.Envelope) {
	target := "/events" + query("since", formatTime(p.now().Add(-5*time.Minute)), "recipient", p.agora.agent.did(),
		"sender", p.agora.gateway, "limit", "1000", "timeout", "1")
	a := p.callAt(p.agora.root, "as the agent", retryableRequest{method: http.MethodGet, target: target, hold: time.Second},
		isRateLimit)
	for _, e := range p.checkPage(a) {
		parsed, err := envelope.Parse(e.raw, maxAnswer)
		if err == nil {
			err = parsed.Verify()
		}
		if err != nil {
			p.failf("a message that does not verify: %v: %s", err, excerpt(e.raw, 400))
		}
		if string(parsed.Sender.ID) == p.agora.gateway {
			all = append(all, parsed)
		}
	}
	return all
}

// works returns the REQUESTs of the gateway that mine is true for. mine gets the decrypted payload.
func (p *gatewayProbe) works(mine func(says answer) bool) (all []work) {
	for _, m := range p.fromGateway() {
		if m.Type != envelope.TypeRequest {
			continue
		}
		payload := m.Payload
		if m.Sealed() {
			opened, err := m.Open(p.agora.agent.key)
			if err != nil {
				continue // then the REQUEST that a check waits for is missing
			}
			payload = opened.Payload
		}
		if w := (work{m, parseRow(json.RawMessage(payload))}); mine(w.says) {
			all = append(all, w)
		}
	}
	return all
}

// within is how long a check waits for what the gateway or the relay does with an answer of the agent.
const within = 2 * promptLimit

// wantWork waits for the one REQUEST that mine is true for. While it waits, it calls look, which may end the check. look may
// be nil.
func (p *gatewayProbe) wantWork(what string, mine func(says answer) bool, look func()) work {
	for deadline := time.Now().Add(within); ; p.sleep(second / 10) {
		if look != nil {
			look()
		}
		all := p.works(mine)
		p.expect("one REQUEST of %s to the agent for %s, within %v", p.agora.gateway, what, within)
		if len(all) == 1 {
			return all[0]
		}
		if len(all) > 1 || time.Now().After(deadline) {
			p.failf("%d such REQUESTs", len(all))
		}
	}
}

// wantNoWork ends the check if there is a REQUEST that mine is true for, or if one comes in the next moments.
func (p *gatewayProbe) wantNoWork(what string, mine func(says answer) bool) {
	p.sleep(quiet)
	all := p.works(mine)
	p.expect("no REQUEST to the agent for %s", what)
	if len(all) > 0 {
		p.failf("%d such REQUESTs, and the first one says %s", len(all), all[0].says)
	}
}

// wantForm ends the check unless w is as B-2 says: sealed, with this prefix of its id, which is also that of its thread.
func (p *gatewayProbe) wantForm(w work, prefix string) {
	p.expect("a sealed REQUEST; its id and its thread are the same and begin with %q; meta.ttl is %d, and meta.relay has %s",
		prefix, int(requestLife.Seconds()), p.agora.audience)
	m := w.sent
	if !m.Sealed() {
		p.failf("it is in clear: %s", excerpt(m.Canonical(), 600))
	}
	if m.ID != m.Thread || len(m.ID) <= len(prefix) || m.ID[:len(prefix)] != prefix || m.TTL != requestLife ||
		len(m.Relays) != 1 || m.Relays[0] != p.agora.audience || w.says.text("request_id") != m.Thread {
		p.failf("%s, which says %s", excerpt(m.Canonical(), 600), w.says)
	}
}

// say posts an answer of the agent to w, sealed to the gateway.
func (p *gatewayProbe) say(w work, payload envelope.Payload) signedMessage {
	m, err := envelope.Draft{Thread: w.sent.Thread, Recipient: w.sent.Sender.ID, TTL: messageTTL * time.Second,
		Payload: payload, Relays: []string{p.agora.audience}, Seal: true}.Sign(p.agora.agent.key, p.now())
	if err != nil {
		p.end(Skipped, "cannot sign an answer: %v", err)
	}
	said := signedMessage{what: fmt.Sprintf("%s of the agent: %s", m.Type, canonical(payload)), id: m.ID, body: m.Canonical()}
	p.saySigned(said)
	return said
}

// saySigned posts a message of the agent. The relay must accept it.
func (p *gatewayProbe) saySigned(said signedMessage) {
	p.checkAccepted(p.callAt(p.agora.root, said.what, retryableRequest{method: http.MethodPost, target: "/events",
		body: said.body}, isRateLimit), said)
}

// wantNext waits for a message of this type by the gateway in the thread of w, which must be sealed.
func (p *gatewayProbe) wantNext(w work, want envelope.Type) {
	for deadline := time.Now().Add(within); ; p.sleep(second / 10) {
		var types []envelope.Type
		for _, m := range p.fromGateway() {
			if m.Thread == w.sent.Thread && m.Type != envelope.TypeRequest && m.Sealed() {
				types = append(types, m.Type)
			}
		}
		p.expect("a sealed %s of the gateway in the thread %s, within %v", want, w.sent.Thread, within)
		if len(types) > 0 && types[len(types)-1] == want {
			return
		}
		if time.Now().After(deadline) {
			p.failf("after the REQUEST there are %v", types)
		}
	}
}

// takeOn offers to do the work for nothing, and waits until the gateway has accepted.
func (p *gatewayProbe) takeOn(w work) {
	p.say(w, envelope.Offer{RequestID: w.sent.Thread})
	p.wantNext(w, envelope.TypeAccept)
}

// succeed reports a RESULT with this output.
func (p *gatewayProbe) succeed(w work, output any) signedMessage {
	text, err := json.Marshal(output)
	if err != nil {
		panic(err) // cannot happen: it is a value of this package
	}
	return p.say(w, envelope.Result{RequestID: w.sent.Thread, Status: "success", Output: text})
}

// fail reports an ERROR.
func (p *gatewayProbe) fail(w work, code envelope.AgentCode, text string) {
	p.say(w, envelope.Failure{RequestID: w.sent.Thread, Code: code, Message: text})
}

// pricedOffer returns an OFFER with a price.
func pricedOffer(w work, amount float64, currency string) envelope.Offer {
	return envelope.Offer{RequestID: w.sent.Thread, Price: &envelope.Price{Amount: amount, Currency: currency}}
}
