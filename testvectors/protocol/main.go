// Command protocol writes the tables of the protocol to testvectors/protocol.json, and fills all files that repeat them:
// the documents, the schemas and the packages in other languages. Run it with go generate ./testvectors.
//
// The tables themselves are in the packages envelope, thread and relay.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/thread"
)

func main() {
	log.SetFlags(0)
	root := flag.String("root", "..", "root folder of the project")
	flag.Parse()
	files, err := generate(*root)
	for name, text := range files {
		if err == nil {
			err = os.WriteFile(filepath.Join(*root, name), text, 0o644)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

// tables is the content of protocol.json.
type tables struct {
	Description string                   `json:"description"`
	Version     string                   `json:"version"`
	Types       []envelope.TypeInfo      `json:"types"`
	States      []envelope.State         `json:"states"`
	StepTypes   []envelope.Type          `json:"stepTypes"` // of transitions, also those that no message causes
	Codes       []envelope.CodeInfo      `json:"codes"`
	AgentCodes  []envelope.AgentCodeInfo `json:"agentCodes"`
	Limits      []admission.LimitInfo    `json:"limits"`
	Filters     []relay.FilterInfo       `json:"filters"`
	DefaultTTL  float64                  `json:"defaultTtl"` // seconds, of a message without meta.ttl
	DraftTTL    float64                  `json:"draftTtl"`   // seconds, that clients sign by default
}

func protocol() tables {
	t := tables{
		Description: "The tables of the protocol. The command testvectors/protocol writes this file.",
		Version:     envelope.Version, Types: envelope.TypeTable(), States: thread.States(),
		Codes: envelope.Codes(), AgentCodes: envelope.AgentCodes(), Limits: relay.LimitTable(), Filters: relay.FilterTable(),
		DefaultTTL: envelope.DefaultTTL.Seconds(), DraftTTL: envelope.DraftTTL.Seconds(),
	}
	for _, kind := range threadTypes(t) {
		t.StepTypes = append(t.StepTypes, envelope.Type(kind))
	}
	t.StepTypes = append(t.StepTypes, thread.TypeTimeout, thread.TypeRemoved)
	return t
}

// threadTypes returns the types of the messages that belong to threads.
func threadTypes(t tables) (types []string) {
	for _, row := range t.Types {
		if row.Before != nil {
			types = append(types, string(row.Type))
		}
	}
	return types
}

// part is a text between two markers of a file or within a line, or the values of an enum of a JSON schema, or its allOf.
type part struct {
	file, name string
	text       string   // for a text
	after      string   // for a text within a line: it stands between the texts name and after
	values     []string // for an enum
	allOf      []string // for an allOf: its elements
}

// parts returns everything that is filled from t.
func parts(t tables) []part {
	types, states := texts(t.Types, func(r envelope.TypeInfo) string { return string(r.Type) }), stringsOf(t.States)
	codes := texts(t.Codes, func(r envelope.CodeInfo) string { return string(r.Code) })
	var posted []string
	for _, row := range t.Codes {
		if row.OfMessage {
			posted = append(posted, string(row.Code))
		}
	}
	const openAPI, schemas = "relay/httpapi/apidocs/core.json", "testvectors/schema/"
	all := []part{
		{file: openAPI, name: "types", values: types},
		{file: openAPI, name: "states", values: states},
		{file: openAPI, name: "step types", values: stringsOf(t.StepTypes)},
		{file: openAPI, name: "codes", values: codes},
		{file: openAPI, name: "limits", values: texts(t.Limits, func(l admission.LimitInfo) string { return l.Name })},
		{file: schemas + "envelope.json", name: "types", values: types},
		{file: schemas + "vectors-threads.json", name: "thread types", values: threadTypes(t)},
		{file: schemas + "envelope.json", name: "payloads", allOf: texts(types, payloadSchema)},
		{file: "docs/PROTOCOL.md", name: "types", text: typesMarkdown(t)},
		{file: "docs/PROTOCOL.md", name: "codes", text: codesMarkdown(t)},
		{file: "docs/PROTOCOL.md", name: "filters", text: filtersMarkdown(t)},
		{file: "docs/PROTOCOL.md", name: "limits", text: limitsMarkdown(t)},
		{file: "sdk/js/agora.js", name: "protocol", text: javaScript(t)},
		{file: "sdk/js/agora.d.ts", name: "types", text: "export type MessageType = '" + strings.Join(types, "' | '") + "';\n"},
		{file: "sdk/python/src/agora_relay/protocol.py", name: "protocol", text: python(t)},
	}
	// What stands in sentences and examples.
	standard, draft := fmt.Sprint(t.DefaultTTL), fmt.Sprint(t.DraftTTL)
	inThreads := "`" + strings.Join(threadTypes(t), "` `") + "`"
	all = append(all,
		part{file: "docs/PROTOCOL.md", name: "| `type` | ", text: inThreads, after: ", or `MANIFEST`"},
		part{file: "docs/PROTOCOL.md", name: "is whole), default ", text: standard, after: ";"},
		part{file: "docs/PROTOCOL.md", name: `"defaultTtl":`, text: standard, after: ","},
		part{file: openAPI, name: "1800,\n                    \"defaultTtl\": ", text: standard, after: ","},
		part{file: "docs/HTTP.md", name: "seconds, or for ", text: standard, after: " without it"},
		part{file: "docs/HTTP.md", name: "the Go client set ", text: draft, after: "."},
		part{file: "sdk/js/agora.d.ts", name: "keeps the message, in seconds; ", text: draft, after: " by default"},
		part{file: "sdk/js/client.d.ts", name: "keeps the REQUEST, in seconds; ", text: draft, after: " by default"})
	for _, name := range []string{"vectors-verify.json", "vectors-threads.json", "vectors-conversations.json"} {
		all = append(all, part{file: schemas + name, name: "codes", values: posted})
	}
	return all
}

// generate returns the new text of every file that the command writes, by its path below root.
func generate(root string) (map[string][]byte, error) {
	t := protocol()
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(t); err != nil {
		return nil, err
	}
	files := map[string][]byte{"testvectors/protocol.json": text.Bytes()}
	for _, p := range parts(t) {
		old := files[p.file]
		if old == nil {
			var err error
			if old, err = os.ReadFile(filepath.Join(root, p.file)); err != nil {
				return nil, err
			}
		}
		filled, err := p.fill(old)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.file, err)
		}
		files[p.file] = filled
	}
	return files, nil
}

// payloadSchema returns the element of the allOf in envelope.json for the payload of one type.
func payloadSchema(kind string) string {
	return fmt.Sprintf(`{
      "if": {"properties": {"type": {"const": "%s"}}, "required": ["type"]},
      "then": {"properties": {"payload": {"$ref": "%s.json"}}}
    }`, kind, strings.ToLower(kind))
}

// fill replaces p in the text of its file. A text stands between the lines with the markers "<protocol: NAME>" and
// "</protocol>". An enum or an allOf follows a member "$comment" with the value "protocol.json: NAME"; there may be several
// enums. The lines of an allOf begin with two spaces. A text within a line stands between the texts name and after.
func (p part) fill(old []byte) ([]byte, error) {
	if p.allOf != nil {
		return p.replaceOnly(old, `("\$comment": "protocol\.json: `+p.name+`",\n  "allOf": \[\n).*?(\n  \])`,
			"    "+strings.Join(p.allOf, ",\n    "))
	}
	if p.after != "" {
		return p.replaceOnly(old, `(`+regexp.QuoteMeta(p.name)+`)[^\n]*?(`+regexp.QuoteMeta(p.after)+`)`, p.text)
	}
	if p.values == nil {
		return p.replaceOnly(old, `([^\n]*<protocol: `+p.name+`>[^\n]*\n).*?([^\n]*</protocol>)`, p.text)
	}
	pattern := regexp.MustCompile(`("\$comment": "protocol\.json: ` + p.name + `",\s*"enum": \[)(\s*)[^\]]*?(\s*)\]`)
	if !pattern.Match(old) {
		return nil, fmt.Errorf(`no "enum" follows "$comment": "protocol.json: %s"`, p.name)
	}
	return pattern.ReplaceAllFunc(old, func(found []byte) []byte {
		m := pattern.FindSubmatch(found)
		separator := `", "`
		if len(m[2]) > 0 {
			separator = `",` + string(m[2]) + `"` // one value in a line
		}
		return bytes.Join([][]byte{m[1], m[2], []byte(`"` + strings.Join(p.values, separator) + `"`), m[3], []byte("]")}, nil)
	}), nil
}

// replaceOnly puts a text between the two groups of the only match of a pattern.
func (p part) replaceOnly(old []byte, pattern, text string) ([]byte, error) {
	matches := regexp.MustCompile("(?s)"+pattern).FindAllSubmatchIndex(old, -1)
	if len(matches) != 1 {
		return nil, fmt.Errorf("there must be one place for protocol: %s, not %d", p.name, len(matches))
	}
	start, end := matches[0][3], matches[0][4]
	return slices.Concat(old[:start], []byte(text), old[end:]), nil
}

// texts returns the text of each row.
func texts[T any](rows []T, text func(T) string) (all []string) {
	for _, row := range rows {
		all = append(all, text(row))
	}
	return all
}

func stringsOf[T ~string](values []T) []string {
	return texts(values, func(v T) string { return string(v) })
}
