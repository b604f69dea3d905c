package gateway

import (
	"crypto/rand"
	"encoding/base32"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// This file has what gateways need that hand work to an agent as a sealed REQUEST of the gateways' DID.

// idLength is how many characters an id has after its prefix. Each has 5 random bits.
const idLength = 26

// NewID returns a new id: 26 characters of lower-case base32, which are 130 random bits, after a prefix.
func NewID(prefix string) string {
	var b [20]byte
	rand.Read(b[:]) // never returns an error (crypto/rand)
	return prefix + strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:idLength]
}

// Seal signs and seals an envelope of the gateways, and checks it as the relay checks any envelope. Errors: those of
// envelope.Draft.Sign and relay.Relay.Check.
func (c *Core) Seal(d envelope.Draft) (relay.Checked, error) {
	d.Seal, d.Relays = true, []string{c.Relay.Origin()}
	e, err := d.Sign(c.Key, c.Relay.Now())
	if err != nil {
		return relay.Checked{}, err
	}
	return c.Relay.Check(own, e.Canonical())
}

// Refused reports whether the relay has refused an envelope of the gateways for good, for example because the thread has
// ended.
func Refused(err error) bool {
	switch envelope.CodeOf(err) {
	case "", envelope.CodeUnavailable, envelope.CodeInternal:
		return false
	}
	return true
}

// OfferCosts reports whether an opened OFFER asks for money, or cannot be read. A gateway accepts no such OFFER, because
// nobody pays (C-31, A-20). offer is what it says.
func OfferCosts(e *envelope.Envelope) (offer envelope.Offer, costs bool) {
	if err := e.DecodePayload(&offer); err != nil {
		return envelope.Offer{}, true
	}
	return offer, offer.Price != nil && offer.Price.Amount != 0
}
