package relay

import (
	"cmp"
	"net/http"
	"slices"
	"time"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"golang.org/x/mod/sumdb/tlog"
)

// Sections of PROOFS.md.
const (
	proofsAtRelay = `PROOFS "At a relay"`
	proofsLog     = `PROOFS "The log"`
	proofsForm    = `PROOFS "A proof"`
)

// proofChecks test what a relay with the feature proofs proves. Each check verifies every proof and checkpoint that it
// reads, see probe.checkProof and probe.checkpoint.
var proofChecks = []relayCheck{
	{Number: "X-71", Title: "The well-known document names the log, and has the text of its leaf 0",
		Cites: proofsAtRelay + "; " + proofsLog, run: ifProofs(logStart)},
	{Number: "X-72", Title: "The receipt of a new message has a valid proof, by this relay, of this message and arrival",
		Cites: proofsForm, run: ifProofs(receiptProof)},
	{Number: "X-73", Title: "Later messages have higher indexes, in larger logs",
		Cites: proofsLog, run: ifProofs(growingIndex)},
	{Number: "X-74", Title: "A leaf names the REQUEST of the thread; that of a MANIFEST names none",
		Cites: proofsLog, run: ifProofs(leafRequest)},
	{Number: "X-75", Title: "A duplicate has no proof and gets no other leaf",
		Cites: proofsAtRelay, run: ifProofs(duplicateLeaf)},
	{Number: "X-76", Title: "GET /proofs returns a proof of the same leaf, at the same index, as text",
		Cites: proofsAtRelay, run: ifProofs(proofRead)},
	{Number: "X-77", Title: "What a receipt proves can be read at once; only a crash could show whether it is on disk",
		Cites: proofsAtRelay, run: ifProofs(provedIsStored)},
	{Number: "X-78", Title: "GET /proofs answers 404 for an unknown or refused message, and 400 for a bad parameter",
		Cites: proofsAtRelay, run: ifProofs(noProof)},
	{Number: "X-79", Title: "No two leaves have the same salt", Cites: proofsLog, run: ifProofs(differentSalts)},
	{Number: "X-80", Title: "The published checkpoint follows the log within seconds, never shrinks, and is not cached",
		Cites: proofsAtRelay, wait: 6 * time.Second, run: ifProofs(publishing)},
	{Number: "X-81", Title: "The tiles and all checkpoints are of one tree, in receipts, in GET /proofs and published",
		Cites: proofsLog, run: ifProofs(oneTree)},
	{Number: "X-82", Title: "Tiles have any width that exists and may be cached for ever; there are no tiles of entries",
		Cites: proofsAtRelay, run: ifProofs(tileAnswers)},
	{Number: "X-83", Title: "POST /events/bulk?proofs=true proves each new message, and only then",
		Cites: proofsAtRelay, run: ifProofs(bulkProofs)},
	{Number: "X-84", Title: "A private relay shows the proof of a directed message only to its parties",
		Cites: proofsAtRelay, run: ifProofs(func(p *relayProbe, log provedLog) {
			ifPrivate(func(p *relayProbe) { privateProofs(p, log) })(p)
		})},
}

func logStart(p *relayProbe, log provedLog) {
	start, err := proof.ParseStart(log.start)
	p.Expect("log.start is the text of a start, whose line previous names another log or none")
	if err != nil || start.Previous != nil && start.Previous.Origin == log.origin {
		p.Failf("%q: %v", log.start, err)
	}
	c := p.published(log)
	p.Expect("leaf 0 of the tree is log.start")
	leaf, err := p.treeOf(log, c).ReadHashes([]int64{tlog.StoredHashIndex(0, 0)})
	if err != nil {
		p.Failf("the tiles are not of the tree of the published checkpoint: %v", err)
	}
	if leaf[0] != tlog.RecordHash([]byte(log.start)) {
		p.Failf("leaf 0 has the hash %s, and log.start is %q", leaf[0], log.start)
	}
}

func receiptProof(p *relayProbe, log provedLog) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	p.postProved(log, p.Request(client, agent).Sign(client))
	for _, ahead := range []time.Duration{-4 * time.Minute, 4 * time.Minute} {
		sent := p.postProved(log, p.requestAhead(client, agent, ahead).Sign(client))
		now := p.Now()
		p.Expect("received is the time of arrival, which is now, and not the ts, %v from now", ahead)
		if off := sent.leaf.Received.Sub(now).Abs(); off > 30*time.Second {
			p.Failf("received is %s, and now is %s", kit.FormatTime(sent.leaf.Received), kit.FormatTime(now))
		}
	}
}

func growingIndex(p *relayProbe, log provedLog) {
	client := p.Actor("a client")
	last := p.postProved(log, p.requestOf(client))
	for range 5 {
		next := p.postProved(log, p.requestOf(client))
		p.Expect("an index above %d and a log with more than %d leaves", last.Index, last.Checkpoint.Size)
		if next.Index <= last.Index || next.Checkpoint.Size <= last.Checkpoint.Size {
			p.Failf("the index does not grow: %d of %d leaves", next.Index, next.Checkpoint.Size)
		}
		last = next
	}
}

func leafRequest(p *relayProbe, log provedLog) {
	for _, moves := range [][]string{{"c.REQUEST", "a.OFFER", "b.OFFER", "c.ACCEPT>a", "a.RESULT"},
		{"c.REQUEST>a", "a.ERROR"}, {"c.REQUEST>a", "a.OFFER", "c.CANCEL>a"}} {
		t := p.conversation()
		var request proof.Hash
		for i, move := range moves {
			sent := p.postProved(log, t.signed(move))
			if i == 0 {
				request = sent.leaf.Event
			}
			p.Expect("the leaf of %s has the request %x", move, request[:])
			if sent.leaf.Request != request {
				p.Failf("the leaf names another request: %q", sent.Extra)
			}
		}
	}
	agent := p.Actor("an agent")
	sent := p.postProved(log, p.manifest(agent, "cap", kit.NewID("intent")).Sign(agent))
	p.Expect("the leaf of a MANIFEST has the request -")
	if sent.leaf.Request != (proof.Hash{}) {
		p.Failf("the leaf names another request: %q", sent.Extra)
	}
}

func duplicateLeaf(p *relayProbe, log provedLog) {
	client := p.Actor("a client")
	sent := p.postProved(log, p.requestOf(client))
	for range 2 {
		a := p.Post("the same message again", sent.Body)
		p.checkDuplicate(a, sent.SignedMessage, true)
		p.checkNoProof(a)
		p.checkSameLeaf(p.readProof(log, client, sent.SignedMessage), sent)
	}
	raced := p.requestOf(client)
	answers := p.postConcurrently(6, func(int) kit.SignedMessage { return raced })
	p.Describe("POST /events with the same REQUEST, 6 times at once")
	first := slices.IndexFunc(answers, func(a kit.Answer) bool {
		duplicate, _ := a.Flag("duplicate")
		return !duplicate
	})
	p.Expect("one receipt with duplicate false")
	if first < 0 {
		p.Failf("all receipts have duplicate true")
	}
	won := p.checkReceipt(answers[first], raced, log)
	for _, a := range slices.Delete(answers, first, first+1) {
		p.checkDuplicate(a, raced, true)
		p.checkNoProof(a)
	}
	p.checkSameLeaf(p.readProof(log, client, raced), won)
}

func proofRead(p *relayProbe, log provedLog) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	for _, m := range []kit.Message{p.Request(client, agent), p.Request(client, kit.Actor{}),
		p.manifest(client, "cap", kit.NewID("intent"))} {
		sent := p.postProved(log, m.Sign(client))
		for range 2 {
			p.checkSameLeaf(p.readProof(log, client, sent.SignedMessage), sent)
		}
	}
}

// provedIsStored looks for a relay that signs a receipt before it stores the message. A client can see that the message,
// its proof or the tree of the receipt is not there yet. It cannot see whether they are on disk.
func provedIsStored(p *relayProbe, log provedLog) {
	client := p.Actor("a client")
	for range 3 {
		agent := p.Actor("an agent")
		sent := p.postProved(log, p.Request(client, agent).Sign(client))
		p.checkInOrder(p.Events("cursor", "0", "recipient", agent.DID(), "timeout", "0"), sent.SignedMessage)
		read := p.readProof(log, client, sent.SignedMessage)
		p.checkSameLeaf(read, sent)
		p.checkOneTree(log, sent.Checkpoint, read.Checkpoint)
	}
}

func noProof(p *relayProbe, log provedLog) {
	client, agent := p.Actor("a client"), p.Actor("an agent")
	sent := p.postProved(log, p.Request(client, agent).Sign(client))
	refusedMessage := p.Request(client, agent).Sign(agent)
	p.PostRefused(badSignature, "a REQUEST that is not signed with its sender's key", refusedMessage.Body)
	notFound := kit.Refused(http.StatusNotFound, envelope.CodeNotFound)
	for what, pairs := range map[string][]string{
		"an id that nobody has used":        {"sender", client.DID(), "id", kit.NewID("msg")},
		"the id of another sender's":        {"sender", agent.DID(), "id", sent.ID},
		"a message that the relay refused":  {"sender", client.DID(), "id", refusedMessage.ID},
		"an id that is no id of any sender": {"sender", client.DID(), "id", "\u2028"},
	} {
		p.CheckRefused(p.Call(what, http.MethodGet, "/proofs"+kit.Query(pairs...), nil, nil, 0), notFound)
	}
	bad := kit.Refused(http.StatusBadRequest, envelope.CodeInvalidRequest, envelope.CodeInvalidDID)
	for what, pairs := range map[string][]string{
		"no parameter":                {},
		"no sender":                   {"id", sent.ID},
		"no id":                       {"sender", client.DID()},
		"a sender that is no did":     {"sender", "nobody", "id", sent.ID},
		"an unknown parameter":        {"sender", client.DID(), "id", sent.ID, "x", "1"},
		"the parameter id, two times": {"sender", client.DID(), "id", sent.ID, "id", sent.ID},
	} {
		p.CheckRefused(p.Call(what, http.MethodGet, "/proofs"+kit.Query(pairs...), nil, nil, 0), bad)
	}
}

func differentSalts(p *relayProbe, log provedLog) {
	client := p.Actor("a client")
	messages := make([]kit.SignedMessage, 12)
	for i := range messages {
		messages[i] = p.requestOf(client)
	}
	answers := p.postConcurrently(len(messages), func(i int) kit.SignedMessage { return messages[i] })
	p.Describe("POST /events with %d messages, some at once", len(messages))
	seen := map[[16]byte]bool{{}: true}
	for i, a := range answers {
		salt := p.checkReceipt(a, messages[i], log).leaf.Salt
		p.Expect("a salt that no other leaf has, and not zero")
		if seen[salt] {
			p.Failf("two leaves have the salt %x, or it is zero", salt)
		}
		seen[salt] = true
	}
}

func publishing(p *relayProbe, log provedLog) {
	const longest = 30 * time.Second
	if log.publish > longest {
		p.End(kit.NotTested, "the relay publishes a checkpoint only every %v", log.publish)
	}
	before := p.published(log)
	sent := p.postProved(log, p.requestOf(p.Actor("a client")))
	last := before
	next := func() {
		c := p.published(log)
		p.Expect("at least %d leaves, as published before", last.Size)
		if c.Size < last.Size {
			p.Failf("the published log shrinks to %d leaves", c.Size)
		}
		last = c
	}
	for deadline := time.Now().Add(log.publish + 2*kit.PromptLimit); last.Size <= sent.Index; next() {
		p.Expect("a published checkpoint with the leaf %d, %v after its receipt", sent.Index, log.publish)
		if time.Now().After(deadline) {
			p.Failf("the published log still has %d leaves", last.Size)
		}
		p.Sleep(time.Second / 2)
	}
	for range 3 {
		next()
	}
	p.checkOneTree(log, before, sent.Checkpoint, last)
	notFound := kit.Refused(http.StatusNotFound, envelope.CodeNotFound)
	other := log
	other.origin.Epoch++
	p.CheckRefused(p.Call("another epoch", http.MethodGet, other.target("checkpoint"), nil, nil, 0), notFound)
	p.CheckRefused(p.Call("a parameter", http.MethodGet, log.target("checkpoint?x=1"), nil, nil, 0), invalid)
}

func oneTree(p *relayProbe, log provedLog) {
	client := p.Actor("a client")
	trees := []proof.Checkpoint{p.published(log)}
	for range 4 {
		sent := p.postProved(log, p.requestOf(client))
		trees = append(trees, sent.Checkpoint, p.readProof(log, client, sent.SignedMessage).Checkpoint)
	}
	p.checkOneTree(log, append(trees, p.published(log))...)
}

func tileAnswers(p *relayProbe, log provedLog) {
	client := p.Actor("a client")
	size := p.postProved(log, p.requestOf(client)).Checkpoint.Size
	width := int(min(size, tileWidth))
	full := p.tile(log, tlog.Tile{H: tileHeight, W: width})
	for w := range min(width, 3) {
		p.Expect("the first %d hashes of the tile", w+1)
		if part := p.tile(log, tlog.Tile{H: tileHeight, W: w + 1}); string(part) != string(full[:len(part)]) {
			p.Failf("another tile: %x", part)
		}
	}
	notFound := kit.Refused(http.StatusNotFound, envelope.CodeNotFound)
	for what, path := range map[string]string{
		"entries":                   "tile/entries/000",
		"a part of entries":         "tile/entries/000.p/1",
		"a tile far behind the log": "tile/0/x999/x999/999",
		"a level that no log has":   "tile/5/000",
		"a number without zeros":    "tile/0/0",
	} {
		p.CheckRefused(p.Call(what, http.MethodGet, log.target(path), nil, nil, 0), notFound)
	}
}

func bulkProofs(p *relayProbe, log provedLog) {
	if !kit.HasFeature(p.Document(), "bulk") {
		p.End(kit.NotTested, `the well-known document does not list the feature "bulk"`)
	}
	client := p.Actor("a client")
	first, second := p.requestOf(client), p.requestOf(client)
	b := p.bulkTo("?proofs=true", "a message, the message again, {}, and another message",
		joined(first.Body, first.Body, []byte("{}"), second.Body))
	p.checkResults(b, wantedLine{id: first.ID}, wantedLine{id: first.ID, duplicate: true},
		wantedLine{code: envelope.CodeUnsupportedVersion}, wantedLine{id: second.ID})
	for i, signed := range map[int]kit.SignedMessage{0: first, 3: second} {
		sent := p.checkProof(b.results[i].Text("proof"), signed, log)
		p.checkSameLeaf(p.readProof(log, client, signed), sent)
	}
	p.checkNoProof(b.results[1])
	p.checkNoProof(b.results[2])
	for _, parameter := range []string{"", "?proofs=false"} {
		unproved := p.requestOf(client)
		b = p.bulkTo(parameter, "a message", joined(unproved.Body))
		p.checkResults(b, receipts(unproved)...)
		p.checkNoProof(b.results[0])
		p.readProof(log, client, unproved)
	}
	p.CheckRefused(p.Call("proofs=x", http.MethodPost, "/events/bulk?proofs=x", nil, joined(first.Body), 0), invalid)
}

func privateProofs(p *relayProbe, log provedLog) {
	client, agent, stranger := p.Actor("a client"), p.Actor("an agent"), p.Actor("a stranger")
	open := p.postProved(log, p.Request(client, kit.Actor{}).Sign(client))
	direct := p.postProved(log, p.Request(client, agent).Sign(client))
	for _, reader := range []kit.Actor{{}, stranger} {
		text := p.checkText(p.read("", reader, proofTarget(client, open.ID)))
		p.checkSameLeaf(p.checkProof(text, open.SignedMessage, log), open)
	}
	for _, reader := range []kit.Actor{client, agent} {
		text := p.checkText(p.read("", reader, proofTarget(client, direct.ID)))
		p.checkSameLeaf(p.checkProof(text, direct.SignedMessage, log), direct)
	}
	p.checkUnauthorized(p.read("", kit.Actor{}, proofTarget(client, direct.ID)))
	absent := p.read("an id that nobody has used", stranger, proofTarget(client, kit.NewID("msg")))
	p.CheckRefused(absent, kit.Refused(http.StatusNotFound, envelope.CodeNotFound))
	p.checkSameAnswer(p.read("", stranger, proofTarget(client, direct.ID)), absent)
}

// requestOf returns a signed REQUEST to a new agent.
func (p *relayProbe) requestOf(client kit.Actor) kit.SignedMessage {
	return p.Request(client, p.Actor("an agent")).Sign(client)
}

// checkOneTree ends the check unless the tiles and all these checkpoints are of one tree.
func (p *relayProbe) checkOneTree(log provedLog, checkpoints ...proof.Checkpoint) {
	bySize := func(a, b proof.Checkpoint) int { return cmp.Compare(a.Size, b.Size) }
	newest := slices.MaxFunc(checkpoints, bySize)
	hashes := p.treeOf(log, newest)
	for _, c := range checkpoints {
		root, err := tlog.TreeHash(c.Size, hashes)
		p.Expect("the tiles and the checkpoints with %d and %d leaves are of one tree", c.Size, newest.Size)
		if err != nil {
			p.Failf("there are two trees: the tiles do not give the root %s of the checkpoint with %d leaves: %v",
				newest.Root, newest.Size, err)
		}
		if root != c.Root {
			p.Failf("there are two trees: the root at the size %d is %s in a checkpoint, and %s in the tiles", c.Size,
				c.Root, root)
		}
	}
}
