package httpapi

import (
	"context"
	"net/http"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// Signed reads (PROTOCOL §8).

// authScheme stands before a token, and alone in WWW-Authenticate.
const authScheme = "Agora"

type readerKey struct{}

// reading tells h who has signed a read, see peer. A read without a token is anonymous. A read with an invalid token is
// refused, even if the anonymous read would be answered: its sender expects to be recognized. An open relay refuses no
// token, see present.
func (s *server) reading(h handler) handler {
	if s.relay.Reads != relay.ToParties {
		return s.present(h)
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		headers := r.Header.Values("Authorization")
		if len(headers) == 0 {
			return h(w, r)
		}
		token, ok := tokenOf(headers)
		if !ok {
			e := envelope.Errorf(envelope.CodeUnauthorized, "Authorization must be given once, as %q and one token", authScheme)
			e.Details = map[string]any{"reason": envelope.ReadMalformed}
			return e
		}
		reader, err := s.relay.VerifyRead(r.Context(), token, r.Method, r.RequestURI)
		if err != nil {
			return err
		}
		return h(w, r.WithContext(context.WithValue(r.Context(), readerKey{}, reader)))
	}
}

// present marks the signer of a read as present. h then answers as if there were no Authorization.
func (s *server) present(h handler) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if token, ok := tokenOf(r.Header.Values("Authorization")); ok {
			s.relay.MarkPresent(s.peer(r), token, r.Method, r.RequestURI)
		}
		return h(w, r)
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

// reader returns who has signed r; empty: the read is anonymous.
func reader(r *http.Request) didkey.DID {
	did, _ := r.Context().Value(readerKey{}).(didkey.DID)
	return did
}
