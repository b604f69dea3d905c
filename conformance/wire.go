package conformance

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
	answerTimeout  = 10 * time.Second // for an answer, in addition to the time that a poll asks to be held
	connectTimeout = 5 * time.Second  // for the requests of connect
	promptLimit    = 3 * time.Second  // longest time that counts as "at once", on a slow network and a busy machine
	maxAnswer      = 16 << 20         // bytes that are read of an answer

	rateLimitTimeout = 20 * time.Second // for all retries of one request after 429 answers
)

// relayClient sends the HTTP requests of a run.
type relayClient struct {
	baseURL     string
	client      *http.Client
	requests    atomic.Int64
	clockOffset time.Duration // how far the relay's clock is ahead of the local clock; set by connect
	signer      readSigner
}

func newRelayClient(base string) (*relayClient, error) {
	base, err := parseBase(base)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * maxWaitingChecks
	transport.DisableCompression = true
	return &relayClient{
		baseURL: base,
		signer:  readSigner{keys: map[string]didkey.Key{}, threads: map[string][2]string{}},
		client: &http.Client{
			Transport: transport,
			// Redirects are not followed. A redirect is checked like any other answer, and is usually wrong.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// atRoot returns a client for the root of the same server, and the path of the client's own address.
func (w *relayClient) atRoot() (root *relayClient, prefix string) {
	base, err := url.Parse(w.baseURL)
	if err != nil {
		panic(err) // cannot happen: parseBase has accepted it
	}
	prefix = base.EscapedPath()
	base.Path, base.RawPath = "", ""
	return &relayClient{baseURL: base.String(), client: w.client}, prefix
}

func (w *relayClient) close() { w.client.CloseIdleConnections() }

// connect checks that a relay answers. It sets the clock offset, and the audience of tokens if the relay has private
// reads.
func (w *relayClient) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer within %v", connectTimeout))
	defer cancel()
	health := w.do(ctx, http.MethodGet, "/health", nil, nil)
	if health.err != nil {
		return fmt.Errorf("no relay answers at %s: %w", w.baseURL, health.err)
	}
	if _, present := health.ok(); !present {
		// A relay with a broken health check is still a relay.
		events := w.do(ctx, http.MethodGet, "/events?timeout=1&since="+url.QueryEscape(formatTime(time.Now())), nil,
			nil)
		if _, present := events.ok(); !present {
			return fmt.Errorf("the server at %s is not an Agora relay: GET /health returned %s", w.baseURL, health)
		}
	}
	if date, err := http.ParseTime(health.header.Get("Date")); err == nil {
		// The header has whole seconds, so half a second is added. An offset of up to 1.5 seconds may be caused by
		// rounding and is ignored.
		if offset := time.Until(date.Add(time.Second / 2)); offset.Abs() > 3*time.Second/2 {
			w.clockOffset = offset
		}
	}
	document := w.do(ctx, http.MethodGet, "/.well-known/agora.json", nil, nil)
	if document.text("reads") == "parties" {
		w.signer.audience = document.text("url")
	}
	return nil
}

// now returns the time by the relay's clock, as far as it is known.
func (w *relayClient) now() time.Time { return time.Now().Add(w.clockOffset) }

// do sends one request. It returns no error: if no answer came, answer.err has the reason.
func (w *relayClient) do(ctx context.Context, method, target string, header http.Header, body []byte) answer {
	w.requests.Add(1)
	started := time.Now()
	a := w.exchange(ctx, method, target, header, body)
	a.took = time.Since(started)
	if a.err != nil && ctx.Err() != nil {
		a.err = context.Cause(ctx)
	}
	if wrapped, ok := errors.AsType[*url.Error](a.err); ok {
		a.err = wrapped.Err // without the URL, which the report shows already
	}
	return a
}

// newRequest returns a request. header is added last. A Host in it replaces the host of the URL.
func (w *relayClient) newRequest(
	ctx context.Context, method, target string, header http.Header, body []byte,
) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, w.baseURL+target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if err := w.signer.sign(w.now(), req, body); err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	req.Host = header.Get("Host") // empty: the host of the URL
	return req, nil
}

func (w *relayClient) exchange(ctx context.Context, method, target string, header http.Header, body []byte) answer {
	req, err := w.newRequest(ctx, method, target, header, body)
	if err != nil {
		return answer{err: err}
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }() // the body was only read, so the error does not matter
	a := answer{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		a.err = fmt.Errorf("the answer is incomplete: %w", err)
	}
	// members is nil if the body is not a JSON object.
	if json.Unmarshal(a.body, &a.members) != nil {
		a.members = nil
	}
	return a
}

// answer is an HTTP answer, which may contain anything. Its methods return zero values for missing or malformed
// members.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	members map[string]json.RawMessage // of the body; nil if it is not a JSON object; names match exactly
	took    time.Duration
	err     error // why no answer, or only a part of it, came
}

// ok returns the member ok. It reports present as false if ok is missing or not a boolean.
func (a answer) ok() (ok, present bool) {
	present = json.Unmarshal(a.members["ok"], &ok) == nil && len(a.members["ok"]) > 0 && a.members["ok"][0] != 'n'
	return ok, present
}

// text returns a member that is a string. Otherwise it returns the empty string.
func (a answer) text(name string) string {
	var s string
	_ = json.Unmarshal(a.members[name], &s) // on an error s stays empty
	return s
}

// flag returns a member that is a boolean. It reports present as false if the member is missing or not a boolean.
func (a answer) flag(name string) (value, present bool) {
	switch string(a.members[name]) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// object returns a member that is an object, as an answer with only members. Otherwise the answer is empty.
func (a answer) object(name string) answer {
	var inner answer
	_ = json.Unmarshal(a.members[name], &inner.members) // on an error members stays nil
	return inner
}

// list returns the elements of a member that is an array. It reports false if the member is not an array.
func (a answer) list(name string) (elements []json.RawMessage, ok bool) {
	ok = json.Unmarshal(a.members[name], &elements) == nil && elements != nil
	return elements, ok
}

// code returns the error code of a refusal.
func (a answer) code() string { return a.text("error") }

// String describes the answer, or a part of it, for the report. It is cut to a readable length.
func (a answer) String() string {
	if a.err != nil {
		return "no answer: " + a.err.Error()
	}
	if a.header == nil && len(a.body) > 0 { // a part of an answer
		return excerpt(a.body, 600)
	}
	text := "status " + strconv.Itoa(a.status)
	if location := a.header.Get("Location"); location != "" {
		text += " to " + location
	}
	if len(a.body) == 0 {
		return text + " without a body"
	}
	return text + " " + excerpt(a.body, 400)
}

// excerpt shortens text for the report. It escapes text that is not valid UTF-8 or has control characters.
func excerpt(text []byte, limit int) string {
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

// call sends a request and records it for the report. It retries after 429 answers. hold is how long a poll asks to be
// held; for other requests it is 0.
func (p *probe) call(what, method, target string, header http.Header, body []byte, hold time.Duration) answer {
	return p.callRetrying(isRateLimit, what, method, target, header, body, hold)
}

// callRetrying is call with a choice of retries: it sends the request again after each answer for which retry is true.
func (p *probe) callRetrying(
	retry func(answer) bool, what, method, target string, header http.Header, body []byte, hold time.Duration,
) answer {
	return p.callAt(p.relay, what, retryableRequest{method, target, header, body, hold}, retry)
}

// callAt is callRetrying for a request to another address of the server.
func (p *probe) callAt(at *relayClient, what string, r retryableRequest, retry func(answer) bool) answer {
	sent := r.method + " " + r.target
	if what != "" {
		sent += ": " + what
	}
	if r.body != nil {
		sent += "\n" + excerpt(r.body, 700)
	}
	p.noteSent(sent)
	return at.doWithRetries(p.ctx, r, retry)
}

// retryableRequest is a request that can be sent more than once.
type retryableRequest struct {
	method, target string
	header         http.Header
	body           []byte
	hold           time.Duration // how long the request asks to be held
}

// doWithRetries sends a request. If retry is true for the answer, it waits and sends the request again, for at most
// rateLimitTimeout: a relay may limit the rate of requests. It waits for the seconds of Retry-After and a random time
// of up to a second, so that checks that were refused together do not retry together. Without Retry-After it does not
// retry.
func (w *relayClient) doWithRetries(ctx context.Context, r retryableRequest, retry func(answer) bool) answer {
	for deadline := time.Now().Add(rateLimitTimeout); ; {
		bounded, cancel := context.WithTimeoutCause(ctx, r.hold+answerTimeout,
			fmt.Errorf("timeout after %v", r.hold+answerTimeout))
		a := w.do(bounded, r.method, r.target, r.header, r.body)
		cancel()
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
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

// isRateLimit reports whether the status is 429: the relay limits the rate or the number of requests.
func isRateLimit(a answer) bool { return a.status == http.StatusTooManyRequests }

// isOtherRateLimit is isRateLimit for a request whose right answer is a 429 for too many OFFERs. It reports false for
// that answer, and for a 429 whose details name no limit.
func isOtherRateLimit(a answer) bool {
	limit := a.object("details").text(envelope.DetailLimit)
	return isRateLimit(a) && limit != "" && limit != envelope.LimitOffersPerThread
}
