package a2a

import (
	_ "embed"

	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

//go:embed openapi.json
var openAPI []byte

// API describes the routes of the gateway for /openapi.json.
var API = apidocs.Part{Text: openAPI}
