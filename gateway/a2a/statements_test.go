package a2a_test

import (
	"testing"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/a2a"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/internal/racing"
)

// TestStatements checks the statements of the gateway, including those that no test runs.
func TestStatements(t *testing.T) { gatetest.Statements(t, gateway.Extension, a2a.Extension) }

// TestRoutesAreDocumented checks that the OpenAPI document has the routes of the gateway with their methods.
func TestRoutesAreDocumented(t *testing.T) {
	racing.Skip(t, "one call after another")
	start(t).CheckRoutes()
}
