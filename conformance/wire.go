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
	patience     = 10 * time.Second // for an answer, on top of the time a poll asks to be held
	findPatience = 5 * time.Second  // for the first answer of all
	promptly     = 3 * time.Second  // what "at once" may take over a slow network on a busy machine
	maxAnswer    = 16 << 20         // bytes read of an answer

	limitPatience = 20 * time.Second // with a relay that limits our rate, for one request
)

// wire is the HTTP side of a run.
type wire struct {
	base     string
	client   *http.Client
	requests atomic.Int64
	ahead    time.Duration // of the relay's clock before ours; set by find
	signing  signing
}

func newWire(base string) (*wire, error) {
	base, err := parseBase(base)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * waitingAtOnce
	transport.DisableCompression = true
	return &wire{base: base, signing: signing{keys: map[string]didkey.Key{}, threads: map[string][2]string{}}, client: &http.Client{
		Transport: transport,
		// A redirect is an answer like any other here, and mostly a wrong one.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func (w *wire) close() { w.client.CloseIdleConnections() }

// find makes sure that a relay answers at all, and reads its clock.
func (w *wire) find(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, findPatience, fmt.Errorf("no answer within %v", findPatience))
	defer cancel()
	health := w.do(ctx, http.MethodGet, "/health", nil, nil)
	if health.err != nil {
		return fmt.Errorf("no relay answers at %s: %w", w.base, health.err)
	}
	if _, said := health.ok(); !said {
		// A relay with a broken health check is still one.
		events := w.do(ctx, http.MethodGet, "/events?timeout=1&since="+url.QueryEscape(stamp(time.Now())), nil, nil)
		if _, said := events.ok(); !said {
			return fmt.Errorf("what answers at %s is no Agora relay: GET /health gave %s", w.base, health)
		}
	}
	if date, err := http.ParseTime(health.header.Get("Date")); err == nil {
		// The header has whole seconds: half of one is added, and what may be rounding is taken for agreement.
		if ahead := time.Until(date.Add(time.Second / 2)); ahead.Abs() > 3*time.Second/2 {
			w.ahead = ahead
		}
	}
	document := w.do(ctx, http.MethodGet, "/.well-known/agora.json", nil, nil)
	if document.text("reads") == "parties" {
		w.signing.audience = document.text("url")
	}
	return nil
}

// now is the time by the relay's clock, as far as it can be known.
func (w *wire) now() time.Time { return time.Now().Add(w.ahead) }

// do makes one request. It does not fail: an answer that did not come says so.
func (w *wire) do(ctx context.Context, method, target string, header http.Header, body []byte) answer {
	w.requests.Add(1)
	started := time.Now()
	a := w.exchange(ctx, method, target, header, body)
	a.took = time.Since(started)
	if a.err != nil && ctx.Err() != nil {
		a.err = context.Cause(ctx)
	}
	if wrapped, ok := errors.AsType[*url.Error](a.err); ok {
		a.err = wrapped.Err // the address is known
	}
	return a
}

func (w *wire) exchange(ctx context.Context, method, target string, header http.Header, body []byte) answer {
	req, err := http.NewRequestWithContext(ctx, method, w.base+target, bytes.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if err := w.signing.sign(w.now(), req, body); err != nil {
		return answer{err: err}
	}
	for name, values := range header {
		req.Header[name] = values
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = resp.Body.Close() }() // read-only
	a := answer{status: resp.StatusCode, header: resp.Header}
	if a.body, err = io.ReadAll(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		a.err = fmt.Errorf("the answer broke off: %w", err)
	}
	// Whatever it is: members of a JSON object, or none.
	if json.Unmarshal(a.body, &a.members) != nil {
		a.members = nil
	}
	return a
}

// answer is what came back, whatever it was. Its methods take garbage in their stride.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	members map[string]json.RawMessage // nil unless the body is a JSON object; names are exact
	took    time.Duration
	err     error // no answer came
}

// ok returns the answer's ok; said is false if there is none that is a boolean.
func (a answer) ok() (ok, said bool) {
	said = json.Unmarshal(a.members["ok"], &ok) == nil && len(a.members["ok"]) > 0 && a.members["ok"][0] != 'n'
	return ok, said
}

// text returns a member that is a string, else the empty string.
func (a answer) text(name string) string {
	var s string
	_ = json.Unmarshal(a.members[name], &s) // stays empty
	return s
}

// flag returns a member that is a boolean; said is false if there is none.
func (a answer) flag(name string) (value, said bool) {
	switch string(a.members[name]) {
	case "true":
		return true, true
	case "false":
		return false, true
	}
	return false, false
}

// object returns a member that is an object as an answer of its own, for reading on; empty if it is none.
func (a answer) object(name string) answer {
	var inner answer
	_ = json.Unmarshal(a.members[name], &inner.members) // stays nil
	return inner
}

// list returns a member that is an array; ok is false if it is none.
func (a answer) list(name string) (elements []json.RawMessage, ok bool) {
	ok = json.Unmarshal(a.members[name], &elements) == nil && elements != nil
	return elements, ok
}

// code is the error code of a refusal.
func (a answer) code() string { return a.text("error") }

// String says what came, cut to a readable length.
func (a answer) String() string {
	if a.err != nil {
		return "no answer: " + a.err.Error()
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

// excerpt shortens text that may be anything for a report.
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

// call makes a request and notes it. A poll names the time it asks to be held in hold.
func (p *probe) call(what, method, target string, header http.Header, body []byte, hold time.Duration) answer {
	return p.callUnless(isLimit, what, method, target, header, body, hold)
}

// callUnless is call where again says which answers are not taken for one.
func (p *probe) callUnless(again func(answer) bool, what, method, target string, header http.Header, body []byte, hold time.Duration) answer {
	sent := method + " " + target
	if what != "" {
		sent += ": " + what
	}
	if body != nil {
		sent += "\n" + excerpt(body, 700)
	}
	p.noteSent(sent)
	return p.relay.ask(p.ctx, request{method, target, header, body, hold}, again)
}

// request is one that may be made again.
type request struct {
	method, target string
	header         http.Header
	body           []byte
	hold           time.Duration // how long it asks to be held
}

// ask makes a request, and again where again says so of the answer: to keep a limit of rate is no fault of a relay's.
// It then waits as long as the relay asks, and a little more, so that checks refused together do not come back together.
func (w *wire) ask(ctx context.Context, r request, again func(answer) bool) answer {
	for until := time.Now().Add(limitPatience); ; {
		bounded, cancel := context.WithTimeoutCause(ctx, r.hold+patience, fmt.Errorf("none within %v", r.hold+patience))
		a := w.do(bounded, r.method, r.target, r.header, r.body)
		cancel()
		seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
		pause := time.Duration(seconds) * time.Second
		if !again(a) || err != nil || time.Now().Add(pause).After(until) {
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

// isLimit reports whether an answer is about how often or how much the client asks.
func isLimit(a answer) bool { return a.status == http.StatusTooManyRequests }

// isOtherLimit is isLimit where 429 is the answer a rule wants: only the limits that our relay names as others count.
func isOtherLimit(a answer) bool {
	limit := a.object("details").text(envelope.DetailLimit)
	return isLimit(a) && limit != "" && limit != envelope.LimitOffersPerThread
}
