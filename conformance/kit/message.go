package kit

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

// MessageTTL is the meta.ttl of most messages of a run. It is short, so that few messages are stored for long after it.
const MessageTTL = 180 // seconds

// Actor is a test identity with its own key. Each check creates new ones. The zero actor means no identity.
type Actor struct {
	Name string
	Key  didkey.Key
}

// Actor returns a new identity. The name describes it in the report.
func (p *Probe) Actor(name string) Actor {
	key, err := didkey.Generate()
	if err != nil {
		p.End(Skipped, "cannot generate a key: %v", err)
	}
	p.Relay.Signer.addKey(key)
	return Actor{name, key}
}

func (a Actor) DID() string { return string(a.Key.DID()) }

func (a Actor) didOrEmpty() string {
	if a.Name == "" {
		return ""
	}
	return a.DID()
}

// Message is an envelope that is not signed yet. It is a map, so that checks can make it wrong in any way.
type Message map[string]any

// FormatTime returns a time in the form that most clients use.
func FormatTime(t time.Time) string { return envelope.FormatTime(t) }

// NewID returns a new unique id.
func NewID(prefix string) string { return envelope.NewID(prefix, time.Now()) }

// Message returns a well-formed message of a thread, not signed yet. The zero actor as recipient means no recipient.
func (p *Probe) Message(typ string, from, to Actor, thread, request string) Message {
	m := Message{
		"version": "1.0", "id": NewID("msg"), "ts": FormatTime(p.Now()), "type": typ,
		"sender": map[string]any{"id": from.DID()}, "payload": payload(typ, request),
		"meta": map[string]any{"ttl": MessageTTL}, "thread": map[string]any{"id": thread},
	}
	if typ == "REQUEST" {
		p.Relay.Signer.expectThread(thread, from.DID(), to.didOrEmpty())
	}
	if to.Name != "" {
		m["recipient"] = map[string]any{"id": to.DID()}
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

// Request returns a REQUEST that opens a new thread, not signed yet.
func (p *Probe) Request(from, to Actor) Message {
	return p.Message("REQUEST", from, to, NewID("thread"), NewID("req"))
}

// SignedMessage is an envelope with its signature, as it is posted.
type SignedMessage struct {
	What string // a description for the report
	ID   string
	TS   string
	Body []byte // the RFC 8785 form
}

// Sign signs m with the key of from, whatever sender.id is.
func (m Message) Sign(from Actor) SignedMessage {
	delete(m, "sig")
	signature, err := from.Key.Sign(Canonical(m))
	if err != nil {
		panic(err) // cannot happen: actor has generated the key
	}
	m["sig"] = base64.RawURLEncoding.EncodeToString(signature)
	return m.Encode(from)
}

// Encode returns m with the signature that it has, or without one. It does not sign m again.
func (m Message) Encode(from Actor) SignedMessage {
	id, _ := m["id"].(string)
	ts, _ := m["ts"].(string)
	return SignedMessage{What: fmt.Sprintf("%v from %s", m["type"], from.Name), ID: id, TS: ts, Body: Canonical(m)}
}

// Canonical returns the RFC 8785 form of a value that this package has built.
func Canonical(v any) []byte {
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

// Set returns a change that sets the member at a dotted path. It creates missing objects on the path. See without for
// removing a member.
func Set(path string, value any) func(Message) {
	return func(m Message) {
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

func Without(names ...string) func(Message) {
	return func(m Message) {
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

// Combine returns a change that makes all these changes, in this order.
func Combine(changes ...func(Message)) func(Message) {
	return func(m Message) {
		for _, change := range changes {
			change(m)
		}
	}
}

// Event is a message as the relay has delivered it.
type Event struct {
	Answer // has the members of the event
	Raw    json.RawMessage
}

func (e Event) ID() string { return e.Text("id") }

// EventsOf returns the events of an answer. It reports false if the answer has no array of events.
func EventsOf(a Answer) (events []Event, ok bool) {
	list, ok := a.List("events")
	for _, raw := range list {
		e := Event{Raw: raw}
		if json.Unmarshal(raw, &e.Members) != nil {
			e.Members = nil
		}
		events = append(events, e)
	}
	return events, ok
}

// Verify checks a delivered envelope as its reader would: it must be well-formed and its signature must verify.
func (e Event) Verify() error {
	parsed, err := envelope.Parse(e.Raw, MaxAnswer)
	if err != nil {
		return err
	}
	return parsed.Verify()
}

// IDs returns a list of event ids for the report.
func IDs(events []Event) string {
	if len(events) == 0 {
		return "no events"
	}
	var list []string
	for i, e := range events {
		if i == 8 {
			list = append(list, fmt.Sprintf("… (%d in total)", len(events)))
			break
		}
		list = append(list, e.ID())
	}
	return strings.Join(list, ", ")
}
