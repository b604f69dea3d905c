package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
)

// noon is the time on the relay's clock, and the ts of messages, unless a table has another time.
const noon = "2026-02-02T12:00:00Z"

// member is one member of an object: its name and its raw JSON value. The name is written as given, so it may contain
// escapes.
type member struct{ name, value string }

// draft is an unsigned envelope. Its members are not in canonical order.
type draft struct {
	members []member
	key     key
}

// newDraft returns a valid REQUEST by Alice. Its id and its thread are derived from name.
func newDraft(name string) draft {
	return draft{key: alice, members: []member{
		{"version", `"1.0"`}, {"id", quote("msg_" + name)}, {"ts", quote(noon)}, {"type", `"REQUEST"`},
		{"sender", party(alice.did)}, {"payload", `{"request_id":"req_1","intent":"echo"}`},
		{"thread", `{"id":"thread_` + name + `"}`}, {"meta", `{"ttl":300}`},
	}}
}

// with returns d with a member replaced, or added at the end. An empty value removes the member.
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

// value returns the raw value of a member.
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

// sig returns the signature of d by its key. It covers the canonical form that a lenient parser would produce.
func (d draft) sig() string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(d.key.private, canonical([]byte(d.text()))))
}

// signed returns the envelope with its signature as the last member.
func (d draft) signed() string { return d.withSig(quote(d.sig())) }

// withSig returns the envelope with a raw value as its signature. If value is empty, there is no signature.
func (d draft) withSig(value string) string { return d.with("sig", value).text() }

// quote returns text as a JSON string. text must not need escapes.
func quote(text string) string { return `"` + text + `"` }

func party(did string) string { return fmt.Sprintf(`{"id":"%s"}`, did) }

func wrapped(envelope string) string { return `{"envelope":` + envelope + `}` }
