package hubclient

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
	"unicode/utf16"
	"unicode/utf8"
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

func (e *Error) Error() string {
	text := fmt.Sprintf("the hub refused the request with status %d", e.Status)
	switch {
	case e.Code != "":
		text += ", " + e.Code + ": " + e.Message
	case e.Status == http.StatusNotFound:
		text += "; is this the URL of a hub? The hub of a relay is usually at URL/hub"
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

// repeatable reports whether the same request may succeed later. after is how long the hub asks to wait; 0: it does not
// say.
func repeatable(err error) (after time.Duration, ok bool) {
	if _, isLost := errors.AsType[*lost](err); isLost {
		return 0, true
	}
	e, refused := errors.AsType[*Error](err)
	if !refused {
		return 0, false
	}
	return e.RetryAfter, e.Status >= 500 || e.Status == http.StatusTooManyRequests || e.Status == http.StatusRequestTimeout
}

// Limits of one request.
const (
	exchangeTimeout = time.Minute // a hub may wait 15 s for a webhook
	maxAnswer       = 32 << 20
	maxErrorText    = 500
)

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
// it. An error is an *Error, a *lost, or that of ctx.
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
	response, err := c.HTTP.Do(r)
	if err != nil {
		return a, c.lostError(ctx, err)
	}
	text, err := readBody(response)
	if err != nil {
		return a, c.lostError(ctx, err)
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return a, refusal(response, text)
	}
	a.body = text
	if json.Unmarshal(text, &a) != nil {
		a.Data = nil // not the usual form
	}
	if data != nil && (a.Data == nil || json.Unmarshal(a.Data, data) != nil) {
		return a, &lost{text: "the answer does not have the form of Chorus 0.4; is this the URL of a hub?"}
	}
	return a, nil
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
		return &lost{fmt.Sprintf("no hub answers at %s (%v); agora serve --hub starts one", host, dial.Err), true}
	}
	if request, ok := errors.AsType[*url.Error](err); ok {
		err = request.Err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return &lost{text: fmt.Sprintf("the hub at %s has not answered within %v", host, exchangeTimeout)}
	}
	return &lost{text: fmt.Sprintf("the hub at %s has not answered completely: %v", host, err)}
}

// refusal returns the error of an answer with another status than 2xx.
func refusal(response *http.Response, text []byte) error {
	e := &Error{Status: response.StatusCode}
	var body struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(text, &body) == nil {
		e.Code, e.Message = shorten(body.Error.Code), shorten(body.Error.Message)
	}
	if seconds, err := strconv.ParseUint(response.Header.Get("Retry-After"), 10, 20); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// shorten cuts a text from a hub that is used in an error.
func shorten(text string) string {
	if len(text) > maxErrorText {
		text = strings.ToValidUTF8(text[:maxErrorText], "") + "…"
	}
	return text
}

// The pauses between attempts.
const (
	minPause = 500 * time.Millisecond
	maxPause = time.Minute
)

// backoff computes the pauses between attempts. Each pause is twice as long as the one before, and partly random.
type backoff struct{ failures int }

// next returns the next pause. It is at least atLeast.
func (b *backoff) next(atLeast time.Duration) time.Duration {
	span := min(minPause<<min(b.failures, 10), maxPause)
	b.failures++
	return max(atLeast, span/2+rand.N(span/2+1))
}

// sleep waits. It returns ctx's error if ctx ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Limits of try. They are low because a person may be waiting for the result.
const (
	attempts = 6           // how often a request is sent at most
	patience = time.Minute // the longest Retry-After after which the request is repeated
)

// try calls do until it succeeds, fails for good, or has failed too often.
func (c *Client) try(ctx context.Context, do func() error) error {
	var pause backoff
	for attempt := 1; ; attempt++ {
		err := do()
		after, again := repeatable(err)
		if err == nil || !again || attempt == attempts || after > patience {
			return err
		}
		c.Log.Warn("the request is repeated", "err", err)
		if stopped := sleep(ctx, pause.next(after)); stopped != nil {
			return stopped
		}
	}
}
