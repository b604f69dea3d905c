package similar

import (
	"slices"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"text.upper", "translation.en_zh", "text.translate", "echo", "translation.en_de"}
	for word, want := range map[string][]string{
		"translation.en_dd": {"translation.en_de", "translation.en_zh"},
		"Translate":         {"text.translate", "text.upper"},
		"ehco":              {"echo", "text.upper"},
		"":                  {"echo", "text.upper"},
	} {
		if got := Nearest(word, known, 2); !slices.Equal(got, want) {
			t.Errorf("nearest to %q: %q, want %q", word, got, want)
		}
	}
	if got := Nearest("x", nil, 2); len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "abc", 3}, {"echo", "ehco", 1}, {"kitten", "sitting", 3}, {"same", "same", 0}} {
		if got := Distance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
