// Package apidocs writes the two documents with which a relay describes its API: an OpenAPI document for programs, and a
// guide for language models.
//
// The relay's own routes are described in core.json. Each gateway describes its routes in its own file, see Part.
// Nothing is written twice: the schemas of envelopes come from testvectors/schema.
package apidocs

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agora-relay/agora/testvectors/schema"
)

// Part describes some of the routes of a relay, such as those of a gateway.
type Part struct {
	// Text is a JSON object with the members tags, paths and components of an OpenAPI 3.1 document. No other part has
	// the same names.
	//
	// The member x-refusals lists the refusals that are possible at all paths with the same beginning. Its keys are
	// these beginnings. Each value is an object of responses by status. Each operation gets these responses too, but
	// not 405, because its path takes its method. An operation whose path has no parameters does not get 404 either.
	Text []byte
	// Schemas are JSON Schemas for components/schemas, by name. They are there besides those in Text.
	Schemas map[string][]byte
}

//go:embed core.json
var coreText []byte

// core returns the part with the relay's own routes.
func core() (Part, error) {
	schemas, err := envelopeSchemas()
	return Part{Text: coreText, Schemas: schemas}, err
}

// envelopeSchemas returns the schemas of an envelope and of its payloads. They refer to each other by the names of their
// files there, and by the names of the schemas here.
func envelopeSchemas() (map[string][]byte, error) {
	found, err := schema.Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	files := map[string]string{}
	for _, f := range found {
		switch kind := strings.TrimSuffix(f.Name(), ".json"); {
		case kind == "envelope":
			files[f.Name()] = "Envelope"
		case !strings.HasPrefix(kind, "vectors-"):
			files[f.Name()] = strings.ToUpper(kind[:1]) + kind[1:] + "Payload"
		}
	}
	const here = "#/components/schemas/"
	replace := []string{`"$ref": "#/`, `"$ref": "` + here + `Envelope/`}
	for file, name := range files {
		replace = append(replace,
			`"$ref": "`+file+`#/`, `"$ref": "`+here+name+`/`,
			`"$ref": "`+file+`"`, `"$ref": "`+here+name+`"`)
	}
	rename := strings.NewReplacer(replace...)
	schemas := map[string][]byte{}
	for file, name := range files {
		text, err := schema.Files.ReadFile(file)
		if err != nil {
			return nil, err
		}
		schemas[name] = []byte(rename.Replace(string(text)))
	}
	return schemas, nil
}

// Relay is what the documents say about one relay.
type Relay struct {
	URL     string // its public origin
	Build   string // the version of the program
	Private bool   // directed messages are only for their parties
	MaxBody int    // bytes of a post
	Parts   []Part // what the gateways that are on add
}

// OpenAPI returns the OpenAPI document of a relay (https://spec.openapis.org/oas/v3.1.1.html). Paths are in the order in
// which the parts have them.
func OpenAPI(r Relay) ([]byte, error) {
	first, err := core()
	if err != nil {
		return nil, err
	}
	var document object
	for _, p := range append([]Part{first}, r.Parts...) {
		var part object
		if err := json.Unmarshal(p.Text, &part); err != nil {
			return nil, fmt.Errorf("a part of the OpenAPI document: %w", err)
		}
		if err := part.addSchemas(p.Schemas); err != nil {
			return nil, err
		}
		if err := part.addRefusals(); err != nil {
			return nil, err
		}
		if document, err = document.merge(part); err != nil {
			return nil, err
		}
	}
	if err := document.edit(setExample, "components", "examples", "Envelope"); err != nil {
		return nil, err
	}
	servers, err := json.Marshal([]map[string]string{{"url": r.URL, "description": "This relay, build " + r.Build}})
	if err != nil {
		return nil, err
	}
	document.set("servers", servers)
	return json.Marshal(document)
}

// setExample adds the signed envelope to the object of an example.
func setExample(o *object) error {
	o.set("value", exampleEnvelope())
	return nil
}

// addSchemas adds schemas to the components of a part.
func (o *object) addSchemas(schemas map[string][]byte) error {
	if len(schemas) == 0 {
		return nil
	}
	return o.edit(func(known *object) error {
		for _, name := range sortedKeys(schemas) {
			var s object
			if err := json.Unmarshal(schemas[name], &s); err != nil {
				return fmt.Errorf("the schema %s: %w", name, err)
			}
			s.remove("$schema") // the dialect of OpenAPI 3.1 is the same
			s.remove("$id")     // references are to the place of the schema in this document
			text, err := json.Marshal(s)
			if err != nil {
				return err
			}
			known.set(name, text)
		}
		return nil
	}, "components", "schemas")
}

// addRefusals adds the refusals of x-refusals to the operations of a part.
func (o *object) addRefusals() error {
	var refusals map[string]object
	if text, ok := o.get("x-refusals"); ok {
		if err := json.Unmarshal(text, &refusals); err != nil {
			return err
		}
	}
	return o.edit(func(paths *object) error {
		for _, path := range paths.names() {
			some := refusals[baseOf(path, refusals)]
			err := paths.edit(func(item *object) error { return item.addToOperations(some, strings.Contains(path, "{")) }, path)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		return nil
	}, "paths")
}

// addToOperations adds refusals to the operations of a path. mayLack means that there may be nothing at the path.
func (o *object) addToOperations(refusals object, mayLack bool) error {
	for _, method := range o.names() {
		if method == "parameters" {
			continue
		}
		err := o.edit(func(responses *object) error {
			for _, r := range refusals {
				if _, known := responses.get(r.name); !known && r.name != "405" && (r.name != "404" || mayLack) {
					*responses = append(*responses, r)
				}
			}
			return nil
		}, method, "responses")
		if err != nil {
			return err
		}
	}
	return nil
}

// baseOf returns the longest of the bases that the path begins with. A base ends where a segment of the path ends.
func baseOf[V any](path string, bases map[string]V) string {
	best := "/"
	for base := range bases {
		if len(base) > len(best) && (path == base || strings.HasPrefix(path, base+"/")) {
			best = base
		}
	}
	return best
}
