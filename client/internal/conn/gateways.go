package conn

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

	"github.com/agora-relay/agora/client/internal/readauth"
	"github.com/agora-relay/agora/client/internal/wire"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/netaddr"
)

// Signed calls to the gateways of a relay (GATEWAYS §3).

// The names of gateways in the relay's document. They are also the flags of agora serve that start them.
const (
	Hub     = "hub"
	Jobs    = "jobs"
	Channel = "channel"
	A2A     = "a2a"
)

// InboxPath returns the path of an inbox at the channel gateway (CHANNEL §4).
func InboxPath(id string) string { return "/inboxes/" + url.PathEscape(id) }

// ErrNoGateway has the error of a call to a gateway that the relay does not have, by the gateway's name. A Conn knows
// only the gateways with these names.
var ErrNoGateway = map[string]error{
	Hub:  errors.New("client: this relay has no hub; its operator can start it with agora serve --hub"),
	Jobs: errors.New("client: this relay has no registry of jobs; its operator can start it with agora serve --jobs"),
	Channel: errors.New("client: this relay has no channel gateway, so it has no agent inboxes; " +
		"its operator can start it with agora serve --channel"),
	A2A: errors.New("client: this relay has no A2A gateway; its operator can start it with agora serve --a2a"),
}

// Gateways is what the relay's document says about its gateways.
type Gateways struct {
	URLs     map[string]string // their base URLs by name
	DID      didkey.DID        // signs their messages
	audience string            // of signed calls: the relay's origin
	readAt   time.Time
}

// gatewayDocument is the part of the well-known document about the gateways.
type gatewayDocument struct {
	URL      string                     `json:"url"`
	Gateways map[string]json.RawMessage `json:"gateways"`
}

// read returns what the document says about the gateways that a Conn knows.
func (d gatewayDocument) read() (g Gateways, err error) {
	g = Gateways{URLs: map[string]string{}, audience: d.URL}
	var did string
	if raw := d.Gateways["did"]; len(raw) > 0 && json.Unmarshal(raw, &did) != nil {
		did = ""
	}
	for name, raw := range d.Gateways {
		var entry struct {
			URL string `json:"url"`
		}
		if ErrNoGateway[name] != nil && json.Unmarshal(raw, &entry) == nil && entry.URL != "" {
			g.URLs[name] = strings.TrimRight(entry.URL, "/")
		}
	}
	if len(g.URLs) == 0 {
		return g, nil
	}
	if g.DID, err = didkey.Parse(did); err != nil {
		err = fmt.Errorf("client: the did of the gateways in the relay's document is invalid: %w", err)
	}
	return g, err
}

// Gateway returns what the relay's document says about its gateways. It is an error if the relay does not have the one
// with this name.
func (c *Conn) Gateway(ctx context.Context, name string) (Gateways, error) {
	g, err := c.AllGateways(ctx)
	if err == nil && g.URLs[name] == "" {
		err = ErrNoGateway[name]
	}
	return g, err
}

// AllGateways returns what the relay's document says about its gateways, which may be none.
func (c *Conn) AllGateways(ctx context.Context) (Gateways, error) {
	g := c.gateways.Load()
	if g == nil || time.Since(g.readAt) >= readauth.RecheckInterval {
		read, base, err := c.readGateways(ctx)
		if err != nil {
			return Gateways{}, err
		}
		for _, u := range read.URLs {
			if !netaddr.SameOrigin(read.audience, base) || !strings.HasPrefix(u, read.audience+"/") {
				return Gateways{}, envelope.Errorf(envelope.CodeUnauthorized,
					"the relay's document says that its URL is %s and that it has a gateway at %s, but this client was given "+
						"another URL; signed calls need the URL from the document, so use that one if you trust it",
					wire.Shorten(read.audience), wire.Shorten(u))
			}
		}
		g = &read
		if len(g.URLs) > 0 {
			c.gateways.Store(g)
		}
	}
	return *g, nil
}

// readGateways reads the relay's document. base is the URL from which it was read.
func (c *Conn) readGateways(ctx context.Context) (g Gateways, base string, err error) {
	readAt := time.Now()
	base = c.URL()
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

func (c *Conn) gatewayDocument(ctx context.Context, base string) (doc gatewayDocument, err error) {
	err = c.Repeat(ctx, (*wire.Failure).Temporary, func(ctx context.Context) *wire.Failure {
		request := wire.Request{Base: base, Method: http.MethodGet, Target: wellKnown}
		return c.Wire.Send(ctx, request, wire.Spec{Out: &doc, Limit: wire.MaxDocument})
	})
	return doc, err
}

// Call is a signed call to a gateway (GATEWAYS §3). The fields are those of client.GatewayCall.
type Call struct {
	Method, Path string // Path begins after the gateway's base URL
	Body         []byte
	Status       int
	Repeatable   bool // else it is repeated only if it has certainly had no effect
	Out          any
	Limit        int
}

// Call sends a signed call to the gateway with this name.
func (c *Conn) Call(ctx context.Context, name string, call Call) error {
	if c.Signer == nil {
		return ErrReadOnly
	}
	if failed := c.AssureParties(ctx); failed != nil {
		return failed
	}
	g, err := c.Gateway(ctx, name)
	if err != nil {
		return err
	}
	if call.Out == nil {
		call.Out = new(struct{})
	}
	spec := wire.Spec{Out: call.Out, Limit: cmp.Or(call.Limit, wire.MaxShort), Status: call.Status,
		Sister: name == Hub || name == Jobs}
	again := func(f *wire.Failure) bool { return call.Repeatable || f.NoEffect() }
	err = c.Repeat(ctx, again, func(ctx context.Context) *wire.Failure {
		return c.exchange(ctx, g.URLs[name], g.audience, call, spec)
	})
	if failed, ok := errors.AsType[*wire.Failure](err); ok && !call.Repeatable && !failed.NoEffect() {
		return fmt.Errorf("client: it is unknown whether the relay has done this; list what it has before you try "+
			"again: %w", err)
	}
	return err
}

// exchange sends one call. It repeats the call with a new token if only the old token was wrong: because this
// machine's clock is wrong, or because the transport has sent the request twice.
func (c *Conn) exchange(ctx context.Context, base, audience string, call Call, spec wire.Spec) *wire.Failure {
	full, err := url.Parse(base + call.Path)
	if err != nil {
		return &wire.Failure{Err: err, NotSent: true, Status: http.StatusBadRequest}
	}
	for attempt := 1; ; attempt++ {
		token, err := envelope.Call{Body: sha256.Sum256(call.Body), Read: envelope.Read{Audience: audience,
			Method: call.Method, Target: full.RequestURI(), TS: c.readAuth.Now(c.rawNow())}}.Sign(c.Signer)
		if err != nil {
			return wire.Permanent(envelope.Errorf(envelope.CodeUnauthorized, "signing the call failed: %v", err))
		}
		request := wire.Request{Base: base, Method: call.Method, Target: call.Path, Authorization: "Agora " + token,
			Body: call.Body}
		failed := c.Wire.Send(ctx, request, spec)
		if failed == nil || attempt == readAttempts {
			return failed
		}
		if failed = c.prepareCall(failed); failed != nil {
			return failed
		}
	}
}

// prepareCall returns nil if a call or a signed read that failed can be repeated with a new token, else the failure to
// report. If the time of the token was refused, it corrects the clock for tokens.
func (c *Conn) prepareCall(failed *wire.Failure) *wire.Failure {
	refusal, ok := errors.AsType[*envelope.Error](failed)
	if !ok || failed.Status != http.StatusUnauthorized {
		return failed
	}
	switch refusal.Reason() {
	case envelope.ReasonTime:
		return c.readAuth.Correct(refusal, failed, c.rawNow())
	case envelope.ReasonUsed: // the transport sent the request twice
		return nil
	}
	return failed
}
