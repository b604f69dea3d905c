package relay

import (
	"testing"

	"github.com/agora-relay/agora/envelope"
)

// TestRefusedTexts checks that no statement of an extension takes a text that an engine cannot store (G-35).
func TestRefusedTexts(t *testing.T) {
	r := checkedQuerier{}
	for text, ok := range map[string]bool{"": true, "ä\x01": true, "a\x00": false, "\xff": false} {
		err := checkTexts([]any{int64(1), []byte{0}, text})
		if (err == nil) != ok || err != nil && envelope.CodeOf(err) != envelope.CodeInvalidRequest {
			t.Errorf("%q: %v", text, err)
		}
		if ok {
			continue // there is no store behind the statements below
		}
		_, failed := ExtTx{}.Exec("", text)
		if failed == nil || (ExtTx{}).Query(nil, "", text) == nil || r.Query(nil, "", text) == nil {
			t.Errorf("%q reaches the store", text)
		}
	}
}
