package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// noon is the relay's clock, and the ts of messages, unless a table says otherwise.
const noon = "2026-02-02T12:00:00Z"

// member is a member of an object as it is spelled: raw JSON, name and quotes included.
type member struct{ name, value string }

// draft is an unsigned envelope as it is spelled: its members, in an order that is not the canonical one.
type draft struct {
	members []member
	key     key
}

// newDraft returns a REQUEST of Alice's that is in order. Its id and its thread come from name.
func newDraft(name string) draft {
	return draft{key: alice, members: []member{
		{"version", `"1.0"`}, {"id", quote("msg_" + name)}, {"ts", quote(noon)}, {"type", `"REQUEST"`},
		{"sender", party(alice.did)}, {"payload", `{"request_id":"req_1","intent":"echo"}`},
		{"thread", `{"id":"thread_` + name + `"}`}, {"meta", `{"ttl":300}`},
	}}
}

// with returns d with a member replaced, or added at the end; an empty value takes it out.
func (d draft) with(name, value string) draft {
	i := slices.IndexFunc(d.members, func(m member) bool { return m.name == name })
	d.members = slices.Clone(d.members)
	switch {
	case value == "" && i >= 0:
		d.members = slices.Delete(d.members, i, i+1)
	case i >= 0:
		d.members[i].value = value
	case value != "":
		d.members = append(d.members, member{name, value})
	}
	return d
}

// value returns a member as it is spelled.
func (d draft) value(name string) string {
	return d.members[slices.IndexFunc(d.members, func(m member) bool { return m.name == name })].value
}

// text returns the envelope without a signature.
func (d draft) text() string {
	var parts []string
	for _, m := range d.members {
		parts = append(parts, `"`+m.name+`":`+m.value)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// sig returns the signature of d by its key, over the canonical form a lenient parser finds.
func (d draft) sig() string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(d.key.private, canonical([]byte(d.text()))))
}

// signed returns the envelope, its signature behind the other members.
func (d draft) signed() string { return d.withSig(quote(d.sig())) }

// withSig returns the envelope with a raw value as its signature, which may be empty for none.
func (d draft) withSig(value string) string { return d.with("sig", value).text() }

// quote writes a text that needs no escapes as JSON.
func quote(text string) string { return `"` + text + `"` }

func party(did string) string { return fmt.Sprintf(`{"id":"%s"}`, did) }

func wrapped(envelope string) string { return `{"envelope":` + envelope + `}` }
