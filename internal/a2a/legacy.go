package a2a

import (
	"encoding/json"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Objects of A2A 0.3 (A2A §9). Only its JSON-RPC binding is known here.

// LegacyVersion is the version 0.3, as cards write it without its patch number.
const LegacyVersion = "0.3"

// object is a JSON object that is converted between versions.
type object = map[string]any

// list returns the objects in an array.
func list(value any) (objects []object) {
	elements, _ := value.([]any)
	for _, element := range elements {
		if o, ok := element.(object); ok {
			objects = append(objects, o)
		}
	}
	return objects
}

func decode(text []byte) (o object, err error) {
	err = json.Unmarshal(text, &o)
	return o, err
}

// ToLegacy returns the params of message/send and message/stream of 0.3.
func ToLegacy(s Send) (json.RawMessage, error) {
	message, err := decode(jsontext.Compact(s.Message))
	if err != nil {
		return nil, err
	}
	message["kind"] = "message"
	message["role"] = "user"
	if s.Message.Role == Agent {
		message["role"] = "agent"
	}
	for _, part := range list(message["parts"]) {
		legacyPart(part)
	}
	params := object{"message": message, "configuration": object{"blocking": !s.Configuration.ReturnImmediately}}
	if len(s.Metadata) > 0 {
		params["metadata"] = s.Metadata
	}
	return jsontext.Compact(params), nil
}

// legacyPart changes a part into the form of 0.3.
func legacyPart(part object) {
	kind, file := "file", object{}
	for old, name := range map[string]string{"mediaType": "mimeType", "filename": "name", "raw": "bytes", "url": "uri"} {
		if value, ok := part[old]; ok {
			file[name] = value
			delete(part, old)
		}
	}
	if _, ok := part["text"]; ok {
		kind = "text"
	} else if data, ok := part["data"]; ok {
		kind = "data"
		if _, isObject := data.(object); !isObject { // 0.3 has only objects there
			part["data"] = object{"value": data}
		}
	} else {
		part["file"] = file
	}
	part["kind"] = kind
}

// FromLegacy returns a result, or an event of a stream, of 0.3 as the text of a Stream.
func FromLegacy(text []byte) (json.RawMessage, error) {
	o, err := decode(text)
	if err != nil {
		return nil, Errorf(InvalidAgentResponse, "the result must be an object")
	}
	kind, _ := o["kind"].(string)
	delete(o, "kind")
	name := ""
	switch kind {
	case "task":
		name = "task"
		upgradeTask(o)
	case "message":
		name = "message"
		upgradeMessage(o)
	case "status-update":
		name = "statusUpdate"
		delete(o, "final")
		upgradeStatus(o)
	case "artifact-update":
		name = "artifactUpdate"
		if artifact, ok := o["artifact"].(object); ok {
			upgradeParts(artifact)
		}
	default:
		return nil, Errorf(InvalidAgentResponse, "the kind of the result must be task, message, status-update or artifact-update")
	}
	return envelope.Canonicalize(jsontext.Compact(object{name: o}))
}

func upgradeTask(task object) {
	upgradeStatus(task)
	for _, artifact := range list(task["artifacts"]) {
		upgradeParts(artifact)
	}
	for _, message := range list(task["history"]) {
		upgradeMessage(message)
	}
}

// upgradeStatus changes the member status. The state unknown becomes Working, because such a task may still change.
func upgradeStatus(o object) {
	status, ok := o["status"].(object)
	if !ok {
		return
	}
	if state, ok := status["state"].(string); ok {
		status["state"] = "TASK_STATE_" + strings.ToUpper(strings.ReplaceAll(state, "-", "_"))
		if state == "unknown" {
			status["state"] = Working
		}
	}
	if message, ok := status["message"].(object); ok {
		upgradeMessage(message)
	}
}

func upgradeMessage(message object) {
	delete(message, "kind")
	switch message["role"] {
	case "user":
		message["role"] = User
	case "agent":
		message["role"] = Agent
	}
	upgradeParts(message)
}

func upgradeParts(o object) {
	for _, part := range list(o["parts"]) {
		delete(part, "kind")
		file, ok := part["file"].(object)
		if !ok {
			continue
		}
		delete(part, "file")
		for name, old := range map[string]string{"mediaType": "mimeType", "filename": "name", "raw": "bytes", "url": "uri"} {
			if value, ok := file[old]; ok {
				part[name] = value
			}
		}
	}
}
