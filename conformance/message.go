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

// lifetime is the meta.ttl of what a run posts, so that little of it outlives the run.
const lifetime = 180 // seconds

// actor is somebody who signs; every check has its own.
type actor struct {
	name string
	key  didkey.Key
}

// actor returns somebody new.
func (p *probe) actor(name string) actor {
	key, err := didkey.Generate()
	if err != nil {
		p.end(Skipped, "no key could be made: %v", err)
	}
	p.relay.signing.knows(key)
	return actor{name, key}
}

func (a actor) did() string { return string(a.key.DID()) }

func (a actor) didOrNone() string {
	if a.name == "" {
		return ""
	}
	return a.did()
}

// message is an envelope before it is signed, open to every mistake.
type message map[string]any

// stamp writes a time as most clients do.
func stamp(t time.Time) string { return envelope.FormatTime(t) }

// newID returns a fresh id.
func newID(prefix string) string { return envelope.NewID(prefix, time.Now()) }

// message returns a well-formed message of the type that belongs to a thread; to may be the zero actor for nobody.
func (p *probe) message(typ string, from, to actor, thread, request string) message {
	m := message{
		"version": "1.0", "id": newID("msg"), "ts": stamp(p.now()), "type": typ,
		"sender": map[string]any{"id": from.did()}, "payload": payload(typ, request),
		"meta": map[string]any{"ttl": lifetime}, "thread": map[string]any{"id": thread},
	}
	if typ == "REQUEST" {
		p.relay.signing.willOpen(thread, from.did(), to.didOrNone())
	}
	if to.name != "" {
		m["recipient"] = map[string]any{"id": to.did()}
	}
	return m
}

// payload returns the least that each type must carry.
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

// request returns a REQUEST that opens a new thread.
func (p *probe) request(from, to actor) message {
	return p.message("REQUEST", from, to, newID("thread"), newID("req"))
}

// letter is a signed message.
type letter struct {
	what string // in words
	id   string
	ts   string
	body []byte // canonical
}

// sign signs m as from, whatever m says.
func (m message) sign(from actor) letter {
	delete(m, "sig")
	signature, err := from.key.Sign(canonical(m))
	if err != nil {
		panic(err) // the keys are ours
	}
	m["sig"] = base64.RawURLEncoding.EncodeToString(signature)
	return m.sealed(from)
}

// sealed returns m with the signature it has.
func (m message) sealed(from actor) letter {
	id, _ := m["id"].(string)
	ts, _ := m["ts"].(string)
	return letter{what: fmt.Sprintf("a %v by %s", m["type"], from.name), id: id, ts: ts, body: canonical(m)}
}

// canonical returns the RFC 8785 form of what this package built itself.
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

// set changes the member at a dotted path, making objects on the way; see without for removing one.
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

// also joins changes.
func also(changes ...func(message)) func(message) {
	return func(m message) {
		for _, change := range changes {
			change(m)
		}
	}
}

// event is a message as a relay delivered it.
type event struct {
	answer // its members
	raw    json.RawMessage
}

func (e event) id() string { return e.text("id") }

// eventsOf reads the events of an answer; ok is false if it has no such array.
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

// verify says what is wrong with a delivered envelope as its reader would find, nil if nothing is.
func (e event) verify() error {
	parsed, err := envelope.Parse(e.raw, maxAnswer)
	if err != nil {
		return err
	}
	return parsed.Verify()
}

// ids lists the ids of events, for a report.
func ids(events []event) string {
	if len(events) == 0 {
		return "no events"
	}
	var list []string
	for i, e := range events {
		if i == 8 {
			list = append(list, fmt.Sprintf("… %d in all", len(events)))
			break
		}
		list = append(list, e.id())
	}
	return strings.Join(list, ", ")
}
