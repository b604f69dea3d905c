package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/agora-relay/agora/client/internal/wire"
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
var ErrUnproved = errors.New("the relay does not prove that it has stored the message")

// prove checks the proof of a stored message as Options.Proofs says. If the proof of the receipt is not valid, it reads
// the proof once. Errors: ErrUnproved.
func (c *Client) prove(ctx context.Context, e *envelope.Envelope, r Receipt) (Receipt, error) {
	text := r.Proof
	r.Proof = ""
	if c.opts.Proofs == ProofsOff || text == "" && c.opts.Proofs != ProofsRequired {
		return r, nil
	}
	var err error
	if text != "" {
		relay, unknown := c.conn.RelayDID(ctx)
		if unknown != nil && c.opts.Proofs != ProofsRequired { // it has stored the message, and is not there any more
			c.conn.Log.Warn("a proof is not checked, because the relay does not say who it is", "id", e.ID, "error", unknown)
			return r, nil
		}
		if err = unknown; err == nil {
			r.Proved, err = verifyMessage(text, e, relay)
		}
		if err == nil {
			r.Proof = text
			c.report(e, r)
			return r, nil
		}
		c.conn.Log.Warn("the proof in a receipt is not valid; it is read again", "id", e.ID, "error", err)
	}
	wrong := err != nil
	text, proved, failed := c.Proof(ctx, e.Sender.ID, e.ID)
	if failed == nil {
		failed = proved.CheckMessage(e, proved.Origin.DID)
	}
	if failed == nil {
		r.Proof, r.Proved = text, proved
		c.report(e, r)
		return r, nil
	}
	if relay := c.conn.Known(); relay != nil && wrong && errors.Is(failed, ErrInvalidProof) && c.watcher.invalid != nil {
		c.watcher.invalid(relay.DID, failed)
	}
	if err == nil {
		err = failed
	}
	c.conn.Forget() // perhaps the relay has another identity now
	// The error is not wrapped: it could be a refusal of the read, and the message was not refused.
	return Receipt{}, fmt.Errorf("%w, and %w: %v", ErrUnproved, ErrUnknownOutcome, err)
}

// report calls Options.Proved.
func (c *Client) report(e *envelope.Envelope, r Receipt) {
	if p, err := proof.Parse(r.Proof); err == nil && c.watcher.proved != nil {
		c.watcher.proved(&proof.Statement{Proof: p, Verified: r.Proved, Event: e})
	}
	if c.opts.Proved != nil {
		c.opts.Proved(e, r)
	}
}

// verifyMessage checks that text is the proof of e by this relay.
func verifyMessage(text string, e *envelope.Envelope, relay didkey.DID) (*proof.Verified, error) {
	v, err := verifyText(text)
	if err == nil {
		err = v.CheckMessage(e, relay)
	}
	return v, err
}

func verifyText(text string) (*proof.Verified, error) {
	p, err := proof.Parse(text)
	if err != nil {
		return nil, err
	}
	return p.Verify()
}

// ErrInvalidProof is in the error of Client.Proof if the relay has answered with a proof that is not valid.
var ErrInvalidProof = errors.New("the relay has answered with a proof that is not valid")

// Proof reads the proof that the relay has a message in its log (docs/PROOFS.md). It checks that the proof is valid and
// by this relay. It cannot check which message it is of: see proof.Verified.CheckMessage. Errors: *envelope.Error, with
// CodeNotFound if the relay has no such proof or keeps no log; ErrInvalidProof.
func (c *Client) Proof(ctx context.Context, sender didkey.DID, id string) (text string, v *proof.Verified, err error) {
	query := url.Values{"sender": {string(sender)}, "id": {id}}
	if err := c.conn.Read(ctx, "/proofs", query, wire.Spec{Text: &text, Limit: proof.MaxBytes}); err != nil {
		return "", nil, err
	}
	relay, err := c.conn.RelayDID(ctx)
	if err != nil {
		return "", nil, err
	}
	if v, err = verifyText(text); err == nil {
		err = v.CheckRelay(relay)
	}
	if err != nil {
		return "", nil, fmt.Errorf("client: %w: %w", ErrInvalidProof, err)
	}
	return text, v, nil
}

// unproved returns the ERROR for the client if the agent must not begin to work, because the relay does not prove the
// ACCEPT of this REQUEST; nil: it may begin. request may be nil. If the proof cannot be read, it returns an error, and
// the agent tries again.
func (r *run) unproved(accept, request *envelope.Envelope) (*AgentError, error) {
	c := r.agent.client
	required := c.opts.Proofs == ProofsRequired
	if c.opts.Proofs == ProofsOff {
		return nil, nil
	}
	if known, err := c.conn.Proves(r.ctx); err != nil || !known && !required {
		return nil, err
	}
	reason := r.checkProof(accept, request)
	if errors.Is(reason, ErrInvalidProof) {
		reason = r.checkProof(accept, request)
		if relay := c.conn.Known(); relay != nil && errors.Is(reason, ErrInvalidProof) && c.watcher.invalid != nil {
			c.watcher.invalid(relay.DID, reason)
		}
	}
	failed, isFailure := errors.AsType[*wire.Failure](reason)
	_, unknown := errors.AsType[*missingProof](reason)
	switch {
	case reason == nil:
		return nil, nil
	case isFailure && failed.Status != http.StatusNotFound:
		return nil, reason
	case (isFailure || unknown) && !required:
		c.conn.Log.Warn("the relay does not prove an ACCEPT; the agent works without a proof", "thread", r.key.ID,
			"client", r.key.Client, "reason", reason)
		return nil, nil
	}
	c.conn.Log.Error("the relay does not prove an ACCEPT; the agent does not work", "thread", r.key.ID, "client", r.key.Client,
		"reason", reason)
	return &AgentError{Code: envelope.AgentUnavailable,
		Message: "the relay does not prove that it has stored this ACCEPT, so the agent does not work; use a relay with proofs"}, nil
}

// missingProof is the error of checkProof if the leaf of an ACCEPT does not name its REQUEST, as in older threads.
type missingProof struct{}

func (*missingProof) Error() string { return "the leaf of the ACCEPT does not name its REQUEST" }

// checkProof checks the proof of an ACCEPT, and that the ACCEPT belongs to this REQUEST.
func (r *run) checkProof(accept, request *envelope.Envelope) error {
	c := r.agent.client
	text, v, err := c.Proof(r.ctx, accept.Sender.ID, accept.ID)
	if err == nil {
		err = v.CheckMessage(accept, v.Origin.DID)
	}
	switch {
	case err != nil:
		return err
	case v.Leaf.Request == (proof.Hash{}):
		return &missingProof{}
	case request != nil && v.Leaf.Request != request.Hash():
		return errors.New("the proof is of an ACCEPT of another REQUEST")
	}
	c.report(accept, Receipt{ID: accept.ID, Proof: text, Proved: v})
	return nil
}
