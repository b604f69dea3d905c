package proof

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/testvectors"
)

// TestChainError checks that the error of a chain says which link is wrong (RELAYS ). The vectors of
// testvectors/relays.json test what is accepted and what is refused.
func TestChainError(t *testing.T) {
	tried := map[envelope.Type]int{}
	for _, v := range testvectors.Relays() {
		var texts []json.RawMessage
		if v.Chain == nil || v.Expect != testvectors.Reject || json.Unmarshal(v.Chain, &texts) != nil {
			continue
		}
		messages, err := ParseMessages(texts)
		if err != nil {
			continue
		}
		_, err = VerifyChain(messages)
		wrong, ok := errors.AsType[*ChainError](err)
		if !ok {
			continue // the number of messages is wrong
		}
		if wrong.Index >= len(messages) || wrong.Type != messages[wrong.Index].Type || errors.Unwrap(wrong) == nil {
			t.Errorf("%s: %+v", v.Name, wrong)
		}
		if v.Name == "chain-without-home" && wrong.Index != 0 {
			t.Errorf("%s: message %d is wrong, want 0", v.Name, wrong.Index)
		}
		for i, typ := range chainTypes {
			if !strings.HasPrefix(v.Name, "chain-"+strings.ToLower(string(typ))+"-") {
				continue
			}
			if tried[typ]++; wrong.Index != i {
				t.Errorf("%s: message %d is wrong, want %d", v.Name, wrong.Index, i)
			}
		}
	}
	if tried[envelope.TypeOffer] < 6 || tried[envelope.TypeAccept] < 6 || tried[envelope.TypeResult] < 6 {
		t.Errorf("the vectors have only %v", tried)
	}
}

// TestOpenedChain checks that the price of a sealed OFFER is there once the OFFER is opened.
func TestOpenedChain(t *testing.T) {
	client, agent, now := seeded(t, 2), seeded(t, 3), time.Date(2026, 2, 2, 12, 0, 0, 0, time.UTC)
	home := &envelope.Home{DID: seeded(t, 1).DID(), URL: "https://a.example"}
	request, err := envelope.Draft{Thread: "t", Recipient: agent.DID(), Home: home,
		Payload: envelope.Request{RequestID: "r", Intent: "echo"}}.Sign(client, now)
	if err != nil {
		t.Fatal(err)
	}
	offer, err := envelope.Draft{Thread: "t", Recipient: client.DID(), Home: home, Re: request.Hash(), Seal: true,
		Payload: envelope.Offer{RequestID: "r", Price: &envelope.Price{Amount: 2, Currency: "EUR"}}}.Sign(agent, now)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := offer.Open(client)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		offer *envelope.Envelope
		want  *envelope.Price
	}{{offer, nil}, {opened, &envelope.Price{Amount: 2, Currency: "EUR"}}} {
		d, err := VerifyChain([]*envelope.Envelope{request, test.offer})
		if err != nil || d.Accept != nil || !reflect.DeepEqual(d.Price(), test.want) {
			t.Errorf("%+v, %v", d, err)
		}
	}
}
