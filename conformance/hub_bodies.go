package conformance

import (
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
			h.accepted(alice, bob, body, h.write(alice.key, "/messages", padBody(body, 65536)))
			for _, path := range []string{"/messages", "/register", "/agent/ack"} {
				h.wantError(h.write(alice.key, path, padBody(body, 65537)), http.StatusRequestEntityTooLarge,
					"ERR_PAYLOAD_TOO_LARGE")
			}
		}},
	{number: "hub.body.depth", title: "A body with 64 levels of nesting is taken, and one with 65 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-26`, run: func(h *hubProbe) {
			alice, bob := h.two()
			body := letter(alice, bob, "a deep body")
			h.accepted(alice, bob, body, h.write(alice.key, "/messages", deepBody(body, 64)))
			h.wantInvalid(h.write(alice.key, "/messages", deepBody(body, 65)))
			h.wantInvalid(h.write(alice.key, "/messages", deepBody(body, 30_000)))
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
		cites: `GATEWAYS "Bodies and errors"; G-27`, run: refusesBodies(notOneObject)},
	{number: "hub.body.duplicates",
		title: "A body with a duplicate member is refused, at any depth and in any spelling",
		cites: `GATEWAYS "Bodies and errors"; G-27`, run: refusesBodies(func(good string) []string {
			return append(doubledMembers(good, "receiver_id"),
				strings.Replace(good, `"chorus_version":"0.4"`, `"chorus_version":"0.4","chorus_version":"0.4"`, 1))
		})},
	{number: "hub.body.strings", title: "A body with a lone surrogate, U+0000 or invalid UTF-8 is refused",
		cites: `GATEWAYS "Bodies and errors"; G-27, G-35`, run: refusesBodies(badTexts)},
	{number: "hub.body.numbers", title: "A body with a number that no finite double holds is refused",
		cites: `GATEWAYS "Bodies and errors"`, run: refusesBodies(hugeNumbers)},
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
