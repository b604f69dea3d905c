package conformance

import (
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

const duplicates = "PROTOCOL §3"

var (
	duplicateID = refused(http.StatusConflict, envelope.CodeDuplicateID)
	wrongState  = refused(http.StatusConflict, envelope.CodeInvalidTransition)
	forbidden   = refused(http.StatusForbidden, envelope.CodeForbidden)
	noThread    = refused(http.StatusNotFound, envelope.CodeThreadNotFound)
)

// duplicateChecks are about retries, which are safe, and about ids used twice, which are not.
var duplicateChecks = []Check{
	{Number: "S-50", Title: "A retry of the same message is answered 200 with duplicate true, and stored once", Cites: duplicates, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		l := p.request(client, agent).sign(client)
		p.duplicate(p.post("a REQUEST for the first time", l.body), l, false)
		p.duplicate(p.post("the same bytes again", l.body), l, true)
		p.duplicate(p.post("the same message again, indented", []byte(indented(string(l.body)))), l, true)
		p.duplicate(p.post("the same message again, wrapped", []byte(`{"envelope":`+string(l.body)+`}`)), l, true)
		p.arrives(agent, l)
	}},
	{Number: "S-51", Title: "A retry is recognized before the thread's rules are asked", Cites: duplicates, run: func(p *probe) {
		t := p.talk()
		letters := t.play("c.REQUEST>a a.OFFER c.ACCEPT>a a.RESULT")
		for _, l := range letters {
			p.duplicate(p.post("the retry of "+l.what+", after the whole conversation", l.body), l, true)
		}
		p.arrives(t.who["a"], letters[0], letters[2])
	}},
	{Number: "S-52", Title: "An id used again with other content is 409 DUPLICATE_ID, and delivered never", Cites: duplicates, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		first := p.accept(client, p.request(client, agent))
		for range 2 {
			again := p.request(client, agent)
			again["id"] = first.id
			p.refuse(duplicateID, "another REQUEST under an id its sender has used", again.sign(client).body)
		}
		p.arrives(agent, first)
	}},
	{Number: "S-53", Title: "Another sender's equal id neither blocks nor replaces a message", Cites: duplicates, run: func(p *probe) {
		agent := p.actor("an agent")
		var sent []letter
		id := newID("msg")
		for _, name := range []string{"a client", "another client", "a third client"} {
			client := p.actor(name)
			m := p.request(client, agent)
			m["id"] = id
			l := m.sign(client)
			l.what += " with the id the others use"
			p.duplicate(p.post(l.what, l.body), l, false)
			sent = append(sent, l)
		}
		events := p.inbox(agent)
		p.expect("three events with the id %s, one of each sender", id)
		senders := map[string]bool{}
		for _, e := range events {
			senders[e.object("sender").text("id")] = true
		}
		if len(events) != len(sent) || len(senders) != len(sent) {
			p.failf("%d events of %d senders", len(events), len(senders))
		}
	}},
	{Number: "S-54", Title: "A refused message's id is not remembered", Cites: duplicates + "; §4 (a refused message is not stored, its id not remembered)", run: func(p *probe) {
		t := p.talk()
		t.play("c.REQUEST a.OFFER")
		early := t.letter("a.RESULT")
		p.refuse(wrongState, "a RESULT before the ACCEPT", early.body)
		t.play("c.ACCEPT>a")
		early.what = "the same RESULT, after the ACCEPT"
		p.duplicate(p.post(early.what, early.body), early, false)
	}},
	{Number: "S-55", Title: "An id is remembered beyond its message's expiry", Cites: duplicates + " (30 minutes, through TTL purge)", wait: 7 * second, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		m := p.request(client, agent)
		dying(m)
		first := p.accept(client, m)
		p.sleep(7 * second)
		again := p.request(client, agent)
		again["id"] = first.id
		p.refuse(duplicateID, "another REQUEST under the id of one that has expired", again.sign(client).body)
		p.refuse(refused(http.StatusBadRequest, envelope.CodeExpired), "the expired REQUEST again, unchanged", first.body)
	}},
}

// duplicate judges a receipt: accepted, and marked as a duplicate or as new.
func (p *probe) duplicate(a answer, l letter, want bool) {
	p.accepted(a, l)
	p.expect(`"duplicate":%v`, want)
	if got, said := a.flag("duplicate"); !said || got != want {
		p.failf("%s", a)
	}
}

// raceChecks are about many at once, and many at all.
var raceChecks = []Check{
	{Number: "S-56", Title: "Of retries that race exactly one is no duplicate, and the message is stored once", Cites: duplicates, run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		l := p.request(client, agent).sign(client)
		first := 0
		for _, a := range p.race(12, func(int) letter { return l }) {
			p.sending("the same REQUEST, 12 times at once")
			p.accepted(a, l)
			if again, _ := a.flag("duplicate"); !again {
				first++
			}
		}
		p.expect("one receipt with duplicate false, 11 with true")
		if first != 1 {
			p.failf("%d with duplicate false", first)
		}
		p.arrives(agent, l)
	}},
	{Number: "S-57", Title: "Of two ACCEPTs that race exactly one is accepted", Cites: "PROTOCOL §4 (two ACCEPTs that race)", run: func(p *probe) {
		t := p.talk()
		t.play("c.REQUEST a.OFFER b.OFFER")
		answers := p.race(8, func(i int) letter { return t.letter([]string{"c.ACCEPT>a", "c.ACCEPT>b"}[i%2]) })
		p.sending("8 ACCEPTs at once for the offers of two agents")
		won := 0
		for _, a := range answers {
			if ok, _ := a.ok(); ok {
				won++
				continue
			}
			p.refused(a, wrongState)
		}
		p.expect("one of them is accepted")
		if won != 1 {
			p.failf("%d are accepted", won)
		}
	}},
	{Number: "S-58", Title: "A thread takes 100 OFFERs, and then answers RATE_LIMITED with Retry-After", Cites: "PROTOCOL §4 (PENDING, OFFER)", wait: second, run: offerLimit},
	{Number: "S-59", Title: "What was answered with 200 is delivered, every one of it", Cites: "PROTOCOL §5 (a 200 means: on disk, and it will be delivered)", run: func(p *probe) {
		client, agent := p.actor("a client"), p.actor("an agent")
		letters := make([]letter, 60)
		for i := range letters {
			m := p.request(client, agent)
			m["ts"] = stamp(p.now().Add(time.Duration(i) * time.Millisecond))
			letters[i] = m.sign(client)
		}
		for i, a := range p.race(len(letters), func(i int) letter { return letters[i] }) {
			p.accepted(a, letters[i])
		}
		p.sending("GET /events for the recipient of 60 REQUESTs that were all accepted")
		p.arrives(agent, letters...)
	}},
}

// race posts so many letters, up to eight at a time, and returns the answers in their order.
func (p *probe) race(n int, letterOf func(i int) letter) []answer {
	letters := make([]letter, n)
	for i := range letters {
		letters[i] = letterOf(i)
	}
	answers := make([]answer, n)
	slots := make(chan struct{}, 8)
	var posts sync.WaitGroup
	for i, l := range letters {
		slots <- struct{}{}
		posts.Go(func() {
			defer func() { <-slots }()
			answers[i] = p.post(l.what, l.body)
		})
	}
	posts.Wait()
	return answers
}

func offerLimit(p *probe) {
	t := p.talk()
	t.play("c.REQUEST")
	var letters []letter
	for range 100 {
		letters = append(letters, t.letter("a.OFFER"))
	}
	for i, a := range p.race(len(letters), func(i int) letter { return letters[i] }) {
		p.sending("100 OFFERs of one agent in one thread")
		p.accepted(a, letters[i])
	}
	a := p.refuse(refused(http.StatusTooManyRequests, envelope.CodeRateLimited), "the 101st OFFER of a thread", t.letter("b.OFFER").body)
	p.expect("Retry-After, and retryable true")
	if retryable, _ := a.flag("retryable"); !retryable || a.header.Get("Retry-After") == "" {
		p.failf("Retry-After is %q: %s", a.header.Get("Retry-After"), a)
	}
}
