package gateway

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
)

// SignedCaller returns who signed a request to a gateway (docs/GATEWAYS.md, "Signed calls"). body is its body as sent.
// main is false for a request to a gateway's own listener, which takes no signed calls: their target has the path of
// the main listener. Errors: CodeUnauthorized, and CodeUnavailable if the relay cannot record the use of the token.
func (c *Core) SignedCaller(r *http.Request, body []byte, main bool) (didkey.DID, error) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return "", unsigned(envelope.ReasonUnsigned, "sign this request with your key: Authorization: Agora TOKEN")
	}
	scheme, token, found := strings.Cut(headers[0], " ")
	if len(headers) > 1 || !found || !strings.EqualFold(scheme, "Agora") {
		return "", unsigned(envelope.ReasonMalformed, "Authorization must be given once, as Agora, a space and one token")
	}
	if !main {
		err := unsigned(envelope.ReasonAudience, "this address of the gateway takes no signed requests; send them to the "+
			"relay's own URL, which is in aud")
		err.Details[envelope.DetailAudience] = c.Relay.Origin()
		return "", err
	}
	return c.Relay.VerifyCall(r.Context(), token, r.Method, r.RequestURI, body)
}

func unsigned(reason, message string) *envelope.Error {
	e := envelope.Errorf(envelope.CodeUnauthorized, "%s", message)
	e.Details = map[string]any{envelope.DetailReason: reason}
	return e
}

// SignedHandler handles a signed call of an agent. body is what it has sent.
type SignedHandler func(w http.ResponseWriter, r *http.Request, from relay.Peer, owner didkey.DID, body []byte) error

// Signed returns a handler that passes signed calls to h, with bodies of at most limit bytes. For main, see
// SignedCaller. A call that may change something counts against the limit of its signer.
func (c *Core) Signed(main bool, limit int, h SignedHandler) httpapi.Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		body, err := httpapi.ReadBody(w, r, limit)
		if err != nil {
			return err
		}
		owner, err := c.SignedCaller(r, body, main)
		if err != nil {
			return err
		}
		from.Reader = owner
		if r.Method != http.MethodGet {
			if err := c.Relay.Gate().AdmitCaller(from, string(owner)); err != nil {
				return err
			}
		}
		return h(w, r, from, owner, body)
	}
}
