package a2a

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// ProofURI names the extension by which an agent signs what it did in a turn (A2A §7). A task has the proof of its
// last turn in its metadata under this name.
const ProofURI = "https://github.com/agora-relay/agora/ext/proof/v1"

// MaxProof is how many bytes of JSON a relay keeps of a proof.
const MaxProof = 32 << 10

// ProofExtension returns the extension for the card of an agent that makes proofs.
func ProofExtension(did didkey.DID) Extension {
	return Extension{URI: ProofURI, Description: "signs request and answer of each turn",
		Params: map[string]any{"did": string(did)}}
}

// Proof is a JWS of the agent over the hashes of a turn. Payload is base64url.
type Proof struct {
	Turn    string `json:"turn"`
	Payload string `json:"payload"`
	Signature
}

// ParseProof reads a proof. It does not verify it. Errors: BadParams.
func ParseProof(path string, text []byte) (Proof, error) {
	r := read(path, text)
	p := Proof{r.text("turn", true), r.text("payload", true),
		Signature{r.text("protected", true), r.text("signature", true)}}
	return p, r.err
}

// Proven is what a proof is about.
type Proven struct {
	Task      string
	Turn      int
	State     State
	Request   Message    // of the caller, as sent
	Artifacts []Artifact // all of the task, whole
	Message   *Message   // the status message
}

// Merge returns artifacts with others, which replace those with the same id.
func Merge(all, others []Artifact) []Artifact {
	all = slices.Clone(all)
	for _, a := range others {
		if i := slices.IndexFunc(all, func(b Artifact) bool { return b.ArtifactID == a.ArtifactID }); i >= 0 {
			all[i] = a
		} else {
			all = append(all, a)
		}
	}
	return all
}

// hash returns the base64url SHA-256 of the RFC 8785 form of an object.
func hash(object any) (string, error) {
	canonical, err := envelope.Canonicalize(jsontext.Compact(object))
	sum := sha256.Sum256(canonical)
	return encode(sum[:]), err
}

// payload returns the RFC 8785 form of the hashes. The ids that a relay sets are left out of messages.
func (p Proven) payload() ([]byte, error) {
	artifacts := map[string]string{}
	for _, a := range p.Artifacts {
		h, err := hash(a)
		if err != nil {
			return nil, err
		}
		artifacts[a.ArtifactID] = h
	}
	request, err := hash(p.Request.In("", "", nil))
	if err != nil {
		return nil, err
	}
	object := map[string]any{"artifacts": artifacts, "request": request, "state": p.State, "task": p.Task,
		"turn": strconv.Itoa(p.Turn)}
	if p.Message != nil {
		h, err := hash(p.Message.In("", "", nil))
		if err != nil {
			return nil, err
		}
		object["message"] = h
	}
	return envelope.Canonicalize(jsontext.Compact(object))
}

// Sign returns the proof, signed by the agent.
func (p Proven) Sign(signer envelope.Signer) (Proof, error) {
	payload, err := p.payload()
	if err != nil {
		return Proof{}, err
	}
	signature, err := signJWS(signer, "", payload)
	return Proof{strconv.Itoa(p.Turn), encode(payload), signature}, err
}

// Verify checks that a proof is one of did over exactly p. The error says what differs.
func (p Proven) Verify(proof Proof, did didkey.DID) error {
	signed, err := base64.RawURLEncoding.Strict().DecodeString(proof.Payload)
	if err != nil {
		return fmt.Errorf("the payload of the proof is not base64url")
	}
	if _, ok := verifyJWS(did, proof.Signature, signed); !ok {
		return fmt.Errorf("the proof is not signed by %s", did)
	}
	want, err := p.payload()
	if err != nil {
		return err
	}
	if bytes.Equal(want, signed) && proof.Turn == strconv.Itoa(p.Turn) {
		return nil
	}
	var is, should map[string]json.RawMessage
	if json.Unmarshal(signed, &is) == nil && json.Unmarshal(want, &should) == nil {
		for _, name := range sorted(should) {
			if !bytes.Equal(is[name], should[name]) {
				return fmt.Errorf("the agent signed another %s", name)
			}
		}
	}
	return fmt.Errorf("the agent signed something else")
}
