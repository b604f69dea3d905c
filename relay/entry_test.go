package relay_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

var cursorForm = regexp.MustCompile(`^(0|[0-9a-f]{8}-(0|[1-9][0-9]{0,18}))$`)

// FuzzCursor checks that ParseCursor accepts only the text that String returns for a cursor. So a position has only one
// text. Every refusal has the right code.
func FuzzCursor(f *testing.F) {
	for _, text := range []string{"0", "00000001-0", "deadbeef-42", "ffffffff-9223372036854775807", "DEADBEEF-1", "1-1",
		"00000000-0", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := relay.ParseCursor(text)
		if err != nil {
			if e, ok := err.(*envelope.Error); !ok || e.Code != envelope.CodeInvalidRequest || c != (relay.Cursor{}) {
				t.Errorf("%q: %v, %v", text, c, err)
			}
			return
		}
		if c.String() != text || c.Seq < 0 || !cursorForm.MatchString(text) {
			t.Errorf("%q was parsed as %s", text, c)
		}
	})
}

// TestSignatureIsVerified changes a word in a signed message that is correct otherwise. The message must be refused and
// not stored.
func TestSignatureIsVerified(t *testing.T) {
	r := start(t, relay.Config{})
	e := sign(t, key(t), envelope.Draft{Payload: request})
	changed := strings.Replace(string(e.Canonical()), `"intent":"echo"`, `"intent":"steal"`, 1)
	_, err := r.Post(t.Context(), local, []byte(changed))
	wantCode(t, err, envelope.CodeInvalidSignature)
	if page := poll(t, r, relay.Poll{Limit: 1}); page.Cursor.Seq != 0 {
		t.Error("the changed message was stored")
	}
	post(t, r, e)
}
