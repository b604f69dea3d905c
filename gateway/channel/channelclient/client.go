// Package channelclient is the client side of a channel at a relay's channel gateway (CHANNEL §1): its members say and
// read something, and its owner manages members and connections.
package channelclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agora-relay/agora/internal/exchange"
)

// Client calls a channel gateway. Do not change its fields while a call runs.
type Client struct {
	URL  string // of the channel, as CheckURL returns it; for Create the gateway's, as CheckGateway returns it
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

// Refused returns the status and the RetryAfter.
func (e *Error) Refused() (status int, retryAfter time.Duration) { return e.Status, e.RetryAfter }

func (e *Error) Error() string {
	text := fmt.Sprintf("the gateway refused the request with status %d", e.Status)
	switch {
	case e.Code != "":
		text += ", " + e.Code + ": " + e.Message
	case e.Status == http.StatusNotFound:
		text += "; is the URL right? A relay has a channel gateway at URL/channel if it runs with --channel"
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; try again in %v", e.RetryAfter)
	}
	return text
}

// exchangeTimeout is the longest time of one request, without what the gateway may wait.
const exchangeTimeout = 30 * time.Second

const maxAnswer = 16 << 20

var service = exchange.Service{Name: "channel gateway", Start: "agora serve --channel", MaxAnswer: maxAnswer}

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
	return exchange.Repeat(ctx, c.Log, q.safe, func(int) error { return c.exchange(ctx, q, body) })
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
	response, text, err := service.Do(ctx, c.HTTP, r, exchangeTimeout+q.wait)
	if err != nil {
		return err
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return refusal(response, text)
	}
	var head struct {
		OK bool `json:"ok"`
	}
	if json.Unmarshal(text, &head) != nil || !head.OK || q.out != nil && json.Unmarshal(text, q.out) != nil {
		return &exchange.Lost{Text: "the answer does not have the form of a channel gateway; is the URL right?"}
	}
	return nil
}

// refusal returns the error of an answer with another status than 2xx.
func refusal(response *http.Response, text []byte) error {
	e := &Error{Status: response.StatusCode}
	var body struct{ Error, Message string }
	if json.Unmarshal(text, &body) == nil {
		e.Code, e.Message = exchange.Shorten(body.Error), exchange.Shorten(body.Message)
	}
	e.RetryAfter = exchange.RetryAfter(response)
	return e
}
