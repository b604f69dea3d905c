package proof

import (
	"slices"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/testvectors"
)

// TestCompare checks that Compare finds the evidence of the vectors in the proofs and messages alone, and that all that
// it finds is evidence. That it finds nothing in honest logs is tested by the simulation of a relay.
func TestCompare(t *testing.T) {
	kinds := map[Kind]int{}
	for _, v := range testvectors.Log() {
		e, err := ParseEvidence(v.Evidence)
		if v.Evidence == nil || err != nil {
			continue
		}
		var statements []*Statement
		var checkpoints []*Checkpoint
		for i, text := range e.Proofs {
			s := &Statement{}
			if s.Proof, err = Parse(text); err == nil {
				s.Verified, err = s.Verify()
			}
			if err != nil {
				continue
			}
			if i < len(e.Events) {
				if m, err := envelope.Parse(e.Events[i], MaxEvidence); err == nil && m.Verify() == nil {
					s.Event = m
				}
			}
			statements = append(statements, &Statement{Proof: s.Proof, Verified: s.Verified}, s) // first without its message
		}
		for _, text := range e.Checkpoints {
			c, err := ParseCheckpoint(text)
			if err == nil {
				_, err = c.Verify()
			}
			if err == nil {
				checkpoints = append(checkpoints, &c)
			}
		}
		var found []Kind
		for _, f := range Compare(statements, checkpoints) {
			if _, err := f.Verify(); err != nil {
				t.Errorf("%s: %v", v.Name, err)
			}
			found = append(found, f.Kind)
		}
		if v.Expect == testvectors.Accept && e.Consistency == nil { // forks of two sizes need the log
			if kinds[e.Kind]++; !slices.Contains(found, e.Kind) {
				t.Errorf("%s: found %v, want %s", v.Name, found, e.Kind)
			}
		}
	}
	if len(kinds) != 6 {
		t.Errorf("the vectors have the kinds %v", kinds)
	}
}
