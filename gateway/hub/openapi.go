package hub

import (
	"bytes"
	_ "embed"

	"github.com/agora-relay/agora/gateway/hub/skill"
	"github.com/agora-relay/agora/relay/httpapi/apidocs"
)

//go:embed openapi.json
var openAPI []byte

// API describes the routes of the hub for /openapi.json.
var API = apidocs.Part{Text: openAPI, Schemas: map[string][]byte{"HubEnvelope": envelopeSchema()}}

// envelopeSchema returns the schema of an envelope that allows all that the hub accepts. The hub counts UTF-16 code
// units, and a schema counts characters: 5 of them can have 10 units.
func envelopeSchema() []byte {
	return bytes.Replace(skill.EnvelopeSchema(), []byte(`"minLength": 10`), []byte(`"minLength": 5`), 1)
}
