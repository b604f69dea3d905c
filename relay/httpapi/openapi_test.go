package httpapi_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/internal/racing"
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

// TestEventsParametersAreDocumented compares the parameters of GET /events in the OpenAPI document with those that the
// relay reads. The filters among them come from relay.FilterTable.
func TestEventsParametersAreDocumented(t *testing.T) {
	racing.Skip(t, "one thing after another")
	type parameter struct {
		Ref      string `json:"$ref"`
		Name, In string
	}
	var document struct {
		Paths      map[string]map[string]struct{ Parameters []parameter }
		Components struct{ Parameters map[string]parameter }
	}
	h := httpapi.New(start(t), httpapi.Options{}).Handler(false)
	if err := json.Unmarshal(record(h, "GET", "/openapi.json").Body.Bytes(), &document); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range document.Paths["/events"]["get"].Parameters {
		if name, isRef := strings.CutPrefix(p.Ref, "#/components/parameters/"); isRef {
			p = document.Components.Parameters[name]
		}
		if p.In == "query" {
			names = append(names, p.Name)
		}
	}
	want := httpapi.EventsParams()
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("the document has %q, the relay reads %q", names, want)
	}
}
