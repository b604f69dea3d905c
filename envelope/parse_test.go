package envelope_test

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/agora-relay/agora/envelope"
)

// The codes that the rows of the tables below expect.
const (
	ok           envelope.Code = ""
	rejected                   = envelope.CodeInvalidRequest
	badDID                     = envelope.CodeInvalidDID
	badVersion                 = envelope.CodeUnsupportedVersion
	badSignature               = envelope.CodeInvalidSignature
	tooLarge                   = envelope.CodePayloadTooLarge
)

// TestMembers checks the table of PROTOCOL §1. Each row tests values of one member of an envelope.
func TestMembers(t *testing.T) {
	did := `"` + string(testKey(t, 1).DID()) + `"`
	id := func(n int) string { return `"` + strings.Repeat("a", n) + `"` }
	for _, c := range []struct {
		member string
		want   envelope.Code
		values []string // raw JSON; "" removes the member
	}{
		{"version", ok, []string{`"1.0"`, `"1\u002e0"`}},
		{"version", badVersion, []string{"", "null", "1.0", "1", `"1"`, `"1.1"`, `"2.0"`, `"1.0 "`, `"01.0"`, `["1.0"]`, `{}`, `""`}},

		{"id", ok, []string{`"a"`, `"0"`, `"Z"`, id(128), `"a._:~-"`, `"\u0061"`}},
		{"id", rejected, []string{"", "null", "7", "true", `[]`, `{"id":"a"}`, `""`, id(129), `".a"`, `"_a"`, `":a"`, `"~a"`, `"-a"`,
			`"a b"`, `" a"`, `"a "`, `"a\n"`, `"\u0000"`, `"a/b"`, `"a\\b"`, `"a\"b"`, `"a'b"`, `"a%b"`, `"a+b"`, `"a@b"`, `"a,b"`,
			`"a;b"`, `"a=b"`, `"a?b"`, `"a#b"`, `"a&b"`, `"a<b"`, `"a[b"`, `"a{b"`, `"a|b"`, "\"a\x7fb\"", `"é"`, `"a\u2028"`, `"ａ"`}},

		{"type", ok, []string{`"REQUEST"`, `"OFFER"`, `"ACCEPT"`, `"RESULT"`, `"ERROR"`, `"CANCEL"`}},
		{"type", rejected, []string{"", "null", "1", `[]`, `""`, `"request"`, `"Request"`, `" REQUEST"`, `"REQUEST "`, `"TIMEOUT"`,
			`"PING"`, `["REQUEST"]`, `"MANIFEST"`}}, // a MANIFEST must not have a thread, and body has one

		{"sender", ok, []string{`{"id":` + did + `}`, `{"id":` + did + `,"name":"","url":"x","more":[]}`, `{"id":"not looked at yet"}`}},
		{"sender", badDID, []string{"", "null", did, `[]`, `[` + did + `]`, `{}`, `{"id":null}`, `{"id":5}`, `{"id":[]}`, `{"ID":` + did + `}`}},
		{"sender", envelope.CodeInvalidDID, []string{`{"id":` + did + `,"name":null}`, `{"id":` + did + `,"name":1}`,
			`{"id":` + did + `,"url":null}`, `{"id":` + did + `,"url":["x"]}`}},

		{"recipient", ok, []string{"", `{"id":` + did + `}`, `{"id":` + did + `,"name":5}`}},
		{"recipient", badDID, []string{"null", did, `[]`, `{}`, `{"id":null}`, `{"id":""}`, `{"id":5}`, `{"Id":` + did + `}`}},

		{"payload", ok, []string{`{}`, `{"request_id":"r"}`, `{"request_id":""}`, `{"x":[{"y":null}]}`}},
		{"payload", rejected, []string{"", "null", "1", `"x"`, `[]`, `[{}]`, "true", `{"request_id":null}`, `{"request_id":5}`, `{"request_id":["r"]}`}},

		{"thread", ok, []string{"", `{"id":"a"}`, `{"id":` + id(128) + `}`, `{"id":"a","more":1}`}},
		{"thread", rejected, []string{"null", `"a"`, `[]`, `{}`, `{"id":null}`, `{"id":5}`, `{"id":""}`, `{"id":` + id(129) + `}`,
			`{"id":"a b"}`, `{"id":"_a"}`, `{"ID":"a"}`}},

		{"meta", ok, []string{"", `{}`, `{"more":null}`, `{"TTL":-1}`}},
		{"meta", rejected, []string{"null", `[]`, `"x"`, "300"}},

		{"sig", ok, []string{"", "null", "5", `""`, `{}`}}, // Verify checks sig, not Parse
	} {
		for _, value := range c.values {
			_, err := envelope.Parse([]byte(body(t, c.member, value)), 0)
			if got := codeOf(t, err); got != c.want {
				t.Errorf("%s = %s: %v, want %q", c.member, value, err, c.want)
			}
		}
	}
}

func TestMeta(t *testing.T) {
	for value, want := range map[string]time.Duration{ // 0: refused
		"1": 1, "300": 300, "300.0": 300, "3e2": 300, "3E+2": 300, "30000e-2": 300, "9223372036": 9223372036,
		"0": 0, "-0": 0, "-1": 0, "1.5": 0, "0.5": 0, "1e-1": 0, "9223372037": 0, "92233720360": 0, "9223372036854775807": 0,
		"1e18": 0, "1e21": 0, "1e300": 0, "-9223372036": 0, "null": 0, "true": 0, `"300"`: 0, `""`: 0, "[300]": 0, `{}`: 0,
	} {
		e, err := envelope.Parse([]byte(body(t, "meta", `{"ttl":`+value+`}`)), 0)
		if want == 0 {
			if codeOf(t, err) != rejected {
				t.Errorf("ttl %s: %v", value, err)
			}
		} else if err != nil || e.TTL != want*time.Second {
			t.Errorf("ttl %s: %v, want %ds", value, err, want)
		}
	}
	for value, want := range map[string]int{ // -1: refused
		"0": 0, "-0": 0, "1": 1, "9": 9, "10": 10, "16": 16, "16.0": 16, "1.6e1": 16,
		"17": -1, "20": -1, "-1": -1, "160": -1, "0.5": -1, "1e300": -1, "null": -1, `"0"`: -1, "[]": -1, "false": -1,
	} {
		e, err := envelope.Parse([]byte(body(t, "meta", `{"hop":`+value+`}`)), 0)
		if want < 0 {
			if codeOf(t, err) != rejected {
				t.Errorf("hop %s: %v", value, err)
			}
		} else if err != nil || e.Hop != want {
			t.Errorf("hop %s: %v, want %d", value, err, want)
		}
	}
	for value, want := range map[string]string{ // the list, joined; "-": refused
		`"https://a.example"`: "https://a.example", `["x"]`: "x", `["x","y\"z"]`: `x y"z`, `["a,b","]"]`: "a,b ]", `[]`: "", `""`: "",
		"null": "-", "1": "-", "true": "-", `{}`: "-", `{"x":"y"}`: "-", `["x",null]`: "-", `[1]`: "-", `[["x"]]`: "-", `[{}]`: "-",
	} {
		e, err := envelope.Parse([]byte(body(t, "meta", `{"relay":`+value+`}`)), 0)
		if want == "-" {
			if codeOf(t, err) != envelope.CodeForbidden {
				t.Errorf("relay %s: %v", value, err)
			}
		} else if err != nil || e.Relays == nil || strings.Join(e.Relays, " ") != want {
			t.Errorf("relay %s: %v, want %q", value, err, want)
		}
	}
}

// TestThreadID checks that payload.request_id is the thread id of a message without thread. A MANIFEST has no thread.
func TestThreadID(t *testing.T) {
	for _, c := range []struct {
		changes []string
		want    envelope.Code
		thread  string
	}{
		{[]string{"thread", `{"id":"t"}`, "payload", `{"request_id":"r"}`}, ok, "t"},
		{[]string{"thread", `{"id":"t"}`, "payload", `{"request_id":"no id at all"}`}, ok, "t"},
		{[]string{"thread", `{"id":"t"}`, "payload", `{}`}, ok, "t"},
		{[]string{"thread", "", "payload", `{"request_id":"r"}`}, ok, "r"},
		{[]string{"thread", "", "payload", `{"request_id":"no id at all"}`}, rejected, ""},
		{[]string{"thread", "", "payload", `{"request_id":""}`}, rejected, ""},
		{[]string{"thread", "", "payload", `{}`}, rejected, ""},
		{[]string{"type", `"MANIFEST"`, "thread", ""}, ok, ""},
		{[]string{"type", `"MANIFEST"`, "thread", "", "payload", `{}`}, ok, ""},
		{[]string{"type", `"MANIFEST"`, "thread", `{"id":"t"}`}, rejected, ""},
		{[]string{"type", `"MANIFEST"`, "thread", `null`}, rejected, ""},
	} {
		e, err := envelope.Parse([]byte(body(t, c.changes...)), 0)
		if codeOf(t, err) != c.want || err == nil && e.Thread != c.thread {
			t.Errorf("%q: %v, want %q in thread %q", c.changes, err, c.want, c.thread)
		}
	}
}

func TestParseTime(t *testing.T) {
	const day = "2026-02-02T"
	at := func(nanos int) time.Time { return noon.Add(time.Duration(nanos)) }
	for text, want := range map[string]time.Time{
		day + "12:00:00Z": noon, day + "12:00:00.5Z": at(500_000_000), day + "12:00:00.000Z": noon,
		day + "12:00:00.123456789Z": at(123_456_789), day + "20:00:00+08:00": noon, day + "06:30:00-05:30": noon,
		day + "12:00:00+00:00": noon, day + "12:00:00-00:00": noon, "2026-02-03T11:59:00+23:59": noon,
		"2024-02-29T00:00:00Z": time.Date(2024, 2, 29, 0, 0, 0, 0, time.UTC),
		"0001-01-01T00:00:00Z": {}, "9999-12-31T23:59:59Z": time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
	} {
		if got, ok := envelope.ParseTime(text); !ok || !got.Equal(want) {
			t.Errorf("ParseTime(%q) = %v, %v; want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"", "Z", "now", "1770033600", "2026-02-02", day, day + "12:00Z", day + "12:00:00", day + "12Z", // missing
		day + "12:00:00Z ", " " + day + "12:00:00Z", day + "12:00:00Z\n", day + "12:00:00ZZ", day + "12:00:00Z+00:00", // too much
		"2026-02-02t12:00:00Z", day + "12:00:00z", "2026-02-02 12:00:00Z", "2026-02-02_12:00:00Z", // letters
		day + "12:00:00,5Z", day + "12:00:00.Z", day + "12:00:00.1234567890Z", day + "12:00:00.-5Z", day + "12:00.5Z", // fractions
		day + "1:00:00Z", "2026-2-02T12:00:00Z", "26-02-02T12:00:00Z", "12026-02-02T12:00:00Z", "+2026-02-02T12:00:00Z", // widths
		day + "24:00:00Z", day + "25:00:00Z", day + "12:60:00Z", day + "23:59:60Z", day + "12:00:61Z", // times
		"2026-00-02T12:00:00Z", "2026-13-02T12:00:00Z", "2026-02-00T12:00:00Z", "2026-02-29T12:00:00Z", "2026-04-31T12:00:00Z", // dates
		day + "12:00:00+24:00", day + "12:00:00+00:60", day + "12:00:00+8:00", day + "12:00:00+08", day + "12:00:00+0800", // offsets
		day + "12:00:00+99:00", day + "12:00:00 08:00", day + "12:00:00−08:00", day + "12:00:00+08:00Z", day + "12:00:00+0a:00",
		"２０２６-02-02T12:00:00Z",
	} {
		if got, ok := envelope.ParseTime(text); ok {
			t.Errorf("ParseTime(%q) = %v; want a refusal", text, got)
		}
		if _, err := envelope.Parse([]byte(body(t, "ts", `"`+strings.ReplaceAll(text, "\n", `\n`)+`"`)), 0); codeOf(t, err) != rejected {
			t.Errorf("an envelope with ts %q: %v", text, err)
		}
	}
	for _, value := range []string{"", "null", "1770033600", `["2026-02-02T12:00:00Z"]`} {
		if _, err := envelope.Parse([]byte(body(t, "ts", value)), 0); codeOf(t, err) != rejected {
			t.Errorf("ts = %s: %v", value, err)
		}
	}
}

// TestFoldedNames checks that names which equal a known name except for case are refused. A parser that ignores case,
// like encoding/json, would take them for the known members.
func TestFoldedNames(t *testing.T) {
	known := []string{"version", "id", "ts", "type", "sender", "recipient", "payload", "thread", "meta", "sig"}
	longS := 0
	for _, name := range known {
		variants := []string{strings.ToUpper(name), strings.ToUpper(name[:1]) + name[1:]}
		for i, r := range name { // all case variants of each letter, for instance U+017F for s
			for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
				variants = append(variants, name[:i]+string(other)+name[i+1:])
				if other == 'ſ' {
					longS++
				}
			}
		}
		for _, variant := range variants {
			for _, base := range []string{body(t, variant, "1"), body(t, name, "", variant, `"x"`)} {
				if _, err := envelope.Parse([]byte(base), 0); err == nil {
					t.Errorf("a member %q was accepted", variant)
				}
			}
			if _, err := envelope.Parse([]byte(body(t, variant, "1")), 0); codeOf(t, err) != rejected {
				t.Errorf("a member %q in addition to %q: %v", variant, name, err)
			}
		}
	}
	if longS == 0 {
		t.Error("U+017F was not tried")
	}
	if _, err := envelope.Parse([]byte(body(t, `\u017fig`, "1")), 0); codeOf(t, err) != rejected {
		t.Errorf("an escaped U+017F: %v", err)
	}
	// These are accepted: case folding does not change them to a known name, or they are in a nested object.
	for _, name := range []string{"\u212aey", "\u0131d", "s\u0131g", "sig ", "Sigs", "s", "ｓｉｇ"} {
		parse(t, body(t, name, "1"))
	}
	if e := parse(t, body(t, "meta", `{"ttl":7,"TTL":9,"Ttl":"x"}`)); e.TTL != 7*time.Second {
		t.Errorf("TTL = %v", e.TTL)
	}
}

func TestBodyForms(t *testing.T) {
	bare := body(t)
	for _, c := range []struct {
		name, text string
		want       envelope.Code
	}{
		{"bare", bare, ok},
		{"with white space", " \t\r\n" + bare + "\n", ok},
		{"wrapped", `{"envelope":` + bare + `}`, ok},
		{"wrapped, spaced, escaped", "{ \"\\u0065nvelope\" :\n" + bare + " }", ok},
		{"wrapped twice", `{"envelope":{"envelope":` + bare + `}}`, badVersion},
		{"wrapped with another member", `{"envelope":` + bare + `,"x":1}`, badVersion},
		{"wrapper name in another case", `{"Envelope":` + bare + `}`, badVersion},
		{"wrapper of null", `{"envelope":null}`, badVersion},
		{"wrapper of a string", `{"envelope":"x"}`, badVersion},
		{"empty object", `{}`, badVersion},
		{"empty", "", rejected},
		{"white space", " \n", rejected},
		{"a list", "[" + bare + "]", rejected},
		{"a string", `"{}"`, rejected},
		{"null", "null", rejected},
		{"byte order mark", "\ufeff" + bare, rejected},
		{"trailing data", bare + bare, rejected},
		{"trailing comma", bare[:len(bare)-1] + ",}", rejected},
		{"truncated", bare[:len(bare)-1], rejected},
		{"comment", bare + "//", rejected},
		{"UTF-16", "{\x00}\x00", rejected},
		{"noncharacter", body(t, "payload", "{\"request_id\":\"r\",\"x\":\"\uffff\\ufffe\"}"), ok},
	} {
		e, err := envelope.Parse([]byte(c.text), 0)
		if codeOf(t, err) != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err == nil && strings.Contains(c.name, "wrapped") && string(e.Canonical()) != string(parse(t, bare).Canonical()) {
			t.Errorf("%s: canonical form %s", c.name, e.Canonical())
		}
	}
}

// TestNotIJSON checks that duplicate members, and values that parsers interpret differently, are refused wherever they
// are.
func TestNotIJSON(t *testing.T) {
	for _, value := range []string{
		`{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `[[{"b":{"a":1,"a":null}}]]`, `{"":1,"":2}`,
		`"\ud800"`, `"\udc00"`, `"\ud800x"`, `"\udc00\ud800"`, `{"\ud800":1}`, `"\ud800\u0041"`,
		"\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "{\"\xfe\":1}",
		"1e400", "-1e400", "1" + strings.Repeat("0", 400), "NaN", "Infinity", "+1", "01", ".5", "1.", "0x10", "1_000", "--1",
		"'x'", "\"a\nb\"", "\"a\x00b\"", `"\x41"`, `"\u12"`, "[1,]", "[,1]", "{a:1}", "tru", "TRUE", "undefined", "[1 2]",
	} {
		for _, text := range []string{body(t, "extra", value), body(t, "payload", `{"request_id":"r","x":`+value+`}`)} {
			if _, err := envelope.Parse([]byte(text), 0); codeOf(t, err) != rejected {
				t.Errorf("%q: %v", value, err)
			}
		}
	}
	for _, name := range []string{"id", `\u0069d`, "sig", "sender", "type"} { // a second time
		text := body(t)
		if _, err := envelope.Parse([]byte(text[:len(text)-1]+`,"`+name+`":1}`), 0); codeOf(t, err) != rejected {
			t.Errorf("a second %s: %v", name, err)
		}
	}
}

func TestDepth(t *testing.T) {
	nested := func(levels int) string { // the payload of an envelope is at nesting level 2
		n := levels - 2
		return body(t, "payload", `{"request_id":"r","brackets":"]]]]{{[[\"[[\\","x":`+strings.Repeat("[", n)+strings.Repeat("]", n)+"}")
	}
	objects := body(t, "extra", strings.Repeat(`{"a":`, 64)+"1"+strings.Repeat("}", 64))
	for text, want := range map[string]envelope.Code{
		nested(64): ok, nested(65): rejected, objects: rejected, nested(5000): rejected,
		`{"envelope":` + nested(63) + `}`: ok, `{"envelope":` + nested(64) + `}`: rejected,
		strings.Repeat("[", 100_000): rejected, strings.Repeat(`{"":`, 30_000): rejected,
		"]]]]]" + strings.Repeat("[", 1000): rejected,
	} {
		if _, err := envelope.Parse([]byte(text), 0); codeOf(t, err) != want {
			t.Errorf("%.20s… of %d bytes: %v, want %q", text, len(text), err, want)
		}
	}
}

func TestSize(t *testing.T) {
	pad := func(n int) string { return strings.Repeat(" ", n-len(body(t))) + body(t) }
	fill := func(n int) string { // an envelope of n bytes; its canonical form has n bytes too
		base := body(t, "extra", `""`)
		return body(t, "extra", `"`+strings.Repeat("x", n-len(base))+`"`)
	}
	numbers := body(t, "extra", "[1e20"+strings.Repeat(",1e20", 499)+"]")
	for _, c := range []struct {
		name, text string
		max        int
		want       envelope.Code
	}{
		{"at the default", fill(128 << 10), 0, ok},
		{"one above the default", fill(128<<10 + 1), 0, tooLarge},
		{"white space counts", pad(128<<10 + 1), 0, tooLarge},
		{"white space up to the limit", pad(128 << 10), 0, ok},
		{"at another limit", fill(2000), 2000, ok},
		{"one above another limit", fill(2001), 2000, tooLarge},
		{"above the default, below another limit", fill(200_000), 200_000, ok},
		{"the size is checked first", strings.Repeat("[", 2001), 2000, tooLarge},
		{"numbers that grow", numbers, len(numbers), tooLarge},
		{"numbers that grow and still fit", numbers, len(numbers) + 500*17, ok},
	} {
		_, err := envelope.Parse([]byte(c.text), c.max)
		if codeOf(t, err) != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	_, err := envelope.Parse([]byte(fill(2001)), 2000)
	if refusal, is := err.(*envelope.Error); !is || refusal.Details["maxBytes"] != 2000 {
		t.Errorf("the details do not contain the limit: %v", err)
	}
}
