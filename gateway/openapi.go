package gateway

import (
	_ "embed"

	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

//go:embed openapi.json
var openAPI []byte

// API is what the parts of all gateways in /openapi.json share. It goes before them.
var API = apidocs.Part{Text: openAPI}
