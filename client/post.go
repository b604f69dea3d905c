package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/proof"
	"github.com/agora-relay/agora/thread"
)

// ErrUnknownOutcome is in the error of a post if the relay may or may not have stored the message: the connection broke
// or the server failed during an attempt, and no later response shows what happened.
//
// Test for ErrUnknownOutcome before you test for an *envelope.Error, because the error also wraps the last failure,
// which may be an *envelope.Error. It is safe to post the same envelope again (PostEnvelope), because the relay
// recognizes duplicates. A newly signed message may have the same effect a second time.
var ErrUnknownOutcome = errors.New("it is unknown whether the relay stored the message")

// Receipt is the relay's confirmation that a message is on disk and will be delivered until ExpiresAt (PROTOCOL §5).
type Receipt struct {
	ID        string       `json:"id"`
	Cursor    string       `json:"cursor"`
	Duplicate bool         `json:"duplicate"` // the relay had stored the message before; this post had no effect
	ExpiresAt time.Time    `json:"expiresAt"`
	Thread    *ThreadState `json:"thread,omitempty"` // nil for a MANIFEST
	// Proof is the text of the proof that the relay has the message in its log; empty: none was checked, see Options.Proofs.
	Proof  string          `json:"proof,omitempty"`
	Proved *proof.Verified `json:"-"` // what Proof says; nil if Proof is empty
}

// ThreadState is the state of a thread after a message. State is empty if the relay is private and the message was a
// duplicate, or an ERROR that withdrew an offer (PROTOCOL §8).
type ThreadState struct {
	ID     string       `json:"id"`
	Client didkey.DID   `json:"client"`
	State  thread.State `json:"state"`
}

// Post signs d and posts it.
//
// Post retries with the same bytes after a temporary failure (no connection, 429, 5xx), until ctx ends or
// Options.Attempts is reached. Before a retry it waits for the time that the relay asks for (Retry-After). If the relay
// refuses the message and asks for more than two minutes, Post does not wait. It returns the error at once, with the
// delay in RetryAfter.
//
// If the relay refuses the message because of a stale timestamp, Post corrects its clock and signs and posts the message
// once more with the same id. It does not do so if d.TS was set. The relay never stores two messages with the same id:
// if it has stored an earlier attempt after all, it refuses the new one, and the error is ErrUnknownOutcome.
//
// Post also returns the envelope with every error after the first signature. Errors, for errors.Is and errors.As:
//   - ErrUnknownOutcome: the relay may have stored the message. If the error also wraps ErrUnproved, the relay says so
//     and does not prove it.
//   - *envelope.Error without ErrUnknownOutcome: the relay has refused the message, or Draft.Sign has failed.
//   - Any other error without ErrUnknownOutcome: the relay has not stored the message.
func (c *Client) Post(ctx context.Context, d envelope.Draft) (*envelope.Envelope, Receipt, error) {
	return c.post(ctx, d, true)
}

// post is Post, except that without retryLimited it does not retry a post that the relay refuses with 429.
func (c *Client) post(ctx context.Context, d envelope.Draft, retryLimited bool) (*envelope.Envelope, Receipt, error) {
	if c.conn.Signer == nil {
		return nil, Receipt{}, conn.ErrReadOnly
	}
	if d.SenderName == "" {
		d.SenderName = c.opts.SenderName
	}
	if d.SenderURL == "" {
		d.SenderURL = c.opts.SenderURL
	}
	e, err := d.Sign(c.conn.Signer, c.conn.Now())
	if err != nil {
		return nil, Receipt{}, err
	}
	receipt, err := c.postEnvelope(ctx, e, retryLimited)
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeStaleTimestamp || !d.TS.IsZero() || !c.conn.CorrectClock(refusal) {
		return e, receipt, err
	}
	unknown := errors.Is(err, ErrUnknownOutcome)
	d.ID, d.Thread = e.ID, e.Thread
	if request, ok := d.Payload.(envelope.Request); ok {
		request.RequestID = e.RequestID
		d.Payload = request
	}
	if e, err = d.Sign(c.conn.Signer, c.conn.Now()); err != nil {
		return nil, Receipt{}, err
	}
	receipt, err = c.postEnvelope(ctx, e, retryLimited)
	if unknown && err != nil && !errors.Is(err, ErrUnknownOutcome) {
		refusal, ok := errors.AsType[*envelope.Error](err)
		if !ok || refusal.Code == envelope.CodeDuplicateID || !refusal.Code.Info().Settles {
			err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
	}
	return e, receipt, err
}

// PostEnvelope posts an envelope that is already signed. It retries as Post does, but never changes the envelope.
// Errors: those of Post.
func (c *Client) PostEnvelope(ctx context.Context, e *envelope.Envelope) (Receipt, error) {
	return c.postEnvelope(ctx, e, true)
}

// postEnvelope is PostEnvelope. See post for retryLimited.
func (c *Client) postEnvelope(ctx context.Context, e *envelope.Envelope, retryLimited bool) (Receipt, error) {
	if err := ctx.Err(); err != nil {
		return Receipt{}, err
	}
	var pause pacing.Backoff
	mayBeStored := false // whether the relay may have stored the message in an earlier attempt
	for attempt := 1; ; attempt++ {
		receipt, failed := c.postOnce(ctx, e)
		if failed == nil {
			return c.prove(ctx, e, receipt)
		}
		var err error = failed
		retry := failed.Temporary() && !waitTooLong(failed) && attempt < c.conn.Attempts
		if retry && (retryLimited || failed.Status != http.StatusTooManyRequests) {
			c.conn.Log.Debug("post failed, will be retried", "id", e.ID, "attempt", attempt, "error", failed)
			mayBeStored = mayBeStored || !failed.NoEffect()
			waitErr := pause.Wait(ctx, min(failed.RetryAfter, conn.PostPatience), pacing.MaxPause)
			if waitErr == nil {
				continue
			}
			err = fmt.Errorf("%w; stopped before a retry: %w", failed, waitErr)
		}
		refusal, refused := errors.AsType[*envelope.Error](failed)
		if !failed.NoEffect() || mayBeStored && !(refused && refusal.Code.Info().Settles) {
			err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		return Receipt{}, err
	}
}

// waitTooLong reports whether the request had no effect and the relay asks for a longer delay than conn.PostPatience.
// After a failure with an unknown effect (such as a 502) an earlier retry is useful, because it shows whether the relay
// has the message.
func waitTooLong(f *wire.Failure) bool { return f.NoEffect() && f.RetryAfter > conn.PostPatience }

// postOnce posts an envelope once. It also checks that the receipt is for this envelope.
func (c *Client) postOnce(ctx context.Context, e *envelope.Envelope) (receipt Receipt, failed *wire.Failure) {
	ctx, cancel := context.WithTimeout(ctx, wire.Timeout)
	defer cancel()
	if failed := c.conn.AssureParties(ctx); failed != nil {
		return Receipt{}, failed
	}
	if e.Home != nil {
		if failed, wrong := errors.AsType[*wire.Failure](c.conn.CheckHome(ctx, e.Home)); wrong {
			return Receipt{}, failed
		}
	}
	request := wire.Request{Base: c.conn.URL(), Method: http.MethodPost, Target: "/events", Body: e.Canonical()}
	failed = c.conn.Wire.Send(ctx, request, wire.Spec{Out: &receipt, Limit: wire.MaxShort})
	if failed == nil && receipt.ID != e.ID {
		failed = &wire.Failure{Err: errors.New("the relay's receipt is for another message"), Status: http.StatusOK}
	}
	return receipt.limited(e), failed
}

// limited returns the receipt of e. If ExpiresAt is after the end of e's signed ttl, it returns that end instead,
// because no relay keeps a message longer.
func (r Receipt) limited(e *envelope.Envelope) Receipt {
	if r.ExpiresAt.After(e.ExpiresAt()) {
		r.ExpiresAt = e.ExpiresAt()
	}
	return r
}
