package relay

import (
	"net/http"
	"sync"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

const duplicates = "PROTOCOL §3"

var (
	duplicateID = kit.Refused(http.StatusConflict, envelope.CodeDuplicateID)
	wrongState  = kit.Refused(http.StatusConflict, envelope.CodeInvalidTransition)
	forbidden   = kit.Refused(http.StatusForbidden, envelope.CodeForbidden)
	noThread    = kit.Refused(http.StatusNotFound, envelope.CodeThreadNotFound)
)

// duplicateChecks test retries, which are safe, and the reuse of an id for another message, which is refused.
var duplicateChecks = []relayCheck{
	{Number: "S-50",
		Title: "A retry of the same message is answered with 200 and duplicate true, and the message is stored once",
		Cites: duplicates, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			signed := p.Request(client, agent).Sign(client)
			p.checkDuplicate(p.Post("a REQUEST for the first time", signed.Body), signed, false)
			p.checkDuplicate(p.Post("the same bytes again", signed.Body), signed, true)
			p.checkDuplicate(p.Post("the same message again, indented", []byte(indented(string(signed.Body)))), signed,
				true)
			p.checkDuplicate(
				p.Post("the same message again, inside {\"envelope\":…}",
					[]byte(`{"envelope":`+string(signed.Body)+`}`)),
				signed,
				true,
			)
			p.CheckInbox(agent, signed)
		}},
	{Number: "S-51", Title: "A retry is recognized before the thread rules are applied",
		Cites: duplicates, run: func(p *relayProbe) {
			t := p.conversation()
			messages := t.play("c.REQUEST>a a.OFFER c.ACCEPT>a a.RESULT")
			for _, signed := range messages {
				p.checkDuplicate(p.Post("a retry of "+signed.What+", after the whole conversation", signed.Body),
					signed, true)
			}
			p.CheckInbox(t.actors["a"], messages[0], messages[2])
		}},
	{Number: "S-52", Title: "A different message with a used id is refused with 409 DUPLICATE_ID, and never delivered",
		Cites: duplicates, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			first := p.PostAccepted(client, p.Request(client, agent))
			for range 2 {
				again := p.Request(client, agent)
				again["id"] = first.ID
				p.PostRefused(duplicateID, "a different REQUEST with an id that its sender has used",
					again.Sign(client).Body)
			}
			p.CheckInbox(agent, first)
		}},
	{Number: "S-53", Title: "Messages from different senders may have the same id, and none blocks or replaces another",
		Cites: duplicates, run: func(p *relayProbe) {
			agent := p.Actor("an agent")
			var sent []kit.SignedMessage
			id := kit.NewID("msg")
			for _, name := range []string{"a client", "another client", "a third client"} {
				client := p.Actor(name)
				m := p.Request(client, agent)
				m["id"] = id
				signed := m.Sign(client)
				signed.What += " with the same id as messages of other senders"
				p.checkDuplicate(p.Post(signed.What, signed.Body), signed, false)
				sent = append(sent, signed)
			}
			events := p.Inbox(agent)
			p.Expect("three events with the id %s, one from each sender", id)
			senders := map[string]bool{}
			for _, e := range events {
				senders[e.Object("sender").Text("id")] = true
			}
			if len(events) != len(sent) || len(senders) != len(sent) {
				p.Failf("%d events from %d senders", len(events), len(senders))
			}
		}},
	{Number: "S-54", Title: "The id of a refused message is not remembered",
		Cites: duplicates + "; §4 (a refused message is not stored, its id not remembered)", run: func(p *relayProbe) {
			t := p.conversation()
			t.play("c.REQUEST a.OFFER")
			early := t.signed("a.RESULT")
			p.PostRefused(wrongState, "a RESULT before the ACCEPT", early.Body)
			t.play("c.ACCEPT>a")
			early.What = "the same RESULT, after the ACCEPT"
			p.checkDuplicate(p.Post(early.What, early.Body), early, false)
		}},
	{Number: "S-55", Title: "An id is still remembered after its message has expired",
		Cites: duplicates + " (30 minutes, through TTL purge)", wait: 7 * time.Second, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			m := p.Request(client, agent)
			expiringSoon(m)
			first := p.PostAccepted(client, m)
			p.Sleep(7 * time.Second)
			again := p.Request(client, agent)
			again["id"] = first.ID
			p.PostRefused(duplicateID, "a different REQUEST with the id of an expired one", again.Sign(client).Body)
			p.PostRefused(kit.Refused(http.StatusBadRequest, envelope.CodeExpired), "the expired REQUEST again, unchanged",
				first.Body)
		}},
}

// checkDuplicate ends the check unless the message was accepted and its receipt has the member duplicate with this
// value.
func (p *relayProbe) checkDuplicate(a kit.Answer, signed kit.SignedMessage, want bool) {
	p.CheckAccepted(a, signed)
	p.Expect(`"duplicate":%v`, want)
	if got, present := a.Flag("duplicate"); !present || got != want {
		p.Failf("%s", a)
	}
}

// raceChecks test concurrent posts and large numbers of posts.
var raceChecks = []relayCheck{
	{Number: "S-56",
		Title: "If a message is posted many times at once, one receipt has duplicate false and it is stored once",
		Cites: duplicates, run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			signed := p.Request(client, agent).Sign(client)
			first := 0
			for _, a := range p.postConcurrently(12, func(int) kit.SignedMessage { return signed }) {
				p.Describe("POST /events with the same REQUEST, 12 times at once")
				p.CheckAccepted(a, signed)
				if again, _ := a.Flag("duplicate"); !again {
					first++
				}
			}
			p.Expect("one receipt with duplicate false, and 11 with duplicate true")
			if first != 1 {
				p.Failf("%d receipts have duplicate false", first)
			}
			p.CheckInbox(agent, signed)
		}},
	{Number: "S-57", Title: "If several ACCEPTs are posted at once, exactly one is accepted",
		Cites: "PROTOCOL §4 (two ACCEPTs that race)", run: func(p *relayProbe) {
			t := p.conversation()
			t.play("c.REQUEST a.OFFER b.OFFER")
			answers := p.postConcurrently(8,
				func(i int) kit.SignedMessage { return t.signed([]string{"c.ACCEPT>a", "c.ACCEPT>b"}[i%2]) })
			p.Describe("POST /events with 8 ACCEPTs at once, for the offers of two agents")
			won := 0
			for _, a := range answers {
				if ok, _ := a.OK(); ok {
					won++
					continue
				}
				p.CheckRefused(a, wrongState)
			}
			p.Expect("exactly one ACCEPT is accepted")
			if won != 1 {
				p.Failf("%d ACCEPTs are accepted", won)
			}
		}},
	{Number: "S-58", Title: "A thread accepts 100 OFFERs, and refuses the next one with RATE_LIMITED and Retry-After",
		Cites: "PROTOCOL §4 (PENDING, OFFER)", wait: time.Second, run: offerLimit},
	{Number: "S-59", Title: "Every message that was answered with 200 is delivered",
		Cites: "PROTOCOL §5 (a 200 means: on disk, and it will be delivered)", run: func(p *relayProbe) {
			client, agent := p.Actor("a client"), p.Actor("an agent")
			messages := make([]kit.SignedMessage, 60)
			for i := range messages {
				m := p.Request(client, agent)
				m["ts"] = kit.FormatTime(p.Now().Add(time.Duration(i) * time.Millisecond))
				messages[i] = m.Sign(client)
			}
			for i, a := range p.postConcurrently(len(messages), func(i int) kit.SignedMessage { return messages[i] }) {
				p.CheckAccepted(a, messages[i])
			}
			p.Describe("GET /events for the recipient of 60 REQUESTs that were all accepted")
			p.CheckInbox(agent, messages...)
		}},
}

// postConcurrently posts n messages, up to eight at a time, and returns the answers in the order of the messages.
func (p *relayProbe) postConcurrently(n int, messageOf func(i int) kit.SignedMessage) []kit.Answer {
	messages := make([]kit.SignedMessage, n)
	for i := range messages {
		messages[i] = messageOf(i)
	}
	answers := make([]kit.Answer, n)
	slots := make(chan struct{}, 8)
	var posts sync.WaitGroup
	for i, signed := range messages {
		slots <- struct{}{}
		posts.Go(func() {
			defer func() { <-slots }()
			answers[i] = p.Post(signed.What, signed.Body)
		})
	}
	posts.Wait()
	return answers
}

func offerLimit(p *relayProbe) {
	t := p.conversation()
	t.play("c.REQUEST")
	var messages []kit.SignedMessage
	for range 100 {
		messages = append(messages, t.signed("a.OFFER"))
	}
	for i, a := range p.postConcurrently(len(messages), func(i int) kit.SignedMessage { return messages[i] }) {
		p.Describe("POST /events with 100 OFFERs from one agent in one thread")
		p.CheckAccepted(a, messages[i])
	}
	a := p.PostRefused(kit.Refused(http.StatusTooManyRequests, envelope.CodeRateLimited), "the 101st OFFER in a thread",
		t.signed("b.OFFER").Body)
	p.Expect("a Retry-After header, and retryable true")
	if retryable, _ := a.Flag("retryable"); !retryable || a.Header.Get("Retry-After") == "" {
		p.Failf("Retry-After is %q: %s", a.Header.Get("Retry-After"), a)
	}
}
