package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Kind says how somebody has contradicted himself: a relay (LOG §6), or a client with KindAccepts (RELAYS R-9).
type Kind string

// The kinds of evidence. Chain alone can have an honest cause: an operator who restores the same backup twice.
const (
	KindFork  Kind = "fork"  // two checkpoints are not of one log
	KindIndex Kind = "index" // one place of the log has two leaves
	KindTwice Kind = "twice" // one message was accepted twice
	KindSteps Kind = "steps" // a message was accepted, although it cannot follow an earlier one
	KindTime  Kind = "time"  // a message was backdated
	KindChain Kind = "chain" // a log was continued, or followed by two logs, after the next one had begun

	KindAccepts Kind = "accepts" // a client has accepted two agents for one job
)

// EvidenceType is the member typ of evidence.
const EvidenceType = "agora-evidence/1"

// MaxEvidence is the maximum size of evidence in bytes.
const MaxEvidence = 1 << 20

// maxDating is how much earlier than a leaf before it a leaf may be. A clock may be set back by 15 minutes.
const maxDating = 20 * time.Minute

// Evidence is a set of texts of a relay or of a client that contradict each other. It shows nothing before Verify has
// returned no error.
type Evidence struct {
	Type   string   `json:"typ"`
	Kind   Kind     `json:"kind"`
	Proofs []string `json:"proofs,omitempty"` // two; not for KindFork and KindAccepts
	// For KindSteps the envelopes of Proofs. For KindAccepts two times REQUEST, OFFER and ACCEPT.
	Events      []json.RawMessage `json:"events,omitempty"`
	Checkpoints []string          `json:"checkpoints,omitempty"` // two, only for KindFork
	// If the checkpoints have different sizes: Root is the root of the larger log when it had the size of the smaller one.
	// Consistency proves this.
	Consistency []Hash `json:"consistency,omitempty"`
	Root        *Hash  `json:"root,omitempty"`
}

// ParseEvidence reads evidence. It checks the form only.
func ParseEvidence(text []byte) (*Evidence, error) {
	canonical, err := envelope.ParseObject(text, MaxEvidence)
	if err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	e := &Evidence{}
	decoder := json.NewDecoder(bytes.NewReader(canonical))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(e); err != nil {
		return nil, fmt.Errorf("evidence: %w", err)
	}
	// A decoder also takes other spellings of names, and null. Written again, they are different.
	again, err := json.Marshal(e)
	if err == nil {
		again, err = envelope.Canonicalize(again)
	}
	if err != nil || !bytes.Equal(again, canonical) {
		return nil, errors.New("evidence: a member has not the form that it must have")
	}
	if e.Type != EvidenceType {
		return nil, fmt.Errorf("evidence: typ is not %q", EvidenceType)
	}
	return e, nil
}

// Finding is what evidence shows, against a relay or against a client.
type Finding struct {
	Relay, Client didkey.DID // one of them is empty
	Kind          Kind
	Text          string // a sentence that says what the relay or the client did
}

// Verify checks e, and returns what it shows. An error says why e shows nothing.
func (e *Evidence) Verify() (Finding, error) {
	if err := e.checkMembers(); err != nil {
		return Finding{}, err
	}
	switch e.Kind {
	case KindFork:
		return e.fork()
	case KindAccepts:
		return e.accepts()
	}
	check := map[Kind]func(a, b *Verified) (string, error){KindIndex: index, KindTwice: twice, KindSteps: e.steps,
		KindTime: dating, KindChain: chain}[e.Kind]
	var proofs [2]*Verified
	for i, text := range e.Proofs {
		p, err := Parse(text)
		if err == nil {
			proofs[i], err = p.Verify()
		}
		if err != nil {
			return Finding{}, fmt.Errorf("proof %d: %w", i+1, err)
		}
	}
	a, b := proofs[0], proofs[1]
	if a.Origin.DID != b.Origin.DID {
		return Finding{}, errors.New("the proofs are by two relays")
	}
	text, err := check(a, b)
	return Finding{Relay: a.Origin.DID, Kind: e.Kind, Text: text}, err
}

// kindMembers has how many members the evidence of each kind has.
var kindMembers = map[Kind]struct{ checkpoints, proofs, events int }{
	KindFork: {checkpoints: 2}, KindIndex: {proofs: 2}, KindTwice: {proofs: 2}, KindSteps: {proofs: 2, events: 2},
	KindTime: {proofs: 2}, KindChain: {proofs: 2}, KindAccepts: {events: 6},
}

// checkMembers checks that e has the members of its kind, and no others.
func (e *Evidence) checkMembers() error {
	want, known := kindMembers[e.Kind]
	switch {
	case !known:
		return fmt.Errorf("there is no kind of evidence %.20q", e.Kind)
	case len(e.Checkpoints) != want.checkpoints:
		return fmt.Errorf("this kind of evidence has %d checkpoints", want.checkpoints)
	case len(e.Proofs) != want.proofs:
		return fmt.Errorf("this kind of evidence has %d proofs", want.proofs)
	case len(e.Events) != want.events:
		return fmt.Errorf("this kind of evidence has %d events", want.events)
	case e.Kind != KindFork && (e.Root != nil || e.Consistency != nil):
		return errors.New("only a fork has a root and a consistency proof")
	}
	return nil
}

// fork checks two checkpoints.
func (e *Evidence) fork() (Finding, error) {
	var all [2]Checkpoint
	for i, text := range e.Checkpoints {
		var err error
		if all[i], err = ParseCheckpoint(text); err == nil {
			_, err = all[i].Verify()
		}
		if err != nil {
			return Finding{}, fmt.Errorf("checkpoint %d: %w", i+1, err)
		}
	}
	a, b := all[0], all[1]
	if a.Size > b.Size {
		a, b = b, a
	}
	root := b.Root
	switch {
	case a.Origin != b.Origin:
		return Finding{}, errors.New("the checkpoints are of two logs")
	case a.Size == b.Size:
		if e.Root != nil || e.Consistency != nil {
			return Finding{}, errors.New("checkpoints of one size need no root and no consistency proof")
		}
	case e.Root == nil:
		return Finding{}, errors.New("checkpoints of two sizes need the member root")
	default:
		root = *e.Root
		if err := b.Extends(a.Size, root, e.Consistency); err != nil {
			return Finding{}, err
		}
	}
	if a.Root == root {
		return Finding{}, errors.New("the checkpoints agree")
	}
	text := fmt.Sprintf("the relay has signed two different histories of its log %s, which differ within the first "+
		"%d leaves",
		a.Origin, a.Size)
	return Finding{Relay: a.Origin.DID, Kind: KindFork, Text: text}, nil
}

// ordered returns two proofs of one log in the order of their leaves.
func ordered(a, b *Verified) (first, second *Verified, err error) {
	switch {
	case a.Origin != b.Origin:
		return nil, nil, errors.New("the proofs are of two logs")
	case a.Index == b.Index:
		return nil, nil, errors.New("the proofs are of one leaf")
	case a.Index > b.Index:
		return b, a, nil
	}
	return a, b, nil
}

func index(a, b *Verified) (string, error) {
	if a.Origin != b.Origin || a.Index != b.Index || a.hash == b.hash {
		return "", errors.New("the proofs are not of one log and one index with two leaves")
	}
	return fmt.Sprintf("the log %s has two leaves with the index %d", a.Origin, a.Index), nil
}

func twice(a, b *Verified) (string, error) {
	first, second, err := ordered(a, b)
	if err == nil && (first.Index == 0 || first.Leaf.Event != second.Leaf.Event) {
		err = errors.New("the proofs are of two messages")
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the log %s has one message twice, at the indexes %d and %d", first.Origin, first.Index,
		second.Index), nil
}

func dating(a, b *Verified) (string, error) {
	first, second, err := ordered(a, b)
	if err == nil && (first.Index == 0 || first.Leaf.Received.Sub(second.Leaf.Received) <= maxDating) {
		err = fmt.Errorf("the later leaf is not more than %s older", maxDating)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("in the log %s, the leaf %d arrived at %s, and the later leaf %d at %s", first.Origin, first.Index,
		envelope.FormatTime(first.Leaf.Received), second.Index, envelope.FormatTime(second.Leaf.Received)), nil
}

// steps checks two messages of one thread.
func (e *Evidence) steps(a, b *Verified) (string, error) {
	if a.Index == 0 || b.Index == 0 || a.Leaf.Request != b.Leaf.Request || a.Leaf.Request == (Hash{}) {
		return "", errors.New("the proofs are not of messages that answer one REQUEST")
	}
	messages := map[*Verified]*envelope.Envelope{}
	for i, v := range []*Verified{a, b} {
		m, err := envelope.Parse(e.Events[i], MaxEvidence)
		if err == nil {
			err = m.Verify()
		}
		if err == nil && m.Hash() != v.Leaf.Event {
			err = errors.New("its proof is that of another message")
		}
		if err != nil {
			return "", fmt.Errorf("event %d: %w", i+1, err)
		}
		messages[v] = m
	}
	if a.Origin != b.Origin {
		if !sameEnd(messages[a], messages[b]) {
			return "", errors.New("the proofs are of two logs, and not of two ACCEPTs or RESULTs")
		}
		return fmt.Sprintf("the relay has accepted two messages %s in answer to one REQUEST", messages[a].Type), nil
	}
	first, second, err := ordered(a, b)
	if err == nil && !contradicts(messages[first], messages[second]) {
		err = fmt.Errorf("%s can follow %s in a thread", messages[second].Type, messages[first].Type)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("the relay has accepted %s after %s in one thread", messages[second].Type,
		messages[first].Type), nil
}

// sameEnd reports whether a and b are two messages of which a thread can have only one.
func sameEnd(a, b *envelope.Envelope) bool {
	return a.Type == b.Type && (a.Type == envelope.TypeAccept || a.Type == envelope.TypeResult) && a.Hash() != b.Hash()
}

// contradicts reports whether no relay that follows the protocol accepts second after first in one thread (LOG §6,
// PROTOCOL §4).
func contradicts(first, second *envelope.Envelope) bool {
	switch first.Type {
	case envelope.TypeAccept:
		other := first.Recipient != "" && second.Sender.ID != first.Recipient
		return second.Type == envelope.TypeOffer || second.Type == envelope.TypeAccept ||
			second.Type == envelope.TypeResult && other
	case envelope.TypeResult:
		return second.Type == envelope.TypeOffer || second.Type == envelope.TypeAccept ||
			second.Type == envelope.TypeResult || second.Type == envelope.TypeCancel
	}
	return first.Type == envelope.TypeCancel
}

// chain checks the start of a log and a leaf of the log before, or two starts.
func chain(a, b *Verified) (string, error) {
	if a.Origin == b.Origin {
		return "", errors.New("the proofs are of one log")
	}
	if a.Index == 0 && b.Index == 0 && a.Start.Previous.String() == b.Start.Previous.String() {
		return fmt.Sprintf("the logs %s and %s both begin after the same log", a.Origin, b.Origin), nil
	}
	for _, pair := range [][2]*Verified{{a, b}, {b, a}} {
		start, before := pair[0], pair[1]
		p := start.Start.Previous
		if start.Index == 0 && p != nil && p.Origin == before.Origin && before.Index >= p.Size {
			return fmt.Sprintf("the log %s says that the log %s ended with %d leaves, but that has a leaf number %d",
				start.Origin, before.Origin, p.Size, before.Index+1), nil
		}
	}
	return "", errors.New("neither log contradicts the other")
}
