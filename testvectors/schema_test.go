package testvectors_test

import (
	"bytes"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agora-relay/agora/testvectors"
)

// schemaBase is the prefix of the names of the schemas. Nothing is fetched from this address.
const schemaBase = "https://github.com/agora-relay/agora/testvectors/schema/"

// schemas compiles all schemas and returns them by their file names.
func schemas(t *testing.T) map[string]*jsonschema.Schema {
	t.Helper()
	compiler := jsonschema.NewCompiler()
	names, err := fs.Glob(testvectors.Files(), "schema/*.json")
	if err != nil || len(names) < 19 {
		t.Fatalf("%d schemas, %v; want at least 19", len(names), err)
	}
	for _, name := range names {
		text, err := fs.ReadFile(testvectors.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if object := document.(map[string]any); object["$id"] != schemaBase+path.Base(name) ||
			object["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
			t.Errorf("%s: $id or $schema is wrong", name)
		}
		if err := compiler.AddResource(schemaBase+path.Base(name), document); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	compiled := map[string]*jsonschema.Schema{}
	for _, name := range names {
		base := path.Base(name)
		if compiled[base], err = compiler.Compile(schemaBase + base); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	return compiled
}

func TestVectorFilesMatchSchemas(t *testing.T) {
	all := schemas(t)
	for name := range minVectors {
		text, err := fs.ReadFile(testvectors.Files(), name)
		if err != nil {
			t.Fatal(err)
		}
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if err := all["vectors-"+name].Validate(document); err != nil {
			t.Errorf("%s: %.2000v", name, err)
		}
	}
}

// beyondSchemas has the rejected vectors of verify.json that are valid according to envelope.json. The key is what a
// schema cannot check.
var beyondSchemas = map[string]string{
	"the JSON text, which a schema does not see": "duplicate-id duplicate-escaped duplicate-type duplicate-unknown duplicate-nested duplicate-nested-escaped duplicate-sig " +
		"duplicate-in-the-wrapper surrogate-alone surrogate-alone-in-name surrogates-swapped utf-8-invalid utf-8-overlong " +
		"utf-8-surrogate utf-8-invalid-in-name number-1e400 number-minus-1e400-nested " +
		"numbers-costly-1001 numbers-costly-1001-just-below numbers-costly-1001-underflow numbers-costly-1001-digits " +
		"numbers-costly-1001-zeros-within numbers-costly-1001-mixed",
	"size and depth": "size-one-byte-over depth-65 depth-65-with-the-wrapper depth-65-behind-brackets-in-strings",
	"the calendar":   "ts-february-29",
	"bytes":          "request-id-129-bytes-of-43-characters",
	"the clock": "window-past-edge window-past-outside window-past-edge-offset window-future-edge window-future-outside " +
		"window-clock-moved-on window-year-9999 window-year-0001 expired-edge expired-a-millisecond-after expired-long-ago " +
		"expired-with-ttl-spelled-1e1",
	"which relay is asked": "meta-relay-other meta-relay-list-of-others meta-relay-none meta-relay-prefix meta-relay-other-scheme " +
		"meta-relay-other-port",
	"which keys are good": "recipient-identity-point recipient-y-above-p recipient-off-curve sender-off-curve sender-low-order-order-4 " +
		"sender-low-order-identity sender-low-order-order-2 sender-low-order-order-8 sender-low-order-order-8-other " +
		"sender-low-order-order-4-sign sender-low-order-identity-sign sender-low-order-order-2-sign sender-low-order-order-8-sign " +
		"sender-low-order-order-8-other-sign sender-p-plus-0 sender-p-plus-1 sender-p-plus-0-sign sender-p-plus-1-sign",
	"what was signed": "sig-zeros sig-malleated sig-first-bit sig-s-bit sig-halves-swapped signed-by-another signed-something-else " +
		"signed-before-a-member-was-changed signed-before-a-member-was-added signed-before-a-member-was-lost " +
		"signed-before-ts-was-respelled signed-before-hop-was-raised signed-with-sig-empty signed-with-wrapper signed-as-spelled " +
		"signed-with-line-feed signed-html-escaped signed-prehash signed-with-context",
}

func TestEnvelopeSchema(t *testing.T) {
	schema := schemas(t)["envelope.json"]
	var beyond []string
	for _, names := range beyondSchemas {
		beyond = append(beyond, strings.Fields(names)...)
	}
	for _, v := range testvectors.Verify() {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(v.Body))
		if err == nil {
			err = schema.Validate(envelopeIn(document))
		}
		valid := err == nil
		listed := slices.Index(beyond, v.Name)
		switch {
		case v.Expect == testvectors.Accept && !valid:
			t.Errorf("%s must be accepted: %v", v.Name, err)
		case v.Expect == testvectors.Reject && valid != (listed >= 0):
			t.Errorf("%s must be rejected (%s): valid by the schema %v, listed in beyondSchemas %v",
				v.Name, v.Reason, valid, listed >= 0)
		}
		if listed >= 0 {
			beyond = slices.Delete(beyond, listed, listed+1)
		}
	}
	if len(beyond) > 0 {
		t.Errorf("beyondSchemas lists names without a vector, or twice: %v", beyond)
	}
}

// envelopeIn returns the envelope in a wrapper, or document itself if it is not a wrapper.
func envelopeIn(document any) any {
	if object, ok := document.(map[string]any); ok && len(object) == 1 {
		if inner, ok := object["envelope"].(map[string]any); ok {
			return inner
		}
	}
	return document
}

// TestPayloadSchemas checks that each payload schema accepts good payloads, and refuses payloads without a required
// member or with a member of the wrong type. It also checks that the envelopes of sign.json are valid.
func TestPayloadSchemas(t *testing.T) {
	all := schemas(t)
	for _, c := range []struct {
		schema string
		good   []string
		bad    []string
	}{
		{"request.json", []string{`{"intent":"i"}`, `{"intent":"i","params":null,"x":1}`},
			[]string{`{}`, `{"intent":""}`, `{"intent":5}`, `[]`, `{"intent":"i","request_id":5}`, `{"intent":"i","constraints":{"max_cost_usd":"1"}}`}},
		{"offer.json", []string{`{}`, `{"price":{"amount":0,"currency":"USD"}}`},
			[]string{`null`, `{"price":{"amount":1}}`, `{"valid_until":"tomorrow"}`, `{"eta_seconds":-1}`}},
		{"accept.json", []string{`{}`, `{"terms":{"price_usd":1}}`}, []string{`""`, `{"terms":[]}`, `{"accepted_at":"2026-02-30T00:00:00Z"}`}},
		{"result.json", []string{`{"status":"success"}`}, []string{`{}`, `{"status":""}`, `{"status":"x","artifacts":{}}`}},
		{"error.json", []string{`{"code":"OWN","message":"m"}`}, []string{`{"code":"C"}`, `{"message":"m"}`, `{"code":"","message":"m"}`}},
		{"cancel.json", []string{`{}`, `{"reason":""}`}, []string{`{"reason":1}`, `5`}},
		{"manifest.json", []string{`{"id":"m"}`, `{"id":"m","intents":[],"pricing":{"model":"free"}}`},
			[]string{`{}`, `{"id":"a b"}`, `{"id":"m","intents":[{}]}`, `{"id":"m","pricing":{"model":"gift"}}`, `{"id":"m","auth":{"public_key":"x"}}`}},
	} {
		for want, texts := range map[bool][]string{true: c.good, false: c.bad} {
			for _, text := range texts {
				document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
				if err != nil {
					t.Fatal(err)
				}
				if err := all[c.schema].Validate(document); (err == nil) != want {
					t.Errorf("%s: %s: validation returned %v", c.schema, text, err)
				}
			}
		}
	}
	for _, v := range testvectors.Sign() {
		document, err := jsonschema.UnmarshalJSON(bytes.NewReader(v.Envelope))
		if err == nil {
			err = all["envelope.json"].Validate(document)
		}
		if err != nil {
			t.Errorf("sign.json: %s: %v", v.Name, err)
		}
	}
}
