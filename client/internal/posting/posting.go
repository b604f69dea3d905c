// Package posting posts signed messages to a relay, one by one or in bulk, and checks the relay's proofs that it has
// them (docs/PROOFS.md). A retry sends the same bytes. Each error says whether the relay may have stored the message.
package posting

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

// Poster posts to one relay. It is safe for concurrent use.
type Poster struct {
	Conn *conn.Conn
	Options
	Watcher Watcher // set before the Poster is used
}

// Options of a Poster.
type Options struct {
	SenderName, SenderURL string // of drafts without them

	CheckProofs   bool                              // see client.ProofsPrefer
	RequireProofs bool                              // see client.ProofsRequired
	Proved        func(*envelope.Envelope, Receipt) // see client.Options.Proved; nil: not called
}

// Errors of a Poster, see those of package client.
var (
	ErrUnknownOutcome = errors.New("it is unknown whether the relay stored the message")
	ErrUnproved       = errors.New("the relay does not prove that it has stored the message")
	ErrInvalidProof   = errors.New("the relay has answered with a proof that is not valid")
)

// Watcher is told what a Poster finds out about its relay.
type Watcher struct {
	Proved  func(*proof.Statement)               // a valid proof; nil: not called
	Invalid func(relay didkey.DID, reason error) // two proofs in a row that are not valid; nil: not called
}

// Receipt is the relay's confirmation that it has a message. Its fields are those of client.Receipt.
type Receipt struct {
	ID        string          `json:"id"`
	Cursor    string          `json:"cursor"`
	Duplicate bool            `json:"duplicate"`
	ExpiresAt time.Time       `json:"expiresAt"`
	Thread    *Thread         `json:"thread,omitempty"`
	Proof     string          `json:"proof,omitempty"`
	Proved    *proof.Verified `json:"-"`
}

// Thread is the state of a thread after a message. Its fields are those of client.ThreadState.
type Thread struct {
	ID     string       `json:"id"`
	Client didkey.DID   `json:"client"`
	State  thread.State `json:"state"`
}

// Post signs d and posts it, see client.Client.Post. Without retryLimited it does not retry a post that the relay
// refuses with 429.
func (p *Poster) Post(
	ctx context.Context, d envelope.Draft, retryLimited bool,
) (*envelope.Envelope, Receipt, error) {
	if p.Conn.Signer == nil {
		return nil, Receipt{}, conn.ErrReadOnly
	}
	if d.SenderName == "" {
		d.SenderName = p.SenderName
	}
	if d.SenderURL == "" {
		d.SenderURL = p.SenderURL
	}
	e, err := d.Sign(p.Conn.Signer, p.Conn.Now())
	if err != nil {
		return nil, Receipt{}, err
	}
	receipt, err := p.PostEnvelope(ctx, e, retryLimited)
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeStaleTimestamp || !d.TS.IsZero() || !p.Conn.CorrectClock(refusal) {
		return e, receipt, err
	}
	unknown := errors.Is(err, ErrUnknownOutcome)
	d.ID, d.Thread = e.ID, e.Thread
	if request, ok := d.Payload.(envelope.Request); ok {
		request.RequestID = e.RequestID
		d.Payload = request
	}
	if e, err = d.Sign(p.Conn.Signer, p.Conn.Now()); err != nil {
		return nil, Receipt{}, err
	}
	receipt, err = p.PostEnvelope(ctx, e, retryLimited)
	if unknown && err != nil && !errors.Is(err, ErrUnknownOutcome) {
		refusal, ok := errors.AsType[*envelope.Error](err)
		if !ok || refusal.Code == envelope.CodeDuplicateID || !refusal.Code.Info().Settles {
			err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
	}
	return e, receipt, err
}

// PostEnvelope posts an envelope that is already signed, see client.Client.PostEnvelope. See Post for retryLimited.
func (p *Poster) PostEnvelope(ctx context.Context, e *envelope.Envelope, retryLimited bool) (Receipt, error) {
	if err := ctx.Err(); err != nil {
		return Receipt{}, err
	}
	var pause pacing.Backoff
	mayBeStored := false // whether the relay may have stored the message in an earlier attempt
	for attempt := 1; ; attempt++ {
		receipt, failed := p.postOnce(ctx, e)
		if failed == nil {
			return p.prove(ctx, e, receipt)
		}
		var err error = failed
		retry := failed.Temporary() && !waitTooLong(failed) && attempt < p.Conn.Attempts
		if retry && (retryLimited || failed.Status != http.StatusTooManyRequests) {
			p.Conn.Log.Debug("post failed, will be retried", "id", e.ID, "attempt", attempt, "error", failed)
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
func (p *Poster) postOnce(ctx context.Context, e *envelope.Envelope) (receipt Receipt, failed *wire.Failure) {
	ctx, cancel := context.WithTimeout(ctx, wire.Timeout)
	defer cancel()
	if failed := p.Conn.AssureParties(ctx); failed != nil {
		return Receipt{}, failed
	}
	if e.Home != nil {
		if failed, wrong := errors.AsType[*wire.Failure](p.Conn.CheckHome(ctx, e.Home)); wrong {
			return Receipt{}, failed
		}
	}
	request := wire.Request{Base: p.Conn.URL(), Method: http.MethodPost, Target: "/events", Body: e.Canonical()}
	failed = p.Conn.Wire.Send(ctx, request, wire.Spec{Out: &receipt, Limit: wire.MaxShort})
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
