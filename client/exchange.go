package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// exchangeTimeout limits the time for one request and its whole response. The time that a long poll waits is added.
const exchangeTimeout = 30 * time.Second

// failure is the error of a request without a successful response. It unwraps to the relay's *envelope.Error if the
// response has one.
type failure struct {
	err        error
	status     int           // the HTTP status; 0: there was no complete response
	challenged bool          // the response asks for a signed read, see challenge
	notSent    bool          // the request was not sent
	retryAfter time.Duration // the delay that the relay asks for; 0: none
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
	return true // no response, a malformed 200 response, or any 5xx
}

// noEffect reports whether the request certainly had no effect: it was not sent, the status is 4xx, or the relay says
// that nothing was stored. After any other 5xx the effect is unknown: a gateway may send a 502 although the relay
// answered 200, and the relay may have stored the message before it answered 500.
func (f *failure) noEffect() bool {
	refusal, ok := errors.AsType[*envelope.Error](f.err)
	return f.notSent || f.status >= 400 && f.status < 500 || ok && refusal.NothingStored()
}

// permanent reports whether err is ErrOtherRelay, or an *envelope.Error that a retry would get again. The error may
// come from the relay or from the client itself, before it sent anything. Three kinds of errors are not permanent:
//   - ErrUnknownOutcome.
//   - An error because of the time (CodeStaleTimestamp, CodeExpired): a retry has a new timestamp, and a wrong clock
//     may be corrected.
//   - An error with a code that Code.Retryable allows. CodeRateLimited is such a code, with one exception: the limit on
//     the offers in a thread is permanent, because their number never goes down.
func permanent(err error) bool {
	refusal, ok := errors.AsType[*envelope.Error](err)
	switch {
	case errors.Is(err, ErrOtherRelay):
		return true
	case !ok, errors.Is(err, ErrUnknownOutcome),
		refusal.Code == envelope.CodeStaleTimestamp, refusal.Code == envelope.CodeExpired:
		return false
	case refusal.Code == envelope.CodeRateLimited:
		return refusal.Details["maxOffers"] != nil
	}
	return !refusal.Code.Retryable()
}

// get sends a GET. If the relay refuses the token of the read, get retries the read if prepareRetry or pausePresence
// allows it.
func (c *Client) get(ctx context.Context, path string, query url.Values, spec responseSpec) error {
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	for attempt := 1; ; attempt++ {
		token, grantsAccess, failed := c.token(ctx, path, spec.showOnline)
		if failed == nil {
			failed = c.exchange(ctx, http.MethodGet, path, token, nil, spec)
		}
		if failed == nil {
			return nil
		}
		if attempt < readAttempts && token != "" && !grantsAccess && c.readAuth.pausePresence(failed) {
			continue
		}
		if refused := c.prepareRetry(failed, grantsAccess); refused != nil {
			return refused
		}
		if attempt == readAttempts { // a later try may succeed, for example if a proxy sends some requests twice
			return &failure{notSent: true, err: fmt.Errorf("the relay refused the read %d times: %v", attempt, failed)}
		}
	}
}

// readAttempts is how often a read is tried at most: without a token, with a token that has a wrong time, and with a
// token that has the corrected time.
const readAttempts = 3

// exchange sends one request. authorization is the value of the header Authorization; empty: no such header. spec says
// how to read a successful response.
func (c *Client) exchange(
	ctx context.Context, method, target, authorization string, body []byte, spec responseSpec,
) *failure {
	return c.exchangeAt(ctx, c.relayURL(), method, target, authorization, body, spec)
}

// exchangeAt is exchange for the relay with the URL base.
func (c *Client) exchangeAt(
	ctx context.Context, base, method, target, authorization string, body []byte, spec responseSpec,
) *failure {
	header := http.Header{}
	if authorization != "" {
		header.Set("Authorization", authorization)
	}
	return c.send(ctx, base, method, target, header, body, spec)
}

// send is exchangeAt with any headers. It adds those that every request has.
func (c *Client) send(
	ctx context.Context, base, method, target string, header http.Header, body []byte, spec responseSpec,
) (failed *failure) {
	request, err := http.NewRequestWithContext(ctx, method, base+target, bytes.NewReader(body))
	if err != nil {
		return &failure{err: err, notSent: true}
	}
	request.Header = header
	request.Header.Set("Accept", "application/json")
	// Without this header the transport asks for gzip, and decompresses the response without a limit.
	request.Header.Set("Accept-Encoding", "identity")
	request.Header.Set("User-Agent", "agora-client/"+envelope.Version)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return &failure{err: InWords(err), notSent: neverSent(err)}
	}
	defer func() {
		if err := response.Body.Close(); err != nil && failed == nil {
			failed = &failure{err: fmt.Errorf("reading the response: %w", err)}
		}
	}()
	return c.readResponse(base, response, spec)
}

// neverSent reports whether err proves that a request was not sent, because there was no usable connection. After any
// other error, such as a reset or a timeout, the relay may have read the request.
func neverSent(err error) bool {
	if dial, ok := errors.AsType[*net.OpError](err); ok && (dial.Op == "dial" || dial.Op == "proxyconnect") {
		return true
	}
	_, badCertificate := errors.AsType[*tls.CertificateVerificationError](err)
	return badCertificate
}

// The longest delay from a Retry-After header that the client waits before a retry.
const (
	postPatience = 2 * time.Minute // for a post; much shorter than the age at which a message is stale
	readPatience = time.Hour       // for a read, and for the manifest of an agent
)

// Unanswered reports whether err means that the relay gave no answer, or an answer without a decision: no connection, a
// timeout, a failure of a server, 429, or ErrUnknownOutcome. The same call may succeed later.
func Unanswered(err error) bool {
	failed, ok := errors.AsType[*failure](err)
	return errors.Is(err, ErrUnknownOutcome) || ok && failed.temporary()
}
