package hubclient

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
	"unicode/utf16"
	"unicode/utf8"

	"github.com/agora-relay/agora/internal/exchange"
)

// Client calls a hub. Do not change its fields while a call runs.
type Client struct {
	URL  string // of the hub, as CheckURL returns it
	Key  string // of the agent; empty: calls are anonymous
	HTTP *http.Client
	Log  *slog.Logger // gets warnings, for example when a request is repeated
}

// New returns a client for the hub at a URL that CheckURL has returned.
func New(hubURL, key string, log *slog.Logger) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // a compressed answer could be huge
	return &Client{URL: hubURL, Key: key, Log: log, HTTP: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Close closes idle connections.
func (c *Client) Close() { c.HTTP.CloseIdleConnections() }

// CheckURL checks the URL of a hub and returns it without a slash at the end.
func CheckURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return "", errors.New("want the hub's URL, such as https://relay.example/hub")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// maxAddress is the length of the longest address in UTF-16 code units.
const maxAddress = 128

// isAddress reports whether a text has the length of an address. The hub checks the other rules.
func isAddress(text string) bool {
	return text != "" && utf8.ValidString(text) && len(utf16.Encode([]rune(text))) <= maxAddress
}

// Error is an answer of a hub with a status other than 2xx.
type Error struct {
	Status        int
	Code, Message string
	RetryAfter    time.Duration // 0: the hub does not say when to try again
}

// Refused returns the status and the RetryAfter.
func (e *Error) Refused() (status int, retryAfter time.Duration) { return e.Status, e.RetryAfter }

func (e *Error) Error() string {
	text := fmt.Sprintf("the hub refused the request with status %d", e.Status)
	switch {
	case e.Code != "":
		text += ", " + e.Code + ": " + e.Message
	case e.Status == http.StatusNotFound:
		text += "; is this the URL of a hub? A relay has one at URL/hub if it runs with --hub"
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; try again in %v", e.RetryAfter)
	}
	return text
}

// exchangeTimeout is the longest time of one request. A hub may wait 15 s for a webhook.
const exchangeTimeout = time.Minute

const maxAnswer = 32 << 20

var service = exchange.Service{Name: "hub", Start: "agora serve --hub", MaxAnswer: maxAnswer}

// answer is a successful answer. Data is nil if the answer does not have the usual form.
type answer struct {
	Data     json.RawMessage `json:"data"`
	Metadata struct {
		Timestamp string `json:"timestamp"`
		HasMore   bool   `json:"has_more"`
	} `json:"metadata"`
	body []byte
}

// request returns a request with the agent's key. body is JSON, or nil.
func (c *Client) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "agora-hubclient")
	if c.Key != "" {
		r.Header.Set("Authorization", "Bearer "+c.Key)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, nil
}

// exchange sends one request and reads the answer. If data is not nil, the member data of the answer is decoded into
// it. An error is an *Error, a *exchange.Lost, or that of ctx.
func (c *Client) exchange(
	ctx context.Context, method, path string, header http.Header, body []byte, data any,
) (a answer, err error) {
	limited, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	r, err := c.request(limited, method, path, body)
	if err != nil {
		return a, err
	}
	r.Header.Set("Accept", "application/json")
	for name, values := range header {
		r.Header[name] = values
	}
	response, text, err := service.Do(ctx, c.HTTP, r, exchangeTimeout)
	if err != nil {
		return a, err
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return a, refusal(response, text)
	}
	a.body = text
	if json.Unmarshal(text, &a) != nil {
		a.Data = nil // not the usual form
	}
	if data != nil && (a.Data == nil || json.Unmarshal(a.Data, data) != nil) {
		return a, &exchange.Lost{Text: "the answer does not have the form of Chorus 0.4; is this the URL of a hub?"}
	}
	return a, nil
}

// refusal returns the error of an answer with another status than 2xx.
func refusal(response *http.Response, text []byte) error {
	e := &Error{Status: response.StatusCode}
	var body struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(text, &body) == nil {
		e.Code, e.Message = exchange.Shorten(body.Error.Code), exchange.Shorten(body.Error.Message)
	}
	e.RetryAfter = exchange.RetryAfter(response)
	return e
}

// try calls do until it succeeds, fails for good, or has failed too often. Each request of a hub may be repeated.
func (c *Client) try(ctx context.Context, do func() error) error {
	return exchange.Repeat(ctx, c.Log, true, func(int) error { return do() })
}
