package posting

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

// prove checks the proof of a stored message as Options say. If the proof of the receipt is not valid, it reads the
// proof once. Errors: ErrUnproved.
func (p *Poster) prove(ctx context.Context, e *envelope.Envelope, r Receipt) (Receipt, error) {
	text := r.Proof
	r.Proof = ""
	if !p.CheckProofs || text == "" && !p.RequireProofs {
		return r, nil
	}
	var err error
	if text != "" {
		relay, unknown := p.Conn.RelayDID(ctx)
		if unknown != nil && !p.RequireProofs { // it has stored the message, and is not there any more
			p.Conn.Log.Warn("a proof is not checked, because the relay does not say who it is", "id", e.ID, "error", unknown)
			return r, nil
		}
		if err = unknown; err == nil {
			r.Proved, err = verifyMessage(text, e, relay)
		}
		if err == nil {
			r.Proof = text
			p.report(e, r)
			return r, nil
		}
		p.Conn.Log.Warn("the proof in a receipt is not valid; it is read again", "id", e.ID, "error", err)
	}
	wrong := err != nil
	text, proved, failed := p.Proof(ctx, e.Sender.ID, e.ID)
	if failed == nil {
		failed = proved.CheckMessage(e, proved.Origin.DID)
	}
	if failed == nil {
		r.Proof, r.Proved = text, proved
		p.report(e, r)
		return r, nil
	}
	if wrong && errors.Is(failed, ErrInvalidProof) {
		p.reportInvalid(failed)
	}
	if err == nil {
		err = failed
	}
	p.Conn.Forget() // perhaps the relay has another identity now
	// The error is not wrapped: it could be a refusal of the read, and the message was not refused.
	return Receipt{}, fmt.Errorf("%w, and %w: %v", ErrUnproved, ErrUnknownOutcome, err)
}

// report tells Options.Proved and the Watcher of a valid proof.
func (p *Poster) report(e *envelope.Envelope, r Receipt) {
	if text, err := proof.Parse(r.Proof); err == nil && p.Watcher.Proved != nil {
		p.Watcher.Proved(&proof.Statement{Proof: text, Verified: r.Proved, Event: e})
	}
	if p.Proved != nil {
		p.Proved(e, r)
	}
}

// reportInvalid tells the Watcher of a second proof in a row that is not valid.
func (p *Poster) reportInvalid(reason error) {
	if relay := p.Conn.Known(); relay != nil && p.Watcher.Invalid != nil {
		p.Watcher.Invalid(relay.DID, reason)
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

// verifyText checks a proof, but not which message it is of.
func verifyText(text string) (*proof.Verified, error) {
	p, err := proof.Parse(text)
	if err != nil {
		return nil, err
	}
	return p.Verify()
}

// Proof reads the proof that the relay has a message in its log, see client.Client.Proof.
func (p *Poster) Proof(ctx context.Context, sender didkey.DID, id string) (text string, v *proof.Verified, err error) {
	query := url.Values{"sender": {string(sender)}, "id": {id}}
	if err := p.Conn.Read(ctx, "/proofs", query, wire.Spec{Text: &text, Limit: proof.MaxBytes}); err != nil {
		return "", nil, err
	}
	relay, err := p.Conn.RelayDID(ctx)
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

// Unproved reports whether an agent must not begin to work, because the relay does not prove the ACCEPT of this REQUEST.
// request may be nil. If the proof cannot be read, it returns an error, and the agent tries again.
func (p *Poster) Unproved(ctx context.Context, accept, request *envelope.Envelope) (bool, error) {
	if !p.CheckProofs {
		return false, nil
	}
	if known, err := p.Conn.Proves(ctx); err != nil || !known && !p.RequireProofs {
		return false, err
	}
	reason := p.checkAccept(ctx, accept, request)
	if errors.Is(reason, ErrInvalidProof) {
		reason = p.checkAccept(ctx, accept, request)
		if errors.Is(reason, ErrInvalidProof) {
			p.reportInvalid(reason)
		}
	}
	failed, isFailure := errors.AsType[*wire.Failure](reason)
	_, unknown := errors.AsType[*missingProof](reason)
	switch {
	case reason == nil:
		return false, nil
	case isFailure && failed.Status != http.StatusNotFound:
		return false, reason
	case (isFailure || unknown) && !p.RequireProofs:
		p.Conn.Log.Warn("the relay does not prove an ACCEPT; the agent works without a proof", "thread", accept.Thread,
			"client", accept.Sender.ID, "reason", reason)
		return false, nil
	}
	p.Conn.Log.Error("the relay does not prove an ACCEPT; the agent does not work", "thread", accept.Thread,
		"client", accept.Sender.ID, "reason", reason)
	return true, nil
}

// missingProof is the error of checkAccept if the leaf of an ACCEPT does not name its REQUEST, as in older threads.
type missingProof struct{}

func (*missingProof) Error() string { return "the leaf of the ACCEPT does not name its REQUEST" }

// checkAccept checks the proof of an ACCEPT, and that the ACCEPT belongs to this REQUEST.
func (p *Poster) checkAccept(ctx context.Context, accept, request *envelope.Envelope) error {
	text, v, err := p.Proof(ctx, accept.Sender.ID, accept.ID)
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
	p.report(accept, Receipt{ID: accept.ID, Proof: text, Proved: v})
	return nil
}
