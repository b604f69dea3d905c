package conformance_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/agora-relay/agora/envelope"
)

// How doubles read the bodies of requests.

// doubleFaults are the faults of a double.
type doubleFaults []string

func (f doubleFaults) has(fault string) bool { return slices.Contains(f, fault) }

// read reads the body of a request. bad is the status of a refusal.
func (f doubleFaults) read(c *doubleCall, bad int) {
	if c.Header.Get("Content-Encoding") != "" && !f.has("ignores Content-Encoding") {
		refuse(http.StatusUnsupportedMediaType)
	}
	if f.has("requires a Content-Type") && c.Header.Get("Content-Type") != "application/json" {
		refuse(http.StatusUnsupportedMediaType)
	}
	text, err := io.ReadAll(c.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if len(text) > 65536 {
		refuse(http.StatusRequestEntityTooLarge)
	}
	if f.has("takes 32 levels") && bytes.Contains(text, []byte(strings.Repeat("[", 32))) {
		refuse(bad)
	}
	if f.has("takes huge numbers") {
		text = bytes.ReplaceAll(bytes.ReplaceAll(text, []byte("1e999"), []byte("1")), []byte("-1e400"), []byte("1"))
	}
	if f.has("reads one JSON value and ignores the rest") {
		var value json.RawMessage
		if json.NewDecoder(bytes.NewReader(text)).Decode(&value) == nil {
			text = value
		}
	}
	form, err := envelope.ParseObject(text, 65536)
	if f.has("takes U+0000") {
		form, err = envelope.Canonicalize(text)
	}
	if f.has("parses leniently") {
		var value object
		if err = json.Unmarshal(text, &value); err == nil {
			form = encode(value)
		}
	}
	if err != nil || json.Unmarshal(form, &c.body) != nil || c.body == nil || depthOf(form) > 64 {
		refuse(bad)
	}
	if f.has("refuses unknown members") && c.body["x"] != nil {
		refuse(bad)
	}
	c.text, c.form = text, string(form)
}

// read reads the body of a request.
func (d *channelDouble) read(c *doubleCall) { d.doubleFaults.read(c, http.StatusBadRequest) }

// depthOf returns how deep a JSON text is nested.
func depthOf(text []byte) (deepest int) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	depth := 0
	for {
		token, err := decoder.Token()
		if err != nil {
			return deepest
		}
		switch token {
		case json.Delim('['), json.Delim('{'):
			depth++
			deepest = max(deepest, depth)
		case json.Delim(']'), json.Delim('}'):
			depth--
		}
	}
}

// textIn returns a member of a body that must be a text with a length from least to most. given is false if it is
// missing; otherwise a wrong one is refused.
func (d *channelDouble) textIn(body object, name string, least, most int) (text string, given bool) {
	value, given := body[name]
	if !given {
		return "", false
	}
	text, ok := value.(string)
	n := len(text)
	if d.has("counts characters") {
		n = len([]rune(text))
	}
	if !ok && d.has("takes other values as texts") {
		return "text", true
	}
	if !ok || n < least || n > most {
		refuse(http.StatusBadRequest)
	}
	return text, true
}

// mustText is textIn for a member that must be there.
func (d *channelDouble) mustText(body object, name string, least, most int) string {
	text, given := d.textIn(body, name, least, most)
	if !given {
		refuse(http.StatusBadRequest)
	}
	return text
}
