// Package channelclient is the client side of a channel at a relay's channel gateway (CHANNEL §1): its members say and
// read something, and its owner manages members and connections.
package channelclient

import (
	"bytes"
	"context"
	"encoding/json"
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

// Client calls a channel gateway. Do not change its fields while a call runs.
type Client struct {
	URL  string // of the channel, as CheckURL returns it; for Create that of the gateway, as CheckGateway returns it
	Key  string // a ck_, cm_ or op_ key
	HTTP *http.Client
	Log  *slog.Logger // gets warnings, for example when a request is repeated
}

// New returns a client for the channel, or the gateway, at a URL that CheckURL or CheckGateway has returned.
func New(channelURL, key string, log *slog.Logger) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // a compressed answer could be huge
	return &Client{URL: channelURL, Key: key, Log: log, HTTP: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Close closes idle connections.
func (c *Client) Close() { c.HTTP.CloseIdleConnections() }

// CheckURL checks the URL of a channel and returns it without a slash at the end.
func CheckURL(text string) (string, error) {
	checked, err := CheckGateway(text)
	if err == nil {
		before, id, found := cutLast(checked, "/")
		if !found || !strings.HasSuffix(before, "/channels") || id == "" {
			err = errors.New("not a channel")
		}
	}
	if err != nil {
		return "", errors.New("want the channel's URL, such as https://relay.example/channel/channels/ch_…")
	}
	return checked, nil
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// CheckGateway checks the base URL of a channel gateway and returns it without a slash at the end.
func CheckGateway(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return "", errors.New("want the URL of a channel gateway, such as https://relay.example/channel")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// Error is an answer of a gateway with a status other than 2xx.
type Error struct {
	Status        int
	Code, Message string
	RetryAfter    time.Duration // 0: the gateway does not say when to try again
}

func (e *Error) Error() string {
	text := fmt.Sprintf("the gateway refused the request with status %d", e.Status)
	switch {
	case e.Code != "":
		text += ", " + e.Code + ": " + e.Message
	case e.Status == http.StatusNotFound:
		text += "; is the URL right? The channel gateway of a relay is usually at URL/channel"
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; try again in %v", e.RetryAfter)
	}
	return text
}

// lost is the error of a request that got no complete and valid answer.
type lost struct {
	text   string
	unsent bool // it is certain that the request was not sent
}

func (l *lost) Error() string { return l.text }

// Limits of one request, and of its repeats. They are low because a person may be waiting for the result.
const (
	exchangeTimeout = 30 * time.Second
	maxAnswer       = 16 << 20
	maxErrorText    = 500
	attempts        = 6           // how often a request is sent at most
	patience        = time.Minute // the longest Retry-After after which the request is repeated
	minPause        = 500 * time.Millisecond
	maxPause        = time.Minute
)

// call is one request and how to treat it.
type call struct {
	method, path string
	body         any           // encoded as JSON; nil: no body
	key          string        // the Idempotency-Key; empty: none
	safe         bool          // a repeat does no harm, even if the request has had its effect
	wait         time.Duration // how long the gateway may wait before it answers
	out          any           // the answer is decoded into this; nil: it is not needed
}

// do sends a request until it succeeds, fails for good, or has failed too often. Errors: *Error; the error of ctx; one
// of a request without an answer.
func (c *Client) do(ctx context.Context, q call) error {
	var body []byte
	if q.body != nil {
		var err error
		if body, err = json.Marshal(q.body); err != nil {
			return err
		}
	}
	var pause backoff
	for attempt := 1; ; attempt++ {
		err := c.exchange(ctx, q, body)
		after, again := repeatable(err, q.safe)
		if err == nil || !again || attempt == attempts || after > patience {
			return err
		}
		c.Log.Warn("the request is repeated", "err", err)
		if stopped := pause.wait(ctx, after); stopped != nil {
			return stopped
		}
	}
}

// repeatable reports whether the same request may succeed later, and may be sent again. after is how long the gateway
// asks to wait; 0: it does not say.
func repeatable(err error, safe bool) (after time.Duration, ok bool) {
	if l, isLost := errors.AsType[*lost](err); isLost {
		return 0, safe || l.unsent
	}
	e, refused := errors.AsType[*Error](err)
	if !refused {
		return 0, false
	}
	failed := e.Status >= 500 || e.Status == http.StatusRequestTimeout
	return e.RetryAfter, e.Status == http.StatusTooManyRequests || safe && failed
}

// exchange sends one request and reads the answer.
func (c *Client) exchange(ctx context.Context, q call, body []byte) error {
	limited, cancel := context.WithTimeout(ctx, exchangeTimeout+q.wait)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, q.method, c.URL+q.path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "agora-channelclient")
	r.Header.Set("Accept", "application/json")
	r.Header.Set("Authorization", "Bearer "+c.Key)
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if q.key != "" {
		r.Header.Set("Idempotency-Key", q.key)
	}
	response, err := c.HTTP.Do(r)
	if err != nil {
		return c.lostError(ctx, err)
	}
	text, err := readBody(response)
	if err != nil {
		return c.lostError(ctx, err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return refusal(response, text)
	}
	var head struct {
		OK bool `json:"ok"`
	}
	if json.Unmarshal(text, &head) != nil || !head.OK || q.out != nil && json.Unmarshal(text, q.out) != nil {
		return &lost{text: "the answer does not have the form of a channel gateway; is the URL right?"}
	}
	return nil
}

// readBody reads and closes the body of a response.
func readBody(response *http.Response) (text []byte, err error) {
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err == nil && len(text) > maxAnswer {
		err = fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	return text, err
}

// lostError returns the error of a request that got no complete answer. If ctx has ended, it returns the error of ctx.
func (c *Client) lostError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	host := strings.TrimPrefix(strings.TrimPrefix(c.URL, "http://"), "https://")
	host, _, _ = strings.Cut(host, "/")
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return &lost{fmt.Sprintf("no channel gateway answers at %s (%v); agora serve --channel starts one", host, dial.Err),
			true}
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &lost{text: fmt.Sprintf("the gateway at %s has not answered in time", host)}
	}
	return &lost{text: fmt.Sprintf("the gateway at %s has not answered completely: %v", host, err)}
}

// refusal returns the error of an answer with another status than 2xx.
func refusal(response *http.Response, text []byte) error {
	e := &Error{Status: response.StatusCode}
	var body struct{ Error, Message string }
	if json.Unmarshal(text, &body) == nil {
		e.Code, e.Message = shorten(body.Error), shorten(body.Message)
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 20); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// shorten cuts a text from a gateway that is used in an error.
func shorten(text string) string {
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + "…"
	}
	return text
}

// backoff computes the pauses between attempts. Each pause is twice as long as the one before, and partly random.
type backoff struct{ failures int }

// wait sleeps for the next pause, which is at least atLeast. It returns ctx's error if ctx ends first.
func (b *backoff) wait(ctx context.Context, atLeast time.Duration) error {
	span := min(minPause<<min(b.failures, 10), maxPause)
	b.failures++
	timer := time.NewTimer(max(atLeast, span/2+rand.N(span/2+1)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
