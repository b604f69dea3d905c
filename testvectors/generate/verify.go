package main

import (
	"slices"

	"github.com/agora-relay/agora/testvectors"
)

// The codes of PROTOCOL §5 with which a relay can refuse a single body.
const (
	badRequest   = "INVALID_REQUEST"
	badVersion   = "UNSUPPORTED_VERSION"
	badDID       = "INVALID_DID"
	badSignature = "INVALID_SIGNATURE"
	forbidden    = "FORBIDDEN"
	tooLarge     = "PAYLOAD_TOO_LARGE"
)

// fieldCase replaces one member of a valid envelope by raw JSON, or removes it if value is empty, and then signs the
// envelope. If code is empty, the envelope must be accepted.
type fieldCase struct{ name, member, value, code, reason string }

// bodyCase makes a body from a valid envelope. If code is empty, the body must be accepted.
type bodyCase struct {
	name, code, reason string
	body               func(d draft) string
}

func verifications() []testvectors.VerifyVector {
	var vectors []testvectors.VerifyVector
	for _, c := range slices.Concat(headFields, partyFields, payloadFields, metaFields, recipientFields(), foldedNames) {
		d := newDraft(c.name).with(c.member, c.value)
		v := testvectors.VerifyVector{Name: c.name, Now: noon, Body: []byte(d.signed())}
		id := "msg_" + c.name
		if c.member == "id" {
			id = acceptedIDs[c.name]
		}
		vectors = append(vectors, withVerdict(v, c.code, c.reason, id, alice.did))
	}
	for _, c := range slices.Concat(bodyForms, notIJSON, signatures(), senders(), threadForms) {
		v := testvectors.VerifyVector{Name: c.name, Now: noon, Body: []byte(c.body(newDraft(c.name)))}
		vectors = append(vectors, withVerdict(v, c.code, c.reason, "msg_"+c.name, alice.did))
	}
	for _, c := range timeForms {
		v := testvectors.VerifyVector{Name: c.name, Now: noon, Body: []byte(newDraft(c.name).with("ts", c.ts).signed())}
		vectors = append(vectors, withVerdict(v, c.code, c.reason, "msg_"+c.name, alice.did))
	}
	for _, c := range clocks {
		d := newDraft(c.name).with("ts", quote(c.ts)).with("meta", c.meta)
		v := testvectors.VerifyVector{Name: c.name, Now: c.now, Body: []byte(d.signed())}
		vectors = append(vectors, withVerdict(v, c.code, c.reason, "msg_"+c.name, alice.did))
	}
	return vectors
}

// withVerdict returns v with the expected result.
func withVerdict(v testvectors.VerifyVector, code, reason, id, sender string) testvectors.VerifyVector {
	if code != "" {
		v.Expect, v.Code, v.Reason = testvectors.Reject, code, reason
		return v
	}
	v.Expect, v.ID, v.Sender, v.Canonical = testvectors.Accept, id, sender, canonical(v.Body)
	if inner, ok := unwrapped(v.Body); ok {
		v.Canonical = inner
	}
	return v
}
