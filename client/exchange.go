package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// exchangeTimeout limits one request and its whole answer, not counting the time that a long poll waits.
const exchangeTimeout = 30 * time.Second

// failure is an exchange without a good answer. It unwraps to the relay's *envelope.Error where there is one.
type failure struct {
	err        error
	status     int           // 0: no answer at all
	challenged bool          // the relay asks for a signed read
	unsent     bool          // no answer, and the request never left
	retryAfter time.Duration // what the relay asked for; 0: nothing
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// temporary reports whether the same request may succeed later.
func (f *failure) temporary() bool {
	switch {
	case f.status == http.StatusRequestTimeout, f.status == http.StatusTooManyRequests:
		return true
	case f.status >= 300 && f.status < 500:
		return false
	}
	return true // no answer, a broken 200, any 5xx
}

// refused reports whether this request certainly had no effect: it was never sent, it was answered with a 4xx, or the
// relay says that nothing was stored. Any other 5xx leaves it open: a gateway's 502 may hide a 200, and the relay's own
// 500 may follow a commit.
func (f *failure) refused() bool {
	refusal, ok := errors.AsType[*envelope.Error](f.err)
	return f.unsent || f.status >= 400 && f.status < 500 || ok && refusal.NothingStored()
}

// definite reports whether err is a refusal that a retry would get again, by the relay or before anything was sent. A
// refusal because of the clock is not: the next try has another timestamp, and a wrong clock may be corrected. A rate
// limit is not either, except for the number of offers in a thread, which never goes down.
func definite(err error) bool {
	refusal, ok := errors.AsType[*envelope.Error](err)
	switch {
	case !ok, errors.Is(err, ErrUnknownOutcome), refusal.Code == envelope.CodeStaleTimestamp, refusal.Code == envelope.CodeExpired:
		return false
	case refusal.Code == envelope.CodeRateLimited:
		return refusal.Details["maxOffers"] != nil
	}
	return !refusal.Code.Retryable()
}

// get makes a GET. If the relay refuses its token, get tries again as the refusal allows.
func (c *Client) get(ctx context.Context, path string, query url.Values, good reply) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	for attempt := 1; ; attempt++ {
		token, proves, failed := c.token(ctx, path, good.present)
		if failed == nil {
			failed = c.exchange(ctx, http.MethodGet, path, token, nil, good)
		}
		if failed == nil {
			return nil
		}
		if attempt == readAttempts {
			return failed
		}
		if token != "" && !proves && c.reading.mute(failed) {
			continue
		}
		if failed = c.prepareRetry(failed, proves); failed != nil {
			return failed
		}
	}
}

// readAttempts is how often a read is tried: without a token, with a token from a wrong clock, and corrected.
const readAttempts = 3

// exchange makes one request, with this Authorization unless it is empty. good says how to read a successful answer.
func (c *Client) exchange(ctx context.Context, method, target, authorization string, body []byte, good reply) *failure {
	return c.exchangeAt(ctx, c.at(), method, target, authorization, body, good)
}

// exchangeAt is exchange with the relay at base.
func (c *Client) exchangeAt(
	ctx context.Context, base, method, target, authorization string, body []byte, good reply,
) (failed *failure) {
	request, err := http.NewRequestWithContext(ctx, method, base+target, bytes.NewReader(body))
	if err != nil {
		return &failure{err: err, unsent: true}
	}
	request.Header.Set("Accept", "application/json")
	// Without this the transport asks for gzip and unpacks it without a limit.
	request.Header.Set("Accept-Encoding", "identity")
	request.Header.Set("User-Agent", "agora-client/"+envelope.Version)
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return &failure{err: err, unsent: neverLeft(err)}
	}
	defer func() {
		if err := response.Body.Close(); err != nil && failed == nil {
			failed = &failure{err: fmt.Errorf("reading the answer: %w", err)}
		}
	}()
	return c.answer(base, response, good)
}

// neverLeft reports whether err proves that a request was not sent: there was no connection to send it on. Anything
// else, a reset or a timeout above all, may have come after the relay had read it.
func neverLeft(err error) bool {
	if dial, ok := errors.AsType[*net.OpError](err); ok && (dial.Op == "dial" || dial.Op == "proxyconnect") {
		return true
	}
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	return badCertificate
}

// The longest Retry-After that is obeyed.
const (
	postPatience = 2 * time.Minute // where there is something to post: well below the age at which a message is stale
	readPatience = time.Hour       // where nothing is lost but time
)

// Pauses between attempts grow from minPause to maxPause.
const (
	minPause = 500 * time.Millisecond
	maxPause = 30 * time.Second
)

// backoff counts the failures in a row. The zero value is ready to use.
type backoff struct{ failures int }

func (b *backoff) reset() { b.failures = 0 }

// next returns the next pause: atLeast plus a random time. The random time doubles with each failure, up to limit, so
// that clients which failed at the same moment do not retry at the same moment.
func (b *backoff) next(atLeast, limit time.Duration) time.Duration {
	span := min(minPause<<min(b.failures, 10), limit)
	b.failures++
	pause := atLeast + rand.N(span/2+1)
	if atLeast == 0 {
		pause += span / 2
	}
	return pause
}

// wait sleeps for the next pause. It returns ctx's error if ctx ends first.
func (b *backoff) wait(ctx context.Context, atLeast, limit time.Duration) error {
	timer := time.NewTimer(b.next(atLeast, limit))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
