package conformance

import (
	"bytes"
	"net/http"
	"strings"
)

// hubBodyChecks test how a hub reads the body of a request.
var hubBodyChecks = []hubCheck{
	{number: "hub.body.size",
		title: "A body of 65,536 bytes is taken, and one byte more is refused with 413 ERR_PAYLOAD_TOO_LARGE",
		cites: `GATEWAYS "Bodies and errors"; G-26`, run: func(h *hubProbe) {
			alice, bob := h.two()
			body := letter(alice, bob, "a large body")
			text := canonical(body)
			pad := func(size int) []byte {
				return append(bytes.Clone(text), bytes.Repeat([]byte(" "), size-len(text))...)
			}
			h.accepted(alice, bob, body, h.write(alice.key, "/messages", pad(65536)))
			for _, path := range []string{"/messages", "/register", "/agent/ack"} {
				h.wantError(h.write(alice.key, path, pad(65537)), http.StatusRequestEntityTooLarge,
					"ERR_PAYLOAD_TOO_LARGE")
			}
		}},
	{number: "hub.body.depth", title: "A body with 64 levels of nesting is taken, and one with 65 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-26`, run: func(h *hubProbe) {
			alice, bob := h.two()
			body := letter(alice, bob, "a deep body")
			deep := func(levels int) []byte { // the object itself is a level
				return spliceMember(body, `"x":`+strings.Repeat("[", levels-1)+strings.Repeat("]", levels-1))
			}
			h.accepted(alice, bob, body, h.write(alice.key, "/messages", deep(64)))
			h.wantInvalid(h.write(alice.key, "/messages", deep(65)))
			h.wantInvalid(h.write(alice.key, "/messages", deep(30_000)))
		}},
	{number: "hub.body.unknown-members", title: "Unknown members of a body are ignored",
		cites: `GATEWAYS "Bodies and errors"`,
		run: func(h *hubProbe) {
			alice, bob := h.two()
			body := letter(alice, bob, "hello")
			body["x"], body["timestamp"] = map[string]any{"y": nil}, "yesterday"
			h.sendBody(alice, bob, body)
			h.rotate(alice, set("x", []any{1}))
			h.wantData(h.write(bob.key, "/agent/ack", map[string]any{"up_to": 0, "x": true}), http.StatusOK)
		}},
	{number: "hub.body.object", title: "A body that is not one JSON object is refused",
		cites: `GATEWAYS "Bodies and errors"; G-27`,
		run: refusesBodies(func(good string) []string {
			return []string{"", " ", "null", "[]", "[" + good + "]", `"text"`, "1", good[:len(good)-1], good + "}",
				good + " x", good + good, "\ufeff" + good, `{"a":1,}` + good, strings.ReplaceAll(good, `"`, `'`),
				good + "\x00",
				strings.Replace(good, "{", "{/**/", 1), strings.Replace(good, "{", `{"n":01,`, 1),
				strings.Replace(good, "{", `{"n":NaN,`, 1)}
		})},
	{number: "hub.body.duplicates",
		title: "A body with a duplicate member is refused, at any depth and in any spelling",
		cites: `GATEWAYS "Bodies and errors"; G-27`, run: refusesBodies(func(good string) []string {
			return []string{
				strings.Replace(good, "{", `{"x":1,"x":1,`, 1), strings.Replace(good, "{", `{"x":{"y":1,"y":2},`, 1),
				strings.Replace(good, `"chorus_version":"0.4"`, `"chorus_version":"0.4","chorus_version":"0.4"`, 1),
				strings.Replace(good, `"receiver_id":`,
					`"receiver\u005fid":"nobody@conformance.example","receiver_id":`, 1),
			}
		})},
	{number: "hub.body.strings", title: "A body with a lone surrogate or with invalid UTF-8 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-27`, run: refusesBodies(func(good string) []string {
			return []string{
				strings.Replace(good, "hello", `\ud800`, 1), strings.Replace(good, "hello", `\udc00\ud800`, 1),
				strings.Replace(good, "hello", "\xff", 1), strings.Replace(good, "hello", "\xed\xa0\x80", 1),
				strings.Replace(good, "hello", "\xc0\xaf", 1), strings.Replace(good, "{", `{"\udfff":1,`, 1),
				strings.Replace(good, "hello", "a\nb", 1), strings.Replace(good, "hello", `\x41`, 1),
			}
		})},
	{number: "hub.body.numbers", title: "A body with a number that no finite double holds is refused",
		cites: `GATEWAYS "Bodies and errors"`, run: refusesBodies(func(good string) []string {
			return []string{strings.Replace(good, "{", `{"x":1e999,`, 1), strings.Replace(good, "{", `{"x":-1e400,`, 1)}
		})},
}

// spliceMember returns the text of a body with one more member, which is written as it is.
func spliceMember(body message, member string) []byte {
	text := canonical(body)
	return append(append(bytes.Clone(text[:len(text)-1]), ","+member...), '}')
}

// refusesBodies returns a check that posts a good body, which the hub must take, and then variants of its text, which
// the hub must refuse.
func refusesBodies(variants func(good string) []string) func(*hubProbe) {
	return func(h *hubProbe) {
		alice, bob := h.two()
		h.send(alice, bob, "hello")
		for _, text := range variants(string(canonical(letter(alice, bob, "hello")))) {
			h.wantInvalid(h.write(alice.key, "/messages", []byte(text)))
		}
		h.describe("the history of the receiver")
		rows := h.history(bob)
		h.expect("only the message with the good body")
		if len(rows) != 1 {
			h.failf("%s", describeRows(rows))
		}
	}
}
