package envelope_test

import (
	"strings"
	"testing"

	"github.com/agora-relay/agora/envelope"
)

// TestTooLargeNamesSizes checks that the refusal of a large body says how large it is, and how large it may be.
func TestTooLargeNamesSizes(t *testing.T) {
	_, err := envelope.Parse([]byte(`{"a":"`+strings.Repeat("x", 1000)+`"}`), 1000)
	if err == nil || !strings.Contains(err.Error(), "may have 1000 bytes, and has 1008 bytes;") {
		t.Errorf("%v", err)
	}
	// This body is shorter than its canonical form.
	body := `{"a":[` + strings.TrimSuffix(strings.Repeat("1e20,", 150), ",") + `]}`
	if _, err := envelope.Parse([]byte(body), 1000); err == nil || !strings.Contains(err.Error(), "may have 1000 bytes, and has 3") {
		t.Errorf("%d bytes: %v", len(body), err)
	}
	if err := envelope.TooLarge(0, 1000); !strings.Contains(err.Error(), "may have 1000 bytes, and has more;") {
		t.Errorf("%v", err)
	}
}
