package relay

import (
	"bytes"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

const privateReads = "PROTOCOL §8"

// privateChecks test signed reads. X-33 also tests open relays, which must ignore Authorization.
var privateChecks = []relayCheck{
	{Number: "X-33",
		Title: "An open relay ignores Authorization; a private relay refuses an invalid one with 401 UNAUTHORIZED",
		Cites: privateReads, run: authorizationHeader},
	{Number: "X-34", Title: "A private relay shows an inbox only to its owner",
		Cites: privateReads, run: ifPrivate(inboxOwner)},
	{Number: "X-35",
		Title: "Without recipient, a reader sees broadcasts and the messages that it has sent or that are sent to it",
		Cites: privateReads, run: ifPrivate(withoutRecipient)},
	{Number: "X-36", Title: "A thread that the reader may not see is answered like a thread that does not exist",
		Cites: privateReads, run: ifPrivate(hiddenThread)},
	{Number: "X-37",
		Title: "A post to a thread of other parties is answered like a post to a thread that does not exist",
		Cites: privateReads, run: ifPrivate(hiddenThreadPosts)},
	{Number: "X-38",
		Title: "An agent sees its own OFFER but not those of others, and nothing once another agent is accepted",
		Cites: privateReads, run: ifPrivate(competingOffers)},
	{Number: "X-39", Title: "A token is valid only for its relay, method and target",
		Cites: privateReads, run: ifPrivate(tokenScope)},
	{Number: "X-40", Title: "A token whose ts is 60 seconds or more from the relay's clock is refused",
		Cites: privateReads, run: ifPrivate(tokenTime)},
	{Number: "X-41", Title: "A token is accepted once, and a nonce is accepted once for each reader",
		Cites: privateReads, run: ifPrivate(tokenReuse)},
	{Number: "X-42", Title: "A malformed, forged or second token is refused, even where no token is needed",
		Cites: privateReads, run: ifPrivate(malformedTokens)},
	{Number: "X-43", Title: "A held poll is not answered because of an event that its reader may not see",
		Cites: privateReads, wait: 5 * time.Second, run: ifPrivate(hiddenEvents)},
	{Number: "X-44",
		Title: "Two cursors for the same position differ, so that cursors do not reveal the number of hidden events",
		Cites: privateReads, run: ifPrivate(encryptedCursors)},
}

// ifPrivate returns a check that runs only if the relay has private reads. It passes for an open relay, because X-33
// tests the rule for open relays.
func ifPrivate(run func(*relayProbe)) func(*relayProbe) {
	return func(p *relayProbe) {
		if p.Relay.Signer.Audience == "" {
			p.Note("not applicable, because the relay is open")
			return
		}
		run(p)
	}
}

// withoutToken returns the header of a read that kit.RelayClient does not sign.
func withoutToken() http.Header { return http.Header{"Authorization": nil} }

func unauthorized() kit.Refusal {
	return kit.Refused(http.StatusUnauthorized, envelope.CodeUnauthorized)
}

// read sends a read with a token of reader. The changes are made to the token before it is signed. If reader is the
// zero actor, the read has no token.
func (p *relayProbe) read(what string, reader kit.Actor, target string, changes ...func(map[string]any)) kit.Answer {
	header := withoutToken()
	if reader.Name != "" {
		header.Set("Authorization", "Agora "+p.token(reader, target, changes...))
		what = strings.TrimPrefix(what+", signed by "+reader.Name, ", ")
	}
	return p.Call(what, http.MethodGet, target, header, nil, 0)
}

// token returns a token for a GET of target. The changes are made before it is signed.
func (p *relayProbe) token(reader kit.Actor, target string, changes ...func(map[string]any)) string {
	full, err := url.Parse(p.Relay.BaseURL + target)
	if err != nil {
		panic(err) // cannot happen: the checks give valid targets
	}
	token := map[string]any{
		"typ":    envelope.ReadType,
		"did":    reader.DID(),
		"aud":    p.Relay.Signer.Audience,
		"method": http.MethodGet,
		"target": full.RequestURI(),
		"ts":     kit.FormatTime(p.Now()),
		"nonce":  envelope.NewNonce(),
	}
	for _, change := range changes {
		change(token)
	}
	delete(token, "sig")
	signature, err := reader.Key.Sign(kit.Canonical(token))
	if err != nil {
		panic(err) // cannot happen: actor has generated the key
	}
	token["sig"] = base64.RawURLEncoding.EncodeToString(signature)
	return base64.RawURLEncoding.EncodeToString(kit.Canonical(token))
}

func setMember(name string, value any) func(map[string]any) {
	return func(token map[string]any) { token[name] = value }
}

// checkUnauthorized ends the check unless a is a 401 with the right error and the header WWW-Authenticate.
func (p *relayProbe) checkUnauthorized(a kit.Answer) {
	p.CheckRefused(a, unauthorized())
	p.Expect("WWW-Authenticate: Agora")
	if scheme, _, _ := strings.Cut(a.Header.Get("WWW-Authenticate"), " "); !strings.EqualFold(scheme, "Agora") {
		p.Failf("WWW-Authenticate: %q", a.Header.Get("WWW-Authenticate"))
	}
}

func (p *relayProbe) inboxTarget(of kit.Actor, pairs ...string) string {
	return "/events" + kit.Query(append([]string{"cursor", "0", "timeout", "0", "recipient", of.DID()}, pairs...)...)
}

func authorizationHeader(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	sent := p.PostAccepted(client, p.Request(client, agent))
	target := p.inboxTarget(agent)
	header := http.Header{"Authorization": {"Agora !"}}
	a := p.Call("a read with a malformed Authorization", http.MethodGet, target, header, nil, 0)
	if p.Relay.Signer.Audience != "" {
		p.checkUnauthorized(a)
		p.checkUnauthorized(p.read("a read without a token", kit.Actor{}, target))
		return
	}
	p.CheckEvents(p.CheckPage(a), sent)
}

func inboxOwner(p *relayProbe) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	sent := p.PostAccepted(client, p.Request(client, agent))
	target := p.inboxTarget(agent)
	p.CheckEvents(p.CheckPage(p.read("", agent, target)), sent)
	p.checkUnauthorized(p.read("", kit.Actor{}, target))
	p.checkUnauthorized(p.read("", client, target))
	p.checkUnauthorized(p.read("a read with broadcast=true", client, p.inboxTarget(agent, "broadcast", "true")))
}

func withoutRecipient(p *relayProbe) {
	client, agent, stranger := p.Actor("a client"), p.Actor("an agent"), p.Actor("a stranger")
	open := p.PostAccepted(client, p.Request(client, kit.Actor{}))
	direct := p.PostAccepted(client, p.Request(client, agent))
	target := "/events" + kit.Query("cursor", "0", "timeout", "0", "sender", client.DID())
	p.CheckEvents(p.CheckPage(p.read("", kit.Actor{}, target)), open)
	p.CheckEvents(p.CheckPage(p.read("", stranger, target)), open)
	p.CheckEvents(p.CheckPage(p.read("", agent, target)), open, direct)
	p.CheckEvents(p.CheckPage(p.read("", client, target)), open, direct)
	p.CheckEvents(
		p.CheckPage(
			p.read("", stranger, "/events"+kit.Query("since", p.HourAgo(), "timeout", "0", "sender", client.DID()))),
		open,
	)
}

// checkSameAnswer ends the check unless the answer a is the same as absent, the one for something that does not exist. The
// header Date may differ.
func (p *relayProbe) checkSameAnswer(a, absent kit.Answer) {
	p.Expect("the same answer as for what does not exist: %s", absent)
	header, other := a.Header.Clone(), absent.Header.Clone()
	header.Del("Date")
	other.Del("Date")
	same := maps.EqualFunc(header, other,
		func(x, y []string) bool { return strings.Join(x, "\n") == strings.Join(y, "\n") })
	if a.Status != absent.Status || !bytes.Equal(a.Body, absent.Body) || !same {
		p.Failf("%s with the header %v instead of %v", a, header, other)
	}
}

func hiddenThread(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST a.OFFER c.ACCEPT>a")
	for _, name := range []string{"c", "a"} {
		p.checkClient(p.read("", t.actors[name], "/threads/"+t.thread), t.actors["c"])
	}
	for _, reader := range []kit.Actor{{}, t.actors["s"]} {
		absent := p.read("", reader, "/threads/"+kit.NewID("thread"))
		p.CheckRefused(absent, noThread)
		p.checkSameAnswer(p.read("", reader, "/threads/"+t.thread), absent)
		p.checkSameAnswer(p.read("", reader, "/threads/"+t.thread+kit.Query("client", t.actors["c"].DID())), absent)
	}
}

func hiddenThreadPosts(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST>a a.OFFER")
	for _, move := range []string{"s.OFFER", "s.ACCEPT>a", "s.RESULT", "s.ERROR", "s.CANCEL"} {
		m, _ := t.message(move)
		kit.Set("thread.id", kit.NewID("thread"))(m)
		other := m.Sign(t.actors["s"])
		absent := p.Post(other.What+", but with the id of a thread that does not exist", other.Body)
		p.CheckRefused(absent, noThread)
		actual := t.signed(move)
		p.checkSameAnswer(p.Post(actual.What, actual.Body), absent)
	}
}

func competingOffers(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST a.OFFER b.OFFER")
	for _, name := range []string{"a", "b"} {
		a := p.read("", t.actors[name], "/threads/"+t.thread)
		p.Expect("the thread with two events and only the offer of the reader")
		events, _ := kit.EventsOf(a)
		offers, _ := a.Object("thread").List("offers")
		if a.Status != 200 || len(offers) != 1 || !bytes.Contains(offers[0], []byte(t.actors[name].DID())) ||
			len(events) != 2 {
			p.Failf("%s", a)
		}
	}
	t.play("c.ACCEPT>a")
	p.CheckRefused(p.read("", t.actors["b"], "/threads/"+t.thread), noThread)
}

func tokenScope(p *relayProbe) {
	reader := p.Actor("a reader")
	target := p.inboxTarget(reader)
	for what, change := range map[string]func(map[string]any){
		"a token for another relay":  setMember("aud", "https://relay.invalid"),
		"a token for another method": setMember("method", "POST"),
		"a token for another path":   setMember("target", "/agents"),
		"a token for the same query in another order": setMember("target",
			strings.Replace(target, "cursor=0&timeout=0", "timeout=0&cursor=0", 1)),
		"a token for a part of the query": setMember("target",
			strings.TrimSuffix(target, reader.DID()[len(reader.DID())-1:])),
	} {
		p.checkUnauthorized(p.read(what, reader, target, change))
	}
	p.CheckPage(p.read("", reader, target))
}

func tokenTime(p *relayProbe) {
	reader := p.Actor("a reader")
	target := p.inboxTarget(reader)
	for _, off := range []time.Duration{-65 * time.Second, 65 * time.Second, -time.Hour, 10 * 365 * 24 * time.Hour} {
		p.checkUnauthorized(
			p.read("a token with a ts that is off by "+off.String(), reader, target,
				setMember("ts", kit.FormatTime(p.Now().Add(off)))),
		)
	}
	p.checkUnauthorized(p.read("a token whose ts is not a time", reader, target, setMember("ts", "now")))
	p.CheckPage(
		p.read("a token with a ts 50s in the future", reader, target,
			setMember("ts", kit.FormatTime(p.Now().Add(50*time.Second)))),
	)
}

func tokenReuse(p *relayProbe) {
	reader, other := p.Actor("a reader"), p.Actor("another reader")
	target, nonce := "/agents?limit=1", envelope.NewNonce()
	token := http.Header{"Authorization": {"Agora " + p.token(reader, target, setMember("nonce", nonce))}}
	p.Expect("status 200")
	if a := p.Call("", http.MethodGet, target, token, nil, 0); a.Status != 200 {
		p.Failf("%s", a)
	}
	p.checkUnauthorized(p.Call("the same token again", http.MethodGet, target, token, nil, 0))
	p.checkUnauthorized(
		p.read("another token with the same nonce", reader, target, setMember("nonce", nonce),
			setMember("ts", kit.FormatTime(p.Now().Add(time.Second)))),
	)
	p.Expect("status 200, because nonces of another reader do not count")
	if a := p.read("", other, target, setMember("nonce", nonce)); a.Status != 200 {
		p.Failf("%s", a)
	}
}

func malformedTokens(p *relayProbe) {
	reader, other := p.Actor("a reader"), p.Actor("another reader")
	const target = "/agents?limit=1"
	for what, change := range map[string]func(map[string]any){
		"with another typ": setMember("typ", "agora"), "with an unknown member": setMember("type", "REQUEST"),
		"with a nonce that is too short":         setMember("nonce", "0123456789abcde"),
		"with a nonce that is too long":          setMember("nonce", strings.Repeat("a", 65)),
		"with an invalid character in the nonce": setMember("nonce", "0123456789abcde+"),
		"without a nonce":                        func(t map[string]any) { delete(t, "nonce") },
		"with a number as nonce":                 setMember("nonce", 1234567890123456),
		"with the did of another reader":         setMember("did", other.DID()),
		"with a did that is not a did:key":       setMember("did", "did:web:relay.example"),
	} {
		p.checkUnauthorized(p.read("a token "+what, reader, target, change))
	}
	good := func() string { return p.token(reader, target) }
	for what, values := range map[string][]string{
		"two Authorization headers": {"Agora " + good(), "Agora " + good()},
		"base64url padding":         {"Agora " + good() + "="}, "another scheme": {"Bearer " + good()},
		"the scheme without a token": {"Agora"}, "an empty Authorization": {""},
	} {
		p.checkUnauthorized(
			p.Call("a read with "+what, http.MethodGet, target, http.Header{"Authorization": values}, nil, 0))
	}
	for _, path := range []string{"/events" + kit.Query("cursor", "0", "timeout", "0", "type", "RESULT"),
		"/threads/" + kit.NewID("thread"), "/agents/" + reader.DID()} {
		p.checkUnauthorized(
			p.Call("a read with a malformed token", http.MethodGet, path, http.Header{"Authorization": {"Agora x"}},
				nil, 0),
		)
	}
}

func hiddenEvents(p *relayProbe) {
	const hold = 4 * time.Second
	client, agent := p.Actor("a client"), p.Actor("an agent")
	m := p.Request(client, agent)
	var held []*poller
	for _, pair := range [][2]string{{"thread", m["thread"].(map[string]any)["id"].(string)},
		{"sender", client.DID()}} {
		poll := &poller{done: make(chan struct{})}
		target := "/events" + kit.Query("cursor", "0", pair[0], pair[1], "timeout", "4")
		p.Tasks.Go(func() {
			defer close(poll.done)
			poll.answer = p.Call("", http.MethodGet, target, withoutToken(), nil, hold)
		})
		held = append(held, poll)
	}
	p.Sleep(time.Second / 2)
	p.PostAccepted(client, m)
	for _, poll := range held {
		a := poll.wait()
		p.CheckEvents(p.CheckPage(a))
		p.checkHeld(a.Took, hold) // the post was made while the poll was held
	}
}

func encryptedCursors(p *relayProbe) {
	reader, client := p.Actor("a reader"), p.Actor("a client")
	target := p.inboxTarget(reader)
	first, second := p.read("", reader, target), p.read("", reader, target)
	p.Expect("another cursor than %s for the same position", first.Text("cursor"))
	if first.Text("cursor") == "" || first.Text("cursor") == second.Text("cursor") {
		p.Failf("%s", second)
	}
	sent := p.PostAccepted(client, p.Request(client, reader))
	for _, cursor := range []string{first.Text("cursor"), second.Text("cursor")} {
		p.CheckEvents(
			p.CheckPage(
				p.read("", reader, "/events"+kit.Query("cursor", cursor, "timeout", "0", "recipient", reader.DID()))),
			sent,
		)
	}
}
