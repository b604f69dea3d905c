package httpapi_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/httpapi"
	"github.com/agora-relay/agora/relay/httpapi/apidocs/apicheck"
)

// newFront returns a Front whose requests and answers are checked against the OpenAPI document, except those of the
// mounts and of the root in o.
func newFront(t testing.TB, r *relay.Relay, o httpapi.Options) *httpapi.Front {
	t.Helper()
	checker, err := apicheck.Of()
	if err != nil {
		t.Fatal(err)
	}
	o.Wrap = checker.Wrap(t, func(r *http.Request) (string, bool) {
		path := r.URL.Path
		for _, m := range o.Mounts {
			if path == m.Prefix || strings.HasPrefix(path, m.Prefix+"/") {
				return "", false
			}
		}
		return path, o.Root == nil || path != "/"
	})
	return httpapi.New(r, o)
}
