package relay

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/conformance/kit"
	"github.com/agora-relay/agora/envelope"
)

// homeChecks test meta.home, meta.re and meta.continues, which bind a message to one relay and to the messages before it
// (PROTOCOL §1). They run only if the relay has the feature home.
var homeChecks = []relayCheck{
	{Number: "X-85", Title: "A message is accepted if meta.home is this relay, and with hashes in meta.re and meta.continues",
		Cites: wireForm + "meta.home", run: ifFeature("home", func(p *relayProbe, document kit.Answer) {
			hash := strings.Repeat("0a", 32)
			own := map[string]string{"did": document.Text("did"), "url": "https://relay.invalid"} // only the did decides
			accepts(variant{what: "this relay's did in meta.home", edit: kit.Set("meta.home", own)},
				variant{what: "a hash in meta.re", edit: kit.Set("meta.re", hash)},
				variant{what: "a hash in meta.continues", edit: kit.Set("meta.continues", hash)})(p)
		})},
	{Number: "X-86", Title: "A message whose meta.home is another relay is refused with the reason home, and not stored",
		Cites: wireForm + "meta.home", run: ifFeature("home", func(p *relayProbe, _ kit.Answer) {
			client := p.Actor("a client")
			home := map[string]string{"did": p.Actor("another relay").DID(), "url": "https://relay.invalid"}
			other := variant{what: "another relay in meta.home", edit: kit.Set("meta.home", home)}
			signed := other.signed(p, client, kit.Actor{})
			a := p.PostRefused(kit.Refused(http.StatusForbidden, envelope.CodeForbidden), signed.What, signed.Body)
			p.Expect("details with the reason home, and the home of the message")
			details := a.Object("details")
			if details.Text("reason") != "home" || details.Object("home").Text("did") != home["did"] ||
				details.Object("home").Text("url") != home["url"] {
				p.Failf("%s", a)
			}
			refuses(kit.Refused(http.StatusForbidden, envelope.CodeForbidden), other)(p)
		})},
	{Number: "X-87", Title: "Another form of meta.home, meta.re or meta.continues is refused",
		Cites: wireForm + "meta.home", run: ifFeature("home", func(p *relayProbe, document kit.Answer) {
			did, hash := document.Text("did"), strings.Repeat("0a", 32)
			refuses(invalid,
				variant{what: "only a did in meta.home", edit: kit.Set("meta.home", map[string]string{"did": did})},
				variant{what: "a string in meta.home", edit: kit.Set("meta.home", did)},
				variant{what: "a path in meta.home.url", edit: kit.Set("meta.home", map[string]string{"did": did,
					"url": "https://relay.invalid/x"})},
				variant{what: "a further member in meta.home", edit: kit.Set("meta.home",
					map[string]string{"did": did, "url": "https://relay.invalid", "x": ""})},
				variant{what: "a did:web in meta.home.did", edit: kit.Set("meta.home",
					map[string]string{"did": "did:web:relay.invalid", "url": "https://relay.invalid"})},
				variant{what: "63 digits in meta.re", edit: kit.Set("meta.re", hash[1:])},
				variant{what: "capitals in meta.re", edit: kit.Set("meta.re", strings.ToUpper(hash))},
				variant{what: "a number in meta.continues", edit: kit.Set("meta.continues", 1)},
			)(p)
		})},
}
