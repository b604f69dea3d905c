package envelope

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gowebpki/jcs"

	"github.com/agora-relay/agora/didkey"
)

// fuzzKey returns the key that signs in the fuzz tests.
func fuzzKey(t testing.TB) didkey.Key {
	t.Helper()
	key, err := didkey.FromSeed(bytes.Repeat([]byte{1}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func fuzzDraft(t testing.TB, text string) *Envelope {
	t.Helper()
	e, err := Draft{Payload: Request{RequestID: "r", Intent: "i", Title: text}, ID: "m", Thread: "t"}.Sign(fuzzKey(t), time.UnixMilli(1770033600000))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// FuzzParse checks the canonical form of everything that Parse accepts. It must be stable and valid JSON, equal to the
// result of jcs for the body, and read alike by encoding/json. No member name may equal a known name except for case.
func FuzzParse(f *testing.F) {
	whole := string(fuzzDraft(f, "\x1f\"\\é").canonical)
	f.Add([]byte(whole))
	f.Add([]byte(`{"envelope":` + whole + `}`))
	f.Add([]byte(strings.Replace(whole, `"id"`, `"extra":[1e20,{"\u0000":null}],"id"`, 1)))
	f.Add([]byte(strings.Replace(whole, `"sig"`, `"ſig":1,"sig"`, 1)))
	f.Add([]byte(strings.Replace(whole, `"ttl"`, `"relay":["a","b"],"hop":3,"ttl"`, 1)))
	f.Add([]byte(strings.Replace(whole, `"type":"REQUEST"`, `"type":"MANIFEST"`, 1)))
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := Parse(body, 0)
		if err != nil {
			if _, ok := err.(*Error); !ok {
				t.Errorf("not an *Error: %v", err)
			}
			return
		}
		again, err := Canonicalize(e.canonical)
		if err != nil || !bytes.Equal(again, e.canonical) || !json.Valid(e.canonical) || len(e.canonical) > DefaultMaxBytes {
			t.Errorf("canonical form %s becomes %s, %v", e.canonical, again, err)
		}
		agreesWithDecoder(t, e.canonical)
		if whole, err := jcs.Transform(body); err != nil ||
			!bytes.Equal(whole, e.canonical) && !bytes.Equal(whole, slices.Concat([]byte(`{"envelope":`), e.canonical, []byte("}"))) {
			t.Errorf("%s was parsed as %s; jcs returns %s, %v", body, e.canonical, whole, err)
		}
		for name := range members(e.canonical) {
			for _, known := range knownNames {
				if name != known && strings.EqualFold(name, known) {
					t.Errorf("a member is named %q, which other parsers may confuse with %q", name, known)
				}
			}
		}
		if !e.Type.Known() || !ValidID(e.ID) || (e.Type == TypeManifest) != (e.Thread == "") || e.Thread != "" && !ValidID(e.Thread) ||
			e.TTL < time.Second || e.Hop < 0 || e.Hop > MaxHop {
			t.Errorf("accepted %+v", e)
		}
	})
}

var strictTime = regexp.MustCompile(`^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?` +
	`(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

// realDate reports whether the day of text exists in the calendar. text matches strictTime.
func realDate(text string) bool {
	number := func(from, to int) (n int) {
		for _, c := range text[from:to] {
			n = n*10 + int(c-'0')
		}
		return n
	}
	year, month, day := number(0, 4), number(5, 7), number(8, 10)
	days := []int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}[month-1]
	if leap := year%4 == 0 && (year%100 != 0 || year%400 == 0); month == 2 && leap {
		days++
	}
	return day <= days
}

// FuzzParseTime compares ParseTime with a regular expression, a calendar and package time. ParseTime must accept the
// same texts as the expression and the calendar, and return the same instant as package time.
func FuzzParseTime(f *testing.F) {
	for _, text := range []string{"2026-02-02T12:00:00Z", "2026-02-02T12:00:00.123456789+08:00", "2026-02-02T12:00:00,5Z",
		"2026-02-29T24:00:60+24:60", "0000-01-01T00:00:00-00:00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		at, ok := ParseTime(text)
		if want := strictTime.MatchString(text) && realDate(text); ok != want {
			t.Errorf("%q: accepted %v, want %v", text, ok, want)
		}
		if parsed, err := time.Parse(time.RFC3339Nano, text); ok && (err != nil || !parsed.Equal(at)) {
			t.Errorf("ParseTime(%q) = %v; package time returns %v, %v", text, at, parsed, err)
		}
	})
}

// FuzzVerify checks that a signed draft verifies, and that it does not verify after any change of one byte.
func FuzzVerify(f *testing.F) {
	f.Add("plain", uint(10), byte(1))
	f.Add("\x1f", uint(200), byte(0x20))
	f.Add("\"\\é<&>\u2028", uint(300), byte(0x80))
	f.Fuzz(func(t *testing.T, text string, position uint, mask byte) {
		if mask == 0 || len(text) > 1000 {
			return
		}
		e := fuzzDraft(t, text)
		if err := e.Verify(); err != nil {
			t.Fatalf("%s: %v", e.canonical, err)
		}
		changed := bytes.Clone(e.canonical)
		changed[position%uint(len(changed))] ^= mask
		other, err := Parse(changed, 0)
		// The canonical form is the same if only the spelling has changed: \u001F is \u001f.
		if err == nil && other.Verify() == nil && !bytes.Equal(other.canonical, e.canonical) {
			t.Errorf("%s, changed to %s, still verifies", e.canonical, changed)
		}
	})
}
