package a2a

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Upstream is what the card of any A2A server says.
type Upstream struct {
	Card       Card        // without its security, signatures, and what SDKs drop
	Interfaces []Interface // the known ones, in the server's order: 1.0 in both bindings, and 0.3 in JSON-RPC
	Streaming  bool
}

// ReadCard reads the card of any A2A server, of version 1.0 or 0.3. Members that are empty or false are dropped, and
// members that are not known. Errors: text that is not I-JSON; a number in the params of an extension, which SDKs write
// differently; a member of another type.
func ReadCard(text []byte) (Upstream, error) {
	canonical, err := envelope.ParseObject(text, MaxBody)
	if err != nil {
		return Upstream{}, fmt.Errorf("the card is not I-JSON: %w", err)
	}
	o, err := decode(canonical)
	if err != nil {
		return Upstream{}, err
	}
	u := Upstream{Interfaces: interfacesOf(o)}
	for _, name := range []string{"securitySchemes", "securityRequirements", "security", "signatures", "supportedInterfaces"} {
		delete(o, name)
	}
	kept, _ := clean(o).(object)
	if err := json.Unmarshal(jsontext.Compact(kept), &u.Card); err != nil {
		return Upstream{}, fmt.Errorf("the card has a member of a wrong type: %w", err)
	}
	u.Streaming = u.Card.Capabilities.Streaming
	u.Card.fill()
	for _, x := range u.Card.Capabilities.Extensions {
		if number := numberIn("params", x.Params); number != "" {
			return Upstream{}, fmt.Errorf("the card's extension %q has a number at %s; SDKs of A2A write numbers differently, so "+
				"no signature would verify; write it as a text", x.URI, number)
		}
	}
	return u, nil
}

// interfacesOf returns the known addresses that a card names.
func interfacesOf(o object) (known []Interface) {
	for _, entry := range list(o["supportedInterfaces"]) {
		var i Interface
		if json.Unmarshal(jsontext.Compact(entry), &i) == nil &&
			(i.ProtocolVersion == Version && (i.ProtocolBinding == BindingRPC || i.ProtocolBinding == BindingHTTP) ||
				strings.HasPrefix(i.ProtocolVersion, LegacyVersion) && i.ProtocolBinding == BindingRPC) {
			known = append(known, i)
		}
	}
	var legacy struct {
		URL                  string
		PreferredTransport   string
		AdditionalInterfaces []struct{ URL, Transport string }
	}
	if json.Unmarshal(jsontext.Compact(o), &legacy) != nil || legacy.URL == "" {
		return known
	}
	if cmp.Or(legacy.PreferredTransport, BindingRPC) == BindingRPC {
		return append(known, Interface{legacy.URL, BindingRPC, LegacyVersion})
	}
	for _, i := range legacy.AdditionalInterfaces {
		if i.Transport == BindingRPC {
			known = append(known, Interface{i.URL, BindingRPC, LegacyVersion})
		}
	}
	return known
}

// clean returns a value without what is empty, false or null; nil if nothing is left.
func clean(value any) any {
	switch v := value.(type) {
	case object:
		kept := object{}
		for name, inner := range v {
			if inner = clean(inner); inner != nil {
				kept[name] = inner
			}
		}
		if len(kept) > 0 {
			return kept
		}
		return nil
	case []any:
		var kept []any
		for _, inner := range v {
			if inner = clean(inner); inner != nil {
				kept = append(kept, inner)
			}
		}
		if len(kept) > 0 {
			return kept
		}
		return nil
	case string:
		if v == "" {
			return nil
		}
	case bool:
		if !v {
			return nil
		}
	}
	return value
}

// numberIn returns the path of a number in a value; empty: there is none.
func numberIn(path string, value any) string {
	switch v := value.(type) {
	case float64:
		return path
	case object:
		for _, name := range sorted(v) {
			if found := numberIn(path+"."+name, v[name]); found != "" {
				return found
			}
		}
	case []any:
		for i, inner := range v {
			if found := numberIn(path+index(i), inner); found != "" {
				return found
			}
		}
	}
	return ""
}

// fill sets what a card must have and a server left empty.
func (c *Card) fill() {
	c.Name = cmp.Or(c.Name, "agent")
	c.Description = cmp.Or(c.Description, c.Name)
	c.Version = cmp.Or(c.Version, "1")
	if len(c.DefaultInputModes) == 0 {
		c.DefaultInputModes = []string{"text/plain"}
	}
	if len(c.DefaultOutputModes) == 0 {
		c.DefaultOutputModes = []string{"text/plain"}
	}
	if len(c.Skills) == 0 {
		c.Skills = []Skill{{ID: MessageIntent}}
	}
	for i := range c.Skills {
		s := &c.Skills[i]
		s.ID = cmp.Or(s.ID, fmt.Sprintf("skill-%d", i+1))
		s.Name = cmp.Or(s.Name, s.ID)
		s.Description = cmp.Or(s.Description, s.Name)
		if len(s.Tags) == 0 {
			s.Tags = []string{s.ID}
		}
	}
	extensions := c.Capabilities.Extensions[:0]
	for _, x := range c.Capabilities.Extensions {
		if x.URI != "" {
			extensions = append(extensions, x)
		}
	}
	c.Capabilities.Extensions = extensions
}

// Rewrite returns the card of a server as the card of this endpoint. It is not signed yet.
func (e Endpoint) Rewrite(u Upstream, a Access) Card {
	c := u.Card
	e.place(&c, a)
	return c
}
