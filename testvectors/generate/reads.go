package main

import (
	"encoding/base64"
	"encoding/hex"
	"strings"

	"github.com/agora-relay/agora/testvectors"
)

// The origin and the target of the requests, unless a table has others.
const (
	readOrigin = "https://relay.example"
	readTarget = "/events?cursor=0&recipient=RECIPIENT&timeout=30"
)

// newRead returns the JSON object of a valid token, by Alice for her inbox.
func newRead() draft {
	return draft{key: alice, members: []member{
		{"typ", `"agora-read"`}, {"did", quote(alice.did)}, {"aud", quote(readOrigin)}, {"method", `"GET"`}, {"target", quote(target(readTarget))},
		{"ts", quote(noon)}, {"nonce", `"Zm9ydHktdHdvIGJ5dGVz"`},
	}}
}

func target(text string) string { return strings.ReplaceAll(text, "RECIPIENT", alice.did) }

func encoded(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// set returns a function that changes a member before the token is signed.
func set(name, value string) func(draft) string {
	return func(d draft) string { return encoded(d.with(name, value).signed()) }
}

// spelled returns a function that replaces text in the JSON of a signed token.
func spelled(old, new string) func(draft) string {
	return func(d draft) string {
		text := d.signed()
		if !strings.Contains(text, old) {
			panic(old + " is not in " + text)
		}
		return encoded(strings.Replace(text, old, new, 1))
	}
}

func reads() (vectors []testvectors.ReadVector) {
	for _, c := range readTable {
		d := newRead()
		v := testvectors.ReadVector{Name: c.name, Now: noon, Origin: readOrigin, Method: "GET", Target: target(readTarget), Token: c.token(d),
			Expect: testvectors.Reject, Code: "UNAUTHORIZED", Detail: c.detail, Reason: c.reason}
		if c.reason == "" {
			v.Expect, v.Code, v.DID, v.SeedHex = testvectors.Accept, "", alice.did, hex.EncodeToString(alice.seed)
			v.Signed = c.signed(d)
		}
		vectors = append(vectors, v)
	}
	return vectors
}

// signed returns the bytes that the signature of an accepted token covers. They are taken from the token itself.
func (c readCase) signed(d draft) []byte {
	text, err := base64.RawURLEncoding.DecodeString(c.token(d))
	if err != nil {
		panic(err)
	}
	form := string(canonical(text))
	before, rest, _ := strings.Cut(form, `"sig":"`)
	_, after, _ := strings.Cut(rest, `",`)
	return []byte(before + after)
}

type readCase struct {
	name           string
	token          func(draft) string
	detail, reason string // if rejected
}

const (
	malformed      = "malformed"
	wrongSignature = "The signature over these members is not by the key in did."
)

var readTable = []readCase{
	{"plain", func(d draft) string { return encoded(d.signed()) }, "", ""},
	{"canonical", func(d draft) string { return encoded(string(canonical([]byte(d.signed())))) }, "", ""},
	{"white-space", spelled(`{"typ"`, "{ \n\"typ\""), "", ""},
	{"escapes", spelled(`"nonce"`, `"no\u006ece"`), "", ""},
	{"ts-59s-old", set("ts", `"2026-02-02T11:59:01Z"`), "", ""},
	{"ts-59s-ahead", set("ts", `"2026-02-02T12:00:59Z"`), "", ""},
	{"ts-other-offset", set("ts", `"2026-02-02T20:00:00.123+08:00"`), "", ""},
	{"nonce-16", set("nonce", `"0123456789abcdef"`), "", ""},
	{"nonce-64", set("nonce", quote(strings.Repeat("aZ-_", 16))), "", ""},

	{"aud-other", set("aud", `"https://other.example"`), "audience", "The token is for another relay."},
	{"aud-with-slash", set("aud", `"https://relay.example/"`), "audience", "The origin is compared as text and has no slash at its end."},
	{"aud-with-port", set("aud", `"https://relay.example:443"`), "audience", "An origin does not contain the default port of its scheme."},
	{"method-other", set("method", `"POST"`), "request", "The token is for another method."},
	{"method-lower-case", set("method", `"get"`), "request", "Methods are compared as text."},
	{"target-other-path", set("target", `"/v1/messages"`), "request", "The token is for another path."},
	{"target-without-query", set("target", `"/events"`), "request",
		"The target of the token lacks the query of the request."},
	{"target-other-order", set("target", quote(target("/events?recipient=RECIPIENT&cursor=0&timeout=30"))), "request", "The query is compared as text, so the order of its parameters matters."},
	{"target-escaped", set("target", quote(strings.ReplaceAll(target(readTarget), ":", "%3A"))), "request", "The target is compared as text, so an escape is a difference."},
	{"target-absolute", set("target", quote(readOrigin+target(readTarget))), "request", "The target must be path and query without an origin."},
	{"ts-60s-old", set("ts", `"2026-02-02T11:59:00Z"`), "time", "The ts is a minute or more before the relay's clock."},
	{"ts-60s-ahead", set("ts", `"2026-02-02T12:01:00Z"`), "time", "The ts is a minute or more after the relay's clock."},
	{"ts-year-9999", set("ts", `"9999-12-31T23:59:59Z"`), "time", "The ts is a minute or more after the relay's clock, and the difference does not fit into 64 bits of nanoseconds."},

	{"ts-no-time", set("ts", `"now"`), malformed, "The ts is not an RFC 3339 date-time."},
	{"ts-number", set("ts", `1770033600`), malformed, "The ts is a number, and all members must be strings."},
	{"typ-other", set("typ", `"agora-write"`), malformed, "The typ is not agora-read."},
	{"typ-absent", set("typ", ""), malformed, "The typ is missing."},
	{"nonce-15", set("nonce", `"0123456789abcde"`), malformed, "The nonce is too short."},
	{"nonce-65", set("nonce", quote(strings.Repeat("a", 65))), malformed, "The nonce is too long."},
	{"nonce-plus", set("nonce", `"0123456789abcde+"`), malformed, "The nonce has a character other than A-Z, a-z, 0-9, - and _."},
	{"nonce-absent", set("nonce", ""), malformed, "The nonce is missing."},
	{"member-more", set("version", `"1.0"`), malformed, "The token has a member that tokens do not have."},
	{"member-type", set("type", `"REQUEST"`), malformed, "The token has a member that only messages have."},
	{"member-folded", spelled(`"nonce"`, `"Nonce"`), malformed,
		"The name Nonce is not nonce, because names are compared exactly."},
	{"member-twice", spelled(`{"typ"`, `{"typ":"agora-read","typ"`), malformed, "A member occurs twice."},
	{"array", func(d draft) string { return encoded("[" + d.signed() + "]") }, malformed, "The token is not an object."},
	{"two-objects", func(d draft) string { return encoded(d.signed() + d.signed()) }, malformed, "Something follows the object."},
	{"no-json", func(draft) string { return encoded("agora-read") }, malformed, "The token is not JSON."},
	{"empty", func(draft) string { return "" }, malformed, "The token is empty."},
	{"padded", func(d draft) string {
		return base64.URLEncoding.EncodeToString([]byte(d.signed() + strings.Repeat(" ", 2-(len(d.signed())+1)%3)))
	}, malformed, "The base64url has padding."},
	{"line-break", func(d draft) string { return encoded(d.signed())[:20] + "\n" + encoded(d.signed())[20:] }, malformed, "The base64url has a line break."},
	{"too-long", func(d draft) string { return encoded(d.signed() + strings.Repeat(" ", 6200)) }, malformed, "The token is longer than 8192 characters."},
	{"did-other", func(d draft) string {
		return encoded(strings.Replace(d.signed(), quote(alice.did)+`,"aud"`, quote(bob.did)+`,"aud"`, 1))
	}, malformed, wrongSignature},
	{"did-no-key", func(d draft) string { return encoded(strings.Replace(d.signed(), `"did:key:z6Mk`, `"did:web:z6Mk`, 1)) }, malformed, "The did is not a did:key of Ed25519."},
	{"sig-of-another-nonce", spelled(`Zm9ydHktdHdvIGJ5dGVz`, `Zm9ydHktdHdvIGJ5dGVa`), malformed, wrongSignature},
	{"sig-padded", func(d draft) string { return encoded(d.withSig(quote(d.sig() + "=="))) }, malformed, "The sig has padding."},
	{"sig-absent", func(d draft) string { return encoded(d.text()) }, malformed, "There is no sig."},
	{"message", func(draft) string { return encoded(newDraft("read").signed()) }, malformed,
		"The token is a signed message."},
}
