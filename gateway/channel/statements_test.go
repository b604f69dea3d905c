package channel_test

import (
	"testing"

	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/gateway/channel"
	"github.com/agora-relay/agora/gateway/gatetest"
)

// TestStatements checks the statements of the gateway, including those that no test runs.
func TestStatements(t *testing.T) { gatetest.Statements(t, gateway.Extension, channel.Extension) }
