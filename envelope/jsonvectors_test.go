package envelope_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/testvectors"
)

// canonical canonicalizes text. It checks the properties that every canonical form must have, and returns the form.
func canonical(t *testing.T, name string, text []byte) (form []byte, accepted bool) {
	t.Helper()
	form, err := envelope.Canonicalize(text)
	if err != nil {
		if codeOf(t, err) != rejected {
			t.Errorf("%s: %v", name, err)
		}
		return nil, false
	}
	again, err := envelope.Canonicalize(form)
	if err != nil || !bytes.Equal(again, form) || !json.Valid(form) || !utf8.Valid(form) {
		t.Errorf("%s: the canonical form %q becomes %q, %v", name, form, again, err)
	}
	return form, true
}

func TestPublicCyberphone(t *testing.T) {
	output := testvectors.PublicDir(t, "jcs/cyberphone/output")
	outhex := testvectors.PublicDir(t, "jcs/cyberphone/outhex")
	for name, input := range testvectors.PublicDir(t, "jcs/cyberphone/input") {
		digits := strings.Join(strings.Fields(string(outhex[strings.TrimSuffix(name, ".json")+".txt"])), "")
		want, err := hex.DecodeString(digits)
		if err != nil || !bytes.Equal(want, bytes.TrimSpace(output[name])) {
			t.Fatalf("%s: the files output and outhex differ, %v", name, err)
		}
		if got, _ := canonical(t, name, input); !bytes.Equal(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestPublicNumbers checks numbers as ECMAScript writes them. Each line has the bits of a double, and its text.
func TestPublicNumbers(t *testing.T) {
	for _, file := range []string{"jcs/es6_numbers.csv", "jcs/rfc8785_appendix_b.csv"} {
		for line := range strings.Lines(string(testvectors.Public(t, file))) {
			bits, want, ok := strings.Cut(strings.TrimSpace(line), ",")
			raw, err := hex.DecodeString(strings.Repeat("0", max(0, 16-len(bits))) + bits)
			if !ok || err != nil {
				t.Fatalf("%s: %q: %v", file, line, err)
			}
			number := math.Float64frombits(binary.BigEndian.Uint64(raw))
			if want == "ERROR" {
				if !math.IsNaN(number) && !math.IsInf(number, 0) {
					t.Errorf("%s is a finite number, but the file has no text for it", bits)
				}
				continue // JSON has no text for NaN and infinities
			}
			spelled, err := json.Marshal(number)
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range []string{string(spelled), want} {
				if got, err := envelope.Canonicalize([]byte(text)); string(got) != want {
					t.Errorf("%s: %s became %s, %v; want %s", bits, text, got, err, want)
				}
			}
		}
	}
}

func TestPublicNastyJSON(t *testing.T) {
	for _, v := range testvectors.PublicList[struct {
		Name, Expect string
		Input        hexBytes `json:"input_hex"`
		Canonical    hexBytes `json:"canonical_hex"`
	}](t, "jcs/nasty_json.json", "") {
		got, accepted := canonical(t, v.Name, v.Input)
		if accepted != (v.Expect == "canonical") || !bytes.Equal(got, v.Canonical) {
			t.Errorf("%s: %q became %q; want %s, %q", v.Name, v.Input, got, v.Expect, v.Canonical)
		}
	}
}

func TestPublicJSONParsing(t *testing.T) {
	kinds := map[byte]int{}
	for name, text := range testvectors.PublicDir(t, "json/jsontestsuite/test_parsing") {
		kinds[name[0]]++
		_, accepted := canonical(t, name, text)
		// JSON allows duplicate members; I-JSON does not.
		if want := name[0] == 'y' && !strings.HasPrefix(name, "y_object_duplicated_key"); name[0] != 'i' && accepted != want {
			t.Errorf("%s: accepted %v", name, accepted)
		}
	}
	if kinds['y'] == 0 || kinds['n'] == 0 {
		t.Errorf("the folder must have both y_ and n_ files; files by kind: %v", kinds)
	}
}

func TestPublicJSONTransform(t *testing.T) {
	forms := map[string]string{
		"number_1.0.json":                  "[1]",
		"number_1e-999.json":               "[0]",
		"number_1000000000000000.json":     "[1000000000000000]",
		"number_9223372036854775807.json":  "[9223372036854776000]",
		"number_-9223372036854775808.json": "[-9223372036854776000]",
		"object_key_nfc_nfd.json":          "{\"e\u0301\":\"NFD\",\"\u00e9\":\"NFC\"}",
	}
	for name, text := range testvectors.PublicDir(t, "json/jsontestsuite/test_transform") {
		form, accepted := canonical(t, name, text)
		want := utf8.Valid(text) && !strings.HasPrefix(name, "object_same_key") && !strings.Contains(name, "escaped_invalid")
		if accepted != want {
			t.Errorf("%s: accepted %v", name, accepted)
		}
		if known, ok := forms[name]; ok && string(form) != known {
			t.Errorf("%s: %s, want %s", name, form, known)
		}
	}
}
