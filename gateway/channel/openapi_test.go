package channel_test

import (
	"testing"

	"github.com/agora-relay/agora/internal/racing"
)

// TestRoutesAreDocumented checks that the OpenAPI document has the routes of the gateway with their methods.
func TestRoutesAreDocumented(t *testing.T) {
	racing.Skip(t, "one call after another")
	start(t).CheckRoutes()
}
