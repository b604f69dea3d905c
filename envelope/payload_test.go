package envelope_test

import (
	"testing"

	"github.com/agora-relay/agora/envelope"
)

func TestIsGatewayIntent(t *testing.T) {
	for intent, want := range map[string]bool{"chorus.hub.message": true, "a2a.message": true, "chorus": false, "x.a2a.": false, "": false} {
		if got := envelope.IsGatewayIntent(intent); got != want {
			t.Errorf("%q: %v", intent, got)
		}
	}
}
