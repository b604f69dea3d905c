package schema

import (
	"testing"
)

// TestNumbered checks that question marks become numbers, but not those in quotes.
func TestNumbered(t *testing.T) {
	for text, want := range map[string]string{
		"SELECT 1": "SELECT 1", "a = ? AND b = ?": "a = $1 AND b = $2",
		`a = '?' AND b = ? AND c = "?"`: `a = '?' AND b = $1 AND c = "?"`,
		`d = 'it''s ?' AND e = ?`:       `d = 'it''s ?' AND e = $1`,
	} {
		if got := Numbered(text); got != want {
			t.Errorf("%s: %s", text, got)
		}
	}
}
