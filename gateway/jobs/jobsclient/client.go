// Package jobsclient is the client side of a relay's jobs gateway (docs/JOBS.md): accounts, agents and their skills,
// jobs from either side, transfers, and the operator's grants.
//
// Credits are a [credits.Amount]. credits.Parse("0.25") and credits.One/4 are a quarter of a credit.
package jobsclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/exchange"
)

// Client calls a jobs gateway. It may be used by several goroutines. Do not change its fields while a call runs.
//
// The caller is a principal or the operator. It proves who it is by a key in Key, by a key in URL, or by a signature of
// Signer. Without any of them calls are anonymous.
type Client struct {
	URL    string          // as CheckURL returns it, for example https://relay.example/jobs, or that and /k/cj_…
	Key    string          // a cj_ or op_ key; empty: none
	Signer envelope.Signer // signs the requests if Key is empty, for example a didkey.Key; nil: they are not signed
	HTTP   *http.Client    // sends the requests; New sets it, and it must not be nil
	Log    *slog.Logger    // gets warnings, for example when a request is repeated; it must not be nil

	clock clock
}

// New returns an anonymous client for the gateway at a URL that CheckURL has returned. Set Key or Signer to be
// somebody. log must not be nil.
func New(gatewayURL string, log *slog.Logger) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true // a compressed answer could be huge
	return &Client{URL: gatewayURL, Log: log, HTTP: &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// Close closes idle connections.
func (c *Client) Close() { c.HTTP.CloseIdleConnections() }

// keyInURL matches the path of a base URL with a key.
var keyInURL = regexp.MustCompile(`/k/([^/]*)$`)

// CheckURL checks the base URL of a jobs gateway and returns it without a slash at the end. It may end in /k/ and a cj_
// key.
func CheckURL(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return "", errors.New("want the URL of a jobs gateway, such as https://relay.example/jobs")
	}
	checked := strings.TrimRight(u.String(), "/")
	if m := keyInURL.FindStringSubmatch(checked); m != nil {
		if kind, err := ParseKey(m[1]); err != nil || kind != PrincipalKey {
			return "", fmt.Errorf("after /k/ the URL must have a key: cj_ and %d characters", keyLength)
		}
	}
	return checked, nil
}

// HasKey reports whether a base URL contains a key.
func HasKey(gatewayURL string) bool { return keyInURL.MatchString(gatewayURL) }

// Key says whose key a text is, by its first characters.
type Key string

// The kinds of keys.
const (
	PrincipalKey Key = "cj_"
	OperatorKey  Key = "op_"
)

// keyLength is the number of characters of a key after its kind.
const keyLength = 43

// ParseKey returns the kind of a key.
func ParseKey(text string) (Key, error) {
	for _, kind := range []Key{PrincipalKey, OperatorKey} {
		if len(text) == len(kind)+keyLength && text[:len(kind)] == string(kind) {
			return kind, nil
		}
	}
	return "", fmt.Errorf("want cj_ or op_ and %d characters", keyLength)
}

// Error is an answer of a gateway with a status other than 2xx.
type Error struct {
	Status     int
	Detail     string        // what is wrong, in words; of 422 the fields and what is wrong with each
	Code       string        // error_code, such as TRANSFER_FAILED; empty: none
	Limit      string        // of 429: the name of the limit
	Reason     string        // of 401 to a signed call: the check that failed
	RetryAfter time.Duration // 0: the gateway does not say when to try again

	now     time.Time // the gateway's clock, if Reason is time
	aud     string    // the gateway's origin, if Reason is audience
	unknown bool      // it refused only a repeat: an attempt before may have had its effect
}

// Refused returns the status and the RetryAfter.
func (e *Error) Refused() (status int, retryAfter time.Duration) { return e.Status, e.RetryAfter }

func (e *Error) Error() string {
	text := fmt.Sprintf("the gateway refused the request with status %d", e.Status)
	if e.Code != "" {
		text += ", " + e.Code
	}
	switch {
	case e.Detail != "":
		text += ": " + e.Detail
	case e.Status == http.StatusNotFound:
		text += "; is the URL right? A relay has a jobs gateway at URL/jobs if it runs with --jobs"
	}
	if e.Limit != "" {
		text += " (limit: " + e.Limit + ")"
	}
	if e.aud != "" {
		text += "; signed calls go to " + e.aud + " and nowhere else; use that URL if you trust it"
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf("; try again in %v", e.RetryAfter)
	}
	return text
}

// Unknown reports whether, after err, the caller cannot know if the gateway has done what it was asked to do.
func Unknown(err error) bool {
	if l, isLost := errors.AsType[*exchange.Lost](err); isLost {
		return !l.Unsent
	}
	e, refused := errors.AsType[*Error](err)
	return refused && (e.Status >= 500 || e.unknown) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// exchangeTimeout is the longest time of one request, without what the gateway may wait.
const exchangeTimeout = 30 * time.Second

const maxAnswer = 16 << 20

var service = exchange.Service{Name: "jobs gateway", Start: "agora serve --jobs", MaxAnswer: maxAnswer}

// call is one request and how to treat it.
type call struct {
	method, path string
	body         any           // encoded as JSON; nil: no body
	safe         bool          // a repeat does no harm, even if the request has had its effect
	gone         bool          // the answer 404 to a repeat means that the request has had its effect
	wait         time.Duration // how long the gateway may wait before it answers
	out          any           // the answer is decoded into this
}

// do sends a request until it succeeds, fails for good, or has failed too often. All attempts have the same bytes.
// Errors: *Error; the error of ctx; one of a request without an answer.
func (c *Client) do(ctx context.Context, q call) error {
	var body []byte
	if q.body != nil {
		var err error
		if body, err = json.Marshal(q.body); err != nil {
			return err
		}
	}
	unknown := false
	return exchange.Repeat(ctx, c.Log, q.safe, func(attempt int) error {
		err := c.exchange(ctx, q, body)
		refused, _ := errors.AsType[*Error](err)
		if unknown = unknown || Unknown(err); unknown && refused != nil && refused.Status == http.StatusTooManyRequests {
			refused.unknown = true
		}
		if refused != nil && q.gone && attempt > 1 && refused.Status == http.StatusNotFound {
			return nil
		}
		return err
	})
}

// exchange sends one request and reads the answer. If only the token of a signed call was wrong, it sends the request
// again with a new token.
func (c *Client) exchange(ctx context.Context, q call, body []byte) error {
	for attempt := 1; ; attempt++ {
		err := c.exchangeOnce(ctx, q, body)
		refused, ok := errors.AsType[*Error](err)
		if !ok || c.Signer == nil || attempt == tokenAttempts || !c.renewable(refused) {
			return err
		}
	}
}

func (c *Client) exchangeOnce(ctx context.Context, q call, body []byte) error {
	limited, cancel := context.WithTimeout(ctx, exchangeTimeout+q.wait)
	defer cancel()
	r, err := http.NewRequestWithContext(limited, q.method, c.URL+q.path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("User-Agent", "agora-jobsclient")
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if err := c.authorize(r, body); err != nil {
		return err
	}
	response, text, err := service.Do(ctx, c.HTTP, r, exchangeTimeout+q.wait)
	if err != nil {
		return err
	}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		return refusal(response, text)
	}
	if json.Unmarshal(text, q.out) != nil {
		return &exchange.Lost{Text: "the answer does not have the form of a jobs gateway; is the URL right?"}
	}
	return nil
}

// refusal returns the error of an answer with another status than 2xx.
func refusal(response *http.Response, text []byte) error {
	e := &Error{Status: response.StatusCode}
	var body struct {
		Detail json.RawMessage
		Code   string `json:"error_code"`
		Limit  string
		Reason string
		Now    string
		Aud    string
	}
	if json.Unmarshal(text, &body) == nil {
		e.Detail, e.Code = exchange.Shorten(detail(body.Detail)), exchange.Shorten(body.Code)
		e.Limit, e.Reason, e.aud = exchange.Shorten(body.Limit), exchange.Shorten(body.Reason), exchange.Shorten(body.Aud)
		e.now, _ = envelope.ParseTime(body.Now)
	}
	e.RetryAfter = exchange.RetryAfter(response)
	return e
}

// detail returns the member detail of a refusal as a text. It is a text, or a list of fields with what is wrong.
func detail(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return text
	}
	var fields []struct {
		Loc []any
		Msg string
	}
	if json.Unmarshal(raw, &fields) != nil {
		return ""
	}
	var all []string
	for _, f := range fields {
		var place []string
		for _, part := range f.Loc {
			place = append(place, fmt.Sprint(part))
		}
		all = append(all, strings.Join(place, ".")+": "+f.Msg)
	}
	return strings.Join(all, "; ")
}
