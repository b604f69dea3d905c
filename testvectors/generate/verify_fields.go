package main

import (
	"encoding/json"
	"strings"

	"github.com/mr-tron/base58"
)

// unwrapped returns the canonical envelope in {"envelope": …}. ok is false if body is not a wrapper.
func unwrapped(body []byte) (envelope []byte, ok bool) {
	var object map[string]json.RawMessage
	if json.Unmarshal(body, &object) != nil || len(object) != 1 || object["envelope"] == nil {
		return nil, false
	}
	return canonical(object["envelope"]), true
}

// acceptedIDs has the ids of the cases below that change the id and must be accepted.
var acceptedIDs = map[string]string{
	"id-one-letter": "a", "id-digit-first": "0a", "id-128": strings.Repeat("a", 128), "id-every-mark": "a._:~-", "id-escaped": "abc",
}

var headFields = []fieldCase{
	{"plain", "hint", `"nothing wrong with this one"`, "", ""},
	{"version-escaped", "version", `"1\u002e0"`, "", ""},
	{"version-missing", "version", "", badVersion, "There is no version."},
	{"version-null", "version", "null", badVersion, "The version is not a string."},
	{"version-number", "version", "1.0", badVersion, "The version is not a string."},
	{"version-list", "version", `["1.0"]`, badVersion, "The version is not a string."},
	{"version-1", "version", `"1"`, badVersion, "The version is not exactly 1.0."},
	{"version-1.1", "version", `"1.1"`, badVersion, "The version is not exactly 1.0."},
	{"version-1.0.0", "version", `"1.0.0"`, badVersion, "The version is not exactly 1.0."},
	{"version-2.0", "version", `"2.0"`, badVersion, "The version is not exactly 1.0."},
	{"version-space", "version", `"1.0 "`, badVersion, "The version is not exactly 1.0."},
	{"version-empty", "version", `""`, badVersion, "The version is not exactly 1.0."},

	{"id-one-letter", "id", `"a"`, "", ""},
	{"id-digit-first", "id", `"0a"`, "", ""},
	{"id-128", "id", quote(strings.Repeat("a", 128)), "", ""},
	{"id-every-mark", "id", `"a._:~-"`, "", ""},
	{"id-escaped", "id", `"\u0061bc"`, "", ""},
	{"id-missing", "id", "", badRequest, "There is no id."},
	{"id-null", "id", "null", badRequest, "The id is not a string."},
	{"id-number", "id", "7", badRequest, "The id is not a string."},
	{"id-object", "id", `{"id":"a"}`, badRequest, "The id is not a string."},
	{"id-empty", "id", `""`, badRequest, "The id is empty."},
	{"id-129", "id", quote(strings.Repeat("a", 129)), badRequest, "The id has 129 characters."},
	{"id-mark-first", "id", `"_a"`, badRequest, "The id does not start with a letter or a digit."},
	{"id-dot-first", "id", `".a"`, badRequest, "The id does not start with a letter or a digit."},
	{"id-space", "id", `"a b"`, badRequest, "The id contains a space."},
	{"id-trailing-line-feed", "id", `"a\n"`, badRequest, "The id ends with a line feed."},
	{"id-nul", "id", `"a\u0000"`, badRequest, "The id contains a NUL."},
	{"id-slash", "id", `"a/b"`, badRequest, "The id contains a slash."},
	{"id-percent", "id", `"a%20b"`, badRequest, "The id contains a percent sign."},
	{"id-plus", "id", `"a+b"`, badRequest, "The id contains a plus sign."},
	{"id-quote", "id", `"a\"b"`, badRequest, "The id contains a quotation mark."},
	{"id-accent", "id", "\"a\u00e9\"", badRequest, "The id contains a letter that is not ASCII."},
	{"id-full-width", "id", "\"\uff41\"", badRequest, "The id contains a full-width letter."},

	{"type-escaped", "type", `"\u0052EQUEST"`, "", ""},
	{"type-missing", "type", "", badRequest, "There is no type."},
	{"type-null", "type", "null", badRequest, "The type is not a string."},
	{"type-number", "type", "1", badRequest, "The type is not a string."},
	{"type-list", "type", `["REQUEST"]`, badRequest, "The type is not a string."},
	{"type-empty", "type", `""`, badRequest, "The type is not one of the seven types."},
	{"type-lower-case", "type", `"request"`, badRequest, "The type is in lower case."},
	{"type-space", "type", `"REQUEST "`, badRequest, "The type ends with a space."},
	{"type-unknown", "type", `"PING"`, badRequest, "The type is not one of the seven types."},
	{"type-timeout", "type", `"TIMEOUT"`, badRequest, "The type is not one of the seven types."},
}

var partyFields = []fieldCase{
	{"sender-name-and-url", "sender", `{"id":"` + alice.did + `","name":"","url":"any text","more":[1]}`, "", ""},
	{"sender-missing", "sender", "", badDID, "There is no sender."},
	{"sender-null", "sender", "null", badDID, "The sender is not an object."},
	{"sender-string", "sender", quote(alice.did), badDID, "The sender is not an object."},
	{"sender-list", "sender", `["` + alice.did + `"]`, badDID, "The sender is not an object."},
	{"sender-empty", "sender", "{}", badDID, "The sender has no id."},
	{"sender-id-null", "sender", `{"id":null}`, badDID, "The sender's id is not a string."},
	{"sender-id-number", "sender", `{"id":5}`, badDID, "The sender's id is not a string."},
	{"sender-id-empty", "sender", `{"id":""}`, badDID, "The sender's id is empty."},
	{"sender-id-upper-case-name", "sender", `{"ID":"` + alice.did + `"}`, badDID,
		"Names are compared exactly, so ID is not id."},
	{"sender-name-number", "sender", `{"id":"` + alice.did + `","name":1}`, badDID, "The sender's name is not a string."},
	{"sender-name-null", "sender", `{"id":"` + alice.did + `","name":null}`, badDID, "The sender's name is not a string."},
	{"sender-url-list", "sender", `{"id":"` + alice.did + `","url":["x"]}`, badDID, "The sender's url is not a string."},

	{"recipient-named", "recipient", party(bob.did), "", ""},
	{"recipient-is-the-sender", "recipient", party(alice.did), "", ""},
	{"recipient-null", "recipient", "null", badDID, "The recipient is null, which does not count as absent."},
	{"recipient-string", "recipient", quote(bob.did), badDID, "The recipient is not an object."},
	{"recipient-list", "recipient", `[{"id":"` + bob.did + `"}]`, badDID, "The recipient is not an object."},
	{"recipient-empty", "recipient", "{}", badDID, "The recipient has no id."},
	{"recipient-id-null", "recipient", `{"id":null}`, badDID, "The recipient's id is not a string."},
	{"recipient-id-upper-case-name", "recipient", `{"Id":"` + bob.did + `"}`, badDID,
		"Names are compared exactly, so Id is not id."},
}

// recipientFields returns cases with recipients that are not a did:key.
func recipientFields() (cases []fieldCase) {
	for _, c := range []struct{ name, did, reason string }{
		{"empty-text", "", "The recipient's id is empty."},
		{"star", "*", "There is no wildcard; a broadcast has no recipient."},
		{"did-web", "did:web:bob.example", "The recipient is not a did:key."},
		{"fragment", bob.did + "#" + bob.did[8:], "The recipient's id has a fragment."},
		{"space", bob.did + " ", "The recipient's id ends with a space."},
		{"line-feed", bob.did + `\n`, "The recipient's id ends with a line feed."},
		{"upper-case-scheme", "DID" + bob.did[3:], "The recipient's scheme is in upper case."},
		{"base16", "did:key:fed01" + goodHex, "The recipient's key is in another base."},
		{"31-bytes", spell(unhex(goodHex)[:31]), "The recipient's key has 31 bytes."},
		{"x25519", "did:key:z" + base58.Encode(append([]byte{0xec, 0x01}, unhex(goodHex)...)), "The recipient's key is an X25519 key, not an Ed25519 key."},
		{"identity-point", spell(unhex(smallOrder[1].y)), "The recipient's key is of small order."},
		{"y-above-p", spell(abovePrime(3)), "The recipient's key is not encoded canonically."},
		{"off-curve", spell(append([]byte{2}, make([]byte, 31)...)), "The recipient's key is not a point of the curve."},
	} {
		cases = append(cases, fieldCase{"recipient-" + c.name, "recipient", `{"id":"` + c.did + `"}`, badDID, c.reason})
	}
	return cases
}

var payloadFields = []fieldCase{
	{"payload-unknown-members", "payload", `{"request_id":"req_1","intent":"echo","more":[{"x":null}]}`, "", ""},
	{"payload-missing", "payload", "", badRequest, "There is no payload."},
	{"payload-null", "payload", "null", badRequest, "The payload is not an object."},
	{"payload-string", "payload", `"x"`, badRequest, "The payload is not an object."},
	{"payload-number", "payload", "1", badRequest, "The payload is not an object."},
	{"payload-true", "payload", "true", badRequest, "The payload is not an object."},
	{"payload-list", "payload", "[]", badRequest, "The payload is not an object."},
	{"payload-list-of-object", "payload", "[{}]", badRequest, "The payload is not an object."},

	{"thread-128", "thread", `{"id":"` + strings.Repeat("t", 128) + `"}`, "", ""},
	{"thread-unknown-members", "thread", `{"id":"thread_more","parent":null}`, "", ""},
	{"thread-null", "thread", "null", badRequest, "The thread is null, which does not count as absent."},
	{"thread-string", "thread", `"t"`, badRequest, "The thread is not an object."},
	{"thread-empty", "thread", "{}", badRequest, "The thread has no id."},
	{"thread-id-null", "thread", `{"id":null}`, badRequest, "The thread's id is not a string."},
	{"thread-id-empty", "thread", `{"id":""}`, badRequest, "The thread's id is empty."},
	{"thread-id-129", "thread", `{"id":"` + strings.Repeat("t", 129) + `"}`, badRequest, "The thread's id has 129 characters."},
	{"thread-id-space", "thread", `{"id":"a b"}`, badRequest, "The thread's id contains a space."},
	{"thread-id-mark-first", "thread", `{"id":"_a"}`, badRequest,
		"The thread's id does not start with a letter or a digit."},
	{"thread-id-upper-case-name", "thread", `{"ID":"a"}`, badRequest, "Names are compared exactly, so ID is not id."},
}

var metaFields = []fieldCase{
	{"meta-missing", "meta", "", "", ""},
	{"meta-empty", "meta", "{}", "", ""},
	{"meta-unknown-members", "meta", `{"TTL":-1,"trace":null}`, "", ""},
	{"meta-ttl-1", "meta", `{"ttl":1}`, "", ""},
	{"meta-ttl-300.0", "meta", `{"ttl":300.0}`, "", ""},
	{"meta-ttl-3e2", "meta", `{"ttl":3e2}`, "", ""},
	{"meta-ttl-1y", "meta", `{"ttl":31536000}`, "", ""},
	{"meta-ttl-0", "meta", `{"ttl":0}`, badRequest, "The ttl is below 1."},
	{"meta-ttl-minus-1", "meta", `{"ttl":-1}`, badRequest, "The ttl is below 1."},
	{"meta-ttl-0.5", "meta", `{"ttl":0.5}`, badRequest, "The ttl is not a whole number."},
	{"meta-ttl-1.5", "meta", `{"ttl":1.5}`, badRequest, "The ttl is not a whole number."},
	{"meta-ttl-string", "meta", `{"ttl":"300"}`, badRequest, "The ttl is not a number."},
	{"meta-ttl-null", "meta", `{"ttl":null}`, badRequest, "The ttl is null, which does not count as absent."},
	{"meta-ttl-true", "meta", `{"ttl":true}`, badRequest, "The ttl is not a number."},
	{"meta-ttl-list", "meta", `{"ttl":[300]}`, badRequest, "The ttl is not a number."},
	{"meta-ttl-1e21", "meta", `{"ttl":1e21}`, badRequest, "The ttl is too large."},
	{"meta-ttl-1e300", "meta", `{"ttl":1e300}`, badRequest, "The ttl is too large."},
	{"meta-hop-0", "meta", `{"hop":0}`, "", ""},
	{"meta-hop-minus-0", "meta", `{"hop":-0}`, "", ""},
	{"meta-hop-16", "meta", `{"hop":16}`, "", ""},
	{"meta-hop-1.6e1", "meta", `{"hop":1.6e1}`, "", ""},
	{"meta-hop-17", "meta", `{"hop":17}`, badRequest, "The hop is above 16."},
	{"meta-hop-minus-1", "meta", `{"hop":-1}`, badRequest, "The hop is below 0."},
	{"meta-hop-0.5", "meta", `{"hop":0.5}`, badRequest, "The hop is not a whole number."},
	{"meta-hop-string", "meta", `{"hop":"0"}`, badRequest, "The hop is not a number."},
	{"meta-hop-null", "meta", `{"hop":null}`, badRequest, "The hop is null, which does not count as absent."},
	{"meta-relay-this", "meta", `{"relay":"https://relay.example"}`, "", ""},
	{"meta-relay-list-with-this", "meta", `{"relay":["https://other.example","https://relay.example"]}`, "", ""},
	{"meta-relay-other", "meta", `{"relay":"https://other.example"}`, forbidden, "The message is meant for another relay."},
	{"meta-relay-list-of-others", "meta", `{"relay":["https://other.example","https://third.example"]}`, forbidden, "The message is meant for other relays."},
	{"meta-relay-none", "meta", `{"relay":[]}`, forbidden, "The message is meant for no relay."},
	{"meta-relay-prefix", "meta", `{"relay":"https://relay.example.attacker.example"}`, forbidden, "The message is meant for another relay, whose origin only starts with that of this relay."},
	{"meta-relay-other-scheme", "meta", `{"relay":"http://relay.example"}`, forbidden, "The message is meant for another origin."},
	{"meta-relay-other-port", "meta", `{"relay":"https://relay.example:8443"}`, forbidden, "The message is meant for another origin."},
	{"meta-relay-number", "meta", `{"relay":5}`, forbidden, "The member is neither a string nor a list, so it does not name this relay."},
	{"meta-list", "meta", "[]", badRequest, "The meta is not an object."},
	{"meta-null", "meta", "null", badRequest, "The meta is null, which does not count as absent."},
}

// foldedNames are cases with an additional member. In most of them, its name equals a known name except for case.
var foldedNames = []fieldCase{
	{"fold-Type", "Type", `"REQUEST"`, badRequest, "A parser that folds case takes Type for type."},
	{"fold-TYPE", "TYPE", `"CANCEL"`, badRequest, "A parser that folds case takes TYPE for type."},
	{"fold-ID", "ID", `"other"`, badRequest, "A parser that folds case takes ID for id."},
	{"fold-Ts", "Ts", quote(noon), badRequest, "A parser that folds case takes Ts for ts."},
	{"fold-long-s-ts", "t\u017f", quote(noon), badRequest, "U+017F folds to s, so this name folds to ts."},
	{"fold-long-s-sender", "\u017fender", `{}`, badRequest, "U+017F folds to s, so this name folds to sender."},
	{"fold-long-s-escaped", `\u017fender`, `{}`, badRequest, "U+017F folds to s, also if it is written as an escape."},
	{"fold-Version", "Version", `"1.0"`, badRequest, "A parser that folds case takes Version for version."},
	{"fold-Recipient", "Recipient", party(bob.did), badRequest, "A parser that folds case takes Recipient for recipient."},
	{"fold-Payload", "pAyload", `{}`, badRequest, "A parser that folds case takes pAyload for payload."},
	{"fold-Thread", "Thread", `{"id":"other"}`, badRequest, "A parser that folds case takes Thread for thread."},
	{"fold-Meta", "Meta", `{"ttl":1}`, badRequest, "A parser that folds case takes Meta for meta."},
	{"fold-Sig", "Sig", `"x"`, badRequest, "A parser that folds case takes Sig for sig."},
	{"fold-long-s-sig", "\u017fig", `"x"`, badRequest, "U+017F folds to s, so this name folds to sig."},
	{"no-fold-dotless-i", "\u0131d", `"kept"`, "", ""},
	{"no-fold-full-width", "\uff53\uff49\uff47", `"kept"`, "", ""},
	{"no-fold-trailing-space", "sig ", `"kept"`, "", ""},
	{"no-fold-one-letter-more", "types", `"kept"`, "", ""},
	{"unknown-member", "x-more", `[1.50,{"b":1,"a":"\u0041"}]`, "", ""},
	{"unknown-member-empty-name", "", `{"sig":"kept"}`, "", ""},
	{"unknown-member-escapes", `sig\"\\\u0001`, `"}],\""`, "", ""},
	{"unknown-member-envelope", "envelope", `{"version":"1.0"}`, "", ""},
}
