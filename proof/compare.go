package proof

import (
	"encoding/json"
	"slices"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Statement is a proof whose Verify has succeeded, and its message, if that is known and verified.
type Statement struct {
	*Proof
	*Verified
	Event *envelope.Envelope // nil: unknown
}

// tree names a tree that a relay has signed.
type tree struct {
	origin Origin
	size   int64
}

// place names a leaf.
type place struct {
	origin Origin
	index  int64
}

// comparison looks for contradictions in statements. Each map has the first statement about its key.
type comparison struct {
	found   []*Evidence
	trees   map[tree]*Checkpoint
	leaves  map[place]*Statement
	events  map[Origin]map[Hash]*Statement
	threads map[didkey.DID]map[Hash][]*Statement // by the hash of the REQUEST
	last    map[Origin]*Statement                // with the highest index
	starts  map[didkey.DID][]*Statement
}

// Compare returns the evidence that statements of relays give against these relays, and that checkpoints give, which
// Verify has accepted. There is at most one for each key that two of them are about.
func Compare(statements []*Statement, checkpoints []*Checkpoint) []*Evidence {
	c := &comparison{trees: map[tree]*Checkpoint{}, leaves: map[place]*Statement{},
		events: map[Origin]map[Hash]*Statement{}, threads: map[didkey.DID]map[Hash][]*Statement{},
		last: map[Origin]*Statement{}, starts: map[didkey.DID][]*Statement{}}
	for _, s := range statements {
		c.tree(&s.Checkpoint)
		c.leaf(s)
	}
	for _, checkpoint := range checkpoints {
		c.tree(checkpoint)
	}
	c.times(statements)
	c.chains()
	return c.found
}

// report adds evidence, if it shows something.
func (c *comparison) report(kind Kind, a, b *Statement) bool {
	e := &Evidence{Type: EvidenceType, Kind: kind, Proofs: []string{a.Proof.String(), b.Proof.String()}}
	if kind == KindSteps {
		e.Events = []json.RawMessage{a.Event.Canonical(), b.Event.Canonical()}
	}
	if _, err := e.Verify(); err != nil {
		return false
	}
	c.found = append(c.found, e)
	return true
}

// tree compares the trees of one size.
func (c *comparison) tree(checkpoint *Checkpoint) {
	key := tree{checkpoint.Origin, checkpoint.Size}
	known := c.trees[key]
	if known == nil {
		c.trees[key] = checkpoint
		return
	}
	e := &Evidence{Type: EvidenceType, Kind: KindFork, Checkpoints: []string{known.String(), checkpoint.String()}}
	if _, err := e.Verify(); err == nil {
		c.found = append(c.found, e)
	}
}

// leaf compares a leaf with those of the same index, event and thread.
func (c *comparison) leaf(s *Statement) {
	at := place{s.Origin, s.Verified.Index}
	if known := c.leaves[at]; known != nil {
		switch {
		case known.hash != s.hash:
			c.report(KindIndex, known, s)
		case known.Event == nil && s.Event != nil:
			known.Event = s.Event
			c.step(known)
		}
		return
	}
	c.leaves[at] = s
	if last := c.last[s.Origin]; last == nil || last.Verified.Index < s.Verified.Index {
		c.last[s.Origin] = s
	}
	if s.Verified.Index == 0 {
		c.starts[s.Origin.DID] = append(c.starts[s.Origin.DID], s)
		return
	}
	if c.events[s.Origin] == nil {
		c.events[s.Origin] = map[Hash]*Statement{}
	}
	if known := c.events[s.Origin][s.Leaf.Event]; known != nil {
		c.report(KindTwice, known, s)
		return
	}
	c.events[s.Origin][s.Leaf.Event] = s
	c.step(s)
}

// step compares a message with the others of its thread.
func (c *comparison) step(s *Statement) {
	if s.Event == nil || s.Leaf.Request == (Hash{}) {
		return
	}
	if c.threads[s.Origin.DID] == nil {
		c.threads[s.Origin.DID] = map[Hash][]*Statement{}
	}
	others := c.threads[s.Origin.DID][s.Leaf.Request]
	for _, other := range others[max(0, len(others)-maxCompared):] {
		if s.mayContradict(other) && c.report(KindSteps, other, s) {
			break
		}
	}
	c.threads[s.Origin.DID][s.Leaf.Request] = append(others, s)
}

// mayContradict reports whether two messages of a thread contradict each other, by their contents alone.
func (s *Statement) mayContradict(other *Statement) bool {
	first, second := other, s
	if first.Verified.Index > second.Verified.Index {
		first, second = second, first
	}
	return sameEnd(s.Event, other.Event) || s.Origin == other.Origin && contradicts(first.Event, second.Event)
}

// maxCompared is how many messages of a thread Compare compares a message with. A thread of the protocol has fewer.
const maxCompared = 200

// times compares the times of leaves with the latest time before them.
func (c *comparison) times(statements []*Statement) {
	sorted := slices.SortedFunc(slices.Values(statements), func(a, b *Statement) int {
		return int(min(max(a.Verified.Index-b.Verified.Index, -1), 1))
	})
	latest, reported := map[Origin]*Statement{}, map[Origin]bool{}
	for _, s := range sorted {
		if s.Verified.Index == 0 {
			continue
		}
		before := latest[s.Origin]
		if before != nil && !reported[s.Origin] && before.Leaf.Received.Sub(s.Leaf.Received) > maxDating {
			reported[s.Origin] = c.report(KindTime, before, s)
		}
		if before == nil || s.Leaf.Received.After(before.Leaf.Received) {
			latest[s.Origin] = s
		}
	}
}

// chains compares the starts of the logs of a relay with each other and with the logs before.
func (c *comparison) chains() {
	for _, starts := range c.starts {
		for i, s := range starts {
			for _, other := range starts[:i] {
				c.report(KindChain, other, s)
			}
			if p := s.Start.Previous; p != nil && c.last[p.Origin] != nil {
				c.report(KindChain, s, c.last[p.Origin])
			}
		}
	}
}
