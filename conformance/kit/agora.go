package kit

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

// AgoraTheme is the theme of the checks that need the key of an agent.
const AgoraTheme = "Agora"

// Reasons why a check of the theme Agora is not tested.
const (
	NeedsDID      = "this needs the key file of an agent with a DID (--key)"
	needsGateways = "this needs the main listener of a relay, whose /.well-known/agora.json has the DID of its gateways"
)

// AgoraPart is what a run knows of the relay of its gateway, and of the agent with a DID that the run plays.
type AgoraPart struct {
	Root     *RelayClient // its targets are relative to the root of the gateway's server
	Prefix   string       // the path of the gateway's address; empty: it has none
	Agent    Actor        // the zero actor: the run has none
	required bool         // without an agent, the checks that need one fail

	Audience string // of signed calls; empty: the server is no relay
	gateway  string // the DID of the relay's gateways; empty: it has none
}

// NewAgoraPart returns the part for a gateway. key may be the zero Key.
func NewAgoraPart(client *RelayClient, key didkey.Key, required bool) *AgoraPart {
	part := &AgoraPart{required: required}
	part.Root, part.Prefix = client.AtRoot()
	part.Root.Signer = readSigner{keys: map[string]didkey.Key{}, threads: map[string][2]string{}}
	if key.DID() != "" {
		part.Agent = Actor{"the agent", key}
		part.Root.Signer.addKey(key)
	}
	return part
}

// Connect reads the well-known document of the relay, if the gateway's server is one.
func (part *AgoraPart) Connect(ctx context.Context) {
	document := part.Root.Do(ctx, http.MethodGet, "/.well-known/agora.json", nil, nil)
	part.Audience, part.gateway = document.Text("url"), document.Object("gateways").Text("did")
	if document.Text("reads") == "parties" {
		part.Root.Signer.Audience = part.Audience
	}
}

// Need ends a check that needs an agent if the run has none.
func (part *AgoraPart) Need(p *Probe, needs string) {
	switch {
	case needs != NeedsDID:
	case part.gateway == "":
		p.End(NotTested, needsGateways)
	case part.Agent.Name != "":
	case part.required:
		p.Describe("nothing")
		p.Expect("a run with all its options, because this is CI")
		p.End(Failed, NeedsDID)
	default:
		p.End(NotTested, NeedsDID)
	}
}

// Token returns the token of a signed call. change may change the call before it is signed; nil: it does not.
func (part *AgoraPart) Token(from Actor, method, target string, body []byte, now time.Time, change func(*envelope.Call),
) (string, error) {
	call := envelope.Call{Read: envelope.Read{Audience: part.Audience, Method: method, Target: part.Prefix + target,
		TS: now}, Body: sha256.Sum256(body)}
	if change != nil {
		change(&call)
	}
	return call.Sign(from.Key)
}

// Sign sends a signed call of an identity. change may change the call before it is signed, and edit the token.
func (p *GatewayProbe) Sign(from Actor, method, target string, body any, change func(*envelope.Call),
	edit func(token string) string,
) Answer {
	text := EncodeBody(body)
	token, err := p.Agora.Token(from, method, target, text, p.Now(), change)
	if err != nil {
		p.End(Skipped, "cannot sign a call: %v", err)
	}
	if edit != nil {
		token = edit(token)
	}
	var sent any
	if text != nil {
		sent = text
	}
	return p.Ask("signed by "+from.DID(), method, target, "", http.Header{"Authorization": {"Agora " + token}}, sent)
}

// AsAgent sends a signed call of the run's agent.
func (p *GatewayProbe) AsAgent(method, target string, body any) Answer {
	return p.Sign(p.Agora.Agent, method, target, body, nil, nil)
}

// Endpoint returns the endpoint that names the DID of an agent.
func (a Actor) Endpoint() string { return "agora:" + a.DID() }

// Work is a REQUEST that the gateway has sent to the run's agent.
type Work struct {
	Sent *envelope.Envelope // as the relay has delivered it
	Says Answer             // its payload, decrypted
}

// requestLife is the ttl of a REQUEST of a gateway (B-2).
const requestLife = 24 * time.Hour

// fromGateway returns the messages of the gateway to the run's agent, the oldest first. It returns only the messages of
// the last five minutes. A check needs no others.
func (p *GatewayProbe) fromGateway() (all []*envelope.Envelope) {
	target := "/events" + Query("since", FormatTime(p.Now().Add(-5*time.Minute)), "recipient", p.Agora.Agent.DID(),
		"sender", p.Agora.gateway, "limit", "1000", "timeout", "1")
	a := p.callAt(p.Agora.Root, "as the agent", RetryableRequest{Method: http.MethodGet, Target: target,
		Hold: time.Second},
		IsRateLimit)
	for _, e := range p.CheckPage(a) {
		parsed, err := envelope.Parse(e.Raw, MaxAnswer)
		if err == nil {
			err = parsed.Verify()
		}
		if err != nil {
			p.Failf("a message that does not verify: %v: %s", err, Excerpt(e.Raw, 400))
		}
		if string(parsed.Sender.ID) == p.Agora.gateway {
			all = append(all, parsed)
		}
	}
	return all
}

// works returns the REQUESTs of the gateway that mine is true for. mine gets the decrypted payload.
func (p *GatewayProbe) works(mine func(says Answer) bool) (all []Work) {
	for _, m := range p.fromGateway() {
		if m.Type != envelope.TypeRequest {
			continue
		}
		payload := m.Payload
		if m.Sealed() {
			opened, err := m.Open(p.Agora.Agent.Key)
			if err != nil {
				continue // then the REQUEST that a check waits for is missing
			}
			payload = opened.Payload
		}
		if w := (Work{m, ParseRow(json.RawMessage(payload))}); mine(w.Says) {
			all = append(all, w)
		}
	}
	return all
}

// within is how long a check waits for what the gateway or the relay does with an answer of the agent.
const within = 2 * PromptLimit

// WantWork waits for the one REQUEST that mine is true for. While it waits, it calls look, which may end the check. look may
// be nil.
func (p *GatewayProbe) WantWork(what string, mine func(says Answer) bool, look func()) Work {
	for deadline := time.Now().Add(within); ; p.Sleep(time.Second / 10) {
		if look != nil {
			look()
		}
		all := p.works(mine)
		p.Expect("one REQUEST of %s to the agent for %s, within %v", p.Agora.gateway, what, within)
		if len(all) == 1 {
			return all[0]
		}
		if len(all) > 1 || time.Now().After(deadline) {
			p.Failf("%d such REQUESTs", len(all))
		}
	}
}

// WantNoWork ends the check if there is a REQUEST that mine is true for, or if one comes in the next moments.
func (p *GatewayProbe) WantNoWork(what string, mine func(says Answer) bool) {
	p.Sleep(Quiet)
	all := p.works(mine)
	p.Expect("no REQUEST to the agent for %s", what)
	if len(all) > 0 {
		p.Failf("%d such REQUESTs, and the first one says %s", len(all), all[0].Says)
	}
}

// WantForm ends the check unless w is as B-2 says: it is sealed, its id has this prefix, and its thread has the same
// id.
func (p *GatewayProbe) WantForm(w Work, prefix string) {
	p.Expect("a sealed REQUEST; its id and its thread are the same and begin with %q; meta.ttl is %d, and meta.relay has %s",
		prefix, int(requestLife.Seconds()), p.Agora.Audience)
	m := w.Sent
	if !m.Sealed() {
		p.Failf("it is in clear: %s", Excerpt(m.Canonical(), 600))
	}
	if m.ID != m.Thread || len(m.ID) <= len(prefix) || m.ID[:len(prefix)] != prefix || m.TTL != requestLife ||
		len(m.Relays) != 1 || m.Relays[0] != p.Agora.Audience || w.Says.Text("request_id") != m.Thread {
		p.Failf("%s, which says %s", Excerpt(m.Canonical(), 600), w.Says)
	}
}

// Say posts an answer of the agent to w, sealed to the gateway.
func (p *GatewayProbe) Say(w Work, payload envelope.Payload) SignedMessage {
	m, err := envelope.Draft{Thread: w.Sent.Thread, Recipient: w.Sent.Sender.ID, TTL: MessageTTL * time.Second,
		Payload: payload, Relays: []string{p.Agora.Audience}, Seal: true}.Sign(p.Agora.Agent.Key, p.Now())
	if err != nil {
		p.End(Skipped, "cannot sign an answer: %v", err)
	}
	said := SignedMessage{What: fmt.Sprintf("%s of the agent: %s", m.Type, Canonical(payload)), ID: m.ID,
		Body: m.Canonical()}
	p.SaySigned(said)
	return said
}

// SaySigned posts a message of the agent. The relay must accept it.
func (p *GatewayProbe) SaySigned(said SignedMessage) {
	p.CheckAccepted(p.callAt(p.Agora.Root, said.What, RetryableRequest{Method: http.MethodPost, Target: "/events",
		Body: said.Body}, IsRateLimit), said)
}

// WantNext waits for a message of this type by the gateway in the thread of w, which must be sealed.
func (p *GatewayProbe) WantNext(w Work, want envelope.Type) {
	for deadline := time.Now().Add(within); ; p.Sleep(time.Second / 10) {
		var types []envelope.Type
		for _, m := range p.fromGateway() {
			if m.Thread == w.Sent.Thread && m.Type != envelope.TypeRequest && m.Sealed() {
				types = append(types, m.Type)
			}
		}
		p.Expect("a sealed %s of the gateway in the thread %s, within %v", want, w.Sent.Thread, within)
		if len(types) > 0 && types[len(types)-1] == want {
			return
		}
		if time.Now().After(deadline) {
			p.Failf("after the REQUEST there are %v", types)
		}
	}
}

// TakeOn offers to do the work for nothing, and waits until the gateway has accepted.
func (p *GatewayProbe) TakeOn(w Work) {
	p.Say(w, envelope.Offer{RequestID: w.Sent.Thread})
	p.WantNext(w, envelope.TypeAccept)
}

// Succeed reports a RESULT with this output.
func (p *GatewayProbe) Succeed(w Work, output any) SignedMessage {
	text, err := json.Marshal(output)
	if err != nil {
		panic(err) // cannot happen: it is a value of this package
	}
	return p.Say(w, envelope.Result{RequestID: w.Sent.Thread, Status: "success", Output: text})
}

// Fail reports an ERROR.
func (p *GatewayProbe) Fail(w Work, code envelope.AgentCode, text string) {
	p.Say(w, envelope.Failure{RequestID: w.Sent.Thread, Code: code, Message: text})
}

// PricedOffer returns an OFFER with a price.
func PricedOffer(w Work, amount float64, currency string) envelope.Offer {
	return envelope.Offer{RequestID: w.Sent.Thread, Price: &envelope.Price{Amount: amount, Currency: currency}}
}
