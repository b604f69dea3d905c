// Package conn talks to one relay for one identity. It reads what the relay says about itself and its gateways, corrects
// the clock to the relay's time, and makes signed reads, and signed calls to the gateways. It trusts nothing that the
// relay says, except to decide what to ask next. Package posting posts the messages.
package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/readauth"
	"github.com/agora-relay/agora/client/internal/recent"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Options of a Conn. Those with the names of client.Options mean the same.
type Options struct {
	HTTPClient     *http.Client
	Now            func() time.Time
	Logger         *slog.Logger
	RequireParties bool
	Attempts       int
}

const defaultAttempts = 8

// Conn talks to one relay for one identity. It is safe for concurrent use.
type Conn struct {
	Base     string          // the URL that was given, without a slash at the end
	Signer   envelope.Signer // nil: it only reads
	Log      *slog.Logger
	Wire     *wire.Sender
	Attempts int // how often a call or a post is tried

	rawNow         func() time.Time
	correction     atomic.Int64 // nanoseconds to add to rawNow
	requireParties bool
	known          atomic.Pointer[About]       // what the relay says about itself; nil: not read yet
	rate           atomic.Pointer[pacing.Rate] // how often this client may post; nil: unknown
	readAuth       readauth.Rules
	fetching       chan struct{}            // a semaphore: full while a goroutine fetches the relay's document for reads
	gateways       atomic.Pointer[Gateways] // of the relay; nil: not read yet
	unopened       once                     // the sealed messages that could not be opened, and were logged
	ownURL         atomic.Pointer[string]   // used instead of Base once the relay is known to be private (§8); nil: Base
}

// ErrReadOnly is the error of a call that needs a signer, on a Conn without one.
var ErrReadOnly = errors.New("client: posting needs a signer; pass one to New")

// New returns a Conn to the relay at base, a URL without a slash at the end.
func New(base string, signer envelope.Signer, opts Options) *Conn {
	c := &Conn{Base: base, Signer: signer, Log: opts.Logger, Attempts: opts.Attempts, rawNow: opts.Now,
		requireParties: opts.RequireParties, fetching: make(chan struct{}, 1)}
	c.Wire = wire.NewSender(opts.HTTPClient, c.Now)
	if c.rawNow == nil {
		c.rawNow = time.Now
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Attempts == 0 {
		c.Attempts = defaultAttempts
	}
	return c
}

// Me returns the own identity, or ErrReadOnly if there is none.
func (c *Conn) Me() (didkey.DID, error) {
	if c.Signer == nil {
		return "", ErrReadOnly
	}
	return c.Signer.DID(), nil
}

// Now returns the time of the clock, corrected by CorrectClock.
func (c *Conn) Now() time.Time { return c.rawNow().Add(time.Duration(c.correction.Load())) }

// CorrectClock sets the clock to the relay's time in a STALE_TIMESTAMP error. It returns false if the error has no
// time, or if the correction would be larger than readauth.MaxCorrection.
func (c *Conn) CorrectClock(stale *envelope.Error) bool {
	relayNow, ok := stale.Now()
	if !ok {
		return false
	}
	correction := relayNow.Sub(c.rawNow())
	if correction.Abs() > readauth.MaxCorrection {
		c.Log.Warn("the client does not use the relay's time, because it differs from this machine's by more than a day",
			"relay", envelope.FormatTime(relayNow))
		return false
	}
	c.correction.Store(int64(correction))
	c.Log.Warn("timestamps are corrected to the relay's clock; check this machine's clock", "by", correction)
	return true
}

// Get sends a GET. With showOnline it signs the read at an open relay as well. There the signature only shows that the
// reader is online. If the relay refuses the token of the read, Get retries the read if prepareRetry or
// readauth.Rules.PausePresence allows it.
func (c *Conn) Get(ctx context.Context, path string, query url.Values, showOnline bool, spec wire.Spec) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	for attempt := 1; ; attempt++ {
		token, grantsAccess, failed := c.token(ctx, path, showOnline)
		if failed == nil {
			request := wire.Request{Base: c.URL(), Method: http.MethodGet, Target: path, Authorization: token}
			failed = c.Wire.Send(ctx, request, spec)
		}
		if failed == nil {
			return nil
		}
		if attempt < readAttempts && token != "" && !grantsAccess && c.readAuth.PausePresence(failed) {
			continue
		}
		if refused := c.prepareRetry(failed, grantsAccess); refused != nil {
			return refused
		}
		if attempt == readAttempts { // a later try may succeed, for example if a proxy sends some requests twice
			return &wire.Failure{NotSent: true, Err: fmt.Errorf("the relay refused the read %d times: %v", attempt, failed)}
		}
	}
}

// readAttempts is how often a read is tried at most: without a token, with a token that has a wrong time, and with a
// token that has the corrected time.
const readAttempts = 3

// Read sends a GET. It takes at most wire.Timeout. It retries only if the relay answers 429 with a Retry-After that
// ends before wire.Timeout and ctx do. The caller retries after all other failures.
func (c *Conn) Read(ctx context.Context, path string, query url.Values, spec wire.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, wire.Timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var pause pacing.Backoff
	for {
		err := c.Get(ctx, path, query, false, spec)
		failed, ok := errors.AsType[*wire.Failure](err)
		if !ok || failed.Status != http.StatusTooManyRequests || failed.RetryAfter == 0 ||
			failed.RetryAfter > time.Until(deadline) {
			return err
		}
		if waitErr := pause.Wait(ctx, failed.RetryAfter, pacing.MaxPause); waitErr != nil {
			return fmt.Errorf("%w; stopped before a retry: %w", err, waitErr)
		}
	}
}

// Wanted returns the events for which wanted returns true, with payloads decrypted if possible. It logs the events that
// it skips.
func (c *Conn) Wanted(events *wire.Events, wanted func(*envelope.Envelope) bool) []*envelope.Envelope {
	events.Log(c.Log)
	all := []*envelope.Envelope{}
	for _, e := range events.Valid {
		if !wanted(e) {
			c.Log.Warn("an event was skipped because it was not requested", "id", e.ID, "sender", e.Sender.ID)
			continue
		}
		all = append(all, c.Open(e))
	}
	return all
}

// PostPatience is the longest delay from a Retry-After header that the client waits before it retries a post or a call.
// It is much shorter than the age at which a message is stale.
const PostPatience = 2 * time.Minute

// ReadPatience is the longest delay from a Retry-After header that the client waits before it retries a read, or the
// manifest of an agent.
const ReadPatience = time.Hour

// Repeat calls do until it succeeds, until again returns false for its failure, or until Attempts is reached. Between
// the attempts it waits as for a post. Each attempt takes at most wire.Timeout.
func (c *Conn) Repeat(
	ctx context.Context, again func(*wire.Failure) bool, do func(context.Context) *wire.Failure,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var pause pacing.Backoff
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(ctx, wire.Timeout)
		failed := do(limited)
		cancel()
		if failed == nil {
			return nil
		}
		if !failed.Temporary() || !again(failed) || failed.RetryAfter > PostPatience || attempt >= c.Attempts {
			return failed
		}
		c.Log.Debug("the request failed, will be retried", "attempt", attempt, "error", failed)
		if stopped := pause.Wait(ctx, failed.RetryAfter, pacing.MaxPause); stopped != nil {
			return fmt.Errorf("%w; stopped before a retry: %w", failed, stopped)
		}
	}
}

// Open returns e with its payload opened. It returns e unchanged if the payload is not sealed, is sealed to another
// key, or cannot be opened.
func (c *Conn) Open(e *envelope.Envelope) *envelope.Envelope {
	opener, able := c.Signer.(envelope.Opener)
	if !e.Sealed() || c.Signer == nil || e.Recipient != c.Signer.DID() {
		return e
	}
	if able {
		if opened, err := e.Open(opener); err == nil {
			return opened
		}
	}
	if c.unopened.first(recent.Message{Sender: e.Sender.ID, ID: e.ID}) {
		c.Log.Warn("a sealed message cannot be decrypted with this client's key", "id", e.ID, "sender", e.Sender.ID)
	}
	return e
}

// once remembers messages, so that each one is logged only once. It is safe for concurrent use.
type once struct {
	mu   sync.Mutex
	seen *recent.Map[recent.Message, struct{}] // nil: no messages yet
}

// first returns true in the first call with the message m, and false in later calls.
func (o *once) first(m recent.Message) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen == nil {
		o.seen = recent.New[recent.Message, struct{}](recent.Messages)
	}
	return o.seen.Add(m, struct{}{})
}
