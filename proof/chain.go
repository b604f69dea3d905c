package proof

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/agora-relay/agora/envelope"
)

// Deal is what a chain proves without any relay (RELAYS R-7): what the client has asked for, and what an agent has
// offered. With an ACCEPT, the client has chosen this agent. With a RESULT, the agent has delivered it.
type Deal struct {
	Request, Offer *envelope.Envelope
	Accept, Result *envelope.Envelope // nil: the chain ends before
}

// Price returns the price of the OFFER. It returns nil if the OFFER has none, or if its payload is sealed.
func (d *Deal) Price() *envelope.Price {
	var payload struct {
		Price *struct {
			Amount   *float64 `json:"amount"`
			Currency string   `json:"currency"`
		} `json:"price"`
	}
	err := d.Offer.DecodePayload(&payload)
	if p := payload.Price; err == nil && p != nil && p.Amount != nil {
		return &envelope.Price{Amount: *p.Amount, Currency: p.Currency}
	}
	return nil
}

// chainTypes are the types of the messages of a chain, in their order.
var chainTypes = []envelope.Type{envelope.TypeRequest, envelope.TypeOffer, envelope.TypeAccept, envelope.TypeResult}

// ChainError says which message of a chain is not valid, or does not answer the one before it.
type ChainError struct {
	Index int // of the message, from 0; those before it are valid
	Type  envelope.Type
	Err   error
}

func (e *ChainError) Error() string {
	return fmt.Sprintf("message %d, %s: %v", e.Index+1, e.Type, e.Err)
}

// Unwrap returns e.Err.
func (e *ChainError) Unwrap() error { return e.Err }

// ParseMessages reads messages, such as those of a chain or of evidence. It checks their form only.
func ParseMessages(texts []json.RawMessage) ([]*envelope.Envelope, error) {
	messages := make([]*envelope.Envelope, len(texts))
	for i, text := range texts {
		var err error
		if messages[i], err = envelope.Parse(text, MaxEvidence); err != nil {
			return nil, fmt.Errorf("message %d: %w", i+1, err)
		}
	}
	return messages, nil
}

// VerifyChain checks that messages are a chain (RELAYS R-6, PROTOCOL §4): a REQUEST with meta.home, an OFFER, and
// perhaps an ACCEPT and a RESULT. Each is signed and names by its hash the one that it answers. It returns what they
// prove. An error that is about one of the messages is a *ChainError.
func VerifyChain(messages []*envelope.Envelope) (*Deal, error) {
	if len(messages) < 2 || len(messages) > len(chainTypes) {
		return nil, errors.New("a chain has two to four messages: a REQUEST, an OFFER, and perhaps an ACCEPT and a RESULT")
	}
	for i, m := range messages {
		if err := checkLink(messages[:i], m); err != nil {
			return nil, &ChainError{i, m.Type, err}
		}
	}
	d := &Deal{Request: messages[0], Offer: messages[1]}
	for i, m := range []**envelope.Envelope{&d.Accept, &d.Result} {
		if i+2 < len(messages) {
			*m = messages[i+2]
		}
	}
	return d, nil
}

// checkLink checks that m is valid and answers the last message before it.
func checkLink(before []*envelope.Envelope, m *envelope.Envelope) error {
	if want := chainTypes[len(before)]; m.Type != want {
		return fmt.Errorf("at this place of a chain stands %s", want)
	}
	if err := m.Verify(); err != nil {
		return err
	}
	if len(before) == 0 {
		if m.Home == nil {
			return errors.New("it has no meta.home; without it, messages need not say what they answer")
		}
		return nil
	}
	request, last := before[0], before[len(before)-1]
	switch {
	case m.Home == nil || *m.Home != *request.Home:
		return errors.New("its meta.home is not that of the REQUEST")
	case m.Re == (envelope.Hash{}):
		return fmt.Errorf("it has no meta.re, so it does not say which %s it answers", last.Type)
	case m.Re != last.Hash():
		return fmt.Errorf("its meta.re is not the hash of the %s, so it answers another message", last.Type)
	case m.Thread != request.Thread:
		return errors.New("it is of another thread than the REQUEST")
	case m.RequestID != request.RequestID:
		return errors.New("its request_id is not that of the REQUEST")
	}
	return checkParties(before, m)
}

// checkParties checks who has sent m, and to whom. Without a recipient, a message is for everybody.
func checkParties(before []*envelope.Envelope, m *envelope.Envelope) error {
	request := before[0]
	client, agent := request.Sender.ID, m.Sender.ID
	if len(before) > 1 {
		agent = before[1].Sender.ID
	}
	switch {
	case m.Type == envelope.TypeOffer && (agent == client || request.Recipient != "" && agent != request.Recipient):
		return errors.New("its sender is not an agent that the REQUEST asks")
	case m.Type == envelope.TypeAccept && m.Sender.ID != client:
		return errors.New("its sender is not that of the REQUEST")
	case m.Type == envelope.TypeResult && m.Sender.ID != agent:
		return errors.New("its sender is not that of the OFFER")
	}
	to := client
	if m.Type == envelope.TypeAccept {
		to = agent
	}
	if m.Recipient != "" && m.Recipient != to {
		return errors.New("it is for somebody else")
	}
	return nil
}

// accepts checks two chains of one client (RELAYS R-9).
func (e *Evidence) accepts() (Finding, error) {
	messages, err := ParseMessages(e.Events)
	if err != nil {
		return Finding{}, err
	}
	var deals [2]*Deal
	for i := range deals {
		if deals[i], err = VerifyChain(messages[3*i : 3*i+3]); err != nil {
			return Finding{}, fmt.Errorf("chain %d: %w", i+1, err)
		}
	}
	a, b := deals[0], deals[1]
	if a.Offer.Sender.ID == b.Offer.Sender.ID {
		return Finding{}, errors.New("both OFFERs are by one agent")
	}
	if err := checkJob(a.Request, b.Request); err != nil {
		return Finding{}, err
	}
	return Finding{Client: a.Request.Sender.ID, Kind: KindAccepts, Text: fmt.Sprintf("the client has accepted two agents "+
		"for one job: %s and %s", a.Offer.Sender.ID, b.Offer.Sender.ID)}, nil
}

// checkJob checks that two REQUESTs ask for one job (RELAYS §4). Only its recipient can compare a sealed payload.
func checkJob(a, b *envelope.Envelope) error {
	switch {
	case a.Sender.ID != b.Sender.ID:
		return errors.New("the REQUESTs are by two clients")
	case root(a) != root(b):
		return errors.New("the REQUESTs are of two jobs: neither continues the other, nor both the same one")
	case a.Sealed() || b.Sealed():
		return errors.New("the payload of a REQUEST is sealed, so nobody else can tell what it asks for")
	}
	same, err := withoutRequestID(a)
	if err != nil {
		return err
	}
	other, err := withoutRequestID(b)
	if err == nil && !bytes.Equal(same, other) {
		err = errors.New("the REQUESTs have different payloads, so they are of two jobs")
	}
	return err
}

// root returns the root of the job of a REQUEST: what it continues, or else its own hash.
func root(request *envelope.Envelope) envelope.Hash {
	if request.Continues != (envelope.Hash{}) {
		return request.Continues
	}
	return request.Hash()
}

// withoutRequestID returns the payload of a REQUEST without its request_id.
func withoutRequestID(request *envelope.Envelope) ([]byte, error) {
	members := map[string]json.RawMessage{}
	if err := json.Unmarshal(request.Payload, &members); err != nil {
		return nil, err
	}
	delete(members, "request_id")
	return json.Marshal(members)
}
