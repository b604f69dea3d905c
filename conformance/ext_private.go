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

// privateChecks are about reads that are signed. Where a relay is open, they ask that it stays so, whoever signs.
var privateChecks = []Check{
	{Number: "X-33", Title: "An open relay refuses no read for its Authorization; another says 401 UNAUTHORIZED with WWW-Authenticate: Agora", Cites: privateReads, run: authorizationHeader},
	{Number: "X-34", Title: "An inbox is shown to its owner only", Cites: privateReads, run: whereSigned(ownInbox)},
	{Number: "X-35", Title: "Without recipient one sees broadcasts, and what one has sent or is to get", Cites: privateReads, run: whereSigned(withoutRecipient)},
	{Number: "X-36", Title: "A thread that one may not see answers like one that does not exist", Cites: privateReads, run: whereSigned(hiddenThread)},
	{Number: "X-37", Title: "Posting to a thread that one has no part in tells no more than posting to none", Cites: privateReads, run: whereSigned(hiddenFromPosts)},
	{Number: "X-38", Title: "An agent that offers sees its own offer, not another's, and nothing once another is chosen", Cites: privateReads, run: whereSigned(bidders)},
	{Number: "X-39", Title: "A token is for one relay, method and target", Cites: privateReads, run: whereSigned(tokensElsewhere)},
	{Number: "X-40", Title: "A token is for its minute", Cites: privateReads, run: whereSigned(tokensInTime)},
	{Number: "X-41", Title: "A token is taken once, and so is a nonce of one reader", Cites: privateReads, run: whereSigned(tokensOnce)},
	{Number: "X-42", Title: "A malformed, forged or second token is refused, also where none is needed", Cites: privateReads, run: whereSigned(tokensStrictly)},
	{Number: "X-43", Title: "A poll is not answered because of what it may not see", Cites: privateReads, wait: 5 * second, run: whereSigned(invisibleNews)},
	{Number: "X-44", Title: "Cursors of one place differ, and do not count", Cites: privateReads, run: whereSigned(sealedCursors)},
}

// whereSigned runs a check where reads are signed. An open relay has nothing to be asked: its rule is X-33.
func whereSigned(run func(*probe)) func(*probe) {
	return func(p *probe) {
		if p.relay.signing.audience == "" {
			p.note("the relay is open")
			return
		}
		run(p)
	}
}

// unsigned is the header of a read that the kit leaves alone.
func unsigned() http.Header { return http.Header{"Authorization": nil} }

func unauthorized() refusal {
	return refused(http.StatusUnauthorized, envelope.CodeUnauthorized)
}

// read makes a read as reader, with the token changed by these; the zero actor is nobody.
func (p *probe) read(what string, reader actor, target string, changes ...func(map[string]any)) answer {
	header := unsigned()
	if reader.name != "" {
		header.Set("Authorization", "Agora "+p.token(reader, target, changes...))
		what = strings.TrimPrefix(what+", signed by "+reader.name, ", ")
	}
	return p.call(what, http.MethodGet, target, header, nil, 0)
}

// token returns a token for a GET of target, changed before it is signed.
func (p *probe) token(reader actor, target string, changes ...func(map[string]any)) string {
	full, err := url.Parse(p.relay.base + target)
	if err != nil {
		panic(err) // the targets are ours
	}
	token := map[string]any{"typ": envelope.ReadType, "did": reader.did(), "aud": p.relay.signing.audience, "method": http.MethodGet,
		"target": full.RequestURI(), "ts": stamp(p.now()), "nonce": envelope.NewNonce()}
	for _, change := range changes {
		change(token)
	}
	delete(token, "sig")
	signature, err := reader.key.Sign(canonical(token))
	if err != nil {
		panic(err) // the keys are ours
	}
	token["sig"] = base64.RawURLEncoding.EncodeToString(signature)
	return base64.RawURLEncoding.EncodeToString(canonical(token))
}

func with(name string, value any) func(map[string]any) {
	return func(token map[string]any) { token[name] = value }
}

// notSigned judges a 401.
func (p *probe) notSigned(a answer) {
	p.refused(a, unauthorized())
	p.expect("WWW-Authenticate: Agora")
	if scheme, _, _ := strings.Cut(a.header.Get("WWW-Authenticate"), " "); !strings.EqualFold(scheme, "Agora") {
		p.failf("WWW-Authenticate: %q", a.header.Get("WWW-Authenticate"))
	}
}

func (p *probe) inboxTarget(of actor, pairs ...string) string {
	return "/events" + query(append([]string{"cursor", "0", "timeout", "0", "recipient", of.did()}, pairs...)...)
}

func authorizationHeader(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	sent := p.accept(client, p.request(client, agent))
	target := p.inboxTarget(agent)
	header := http.Header{"Authorization": {"Agora !"}}
	a := p.call("with a malformed Authorization", http.MethodGet, target, header, nil, 0)
	if p.relay.signing.audience != "" {
		p.notSigned(a)
		p.notSigned(p.read("without a token", actor{}, target))
		return
	}
	p.delivers(p.page(a), sent)
}

func ownInbox(p *probe) {
	client, agent := p.actor("a client"), p.actor("an agent")
	sent := p.accept(client, p.request(client, agent))
	target := p.inboxTarget(agent)
	p.delivers(p.page(p.read("", agent, target)), sent)
	p.notSigned(p.read("", actor{}, target))
	p.notSigned(p.read("", client, target))
	p.notSigned(p.read("and broadcasts", client, p.inboxTarget(agent, "broadcast", "true")))
}

func withoutRecipient(p *probe) {
	client, agent, stranger := p.actor("a client"), p.actor("an agent"), p.actor("a stranger")
	open := p.accept(client, p.request(client, actor{}))
	direct := p.accept(client, p.request(client, agent))
	target := "/events" + query("cursor", "0", "timeout", "0", "sender", client.did())
	p.delivers(p.page(p.read("", actor{}, target)), open)
	p.delivers(p.page(p.read("", stranger, target)), open)
	p.delivers(p.page(p.read("", agent, target)), open, direct)
	p.delivers(p.page(p.read("", client, target)), open, direct)
	p.delivers(p.page(p.read("", stranger, "/events"+query("since", p.hour(), "timeout", "0", "sender", client.did()))), open)
}

// sameAs ends the check unless two answers are the same but for their time.
func (p *probe) sameAs(a, none answer) {
	p.expect("the same answer as for a thread that does not exist: %s", none)
	header, other := a.header.Clone(), none.header.Clone()
	header.Del("Date")
	other.Del("Date")
	same := maps.EqualFunc(header, other, func(x, y []string) bool { return strings.Join(x, "\n") == strings.Join(y, "\n") })
	if a.status != none.status || !bytes.Equal(a.body, none.body) || !same {
		p.failf("%s with the header %v, not %v", a, header, other)
	}
}

func hiddenThread(p *probe) {
	t := p.talk()
	t.play("c.REQUEST a.OFFER c.ACCEPT>a")
	for _, name := range []string{"c", "a"} {
		p.ofClient(p.read("", t.who[name], "/threads/"+t.thread), t.who["c"])
	}
	for _, reader := range []actor{{}, t.who["s"]} {
		none := p.read("", reader, "/threads/"+newID("thread"))
		p.refused(none, noThread)
		p.sameAs(p.read("", reader, "/threads/"+t.thread), none)
		p.sameAs(p.read("", reader, "/threads/"+t.thread+query("client", t.who["c"].did())), none)
	}
}

func hiddenFromPosts(p *probe) {
	t := p.talk()
	t.play("c.REQUEST>a a.OFFER")
	for _, move := range []string{"s.OFFER", "s.ACCEPT>a", "s.RESULT", "s.ERROR", "s.CANCEL"} {
		m, _ := t.message(move)
		set("thread.id", newID("thread"))(m)
		none := m.sign(t.who["s"])
		absent := p.post(none.what+" (of no thread)", none.body)
		p.refused(absent, noThread)
		there := t.letter(move)
		p.sameAs(p.post(there.what, there.body), absent)
	}
}

func bidders(p *probe) {
	t := p.talk()
	t.play("c.REQUEST a.OFFER b.OFFER")
	for _, name := range []string{"a", "b"} {
		a := p.read("", t.who[name], "/threads/"+t.thread)
		p.expect("the thread with one offer, the reader's, and two events")
		events, _ := eventsOf(a)
		offers, _ := a.object("thread").list("offers")
		if a.status != 200 || len(offers) != 1 || !bytes.Contains(offers[0], []byte(t.who[name].did())) || len(events) != 2 {
			p.failf("%s", a)
		}
	}
	t.play("c.ACCEPT>a")
	p.refused(p.read("", t.who["b"], "/threads/"+t.thread), noThread)
}

func tokensElsewhere(p *probe) {
	reader := p.actor("a reader")
	target := p.inboxTarget(reader)
	for what, change := range map[string]func(map[string]any){
		"for another relay": with("aud", "https://relay.invalid"), "for another method": with("method", "POST"), "for another path": with("target", "/agents"),
		"for the same query in another order": with("target", strings.Replace(target, "cursor=0&timeout=0", "timeout=0&cursor=0", 1)),
		"for less of a query":                 with("target", strings.TrimSuffix(target, reader.did()[len(reader.did())-1:])),
	} {
		p.notSigned(p.read(what, reader, target, change))
	}
	p.page(p.read("", reader, target))
}

func tokensInTime(p *probe) {
	reader := p.actor("a reader")
	target := p.inboxTarget(reader)
	for _, off := range []time.Duration{-65 * time.Second, 65 * time.Second, -time.Hour, 10 * 365 * 24 * time.Hour} {
		p.notSigned(p.read("dated "+off.String()+" from now", reader, target, with("ts", stamp(p.now().Add(off)))))
	}
	p.notSigned(p.read("without a time", reader, target, with("ts", "now")))
	p.page(p.read("dated 50s ahead", reader, target, with("ts", stamp(p.now().Add(50*time.Second)))))
}

func tokensOnce(p *probe) {
	reader, other := p.actor("a reader"), p.actor("another reader")
	target, nonce := "/agents?limit=1", envelope.NewNonce()
	token := http.Header{"Authorization": {"Agora " + p.token(reader, target, with("nonce", nonce))}}
	p.expect("status 200")
	if a := p.call("", http.MethodGet, target, token, nil, 0); a.status != 200 {
		p.failf("%s", a)
	}
	p.notSigned(p.call("the same token", http.MethodGet, target, token, nil, 0))
	p.notSigned(p.read("another token with its nonce", reader, target, with("nonce", nonce), with("ts", stamp(p.now().Add(time.Second)))))
	p.expect("status 200: another reader has nonces of its own")
	if a := p.read("", other, target, with("nonce", nonce)); a.status != 200 {
		p.failf("%s", a)
	}
}

func tokensStrictly(p *probe) {
	reader, other := p.actor("a reader"), p.actor("another reader")
	const target = "/agents?limit=1"
	for what, change := range map[string]func(map[string]any){
		"of another typ": with("typ", "agora"), "with a member more": with("type", "REQUEST"), "with a short nonce": with("nonce", "0123456789abcde"),
		"with a long nonce": with("nonce", strings.Repeat("a", 65)), "with a nonce of other characters": with("nonce", "0123456789abcde+"),
		"without a nonce": func(t map[string]any) { delete(t, "nonce") }, "with a number for a nonce": with("nonce", 1234567890123456),
		"in another's name": with("did", other.did()), "in the name of no key": with("did", "did:web:relay.example"),
	} {
		p.notSigned(p.read("a token "+what, reader, target, change))
	}
	good := func() string { return p.token(reader, target) }
	for what, values := range map[string][]string{
		"two headers": {"Agora " + good(), "Agora " + good()}, "padding": {"Agora " + good() + "="}, "another scheme": {"Bearer " + good()},
		"nothing behind the scheme": {"Agora"}, "an empty header": {""},
	} {
		p.notSigned(p.call("with "+what, http.MethodGet, target, http.Header{"Authorization": values}, nil, 0))
	}
	for _, path := range []string{"/events" + query("cursor", "0", "timeout", "0", "type", "RESULT"), "/threads/" + newID("thread"), "/agents/" + reader.did()} {
		p.notSigned(p.call("with a malformed token", http.MethodGet, path, http.Header{"Authorization": {"Agora x"}}, nil, 0))
	}
}

func invisibleNews(p *probe) {
	const hold = 4 * time.Second
	client, agent := p.actor("a client"), p.actor("an agent")
	m := p.request(client, agent)
	var held []*poller
	for _, pair := range [][2]string{{"thread", m["thread"].(map[string]any)["id"].(string)}, {"sender", client.did()}} {
		l := &poller{done: make(chan struct{})}
		target := "/events" + query("cursor", "0", pair[0], pair[1], "timeout", "4")
		p.tasks.Go(func() {
			defer close(l.done)
			l.answer = p.call("", http.MethodGet, target, unsigned(), nil, hold)
		})
		held = append(held, l)
	}
	p.sleep(second / 2)
	p.accept(client, m)
	for _, l := range held {
		a := l.wait()
		p.delivers(p.page(a))
		p.held(a.took, hold) // whenever the post came meanwhile
	}
}

func sealedCursors(p *probe) {
	reader, client := p.actor("a reader"), p.actor("a client")
	target := p.inboxTarget(reader)
	first, second := p.read("", reader, target), p.read("", reader, target)
	p.expect("two cursors of one place that differ, the first %s", first.text("cursor"))
	if first.text("cursor") == "" || first.text("cursor") == second.text("cursor") {
		p.failf("%s", second)
	}
	sent := p.accept(client, p.request(client, reader))
	for _, cursor := range []string{first.text("cursor"), second.text("cursor")} {
		p.delivers(p.page(p.read("", reader, "/events"+query("cursor", cursor, "timeout", "0", "recipient", reader.did()))), sent)
	}
}
