package a2a

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/jsontext"
)

// Endpoint is the public address of an agent: {B}/z6Mk… (A2A §2), without a slash at the end.
type Endpoint struct {
	URL string
	DID didkey.DID
}

// NewEndpoint returns the endpoint of an agent. gateway is {B}, the URL of the relay's A2A gateway.
func NewEndpoint(gateway string, did didkey.DID) Endpoint {
	return Endpoint{strings.TrimSuffix(gateway, "/") + "/" + did.Multibase(), did}
}

// Base returns the URL to print. It ends with a slash, because SDKs resolve the card relative to it.
func (e Endpoint) Base() string { return e.URL + "/" }

// CardPath is where every A2A server has its card, below its base URL.
const CardPath = "/.well-known/agent-card.json"

// CardURL returns the URL of the card.
func (e Endpoint) CardURL() string { return e.URL + CardPath }

// keyID returns the kid of the agent's key.
func keyID(did didkey.DID) string { return string(did) + "#" + did.Multibase() }

// jwks returns the URL of the agent's key.
func (e Endpoint) jwks() string { return e.URL + "/jwks.json" }

// JWKS returns the agent's key as a JWK Set (RFC 7517, RFC 8037).
func (e Endpoint) JWKS() []byte {
	return jsontext.Compact(map[string]any{"keys": []any{map[string]string{
		"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(e.DID.PublicKey()),
		"kid": keyID(e.DID), "alg": "EdDSA", "use": "sig",
	}}})
}

// Access says who may call an endpoint.
type Access string

// The values of Access and of Mode.
const (
	Public Access = "public" // everybody
	Keys   Access = "keys"   // holders of a key, and every DID by a signed call

	ModeMessage Mode = "message" // the agent takes the intent a2a.message
	ModeParams  Mode = "params"  // the agent knows no A2A
)

// Mode says what an agent gets for a message (A2A §4).
type Mode string

// The bindings that a card names.
const (
	BindingRPC  = "JSONRPC"
	BindingHTTP = "HTTP+JSON"
)

// Card describes an agent (A2A §2).
type Card struct {
	Name                 string            `json:"name,omitempty"`
	Description          string            `json:"description,omitempty"`
	Version              string            `json:"version,omitempty"`
	SupportedInterfaces  []Interface       `json:"supportedInterfaces,omitempty"`
	Capabilities         Capabilities      `json:"capabilities,omitzero"`
	DefaultInputModes    []string          `json:"defaultInputModes,omitempty"`
	DefaultOutputModes   []string          `json:"defaultOutputModes,omitempty"`
	Skills               []Skill           `json:"skills,omitempty"`
	Provider             *Provider         `json:"provider,omitempty"`
	DocumentationURL     string            `json:"documentationUrl,omitempty"`
	IconURL              string            `json:"iconUrl,omitempty"`
	SecuritySchemes      map[string]Scheme `json:"securitySchemes,omitempty"`
	SecurityRequirements []Requirement     `json:"securityRequirements,omitempty"`
	Signatures           []Signature       `json:"signatures,omitempty"`
}

// Interface is an address at which an agent speaks A2A.
type Interface struct {
	URL             string `json:"url,omitempty"`
	ProtocolBinding string `json:"protocolBinding,omitempty"`
	ProtocolVersion string `json:"protocolVersion,omitempty"`
}

// Capabilities says what an agent can do.
type Capabilities struct {
	Streaming         bool        `json:"streaming,omitempty"`
	PushNotifications bool        `json:"pushNotifications,omitempty"`
	Extensions        []Extension `json:"extensions,omitempty"`
}

// Extension is an extension of A2A that an agent has.
type Extension struct {
	URI         string         `json:"uri,omitempty"`
	Description string         `json:"description,omitempty"`
	Required    bool           `json:"required,omitempty"`
	Params      map[string]any `json:"params,omitempty"` // texts, true, arrays and objects
}

// Skill is a service of an agent.
type Skill struct {
	ID          string   `json:"id,omitempty"`
	Name        string   `json:"name,omitempty"`
	Description string   `json:"description,omitempty"`
	Tags        []string `json:"tags,omitempty"`
	Examples    []string `json:"examples,omitempty"`
	InputModes  []string `json:"inputModes,omitempty"`
	OutputModes []string `json:"outputModes,omitempty"`
}

// Provider is who offers an agent.
type Provider struct {
	Organization string `json:"organization,omitempty"`
	URL          string `json:"url,omitempty"`
}

// Scheme is a way to authenticate. A published card has only one: a key as Bearer.
type Scheme struct {
	HTTP *HTTPScheme `json:"httpAuthSecurityScheme,omitempty"`
}

// HTTPScheme is a scheme of the header Authorization.
type HTTPScheme struct {
	Scheme string `json:"scheme,omitempty"`
}

// Requirement is a set of schemes that a caller needs.
type Requirement struct {
	Schemes map[string]Scopes `json:"schemes,omitempty"`
}

// Scopes are the scopes that a scheme needs.
type Scopes struct {
	List []string `json:"list,omitempty"`
}

// securityOf returns what a card says about its callers.
func securityOf(a Access) (map[string]Scheme, []Requirement) {
	if a == Public {
		return nil, nil
	}
	return map[string]Scheme{"key": {&HTTPScheme{"Bearer"}}},
		[]Requirement{{map[string]Scopes{"key": {[]string{"a2a"}}}}} // a list without a scope would be empty
}

// interfaces returns the two addresses of an endpoint.
func (e Endpoint) interfaces() []Interface {
	return []Interface{{e.URL + "/rpc", BindingRPC, Version}, {e.URL, BindingHTTP, Version}}
}

// place turns the card into the card of an endpoint.
func (e Endpoint) place(c *Card, a Access) {
	c.SupportedInterfaces = e.interfaces()
	c.Capabilities.Streaming, c.Capabilities.PushNotifications = true, true
	c.SecuritySchemes, c.SecurityRequirements = securityOf(a)
	c.Signatures = nil
}

// FromManifest returns the card of an agent with this MANIFEST. It is not signed yet.
func (e Endpoint) FromManifest(m envelope.Manifest, a Access) Card {
	modes := []string{"text/plain", JSONType}
	c := Card{DefaultInputModes: modes, DefaultOutputModes: modes}
	c.Name = cmp.Or(m.Name, m.ID, "agent")
	c.Description = cmp.Or(m.Description, c.Name)
	c.Version = cmp.Or(m.Version, "1")
	for _, intent := range m.Intents {
		name := cmp.Or(intent.Name, intent.ID)
		tags := strings.FieldsFunc(intent.ID, func(r rune) bool { return r == '.' })
		c.Skills = append(c.Skills, Skill{ID: intent.ID, Name: name, Description: name, Tags: tags})
	}
	e.place(&c, a)
	return c
}

// ModeOf returns the mode that fits a MANIFEST.
func ModeOf(m envelope.Manifest) Mode {
	for _, intent := range m.Intents {
		if intent.ID == MessageIntent {
			return ModeMessage
		}
	}
	return ModeParams
}

// MaxCard is the maximum size of a card in bytes.
const MaxCard = 32 << 10

// CheckCard checks a card that an agent wants to publish at e (A2A §2): its form, URLs, capabilities and
// requirements, and that the agent has made its signatures. It returns the card, and its RFC 8785 form. Errors:
// *envelope.Error with CodeInvalidRequest.
func (e Endpoint) CheckCard(text []byte, a Access) (c Card, canonical []byte, err error) {
	if canonical, err = envelope.ParseObject(text, MaxCard); err != nil {
		return c, nil, envelope.Errorf(envelope.CodeInvalidRequest, "card: %v", err)
	}
	if c, err = decodeCard(canonical); err != nil {
		return c, nil, err
	}
	want := c
	e.place(&want, a)
	refuse := func(format string, args ...any) (Card, []byte, error) {
		return c, nil, envelope.Errorf(envelope.CodeInvalidRequest, "card."+format, args...)
	}
	switch same := func(a, b any) bool { return bytes.Equal(jsontext.Compact(a), jsontext.Compact(b)) }; {
	case !same(c.SupportedInterfaces, want.SupportedInterfaces):
		return refuse("supportedInterfaces must be %s", jsontext.Compact(want.SupportedInterfaces))
	case !c.Capabilities.Streaming || !c.Capabilities.PushNotifications:
		return refuse("capabilities: streaming and pushNotifications must be true")
	case !same(c.SecuritySchemes, want.SecuritySchemes) || !same(c.SecurityRequirements, want.SecurityRequirements):
		return refuse("securitySchemes and securityRequirements do not fit the access %q; make the card again", a)
	}
	return c, canonical, e.checkSignatures(canonical)
}

// decodeCard returns a card that is portable and has all required members. canonical is its RFC 8785 form.
func decodeCard(canonical []byte) (c Card, err error) {
	if err := portable("card", canonical); err != nil {
		return c, err
	}
	decoder := json.NewDecoder(bytes.NewReader(canonical))
	decoder.DisallowUnknownFields()
	const form = "the card has a member that SDKs of A2A do not know, or one of another type, so its signature would not " +
		"verify; leave the member out"
	if err := decoder.Decode(&c); err != nil {
		return c, envelope.Errorf(envelope.CodeInvalidRequest, form)
	}
	// encoding/json ignores the case of names.
	if again, err := envelope.Canonicalize(jsontext.Compact(c)); err != nil || !bytes.Equal(again, canonical) {
		return c, envelope.Errorf(envelope.CodeInvalidRequest, form)
	}
	return c, c.complete()
}

// complete checks that the card has all members that the specification requires.
func (c Card) complete() error {
	missing := func(name string) error {
		return envelope.Errorf(envelope.CodeInvalidRequest, "card.%s is missing", name)
	}
	for name, n := range map[string]int{
		"name": len(c.Name), "description": len(c.Description), "version": len(c.Version), "skills": len(c.Skills),
		"defaultInputModes": len(c.DefaultInputModes), "defaultOutputModes": len(c.DefaultOutputModes),
	} {
		if n == 0 {
			return missing(name)
		}
	}
	for i, s := range c.Skills {
		if s.ID == "" || s.Name == "" || s.Description == "" || len(s.Tags) == 0 {
			return missing("skills" + index(i) + ": id, name, description or tags")
		}
	}
	for i, x := range c.Capabilities.Extensions {
		if x.URI == "" {
			return missing("capabilities.extensions" + index(i) + ".uri")
		}
	}
	return nil
}

// portable refuses what SDKs drop or write differently (A2A §2, "Portable form"). canonical is in RFC 8785 form.
func portable(path string, canonical json.RawMessage) error {
	refuse := func(what string) error {
		return envelope.Errorf(envelope.CodeInvalidRequest, "%s is %s; SDKs of A2A would leave it out or write it "+
			"differently, and the signature would not verify; leave it out, or write it as a text", path, what)
	}
	switch canonical[0] {
	case '{':
		if len(canonical) == 2 {
			return refuse("an empty object")
		}
		r := read(path, canonical)
		for _, name := range sorted(r.members) {
			inner := path + ".(a member)" // a name may hold any characters
			if envelope.ValidID(name) {
				inner = path + "." + name
			}
			if err := portable(inner, r.members[name]); err != nil {
				return err
			}
		}
		return r.err
	case '[':
		var elements []json.RawMessage
		if err := json.Unmarshal(canonical, &elements); err != nil || len(elements) == 0 {
			return refuse("an empty array")
		}
		for i, element := range elements {
			if err := portable(path+index(i), element); err != nil {
				return err
			}
		}
		return nil
	case '"':
		if len(canonical) == 2 {
			return refuse("an empty text")
		}
		return nil
	case 't':
		return nil
	case 'f':
		return refuse("false")
	case 'n':
		return refuse("null")
	}
	return refuse("a number")
}
