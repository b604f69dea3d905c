package kit

import (
	"bytes"
	"fmt"
	"strings"
)

// How gateways must read bodies, and which URLs they must refuse. The kits of all gateways use these values.

// PadBody returns the text of a body with spaces at its end, so that it has size bytes.
func PadBody(body Message, size int) []byte {
	text := Canonical(body)
	return append(text, strings.Repeat(" ", size-len(text))...)
}

// DeepBody returns the text of a body with this many levels of nesting. The object itself is a level.
func DeepBody(body Message, levels int) []byte {
	return SpliceMember(body, `"x":`+strings.Repeat("[", levels-1)+strings.Repeat("]", levels-1))
}

// SpliceMember returns the text of a body with one more member, which is written as it is.
func SpliceMember(body Message, member string) []byte {
	text := Canonical(body)
	return append(append(bytes.Clone(text[:len(text)-1]), ","+member...), '}')
}

// NotOneObject returns variants of the text of a good body that are not one JSON object.
func NotOneObject(good string) []string {
	return []string{"", " ", "null", "[]", "[" + good + "]", `"text"`, "1", good[:len(good)-1], good + "}",
		good + " x", good + good, "\ufeff" + good, `{"a":1,}` + good, strings.ReplaceAll(good, `"`, `'`), good + "\x00",
		strings.Replace(good, "{", "{/**/", 1), strings.Replace(good, "{", `{"n":01,`, 1),
		strings.Replace(good, "{", `{"n":NaN,`, 1)}
}

// HugeNumbers returns variants of the text of a good body that have a number that no finite double holds.
func HugeNumbers(good string) []string {
	return []string{strings.Replace(good, "{", `{"x":1e999,`, 1), strings.Replace(good, "{", `{"x":-1e400,`, 1)}
}

// DoubledMembers returns variants of the text of a good body in which a member is there twice. known is one of its
// members.
func DoubledMembers(good, known string) []string {
	return []string{
		strings.Replace(good, "{", `{"x":1,"x":1,`, 1), strings.Replace(good, "{", `{"x":{"y":1,"y":2},`, 1),
		strings.Replace(good, "{", fmt.Sprintf(`{%q:"other",`, known), 1),
		strings.Replace(good, "{", fmt.Sprintf(`{"\u%04x%s":"other",`, known[0], known[1:]), 1),
	}
}

// BadTexts returns variants of the text of a good body, which contains the word hello, with a bad text in it: one that is
// not I-JSON, or one with U+0000.
func BadTexts(good string) (bad []string) {
	for _, text := range []string{`\ud800`, `\udc00\ud800`, "\xff", "\xed\xa0\x80", "\xc0\xaf", "a\nb", `\x41`,
		`a\u0000b`} {
		bad = append(bad, strings.Replace(good, "hello", text, 1))
	}
	return append(bad, strings.Replace(good, "{", `{"\udfff":1,`, 1))
}

// BlockedURLs returns URLs that a gateway must not call.
func BlockedURLs() []string {
	return []string{
		"https://10.1.2.3/", "https://172.16.0.1/x", "https://192.168.1.1:8443/", "https://169.254.169.254/latest",
		"https://100.64.0.1/", "https://198.18.0.1/", "https://224.0.0.1/", "https://0.0.0.0/", "https://[fe80::1]/",
		"https://[fc00::1]/", "https://[2001:db8::1]/", "https://[::ffff:10.0.0.1]/", "https://[64:ff9b::a00:1]/",
		"https://printer/", "https://db.internal/", "https://printer.local/", "https://service.localhost/",
		"https://agent.example:25/", "https://agent.example:22/", "http://agent.example/inbox",
	}
}

// NotURLs returns values of other types, and texts that are no URLs by the rules of gateways.
func NotURLs() []any {
	return []any{"ftp://agent.example/", "//agent.example/", "/inbox", "https://", "https://user:word@agent.example/",
		"https://agent.example/#part", LongURL(2049), "https://agent.example/ x", "https://167837955/", 1, true,
		[]any{ExampleURL}}
}

// ExampleURL is a URL that a gateway may call, but which does not answer.
const ExampleURL = "https://agent.example/inbox/sk_a1b2c3"

// LongURL returns a URL of size bytes that a gateway may call.
func LongURL(size int) string {
	const start = "https://agent.example:8443/"
	return start + strings.Repeat("a", size-len(start))
}
