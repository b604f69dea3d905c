package hub_test

import "testing"

// TestRoutesAreDocumented checks that the OpenAPI document has the routes of the gateway with their methods.
func TestRoutesAreDocumented(t *testing.T) { start(t).CheckRoutes() }
