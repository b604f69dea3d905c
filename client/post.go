package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// ErrUnknownOutcome is in the error of a post of which nobody can say whether the relay took it: an attempt was cut off
// or failed on the server's side, and no later answer settled it. Ask for it first: the error also wraps the last
// failure, which may be an *envelope.Error. Posting the very same envelope again (PostEnvelope) is safe, as a relay
// knows its duplicates; signing a new one may do the thing twice.
var ErrUnknownOutcome = errors.New("it is unknown whether the relay took the message")

// Receipt is the relay's confirmation that a message is on disk and will be delivered until ExpiresAt (PROTOCOL §5).
type Receipt struct {
	ID        string       `json:"id"`
	Cursor    string       `json:"cursor"`
	Duplicate bool         `json:"duplicate"` // it had been taken before; this time nothing happened
	ExpiresAt time.Time    `json:"expiresAt"`
	Thread    *ThreadState `json:"thread,omitempty"` // nil for a MANIFEST
}

// ThreadState says where a message left its thread. State is empty where the relay shows threads to their parties only
// and the message was a duplicate, or an ERROR that took an offer back (PROTOCOL §8).
type ThreadState struct {
	ID     string       `json:"id"`
	Client didkey.DID   `json:"client"`
	State  thread.State `json:"state"`
}

// Post signs d and posts it. It repeats the same bytes after a failure that may pass (no connection, 429, 5xx), until
// ctx ends or Options.Attempts are used up, and not before the time that the relay asks for (Retry-After). A relay that
// is too busy or too full for more than two minutes is not waited for: its refusal is returned at once, with the time
// in RetryAfter. If the relay's first definite answer is that the timestamp is stale, and no earlier attempt may have
// been taken, it corrects the clock and signs once more, under the same id; not if d.TS was given.
//
// The envelope is returned with every error that came after it was signed. Errors: an *envelope.Error is the relay's
// definite refusal (or Draft.Sign's); one with ErrUnknownOutcome says that it may have been taken; with any other, it
// was not. All are for errors.Is and errors.As.
func (c *Client) Post(ctx context.Context, d envelope.Draft) (*envelope.Envelope, Receipt, error) {
	return c.post(ctx, d, true)
}

// post is Post. Unless retryLimited, it does not retry a post that the relay refuses because of a limit (429).
func (c *Client) post(ctx context.Context, d envelope.Draft, retryLimited bool) (*envelope.Envelope, Receipt, error) {
	if c.signer == nil {
		return nil, Receipt{}, errReadOnly
	}
	if d.SenderName == "" {
		d.SenderName = c.opts.SenderName
	}
	if d.SenderURL == "" {
		d.SenderURL = c.opts.SenderURL
	}
	e, err := d.Sign(c.signer, c.now())
	if err != nil {
		return nil, Receipt{}, err
	}
	receipt, err := c.postEnvelope(ctx, e, retryLimited)
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeStaleTimestamp || errors.Is(err, ErrUnknownOutcome) ||
		!d.TS.IsZero() || !c.correctClock(refusal) {
		return e, receipt, err
	}
	d.ID, d.Thread = e.ID, e.Thread // the same ids: should the relay have it after all, it answers 409 and no harm is done
	if request, ok := d.Payload.(envelope.Request); ok {
		request.RequestID = e.RequestID
		d.Payload = request
	}
	if e, err = d.Sign(c.signer, c.now()); err != nil {
		return nil, Receipt{}, err
	}
	receipt, err = c.postEnvelope(ctx, e, retryLimited)
	return e, receipt, err
}

// PostEnvelope posts an envelope that is signed already, repeating it as Post does. It never changes it.
func (c *Client) PostEnvelope(ctx context.Context, e *envelope.Envelope) (Receipt, error) {
	return c.postEnvelope(ctx, e, true)
}

func (c *Client) postEnvelope(ctx context.Context, e *envelope.Envelope, retryLimited bool) (Receipt, error) {
	if err := ctx.Err(); err != nil {
		return Receipt{}, err
	}
	var pause backoff
	mayBeTaken := false // by an attempt before the present one
	for attempt := 1; ; attempt++ {
		receipt, failed := c.postOnce(ctx, e)
		if failed == nil {
			return receipt, nil
		}
		var err error = failed
		retry := failed.temporary() && !failed.postponed() && attempt < c.opts.Attempts
		if retry && (retryLimited || failed.status != http.StatusTooManyRequests) {
			c.log.Debug("post failed, will be retried", "id", e.ID, "attempt", attempt, "error", failed)
			mayBeTaken = mayBeTaken || !failed.refused()
			waiting := pause.wait(ctx, min(failed.retryAfter, postPatience), maxPause)
			if waiting == nil {
				continue
			}
			err = fmt.Errorf("%w; given up: %w", failed, waiting)
		}
		if !failed.refused() || mayBeTaken && !settles(failed) {
			err = fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
		}
		return Receipt{}, err
	}
}

// postponed reports whether the relay has refused the message and asks for more patience than a signed message has. An
// answer that is no refusal (a 5xx) is another matter: what became of the message is worth asking sooner.
func (f *failure) postponed() bool { return f.refused() && f.retryAfter > postPatience }

func (c *Client) postOnce(ctx context.Context, e *envelope.Envelope) (receipt Receipt, failed *failure) {
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	if failed := c.assureParties(ctx); failed != nil {
		return Receipt{}, failed
	}
	failed = c.exchange(ctx, http.MethodPost, "/events", "", e.Canonical(), reply{out: &receipt, limit: maxShort})
	if failed == nil && receipt.ID != e.ID {
		failed = &failure{err: errors.New("the relay's receipt is for another message"), status: http.StatusOK}
	}
	if receipt.ExpiresAt.After(e.ExpiresAt()) { // no message outlives the ttl that its sender signed
		receipt.ExpiresAt = e.ExpiresAt()
	}
	return receipt, failed
}

// settles reports whether a refusal tells the outcome of earlier attempts with the same bytes too. A relay recognizes a
// message it has taken before it asks the thread's rules (PROTOCOL §3), so a refusal by those rules, or for another
// content under the id, means that it had not. A refusal by the clock or a rate comes sooner and tells nothing.
func settles(f *failure) bool {
	refusal, ok := errors.AsType[*envelope.Error](f)
	if !ok {
		return false
	}
	switch refusal.Code {
	case envelope.CodeInvalidTransition, envelope.CodeThreadNotFound, envelope.CodeForbidden,
		envelope.CodeDuplicateID, envelope.CodeInvalidRequest:
		return true
	}
	return false
}
