package httpapi

import (
	"net/http"
	"sync"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

// This file serves the documents that describe the API: /openapi.json and /llms.txt.

// document returns a function that makes a document of this relay, when it is called for the first time. Afterwards the
// document stays in memory, so that a request costs no more than a health check.
func (a *api) document(contentType string, write func(apidocs.Relay) ([]byte, error)) func() (*File, error) {
	return sync.OnceValues(func() (*File, error) {
		text, err := write(apidocs.Relay{URL: a.relay.Origin(), Build: a.options.Build,
			Private: a.relay.Reads() == relay.ToParties, MaxBody: a.relay.MaxBody(), Parts: a.options.APIs})
		if err != nil {
			return nil, err
		}
		return NewFile(contentType, text)
	})
}

// serving returns the methods of a Route that serves a document.
func serving(document func() (*File, error)) map[string]Handler {
	serve := func(w http.ResponseWriter, r *http.Request, from relay.Peer) error {
		f, err := document()
		if err != nil {
			return err
		}
		return f.Serve(w, r, from)
	}
	return map[string]Handler{http.MethodGet: serve, http.MethodHead: serve}
}
