package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// evidence has the members of evidence.
type evidence struct {
	Type        string            `json:"typ"`
	Kind        string            `json:"kind"`
	Proofs      []string          `json:"proofs,omitempty"`
	Events      []json.RawMessage `json:"events,omitempty"`
	Checkpoints []string          `json:"checkpoints,omitempty"`
	Consistency []string          `json:"consistency,omitempty"`
	Root        string            `json:"root,omitempty"`
}

func (e evidence) text() []byte {
	e.Type = "agora-evidence/1"
	text, err := json.Marshal(e)
	if err != nil {
		panic(err)
	}
	return text
}

// logVectors returns all vectors of log.json.
func logVectors() []testvectors.LogVector {
	vectors := append(goodProofs(), badProofs()...)
	show := func(name, kind string, text []byte) {
		vectors = append(vectors, testvectors.LogVector{Name: name, Evidence: text, Expect: testvectors.Accept, Kind: kind,
			Relay: logRelay.did})
	}
	refuse := func(name, reason string, text []byte) {
		vectors = append(vectors, testvectors.LogVector{Name: name, Evidence: text, Expect: testvectors.Reject,
			Reason: reason})
	}
	forks(show, refuse)
	places(show, refuse)
	threadSteps(show, refuse)
	chains(show, refuse)
	noEvidence(refuse)
	return vectors
}

type showFunc = func(name, kind string, text []byte)
type refuseFunc = func(name, reason string, text []byte)

// other returns l with another leaf at an index.
func (l treeLog) other(index int) treeLog {
	l.leaves = slices.Clone(l.leaves)
	l.leaves[index] = leafText(0xaa, logCancel, 1000*index, logRequest)
	return l
}

func forks(show showFunc, refuse refuseFunc) {
	l := threadLog()
	fork := func(a, b string) evidence { return evidence{Kind: "fork", Checkpoints: []string{a, b}} }
	// grown is evidence with two checkpoints: of a's first n leaves, and of b's first m leaves.
	grown := func(a treeLog, n int, b treeLog, m int) evidence {
		e := fork(a.checkpoint(n), b.checkpoint(m))
		e.Root = hashLines([]nodeHash{rootOf(b.hashes(n))})[0]
		e.Consistency = hashLines(consistencyOf(n, b.hashes(m), true))
		return e
	}
	show("fork-of-one-size", "fork", fork(l.checkpoint(5), l.other(3).checkpoint(5)).text())
	for _, n := range []int{1, 4, 5, 7} {
		e := grown(l.other(0), n, l, 9)
		show(fmt.Sprintf("fork-of-sizes-%d-and-9", n), "fork", e.text())
	}
	swapped := grown(l.other(2), 4, l, 9)
	slices.Reverse(swapped.Checkpoints)
	show("fork-larger-first", "fork", swapped.text())

	// vast is a fork of two checkpoints of this size.
	vast := func(size int) evidence {
		return fork(l.signed(l.bodyOf(size, nodeHash{1})), l.signed(l.bodyOf(size, nodeHash{2})))
	}
	show("fork-of-the-largest-log", "fork", vast(largestLog).text())
	refuse("fork-of-a-log-too-large", "The log has 2^53 leaves.", vast(largestLog+1).text())

	refuse("fork-of-one-tree", "The checkpoints agree.", fork(l.checkpoint(5), l.checkpoint(5)).text())
	refuse("fork-of-a-log-that-grew", "The larger tree continues the smaller one.", grown(l, 4, l, 9).text())
	missing := grown(l.other(2), 4, l, 9)
	missing.Root, missing.Consistency = "", nil
	refuse("fork-without-root", "Checkpoints of two sizes need a root and a consistency proof.", missing.text())
	missing = grown(l.other(2), 4, l, 9)
	missing.Consistency = missing.Consistency[1:]
	refuse("fork-with-a-short-proof", "The consistency proof has a line too few.", missing.text())
	wrong := grown(l.other(2), 4, l, 9)
	wrong.Root = hashLines([]nodeHash{rootOf(l.hashes(3))})[0]
	refuse("fork-with-another-root", "The consistency proof is not that of the root.", wrong.text())
	extra := fork(l.checkpoint(5), l.other(3).checkpoint(5))
	extra.Root = hashLines([]nodeHash{rootOf(l.hashes(5))})[0]
	refuse("fork-of-one-size-with-a-root", "Checkpoints of one size need no root.", extra.text())
	older := l.other(3)
	older.epoch = "00000001"
	refuse("fork-of-two-logs", "The checkpoints are of two logs.",
		fork(l.checkpoint(5), older.checkpoint(5)).text())
	foreign := l.other(3)
	foreign.key = otherRelay
	refuse("fork-of-two-relays", "The checkpoints are by two relays.",
		fork(l.checkpoint(5), foreign.checkpoint(5)).text())
	forged := strings.Replace(l.other(3).checkpoint(5), "— ", "— x", 1)
	refuse("fork-without-a-signature", "The relay has not signed one of the checkpoints.",
		fork(l.checkpoint(5), forged).text())
	three := fork(l.checkpoint(5), l.other(3).checkpoint(5))
	three.Checkpoints = append(three.Checkpoints, l.checkpoint(4))
	refuse("fork-of-three", "There are three checkpoints.", three.text())
	proofs := fork(l.checkpoint(5), l.other(3).checkpoint(5))
	proofs.Proofs = []string{l.proof(1, 5).text(), l.proof(2, 5).text()}
	refuse("fork-with-proofs", "A fork has no proofs.", proofs.text())
}

// pair returns evidence of two proofs.
func pair(kind string, a, b proofText) evidence {
	return evidence{Kind: kind, Proofs: []string{a.text(), b.text()}}
}

// places adds the vectors of the kinds index, twice and time.
func places(show showFunc, refuse refuseFunc) {
	l := threadLog()
	older := l
	older.epoch = "00000001"
	foreign := l.other(3)
	foreign.key = otherRelay
	show("index", "index", pair("index", l.proof(3, 5), l.other(3).proof(3, 9)).text())
	show("index-of-the-start", "index",
		pair("index", l.proof(0, 5), treeLog{logRelay, logEpoch, []string{startText(older.origin() +
			" 5 " + hashLines([]nodeHash{{}})[0])}}.proof(0, 1)).text())
	refuse("index-of-one-leaf", "The proofs are of one leaf.", pair("index", l.proof(3, 5), l.proof(3, 9)).text())
	refuse("index-of-two-places", "The proofs have two indexes.",
		pair("index", l.proof(3, 5), l.proof(2, 5)).text())
	refuse("index-of-two-logs", "The proofs are of two logs.",
		pair("index", l.proof(3, 5), older.other(3).proof(3, 5)).text())
	refuse("index-of-two-relays", "The proofs are by two relays.",
		pair("index", l.proof(3, 5), foreign.proof(3, 5)).text())

	repeated := l
	repeated.leaves = append(slices.Clone(l.leaves[:5]), leafText(0x30, logAccept, 9000, logRequest), l.leaves[3])
	show("twice", "twice", pair("twice", repeated.proof(3, 7), repeated.proof(5, 7)).text())
	show("twice-the-same-leaf", "twice", pair("twice", repeated.proof(6, 7), repeated.proof(3, 7)).text())
	refuse("twice-at-one-index", "The proofs are of one leaf.",
		pair("twice", repeated.proof(3, 5), repeated.proof(3, 7)).text())
	refuse("twice-two-messages", "The proofs are of two messages.",
		pair("twice", l.proof(3, 5), l.proof(4, 5)).text())
	refuse("twice-in-two-logs", "The proofs are of two logs.",
		pair("twice", l.proof(3, 5), older.proof(3, 5)).text())
	refuse("twice-start", "One proof is that of the start.", pair("twice", l.proof(0, 5), l.proof(3, 5)).text())

	// dated returns a log whose second message arrived this number of milliseconds before the first.
	dated := func(n int) treeLog {
		return treeLog{logRelay, logEpoch, []string{startText("-"), leafText(1, logRequest, n, logRequest),
			leafText(2, logOffer, 0, logRequest)}}
	}
	const limit = 20 * 60_000
	show("time", "time", pair("time", dated(limit+1).proof(1, 3), dated(limit+1).proof(2, 3)).text())
	show("time-later-leaf-first", "time",
		pair("time", dated(3*limit).proof(2, 3), dated(3*limit).proof(1, 2)).text())
	refuse("time-of-twenty-minutes", "The later leaf is exactly twenty minutes older.",
		pair("time", dated(limit).proof(1, 3), dated(limit).proof(2, 3)).text())
	refuse("time-in-order", "The later leaf is not older.",
		pair("time", dated(-limit-1).proof(1, 3), dated(-limit-1).proof(2, 3)).text())
	late := dated(limit + 1)
	late.epoch = "00000001"
	refuse("time-of-two-logs", "The proofs are of two logs.",
		pair("time", dated(limit+1).proof(1, 3), late.proof(2, 3)).text())
	refuse("time-of-the-start", "One proof is that of the start.",
		pair("time", dated(1).proof(0, 3), dated(1).proof(1, 3)).text())
}

// threadSteps adds the vectors of the kind steps.
func threadSteps(show showFunc, refuse refuseFunc) {
	second := func(k key, typ string) draft { return msg(k, typ, "log_second_"+strings.ToLower(typ), 7) }
	open := signedForm(msg(logClient, "ACCEPT", "log_open", 2)) // an ACCEPT without a recipient
	// steps is evidence of two messages that were accepted one after the other.
	steps := func(first, later []byte, requests ...[]byte) evidence {
		requests = append(requests, logRequest, logRequest)
		l := treeLog{logRelay, logEpoch, []string{startText("-"), leafText(1, logRequest, 0, logRequest),
			leafText(2, first, 1000, requests[0]), leafText(3, later, 2000, requests[1])}}
		e := pair("steps", l.proof(2, 4), l.proof(3, 4))
		e.Events = []json.RawMessage{first, later}
		return e
	}
	for _, c := range []struct {
		name         string
		first, later []byte
		shown        bool
	}{
		{"offer-after-accept", logAccept, signedForm(second(logAgent, "OFFER").to(logClient)), true},
		{"accept-after-accept", logAccept, signedForm(second(logClient, "ACCEPT").to(stranger)), true},
		{"result-of-another-agent", logAccept, signedForm(second(stranger, "RESULT").to(logClient)), true},
		{"offer-after-result", logResult, signedForm(second(stranger, "OFFER").to(logClient)), true},
		{"accept-after-result", logResult, signedForm(second(logClient, "ACCEPT").to(stranger)), true},
		{"result-after-result", logResult, signedForm(second(logAgent, "RESULT").to(logClient)), true},
		{"cancel-after-result", logResult, logCancel, true},
		{"offer-after-cancel", logCancel, signedForm(second(logAgent, "OFFER").to(logClient)), true},
		{"result-after-cancel", logCancel, logResult, true},
		{"error-after-cancel", logCancel, signedForm(second(logAgent, "ERROR").to(logClient)), true},
		{"request-after-cancel", logCancel, logRequest, true},

		{"result-after-accept", logAccept, logResult, false},
		{"result-after-an-accept-without-recipient", open, signedForm(second(stranger, "RESULT").to(logClient)), false},
		{"cancel-after-accept", logAccept, logCancel, false},
		{"error-after-accept", logAccept, signedForm(second(logAgent, "ERROR").to(logClient)), false},
		{"error-after-result", logResult, signedForm(second(logAgent, "ERROR").to(logClient)), false},
		{"accept-after-offer", logOffer, logAccept, false},
		{"offer-after-offer", logOffer, signedForm(second(logAgent, "OFFER").to(logClient)), false},
		{"offer-after-error", signedForm(second(logAgent, "ERROR").to(logClient)), logOffer, false},
	} {
		if c.shown {
			show("steps-"+c.name, "steps", steps(c.first, c.later).text())
		} else {
			refuse("steps-"+c.name, "A relay may accept these messages in this order.", steps(c.first, c.later).text())
		}
	}
	offer := signedForm(second(logAgent, "OFFER").to(logClient))
	swapped := steps(logAccept, offer)
	slices.Reverse(swapped.Proofs)
	slices.Reverse(swapped.Events)
	show("steps-later-first", "steps", swapped.text())
	crossed := steps(logAccept, offer)
	slices.Reverse(crossed.Events)
	refuse("steps-with-crossed-events", "The events are not in the order of their proofs.", crossed.text())
	refuse("steps-of-two-requests", "The messages answer two REQUESTs.",
		steps(logAccept, offer, logRequest, logOffer).text())
	unknown := treeLog{logRelay, logEpoch, []string{startText("-"), leafText(2, logAccept, 0, nil),
		leafText(3, offer, 1, nil)}}
	e := pair("steps", unknown.proof(1, 3), unknown.proof(2, 3))
	e.Events = []json.RawMessage{logAccept, offer}
	refuse("steps-of-unknown-requests", "The leaves do not name a REQUEST.", e.text())
	missing := steps(logAccept, offer)
	missing.Events = nil
	refuse("steps-without-events", "The envelopes are missing.", missing.text())
	forged := steps(logAccept, offer)
	forged.Events[1] = json.RawMessage(second(logAgent, "OFFER").to(logClient).withSig(quote(strings.Repeat("A", 86))))
	refuse("steps-with-a-wrong-signature", "The signature of an envelope is wrong.", forged.text())

	// Two logs of one relay.
	across := func(first, later []byte) evidence {
		a := treeLog{logRelay, logEpoch, []string{startText("-"), leafText(1, first, 0, logRequest)}}
		b := treeLog{logRelay, "00000001", []string{startText("-"), leafText(2, later, 0, logRequest)}}
		e := pair("steps", a.proof(1, 2), b.proof(1, 2))
		e.Events = []json.RawMessage{first, later}
		return e
	}
	show("steps-two-accepts-in-two-logs", "steps",
		across(logAccept, signedForm(second(logClient, "ACCEPT").to(stranger))).text())
	show("steps-two-results-in-two-logs", "steps",
		across(logResult, signedForm(second(logAgent, "RESULT").to(logClient))).text())
	refuse("steps-one-accept-in-two-logs", "Both logs have the same ACCEPT.", across(logAccept, logAccept).text())
	refuse("steps-offer-in-another-log", "In two logs, only two ACCEPTs or two RESULTs contradict each other.",
		across(logAccept, offer).text())
}

// chains adds the vectors of the kind chain.
func chains(show showFunc, refuse refuseFunc) {
	l := threadLog()
	after := func(k key, epoch string, size int) treeLog {
		return treeLog{k, epoch, []string{startText(fmt.Sprintf("%s %d %s", l.origin(), size,
			hashLines([]nodeHash{rootOf(l.hashes(size))})[0])), leafText(1, logOffer, 0, nil)}}
	}
	next, other := after(logRelay, "00000001", 4), after(logRelay, "00000002", 4)
	show("chain-log-continued", "chain", pair("chain", next.proof(0, 2), l.proof(4, 5)).text())
	show("chain-log-continued-other-order", "chain", pair("chain", l.proof(5, 9), next.proof(0, 1)).text())
	show("chain-two-logs-after-one", "chain", pair("chain", next.proof(0, 2), other.proof(0, 1)).text())
	first := treeLog{logRelay, "00000003", []string{startText("-")}}
	show("chain-two-first-logs", "chain", pair("chain", l.proof(0, 5), first.proof(0, 1)).text())
	refuse("chain-leaf-before-the-end", "The leaf was there when the next log began.",
		pair("chain", next.proof(0, 2), l.proof(3, 5)).text())
	refuse("chain-two-logs-after-two-sizes", "The starts name two sizes.",
		pair("chain", next.proof(0, 2), after(logRelay, "00000002", 5).proof(0, 1)).text())
	refuse("chain-one-start", "The proofs are of one log.",
		pair("chain", next.proof(0, 2), next.proof(0, 1)).text())
	refuse("chain-of-two-relays", "The proofs are by two relays.",
		pair("chain", after(otherRelay, "00000001", 4).proof(0, 2), l.proof(4, 5)).text())
	refuse("chain-without-a-start", "No proof is that of a start.",
		pair("chain", next.proof(1, 2), l.proof(4, 5)).text())
}

// noEvidence are texts that are no evidence.
func noEvidence(refuse refuseFunc) {
	l := threadLog()
	good := string(pair("index", l.proof(3, 5), l.other(3).proof(3, 9)).text())
	change := func(old, new string) []byte {
		if !strings.Contains(good, old) {
			panic("the evidence has no " + old)
		}
		return []byte(strings.Replace(good, old, new, 1))
	}
	refuse("evidence-not-json", "The text is not JSON.", []byte("agora-evidence/1"))
	refuse("evidence-list", "The text is not an object.", []byte("["+good+"]"))
	refuse("evidence-of-another-version", "The member typ is another.", change("evidence/1", "evidence/2"))
	refuse("evidence-of-an-unknown-kind", "There is no such kind.", change(`"kind":"index"`, `"kind":"guess"`))
	refuse("evidence-of-another-kind", "The proofs do not show this kind.",
		change(`"kind":"index"`, `"kind":"twice"`))
	refuse("evidence-without-a-kind", "The member kind is missing.", change(`"kind":"index",`, ``))
	refuse("evidence-with-another-member", "There is a member that evidence does not have.",
		change(`"kind":`, `"why":1,"kind":`))
	refuse("evidence-with-a-member-in-upper-case", "A member has another spelling.", change(`"kind":`, `"Kind":`))
	refuse("evidence-with-a-member-twice", "A member is there twice.",
		change(`"kind":"index",`, `"kind":"index","kind":"index",`))
	refuse("evidence-with-null", "A member is null.", change(`"kind":`, `"root":null,"kind":`))
	refuse("evidence-with-an-empty-list", "An empty list stands for nothing.",
		change(`"kind":`, `"events":[],"kind":`))
	refuse("evidence-with-a-root", "Only a fork has a root.",
		change(`"kind":`, `"root":"`+hashLines([]nodeHash{{}})[0]+`","kind":`))
	one := pair("index", l.proof(3, 5), l.other(3).proof(3, 9))
	one.Proofs = one.Proofs[:1]
	refuse("evidence-with-one-proof", "A proof is missing.", one.text())
	broken := pair("index", l.proof(3, 5), l.other(3).proof(3, 9))
	broken.Proofs[1] = strings.Replace(broken.Proofs[1], "index 3", "index 2", 1)
	refuse("evidence-with-an-invalid-proof", "A proof is not valid.", broken.text())
}
