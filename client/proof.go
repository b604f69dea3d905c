package client

import (
	"context"
	"fmt"

	"github.com/agora-relay/agora/client/internal/posting"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
)

// Proofs says whether a client checks that the relay has its messages in its log (docs/PROOFS.md).
type Proofs string

// The values of Proofs. The zero value is ProofsPrefer.
const (
	ProofsOff      Proofs = "off"      // the client checks no proof
	ProofsPrefer   Proofs = "prefer"   // it checks each proof that it gets
	ProofsRequired Proofs = "required" // it needs a proof of each message
)

func (p Proofs) validate() error {
	switch p {
	case "", ProofsOff, ProofsPrefer, ProofsRequired:
		return nil
	}
	return fmt.Errorf("client: Proofs is %q; use off, prefer or required", string(p))
}

// ErrUnproved is in the error of a post whose message is not proved: the relay gave no proof although one is required,
// or its proof is not valid. The relay has answered that it has stored the message, so the outcome is unknown: the error
// also wraps ErrUnknownOutcome.
var ErrUnproved = posting.ErrUnproved

// ErrInvalidProof is in the error of Client.Proof if the relay has answered with a proof that is not valid.
var ErrInvalidProof = posting.ErrInvalidProof

// Proof reads the proof that the relay has a message in its log (docs/PROOFS.md). It checks that the proof is valid and
// by this relay. It cannot check which message it is of: see proof.Verified.CheckMessage. Errors: *envelope.Error, with
// CodeNotFound if the relay has no such proof or keeps no log; ErrInvalidProof.
func (c *Client) Proof(ctx context.Context, sender didkey.DID, id string) (text string, v *proof.Verified, err error) {
	return c.poster.Proof(ctx, sender, id)
}

// unprovedError is the ERROR for the client if the agent must not begin to work.
var unprovedError = AgentError{Code: envelope.AgentUnavailable,
	Message: "the relay does not prove that it has stored this ACCEPT, so the agent does not work; use a relay with proofs"}
