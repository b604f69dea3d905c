package client

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Signed reads (PROTOCOL §8). A relay says in its well-known document whether it shows directed messages to their
// parties only; then a client that has a signer signs what it reads, each request anew.
//
// A token is for the origin that this client itself was told to talk to, never for one that a relay names: whoever
// poses as a relay gets nothing that another would take. A relay that poses as an open one gets unsigned reads.

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
	mu       sync.Mutex
	asked    time.Time // zero: never
	audience string    // of tokens; empty: reads are unsigned
}

// signed reports whether reads are signed, as far as is known.
func (r *reading) signed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.audience != ""
}

// token returns what to put into Authorization for a GET of target; empty: nothing.
func (c *Client) token(ctx context.Context, target string) (string, *failure) {
	path, _, _ := strings.Cut(target, "?")
	if path == wellKnown || path == health || c.signer == nil && !c.opts.RequireParties {
		return "", nil
	}
	audience, failed := c.audience(ctx)
	if failed != nil || audience == "" || c.signer == nil {
		return "", failed
	}
	full, err := url.Parse(c.base + target)
	if err != nil {
		return "", &failure{err: err, unsent: true}
	}
	token, err := envelope.Read{Audience: audience, Method: http.MethodGet, Target: full.RequestURI(), TS: c.now()}.Sign(c.signer)
	if err != nil {
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized, "the read cannot be signed: %v", err))
	}
	return "Agora " + token, nil
}

// definitely is a failure that would come again.
func definitely(refusal *envelope.Error) *failure {
	return &failure{err: refusal, status: http.StatusUnauthorized, unsent: true}
}

// audience returns whom tokens are for, empty if reads are not signed here. It asks the relay if that is not known.
func (c *Client) audience(ctx context.Context) (string, *failure) {
	c.reading.mu.Lock()
	defer c.reading.mu.Unlock()
	if c.reading.audience != "" || !c.reading.asked.IsZero() && time.Since(c.reading.asked) < askAgain {
		return c.reading.audience, nil
	}
	var document struct {
		URL   string `json:"url"`
		Reads string `json:"reads"`
	}
	asked := time.Now()
	ctx, cancel := context.WithTimeout(ctx, exchangeTimeout)
	defer cancel()
	failed := c.exchange(ctx, http.MethodGet, wellKnown, "", nil, &document)
	switch {
	case failed != nil && failed.temporary() && failed.status != http.StatusOK:
		return "", failed
	case failed != nil || document.Reads != "parties": // other relays have no such document, and are open
		if c.opts.RequireParties {
			return "", definitely(ErrOpenReads)
		}
		c.reading.asked = asked
		return "", nil
	case !sameOrigin(document.URL, c.base):
		return "", definitely(envelope.Errorf(envelope.CodeUnauthorized, "the relay's reads are signed for its address, which it says is %s, "+
			"and it is reached at another; use its own", shorten(document.URL)))
	}
	c.reading.audience = document.URL
	return document.URL, nil
}

// sameOrigin reports whether a relay's own word for its address means the one it is reached at. All names of this
// machine are one.
func sameOrigin(said, base string) bool {
	a, err := url.Parse(said)
	b, err2 := url.Parse(base)
	if err != nil || err2 != nil || a.Scheme != b.Scheme || a.Path != "" || a.RawQuery != "" || a.Fragment != "" || a.User != nil || port(a) != port(b) {
		return false
	}
	return a.Hostname() != "" && strings.EqualFold(a.Hostname(), b.Hostname()) || loopback(a.Hostname()) && loopback(b.Hostname())
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

// Invitation returns the REQUEST to everybody that opened a thread, the client's if that is given, else the oldest with
// this id. It is there for those, too, who may not see the thread's record yet because they have made no offer.
// Errors: *envelope.Error, CodeThreadNotFound above all.
func (c *Client) Invitation(ctx context.Context, threadID string, client didkey.DID) (*envelope.Envelope, error) {
	filter := Filter{Thread: threadID, Type: envelope.TypeRequest, Sender: client}
	query := filter.values()
	query.Set("cursor", oldest)
	query.Set("timeout", "0")
	var page events
	if err := c.read(ctx, "/events", query, &page); err != nil {
		return nil, err
	}
	wanted := func(e *envelope.Envelope) bool { return filter.match(e) && e.Recipient == "" }
	if all := c.verifiedAll(page.Events, wanted); len(all) > 0 {
		return all[0], nil
	}
	return nil, envelope.Errorf(envelope.CodeThreadNotFound, "there is no REQUEST to everybody with the thread id %s", threadID)
}

// mend reports whether a read that was refused is worth another try, having done what it takes.
func (c *Client) mend(failed *failure, signed bool) bool {
	refusal, ok := errors.AsType[*envelope.Error](failed)
	if !ok || failed.status != http.StatusUnauthorized || !failed.challenged {
		return false
	}
	switch reason := refusal.Details["reason"]; {
	case signed && reason == envelope.ReadTime:
		return c.correctClock(refusal)
	case signed:
		return reason == envelope.ReadUsed // by our own copy, which the connection lost
	}
	c.reading.mu.Lock()
	defer c.reading.mu.Unlock()
	c.reading.asked = time.Time{} // it was open when we asked
	return c.signer != nil
}

// assureParties returns ErrOpenReads if the relay is not what Options.RequireParties wants.
func (c *Client) assureParties(ctx context.Context) error {
	if !c.opts.RequireParties {
		return nil
	}
	if _, failed := c.audience(ctx); failed != nil {
		return failed
	}
	return nil
}

// Private reports whether the relay shows directed messages to their parties only, by its own word.
func (i Info) Private() bool {
	var document struct {
		Reads string `json:"reads"`
	}
	return json.Unmarshal(i.JSON, &document) == nil && document.Reads == "parties"
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
