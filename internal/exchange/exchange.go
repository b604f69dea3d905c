// Package exchange sends the requests of the clients of gateways. It says what is known after an answer was lost, and
// repeats what may be repeated. Each client decides by itself what a request contains and what an answer means.
package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Limits of requests and their repeats. They are low because a person may be waiting for the result.
const (
	Attempts = 6           // how often a request is sent at most
	patience = time.Minute // the longest Retry-After after which a request is repeated
	MinPause = 500 * time.Millisecond
	MaxPause = time.Minute
	MaxText  = 500 // bytes of a text from a gateway in an error
)

// Service is a gateway, in words for errors.
type Service struct {
	Name      string // such as "jobs gateway"
	Start     string // the command that starts one
	MaxAnswer int64  // the most bytes of an answer
}

// Lost is the error of a request that got no complete and valid answer.
type Lost struct {
	Text   string
	Unsent bool // it is certain that the request was not sent
}

func (l *Lost) Error() string { return l.Text }

// refusal is an error by which a gateway has refused a request. retryAfter is 0 if the gateway does not say when to try
// again.
type refusal interface {
	error
	Refused() (status int, retryAfter time.Duration)
}

// Do sends r and reads the answer, of any status. timeout is how long r may take by its context, for the error.
// Errors: *Lost; that of ctx, the context of the caller, if it has ended. The errors show only the host of the URL,
// because the path may contain a key.
func (s Service) Do(
	ctx context.Context, c *http.Client, r *http.Request, timeout time.Duration,
) (response *http.Response, text []byte, err error) {
	if response, err = c.Do(r); err == nil {
		text, err = s.ReadBody(response)
	}
	if err != nil {
		return nil, nil, s.Lost(ctx, err, r.URL.Host, timeout)
	}
	return response, text, nil
}

// ReadBody reads and closes the body of a response.
func (s Service) ReadBody(response *http.Response) (text []byte, err error) {
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	text, err = io.ReadAll(io.LimitReader(response.Body, s.MaxAnswer+1))
	if err == nil && int64(len(text)) > s.MaxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", s.MaxAnswer)
	}
	return text, err
}

// Lost returns the error of a request that got no complete answer because of err, see Do.
func (s Service) Lost(ctx context.Context, err error, host string, timeout time.Duration) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return &Lost{fmt.Sprintf("no %s answers at %s (%v); %s starts one", s.Name, host, dial.Err, s.Start), true}
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &Lost{Text: fmt.Sprintf("the %s at %s has not answered within %v", s.Name, host, timeout)}
	}
	return &Lost{Text: fmt.Sprintf("the %s at %s has not answered completely: %v", s.Name, host, err)}
}

// RetryAfter returns the Retry-After of an answer; 0: it has none.
func RetryAfter(response *http.Response) time.Duration {
	seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 20)
	if err != nil {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// Repeatable reports whether the same request may succeed later, and may be sent again. safe says that a repeat does no
// harm, even if the request has had its effect. after is how long the gateway asks to wait; 0: it does not say.
func Repeatable(err error, safe bool) (after time.Duration, ok bool) {
	if l, isLost := errors.AsType[*Lost](err); isLost {
		return 0, safe || l.Unsent
	}
	refused, ok := errors.AsType[refusal](err)
	if !ok {
		return 0, false
	}
	status, after := refused.Refused()
	failed := status >= 500 || status == http.StatusRequestTimeout
	return after, status == http.StatusTooManyRequests || safe && failed
}

// Repeat calls send until it succeeds, fails for good, or has failed too often. attempt counts from 1.
// Errors: those of send; ctx's error.
func Repeat(ctx context.Context, log *slog.Logger, safe bool, send func(attempt int) error) error {
	var pause Backoff
	for attempt := 1; ; attempt++ {
		err := send(attempt)
		after, again := Repeatable(err, safe)
		if err == nil || !again || attempt == Attempts || after > patience {
			return err
		}
		log.Warn("the request is repeated", "err", err)
		if stopped := pause.Wait(ctx, after); stopped != nil {
			return stopped
		}
	}
}

// Shorten cuts a text from a gateway that is used in an error.
func Shorten(text string) string {
	if len(text) > MaxText {
		text = strings.ToValidUTF8(text[:MaxText], "") + "…"
	}
	return text
}

// Backoff computes the pauses between attempts. Each pause is twice as long as the one before, and partly random. The
// zero value begins with the shortest.
type Backoff struct{ failures int }

// Next returns the next pause. It is at least atLeast.
func (b *Backoff) Next(atLeast time.Duration) time.Duration {
	span := min(MinPause<<min(b.failures, 10), MaxPause)
	b.failures++
	return max(atLeast, span/2+rand.N(span/2+1))
}

// Wait sleeps for the next pause. It returns ctx's error if ctx ends first.
func (b *Backoff) Wait(ctx context.Context, atLeast time.Duration) error {
	return Sleep(ctx, b.Next(atLeast))
}

// Sleep returns after a time, or with ctx's error if ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
