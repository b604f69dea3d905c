package conformance

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/envelope"
)

// homeChecks test meta.home, meta.re and meta.continues, which bind a message to one relay and to the messages before it
// (PROTOCOL §1). They run only if the relay has the feature home.
var homeChecks = []relayCheck{
	{Number: "X-85", Title: "A message is accepted if meta.home is this relay, and with hashes in meta.re and meta.continues",
		Cites: wireForm + "meta.home", run: ifFeature("home", func(p *relayProbe, document answer) {
			hash := strings.Repeat("0a", 32)
			own := map[string]string{"did": document.text("did"), "url": "https://relay.invalid"} // only the did decides
			accepts(variant{what: "this relay's did in meta.home", edit: set("meta.home", own)},
				variant{what: "a hash in meta.re", edit: set("meta.re", hash)},
				variant{what: "a hash in meta.continues", edit: set("meta.continues", hash)})(p)
		})},
	{Number: "X-86", Title: "A message whose meta.home is another relay is refused with the reason home, and not stored",
		Cites: wireForm + "meta.home", run: ifFeature("home", func(p *relayProbe, _ answer) {
			client := p.actor("a client")
			home := map[string]string{"did": p.actor("another relay").did(), "url": "https://relay.invalid"}
			other := variant{what: "another relay in meta.home", edit: set("meta.home", home)}
			signed := other.signed(p, client, actor{})
			a := p.postRefused(refused(http.StatusForbidden, envelope.CodeForbidden), signed.what, signed.body)
			p.expect("details with the reason home, and the home of the message")
			details := a.object("details")
			if details.text("reason") != "home" || details.object("home").text("did") != home["did"] ||
				details.object("home").text("url") != home["url"] {
				p.failf("%s", a)
			}
			refuses(refused(http.StatusForbidden, envelope.CodeForbidden), other)(p)
		})},
	{Number: "X-87", Title: "Another form of meta.home, meta.re or meta.continues is refused",
		Cites: wireForm + "meta.home", run: ifFeature("home", func(p *relayProbe, document answer) {
			did, hash := document.text("did"), strings.Repeat("0a", 32)
			refuses(invalid,
				variant{what: "only a did in meta.home", edit: set("meta.home", map[string]string{"did": did})},
				variant{what: "a string in meta.home", edit: set("meta.home", did)},
				variant{what: "a path in meta.home.url", edit: set("meta.home", map[string]string{"did": did, "url": "https://relay.invalid/x"})},
				variant{what: "a further member in meta.home", edit: set("meta.home",
					map[string]string{"did": did, "url": "https://relay.invalid", "x": ""})},
				variant{what: "a did:web in meta.home.did", edit: set("meta.home",
					map[string]string{"did": "did:web:relay.invalid", "url": "https://relay.invalid"})},
				variant{what: "63 digits in meta.re", edit: set("meta.re", hash[1:])},
				variant{what: "capitals in meta.re", edit: set("meta.re", strings.ToUpper(hash))},
				variant{what: "a number in meta.continues", edit: set("meta.continues", 1)},
			)(p)
		})},
}
