// Package wire does one exchange with a relay or one of its gateways: it sends a request, and reads the answer within
// bounds. It never repeats a request. A Failure tells the caller whether the same request may succeed later, and whether
// it certainly had no effect. The caller limits the time, and signs.
package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Timeout limits the time for one request and its whole response. The time that a long poll waits is added.
const Timeout = 30 * time.Second

// Failure is the error of a request without a successful response. It unwraps to the relay's *envelope.Error if the
// response has one.
type Failure struct {
	Err        error
	Status     int           // the HTTP status; 0: there was no complete response
	Challenged bool          // the response asks for a signed read, see challenge
	NotSent    bool          // the request was not sent
	RetryAfter time.Duration // the delay that the relay asks for; 0: none
}

func (f *Failure) Error() string { return f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// Temporary reports whether the same request may succeed later.
func (f *Failure) Temporary() bool {
	switch {
	case f.Status == http.StatusRequestTimeout, f.Status == http.StatusTooManyRequests:
		return true
	case f.Status >= 300 && f.Status < 500:
		return false
	}
	return true // no response, a malformed 200 response, or any 5xx
}

// Unanswered reports whether err is of a request that may succeed later, see Failure.Temporary.
func Unanswered(err error) bool {
	failed, ok := errors.AsType[*Failure](err)
	return ok && failed.Temporary()
}

// StatusOf returns the HTTP status of a request that failed; 0: err is of none.
func StatusOf(err error) int {
	if failed, ok := errors.AsType[*Failure](err); ok {
		return failed.Status
	}
	return 0
}

// NoEffect reports whether the request certainly had no effect: it was not sent, the status is 4xx, or the relay says
// that nothing was stored. After any other 5xx the effect is unknown: a gateway may send a 502 although the relay
// answered 200, and the relay may have stored the message before it answered 500.
func (f *Failure) NoEffect() bool {
	refusal, ok := errors.AsType[*envelope.Error](f.Err)
	return f.NotSent || f.Status >= 400 && f.Status < 500 || ok && refusal.NothingStored()
}

// Permanent returns a failure of a request that was not sent. A retry would fail in the same way.
func Permanent(refusal *envelope.Error) *Failure {
	return &Failure{Err: refusal, Status: http.StatusUnauthorized, NotSent: true}
}

// Sender sends requests. It is safe for concurrent use.
type Sender struct {
	http *http.Client
	now  func() time.Time
}

// NewSender returns a Sender that uses a copy of given, without its Timeout, and without following redirects. nil: an
// http.Client with Go's defaults that reads at most MaxHeaders of headers. now is the clock for a Retry-After that is a
// date.
func NewSender(given *http.Client, now func() time.Time) *Sender {
	c := new(http.Client)
	if given != nil {
		*c = *given
	}
	if c.Transport == nil {
		c.Transport = transport()
	}
	c.Timeout = 0
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Sender{http: c, now: now}
}

// Request is a request to a relay or to one of its gateways.
type Request struct {
	Base           string // the URL of the relay or the gateway, without a slash at the end
	Method, Target string // Target is the path after base, with an optional query
	Authorization  string // the value of the header Authorization; empty: no such header
	IdempotencyKey string // the value of the header Idempotency-Key; empty: no such header
	Body           []byte // JSON; nil: no body
}

// Send sends one request and reads its response as spec says. nil: the request succeeded. ctx limits the time.
func (s *Sender) Send(ctx context.Context, o Request, spec Spec) (failed *Failure) {
	request, err := http.NewRequestWithContext(ctx, o.Method, o.Base+o.Target, bytes.NewReader(o.Body))
	if err != nil {
		return &Failure{Err: err, NotSent: true}
	}
	if o.Authorization != "" {
		request.Header.Set("Authorization", o.Authorization)
	}
	if o.IdempotencyKey != "" {
		request.Header.Set("Idempotency-Key", o.IdempotencyKey)
	}
	request.Header.Set("Accept", "application/json")
	// Without this header the transport asks for gzip, and decompresses the response without a limit.
	request.Header.Set("Accept-Encoding", "identity")
	request.Header.Set("User-Agent", "agora-client/"+envelope.Version)
	if o.Body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := s.http.Do(request)
	if err != nil {
		return &Failure{Err: InWords(err), NotSent: neverSent(err)}
	}
	defer func() {
		if err := response.Body.Close(); err != nil && failed == nil {
			failed = &Failure{Err: fmt.Errorf("reading the response: %w", err)}
		}
	}()
	return s.readResponse(o.Base, response, spec)
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

// challenge reports whether a response asks for a signed read: it has a WWW-Authenticate header with the scheme Agora.
func challenge(header http.Header) bool {
	for _, value := range header.Values("WWW-Authenticate") {
		if scheme, _, _ := strings.Cut(strings.TrimSpace(value), " "); strings.EqualFold(scheme, "Agora") {
			return true
		}
	}
	return false
}
