package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/agora-relay/agora/gateway/hub/skill"
)

// envelopeSchema returns the schema of an envelope, and the examples.
func envelopeSchema(t *testing.T) (schema *jsonschema.Schema, examples []string) {
	t.Helper()
	var text string
	for _, f := range skill.Files("en", "") {
		if f.Path == "envelope.schema.json" {
			text = f.Text
		} else if strings.HasPrefix(f.Path, "examples/") {
			examples = append(examples, f.Text)
		}
	}
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("envelope.schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	schema, err = c.Compile("envelope.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema, examples
}

// accepts reports whether the schema accepts a JSON text.
func accepts(t *testing.T, schema *jsonschema.Schema, text []byte) bool {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return schema.Validate(value) == nil
}

// envelopeBounds are values of one member on both sides of each rule of an envelope. nil removes the member.
var envelopeBounds = []struct {
	member string
	value  any
	valid  bool
}{
	{"chorus_version", "0.4", true}, {"chorus_version", "0.3", false}, {"chorus_version", 0.4, false}, {"chorus_version", nil, false},
	{"sender_id", "a@b", true}, {"sender_id", "aZ09._-@aZ09._-", true}, {"sender_id", nil, false},
	{"sender_id", strings.Repeat("a", 126) + "@b", true}, {"sender_id", strings.Repeat("a", 127) + "@b", false},
	{"sender_id", "a", false}, {"sender_id", "@b", false}, {"sender_id", "a@", false}, {"sender_id", "a@b@c", false},
	{"sender_id", "a/b@c", false}, {"sender_id", "é@b", false}, {"sender_id", "a@did.key", false}, {"sender_id", "a@DID.key", false}, {"sender_id", "a@xdid.key", true},
	{"sender_id", "a@did.keys", true}, {"sender_id", "did.key@b", true}, {"sender_id", 1, false},
	{"original_text", "a", true}, {"original_text", "", false}, {"original_text", nil, false}, {"original_text", 1, false},
	{"original_text", strings.Repeat("你", 10000), true}, {"original_text", strings.Repeat("你", 10001), false},
	{"sender_culture", "en", true}, {"sender_culture", "yue", true}, {"sender_culture", "zh-CN", true}, {"sender_culture", nil, false},
	{"sender_culture", "es-419", true}, {"sender_culture", "zh-Hant", true}, {"sender_culture", "zh-Hant-TW", true},
	{"sender_culture", "zh-Hant-001", true}, {"sender_culture", "e", false}, {"sender_culture", "engl", false},
	{"sender_culture", "EN", false}, {"sender_culture", "en-us", false}, {"sender_culture", "en-USA", false},
	{"sender_culture", "es-41", false}, {"sender_culture", "zh-hant", false}, {"sender_culture", "en-US-x", false},
	{"sender_culture", "", false}, {"sender_culture", []string{"en"}, false},
	{"cultural_context", strings.Repeat("你", 10), true}, {"cultural_context", strings.Repeat("你", 9), false},
	{"cultural_context", strings.Repeat("你", 500), true}, {"cultural_context", strings.Repeat("你", 501), false},
	{"cultural_context", json.RawMessage("null"), false},
	{"conversation_id", "", true}, {"conversation_id", strings.Repeat("你", 64), true},
	{"conversation_id", strings.Repeat("你", 65), false}, {"conversation_id", 1, false},
	{"turn_number", 1, true}, {"turn_number", 0, false}, {"turn_number", -1, false}, {"turn_number", 1.5, false},
	{"turn_number", "1", false}, {"turn_number", json.RawMessage("9007199254740991"), true},
	{"turn_number", json.RawMessage("9007199254740992"), false}, {"turn_number", json.RawMessage("1.0"), true},
	{"turn_number", json.RawMessage("1e3"), true}, {"turn_number", json.RawMessage("null"), false}, {"turn_number", true, false},
	{"receiver_id", "a@b", false}, {"Sender_id", "a@b", false}, {"", "", false},
}

// withMember returns an envelope as JSON in which one member has this value.
func withMember(t *testing.T, member string, value any) []byte {
	t.Helper()
	e := map[string]any{"chorus_version": "0.4", "sender_id": "alice@relay.example", "original_text": "Hello", "sender_culture": "en"}
	if e[member] = value; value == nil {
		delete(e, member)
	}
	text, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// differences are where the schema and the hub differ, as the description in the schema says: JSON Schema counts a
// character above U+FFFF as one, and the schema has no limit for the whole envelope.
var differences = []struct {
	member      string
	value       any
	schema, hub bool
}{
	{"original_text", strings.Repeat("😀", 5000), true, true}, {"original_text", strings.Repeat("😀", 5001), true, false},
	{"cultural_context", strings.Repeat("😀", 4), false, false}, {"cultural_context", strings.Repeat("😀", 5), false, true},
	{"cultural_context", strings.Repeat("😀", 251), true, false}, {"conversation_id", strings.Repeat("😀", 33), true, false},
	{"original_text", strings.Repeat("\x01", 9900), true, true}, {"original_text", strings.Repeat("\x01", 10000), true, false},
}

// hubJudge asks a hub whether envelopes are valid.
type hubJudge struct {
	t   *testing.T
	url string
}

// post sends a request and returns the status, and the key in the answer if there is one.
func (j hubJudge) post(path, key, body string) (status int, newKey string) {
	j.t.Helper()
	request, err := http.NewRequest(http.MethodPost, j.url+path, strings.NewReader(body))
	if err != nil {
		j.t.Fatal(err)
	}
	if key != "" {
		request.Header.Set("Authorization", "Bearer "+key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		j.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var answer struct {
		Data struct {
			Key string `json:"api_key"`
		} `json:"data"`
	}
	if err != nil || json.Unmarshal(text, &answer) != nil {
		j.t.Fatalf("%s: %s, %v", path, text, err)
	}
	return response.StatusCode, answer.Data.Key
}

// register registers an agent and returns its key; empty: the hub refuses the address, or it is taken.
func (j hubJudge) register(address any) (key string) {
	id, err := json.Marshal(address)
	if err != nil {
		j.t.Fatal(err)
	}
	_, key = j.post("/register", "", `{"agent_id":`+string(id)+`,"agent_card":{"card_version":"0.3","user_culture":"en","supported_languages":["en"]}}`)
	return key
}

// accepts sends an envelope and reports whether the hub accepts it. key is the sender's key.
func (j hubJudge) accepts(key string, envelope []byte) bool {
	j.t.Helper()
	status, _ := j.post("/messages", key, `{"receiver_id":"bob@relay.example","envelope":`+string(envelope)+`}`)
	if status != http.StatusAccepted && status != http.StatusBadRequest {
		j.t.Errorf("%.200s: status %d", envelope, status)
	}
	return status == http.StatusAccepted
}

// H-40: schema, examples and hub agree on what is valid, on both sides of each bound.
func TestSchemaAgreesWithHub(t *testing.T) {
	t.Parallel()
	schema, examples := envelopeSchema(t)
	j := hubJudge{t, startHub(t)}
	alice := j.register("alice@relay.example")
	j.register("bob@relay.example")
	for _, b := range envelopeBounds {
		text, key := withMember(t, b.member, b.value), alice
		if b.member == "sender_id" {
			if own := j.register(b.value); own != "" {
				key = own
			}
		}
		if inSchema, inHub := accepts(t, schema, text), j.accepts(key, text); inSchema != b.valid || inHub != b.valid {
			t.Errorf("%.200s: valid is %v, but by the schema %v, and by the hub %v", text, b.valid, inSchema, inHub)
		}
	}
	for _, d := range differences {
		text := withMember(t, d.member, d.value)
		if inSchema, inHub := accepts(t, schema, text), j.accepts(alice, text); inSchema != d.schema || inHub != d.hub {
			t.Errorf("%.100s: by the schema %v, want %v; by the hub %v, want %v", text, inSchema, d.schema, inHub, d.hub)
		}
	}
	if len(examples) != 3 {
		t.Errorf("there are %d examples", len(examples))
	}
	for _, example := range examples {
		var sender struct {
			ID string `json:"sender_id"`
		}
		if err := json.Unmarshal([]byte(example), &sender); err != nil {
			t.Fatal(err)
		}
		key := alice
		if own := j.register(sender.ID); own != "" {
			key = own
		}
		if !accepts(t, schema, []byte(example)) || !j.accepts(key, []byte(example)) {
			t.Errorf("this example is not valid: %s", example)
		}
	}
}
