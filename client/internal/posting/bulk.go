package posting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/client/internal/conn"
	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
)

// A bulk request of PostAll has at most this many messages and bytes. These are less than a relay takes. So little is
// repeated after a failure.
const (
	bulkMessages = 1000
	bulkBytes    = 4 << 20
	maxBulk      = 4 << 20 // the largest answer to a bulk request, in bytes, without proofs
	bulkProof    = 8 << 10 // the largest proof of a receipt, which no witness has signed
)

// Result is the outcome of one message of PostAll.
type Result struct {
	Receipt Receipt // zero if Err is not nil
	Err     error   // as from PostEnvelope
}

// PostAll posts envelopes that are already signed, see client.Client.PostAll.
func (p *Poster) PostAll(ctx context.Context, envelopes []*envelope.Envelope) []Result {
	b := &bulk{poster: p, envelopes: envelopes, results: make([]Result, len(envelopes)),
		unknown: make([]bool, len(envelopes)), size: bulkMessages}
	for i := range envelopes {
		b.pending = append(b.pending, i)
	}
	b.run(ctx)
	return b.results
}

// bulk is one call of PostAll.
type bulk struct {
	poster    *Poster
	envelopes []*envelope.Envelope
	results   []Result
	unknown   []bool // whether the relay may have stored the message in an earlier attempt
	pending   []int  // the messages without a result, in order
	size      int    // how many messages to send in the next request
}

// bulkAnswer is the answer to a bulk request.
type bulkAnswer struct {
	Results []struct {
		Receipt
		bulkRefusal
	} `json:"results"`
	Stopped *bulkRefusal `json:"stopped"`
}

type bulkRefusal struct {
	Error      envelope.Code  `json:"error"`
	Message    string         `json:"message"`
	RetryAfter int            `json:"retryAfter"` // seconds
	Details    map[string]any `json:"details"`
}

// failure returns the error for a message that the relay has refused.
func (r bulkRefusal) failure() *wire.Failure {
	e := &envelope.Error{Code: envelope.Code(wire.Shorten(string(r.Error))), Message: wire.Shorten(r.Message),
		Details: r.Details, RetryAfter: time.Duration(min(max(r.RetryAfter, 0), 1<<20)) * time.Second}
	status := http.StatusBadRequest // also for a code that this client does not know
	if e.Code.Retryable() {
		status = e.Code.Info().Status
	}
	return &wire.Failure{Err: e, Status: status, RetryAfter: e.RetryAfter}
}

// run sends requests until every message has a result.
func (b *bulk) run(ctx context.Context) {
	var pause pacing.Backoff
	for attempt := 1; len(b.pending) > 0; attempt++ {
		if err := ctx.Err(); err != nil {
			b.giveUp(err, len(b.pending))
			return
		}
		chunk := b.chunk()
		answer, failed := b.poster.postBulk(ctx, chunk)
		if failed == nil {
			var settled int
			if settled, failed = b.settle(ctx, answer, len(chunk)); settled > 0 {
				attempt, pause = 0, pacing.Backoff{}
			}
			b.size = min(2*b.size, bulkMessages)
			if failed != nil {
				b.size = max(settled, 1) // the relay takes no more at the moment
			}
		} else {
			b.noteUnknown(failed, 0, len(chunk))
		}
		switch {
		case failed == nil:
		case failed.Status == http.StatusNotFound, failed.Status == http.StatusMethodNotAllowed:
			b.oneByOne(ctx)
		case failed.Status == http.StatusRequestEntityTooLarge && len(chunk) > 1:
			b.size = len(chunk) / 2
		case failed.Status == http.StatusRequestEntityTooLarge:
			b.giveUp(failed, 1) // the relay takes this message in no request
		case !failed.Temporary() || waitTooLong(failed) || attempt >= b.poster.Conn.Attempts:
			b.giveUp(failed, len(b.pending))
		default:
			b.poster.Conn.Log.Debug("bulk post not finished, will be continued", "attempt", attempt, "error", failed)
			if err := pause.Wait(ctx, min(failed.RetryAfter, conn.PostPatience), pacing.MaxPause); err != nil {
				b.giveUp(fmt.Errorf("%w; stopped before a retry: %w", failed, err), len(b.pending))
			}
		}
	}
}

// chunk returns the messages of the next request.
func (b *bulk) chunk() (chunk []*envelope.Envelope) {
	bytes := 0
	for _, i := range b.pending[:min(b.size, len(b.pending))] {
		e := b.envelopes[i]
		if bytes += len(e.Canonical()) + 1; bytes > bulkBytes && len(chunk) > 0 {
			break
		}
		chunk = append(chunk, e)
	}
	return chunk
}

// settle records the results of a request, which had this many messages. It returns how many of them have a final
// result. failed says why the next message has none; nil: the next request may follow at once.
func (b *bulk) settle(ctx context.Context, answer bulkAnswer, sent int) (settled int, failed *wire.Failure) {
	var left []int
	for n, i := range b.pending[:len(answer.Results)] {
		result := answer.Results[n]
		if result.Error == "" {
			r := &b.results[i]
			r.Receipt, r.Err = b.poster.prove(ctx, b.envelopes[i], result.Receipt.limited(b.envelopes[i]))
			settled++
			continue
		}
		refusal := result.failure()
		b.noteUnknown(refusal, n, n+1)
		b.results[i].Err = b.outcome(i, refusal)
		if failed == nil && refusal.Temporary() && !waitTooLong(refusal) {
			failed = refusal
		}
		if failed != nil {
			left = append(left, i) // it may depend on the message that is sent again
		} else {
			settled++
		}
	}
	rest := b.pending[len(answer.Results):]
	if answer.Stopped != nil {
		refusal := answer.Stopped.failure()
		b.noteUnknown(refusal, len(answer.Results), sent)
		switch {
		case failed == nil && refusal.Temporary():
			failed = refusal
		case failed == nil && len(answer.Results) == 0: // the relay takes this message in no request
			b.results[rest[0]].Err = b.outcome(rest[0], refusal)
			settled, rest = settled+1, rest[1:]
		}
	}
	b.pending = append(left, rest...)
	return settled, failed
}

// noteUnknown notes that the relay may have stored some of the pending messages, if that is so after this failure.
func (b *bulk) noteUnknown(failed *wire.Failure, from, to int) {
	if !failed.NoEffect() {
		for _, i := range b.pending[from:to] {
			b.unknown[i] = true
		}
	}
}

// outcome returns the error of message i after its last attempt has failed.
func (b *bulk) outcome(i int, err error) error {
	refusal, refused := errors.AsType[*envelope.Error](err)
	if b.unknown[i] && !errors.Is(err, ErrUnknownOutcome) && !(refused && refusal.Code.Info().Settles) {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
	return err
}

// giveUp ends the first n pending messages. A message that was refused keeps its own error.
func (b *bulk) giveUp(err error, n int) {
	for _, i := range b.pending[:n] {
		if b.results[i].Err == nil {
			b.results[i].Err = b.outcome(i, err)
		}
	}
	b.pending = b.pending[n:]
}

// oneByOne posts the pending messages each in its own request, until the relay does not answer any more.
func (b *bulk) oneByOne(ctx context.Context) {
	for len(b.pending) > 0 {
		i := b.pending[0]
		receipt, err := b.poster.PostEnvelope(ctx, b.envelopes[i], true)
		b.results[i] = Result{receipt, nil}
		if err != nil {
			b.results[i].Err = b.outcome(i, err)
		}
		b.pending = b.pending[1:]
		if wire.Unanswered(err) || errors.Is(err, ErrUnknownOutcome) {
			b.giveUp(fmt.Errorf("not posted, because a message before it was not answered: %v", err), len(b.pending))
		}
	}
}

// postBulk sends one bulk request. It also checks that the receipts are for these envelopes.
func (p *Poster) postBulk(
	ctx context.Context, envelopes []*envelope.Envelope,
) (answer bulkAnswer, failed *wire.Failure) {
	ctx, cancel := context.WithTimeout(ctx, 3*wire.Timeout) // a relay works on a bulk request for a minute at most
	defer cancel()
	if failed := p.Conn.AssureParties(ctx); failed != nil {
		return answer, failed
	}
	var body bytes.Buffer
	for _, e := range envelopes {
		body.Write(e.Canonical())
		body.WriteByte('\n')
	}
	target, limit := "/events/bulk", maxBulk
	if p.CheckProofs {
		known, err := p.Conn.Proves(ctx)
		if err != nil {
			return answer, &wire.Failure{Err: err, NotSent: true}
		}
		if known {
			target, limit = target+"?proofs=true", maxBulk+len(envelopes)*bulkProof
		}
	}
	request := wire.Request{Base: p.Conn.URL(), Method: http.MethodPost, Target: target, Body: body.Bytes()}
	failed = p.Conn.Wire.Send(ctx, request, wire.Spec{Out: &answer, Limit: limit})
	wrong := len(answer.Results) > len(envelopes) || len(answer.Results) < len(envelopes) && answer.Stopped == nil
	for i := 0; i < len(answer.Results) && !wrong; i++ {
		wrong = answer.Results[i].Error == "" && answer.Results[i].ID != envelopes[i].ID
	}
	if failed == nil && wrong {
		failed = &wire.Failure{Status: http.StatusOK,
			Err: errors.New("the relay's results are not those of the messages that were sent")}
	}
	return answer, failed
}
