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
// At a relay that shows everything to everybody, only the polls of Follow, Serve and Call are signed. There a token
// gives no access; it shows that its signer is online.
//
// A token names the origin that this client was given, never one that a relay names. So an impostor gets no token that
// another relay would accept.

// ErrOpenReads is the error of a client with Options.RequireParties if the relay shows directed messages to everybody,
// or does not say to whom. The client then neither reads from that relay nor posts to it.
var ErrOpenReads = &envelope.Error{Code: envelope.CodeUnauthorized, Message: "this relay shows messages to everybody, " +
	"or does not say to whom; nothing was sent to it, because only a relay with private reads was allowed"}

const (
	wellKnown = "/.well-known/agora.json"
	health    = "/health"
)

// askAgain is how long a relay counts as open before it is asked again. That its reads are signed is never forgotten: a
// relay that later claims to be open still gets signed reads.
const askAgain = 5 * time.Minute

// reading is what is known about how the relay wants to be read.
type reading struct {
	asking chan struct{} // holds a token while a goroutine asks the relay

	mu       sync.Mutex
	asked    time.Time // zero: never
	audience string    // of tokens; empty: the relay is open
	open     string    // of tokens for an open relay; empty: reads are unsigned there
	muted    time.Time // when the relay last refused a token that only showed presence; zero: never

	correction time.Duration // of the clock, for tokens
	corrected  time.Time     // zero: never
}

// signed reports whether reads are signed, as far as is known.
func (r *reading) signed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.audience != ""
}

// token returns the Authorization for a GET of target; empty: none is needed. proves reports whether the token gives
// access to what others may not see. With present the read is signed also at an open relay, to show its signer online.
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
	token, err := envelope.Read{
		Audience: audience, Method: http.MethodGet, Target: full.RequestURI(), TS: c.reading.now(c.rawNow()),
	}.Sign(c.signer)
	if err != nil {
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized, "the read cannot be signed: %v", err))
	}
	return "Agora " + token, nil
}

// definitely returns a failure that a retry would get again.
func definitely(refusal *envelope.Error) *failure {
	return &failure{err: refusal, status: http.StatusUnauthorized, unsent: true}
}

// audience returns the origin that tokens name; empty if reads are not signed here. It asks the relay if that is not
// known. With RequireParties it asks again after askAgain, to notice a change. Without, a client that once signed goes
// on signing.
func (c *Client) audience(ctx context.Context) (string, *failure) {
	r := &c.reading
	if audience, known := r.known(c.opts.RequireParties); known {
		return audience, nil
	}
	select { // one goroutine asks; the others wait for its answer, as long as their own contexts last
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
	doc, failed := c.fetchDocument(ctx, base)
	if failed == nil && doc.Reads == "parties" && elsewhere(doc.URL, base) {
		// The document names another address of this machine, where another process may listen. Only the document at
		// that address counts.
		base = doc.URL + path(c.base)
		doc, failed = c.fetchDocument(ctx, base)
	}
	switch {
	case failed != nil:
		return "", failed
	case doc.Reads != "parties" && c.opts.RequireParties:
		return "", definitely(ErrOpenReads)
	case doc.Reads != "parties" && doc.Reads != "open" && doc.Reads != "":
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized,
			"the relay has a kind of reads that this client does not know, %q; use a newer client", shorten(doc.Reads)))
	case doc.Reads != "parties":
		open := ""
		// If the URL has a user and a password, they need the Authorization header.
		if doc.Reads == "open" && sameOrigin(doc.URL, base) && !strings.Contains(base, "@") {
			open = doc.URL
		}
		r.learn(asked, "", open)
		return "", nil
	case !sameOrigin(doc.URL, base):
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized,
			"the relay's own address is %s, but this client uses another one; signed reads need the relay's own address",
			shorten(doc.URL)))
	}
	c.own.Store(&base)
	r.learn(asked, doc.URL, "")
	return doc.URL, nil
}

// known returns what was learned, if it is still valid. again: an audience is valid for askAgain only.
func (r *reading) known(again bool) (audience string, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.audience, r.audience != "" && !again || !r.asked.IsZero() && time.Since(r.asked) < askAgain
}

// learn stores what a document said.
func (r *reading) learn(asked time.Time, audience, open string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked, r.audience, r.open = asked, audience, open
}

// presence returns the audience of tokens for an open relay; empty: its reads are not signed.
func (r *reading) presence() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.muted.IsZero() && time.Since(r.muted) < askAgain {
		return ""
	}
	return r.open
}

// mute stops signing reads of an open relay for a while if a read may have been refused because of its token. A relay
// never refuses one, but a proxy before it may. mute reports whether to retry the read.
func (r *reading) mute(failed *failure) bool {
	switch failed.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestHeaderFieldsTooLarge:
	default:
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.muted = time.Now()
	if failed.challenged { // the relay has become private
		r.asked = time.Time{}
	}
	return true
}

// document is the part of a relay's well-known document that the client uses.
type document struct {
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

// fetchDocument asks the relay at base for its document. A relay without one (404) counts as open if it answers an
// unsigned read of our own inbox. Any other answer that is not a document is a temporary failure.
func (c *Client) fetchDocument(ctx context.Context, base string) (doc document, failed *failure) {
	failed = c.exchangeAt(ctx, base, http.MethodGet, wellKnown, "", nil, reply{out: &doc, limit: maxDocument})
	if failed == nil {
		c.rate.Store(doc.rate())
		return doc, nil
	}
	if failed.temporary() && failed.status != http.StatusOK {
		return document{}, failed
	}
	refusal, refused := errors.AsType[*envelope.Error](failed)
	switch {
	case failed.status != http.StatusNotFound || c.reading.signed():
	case c.signer == nil: // RequireParties is set, else nobody would ask
		if refused && refusal.Code == envelope.CodeNotFound {
			return document{}, nil
		}
	default:
		inbox := url.Values{"recipient": {string(c.signer.DID())}, "since": {envelope.FormatTime(c.now())},
			"timeout": {"0"}}
		page := events{envelopes: envelopes{most: maxSinceBatch}}
		probe := c.exchangeAt(ctx, base, http.MethodGet, "/events?"+inbox.Encode(), "", nil, page.reply())
		if probe == nil {
			return document{}, nil
		}
		failed = probe
	}
	return document{}, &failure{err: fmt.Errorf("the relay does not say to whom it shows messages: %v", failed),
		unsent: true, retryAfter: failed.retryAfter}
}

// at returns the URL to use for the relay: its own address, once that is known.
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

// elsewhere reports whether base is on this machine and said is a loopback address other than base's. A name such as
// localhost does not count as an address: it may stand for two addresses, of two processes.
func elsewhere(said, base string) bool {
	a, b, ok := hosts(said, base)
	addr, err := netip.ParseAddr(a)
	return ok && err == nil && addr.IsLoopback() && loopback(b) && a != b
}

// sameOrigin reports whether the address that a relay claims is the one that the client uses.
func sameOrigin(said, base string) bool {
	a, b, ok := hosts(said, base)
	return ok && a != "" && strings.EqualFold(a, b)
}

// hosts returns the hosts of a relay's claimed origin and of a URL. ok: their schemes and ports are equal.
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

// prepareRetry prepares the retry of a refused read: it corrects the clock for tokens, or forgets whether the relay is
// open. It returns nil if the read may be retried, else the failure to report.
func (c *Client) prepareRetry(failed *failure, signed bool) *failure {
	refusal, ok := errors.AsType[*envelope.Error](failed)
	if !ok || failed.status != http.StatusUnauthorized || !failed.challenged {
		return failed
	}
	c.reading.mu.Lock()
	defer c.reading.mu.Unlock()
	switch reason := refusal.Reason(); {
	case signed && reason == envelope.ReasonTime:
		return c.reading.correct(refusal, failed, c.rawNow())
	case signed && reason == envelope.ReasonUsed: // the transport sent the request twice; a new token is needed
		return nil
	case signed || c.signer == nil:
		return failed
	}
	c.reading.asked = time.Time{} // the relay was open when we asked, and is not any more
	return nil
}

// maxReadCorrection bounds how far from our clock a token may be dated. An impostor could ask for a token with a future
// date, to use it then.
const maxReadCorrection = 5 * time.Minute

// now returns the corrected time for tokens; raw is this machine's time.
func (r *reading) now(raw time.Time) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return raw.Add(r.correction)
}

// correct sets the clock for tokens by the relay's time in a refusal. It corrects by at most maxReadCorrection, and
// once in askAgain. It returns nil, or the failure to report. r.mu is held.
func (r *reading) correct(refusal *envelope.Error, failed *failure, raw time.Time) *failure {
	relayNow, ok := refusal.Now()
	if !ok {
		return failed
	}
	off := relayNow.Sub(raw)
	if off.Abs() > maxReadCorrection {
		return definitely(envelope.Errorf(envelope.CodeUnauthorized,
			"the relay's clock, %s, and this machine's differ by %v; set this machine's clock: a signed read is corrected "+
				"by %v at most", envelope.FormatTime(relayNow), off.Abs().Round(time.Second), maxReadCorrection))
	}
	if !r.corrected.IsZero() && time.Since(r.corrected) < askAgain {
		return &failure{unsent: true, err: fmt.Errorf(
			"the clock was corrected less than %v ago, and the relay asks for another time again: %v", askAgain, failed)}
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

// Private reports whether the relay says that it shows directed messages to their parties only.
func (i Info) Private() bool {
	var doc document
	return json.Unmarshal(i.JSON, &doc) == nil && doc.Reads == "parties"
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

// lookAgain makes the next read ask the relay again to whom it shows messages.
func (c *Client) lookAgain() {
	c.reading.mu.Lock()
	defer c.reading.mu.Unlock()
	c.reading.asked = time.Time{}
}
