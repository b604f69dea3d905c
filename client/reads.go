package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

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

// ErrOpenReads is the error of a client with Options.RequireParties if the relay shows directed messages to everybody,
// or does not say who can read them. The client then neither reads from that relay nor posts to it.
var ErrOpenReads = &envelope.Error{Code: envelope.CodeUnauthorized,
	Message: "this relay shows messages to everybody, or does not say who can read them; nothing was sent to it, " +
		"because this client requires private reads; use a relay with private reads, or do not require them"}

const (
	wellKnown = "/.well-known/agora.json"
	health    = "/health"
)

// token returns the Authorization header for a GET of target, a path with an optional query; empty: send none.
// grantsAccess is true if the relay is private: then the token lets the reader see the messages that it has sent or
// received. With showOnline a read of an open relay is signed as well. Such a token only shows that the signer is
// online.
func (c *Client) token(
	ctx context.Context, target string, showOnline bool,
) (token string, grantsAccess bool, failed *wire.Failure) {
	targetPath, _, _ := strings.Cut(target, "?")
	if targetPath == wellKnown || targetPath == health || c.signer == nil && !c.opts.RequireParties {
		return "", false, nil
	}
	audience, failed := c.audience(ctx)
	if failed != nil || c.signer == nil {
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
		c.log.Debug("signing a read failed; it is sent unsigned", "error", failed)
		return "", false, nil
	}
	return token, grantsAccess, failed
}

// sign returns an Authorization header with a new token for a GET of target.
func (c *Client) sign(audience, target string) (string, *wire.Failure) {
	fullURL, err := url.Parse(c.relayURL() + target)
	if err != nil {
		return "", &wire.Failure{Err: err, NotSent: true}
	}
	token, err := envelope.Read{
		Audience: audience, Method: http.MethodGet, Target: fullURL.RequestURI(), TS: c.readAuth.Now(c.rawNow()),
	}.Sign(c.signer)
	if err != nil {
		return "", wire.Permanent(envelope.Errorf(envelope.CodeUnauthorized, "signing the read failed: %v", err))
	}
	return "Agora " + token, nil
}

// audience returns the audience for tokens that grant access; empty: the relay is open. It fetches the relay's document
// if the audience is unknown or no longer valid (see readauth.RecheckInterval).
func (c *Client) audience(ctx context.Context) (string, *wire.Failure) {
	r := &c.readAuth
	if audience, known := r.Known(c.opts.RequireParties); known {
		return audience, nil
	}
	select { // One goroutine fetches the document. The others wait for it, until their own contexts end.
	case c.fetching <- struct{}{}:
		defer func() { <-c.fetching }()
	case <-ctx.Done():
		return "", &wire.Failure{Err: ctx.Err(), NotSent: true}
	}
	if audience, known := r.Known(c.opts.RequireParties); known {
		return audience, nil
	}
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, wire.Timeout)
	defer cancel()
	base := c.relayURL()
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
	case doc.Reads != "parties" && c.opts.RequireParties:
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
func (c *Client) fetchDocument(ctx context.Context, base string) (doc document, failed *wire.Failure) {
	request := wire.Request{Base: base, Method: http.MethodGet, Target: wellKnown}
	failed = c.wire.Send(ctx, request, wire.Spec{Out: &doc, Limit: wire.MaxDocument})
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
	case c.signer == nil: // RequireParties is set; without it a client without a signer never fetches the document
		if refused && refusal.Code == envelope.CodeNotFound {
			return document{}, nil
		}
	default:
		inbox := url.Values{"recipient": {string(c.signer.DID())}, "since": {envelope.FormatTime(c.now())},
			"timeout": {"0"}}
		page := events{Events: wire.Events{Limit: wire.MaxSinceBatch}}
		request.Target = "/events?" + inbox.Encode()
		probe := c.wire.Send(ctx, request, page.spec())
		if probe == nil {
			return document{}, nil
		}
		failed = probe
	}
	return document{}, &wire.Failure{
		Err: fmt.Errorf("the relay's /.well-known/agora.json cannot be read, so it is unknown who can read messages "+
			"there: %v", failed), NotSent: true, RetryAfter: failed.RetryAfter}
}

// relayURL returns the URL to use for the relay: the URL in its document once that is known, else the URL given to New.
func (c *Client) relayURL() string {
	if own := c.ownURL.Load(); own != nil {
		return *own
	}
	return c.base
}

// prepareRetry prepares the retry of a read that the relay refused with 401 and a challenge. It returns nil if the read
// can be retried, else the failure to report. signed is true if the read had a token that grants access.
//
//   - A signed read with a wrong time: prepareRetry corrects the clock for tokens.
//   - A signed read whose token was used before: the retry needs a new token, nothing else.
//   - An unsigned read by a client with a signer: prepareRetry makes the retry fetch the document again.
func (c *Client) prepareRetry(failed *wire.Failure, signed bool) *wire.Failure {
	refusal, ok := errors.AsType[*envelope.Error](failed)
	if !ok || failed.Status != http.StatusUnauthorized || !failed.Challenged {
		return failed
	}
	switch reason := refusal.Reason(); {
	case signed && reason == envelope.ReasonTime:
		return c.readAuth.Correct(refusal, failed, c.rawNow())
	case signed && reason == envelope.ReasonUsed: // the transport sent the request twice
		return nil
	case signed || c.signer == nil:
		return failed
	}
	c.readAuth.Invalidate() // the relay was open when the document was fetched, and has become private since
	return nil
}

// assureParties returns nil if Options.RequireParties is not set or the relay is private. Else it returns ErrOpenReads,
// or the failure to find out.
func (c *Client) assureParties(ctx context.Context) *wire.Failure {
	if !c.opts.RequireParties {
		return nil
	}
	_, failed := c.audience(ctx)
	return failed
}

// Private reports whether the relay's document says that it shows a directed message only to its sender and its
// recipient (PROTOCOL §8).
func (i Info) Private() bool {
	var doc document
	return json.Unmarshal(i.JSON, &doc) == nil && doc.Reads == "parties"
}
