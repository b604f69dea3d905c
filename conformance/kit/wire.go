package kit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

const (
	AnswerTimeout  = 10 * time.Second // for an answer, in addition to the time that a poll asks to be held
	ConnectTimeout = 5 * time.Second  // for the requests of connect
	PromptLimit    = 3 * time.Second  // longest time that counts as "at once", on a slow network and a busy machine
	MaxAnswer      = 16 << 20         // bytes that are read of an answer

	RateLimitTimeout = 20 * time.Second // for all retries of one request after 429 answers
)

// RelayClient sends the HTTP requests of a run.
type RelayClient struct {
	BaseURL     string
	Client      *http.Client
	Requests    atomic.Int64
	ClockOffset time.Duration // how far the relay's clock is ahead of the local clock; set by connect
	Signer      readSigner
}

func NewRelayClient(base string) (*RelayClient, error) {
	base, err := ParseBase(base)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * maxWaitingChecks
	transport.DisableCompression = true
	return &RelayClient{
		BaseURL: base,
		Signer:  readSigner{keys: map[string]didkey.Key{}, threads: map[string][2]string{}},
		Client: &http.Client{
			Transport: transport,
			// Redirects are not followed. A redirect is checked like any other answer, and is usually wrong.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// AtRoot returns a client for the root of the same server, and the path of the client's own address.
func (w *RelayClient) AtRoot() (root *RelayClient, prefix string) {
	base, err := url.Parse(w.BaseURL)
	if err != nil {
		panic(err) // cannot happen: ParseBase has accepted it
	}
	prefix = base.EscapedPath()
	base.Path, base.RawPath = "", ""
	return &RelayClient{BaseURL: base.String(), Client: w.Client}, prefix
}

func (w *RelayClient) Close() { w.Client.CloseIdleConnections() }

// Connect checks that a relay answers. It sets the clock offset, and the audience of tokens if the relay has private
// reads.
func (w *RelayClient) Connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, ConnectTimeout, fmt.Errorf("no answer within %v", ConnectTimeout))
	defer cancel()
	health := w.Do(ctx, http.MethodGet, "/health", nil, nil)
	if health.Err != nil {
		return fmt.Errorf("no relay answers at %s: %w", w.BaseURL, health.Err)
	}
	if _, present := health.OK(); !present {
		// A relay with a broken health check is still a relay.
		events := w.Do(ctx, http.MethodGet, "/events?timeout=1&since="+url.QueryEscape(FormatTime(time.Now())), nil,
			nil)
		if _, present := events.OK(); !present {
			return fmt.Errorf("the server at %s is not an Agora relay: GET /health returned %s", w.BaseURL, health)
		}
	}
	if date, err := http.ParseTime(health.Header.Get("Date")); err == nil {
		// The header has whole seconds, so half a second is added. An offset of up to 1.5 seconds may be caused by
		// rounding and is ignored.
		if offset := time.Until(date.Add(time.Second / 2)); offset.Abs() > 3*time.Second/2 {
			w.ClockOffset = offset
		}
	}
	document := w.Do(ctx, http.MethodGet, "/.well-known/agora.json", nil, nil)
	if document.Text("reads") == "parties" {
		w.Signer.Audience = document.Text("url")
	}
	return nil
}

// Now returns the time by the relay's clock, as far as it is known.
func (w *RelayClient) Now() time.Time { return time.Now().Add(w.ClockOffset) }

// Do sends one request. It returns no error: if no answer came, answer.err has the reason.
func (w *RelayClient) Do(ctx context.Context, method, target string, header http.Header, body []byte) Answer {
	w.Requests.Add(1)
	started := time.Now()
	a := w.exchange(ctx, method, target, header, body)
	a.Took = time.Since(started)
	if a.Err != nil && ctx.Err() != nil {
		a.Err = context.Cause(ctx)
	}
	if wrapped, ok := errors.AsType[*url.Error](a.Err); ok {
		a.Err = wrapped.Err // without the URL, which the report shows already
	}
	return a
}

// NewRequest returns a request. header is added last. A Host in it replaces the host of the URL.
func (w *RelayClient) NewRequest(
	ctx context.Context, method, target string, header http.Header, body []byte,
) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.BaseURL+target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if err := w.Signer.sign(w.Now(), req, body); err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Host = header.Get("Host") // empty: the host of the URL
	return req, nil
}

func (w *RelayClient) exchange(ctx context.Context, method, target string, header http.Header, body []byte) Answer {
	req, err := w.NewRequest(ctx, method, target, header, body)
	if err != nil {
		return Answer{Err: err}
	}
	resp, err := w.Client.Do(req)
	if err != nil {
		return Answer{Err: err}
	}
	defer func() { _ = resp.Body.Close() }() // the body was only read, so the error does not matter
	a := Answer{Status: resp.StatusCode, Header: resp.Header}
	if a.Body, err = io.ReadAll(io.LimitReader(resp.Body, MaxAnswer)); err != nil {
		a.Err = fmt.Errorf("the answer is incomplete: %w", err)
	}
	// members is nil if the body is not a JSON object.
	if json.Unmarshal(a.Body, &a.Members) != nil {
		a.Members = nil
	}
	return a
}

// Answer is an HTTP answer, which may contain anything. Its methods return zero values for missing or malformed
// members.
type Answer struct {
	Status  int
	Header  http.Header
	Body    []byte
	Members map[string]json.RawMessage // of the body; nil if it is not a JSON object; names match exactly
	Took    time.Duration
	Err     error // why no answer, or only a part of it, came
}

// OK returns the member ok. It reports present as false if ok is missing or not a boolean.
func (a Answer) OK() (ok, present bool) {
	present = json.Unmarshal(a.Members["ok"], &ok) == nil && len(a.Members["ok"]) > 0 && a.Members["ok"][0] != 'n'
	return ok, present
}

// Text returns a member that is a string. Otherwise it returns the empty string.
func (a Answer) Text(name string) string {
	var s string
	_ = json.Unmarshal(a.Members[name], &s) // on an error s stays empty
	return s
}

// Flag returns a member that is a boolean. It reports present as false if the member is missing or not a boolean.
func (a Answer) Flag(name string) (value, present bool) {
	switch string(a.Members[name]) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// Object returns a member that is an object, as an answer with only members. Otherwise the answer is empty.
func (a Answer) Object(name string) Answer {
	var inner Answer
	_ = json.Unmarshal(a.Members[name], &inner.Members) // on an error members stays nil
	return inner
}

// List returns the elements of a member that is an array. It reports false if the member is not an array.
func (a Answer) List(name string) (elements []json.RawMessage, ok bool) {
	ok = json.Unmarshal(a.Members[name], &elements) == nil && elements != nil
	return elements, ok
}

// Code returns the error code of a refusal.
func (a Answer) Code() string { return a.Text("error") }

// String describes the answer, or a part of it, for the report. It is cut to a readable length.
func (a Answer) String() string {
	if a.Err != nil {
		return "no answer: " + a.Err.Error()
	}
	if a.Header == nil && len(a.Body) > 0 { // a part of an answer
		return Excerpt(a.Body, 600)
	}
	text := "status " + strconv.Itoa(a.Status)
	if location := a.Header.Get("Location"); location != "" {
		text += " to " + location
	}
	if len(a.Body) == 0 {
		return text + " without a body"
	}
	return text + " " + Excerpt(a.Body, 400)
}

// Excerpt shortens text for the report. It escapes text that is not valid UTF-8 or has control characters.
func Excerpt(text []byte, limit int) string {
	s := strings.TrimSpace(string(text))
	rest := ""
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s, rest = s[:limit], fmt.Sprintf("… (%d bytes)", len(text))
	}
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' }) {
		s = strings.Trim(strconv.Quote(s), `"`)
	}
	return s + rest
}

// Call sends a request and records it for the report. It retries after 429 answers. hold is how long a poll asks to be
// held; for other requests it is 0.
func (p *Probe) Call(what, method, target string, header http.Header, body []byte, hold time.Duration) Answer {
	return p.callRetrying(IsRateLimit, what, method, target, header, body, hold)
}

// callRetrying is call with a choice of retries: it sends the request again after each answer for which retry is true.
func (p *Probe) callRetrying(
	retry func(Answer) bool, what, method, target string, header http.Header, body []byte, hold time.Duration,
) Answer {
	return p.callAt(p.Relay, what, RetryableRequest{method, target, header, body, hold}, retry)
}

// callAt does the same as callRetrying, for a request to another address of the server.
func (p *Probe) callAt(at *RelayClient, what string, r RetryableRequest, retry func(Answer) bool) Answer {
	sent := r.Method + " " + r.Target
	if what != "" {
		sent += ": " + what
	}
	if r.Body != nil {
		sent += "\n" + Excerpt(r.Body, 700)
	}
	p.NoteSent(sent)
	return at.DoWithRetries(p.Ctx, r, retry)
}

// RetryableRequest is a request that can be sent more than once.
type RetryableRequest struct {
	Method, Target string
	Header         http.Header
	Body           []byte
	Hold           time.Duration // how long the request asks to be held
}

// DoWithRetries sends a request. If retry is true for the answer, it waits and sends the request again, for at most
// RateLimitTimeout: a relay may limit the rate of requests. It waits for the seconds of Retry-After and a random time
// of up to a second, so that checks that were refused together do not retry together. Without Retry-After it does not
// retry.
func (w *RelayClient) DoWithRetries(ctx context.Context, r RetryableRequest, retry func(Answer) bool) Answer {
	for deadline := time.Now().Add(RateLimitTimeout); ; {
		bounded, cancel := context.WithTimeoutCause(ctx, r.Hold+AnswerTimeout,
			fmt.Errorf("timeout after %v", r.Hold+AnswerTimeout))
		a := w.Do(bounded, r.Method, r.Target, r.Header, r.Body)
		cancel()
		seconds, err := strconv.Atoi(a.Header.Get("Retry-After"))
		pause := time.Duration(seconds) * time.Second
		if !retry(a) || err != nil || time.Now().Add(pause).After(deadline) {
			return a
		}
		timer := time.NewTimer(pause + rand.N(time.Second))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return a
		}
	}
}

// IsRateLimit reports whether the status is 429: the relay limits the rate or the number of requests.
func IsRateLimit(a Answer) bool { return a.Status == http.StatusTooManyRequests }

// isOtherRateLimit does the same as IsRateLimit, for a request whose right answer is a 429 for too many OFFERs. It
// reports false for that answer, and for a 429 whose details name no limit.
func isOtherRateLimit(a Answer) bool {
	limit := a.Object("details").Text(envelope.DetailLimit)
	return IsRateLimit(a) && limit != "" && limit != envelope.LimitOffersPerThread
}
