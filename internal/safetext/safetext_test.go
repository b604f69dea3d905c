package safetext

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestEscapeKeepsJSON checks that escaped JSON has the same value as before, and that it contains no unsafe characters.
func TestEscapeKeepsJSON(t *testing.T) {
	const together = 256 // runes that are tested in one string
	for first := rune(0); first <= utf8.MaxRune; first += together {
		var all strings.Builder
		for r := first; r < first+together; r++ {
			if utf8.ValidRune(r) {
				all.WriteString("\\" + string(r) + "\"" + string(r))
			}
		}
		text, err := json.Marshal(all.String())
		if err != nil {
			t.Fatal(err)
		}
		escaped := Escape(text, "")
		var got string
		if err := json.Unmarshal(escaped, &got); err != nil || got != all.String() {
			t.Fatalf("a string with the runes from %U on becomes %q: %v", first, escaped, err)
		}
		if i := bytes.IndexFunc(escaped, Unsafe); i >= 0 {
			t.Fatalf("a rune is not escaped: %q", escaped[i:i+utf8.UTFMax])
		}
	}
	if got := string(Escape([]byte("a\xff\x9b\nb\tc"), "\t")); got != "a\uFFFD\uFFFD\\u000ab\tc" {
		t.Errorf("got %q", got)
	}
}
