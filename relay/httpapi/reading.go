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

// reading lets h know who has signed a read, see peer. A read without a token is nobody's; one with a token that does
// not hold is refused, also where nobody's would be answered: its sender believes to be somebody. A relay that shows
// everything does not look at the header.
func (s *server) reading(h handler) handler {
	if s.relay.Reads != relay.ToParties {
		return h
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		headers := r.Header.Values("Authorization")
		if len(headers) == 0 {
			return h(w, r)
		}
		scheme, token, found := strings.Cut(headers[0], " ")
		if len(headers) > 1 || !found || !strings.EqualFold(scheme, authScheme) {
			e := envelope.Errorf(envelope.CodeUnauthorized, "Authorization must be given once, as %q and one token", authScheme)
			e.Details = map[string]any{"reason": envelope.ReadMalformed}
			return e
		}
		reader, err := s.relay.VerifyRead(token, r.Method, r.RequestURI)
		if err != nil {
			return err
		}
		return h(w, r.WithContext(context.WithValue(r.Context(), readerKey{}, reader)))
	}
}

// reader returns who has signed r, empty for nobody.
func reader(r *http.Request) didkey.DID {
	did, _ := r.Context().Value(readerKey{}).(didkey.DID)
	return did
}
