package client

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/agora-relay/agora/client/internal/pacing"
	"github.com/agora-relay/agora/client/internal/readauth"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/netaddr"
)

// Signed calls to the gateways of a relay (GATEWAYS §3).

// The names of gateways in the relay's document. They are also the flags of agora serve that start them.
const (
	hubName     = "hub"
	jobsName    = "jobs"
	channelName = "channel"
	a2aName     = "a2a"
)

// The errors of calls that need a gateway, at a relay that does not have it.
var (
	ErrNoHub  = errors.New("client: this relay has no hub; its operator can start it with agora serve --hub")
	ErrNoJobs = errors.New("client: this relay has no registry of jobs; its operator can start it with agora serve --jobs")
	ErrNoA2A  = errors.New("client: this relay has no A2A gateway; its operator can start it with agora serve --a2a")
)

// missing are the errors for gateways that a relay does not have.
var missing = map[string]error{hubName: ErrNoHub, jobsName: ErrNoJobs, channelName: ErrNoChannel, a2aName: ErrNoA2A}

// gateways is what the relay's document says about its gateways.
type gateways struct {
	urls     map[string]string // their base URLs by name
	did      didkey.DID        // signs their messages
	audience string            // of signed calls: the relay's origin
	readAt   time.Time
}

// gatewayDocument is the part of the well-known document about the gateways.
type gatewayDocument struct {
	URL      string                     `json:"url"`
	Gateways map[string]json.RawMessage `json:"gateways"`
}

// read returns what the document says.
func (d gatewayDocument) read() (g gateways, err error) {
	g = gateways{urls: map[string]string{}, audience: d.URL}
	var did string
	if raw := d.Gateways["did"]; len(raw) > 0 && json.Unmarshal(raw, &did) != nil {
		did = ""
	}
	for name, raw := range d.Gateways {
		var entry struct {
			URL string `json:"url"`
		}
		if missing[name] != nil && json.Unmarshal(raw, &entry) == nil && entry.URL != "" {
			g.urls[name] = strings.TrimRight(entry.URL, "/")
		}
	}
	if len(g.urls) == 0 {
		return g, nil
	}
	if g.did, err = didkey.Parse(did); err != nil {
		err = fmt.Errorf("client: the did of the gateways in the relay's document is invalid: %w", err)
	}
	return g, err
}

// gateway returns what the relay's document says about its gateways. It is an error if the relay does not have the one
// with this name.
func (c *Client) gateway(ctx context.Context, name string) (gateways, error) {
	g, err := c.allGateways(ctx)
	if err == nil && g.urls[name] == "" {
		err = missing[name]
	}
	return g, err
}

// allGateways returns what the relay's document says about its gateways, which may be none.
func (c *Client) allGateways(ctx context.Context) (gateways, error) {
	g := c.gateways.Load()
	if g == nil || time.Since(g.readAt) >= readauth.RecheckInterval {
		read, base, err := c.readGateways(ctx)
		if err != nil {
			return gateways{}, err
		}
		for _, u := range read.urls {
			if !netaddr.SameOrigin(read.audience, base) || !strings.HasPrefix(u, read.audience+"/") {
				return gateways{}, envelope.Errorf(envelope.CodeUnauthorized,
					"the relay's document says that its URL is %s and that it has a gateway at %s, but this client was given "+
						"another URL; signed calls need the URL from the document, so use that one if you trust it",
					wire.Shorten(read.audience), wire.Shorten(u))
			}
		}
		g = &read
		if len(g.urls) > 0 {
			c.gateways.Store(g)
		}
	}
	return *g, nil
}

// readGateways reads the relay's document. base is the URL from which it was read.
func (c *Client) readGateways(ctx context.Context) (g gateways, base string, err error) {
	readAt := time.Now()
	base = c.relayURL()
	doc, err := c.gatewayDocument(ctx, base)
	if there, other := netaddr.OtherLoopback(doc.URL, base); err == nil && other {
		// As for reads: only a document that is fetched from the address that it names counts.
		base = there
		doc, err = c.gatewayDocument(ctx, base)
	}
	if err != nil {
		return g, base, err
	}
	g, err = doc.read()
	g.readAt = readAt
	return g, base, err
}

func (c *Client) gatewayDocument(ctx context.Context, base string) (doc gatewayDocument, err error) {
	err = c.repeat(ctx, (*wire.Failure).Temporary, func(ctx context.Context) *wire.Failure {
		request := wire.Request{Base: base, Method: http.MethodGet, Target: wellKnown}
		return c.wire.Send(ctx, request, wire.Spec{Out: &doc, Limit: wire.MaxDocument})
	})
	return doc, err
}

// repeat calls do until it succeeds, until again returns false for its failure, or until Options.Attempts is reached.
// Between the attempts it waits as Post does. Each attempt takes at most wire.Timeout.
func (c *Client) repeat(
	ctx context.Context, again func(*wire.Failure) bool, do func(context.Context) *wire.Failure,
) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	var pause pacing.Backoff
	for attempt := 1; ; attempt++ {
		limited, cancel := context.WithTimeout(ctx, wire.Timeout)
		failed := do(limited)
		cancel()
		if failed == nil {
			return nil
		}
		if !failed.Temporary() || !again(failed) || failed.RetryAfter > postPatience || attempt >= c.opts.Attempts {
			return failed
		}
		c.log.Debug("the request failed, will be retried", "attempt", attempt, "error", failed)
		if stopped := pause.Wait(ctx, failed.RetryAfter, pacing.MaxPause); stopped != nil {
			return fmt.Errorf("%w; stopped before a retry: %w", failed, stopped)
		}
	}
}

// signedCall sends a signed call to the gateway with this name. path begins after the gateway's base URL. body is nil for
// a request without a body. A call that may have had an effect is repeated only if repeatable is true.
func (c *Client) signedCall(
	ctx context.Context, name, method, path string, body []byte, repeatable bool, spec wire.Spec,
) error {
	if c.signer == nil {
		return errReadOnly
	}
	if failed := c.assureParties(ctx); failed != nil {
		return failed
	}
	g, err := c.gateway(ctx, name)
	if err != nil {
		return err
	}
	again := func(f *wire.Failure) bool { return repeatable || f.NoEffect() }
	err = c.repeat(ctx, again, func(ctx context.Context) *wire.Failure {
		return c.signedExchange(ctx, g.urls[name], g.audience, method, path, body, spec)
	})
	if failed, ok := errors.AsType[*wire.Failure](err); ok && !repeatable && !failed.NoEffect() {
		return fmt.Errorf("client: it is unknown whether the relay has done this; list what it has before you try "+
			"again: %w", err)
	}
	return err
}

// signedExchange sends one call. It repeats the call with a new token if only the old token was wrong: because this
// machine's clock is wrong, or because the transport has sent the request twice.
func (c *Client) signedExchange(
	ctx context.Context, base, audience, method, path string, body []byte, spec wire.Spec,
) *wire.Failure {
	full, err := url.Parse(base + path)
	if err != nil {
		return &wire.Failure{Err: err, NotSent: true, Status: http.StatusBadRequest}
	}
	for attempt := 1; ; attempt++ {
		token, err := envelope.Call{Body: sha256.Sum256(body), Read: envelope.Read{Audience: audience,
			Method: method, Target: full.RequestURI(), TS: c.readAuth.Now(c.rawNow())}}.Sign(c.signer)
		if err != nil {
			return wire.Permanent(envelope.Errorf(envelope.CodeUnauthorized, "signing the call failed: %v", err))
		}
		request := wire.Request{Base: base, Method: method, Target: path, Authorization: "Agora " + token, Body: body}
		failed := c.wire.Send(ctx, request, spec)
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
func (c *Client) prepareCall(failed *wire.Failure) *wire.Failure {
	refusal, ok := errors.AsType[*envelope.Error](failed)
	if !ok || failed.Status != http.StatusUnauthorized {
		return failed
	}
	switch refusal.Reason() {
	case envelope.ReasonTime:
		return c.readAuth.Correct(refusal, failed, c.rawNow())
	case envelope.ReasonUsed:
		return nil
	}
	return failed
}

// FromGateway checks that a REQUEST comes from a gateway of this relay: it was sealed to this client and opened, and its
// sender is the DID in the relay's document. Anybody can post a REQUEST with the intent of a gateway. Errors: an
// *AgentError, which a Handler can return unchanged; errors of reading the relay's document.
func (c *Client) FromGateway(ctx context.Context, request *envelope.Envelope) error {
	if !request.Opened || c.signer == nil || request.Recipient != c.signer.DID() {
		return &AgentError{Code: envelope.AgentForbidden,
			Message: "what a gateway delivers must be sealed to its recipient"}
	}
	g, err := c.allGateways(ctx)
	if err != nil {
		return err
	}
	if request.Sender.ID != g.did {
		return &AgentError{Code: envelope.AgentForbidden, Message: "only the relay's gateway sends this; its DID is in the " +
			"relay's document /.well-known/agora.json"}
	}
	return nil
}

// deliveredBy reads the params of a REQUEST with this intent from the gateway with this name. Errors: an *AgentError if
// the REQUEST is no such delivery; the error for a relay without this gateway; errors of reading the relay's document.
func (c *Client) deliveredBy(ctx context.Context, request *envelope.Envelope, name, intent string, params any) error {
	if request.Type != envelope.TypeRequest || request.PayloadString("intent") != intent {
		return &AgentError{Code: envelope.AgentIntentNotSupported, Message: "this is not a REQUEST with the intent " + intent}
	}
	if _, err := c.gateway(ctx, name); err != nil {
		return err
	}
	if err := c.FromGateway(ctx, request); err != nil {
		return err
	}
	var payload envelope.Request
	if err := request.DecodePayload(&payload); err != nil {
		return &AgentError{Code: envelope.AgentInvalidRequest, Message: "the payload of the REQUEST is malformed"}
	}
	if err := json.Unmarshal(payload.Params, params); err != nil {
		return &AgentError{Code: envelope.AgentInvalidRequest, Message: "the params of the delivery are malformed"}
	}
	return nil
}

// A2AGateway returns the base URL of the relay's A2A gateway (A2A §1). Errors: ErrNoA2A; those of ChannelGateway.
func (c *Client) A2AGateway(ctx context.Context) (baseURL string, err error) {
	g, err := c.gateway(ctx, a2aName)
	return g.urls[a2aName], err
}

// GatewayCall is a signed call to a gateway (GATEWAYS §3).
type GatewayCall struct {
	Method, Path string // Path begins after the gateway's base URL
	Body         []byte // JSON; nil: the request has no body
	Status       int    // of a successful answer; 0: 200
	Repeatable   bool   // a repeat does no harm, even if the call has had its effect
	Out          any    // the answer is decoded into this; nil: it is not needed
	Limit        int    // bytes of the answer; 0: 64 KiB
}

// CallA2A sends a signed call to the relay's A2A gateway. Errors: ErrNoA2A; *envelope.Error. If the error says
// "unknown", the call is not repeatable, and may have had its effect.
func (c *Client) CallA2A(ctx context.Context, call GatewayCall) error {
	return c.callGateway(ctx, a2aName, call)
}

// callGateway sends a signed call to the gateway with this name.
func (c *Client) callGateway(ctx context.Context, name string, call GatewayCall) error {
	if call.Out == nil {
		call.Out = new(struct{})
	}
	spec := wire.Spec{Out: call.Out, Limit: cmp.Or(call.Limit, wire.MaxShort), Status: call.Status,
		Sister: name == hubName || name == jobsName}
	return c.signedCall(ctx, name, call.Method, call.Path, call.Body, call.Repeatable, spec)
}
