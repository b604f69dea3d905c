package client

import (
	"context"
	"fmt"
	"net/url"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/proof"
)

// Proof reads the proof that the relay has a message in its log (docs/PROOFS.md). It checks that the proof is valid and
// by this relay. It cannot check which message it is of: see proof.Verified.CheckMessage. Errors: *envelope.Error, with
// CodeNotFound if the relay has no such proof or keeps no log.
func (c *Client) Proof(ctx context.Context, sender didkey.DID, id string) (text string, v *proof.Verified, err error) {
	query := url.Values{"sender": {string(sender)}, "id": {id}}
	if err := c.read(ctx, "/proofs", query, responseSpec{text: &text, limit: proof.MaxBytes}); err != nil {
		return "", nil, err
	}
	relay, err := c.relayDID(ctx)
	if err != nil {
		return "", nil, err
	}
	p, err := proof.Parse(text)
	if err == nil {
		if v, err = p.Verify(); err == nil {
			err = v.CheckRelay(relay)
		}
	}
	if err != nil {
		return "", nil, fmt.Errorf("client: the relay has answered with a proof that is not valid: %w", err)
	}
	return text, v, nil
}
