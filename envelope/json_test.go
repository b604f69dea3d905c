package envelope

import (
	"bytes"
	"encoding/json"
	"testing"
)

func TestSignedPart(t *testing.T) {
	for canonical, want := range map[string]string{
		`{"sig":"x"}`:                           `{}`,
		`{"sig":"x","z":1}`:                     `{"z":1}`,
		`{"a":1,"sig":"x"}`:                     `{"a":1}`,
		`{"a":1,"sig":{"sig":[1,2]},"z":2}`:     `{"a":1,"z":2}`,
		`{"a":{"sig":"x"},"z":2}`:               `{"a":{"sig":"x"},"z":2}`,
		`{"\"":1,"\\":"]}","sig":"x","z":",}"}`: `{"\"":1,"\\":"]}","z":",}"}`,
		`{"sig\"":1,"sigh":2}`:                  `{"sig\"":1,"sigh":2}`,
		`{}`:                                    `{}`,
	} {
		if got := (&Envelope{canonical: []byte(canonical)}).signedPart(); string(got) != want {
			t.Errorf("signedPart of %s = %s; want %s", canonical, got, want)
		}
	}
}

// agreesWithDecoder compares members and elements with encoding/json, for text and everything nested in it.
func agreesWithDecoder(t *testing.T, text []byte) {
	t.Helper()
	switch {
	case isObject(text):
		var want map[string]json.RawMessage
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		n := 0
		for name, value := range members(text) {
			n++
			unquoted, ok := stringValue([]byte(`"` + name + `"`))
			if !ok || !bytes.Equal(want[unquoted], value) || !bytes.Equal(member(text, name), value) {
				t.Errorf("member %q of %s is %s, encoding/json returns %s", name, text, value, want[unquoted])
			}
			agreesWithDecoder(t, value)
		}
		if n != len(want) {
			t.Errorf("%d members of %s; encoding/json finds %d", n, text, len(want))
		}
	case len(text) > 0 && text[0] == '[':
		var want []json.RawMessage
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		n := 0
		for value := range elements(text) {
			if n >= len(want) || !bytes.Equal(want[n], value) {
				t.Fatalf("element %d of %s is %s", n, text, value)
			}
			n++
			agreesWithDecoder(t, value)
		}
		if n != len(want) {
			t.Errorf("%d elements of %s; encoding/json finds %d", n, text, len(want))
		}
	default:
		var want any
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		wantText, isText := want.(string)
		if got, ok := stringValue(text); got != wantText || ok != isText {
			t.Errorf("stringValue(%s) = %q, %v", text, got, ok)
		}
	}
}

func TestWalk(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, `""`, `[[]]`, `[{}]`, `{"":{}}`, `{"a":[],"b":{}}`, `[1,2]`, `[1,[2,3],"4,]",{"5":"}"}]`, `[true,false,null,-1.5e+30]`,
		`{"a\"b":"c\"d","e\\":"\\","f":"\\\"","{":"[","}":"]",",":",",":":":"}`, `["\\","\\\\\"",""]`, `"\b\u001f é 😀"`,
	} {
		canonical, err := Canonicalize([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		agreesWithDecoder(t, canonical)
	}
}
