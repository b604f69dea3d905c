package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/envelope"
)

// Signed reads (PROTOCOL §8). A relay says in its well-known document whether it shows directed messages to their
// parties only; then a client that has a signer signs what it reads, each request anew.
//
// At a relay that shows everything to everybody, only the polls of Follow, and of what is built like it, are signed.
// There a token gives no access; it shows that its signer is online.
//
// A token is for the origin that this client itself was told to talk to, never for one that a relay names. So one who
// poses as a relay gets nothing that another relay would take.

// ErrOpenReads is what a client with Options.RequireParties gives instead of asking, or telling, a relay that shows
// directed messages to everybody, or does not say to whom.
var ErrOpenReads = &envelope.Error{Code: envelope.CodeUnauthorized, Message: "this relay shows messages to everybody, or does not " +
	"say that it does not; nothing was sent to it, as only one that shows them to their parties will do"}

const (
	wellKnown = "/.well-known/agora.json"
	health    = "/health"
)

// askAgain is how long a relay is taken for open without asking again. That it signs is remembered for good: a relay
// that seems to have opened itself gets signed reads all the same.
const askAgain = 5 * time.Minute

// reading is what is known of the relay's word on reads.
type reading struct {
	asking chan struct{} // holds one while the relay is asked

	mu       sync.Mutex
	asked    time.Time // zero: never
	audience string    // of tokens; empty: the relay is open
	open     string    // of tokens for an open relay; empty: reads are unsigned there
	muted    time.Time // when a token was refused that only showed presence; zero: never

	correction time.Duration // of the clock, for tokens
	corrected  time.Time     // zero: never
}

// signed reports whether reads are signed, as far as is known.
func (r *reading) signed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.audience != ""
}

// token returns what to put into Authorization for a GET of target; empty: nothing. proves says that the relay shows by
// it what others may not see. With present the read is signed also where it only shows that its signer is online.
func (c *Client) token(ctx context.Context, target string, present bool) (token string, proves bool, failed *failure) {
	file, _, _ := strings.Cut(target, "?")
	if file == wellKnown || file == health || c.signer == nil && !c.opts.RequireParties {
		return "", false, nil
	}
	audience, failed := c.audience(ctx)
	if failed != nil || c.signer == nil {
		return "", false, failed
	}
	proves = audience != ""
	if !proves && present {
		audience = c.reading.presence()
	}
	if audience == "" {
		return "", false, nil
	}
	if token, failed = c.sign(audience, target); failed != nil && !proves {
		c.log.Debug("a read was not signed", "error", failed)
		return "", false, nil
	}
	return token, proves, failed
}

// sign returns the Authorization for a GET of target.
func (c *Client) sign(audience, target string) (string, *failure) {
	full, err := url.Parse(c.at() + target)
	if err != nil {
		return "", &failure{err: err, unsent: true}
	}
	token, err := envelope.Read{Audience: audience, Method: http.MethodGet, Target: full.RequestURI(), TS: c.reading.now(c.rawNow())}.Sign(c.signer)
	if err != nil {
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized, "the read cannot be signed: %v", err))
	}
	return "Agora " + token, nil
}

// definitely is a failure that would come again.
func definitely(refusal *envelope.Error) *failure {
	return &failure{err: refusal, status: http.StatusUnauthorized, unsent: true}
}

// audience returns whom tokens are for, empty if reads are not signed here. It asks the relay if that is not known, and
// again after askAgain: who requires parties hears of a change, others go on signing whatever is said.
func (c *Client) audience(ctx context.Context) (string, *failure) {
	r := &c.reading
	if audience, known := r.known(c.opts.RequireParties); known {
		return audience, nil
	}
	select { // one asks; the others wait for him as long as their own contexts last
	case r.asking <- struct{}{}:
		defer func() { <-r.asking }()
	case <-ctx.Done():
		return "", &failure{err: ctx.Err(), unsent: true}
	}
	if audience, known := r.known(c.opts.RequireParties); known {
		return audience, nil
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	base := c.at()
	word, failed := c.ask(ctx, base)
	if failed == nil && word.Reads == "parties" && elsewhere(word.URL, base) {
		// Another name of this machine: another process may have it. Only what the relay says at its own counts.
		base = word.URL + path(c.base)
		word, failed = c.ask(ctx, base)
	}
	switch {
	case failed != nil:
		return "", failed
	case word.Reads != "parties" && c.opts.RequireParties:
		return "", definitely(ErrOpenReads)
	case word.Reads != "parties" && word.Reads != "open" && word.Reads != "":
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized, "the relay shows messages to %q, which this client does not know; "+
			"use a newer one", shorten(word.Reads)))
	case word.Reads != "parties":
		open := ""
		if word.Reads == "open" && sameOrigin(word.URL, base) && !strings.Contains(base, "@") { // else the URL's user needs the header
			open = word.URL
		}
		r.learn(asked, "", open)
		return "", nil
	case !sameOrigin(word.URL, base):
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized, "the relay's reads are signed for its address, which it says is %s, "+
			"and it is reached at another; use its own", shorten(word.URL)))
	}
	c.own.Store(&base)
	r.learn(asked, word.URL, "")
	return word.URL, nil
}

// known returns what was learned, as long as it counts.
func (r *reading) known(again bool) (audience string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.audience, r.audience != "" && !again || !r.asked.IsZero() && time.Since(r.asked) < askAgain
}

func (r *reading) learn(asked time.Time, audience, open string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked, r.audience, r.open = asked, audience, open
}

// presence returns the audience of tokens for an open relay; empty: its reads go unsigned.
func (r *reading) presence() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.muted.IsZero() && time.Since(r.muted) < askAgain {
		return ""
	}
	return r.open
}

// mute has reads of an open relay go unsigned for a while, if one may have been refused for its token: no relay should,
// but a proxy in front of it may. It reports whether the read is worth repeating.
func (r *reading) mute(failed *failure) bool {
	switch failed.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestHeaderFieldsTooLarge:
	default:
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.muted = time.Now()
	if failed.challenged { // it shows things to their parties only by now
		r.asked = time.Time{}
	}
	return true
}

// word is what the well-known document says of reads, and of how often one sender may post.
type word struct {
	URL    string `json:"url"`
	Reads  string `json:"reads"`
	Limits struct {
		Rates struct {
			PostsPerAgent struct {
				PerSecond float64 `json:"perSecond"`
				Burst     float64 `json:"burst"`
			} `json:"postsPerAgent"`
		} `json:"rates"`
	} `json:"limits"`
}

// ask asks the relay at base for its word. A relay without the document (404) is taken for open if it shows itself to
// be: it answers an unsigned read of our own inbox. Whatever else is no document may pass, and is a temporary failure.
func (c *Client) ask(ctx context.Context, base string) (w word, failed *failure) {
	failed = c.exchangeAt(ctx, base, http.MethodGet, wellKnown, "", nil, reply{out: &w, limit: maxDocument})
	if failed == nil {
		c.rate.Store(w.rate())
		return w, nil
	}
	if failed.temporary() && failed.status != http.StatusOK {
		return w, failed
	}
	refusal, refused := errors.AsType[*envelope.Error](failed)
	switch {
	case failed.status != http.StatusNotFound || c.reading.signed():
	case c.signer == nil: // so RequireParties is set
		if refused && refusal.Code == envelope.CodeNotFound {
			return word{}, nil
		}
	default:
		inbox := url.Values{"recipient": {string(c.signer.DID())}, "since": {envelope.FormatTime(c.now())}, "timeout": {"0"}}
		page := events{envelopes: envelopes{most: maxSinceBatch}}
		probe := c.exchangeAt(ctx, base, http.MethodGet, "/events?"+inbox.Encode(), "", nil, page.reply())
		if probe == nil {
			return word{}, nil
		}
		failed = probe
	}
	return word{}, &failure{err: fmt.Errorf("the relay does not say to whom it shows messages: %v", failed), unsent: true, retryAfter: failed.retryAfter}
}

// at is where the relay is reached: at its own address, once that is known.
func (c *Client) at() string {
	if own := c.own.Load(); own != nil {
		return *own
	}
	return c.base
}

// path returns the path of a relay's URL.
func path(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return u.EscapedPath()
}

// elsewhere reports whether said is another address of this machine than base, to go to. A name is none: what it stands
// for may be two addresses, of two processes.
func elsewhere(said, base string) bool {
	a, b, ok := hosts(said, base)
	addr, err := netip.ParseAddr(a)
	return ok && err == nil && addr.IsLoopback() && loopback(b) && a != b
}

// sameOrigin reports whether a relay's own word for its address means the one it is reached at.
func sameOrigin(said, base string) bool {
	a, b, ok := hosts(said, base)
	return ok && a != "" && strings.EqualFold(a, b)
}

// hosts returns the hosts of an origin, as a relay has it, and of a URL; ok if all else of the origin is the URL's.
func hosts(said, base string) (a, b string, ok bool) {
	origin, err := url.Parse(said)
	reached, err2 := url.Parse(base)
	if err != nil || err2 != nil {
		return "", "", false
	}
	bare := origin.Path == "" && origin.RawQuery == "" && origin.Fragment == "" && origin.User == nil
	return origin.Hostname(), reached.Hostname(), bare && origin.Scheme == reached.Scheme && port(origin) == port(reached)
}

func port(u *url.URL) string {
	_, number, err := net.SplitHostPort(u.Host)
	switch {
	case err == nil:
		return number
	case u.Scheme == "https":
		return "443"
	}
	return "80"
}

func loopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.IsLoopback()
}

// mend does what a read that was refused takes to be made again, and returns nil; else why not.
func (c *Client) mend(failed *failure, signed bool) *failure {
	refusal, ok := errors.AsType[*envelope.Error](failed)
	if !ok || failed.status != http.StatusUnauthorized || !failed.challenged {
		return failed
	}
	c.reading.mu.Lock()
	defer c.reading.mu.Unlock()
	switch reason := refusal.Details["reason"]; {
	case signed && reason == envelope.ReadTime:
		return c.reading.correct(refusal, failed, c.rawNow())
	case signed && reason == envelope.ReadUsed: // by our own copy, which the connection lost
		return nil
	case signed || c.signer == nil:
		return failed
	}
	c.reading.asked = time.Time{} // it was open when we asked
	return nil
}

// maxReadCorrection is how far from our clock a token may be dated. Who answers for the relay may ask for a date ahead,
// and has a token that is good then.
const maxReadCorrection = 5 * time.Minute

// now is the time for tokens, where ours is raw.
func (r *reading) now(raw time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return raw.Add(r.correction)
}

// correct sets the clock for tokens by a refusal, by maxReadCorrection in all and once in askAgain, and returns nil; or
// what to tell. r.mu is held.
func (r *reading) correct(refusal *envelope.Error, failed *failure, raw time.Time) *failure {
	text, _ := refusal.Details["now"].(string)
	relayNow, ok := envelope.ParseTime(text)
	if !ok {
		return failed
	}
	off := relayNow.Sub(raw)
	if off.Abs() > maxReadCorrection {
		return definitely(envelope.Errorf(envelope.CodeUnauthorized, "the relay's clock, %s, and this machine's differ by %v; set this machine's clock: "+
			"a signed read is corrected by %v at most", text, off.Abs().Round(time.Second), maxReadCorrection))
	}
	if !r.corrected.IsZero() && time.Since(r.corrected) < askAgain {
		return &failure{err: fmt.Errorf("the clock was corrected less than %v ago, and the relay asks for another time again: %v", askAgain, failed), unsent: true}
	}
	r.correction, r.corrected = off, time.Now()
	return nil
}

// assureParties returns ErrOpenReads if the relay is not what Options.RequireParties wants.
func (c *Client) assureParties(ctx context.Context) *failure {
	if !c.opts.RequireParties {
		return nil
	}
	_, failed := c.audience(ctx)
	return failed
}

// Private reports whether the relay shows directed messages to their parties only, by its own word.
func (i Info) Private() bool {
	var w word
	return json.Unmarshal(i.JSON, &w) == nil && w.Reads == "parties"
}

// challenge reports whether an answer asks for a signed read.
func challenge(header http.Header) bool {
	for _, value := range header.Values("WWW-Authenticate") {
		if scheme, _, _ := strings.Cut(strings.TrimSpace(value), " "); strings.EqualFold(scheme, "Agora") {
			return true
		}
	}
	return false
}

// lookAgain has the next read ask anew to whom messages are shown.
func (c *Client) lookAgain() {
	c.reading.mu.Lock()
	defer c.reading.mu.Unlock()
	c.reading.asked = time.Time{}
}
