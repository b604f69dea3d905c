package conformance

import (
	"bytes"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

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
		Cites: privateReads, wait: 5 * second, run: ifPrivate(hiddenEvents)},
	{Number: "X-44",
		Title: "Two cursors for the same position differ, so that cursors do not reveal the number of hidden events",
		Cites: privateReads, run: ifPrivate(encryptedCursors)},
}

// ifPrivate returns a check that runs only if the relay has private reads. It passes for an open relay, because X-33
// tests the rule for open relays.
func ifPrivate(run func(*relayProbe)) func(*relayProbe) {
	return func(p *relayProbe) {
		if p.relay.signer.audience == "" {
			p.note("not applicable, because the relay is open")
			return
		}
		run(p)
	}
}

// withoutToken returns the header of a read that relayClient does not sign.
func withoutToken() http.Header { return http.Header{"Authorization": nil} }

func unauthorized() refusal {
	return refused(http.StatusUnauthorized, envelope.CodeUnauthorized)
}

// read sends a read with a token of reader. The changes are made to the token before it is signed. If reader is the
// zero actor, the read has no token.
func (p *relayProbe) read(what string, reader actor, target string, changes ...func(map[string]any)) answer {
	header := withoutToken()
	if reader.name != "" {
		header.Set("Authorization", "Agora "+p.token(reader, target, changes...))
		what = strings.TrimPrefix(what+", signed by "+reader.name, ", ")
	}
	return p.call(what, http.MethodGet, target, header, nil, 0)
}

// token returns a token for a GET of target. The changes are made before it is signed.
func (p *relayProbe) token(reader actor, target string, changes ...func(map[string]any)) string {
	full, err := url.Parse(p.relay.baseURL + target)
	if err != nil {
		panic(err) // cannot happen: the checks give valid targets
	}
	token := map[string]any{
		"typ":    envelope.ReadType,
		"did":    reader.did(),
		"aud":    p.relay.signer.audience,
		"method": http.MethodGet,
		"target": full.RequestURI(),
		"ts":     formatTime(p.now()),
		"nonce":  envelope.NewNonce(),
	}
	for _, change := range changes {
		change(token)
	}
	delete(token, "sig")
	signature, err := reader.key.Sign(canonical(token))
	if err != nil {
		panic(err) // cannot happen: actor has generated the key
	}
	token["sig"] = base64.RawURLEncoding.EncodeToString(signature)
	return base64.RawURLEncoding.EncodeToString(canonical(token))
}

func setMember(name string, value any) func(map[string]any) {
	return func(token map[string]any) { token[name] = value }
}

// checkUnauthorized ends the check unless a is a 401 with the right error and the header WWW-Authenticate.
func (p *relayProbe) checkUnauthorized(a answer) {
	p.checkRefused(a, unauthorized())
	p.expect("WWW-Authenticate: Agora")
	if scheme, _, _ := strings.Cut(a.header.Get("WWW-Authenticate"), " "); !strings.EqualFold(scheme, "Agora") {
		p.failf("WWW-Authenticate: %q", a.header.Get("WWW-Authenticate"))
	}
}

func (p *relayProbe) inboxTarget(of actor, pairs ...string) string {
	return "/events" + query(append([]string{"cursor", "0", "timeout", "0", "recipient", of.did()}, pairs...)...)
}

func authorizationHeader(p *relayProbe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	sent := p.postAccepted(client, p.request(client, agent))
	target := p.inboxTarget(agent)
	header := http.Header{"Authorization": {"Agora !"}}
	a := p.call("a read with a malformed Authorization", http.MethodGet, target, header, nil, 0)
	if p.relay.signer.audience != "" {
		p.checkUnauthorized(a)
		p.checkUnauthorized(p.read("a read without a token", actor{}, target))
		return
	}
	p.checkEvents(p.checkPage(a), sent)
}

func inboxOwner(p *relayProbe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	sent := p.postAccepted(client, p.request(client, agent))
	target := p.inboxTarget(agent)
	p.checkEvents(p.checkPage(p.read("", agent, target)), sent)
	p.checkUnauthorized(p.read("", actor{}, target))
	p.checkUnauthorized(p.read("", client, target))
	p.checkUnauthorized(p.read("a read with broadcast=true", client, p.inboxTarget(agent, "broadcast", "true")))
}

func withoutRecipient(p *relayProbe) {
	client, agent, stranger := p.actor("a client"), p.actor("an agent"), p.actor("a stranger")
	open := p.postAccepted(client, p.request(client, actor{}))
	direct := p.postAccepted(client, p.request(client, agent))
	target := "/events" + query("cursor", "0", "timeout", "0", "sender", client.did())
	p.checkEvents(p.checkPage(p.read("", actor{}, target)), open)
	p.checkEvents(p.checkPage(p.read("", stranger, target)), open)
	p.checkEvents(p.checkPage(p.read("", agent, target)), open, direct)
	p.checkEvents(p.checkPage(p.read("", client, target)), open, direct)
	p.checkEvents(
		p.checkPage(
			p.read("", stranger, "/events"+query("since", p.hourAgo(), "timeout", "0", "sender", client.did()))),
		open,
	)
}

// checkSameAnswer ends the check unless the answer a is the same as absent, the one for something that does not exist. The
// header Date may differ.
func (p *relayProbe) checkSameAnswer(a, absent answer) {
	p.expect("the same answer as for what does not exist: %s", absent)
	header, other := a.header.Clone(), absent.header.Clone()
	header.Del("Date")
	other.Del("Date")
	same := maps.EqualFunc(header, other,
		func(x, y []string) bool { return strings.Join(x, "\n") == strings.Join(y, "\n") })
	if a.status != absent.status || !bytes.Equal(a.body, absent.body) || !same {
		p.failf("%s with the header %v instead of %v", a, header, other)
	}
}

func hiddenThread(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST a.OFFER c.ACCEPT>a")
	for _, name := range []string{"c", "a"} {
		p.checkClient(p.read("", t.actors[name], "/threads/"+t.thread), t.actors["c"])
	}
	for _, reader := range []actor{{}, t.actors["s"]} {
		absent := p.read("", reader, "/threads/"+newID("thread"))
		p.checkRefused(absent, noThread)
		p.checkSameAnswer(p.read("", reader, "/threads/"+t.thread), absent)
		p.checkSameAnswer(p.read("", reader, "/threads/"+t.thread+query("client", t.actors["c"].did())), absent)
	}
}

func hiddenThreadPosts(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST>a a.OFFER")
	for _, move := range []string{"s.OFFER", "s.ACCEPT>a", "s.RESULT", "s.ERROR", "s.CANCEL"} {
		m, _ := t.message(move)
		set("thread.id", newID("thread"))(m)
		other := m.sign(t.actors["s"])
		absent := p.post(other.what+", but with the id of a thread that does not exist", other.body)
		p.checkRefused(absent, noThread)
		actual := t.signed(move)
		p.checkSameAnswer(p.post(actual.what, actual.body), absent)
	}
}

func competingOffers(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST a.OFFER b.OFFER")
	for _, name := range []string{"a", "b"} {
		a := p.read("", t.actors[name], "/threads/"+t.thread)
		p.expect("the thread with two events and only the offer of the reader")
		events, _ := eventsOf(a)
		offers, _ := a.object("thread").list("offers")
		if a.status != 200 || len(offers) != 1 || !bytes.Contains(offers[0], []byte(t.actors[name].did())) ||
			len(events) != 2 {
			p.failf("%s", a)
		}
	}
	t.play("c.ACCEPT>a")
	p.checkRefused(p.read("", t.actors["b"], "/threads/"+t.thread), noThread)
}

func tokenScope(p *relayProbe) {
	reader := p.actor("a reader")
	target := p.inboxTarget(reader)
	for what, change := range map[string]func(map[string]any){
		"a token for another relay":  setMember("aud", "https://relay.invalid"),
		"a token for another method": setMember("method", "POST"),
		"a token for another path":   setMember("target", "/agents"),
		"a token for the same query in another order": setMember("target",
			strings.Replace(target, "cursor=0&timeout=0", "timeout=0&cursor=0", 1)),
		"a token for a part of the query": setMember("target",
			strings.TrimSuffix(target, reader.did()[len(reader.did())-1:])),
	} {
		p.checkUnauthorized(p.read(what, reader, target, change))
	}
	p.checkPage(p.read("", reader, target))
}

func tokenTime(p *relayProbe) {
	reader := p.actor("a reader")
	target := p.inboxTarget(reader)
	for _, off := range []time.Duration{-65 * time.Second, 65 * time.Second, -time.Hour, 10 * 365 * 24 * time.Hour} {
		p.checkUnauthorized(
			p.read("a token with a ts that is off by "+off.String(), reader, target,
				setMember("ts", formatTime(p.now().Add(off)))),
		)
	}
	p.checkUnauthorized(p.read("a token whose ts is not a time", reader, target, setMember("ts", "now")))
	p.checkPage(
		p.read("a token with a ts 50s in the future", reader, target,
			setMember("ts", formatTime(p.now().Add(50*time.Second)))),
	)
}

func tokenReuse(p *relayProbe) {
	reader, other := p.actor("a reader"), p.actor("another reader")
	target, nonce := "/agents?limit=1", envelope.NewNonce()
	token := http.Header{"Authorization": {"Agora " + p.token(reader, target, setMember("nonce", nonce))}}
	p.expect("status 200")
	if a := p.call("", http.MethodGet, target, token, nil, 0); a.status != 200 {
		p.failf("%s", a)
	}
	p.checkUnauthorized(p.call("the same token again", http.MethodGet, target, token, nil, 0))
	p.checkUnauthorized(
		p.read("another token with the same nonce", reader, target, setMember("nonce", nonce),
			setMember("ts", formatTime(p.now().Add(time.Second)))),
	)
	p.expect("status 200, because nonces of another reader do not count")
	if a := p.read("", other, target, setMember("nonce", nonce)); a.status != 200 {
		p.failf("%s", a)
	}
}

func malformedTokens(p *relayProbe) {
	reader, other := p.actor("a reader"), p.actor("another reader")
	const target = "/agents?limit=1"
	for what, change := range map[string]func(map[string]any){
		"with another typ": setMember("typ", "agora"), "with an unknown member": setMember("type", "REQUEST"),
		"with a nonce that is too short":         setMember("nonce", "0123456789abcde"),
		"with a nonce that is too long":          setMember("nonce", strings.Repeat("a", 65)),
		"with an invalid character in the nonce": setMember("nonce", "0123456789abcde+"),
		"without a nonce":                        func(t map[string]any) { delete(t, "nonce") },
		"with a number as nonce":                 setMember("nonce", 1234567890123456),
		"with the did of another reader":         setMember("did", other.did()),
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
			p.call("a read with "+what, http.MethodGet, target, http.Header{"Authorization": values}, nil, 0))
	}
	for _, path := range []string{"/events" + query("cursor", "0", "timeout", "0", "type", "RESULT"),
		"/threads/" + newID("thread"), "/agents/" + reader.did()} {
		p.checkUnauthorized(
			p.call("a read with a malformed token", http.MethodGet, path, http.Header{"Authorization": {"Agora x"}},
				nil, 0),
		)
	}
}

func hiddenEvents(p *relayProbe) {
	const hold = 4 * time.Second
	client, agent := p.actor("a client"), p.actor("an agent")
	m := p.request(client, agent)
	var held []*poller
	for _, pair := range [][2]string{{"thread", m["thread"].(map[string]any)["id"].(string)},
		{"sender", client.did()}} {
		poll := &poller{done: make(chan struct{})}
		target := "/events" + query("cursor", "0", pair[0], pair[1], "timeout", "4")
		p.tasks.Go(func() {
			defer close(poll.done)
			poll.answer = p.call("", http.MethodGet, target, withoutToken(), nil, hold)
		})
		held = append(held, poll)
	}
	p.sleep(second / 2)
	p.postAccepted(client, m)
	for _, poll := range held {
		a := poll.wait()
		p.checkEvents(p.checkPage(a))
		p.checkHeld(a.took, hold) // the post was made while the poll was held
	}
}

func encryptedCursors(p *relayProbe) {
	reader, client := p.actor("a reader"), p.actor("a client")
	target := p.inboxTarget(reader)
	first, second := p.read("", reader, target), p.read("", reader, target)
	p.expect("another cursor than %s for the same position", first.text("cursor"))
	if first.text("cursor") == "" || first.text("cursor") == second.text("cursor") {
		p.failf("%s", second)
	}
	sent := p.postAccepted(client, p.request(client, reader))
	for _, cursor := range []string{first.text("cursor"), second.text("cursor")} {
		p.checkEvents(
			p.checkPage(
				p.read("", reader, "/events"+query("cursor", cursor, "timeout", "0", "recipient", reader.did()))),
			sent,
		)
	}
}
