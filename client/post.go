package client

import (
	"context"
	"time"

	"github.com/agora-relay/agora/client/internal/posting"
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
var ErrUnknownOutcome = posting.ErrUnknownOutcome

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

// receiptOf returns the receipt of a Poster.
func receiptOf(r posting.Receipt) Receipt {
	return Receipt{ID: r.ID, Cursor: r.Cursor, Duplicate: r.Duplicate, ExpiresAt: r.ExpiresAt,
		Thread: (*ThreadState)(r.Thread), Proof: r.Proof, Proved: r.Proved}
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
	e, r, err := c.poster.Post(ctx, d, true)
	return e, receiptOf(r), err
}

// PostEnvelope posts an envelope that is already signed. It retries as Post does, but never changes the envelope.
// Errors: those of Post.
func (c *Client) PostEnvelope(ctx context.Context, e *envelope.Envelope) (Receipt, error) {
	r, err := c.poster.PostEnvelope(ctx, e, true)
	return receiptOf(r), err
}

// PostResult is the outcome of one message of PostAll.
type PostResult struct {
	Receipt Receipt // zero if Err is not nil; mostly without Cursor and Thread
	Err     error   // as from PostEnvelope
}

// PostAll posts envelopes that are already signed, in this order, and returns one result for each. It needs few
// requests, because POST /events/bulk takes many messages (PROTOCOL §5). At a relay without it, PostAll posts them one
// by one.
//
// PostAll retries as PostEnvelope does. If the relay refuses a message only for the moment, PostAll sends it again. It
// also sends the refused messages behind it again, because they may depend on it. PostAll gives up after
// Options.Attempts requests in a row that bring no message a final result.
func (c *Client) PostAll(ctx context.Context, envelopes []*envelope.Envelope) []PostResult {
	results := make([]PostResult, 0, len(envelopes))
	for _, r := range c.poster.PostAll(ctx, envelopes) {
		results = append(results, PostResult{receiptOf(r.Receipt), r.Err})
	}
	return results
}
