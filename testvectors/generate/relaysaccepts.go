package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// accepts is evidence of two chains.
func accepts(a, b chain) evidence {
	return evidence{Kind: "accepts", Events: slicesOf(a.forms(3), b.forms(3))}
}

// goodAccepts are evidence against the client: it has accepted two agents for one job.
func goodAccepts() (vectors []testvectors.RelaysVector) {
	show := func(name string, text []byte) {
		vectors = append(vectors, testvectors.RelaysVector{Name: "accepts-" + name, Evidence: text,
			Expect: testvectors.Accept, Client: chainClient.did})
	}
	first, open := firstChain(), firstChain().open()
	next := nextChain().offeredBy(rivalAgent).with(0, to(rivalAgent))
	show("in-two-homes", accepts(first, next).text())
	show("continuation-first", accepts(next, first).text())
	show("of-one-request", accepts(open, open.offeredBy(rivalAgent)).text())
	openRoot := contentHash(open.forms(1)[0])
	show("of-open-requests", accepts(open, continued(openRoot).open().offeredBy(rivalAgent)).text())
	root := contentHash(newChain(9, 20, -60, home(homeA, "https://a.example"), "").forms(1)[0])
	third := newChain(3, 9, 120, home(homeA, "https://a.example"), `,"continues":"`+root+`"`)
	show("of-two-continuations", accepts(continued(root), third.offeredBy(rivalAgent).with(0, to(rivalAgent))).text())
	show("with-other-members-of-meta", accepts(first, next.with(0, inMeta(`"ttl":86400`, `"ttl":60,"trace":"x"`))).text())
	rich := with("payload", `{"intent":"echo","request_id":"req_9","params":{"a":[1e2,"\u20ac"],"b":null}}`)
	poor := with("payload", `{"params":{"b":null,"a":[100,"€"]},"request_id":"req_1","intent":"echo"}`)
	same := func(c chain) chain { return c.with(1, anotherID("req_9")).with(2, anotherID("req_9")) }
	began := first.with(0, poor)
	show("of-a-payload-in-another-spelling", accepts(began, same(continued(contentHash(began.forms(1)[0])).
		offeredBy(rivalAgent).with(0, to(rivalAgent)).with(0, rich))).text())
	bare := with("recipient", "")
	show("with-answers-for-everybody", accepts(first.with(1, bare).with(2, bare), next).text())
	show("respelled", bytes.Replace(accepts(first, next).text(), []byte(`"type":"OFFER"`),
		[]byte(`"type": "OFF\u0045R"`), 1))
	return vectors
}

// anotherID returns a change of the request_id of an answer to nextChain.
func anotherID(id string) func(draft) draft { return replaced("payload", "req_2", id) }

// badAccepts show nothing against the client.
func badAccepts() (vectors []testvectors.RelaysVector) {
	refuse := func(name, reason string, text []byte) {
		vectors = append(vectors, testvectors.RelaysVector{Name: "accepts-" + name, Evidence: text,
			Expect: testvectors.Reject, Reason: reason})
	}
	otherJobs(refuse)
	invalidChains(refuse)
	otherForms(refuse)
	return vectors
}

// otherJobs are two good chains that a client may make.
func otherJobs(refuse refuseFunc) {
	first := firstChain()
	next := nextChain().offeredBy(rivalAgent).with(0, to(rivalAgent))
	continuing := func(hash string) chain { return continued(hash).offeredBy(rivalAgent).with(0, to(rivalAgent)) }
	refuse("of-one-agent", "Both OFFERs are by one agent.", accepts(first, nextChain()).text())
	refuse("of-one-agent-in-one-thread", "Both OFFERs are by one agent.",
		accepts(first, first.with(1, with("id", `"msg_9"`))).text())
	refuse("by-two-clients", "Another client continues the job.",
		accepts(first, next.with(0, by(otherChainClient)).with(1, to(otherChainClient)).with(2, by(otherChainClient))).text())
	refuse("of-another-payload", "The payload is another.",
		accepts(first, next.with(0, replaced("payload", "translation.en_zh", "translation.en_fr"))).text())
	refuse("of-a-payload-with-more", "The payload has another member.",
		accepts(first, next.with(0, replaced("payload", `{`, `{"title":"",`))).text())
	list := first.with(0, replaced("payload", `{`, `{"params":[1,2],`))
	refuse("of-a-payload-in-another-order", "A list has another order.",
		accepts(list, continuing(contentHash(list.forms(1)[0])).with(0, replaced("payload", `{`, `{"params":[2,1],`))).text())
	refuse("of-two-jobs", "The second REQUEST continues nothing.",
		accepts(first, newChain(2, 5, 60, home(homeB, "https://b.example"), "").offeredBy(rivalAgent).
			with(0, to(rivalAgent))).text())
	refuse("of-two-roots", "The second REQUEST continues a third one.",
		accepts(first, continuing(strings.Repeat("0a", 32))).text())
	refuse("of-a-continued-continuation", "The second REQUEST continues a continuation, and not its root.",
		accepts(nextChain(), newChain(3, 9, 120, home(homeA, "https://a.example"),
			`,"continues":"`+contentHash(nextChain().forms(1)[0])+`"`).offeredBy(rivalAgent).with(0, to(rivalAgent))).text())
	refuse("of-a-continued-offer", "The second REQUEST continues an OFFER.",
		accepts(first, continuing(contentHash(first.forms(2)[1]))).text())
	closed := first.with(0, sealed(`"intent":"translation.en_zh","request_id":"req_1"`))
	refuse("of-sealed-payloads", "The payloads are sealed, so only the recipients can compare them.",
		accepts(closed, continuing(contentHash(closed.forms(1)[0])).
			with(0, sealed(`"intent":"translation.en_zh","request_id":"req_2"`))).text())
	refuse("of-a-sealed-payload", "One payload is sealed.",
		accepts(closed, continuing(contentHash(closed.forms(1)[0]))).text())
}

// invalidChains are evidence with a chain that proves nothing.
func invalidChains(refuse refuseFunc) {
	first := firstChain()
	next := nextChain().offeredBy(rivalAgent).with(0, to(rivalAgent))
	for i, typ := range []string{"request", "offer", "accept"} {
		refuse("with-a-wrong-signature-of-"+typ, "A signature is wrong.",
			accepts(first, next.with(i, signedBy(otherChainClient))).text())
	}
	refuse("without-re", "An ACCEPT does not say what it answers.", accepts(first, next.with(2, re(""))).text())
	refuse("of-the-other-offer", "The second ACCEPT answers the first OFFER.",
		accepts(first, next.with(2, re(contentHash(first.forms(2)[1])))).text())
	refuse("of-another-thread", "An OFFER is of another thread.",
		accepts(first, next.with(1, with("thread", `{"id":"thread_1"}`))).text())
	refuse("of-another-home", "An ACCEPT names another home.",
		accepts(first, next.with(2, inMeta(homeB.did, homeA.did))).text())
	a := home(homeA, "https://a.example")
	bare := first.each(inMeta(","+a, "")).open()
	refuse("without-home", "The REQUEST names no home.", accepts(bare, bare.offeredBy(rivalAgent)).text())
	refuse("by-another-client", "The second ACCEPT is by somebody else.",
		accepts(first, next.with(2, by(otherChainClient))).text())
	refuse("by-the-agent", "The second OFFER is by an agent that the REQUEST does not name.",
		accepts(first, nextChain().offeredBy(rivalAgent)).text())
	crossed := accepts(first, next)
	slices.Reverse(crossed.Events)
	refuse("in-another-order", "The messages are in another order.", crossed.text())
	refuse("with-a-cancel", "The client has cancelled, and not accepted.",
		accepts(first, next.with(2, func(d draft) draft {
			return d.with("type", `"CANCEL"`).with("payload", strings.Replace(payloads["CANCEL"], "req_1", "req_2", 1))
		})).text())
}

// otherForms are texts that are no evidence of this kind.
func otherForms(refuse refuseFunc) {
	first := firstChain()
	next := nextChain().offeredBy(rivalAgent).with(0, to(rivalAgent))
	good := func() evidence { return accepts(first, next) }
	change := func(old, new string) []byte {
		text := good().text()
		if !bytes.Contains(text, []byte(old)) {
			panic("the evidence has no " + old)
		}
		return bytes.Replace(text, []byte(old), []byte(new), 1)
	}
	few, many, proved := good(), good(), good()
	few.Events = few.Events[:5]
	many.Events = append(many.Events, next.forms(4)[3])
	proved.Proofs = []string{threadLog().proof(1, 5).text(), threadLog().proof(2, 5).text()}
	refuse("of-five-events", "An ACCEPT is missing.", few.text())
	refuse("of-seven-events", "There are seven events.", many.text())
	refuse("of-no-events", "The events are missing.", evidence{Kind: "accepts"}.text())
	refuse("with-proofs", "This kind has no proofs.", proved.text())
	refuse("of-another-version", "The member typ is another.", change("evidence/1", "evidence/2"))
	refuse("of-another-kind", "There are no proofs.", change(`"kind":"accepts"`, `"kind":"steps"`))
	refuse("with-another-member", "There is a member that evidence does not have.", change(`"kind":`, `"why":1,"kind":`))
	refuse("with-null", "An event is null.", evidence{Kind: "accepts",
		Events: append(good().Events[:5], json.RawMessage("null"))}.text())
	refuse("with-a-member-twice", "A member of an event is there twice.",
		change(`"version":"1.0"`, `"version":"1.0","version":"1.0"`))
}
