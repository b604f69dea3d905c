package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// PostResult is what became of one message of PostAll.
type PostResult struct {
	Receipt Receipt // zero if Err is not nil; it has no Cursor and no Thread
	Err     error   // as from PostEnvelope
}

// A bulk request of PostAll has at most this many messages and bytes. That is less than a relay takes, so that little is
// repeated after a failure.
const (
	bulkMessages = 1000
	bulkBytes    = 4 << 20
	maxBulk      = 4 << 20 // the largest answer to a bulk request, in bytes
)

// PostAll posts envelopes that are already signed, in this order, and returns one result for each. It needs few requests:
// POST /events/bulk takes many messages (RELAYS §6). At a relay without it, PostAll posts the messages one by one.
//
// PostAll retries as PostEnvelope does. If the relay refuses a message only for the moment, PostAll sends it again, and
// with it the refused messages behind it, because they may depend on it. The attempts count anew after each request that
// has settled a message.
func (c *Client) PostAll(ctx context.Context, envelopes []*envelope.Envelope) []PostResult {
	p := &postAll{client: c, envelopes: envelopes, results: make([]PostResult, len(envelopes)),
		unknown: make([]bool, len(envelopes)), size: bulkMessages}
	for i := range envelopes {
		p.pending = append(p.pending, i)
	}
	p.run(ctx)
	return p.results
}

// postAll is one call of PostAll.
type postAll struct {
	client    *Client
	envelopes []*envelope.Envelope
	results   []PostResult
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
func (r bulkRefusal) failure() *failure {
	e := &envelope.Error{Code: envelope.Code(shorten(string(r.Error))), Message: shorten(r.Message), Details: r.Details,
		RetryAfter: time.Duration(min(max(r.RetryAfter, 0), 1<<20)) * time.Second}
	status := http.StatusBadRequest // also for a code that this client does not know
	if e.Code.Retryable() {
		status = e.Code.Info().Status
	}
	return &failure{err: e, status: status, retryAfter: e.RetryAfter}
}

// run sends requests until every message has a result.
func (p *postAll) run(ctx context.Context) {
	var pause backoff
	for attempt := 1; len(p.pending) > 0; attempt++ {
		if err := ctx.Err(); err != nil {
			p.giveUp(&failure{err: err, notSent: true}, len(p.pending))
			return
		}
		chunk := p.chunk()
		answer, failed := p.client.postBulk(ctx, chunk)
		if failed != nil && (failed.status == http.StatusNotFound || failed.status == http.StatusMethodNotAllowed) {
			p.oneByOne(ctx)
			return
		}
		if failed == nil {
			var settled int
			if settled, failed = p.settle(answer, len(chunk)); settled > 0 {
				attempt, pause = 0, backoff{}
			}
			p.size = min(2*p.size, bulkMessages)
			if failed != nil {
				p.size = max(settled, 1) // the relay takes no more at the moment
			}
		} else if !failed.noEffect() {
			for _, i := range p.pending[:len(chunk)] {
				p.unknown[i] = true
			}
		}
		switch {
		case failed == nil:
		case !failed.temporary():
			// The relay takes the first message in no request.
			p.giveUp(failed, 1)
		case failed.waitTooLong() || attempt >= p.client.opts.Attempts:
			p.giveUp(failed, len(p.pending))
		default:
			p.client.log.Debug("bulk post not finished, will be continued", "attempt", attempt, "error", failed)
			if err := pause.wait(ctx, min(failed.retryAfter, postPatience), maxPause); err != nil {
				p.giveUp(&failure{err: fmt.Errorf("%w; stopped before a retry: %w", failed, err), notSent: true}, len(p.pending))
			}
		}
	}
}

// chunk returns the messages of the next request.
func (p *postAll) chunk() (chunk []*envelope.Envelope) {
	bytes := 0
	for _, i := range p.pending[:min(p.size, len(p.pending))] {
		e := p.envelopes[i]
		if bytes += len(e.Canonical()) + 1; bytes > bulkBytes && len(chunk) > 0 {
			break
		}
		chunk = append(chunk, e)
	}
	return chunk
}

// settle records the results of a request with sent messages. It returns how many messages have a result now, and why the
// next one has none; nil: the next request may follow at once.
func (p *postAll) settle(answer bulkAnswer, sent int) (settled int, failed *failure) {
	var left []int
	for n, i := range p.pending[:sent] {
		if n >= len(answer.Results) {
			left = append(left, i)
			continue
		}
		result := answer.Results[n]
		if result.Error == "" {
			p.results[i].Receipt = result.Receipt.limited(p.envelopes[i])
			settled++
			continue
		}
		refusal := result.failure()
		if failed == nil && refusal.temporary() {
			failed = refusal
		}
		if failed != nil {
			left = append(left, i)
			continue
		}
		p.results[i].Err = p.outcome(i, refusal)
		settled++
	}
	p.pending = append(left, p.pending[sent:]...)
	if stopped := answer.Stopped; stopped != nil && failed == nil {
		if refusal := stopped.failure(); refusal.temporary() || settled == 0 {
			failed = refusal
		}
	}
	return settled, failed
}

// outcome returns the error of message i after its last attempt has failed.
func (p *postAll) outcome(i int, failed *failure) error {
	refusal, refused := errors.AsType[*envelope.Error](failed)
	if !failed.noEffect() || p.unknown[i] && !(refused && refusal.Code.Info().Settles) {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, failed)
	}
	return failed
}

// giveUp ends the first n pending messages with an error.
func (p *postAll) giveUp(failed *failure, n int) {
	for _, i := range p.pending[:n] {
		p.results[i].Err = p.outcome(i, failed)
	}
	p.pending = p.pending[n:]
}

// oneByOne posts the pending messages each in its own request.
func (p *postAll) oneByOne(ctx context.Context) {
	for _, i := range p.pending {
		r := &p.results[i]
		r.Receipt, r.Err = p.client.PostEnvelope(ctx, p.envelopes[i])
	}
	p.pending = nil
}

// postBulk sends one bulk request. It also checks that the receipts are for these envelopes.
func (c *Client) postBulk(ctx context.Context, envelopes []*envelope.Envelope) (answer bulkAnswer, failed *failure) {
	ctx, cancel := context.WithTimeout(ctx, 3*exchangeTimeout) // a relay works on a bulk request for a minute at most
	defer cancel()
	if failed := c.assureParties(ctx); failed != nil {
		return answer, failed
	}
	var body bytes.Buffer
	for _, e := range envelopes {
		body.Write(e.Canonical())
		body.WriteByte('\n')
	}
	failed = c.exchange(ctx, http.MethodPost, "/events/bulk", "", body.Bytes(), responseSpec{out: &answer, limit: maxBulk})
	wrong := len(answer.Results) > len(envelopes) || len(answer.Results) < len(envelopes) && answer.Stopped == nil
	for i := 0; i < len(answer.Results) && !wrong; i++ {
		wrong = answer.Results[i].Error == "" && answer.Results[i].ID != envelopes[i].ID
	}
	if failed == nil && wrong {
		failed = &failure{err: errors.New("the relay's results are not those of the messages that were sent"), status: http.StatusOK}
	}
	return answer, failed
}
