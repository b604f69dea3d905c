package apidocs_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/hub"
	"github.com/agora-relay/agora/gateway/jobs"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

// parts has the parts of the documents that the gateways add, for a relay with all of them.
var parts = []apidocs.Part{gateway.API, hub.API, channel.API, jobs.API, a2a.API}

// relays are the relays for which the documents are tested.
var relays = map[string]apidocs.Relay{
	"no gateway": {URL: "https://relay.example", Build: "v1", MaxBody: 131072},
	"all":        {URL: "https://relay.example", Build: "v1", MaxBody: 131072, Private: true, Parts: parts},
	"jobs":       {URL: "http://127.0.0.1:8789", Build: "v1", MaxBody: 1000, Parts: []apidocs.Part{gateway.API, jobs.API}},
}

func openAPI(t *testing.T, r apidocs.Relay) []byte {
	t.Helper()
	text, err := apidocs.OpenAPI(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestOpenAPI31 checks the document against the rules of OpenAPI 3.1. They include that each $ref leads somewhere, and
// that the parameters of each path are described.
func TestOpenAPI31(t *testing.T) {
	for name, r := range relays {
		t.Run(name, func(t *testing.T) {
			document, err := openapi3.NewLoader().LoadFromData(openAPI(t, r))
			if err != nil {
				t.Fatal(err)
			}
			if err := document.Validate(t.Context(), openapi3.EnableExamplesValidation()); err != nil {
				t.Error(err)
			}
			if got := document.Servers[0].URL; got != r.URL {
				t.Errorf("the server is %s, want %s", got, r.URL)
			}
			ids := map[string]string{}
			for path, item := range document.Paths.Map() {
				for method, o := range item.Operations() {
					if other := ids[o.OperationID]; other != "" || o.OperationID == "" {
						t.Errorf("%s %s and %s have the operationId %q", method, path, other, o.OperationID)
					}
					ids[o.OperationID] = method + " " + path
					if len(o.Tags) != 1 || document.Tags.Get(o.Tags[0]) == nil {
						t.Errorf("%s %s has the tags %q, want one that is described", method, path, o.Tags)
					}
				}
			}
		})
	}
}

// TestOnlyGatewaysThatAreOn checks that the paths of a gateway are in the document only if the gateway is on.
func TestOnlyGatewaysThatAreOn(t *testing.T) {
	prefixes := map[string][]string{"no gateway": {}, "all": {"/a2a/", "/channel/", "/hub/", "/jobs/"}, "jobs": {"/jobs/"}}
	for name, r := range relays {
		document := parsed(t, openAPI(t, r))
		found := map[string]bool{}
		for path := range document["paths"].(map[string]any) {
			for _, prefix := range prefixes["all"] {
				if strings.HasPrefix(path, prefix) {
					found[prefix] = true
				}
			}
		}
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, prefixes[name]) {
			t.Errorf("%s: paths under %q, want %q", name, got, prefixes[name])
		}
	}
}

func parsed(t *testing.T, text []byte) map[string]any {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return value.(map[string]any)
}

// TestExamplesAreValid checks each example of a body or a parameter against its schema.
func TestExamplesAreValid(t *testing.T) {
	document := parsed(t, openAPI(t, relays["all"]))
	compiler := jsonschema.NewCompiler()
	compiler.DefaultDraft(jsonschema.Draft2020)
	compiler.AssertFormat()
	const at = "https://relay.test/openapi.json"
	if err := compiler.AddResource(at, document); err != nil {
		t.Fatal(err)
	}
	count := 0
	var walk func(place string, value any)
	walk = func(place string, value any) {
		switch value := value.(type) {
		case []any:
			for i, element := range value {
				walk(fmt.Sprintf("%s/%d", place, i), element)
			}
		case map[string]any:
			example, has := value["example"]
			if _, isSchema := value["schema"]; has && isSchema {
				count++
				s, err := compiler.Compile(at + "#" + (&url.URL{Path: place + "/schema"}).EscapedPath())
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Validate(example); err != nil {
					t.Errorf("%s: %v", place, err)
				}
			}
			for name, inner := range value {
				walk(place+"/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(name), inner)
			}
		}
	}
	walk("", document)
	if count < 50 {
		t.Errorf("%d examples, want at least 50", count)
	}
}

// TestGuideExample follows the steps of the guide with its example: the envelope is valid, its signature verifies, and
// the seed of 32 bytes 01 makes the same signature.
func TestGuideExample(t *testing.T) {
	text, err := apidocs.Guide(relays["no gateway"])
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```json\n(.*?)\n```").FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of JSON, want the bytes to sign and the message", len(blocks))
	}
	unsigned, signed := blocks[0][1], blocks[1][1]
	e, err := envelope.Parse(signed, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Verify(); err != nil {
		t.Error(err)
	}
	key, err := didkey.FromSeed(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	if e.Sender.ID != key.DID() {
		t.Errorf("the sender is %s, the seed makes %s", e.Sender.ID, key.DID())
	}
	var members map[string]any
	if err := json.Unmarshal(signed, &members); err != nil {
		t.Fatal(err)
	}
	sig, err := key.Sign(unsigned)
	if err != nil {
		t.Fatal(err)
	}
	if got := base64.RawURLEncoding.EncodeToString(sig); got != members["sig"] {
		t.Errorf("the bytes to sign make the signature %s, the message has %s", got, members["sig"])
	}
	if !bytes.Equal(e.Canonical(), signed) {
		t.Error("the message is not canonical")
	}
	document := parsed(t, openAPI(t, relays["no gateway"]))
	shown := document["components"].(map[string]any)["examples"].(map[string]any)["Envelope"].(map[string]any)["value"]
	if text, err := json.Marshal(shown); err != nil || !bytes.Equal(text, signed) {
		t.Errorf("the document has another example: %s, %v", text, err)
	}
}

// TestGuidePaths checks that each URL in the guide is a path of the document, and that each gateway is named.
func TestGuidePaths(t *testing.T) {
	for name, r := range relays {
		text, err := apidocs.Guide(r)
		if err != nil {
			t.Fatal(err)
		}
		paths := parsed(t, openAPI(t, r))["paths"].(map[string]any)
		named := map[string]bool{}
		for _, found := range regexp.MustCompile(regexp.QuoteMeta(r.URL)+"(/[A-Za-z0-9._/{}-]*)").FindAllSubmatch(text, -1) {
			path := strings.TrimRight(string(found[1]), ".")
			named[path] = true
			isBase := slices.ContainsFunc(slices.Collect(maps.Keys(paths)), func(p string) bool { return strings.HasPrefix(p, path+"/") })
			if paths[path] == nil && !isBase {
				t.Errorf("%s: the guide names %s, which is not in the document", name, path)
			}
		}
		for _, path := range []string{"/events", "/openapi.json", "/threads/{id}", "/agents", "/agents/{did}", "/health"} {
			if !named[path] {
				t.Errorf("%s: the guide does not name %s", name, path)
			}
		}
		for word, want := range map[string]bool{"/hub": name == "all", "/channel": name == "all", "/jobs": name != "no gateway"} {
			if named[word] != want {
				t.Errorf("%s: the guide names %s: %v, want %v", name, word, named[word], want)
			}
		}
		if got := strings.Contains(string(text), "agora-read"); got != r.Private {
			t.Errorf("%s: the guide says how to sign reads: %v", name, got)
		}
		if words := len(strings.Fields(string(text))); words > 1500 {
			t.Errorf("%s: the guide has %d words", name, words)
		}
	}
}

// TestPartsAreDistinct checks that no part replaces something of another one.
func TestPartsAreDistinct(t *testing.T) {
	r := relays["no gateway"]
	for name, text := range map[string]string{
		"a path":   `{"paths":{"/events":{"get":{"summary":"other","responses":{}}}}}`,
		"a schema": `{"components":{"schemas":{"Error":{"type":"string"}}}}`,
		"no JSON":  `{`,
	} {
		r.Parts = []apidocs.Part{{Text: []byte(text)}}
		if _, err := apidocs.OpenAPI(r); err == nil {
			t.Errorf("%s: a part that says something else was merged", name)
		}
	}
}
