package envelope

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/agora-relay/agora/didkey"
)

// Payload is a payload that this package can build. Its Go type determines the type of the message.
type Payload interface{ messageType() Type }

// TypeOf returns the type of the message that has this payload.
func TypeOf(p Payload) Type { return p.messageType() }

// Request asks for a service (REQUEST). If RequestID is empty, Draft.Sign makes one.
type Request struct {
	RequestID   string          `json:"request_id,omitempty"`
	Intent      string          `json:"intent"`
	Title       string          `json:"title,omitempty"`
	Description string          `json:"description,omitempty"`
	Params      json.RawMessage `json:"params,omitempty"`
	Constraints *Constraints    `json:"constraints,omitempty"`
}

// Constraints limit which offers the client accepts. Agents and clients check them; relays do not.
type Constraints struct {
	MaxCostUSD   *float64   `json:"max_cost_usd,omitempty"`
	MaxLatencyMS int64      `json:"max_latency_ms,omitempty"` // milliseconds
	Deadline     *time.Time `json:"deadline,omitempty"`
}

// Offer proposes a price and a plan (OFFER).
type Offer struct {
	RequestID  string     `json:"request_id,omitempty"`
	Plan       string     `json:"plan,omitempty"`
	Price      *Price     `json:"price,omitempty"`
	ETASeconds float64    `json:"eta_seconds,omitempty"`
	ValidUntil *time.Time `json:"valid_until,omitempty"`
}

// Price is an amount of money.
type Price struct {
	Amount   float64 `json:"amount"`
	Currency string  `json:"currency"` // ISO 4217
}

// Accept accepts an offer (ACCEPT).
type Accept struct {
	RequestID  string     `json:"request_id,omitempty"`
	AcceptedAt *time.Time `json:"accepted_at,omitempty"`
	Terms      *Terms     `json:"terms,omitempty"`
}

// Terms are the conditions that the client has accepted.
type Terms struct {
	PriceUSD *float64   `json:"price_usd,omitempty"`
	Deadline *time.Time `json:"deadline,omitempty"`
}

// IsGatewayIntent reports whether only the gateways of a relay send REQUESTs with this intent. Agents take such a REQUEST
// only from the DID in the relay's document.
func IsGatewayIntent(intent string) bool {
	return strings.HasPrefix(intent, "chorus.") || strings.HasPrefix(intent, "a2a.")
}

// Result delivers the result of the work (RESULT). Status is required; by convention it is "success".
type Result struct {
	RequestID string          `json:"request_id,omitempty"`
	Status    string          `json:"status"`
	Output    json.RawMessage `json:"output,omitempty"`
	Artifacts json.RawMessage `json:"artifacts,omitempty"`
	Metrics   json.RawMessage `json:"metrics,omitempty"`
}

// Failure reports an error, which ends the thread or withdraws an offer (ERROR). Code and Message are required.
type Failure struct {
	RequestID string          `json:"request_id,omitempty"`
	Code      AgentCode       `json:"code"`
	Message   string          `json:"message"`
	Details   json.RawMessage `json:"details,omitempty"`
}

// Cancel cancels a request (CANCEL).
type Cancel struct {
	RequestID string `json:"request_id,omitempty"`
	Reason    string `json:"reason,omitempty"`
}

// Manifest declares an agent's capabilities (MANIFEST; Agora v1.0 "Capability Manifest").
type Manifest struct {
	ID                 string   `json:"id"`
	Name               string   `json:"name,omitempty"`
	Description        string   `json:"description,omitempty"`
	Version            string   `json:"version,omitempty"`
	Intents            []Intent `json:"intents"`
	Pricing            *Pricing `json:"pricing,omitempty"`
	PrivacyPolicy      string   `json:"privacy_policy,omitempty"`
	SupportedLanguages []string `json:"supported_languages,omitempty"`
	Auth               *Auth    `json:"auth,omitempty"`
	Relays             []Home   `json:"relays,omitempty"` // where the agent reads, the preferred relay first (RELAYS R-10)
}

// Address is where an agent can be reached through another protocol (PROTOCOL §6). A MANIFEST may have a list of them. It
// is no member of Manifest, because relays do not read it.
type Address struct {
	Protocol string `json:"protocol"` // "hub", "jobs" or "a2a"
	Address  string `json:"address"`
}

// WithAddresses returns the payload of a MANIFEST with payload.addresses, unless it has some already or there are none.
func WithAddresses(manifest Payload, addresses []Address) (Payload, error) {
	if len(addresses) == 0 {
		return manifest, nil
	}
	return withMember(manifest, "addresses", addresses)
}

// WithRelays returns the payload of a MANIFEST with payload.relays, unless it has some already or there are none.
func WithRelays(manifest Payload, relays []Home) (Payload, error) {
	if len(relays) == 0 {
		return manifest, nil
	}
	return withMember(manifest, "relays", relays)
}

// withMember returns the payload of a MANIFEST with one more member, unless it has that already.
func withMember(manifest Payload, name string, value any) (Payload, error) {
	text, err := json.Marshal(manifest)
	if err != nil {
		return nil, err
	}
	members := map[string]json.RawMessage{}
	if err = json.Unmarshal(text, &members); err == nil && members[name] == nil {
		members[name], err = json.Marshal(value)
	}
	if err == nil {
		text, err = json.Marshal(members)
	}
	return Raw{Type: TypeManifest, JSON: text}, err
}

// MaxRelays is how many relays a Manifest may name.
const MaxRelays = 4

// ValidRelays reports whether all may be the relays of a Manifest: 1 to MaxRelays, each with a did:key and an origin,
// and no DID twice (RELAYS R-10).
func ValidRelays(all []Home) bool {
	named := map[didkey.DID]bool{}
	for _, r := range all {
		if !r.valid() || named[r.DID] {
			return false
		}
		named[r.DID] = true
	}
	return len(all) >= 1 && len(all) <= MaxRelays
}

// Intent is one service in a Manifest. The schemas are JSON Schemas.
type Intent struct {
	ID           string          `json:"id"`
	Name         string          `json:"name,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema,omitempty"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
}

// Pricing is the cost model in a Manifest. Model is free, fixed, metered or subscription.
type Pricing struct {
	Model       string  `json:"model"`
	Currency    string  `json:"currency,omitempty"`
	FixedPrice  float64 `json:"fixed_price,omitempty"`
	MeteredUnit string  `json:"metered_unit,omitempty"`
	MeteredRate float64 `json:"metered_rate,omitempty"`
}

// Auth announces the public key of the sender, in the form of didkey.DID.Multibase.
type Auth struct {
	Methods   []string `json:"methods,omitempty"`
	PublicKey string   `json:"public_key,omitempty"`
}

// Raw is a payload written by hand. It is signed with all its members, known or not.
type Raw struct {
	Type Type
	JSON json.RawMessage
}

// MarshalJSON returns r.JSON.
func (r Raw) MarshalJSON() ([]byte, error) { return r.JSON, nil }

func (r Raw) messageType() Type    { return r.Type }
func (Request) messageType() Type  { return TypeRequest }
func (Offer) messageType() Type    { return TypeOffer }
func (Accept) messageType() Type   { return TypeAccept }
func (Result) messageType() Type   { return TypeResult }
func (Failure) messageType() Type  { return TypeError }
func (Cancel) messageType() Type   { return TypeCancel }
func (Manifest) messageType() Type { return TypeManifest }
