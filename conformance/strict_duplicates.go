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

// duplicateChecks test retries, which are safe, and the reuse of an id for another message, which is refused.
var duplicateChecks = []relayCheck{
	{Number: "S-50",
		Title: "A retry of the same message is answered with 200 and duplicate true, and the message is stored once",
		Cites: duplicates, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			signed := p.request(client, agent).sign(client)
			p.checkDuplicate(p.post("a REQUEST for the first time", signed.body), signed, false)
			p.checkDuplicate(p.post("the same bytes again", signed.body), signed, true)
			p.checkDuplicate(p.post("the same message again, indented", []byte(indented(string(signed.body)))), signed,
				true)
			p.checkDuplicate(
				p.post("the same message again, inside {\"envelope\":…}",
					[]byte(`{"envelope":`+string(signed.body)+`}`)),
				signed,
				true,
			)
			p.checkInbox(agent, signed)
		}},
	{Number: "S-51", Title: "A retry is recognized before the thread rules are applied",
		Cites: duplicates, run: func(p *relayProbe) {
			t := p.conversation()
			messages := t.play("c.REQUEST>a a.OFFER c.ACCEPT>a a.RESULT")
			for _, signed := range messages {
				p.checkDuplicate(p.post("a retry of "+signed.what+", after the whole conversation", signed.body),
					signed, true)
			}
			p.checkInbox(t.actors["a"], messages[0], messages[2])
		}},
	{Number: "S-52", Title: "A different message with a used id is refused with 409 DUPLICATE_ID, and never delivered",
		Cites: duplicates, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			first := p.postAccepted(client, p.request(client, agent))
			for range 2 {
				again := p.request(client, agent)
				again["id"] = first.id
				p.postRefused(duplicateID, "a different REQUEST with an id that its sender has used",
					again.sign(client).body)
			}
			p.checkInbox(agent, first)
		}},
	{Number: "S-53", Title: "Messages from different senders may have the same id, and none blocks or replaces another",
		Cites: duplicates, run: func(p *relayProbe) {
			agent := p.actor("an agent")
			var sent []signedMessage
			id := newID("msg")
			for _, name := range []string{"a client", "another client", "a third client"} {
				client := p.actor(name)
				m := p.request(client, agent)
				m["id"] = id
				signed := m.sign(client)
				signed.what += " with the same id as messages of other senders"
				p.checkDuplicate(p.post(signed.what, signed.body), signed, false)
				sent = append(sent, signed)
			}
			events := p.inbox(agent)
			p.expect("three events with the id %s, one from each sender", id)
			senders := map[string]bool{}
			for _, e := range events {
				senders[e.object("sender").text("id")] = true
			}
			if len(events) != len(sent) || len(senders) != len(sent) {
				p.failf("%d events from %d senders", len(events), len(senders))
			}
		}},
	{Number: "S-54", Title: "The id of a refused message is not remembered",
		Cites: duplicates + "; §4 (a refused message is not stored, its id not remembered)", run: func(p *relayProbe) {
			t := p.conversation()
			t.play("c.REQUEST a.OFFER")
			early := t.signed("a.RESULT")
			p.postRefused(wrongState, "a RESULT before the ACCEPT", early.body)
			t.play("c.ACCEPT>a")
			early.what = "the same RESULT, after the ACCEPT"
			p.checkDuplicate(p.post(early.what, early.body), early, false)
		}},
	{Number: "S-55", Title: "An id is still remembered after its message has expired",
		Cites: duplicates + " (30 minutes, through TTL purge)", wait: 7 * second, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			m := p.request(client, agent)
			expiringSoon(m)
			first := p.postAccepted(client, m)
			p.sleep(7 * second)
			again := p.request(client, agent)
			again["id"] = first.id
			p.postRefused(duplicateID, "a different REQUEST with the id of an expired one", again.sign(client).body)
			p.postRefused(refused(http.StatusBadRequest, envelope.CodeExpired), "the expired REQUEST again, unchanged",
				first.body)
		}},
}

// checkDuplicate ends the check unless the message was accepted and its receipt has the member duplicate with this
// value.
func (p *relayProbe) checkDuplicate(a answer, signed signedMessage, want bool) {
	p.checkAccepted(a, signed)
	p.expect(`"duplicate":%v`, want)
	if got, present := a.flag("duplicate"); !present || got != want {
		p.failf("%s", a)
	}
}

// raceChecks test concurrent posts and large numbers of posts.
var raceChecks = []relayCheck{
	{Number: "S-56",
		Title: "If a message is posted many times at once, one receipt has duplicate false and it is stored once",
		Cites: duplicates, run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			signed := p.request(client, agent).sign(client)
			first := 0
			for _, a := range p.postConcurrently(12, func(int) signedMessage { return signed }) {
				p.describe("POST /events with the same REQUEST, 12 times at once")
				p.checkAccepted(a, signed)
				if again, _ := a.flag("duplicate"); !again {
					first++
				}
			}
			p.expect("one receipt with duplicate false, and 11 with duplicate true")
			if first != 1 {
				p.failf("%d receipts have duplicate false", first)
			}
			p.checkInbox(agent, signed)
		}},
	{Number: "S-57", Title: "If several ACCEPTs are posted at once, exactly one is accepted",
		Cites: "PROTOCOL §4 (two ACCEPTs that race)", run: func(p *relayProbe) {
			t := p.conversation()
			t.play("c.REQUEST a.OFFER b.OFFER")
			answers := p.postConcurrently(8,
				func(i int) signedMessage { return t.signed([]string{"c.ACCEPT>a", "c.ACCEPT>b"}[i%2]) })
			p.describe("POST /events with 8 ACCEPTs at once, for the offers of two agents")
			won := 0
			for _, a := range answers {
				if ok, _ := a.ok(); ok {
					won++
					continue
				}
				p.checkRefused(a, wrongState)
			}
			p.expect("exactly one ACCEPT is accepted")
			if won != 1 {
				p.failf("%d ACCEPTs are accepted", won)
			}
		}},
	{Number: "S-58", Title: "A thread accepts 100 OFFERs, and refuses the next one with RATE_LIMITED and Retry-After",
		Cites: "PROTOCOL §4 (PENDING, OFFER)", wait: second, run: offerLimit},
	{Number: "S-59", Title: "Every message that was answered with 200 is delivered",
		Cites: "PROTOCOL §5 (a 200 means: on disk, and it will be delivered)", run: func(p *relayProbe) {
			client, agent := p.actor("a client"), p.actor("an agent")
			messages := make([]signedMessage, 60)
			for i := range messages {
				m := p.request(client, agent)
				m["ts"] = formatTime(p.now().Add(time.Duration(i) * time.Millisecond))
				messages[i] = m.sign(client)
			}
			for i, a := range p.postConcurrently(len(messages), func(i int) signedMessage { return messages[i] }) {
				p.checkAccepted(a, messages[i])
			}
			p.describe("GET /events for the recipient of 60 REQUESTs that were all accepted")
			p.checkInbox(agent, messages...)
		}},
}

// postConcurrently posts n messages, up to eight at a time, and returns the answers in the order of the messages.
func (p *relayProbe) postConcurrently(n int, messageOf func(i int) signedMessage) []answer {
	messages := make([]signedMessage, n)
	for i := range messages {
		messages[i] = messageOf(i)
	}
	answers := make([]answer, n)
	slots := make(chan struct{}, 8)
	var posts sync.WaitGroup
	for i, signed := range messages {
		slots <- struct{}{}
		posts.Go(func() {
			defer func() { <-slots }()
			answers[i] = p.post(signed.what, signed.body)
		})
	}
	posts.Wait()
	return answers
}

func offerLimit(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST")
	var messages []signedMessage
	for range 100 {
		messages = append(messages, t.signed("a.OFFER"))
	}
	for i, a := range p.postConcurrently(len(messages), func(i int) signedMessage { return messages[i] }) {
		p.describe("POST /events with 100 OFFERs from one agent in one thread")
		p.checkAccepted(a, messages[i])
	}
	a := p.postRefused(refused(http.StatusTooManyRequests, envelope.CodeRateLimited), "the 101st OFFER in a thread",
		t.signed("b.OFFER").body)
	p.expect("a Retry-After header, and retryable true")
	if retryable, _ := a.flag("retryable"); !retryable || a.header.Get("Retry-After") == "" {
		p.failf("Retry-After is %q: %s", a.header.Get("Retry-After"), a)
	}
}
