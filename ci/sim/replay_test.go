package sim

import (
	"slices"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// talkAt is a thread as the stored messages show it. The relay's own rules are not used.
type talkAt struct {
	client, recipient, agent didkey.DID
	offers                   []didkey.DID
	accepted, over           bool
}

// replay checks that a message may come next in its thread.
func (c *checker) replay(s *site, threads map[string]*talkAt, e *envelope.Envelope) {
	if e.Type == envelope.TypeManifest {
		return
	}
	t := threads[e.Thread]
	by := e.Sender.ID
	switch {
	case e.Type == envelope.TypeRequest:
		if t == nil {
			threads[e.Thread] = &talkAt{client: by, recipient: e.Recipient}
			return
		}
	case t == nil: // its REQUEST has expired
		return
	case by == s.key.DID(): // a notice
		t.over = true
		return
	}
	allowed := !t.over
	switch e.Type {
	case envelope.TypeOffer:
		allowed = allowed && !t.accepted && by != t.client && (t.recipient == "" || by == t.recipient)
		t.offers = append(t.offers, by)
	case envelope.TypeAccept:
		allowed = allowed && !t.accepted && by == t.client && slices.Contains(t.offers, e.Recipient)
		t.accepted, t.agent = true, e.Recipient
	case envelope.TypeResult:
		allowed = allowed && t.accepted && by == t.agent
		t.over = true
	case envelope.TypeCancel:
		allowed = allowed && by == t.client
		t.over = true
	case envelope.TypeError:
		allowed = allowed && (t.accepted && by == t.agent ||
			!t.accepted && (by == t.recipient || slices.Contains(t.offers, by)))
		t.over = t.over || t.accepted || by == t.recipient
	default: // a second REQUEST
		allowed = false
	}
	if !allowed {
		c.Errorf("%s has stored %s %s of %s, which no party may send then", s.host, e.Type, e.ID, by)
	}
}
