package hub_test

import (
	"testing"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/gatetest"
	"github.com/agora-relay/agora/gateway/hub"
)

// TestStatements checks the statements of the hub, including those that no test runs.
func TestStatements(t *testing.T) { gatetest.Statements(t, gateway.Extension, hub.Extension) }
