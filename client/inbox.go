package client

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// Agent inboxes (CHANNEL §4). A service of the Chorus Channel Protocol delivers messages to an inbox by its URL. The
// relay passes each one to the owner of the inbox, as a sealed REQUEST from the DID of its gateways. So an agent needs
// no address that others can reach. The calls in this file are signed (GATEWAYS §3).

// ErrNoChannel is the error of calls that need the channel gateway, at a relay that has none.
var ErrNoChannel = errors.New("client: this relay has no channel gateway, so it has no agent inboxes; " +
	"its operator can start it with agora serve --channel")

// Inbox is an agent inbox. It belongs to the DID that created it.
type Inbox struct {
	ID        string     `json:"id"` // "in_" and 26 characters
	Label     string     `json:"label"`
	Owner     didkey.DID `json:"owner"`
	CreatedAt time.Time  `json:"createdAt"`
}

// channelGateway is what the relay's document says about the channel gateway.
type channelGateway struct {
	url      string     // its base URL
	did      didkey.DID // signs the deliveries
	audience string     // of signed calls: the relay's origin
	readAt   time.Time
}

// gatewayDocument is the part of the well-known document about the channel gateway.
type gatewayDocument struct {
	URL      string `json:"url"`
	Gateways struct {
		DID     string `json:"did"`
		Channel struct {
			URL string `json:"url"`
		} `json:"channel"`
	} `json:"gateways"`
}

// ChannelGateway returns the base URL of the relay's channel gateway, and the DID that signs its deliveries. It reads
// them from the relay's document, at most once in five minutes. Errors: ErrNoChannel; errors of reading the document;
// an *envelope.Error if the document names another relay than the one that this client talks to.
func (c *Client) ChannelGateway(ctx context.Context) (baseURL string, did didkey.DID, err error) {
	g, err := c.channelGateway(ctx)
	return g.url, g.did, err
}

func (c *Client) channelGateway(ctx context.Context) (channelGateway, error) {
	if known := c.channel.Load(); known != nil && time.Since(known.readAt) < recheckInterval {
		return *known, nil
	}
	readAt, base := time.Now(), c.relayURL()
	doc, err := c.gatewayDocument(ctx, base)
	if err == nil && isOtherLoopbackAddress(doc.URL, base) {
		// As for reads: only a document that is fetched from the address that it names counts.
		base = doc.URL + urlPath(c.base)
		doc, err = c.gatewayDocument(ctx, base)
	}
	if err != nil {
		return channelGateway{}, err
	}
	g := channelGateway{url: strings.TrimRight(doc.Gateways.Channel.URL, "/"), audience: doc.URL, readAt: readAt}
	switch {
	case g.url == "":
		return channelGateway{}, ErrNoChannel
	case !sameOrigin(doc.URL, base) || !strings.HasPrefix(g.url, doc.URL+"/"):
		return channelGateway{}, envelope.Errorf(envelope.CodeUnauthorized,
			"the relay's document says that its URL is %s and that its channel gateway is at %s, but this client was given "+
				"another URL; signed calls need the URL from the document, so use that one if you trust it",
			shorten(doc.URL), shorten(g.url))
	}
	if g.did, err = didkey.Parse(doc.Gateways.DID); err != nil {
		return channelGateway{}, fmt.Errorf("client: the did of the gateways in the relay's document is invalid: %w", err)
	}
	c.channel.Store(&g)
	return g, nil
}

func (c *Client) gatewayDocument(ctx context.Context, base string) (doc gatewayDocument, err error) {
	err = c.repeat(ctx, (*failure).temporary, func(ctx context.Context) *failure {
		return c.exchangeAt(ctx, base, http.MethodGet, wellKnown, "", nil, responseSpec{out: &doc, limit: maxDocument})
	})
	return doc, err
}

// repeat calls do until it succeeds, until again returns false for its failure, or until Options.Attempts is reached.
// Between the attempts it waits as Post does. Each attempt takes at most exchangeTimeout.
func (c *Client) repeat(
	ctx context.Context, again func(*failure) bool, do func(context.Context) *failure,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var pause backoff
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(ctx, exchangeTimeout)
		failed := do(limited)
		cancel()
		if failed == nil {
			return nil
		}
		if !failed.temporary() || !again(failed) || failed.retryAfter > postPatience || attempt >= c.opts.Attempts {
			return failed
		}
		c.log.Debug("the request failed, will be retried", "attempt", attempt, "error", failed)
		if stopped := pause.wait(ctx, failed.retryAfter, maxPause); stopped != nil {
			return fmt.Errorf("%w; stopped before a retry: %w", failed, stopped)
		}
	}
}

// signedCall sends a signed call to the channel gateway. path begins after the gateway's base URL. body is nil for a
// request without a body. A call that may have had an effect is repeated only if repeatable is true.
func (c *Client) signedCall(
	ctx context.Context, method, path string, body []byte, repeatable bool, spec responseSpec,
) error {
	if c.signer == nil {
		return errReadOnly
	}
	if failed := c.assureParties(ctx); failed != nil {
		return failed
	}
	gateway, err := c.channelGateway(ctx)
	if err != nil {
		return err
	}
	again := func(f *failure) bool { return repeatable || f.noEffect() }
	err = c.repeat(ctx, again, func(ctx context.Context) *failure {
		return c.signedExchange(ctx, gateway, method, path, body, spec)
	})
	if failed, ok := errors.AsType[*failure](err); ok && !repeatable && !failed.noEffect() {
		return fmt.Errorf("client: it is unknown whether the relay has done this; list the inboxes before you try "+
			"again: %w", err)
	}
	return err
}

// signedExchange sends one call. It repeats the call with a new token if only the old token was wrong: because this
// machine's clock is wrong, or because the transport has sent the request twice.
func (c *Client) signedExchange(
	ctx context.Context, gateway channelGateway, method, path string, body []byte, spec responseSpec,
) *failure {
	full, err := url.Parse(gateway.url + path)
	if err != nil {
		return &failure{err: err, notSent: true, status: http.StatusBadRequest}
	}
	for attempt := 1; ; attempt++ {
		token, err := envelope.Call{Body: sha256.Sum256(body), Read: envelope.Read{Audience: gateway.audience,
			Method: method, Target: full.RequestURI(), TS: c.readAuth.now(c.rawNow())}}.Sign(c.signer)
		if err != nil {
			return permanentFailure(envelope.Errorf(envelope.CodeUnauthorized, "signing the call failed: %v", err))
		}
		failed := c.exchangeAt(ctx, gateway.url, method, path, "Agora "+token, body, spec)
		if failed == nil || attempt == readAttempts {
			return failed
		}
		if failed = c.prepareCall(failed); failed != nil {
			return failed
		}
	}
}

// prepareCall returns nil if a call that failed can be repeated with a new token, else the failure to report. If the
// time of the token was refused, it corrects the clock for tokens.
func (c *Client) prepareCall(failed *failure) *failure {
	refusal, ok := errors.AsType[*envelope.Error](failed)
	if !ok || failed.status != http.StatusUnauthorized {
		return failed
	}
	switch refusal.Reason() {
	case envelope.ReasonTime:
		c.readAuth.mu.Lock()
		defer c.readAuth.mu.Unlock()
		return c.readAuth.correct(refusal, failed, c.rawNow())
	case envelope.ReasonUsed:
		return nil
	}
	return failed
}

// NewInbox creates an inbox that belongs to this client's identity. label is a text for its owner, of at most 80
// characters; it may be empty. The url is a secret: anybody who has it can send messages to the agent. The relay shows it
// only in this answer.
//
// Errors: ErrNoChannel; *envelope.Error, such as CodeRateLimited for more than 20 inboxes. An error that says "unknown"
// means that the relay may have created the inbox.
func (c *Client) NewInbox(ctx context.Context, label string) (inbox Inbox, url string, err error) {
	body, err := json.Marshal(map[string]string{"label": label})
	if err != nil {
		return Inbox{}, "", err
	}
	var answer struct {
		Inbox Inbox  `json:"inbox"`
		URL   string `json:"url"`
	}
	spec := responseSpec{out: &answer, limit: maxShort, status: http.StatusCreated}
	if err := c.signedCall(ctx, http.MethodPost, "/inboxes", body, false, spec); err != nil {
		return Inbox{}, "", err
	}
	if answer.Inbox.ID == "" || answer.Inbox.Owner != c.signer.DID() {
		return Inbox{}, "", errors.New("client: the relay's answer is about an inbox of another owner")
	}
	return answer.Inbox, answer.URL, c.checkInboxURL(ctx, answer.URL)
}

// checkInboxURL returns an error unless inboxURL is a URL of the gateway's inboxes.
func (c *Client) checkInboxURL(ctx context.Context, inboxURL string) error {
	gateway, err := c.channelGateway(ctx)
	if err == nil && !strings.HasPrefix(inboxURL, gateway.url+"/inbox/") {
		err = errors.New("client: the URL in the relay's answer is not that of an inbox of its gateway")
	}
	return err
}

// Inboxes returns the inboxes of this client's identity, without their URLs. Errors: ErrNoChannel; *envelope.Error.
func (c *Client) Inboxes(ctx context.Context) ([]Inbox, error) {
	var answer struct {
		Inboxes []Inbox `json:"inboxes"`
	}
	err := c.signedCall(ctx, http.MethodGet, "/inboxes", nil, true, responseSpec{out: &answer, limit: maxShort})
	return answer.Inboxes, err
}

// RotateInbox gives an inbox a new URL, and returns it. The old URL ends at once. Errors: ErrNoChannel;
// *envelope.Error, such as CodeForbidden if this identity has no such inbox.
func (c *Client) RotateInbox(ctx context.Context, id string) (url string, err error) {
	var answer struct {
		URL string `json:"url"`
	}
	// A repeat gives the inbox one more new URL, and returns it. So repeating the call does no harm.
	spec := responseSpec{out: &answer, limit: maxShort}
	err = c.signedCall(ctx, http.MethodPost, inboxPath(id)+"/rotate", nil, true, spec)
	if err != nil {
		return "", err
	}
	return answer.URL, c.checkInboxURL(ctx, answer.URL)
}

// DeleteInbox deletes an inbox. Its URL and the callbacks of its deliveries end, and the relay cancels their open
// threads. Errors: those of RotateInbox.
func (c *Client) DeleteInbox(ctx context.Context, id string) error {
	spec := responseSpec{out: new(struct{}), limit: maxShort}
	return c.signedCall(ctx, http.MethodDelete, inboxPath(id), nil, false, spec)
}

func inboxPath(id string) string { return "/inboxes/" + url.PathEscape(id) }
