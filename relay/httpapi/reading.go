package httpapi

import (
	"net/http"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// This file handles signed reads (PROTOCOL §8).

// authScheme is the scheme of Authorization, before the token. It is also the whole value of WWW-Authenticate.
const authScheme = "Agora"

// withReader verifies the token of a read and passes the signer to h. A read without a token is anonymous. A read with
// an invalid token is refused, even if an anonymous read would be answered, because its sender expects to be
// recognized. An open relay refuses no token, see withPresence.
func (a *api) withReader(h Handler) Handler {
	if a.relay.Reads() != relay.ToParties {
		return a.withPresence(h)
	}
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) (err error) {
		headers := r.Header.Values("Authorization")
		if len(headers) == 0 {
			return h(w, r, from)
		}
		token, ok := tokenOf(headers)
		if !ok {
			e := envelope.Errorf(envelope.CodeUnauthorized,
				"Authorization must be given once, as %q, a space and one token", authScheme)
			e.Details = map[string]any{envelope.DetailReason: envelope.ReasonMalformed}
			return e
		}
		if from.Reader, err = a.relay.VerifyRead(r.Context(), token, r.Method, r.RequestURI); err != nil {
			return err
		}
		return h(w, r, from)
	}
}

// withPresence marks the signer of a read as present. After that, h answers as if there was no Authorization.
func (a *api) withPresence(h Handler) Handler {
	return func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		if token, ok := tokenOf(r.Header.Values("Authorization")); ok {
			a.relay.MarkPresent(from, token, r.Method, r.RequestURI)
		}
		return h(w, r, from)
	}
}

// tokenOf returns the token of a request's Authorization headers.
func tokenOf(headers []string) (token string, ok bool) {
	if len(headers) == 0 {
		return "", false
	}
	scheme, token, found := strings.Cut(headers[0], " ")
	if len(headers) > 1 || !found || !strings.EqualFold(scheme, authScheme) {
		return "", false
	}
	return token, true
}
