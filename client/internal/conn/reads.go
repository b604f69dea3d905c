package conn

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/netaddr"
)

// Signed reads (PROTOCOL §8).
//
// The member "reads" of a relay's well-known document has one of two values:
//   - "parties" (a private relay): the relay shows a directed message only to its sender and its recipient. A client
//     with a signer then signs each read with a new token.
//   - "open" (an open relay): the relay shows every message to everybody. Only the polls of Follow, Serve and Call are
//     signed. A token gives no access there. It only shows that its signer is online.
//
// A token contains the origin of the relay as its audience. The client takes this origin from the URL that it was
// given, and rejects a document that names another origin. So an impostor gets no token that another relay would
// accept. There is one exception, for loopback addresses: see netaddr.OtherLoopback.

const wellKnown = "/.well-known/agora.json"

// Health is the path at which a relay says that it works.
const Health = "/health"

// ErrOpenReads is the error of a Conn with Options.RequireParties, see client.ErrOpenReads.
var ErrOpenReads = &envelope.Error{Code: envelope.CodeUnauthorized,
	Message: "this relay shows messages to everybody, or does not say who can read them; nothing was sent to it, " +
		"because this client requires private reads; use a relay with private reads, or do not require them"}

// token returns the Authorization header for a GET of target, a path with an optional query; empty: send none.
// grantsAccess is true if the relay is private: then the token lets the reader see the messages that it has sent or
// received. With showOnline a read of an open relay is signed as well. Such a token only shows that the signer is
// online.
func (c *Conn) token(
	ctx context.Context, target string, showOnline bool,
) (token string, grantsAccess bool, failed *wire.Failure) {
	targetPath, _, _ := strings.Cut(target, "?")
	if targetPath == wellKnown || targetPath == Health || c.Signer == nil && !c.requireParties {
		return "", false, nil
	}
	audience, failed := c.audience(ctx)
	if failed != nil || c.Signer == nil {
		return "", false, failed
	}
	grantsAccess = audience != ""
	if !grantsAccess && showOnline {
		audience = c.readAuth.PresenceAudience()
	}
	if audience == "" {
		return "", false, nil
	}
	if token, failed = c.sign(audience, target); failed != nil && !grantsAccess {
		c.Log.Debug("signing a read failed; it is sent unsigned", "error", failed)
		return "", false, nil
	}
	return token, grantsAccess, failed
}

// sign returns an Authorization header with a new token for a GET of target.
func (c *Conn) sign(audience, target string) (string, *wire.Failure) {
	fullURL, err := url.Parse(c.URL() + target)
	if err != nil {
		return "", &wire.Failure{Err: err, NotSent: true}
	}
	token, err := envelope.Read{
		Audience: audience, Method: http.MethodGet, Target: fullURL.RequestURI(), TS: c.readAuth.Now(c.rawNow()),
	}.Sign(c.Signer)
	if err != nil {
		return "", wire.Permanent(envelope.Errorf(envelope.CodeUnauthorized, "signing the read failed: %v", err))
	}
	return "Agora " + token, nil
}

// audience returns the audience for tokens that grant access; empty: the relay is open. It fetches the relay's document
// if the audience is unknown or no longer valid (see readauth.RecheckInterval).
func (c *Conn) audience(ctx context.Context) (string, *wire.Failure) {
	r := &c.readAuth
	if audience, known := r.Known(c.requireParties); known {
		return audience, nil
	}
	select { // One goroutine fetches the document. The others wait for it, until their own contexts end.
	case c.fetching <- struct{}{}:
		defer func() { <-c.fetching }()
	case <-ctx.Done():
		return "", &wire.Failure{Err: ctx.Err(), NotSent: true}
	}
	if audience, known := r.Known(c.requireParties); known {
		return audience, nil
	}
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, wire.Timeout)
	defer cancel()
	base := c.URL()
	doc, failed := c.fetchDocument(ctx, base)
	if there, other := netaddr.OtherLoopback(doc.URL, base); failed == nil && doc.Reads == "parties" && other {
		// The document names another loopback address. Another process may listen there, so only a document that is
		// fetched from that address counts.
		base = there
		doc, failed = c.fetchDocument(ctx, base)
	}
	switch {
	case failed != nil:
		return "", failed
	case doc.Reads != "parties" && c.requireParties:
		return "", wire.Permanent(ErrOpenReads)
	case doc.Reads != "parties" && doc.Reads != "open" && doc.Reads != "":
		return "", wire.Permanent(envelope.Errorf(envelope.CodeUnauthorized,
			"the relay's document says \"reads\":%q, which this client does not know; use a newer client",
			wire.Shorten(doc.Reads)))
	case doc.Reads != "parties":
		openAudience := ""
		// A URL with a user and a password (it contains an @) uses the Authorization header for them.
		if doc.Reads == "open" && netaddr.SameOrigin(doc.URL, base) && !strings.Contains(base, "@") {
			openAudience = doc.URL
		}
		r.Learn(started, "", openAudience)
		return "", nil
	case !netaddr.SameOrigin(doc.URL, base):
		return "", wire.Permanent(envelope.Errorf(envelope.CodeUnauthorized,
			"the relay's document says that its URL is %s, but this client was given another URL; "+
				"signed reads need the URL from the document, so use that one if you trust it", wire.Shorten(doc.URL)))
	}
	c.ownURL.Store(&base)
	r.Learn(started, doc.URL, "")
	return doc.URL, nil
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

// fetchDocument fetches the well-known document of the relay at base. If the relay has no document (404),
// fetchDocument sends an unsigned read for this client's own inbox. If the relay answers that read, it counts as open
// and the returned document is empty. Everything else is a temporary failure.
func (c *Conn) fetchDocument(ctx context.Context, base string) (doc document, failed *wire.Failure) {
	request := wire.Request{Base: base, Method: http.MethodGet, Target: wellKnown}
	failed = c.Wire.Send(ctx, request, wire.Spec{Out: &doc, Limit: wire.MaxDocument})
	if failed == nil {
		c.rate.Store(doc.rate())
		return doc, nil
	}
	if failed.Temporary() && failed.Status != http.StatusOK {
		return document{}, failed
	}
	refusal, refused := errors.AsType[*envelope.Error](failed)
	switch {
	case failed.Status != http.StatusNotFound || c.readAuth.Signed():
	case c.Signer == nil: // private reads are required; otherwise a client without a signer never fetches the document
		if refused && refusal.Code == envelope.CodeNotFound {
			return document{}, nil
		}
	default:
		inbox := url.Values{"recipient": {string(c.Signer.DID())}, "since": {envelope.FormatTime(c.Now())},
			"timeout": {"0"}}
		page := wire.Page{Events: wire.Events{Limit: wire.MaxSinceBatch}}
		request.Target = "/events?" + inbox.Encode()
		probe := c.Wire.Send(ctx, request, page.Spec())
		if probe == nil {
			return document{}, nil
		}
		failed = probe
	}
	return document{}, &wire.Failure{
		Err: fmt.Errorf("the relay's /.well-known/agora.json cannot be read, so it is unknown who can read messages "+
			"there: %v", failed), NotSent: true, RetryAfter: failed.RetryAfter}
}

// URL returns the URL to use for the relay: the URL in its document once that is known, else the URL that was given.
func (c *Conn) URL() string {
	if own := c.ownURL.Load(); own != nil {
		return *own
	}
	return c.Base
}

// prepareRetry prepares the retry of a read that the relay refused with 401 and a challenge. It returns nil if the read
// can be retried, else the failure to report. signed is true if the read had a token that grants access: then the retry
// needs a new token. An unsigned read by a client with a signer makes the retry fetch the document again.
func (c *Conn) prepareRetry(failed *wire.Failure, signed bool) *wire.Failure {
	_, refused := errors.AsType[*envelope.Error](failed)
	switch {
	case !refused || failed.Status != http.StatusUnauthorized || !failed.Challenged:
		return failed
	case signed:
		return c.prepareCall(failed)
	case c.Signer == nil:
		return failed
	}
	c.readAuth.Invalidate() // the relay was open when the document was fetched, and has become private since
	return nil
}

// AssureParties returns nil if private reads are not required or the relay is private. Else it returns Errors.OpenReads,
// or the failure to find out.
func (c *Conn) AssureParties(ctx context.Context) *wire.Failure {
	if !c.requireParties {
		return nil
	}
	_, failed := c.audience(ctx)
	return failed
}

// defaultRate is the default of PROTOCOL §5. The client uses it if the relay's document does not state the rate.
var defaultRate = pacing.Rate{PerSecond: 20, Burst: 40}

// rate returns the document's limit on the posts of one sender, or nil if the limit is absent or out of range.
func (d document) rate() *pacing.Rate {
	stated := d.Limits.Rates.PostsPerAgent
	if stated.PerSecond < 0.01 || stated.PerSecond > 1e6 || stated.Burst < 1 || stated.Burst > 1e6 {
		return nil
	}
	return &pacing.Rate{PerSecond: stated.PerSecond, Burst: stated.Burst}
}

// PostRate returns the relay's limit on the posts of this client: the limit in its document, else defaultRate.
func (c *Conn) PostRate() pacing.Rate {
	if stated := c.rate.Load(); stated != nil {
		return *stated
	}
	return defaultRate
}

// Private reports whether the relay is known to be private, so that all reads are signed.
func (c *Conn) Private() bool { return c.readAuth.Signed() }

// ForgetReads makes the next read find out again whether the relay is private.
func (c *Conn) ForgetReads() { c.readAuth.Invalidate() }
