package conformance

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// messageTTL is the meta.ttl of most messages of a run. It is short, so that few messages are stored for long after it.
const messageTTL = 180 // seconds

// actor is a test identity with its own key. Each check creates new ones. The zero actor means no identity.
type actor struct {
	name string
	key  didkey.Key
}

// actor returns a new identity. The name describes it in the report.
func (p *probe) actor(name string) actor {
	key, err := didkey.Generate()
	if err != nil {
		p.end(Skipped, "cannot generate a key: %v", err)
	}
	p.relay.signer.addKey(key)
	return actor{name, key}
}

func (a actor) did() string { return string(a.key.DID()) }

func (a actor) didOrEmpty() string {
	if a.name == "" {
		return ""
	}
	return a.did()
}

// message is an envelope that is not signed yet. It is a map, so that checks can make it wrong in any way.
type message map[string]any

// formatTime returns a time in the form that most clients use.
func formatTime(t time.Time) string { return envelope.FormatTime(t) }

// newID returns a new unique id.
func newID(prefix string) string { return envelope.NewID(prefix, time.Now()) }

// message returns a well-formed message of a thread, not signed yet. The zero actor as recipient means no recipient.
func (p *probe) message(typ string, from, to actor, thread, request string) message {
	m := message{
		"version": "1.0", "id": newID("msg"), "ts": formatTime(p.now()), "type": typ,
		"sender": map[string]any{"id": from.did()}, "payload": payload(typ, request),
		"meta": map[string]any{"ttl": messageTTL}, "thread": map[string]any{"id": thread},
	}
	if typ == "REQUEST" {
		p.relay.signer.expectThread(thread, from.did(), to.didOrEmpty())
	}
	if to.name != "" {
		m["recipient"] = map[string]any{"id": to.did()}
	}
	return m
}

// payload returns the members that a payload of the type needs at least.
func payload(typ, request string) map[string]any {
	payload := map[string]any{"request_id": request}
	switch typ {
	case "REQUEST":
		payload["intent"] = "conformance.check"
	case "RESULT":
		payload["status"] = "success"
	case "ERROR":
		payload["code"], payload["message"] = "UNAVAILABLE", "a conformance check ends this thread"
	}
	return payload
}

// request returns a REQUEST that opens a new thread, not signed yet.
func (p *probe) request(from, to actor) message {
	return p.message("REQUEST", from, to, newID("thread"), newID("req"))
}

// signedMessage is an envelope with its signature, as it is posted.
type signedMessage struct {
	what string // a description for the report
	id   string
	ts   string
	body []byte // the RFC 8785 form
}

// sign signs m with the key of from, whatever sender.id is.
func (m message) sign(from actor) signedMessage {
	delete(m, "sig")
	signature, err := from.key.Sign(canonical(m))
	if err != nil {
		panic(err) // cannot happen: actor has generated the key
	}
	m["sig"] = base64.RawURLEncoding.EncodeToString(signature)
	return m.encode(from)
}

// encode returns m with the signature that it has, or without one. It does not sign m again.
func (m message) encode(from actor) signedMessage {
	id, _ := m["id"].(string)
	ts, _ := m["ts"].(string)
	return signedMessage{what: fmt.Sprintf("%v from %s", m["type"], from.name), id: id, ts: ts, body: canonical(m)}
}

// canonical returns the RFC 8785 form of a value that this package has built.
func canonical(v any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic(err)
	}
	form, err := envelope.Canonicalize(text.Bytes())
	if err != nil {
		panic(err)
	}
	return form
}

// set returns a change that sets the member at a dotted path. It creates missing objects on the path. See without for
// removing a member.
func set(path string, value any) func(message) {
	return func(m message) {
		object := map[string]any(m)
		names := strings.Split(path, ".")
		for _, name := range names[:len(names)-1] {
			inner, ok := object[name].(map[string]any)
			if !ok {
				inner = map[string]any{}
				object[name] = inner
			}
			object = inner
		}
		object[names[len(names)-1]] = value
	}
}

func without(names ...string) func(message) {
	return func(m message) {
		for _, name := range names {
			object, last := map[string]any(m), name
			if outer, inner, nested := strings.Cut(name, "."); nested {
				object, _ = m[outer].(map[string]any)
				last = inner
			}
			delete(object, last)
		}
	}
}

// combine returns a change that makes all these changes, in this order.
func combine(changes ...func(message)) func(message) {
	return func(m message) {
		for _, change := range changes {
			change(m)
		}
	}
}

// event is a message as the relay has delivered it.
type event struct {
	answer // has the members of the event
	raw    json.RawMessage
}

func (e event) id() string { return e.text("id") }

// eventsOf returns the events of an answer. It reports false if the answer has no array of events.
func eventsOf(a answer) (events []event, ok bool) {
	list, ok := a.list("events")
	for _, raw := range list {
		e := event{raw: raw}
		if json.Unmarshal(raw, &e.members) != nil {
			e.members = nil
		}
		events = append(events, e)
	}
	return events, ok
}

// verify checks a delivered envelope as its reader would: it must be well-formed and its signature must verify.
func (e event) verify() error {
	parsed, err := envelope.Parse(e.raw, maxAnswer)
	if err != nil {
		return err
	}
	return parsed.Verify()
}

// ids returns a list of event ids for the report.
func ids(events []event) string {
	if len(events) == 0 {
		return "no events"
	}
	var list []string
	for i, e := range events {
		if i == 8 {
			list = append(list, fmt.Sprintf("… (%d in total)", len(events)))
			break
		}
		list = append(list, e.id())
	}
	return strings.Join(list, ", ")
}
