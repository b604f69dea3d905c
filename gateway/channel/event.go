package channel

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"unicode/utf8"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/gateway"
	"github.com/agora-relay/agora/internal/jsontext"
)

// This file reads the events that agents post, and shows events.

// The types of events.
const (
	typeMessage    = "message"
	typeToolCall   = "tool_call"
	typeToolResult = "tool_result"
	typeError      = "error"
	typeStatus     = "status"
	typeLifecycle  = "lifecycle"
)

// The values of lifecycle that mean something here.
const (
	lifecycleProcessing = "processing"
	lifecycleIdle       = "idle"
)

// Limits of the members of events, in bytes.
const (
	maxEventText = 256 // a name, an id or a code
	maxStatus    = 500
	maxLifecycle = 64
)

// posted is an event that an agent has posted.
type posted struct {
	typ    string
	status string // of status and lifecycle
	body   string // the event in the form of RFC 8785
}

// parseEvent checks an event. body is in the form of RFC 8785. Unknown members are kept.
func parseEvent(body []byte) (e posted, err error) {
	o := gateway.NewObject("", body)
	e.body = string(body)
	e.typ, _ = o.Text("type", true)
	switch e.typ {
	case typeMessage:
		o.Sized("content", true, 1, maxContent)
	case typeToolCall:
		o.Sized("name", true, 1, maxEventText)
		o.Sized("id", true, 1, maxEventText)
		if args, given := o.Members["args"]; given && args[0] != '{' {
			o.Fail("args", "must be an object")
		}
	case typeToolResult:
		o.Sized("id", true, 1, maxEventText)
		o.Text("content", true)
	case typeError:
		o.Sized("message", true, 1, maxContent)
		o.Sized("code", false, 1, maxEventText)
	case typeStatus:
		e.status, _ = o.Sized("status", true, 1, maxStatus)
	case typeLifecycle:
		e.status, _ = o.Sized("status", true, 1, maxLifecycle)
	default:
		o.Fail("type", "must be message, tool_call, tool_result, error, status or lifecycle")
	}
	return e, o.Err
}

// newEvent returns an event with these members. Some come from envelopes, which may have U+0000; an event has U+FFFD
// instead.
func newEvent(members map[string]string) posted {
	for name, text := range members {
		members[name] = strings.ReplaceAll(text, "\x00", "\uFFFD")
	}
	text := jsontext.Compact(members)
	body, err := envelope.ParseObject(text, len(text)) // returns the form of RFC 8785
	if err != nil {
		panic(fmt.Sprintf("channel: an object of texts is not an object: %v", err))
	}
	return posted{typ: members["type"], status: members["status"], body: string(body)}
}

func newMessage(content string) posted {
	return newEvent(map[string]string{"type": typeMessage, "content": content})
}

func newLifecycle(status string) posted {
	return newEvent(map[string]string{"type": typeLifecycle, "status": status})
}

// newError returns an error event. Texts that are too long are cut.
func newError(message, code string) posted {
	members := map[string]string{"type": typeError, "message": cmp.Or(cut(message, maxContent), "the agent failed")}
	if code != "" {
		members["code"] = cut(code, maxEventText)
	}
	return newEvent(members)
}

// cut returns the longest beginning of a text that has at most limit bytes.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	for limit > 0 && !utf8.RuneStart(text[limit]) {
		limit--
	}
	return text[:limit]
}

// messageOf returns the message of a refusal.
func messageOf(err error) string {
	if e, ok := errors.AsType[*envelope.Error](err); ok {
		return e.Message
	}
	return "it cannot be read"
}

// shown returns an event as answers show it: its own members, and those that the relay adds. An agent cannot forge the
// latter. Only the ids of tool calls and of their results come from the agent.
func (e event) shown() map[string]any {
	var own map[string]json.RawMessage
	// The relay has written this text. `agora check` finds a text that was changed.
	_ = json.Unmarshal([]byte(e.body), &own)
	members := make(map[string]any, len(own)+8)
	for name, value := range own {
		members[name] = value
	}
	if e.typ != typeToolCall && e.typ != typeToolResult {
		members["id"] = e.id
	}
	maps.Copy(members, map[string]any{"seq": e.seq, "ts": stamp(e.ts), "sender": e.sender, "kind": kindOf(e.agent), "type": e.typ,
		"depth": e.depth, "via": e.via})
	return members
}

// shownEvents returns events as answers show them.
func shownEvents(rows []event) []map[string]any {
	all := make([]map[string]any, 0, len(rows))
	for _, e := range rows {
		all = append(all, e.shown())
	}
	return all
}

// content returns the content of a message.
func (e event) content() string {
	var own map[string]json.RawMessage // a struct would also match the member "Content"
	var content string
	_ = json.Unmarshal([]byte(e.body), &own) // see shown
	_ = json.Unmarshal(own["content"], &content)
	return content
}

// kindOf returns the kind of a party in answers.
func kindOf(agent bool) string {
	if agent {
		return "agent"
	}
	return "member"
}
