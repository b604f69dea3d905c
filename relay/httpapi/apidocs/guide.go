package apidocs

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"strings"
	"text/template"
)

//go:embed guide.md
var guideText string

var guide = template.Must(template.New("guide").Parse(guideText))

//go:embed example.json
var exampleText string

// exampleEnvelope returns a signed envelope in its canonical form. Both documents show it. Its key has the seed of 32
// bytes 01.
func exampleEnvelope() []byte { return []byte(strings.TrimSpace(exampleText)) }

// gateway is a tag of a Part, as the guide shows it.
type gateway struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	Path        string `json:"-"` // the beginning of its paths; empty: the gateway before it has the same
}

// Guide returns the guide to a relay for language models, in Markdown (https://llmstxt.org).
func Guide(r Relay) ([]byte, error) {
	var unsigned object
	if err := json.Unmarshal(exampleEnvelope(), &unsigned); err != nil {
		return nil, err
	}
	unsigned.remove("sig")
	bare, err := json.Marshal(unsigned)
	if err != nil {
		return nil, err
	}
	gateways, err := gatewaysOf(r.Parts)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = guide.Execute(&text, struct {
		Relay
		Unsigned, Signed string
		Gateways         []gateway
	}{r, string(bare), string(exampleEnvelope()), gateways})
	return text.Bytes(), err
}

// gatewaysOf returns the tags of the parts, and where their routes are.
func gatewaysOf(parts []Part) (all []gateway, err error) {
	for _, p := range parts {
		var part struct {
			Tags  []gateway `json:"tags"`
			Paths object    `json:"paths"`
		}
		if err := json.Unmarshal(p.Text, &part); err != nil {
			return nil, err
		}
		for i, g := range part.Tags {
			if names := part.Paths.names(); i == 0 && len(names) > 0 {
				first, _, _ := strings.Cut(strings.TrimPrefix(names[0], "/"), "/")
				g.Path = "/" + first
			}
			all = append(all, g)
		}
	}
	return all, nil
}
