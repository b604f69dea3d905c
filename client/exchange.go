package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

const (
	exchangeTimeout = 30 * time.Second // for one request and its answer, beyond what a long poll waits
	maxAnswer       = 32 << 20         // bytes; a page of events ends at 4 MiB, a thread may hold 100 offers
	maxMessage      = 1 << 10          // bytes of a refusal's message that are kept
)

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

// refused reports whether this request provably had no effect: it never left, or it was answered with a 4xx. A 5xx
// proves nothing: a gateway's 502 may hide a 200, and the relay's own 500 may follow a commit whose answer it lost.
func (f *failure) refused() bool { return f.unsent || f.status >= 400 && f.status < 500 }

// definite reports whether err is a refusal, by the relay or before anything was sent, that would come again. One by
// the clock would not: the next try is signed at another time, and a wrong clock may be set right. One by a rate would
// not either, unless it is the number of a thread's offers, which does not go down.
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

// answer is what every answer of a relay has (PROTOCOL §5).
type answer struct {
	OK      bool           `json:"ok"`
	Error   envelope.Code  `json:"error"`
	Message string         `json:"message"`
	Details map[string]any `json:"details"`
}

func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	for attempt := 1; ; attempt++ {
		token, failed := c.token(ctx, path)
		if failed == nil {
			failed = c.exchange(ctx, http.MethodGet, path, token, nil, out)
		}
		if failed == nil {
			return nil
		}
		if attempt == readAttempts {
			return failed
		}
		if failed = c.mend(failed, token != ""); failed != nil {
			return failed
		}
	}
}

// readAttempts is how often a read that is refused for its token is made: unsigned, by a wrong clock, and once more.
const readAttempts = 3

// exchange makes one request, with this Authorization if it is not empty, and decodes a good answer into out.
func (c *Client) exchange(ctx context.Context, method, target, authorization string, body []byte, out any) *failure {
	return c.exchangeAt(ctx, c.at(), method, target, authorization, body, out)
}

// exchangeAt is exchange with the relay at base.
func (c *Client) exchangeAt(ctx context.Context, base, method, target, authorization string, body []byte, out any) *failure {
	request, err := http.NewRequestWithContext(ctx, method, base+target, bytes.NewReader(body))
	if err != nil {
		return &failure{err: err, unsent: true}
	}
	request.Header.Set("Accept", "application/json")
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
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return &failure{err: fmt.Errorf("reading the answer: %w", err)} // without status: it is as if none had come
	}
	if len(text) > maxAnswer {
		return &failure{err: errors.New("the answer is too long"), status: response.StatusCode}
	}
	failed := &failure{status: response.StatusCode, challenged: challenge(response.Header), retryAfter: c.retryAfter(response.Header)}
	var head answer
	switch err := json.Unmarshal(text, &head); {
	case err != nil || !head.OK && head.Error == "":
		failed.err = fmt.Errorf("%s gave %s, which is not an answer of an Agora relay; check its URL", base, response.Status)
	case !head.OK:
		failed.err = &envelope.Error{Code: head.Error, Message: shorten(head.Message), Details: head.Details, RetryAfter: failed.retryAfter}
	case response.StatusCode != http.StatusOK:
		failed.err = fmt.Errorf("the relay says ok with status %s", response.Status)
	default:
		if failed.err = json.Unmarshal(text, out); failed.err == nil {
			return nil
		}
	}
	return failed
}

func shorten(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "")
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

// How long a relay can make us wait by asking for it.
const (
	postPatience = 2 * time.Minute // where there is something to post: well below the age at which a message is stale
	readPatience = time.Hour       // where nothing is lost but time
)

// retryAfter reads Retry-After, seconds or a date (RFC 9110 §10.2.3); 0 if there is none.
func (c *Client) retryAfter(header http.Header) time.Duration {
	text := header.Get("Retry-After")
	if seconds, err := strconv.Atoi(text); err == nil {
		return time.Duration(min(max(seconds, 0), math.MaxInt32)) * time.Second
	}
	if date, err := http.ParseTime(text); err == nil {
		return max(date.Sub(c.now()), 0)
	}
	return 0
}

// retryAfter returns what a refusal says of when to try again; 0 if nothing.
func retryAfter(err error) time.Duration {
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok {
		return 0
	}
	return refusal.RetryAfter
}

// Pauses between attempts grow from minPause to maxPause.
const (
	minPause = 500 * time.Millisecond
	maxPause = 30 * time.Second
)

// backoff counts the failures in a row. The zero value is ready to use.
type backoff struct{ failures int }

func (b *backoff) reset() { b.failures = 0 }

// wait pauses for atLeast and a random part of a span that doubles each time, up to limit, so that clients which
// failed together do not come back together. It returns ctx's error if that ends first.
func (b *backoff) wait(ctx context.Context, atLeast, limit time.Duration) error {
	span := min(minPause<<min(b.failures, 10), limit)
	b.failures++
	pause := atLeast + rand.N(span/2+1)
	if atLeast == 0 {
		pause += span / 2
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
