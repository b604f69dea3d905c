package testvectors_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/testvectors"
)

func TestLog(t *testing.T) {
	for _, v := range testvectors.Log() {
		t.Run(v.Name, func(t *testing.T) {
			run := checkProof
			if v.Proof == "" && v.Evidence != nil {
				run = checkEvidence
			}
			err := run(t, v)
			if (err == nil) != (v.Expect == testvectors.Accept) {
				t.Errorf("%v; want %s (%s)", err, v.Expect, v.Reason)
			}
		})
	}
}

// checkProof returns the error of the proof of v, and compares the results if there is none.
func checkProof(t *testing.T, v testvectors.LogVector) error {
	var witnesses []*proof.Witness
	for _, key := range v.Witnesses {
		w, err := proof.ParseWitness(key)
		if err != nil {
			t.Fatal(err)
		}
		witnesses = append(witnesses, w)
	}
	p, err := proof.Parse(v.Proof)
	if err != nil {
		return err
	}
	if p.String() != v.Proof {
		t.Errorf("the proof is written as\n%s", p)
	}
	found, err := p.Verify(witnesses...)
	if err != nil {
		return err
	}
	if v.Message != nil {
		m, err := envelope.Parse(v.Message, len(v.Message))
		if err == nil {
			err = m.Verify()
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := found.CheckMessage(m, didkey.DID(v.Relay)); err != nil {
			return err
		}
	}
	leaf := found.Leaf.String()
	if found.Index == 0 {
		leaf = found.Start.String()
	}
	var cosigned []string
	for _, c := range found.Cosigned {
		cosigned = append(cosigned, fmt.Sprint(c.Witness.Name, " ", c.At.Unix()))
	}
	if found.Index != v.Index || found.Size != v.Size || leaf != v.Leaf || !slices.Equal(cosigned, v.Cosigned) {
		t.Errorf("index %d, size %d, leaf %q, cosigned %q", found.Index, found.Size, leaf, cosigned)
	}
	return nil
}

// checkEvidence returns the error of the evidence of v, and compares the results if there is none.
func checkEvidence(t *testing.T, v testvectors.LogVector) error {
	e, err := proof.ParseEvidence(v.Evidence)
	if err != nil {
		return err
	}
	found, err := e.Verify()
	if err != nil {
		return err
	}
	if string(found.Relay) != v.Relay || string(found.Kind) != v.Kind || found.Text == "" {
		t.Errorf("found %+v", found)
	}
	return nil
}
