package proof

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/testvectors"
	"github.com/agora-relay/agora/thread"
)

// The vectors of testvectors/log.json and relays.json test what is accepted and what is refused. The tests here test
// the rest.

// FuzzParse checks that what is parsed is written as the same bytes, so no proof has two spellings.
func FuzzParse(f *testing.F) {
	for _, v := range testvectors.Log() {
		if v.Proof != "" {
			f.Add(v.Proof)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse(text)
		if err != nil {
			return
		}
		if again := p.String(); again != text {
			t.Fatalf("%q is written as %q", text, again)
		}
		v, err := p.Verify()
		if err == nil && v.Index > 0 && v.Leaf.String() != p.Extra || err == nil && v.Index == 0 && v.Start.String() != p.Extra {
			t.Fatalf("the leaf %q is written as %q or %q", p.Extra, v.Leaf, v.Start)
		}
	})
}

// FuzzLeaf checks that what is parsed is written as the same bytes.
func FuzzLeaf(f *testing.F) {
	for _, v := range testvectors.Log() {
		if v.Leaf != "" {
			f.Add(v.Leaf)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		if l, err := ParseLeaf(text); err == nil && l.String() != text {
			t.Fatalf("%q is written as %q", text, l)
		}
		if s, err := ParseStart(text); err == nil && s.String() != text {
			t.Fatalf("%q is written as %q", text, s)
		}
	})
}

// FuzzEvidence checks that no evidence makes Verify panic, and that it never blames somebody who has not signed.
func FuzzEvidence(f *testing.F) {
	for _, v := range testvectors.Relays() {
		if v.Evidence != nil {
			f.Add(v.Evidence)
		}
	}
	for _, v := range testvectors.Log() {
		if v.Evidence != nil {
			f.Add(v.Evidence)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := ParseEvidence(text)
		if err != nil {
			return
		}
		plain, err := envelope.Canonicalize(text) // without escapes that a DID does not need
		if err != nil {
			t.Fatal(err)
		}
		if found, err := e.Verify(); err == nil && !strings.Contains(string(plain), string(found.Relay+found.Client)) {
			t.Fatalf("%+v", found)
		}
	})
}

// TestLimits checks the bounds of what is parsed.
func TestLimits(t *testing.T) {
	if _, err := Parse(strings.Repeat("x", MaxBytes+1)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large proof: %v", err)
	}
	if _, err := ParseCheckpoint(strings.Repeat("x", MaxBytes+1)); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a large checkpoint: %v", err)
	}
	if _, err := ParseEvidence(make([]byte, MaxEvidence+1)); envelope.CodeOf(err) != envelope.CodePayloadTooLarge {
		t.Errorf("large evidence: %v", err)
	}
	good := VerifierKey("witness.example/1", seeded(t, 5).DID())
	name, rest, _ := strings.Cut(good, "+")
	hash, public, _ := strings.Cut(rest, "+")
	if _, err := ParseWitness(name + "+" + hash + "+" + public); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"", "name", "name+00000000", "name+00000000+AA==", "+00000000+BAAA",
		"na me+" + hash + "+" + public, name + "+" + strings.ToUpper(hash) + "+" + public,
		name + "+" + hash[:6] + "+" + public, name + "+" + hash + "00+" + public, name + "+0000000g+" + public, name + "+00000000+" + public} {
		if _, err := ParseWitness(key); err == nil {
			t.Errorf("%q is taken as the key of a witness", key)
		}
	}
}

// TestHonestThreads checks that no two messages that the rules of threads accept one after the other are evidence.
func TestHonestThreads(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	var keys []didkey.DID
	for n := range byte(4) {
		k, err := didkey.FromSeed(append(make([]byte, 31), n+1))
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k.DID())
	}
	pairs := map[[2]envelope.Type]int{}
	for range 3000 {
		for _, pair := range honestPairs(random, keys) {
			if contradicts(pair[0], pair[1]) {
				t.Fatalf("%s by %s after %s to %s", pair[1].Type, pair[1].Sender.ID, pair[0].Type, pair[0].Recipient)
			}
			pairs[[2]envelope.Type{pair[0].Type, pair[1].Type}]++
		}
	}
	for _, types := range [][2]envelope.Type{{envelope.TypeAccept, envelope.TypeResult},
		{envelope.TypeAccept, envelope.TypeCancel}, {envelope.TypeOffer, envelope.TypeOffer}} {
		if pairs[types] == 0 {
			t.Errorf("%v did not occur", types)
		}
	}
}

// honestPairs plays random messages to one thread and returns each two that were accepted, in their order.
func honestPairs(random *rand.Rand, keys []didkey.DID) (pairs [][2]*envelope.Envelope) {
	now := time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)
	types := []envelope.Type{envelope.TypeOffer, envelope.TypeAccept, envelope.TypeResult, envelope.TypeCancel,
		envelope.TypeError}
	var threads []thread.Thread
	var accepted []*envelope.Envelope
	for i := range 25 {
		m := &envelope.Envelope{ID: "m" + strings.Repeat("x", i), Type: types[random.IntN(len(types))], TS: now, Thread: "t",
			Sender: envelope.Party{ID: keys[random.IntN(len(keys))]}, RequestID: "r", TTL: time.Hour}
		if random.IntN(2) == 0 {
			m.Recipient = keys[random.IntN(len(keys))]
		}
		m.Payload = []byte(`{"code":"INTERNAL_ERROR","message":"m","request_id":"r","status":"success"}`)
		if i == 0 {
			m.Type, m.Sender.ID, m.Payload = envelope.TypeRequest, keys[0], []byte(`{"intent":"i","request_id":"r"}`)
		}
		next, chosen, err := thread.Rules{}.Apply(threads, m, now)
		if err != nil {
			continue
		}
		if chosen < 0 {
			threads = append(threads, next)
		} else {
			threads[chosen] = next
		}
		for _, before := range accepted {
			pairs = append(pairs, [2]*envelope.Envelope{before, m})
		}
		accepted = append(accepted, m)
	}
	return pairs
}

// TestHugeLogs checks that a relay cannot keep a reader busy by the size of its log.
func TestHugeLogs(t *testing.T) {
	key, err := didkey.Generate()
	if err != nil {
		t.Fatal(err)
	}
	for size, parses := range map[int64]bool{1<<53 - 1: true, 1 << 53: false, 1<<62 + 1: false, math.MaxInt64: false} {
		c, err := SignCheckpoint(key, Origin{DID: key.DID()}, size, Hash{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := Parse((&Proof{Extra: "x", Index: 5, Path: make([]Hash, 60), Checkpoint: c}).String())
		if parses != (err == nil) {
			t.Errorf("a log with %d leaves: %v", size, err)
		} else if parses {
			if _, err := p.Verify(); err == nil {
				t.Error("a path to zeros is valid")
			}
		}
	}
}
