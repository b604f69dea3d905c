// Package safetext makes text from others safe to show: a relay, an agent, a database or a file name may contain
// characters that control a terminal, are invisible, or reverse the direction of writing.
package safetext

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Unsafe reports whether r may control a terminal or be invisible: control characters (C0, DEL, C1), format characters
// (bidi controls, zero-width characters, the soft hyphen), line and paragraph separators, and the block of tags and
// variation selectors (U+E0000 to U+E0FFF).
func Unsafe(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) || r >= 0xE0000 && r <= 0xE0FFF
}

// Escape replaces each unsafe character that is not in keep by \uXXXX, in UTF-16 as JSON does. JSON has such characters
// only within strings, so the value of escaped JSON stays the same. Bytes that are not UTF-8 become U+FFFD.
func Escape(text []byte, keep string) []byte {
	unsafe := func(r rune) bool { return r == utf8.RuneError || Unsafe(r) && !strings.ContainsRune(keep, r) }
	if bytes.IndexFunc(text, unsafe) < 0 {
		return text
	}
	out := make([]byte, 0, len(text)+len(text)/4)
	for _, r := range string(text) {
		if r == utf8.RuneError || !unsafe(r) {
			out = utf8.AppendRune(out, r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			out = fmt.Appendf(out, `\u%04x`, unit)
		}
	}
	return out
}
