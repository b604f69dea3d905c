// Package schema has the JSON Schemas of envelopes, of their payloads, and of the test vectors.
package schema

import "embed"

// Files has the schemas by the names of their files, such as envelope.json. They refer to each other by these names.
//
//go:embed *.json
var Files embed.FS
