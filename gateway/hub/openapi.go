package hub

import (
	_ "embed"

	"github.com/agora-relay/agora/gateway/hub/skill"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

//go:embed openapi.json
var openAPI []byte

// API describes the routes of the hub for /openapi.json.
var API = apidocs.Part{Text: openAPI, Schemas: map[string][]byte{"HubEnvelope": skill.EnvelopeSchema()}}
