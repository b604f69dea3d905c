package trade

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/agora-relay/agora/cmd/agora/internal/cli"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// MessageRow is a message for --format.
type MessageRow struct {
	Time       string // when it was signed, RFC 3339 in UTC
	Type       string
	ID         string
	Thread     string
	From       didkey.DID
	FromName   string // "me", or the name in the address book
	SenderName string // as the sender calls itself
	To         didkey.DID
	ToName     string
	Intent     string
	Price      string // of an OFFER or an ACCEPT, such as 0.005 USD
	Summary    string // the most important of the payload
	Sealed     bool
	Payload    map[string]any // empty if it is sealed to somebody else
	Envelope   string         // the signed message, as JSON
}

// newMessageRow returns what a template shows of a message.
func newMessageRow(p cli.People, e *envelope.Envelope) MessageRow {
	row := MessageRow{Time: envelope.FormatTime(e.TS), Type: string(e.Type), ID: e.ID, Thread: e.Thread, From: e.Sender.ID,
		FromName: p.Name(e.Sender.ID), SenderName: e.Sender.Name, To: e.Recipient, ToName: p.Name(e.Recipient),
		Intent: e.PayloadString("intent"), Price: price(e), Summary: summary(e), Sealed: e.Sealed(), Payload: map[string]any{},
		Envelope: string(e.Canonical())}
	if !e.Sealed() || e.Opened {
		_ = json.Unmarshal(e.Payload, &row.Payload) // a verified payload is an object
	}
	return row
}

// Summary returns what is most important in the payload of a message, for a line of text. It is the text of others.
func summary(e *envelope.Envelope) string {
	if e.Sealed() && !e.Opened {
		return strings.TrimSpace(e.PayloadString("intent") + " (sealed)")
	}
	switch e.Type {
	case envelope.TypeRequest:
		return requestSummary(e)
	case envelope.TypeOffer:
		var offer envelope.Offer
		_ = e.DecodePayload(&offer) // what does not fit is left out
		eta := ""
		if offer.ETASeconds > 0 {
			eta = "in " + strconv.FormatFloat(offer.ETASeconds, 'f', -1, 64) + "s"
		}
		return JoinWords(price(e), eta, offer.Plan)
	case envelope.TypeAccept:
		return price(e)
	case envelope.TypeResult:
		var result envelope.Result
		_ = e.DecodePayload(&result)
		status := result.Status
		if status == "success" && len(result.Output) > 0 {
			status = ""
		}
		return JoinWords(status, string(result.Output))
	case envelope.TypeError:
		return JoinWords(e.PayloadString("code"), e.PayloadString("message"))
	case envelope.TypeCancel:
		return e.PayloadString("reason")
	case envelope.TypeManifest:
		return manifestSummary(e)
	}
	return ""
}

func requestSummary(e *envelope.Envelope) string {
	var request envelope.Request
	_ = e.DecodePayload(&request)
	most := ""
	if c := request.Constraints; c != nil && c.MaxCostUSD != nil {
		most = "≤ " + amount(*c.MaxCostUSD, "USD")
	}
	return JoinWords(cmp.Or(request.Intent, e.PayloadString("intent")), most, cli.Quoted(request.Title), string(request.Params))
}

func manifestSummary(e *envelope.Envelope) string {
	m := ManifestOf(e)
	return JoinWords(cli.Quoted(m.Name), strings.Join(m.IntentIDs(), " "))
}

// JoinWords joins the texts that are not empty.
func JoinWords(all ...string) string {
	var words []string
	for _, word := range all {
		if word != "" {
			words = append(words, word)
		}
	}
	return strings.Join(words, " ")
}

// Price returns the price in an OFFER or an ACCEPT; empty: there is none, or it is not one.
func price(e *envelope.Envelope) string {
	if e.Sealed() && !e.Opened {
		return ""
	}
	switch e.Type {
	case envelope.TypeOffer:
		var offer envelope.Offer
		if e.DecodePayload(&offer) == nil && offer.Price != nil {
			return amount(offer.Price.Amount, offer.Price.Currency)
		}
	case envelope.TypeAccept:
		var accept envelope.Accept
		if e.DecodePayload(&accept) == nil && accept.Terms != nil && accept.Terms.PriceUSD != nil {
			return amount(*accept.Terms.PriceUSD, "USD")
		}
	}
	return ""
}

func amount(number float64, currency string) string {
	return strings.TrimSpace(strconv.FormatFloat(number, 'f', -1, 64) + " " + currency)
}

// Manifest is what tables show of a MANIFEST.
type manifest struct {
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Intents     []envelope.Intent `json:"intents"`
	Pricing     *envelope.Pricing `json:"pricing"`
}

// addressesOf returns the addresses in a MANIFEST. Those that have another form than they should are left out.
func addressesOf(e *envelope.Envelope) (all []envelope.Address) {
	var m struct {
		Addresses []json.RawMessage `json:"addresses"`
	}
	if e.DecodePayload(&m) != nil {
		return nil
	}
	for _, text := range m.Addresses {
		var a envelope.Address
		if json.Unmarshal(text, &a) == nil {
			all = append(all, a)
		}
	}
	return all
}

// ManifestOf returns what is in a MANIFEST. Members that have another form than they should are left out.
func ManifestOf(e *envelope.Envelope) (m manifest) {
	if e.DecodePayload(&m) == nil {
		return m
	}
	m = manifest{Name: e.PayloadString("name"), Description: e.PayloadString("description")}
	var only struct {
		Intents []envelope.Intent `json:"intents"`
	}
	if e.DecodePayload(&only) == nil {
		m.Intents = only.Intents
	}
	return m
}

// IntentIDs returns the ids of the intents.
func (m manifest) IntentIDs() (ids []string) {
	for _, intent := range m.Intents {
		ids = append(ids, intent.ID)
	}
	return ids
}

// Price returns what the agent asks for, such as "0.01 USD" or "free".
func (m manifest) price() string {
	switch p := m.Pricing; {
	case p == nil:
		return ""
	case p.FixedPrice > 0:
		return amount(p.FixedPrice, p.Currency)
	case p.MeteredRate > 0:
		return amount(p.MeteredRate, p.Currency) + "/" + cmp.Or(p.MeteredUnit, "unit")
	default:
		return p.Model
	}
}
