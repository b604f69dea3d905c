package hub

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
)

// hubBodyChecks test how a hub reads the body of a request.
var hubBodyChecks = []hubCheck{
	{Number: "hub.body.size",
		Title: "A body of 65,536 bytes is taken, and one byte more is refused with 413 ERR_PAYLOAD_TOO_LARGE",
		Cites: `GATEWAYS "Bodies and errors"; G-26`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			body := letter(alice, bob, "a large body")
			h.accepted(alice, bob, body, h.Write(alice.key, "/messages", kit.PadBody(body, 65536)))
			for _, path := range []string{"/messages", "/register", "/agent/ack"} {
				h.wantError(h.Write(alice.key, path, kit.PadBody(body, 65537)), http.StatusRequestEntityTooLarge,
					"ERR_PAYLOAD_TOO_LARGE")
			}
		}},
	{Number: "hub.body.depth", Title: "A body with 64 levels of nesting is taken, and one with 65 is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-26`, Run: func(h *hubProbe) {
			alice, bob := h.two()
			body := letter(alice, bob, "a deep body")
			h.accepted(alice, bob, body, h.Write(alice.key, "/messages", kit.DeepBody(body, 64)))
			h.wantInvalid(h.Write(alice.key, "/messages", kit.DeepBody(body, 65)))
			h.wantInvalid(h.Write(alice.key, "/messages", kit.DeepBody(body, 30_000)))
		}},
	{Number: "hub.body.unknown-members", Title: "Unknown members of a body are ignored",
		Cites: `GATEWAYS "Bodies and errors"`,
		Run: func(h *hubProbe) {
			alice, bob := h.two()
			body := letter(alice, bob, "hello")
			body["x"], body["timestamp"] = map[string]any{"y": nil}, "yesterday"
			h.sendBody(alice, bob, body)
			h.rotate(alice, kit.Set("x", []any{1}))
			h.wantData(h.Write(bob.key, "/agent/ack", map[string]any{"up_to": 0, "x": true}), http.StatusOK)
		}},
	{Number: "hub.body.object", Title: "A body that is not one JSON object is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-27`, Run: refusesBodies(kit.NotOneObject)},
	{Number: "hub.body.duplicates",
		Title: "A body with a duplicate member is refused, at any depth and in any spelling",
		Cites: `GATEWAYS "Bodies and errors"; G-27`, Run: refusesBodies(func(good string) []string {
			return append(kit.DoubledMembers(good, "receiver_id"),
				strings.Replace(good, `"chorus_version":"0.4"`, `"chorus_version":"0.4","chorus_version":"0.4"`, 1))
		})},
	{Number: "hub.body.strings", Title: "A body with a lone surrogate, U+0000 or invalid UTF-8 is refused",
		Cites: `GATEWAYS "Bodies and errors"; G-27, G-35`, Run: refusesBodies(kit.BadTexts)},
	{Number: "hub.body.numbers", Title: "A body with a number that no finite double holds is refused",
		Cites: `GATEWAYS "Bodies and errors"`, Run: refusesBodies(kit.HugeNumbers)},
}

// refusesBodies returns a check that posts a good body, which the hub must take, and then variants of its text, which
// the hub must refuse.
func refusesBodies(variants func(good string) []string) func(*hubProbe) {
	return func(h *hubProbe) {
		alice, bob := h.two()
		h.send(alice, bob, "hello")
		for _, text := range variants(string(kit.Canonical(letter(alice, bob, "hello")))) {
			h.wantInvalid(h.Write(alice.key, "/messages", []byte(text)))
		}
		h.Describe("the history of the receiver")
		rows := h.history(bob)
		h.Expect("only the message with the good body")
		if len(rows) != 1 {
			h.Failf("%s", kit.DescribeRows(rows))
		}
	}
}
