package client_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/thread"
)

// offerOf returns an offer with this payload, as it arrives from an agent.
func offerOf(t *testing.T, agent didkey.Key, payload string) client.Offer {
	t.Helper()
	e, err := envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeOffer, JSON: []byte(payload)}, Thread: "t"}.
		Sign(agent, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	o := client.Offer{Agent: agent.DID(), Envelope: e}
	if err := e.DecodePayload(&o.Offer); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestBest checks which offer each rule chooses.
func TestBest(t *testing.T) {
	a, b, c := newKey(t), newKey(t), newKey(t)
	const (
		dear    = `{"price":{"amount":2,"currency":"USD"},"eta_seconds":1,"plan":"dear"}`
		cheap   = `{"price":{"amount":1,"currency":"USD"},"eta_seconds":9,"plan":"cheap"}`
		quick   = `{"price":{"amount":1,"currency":"USD"},"eta_seconds":3,"plan":"quick"}`
		atOnce  = `{"price":{"amount":9,"currency":"USD"},"eta_seconds":0,"plan":"at once"}`
		past    = `{"price":{"amount":9,"currency":"USD"},"eta_seconds":-5,"plan":"past"}`
		free    = `{"plan":"free"}`
		refused = `{"plan":"refused"}`
	)
	for name, test := range map[string]struct {
		rule   client.Rule
		offers []client.Offer
		want   string // empty: none
	}{
		"none":                        {client.Cheapest, nil, ""},
		"only unacceptable ones":      {client.First, []client.Offer{offerOf(t, a, refused)}, ""},
		"cheapest":                    {client.Cheapest, []client.Offer{offerOf(t, a, dear), offerOf(t, b, cheap)}, "cheap"},
		"cheapest, then fastest":      {client.Cheapest, []client.Offer{offerOf(t, a, cheap), offerOf(t, b, quick)}, "quick"},
		"no price is free":            {client.Cheapest, []client.Offer{offerOf(t, a, cheap), offerOf(t, b, free)}, "free"},
		"fastest":                     {client.Fastest, []client.Offer{offerOf(t, a, cheap), offerOf(t, b, dear)}, "dear"},
		"no time is last":             {client.Fastest, []client.Offer{offerOf(t, a, free), offerOf(t, b, cheap)}, "cheap"},
		"a time of 0 is a time":       {client.Fastest, []client.Offer{offerOf(t, a, dear), offerOf(t, b, atOnce)}, "at once"},
		"a negative time is 0":        {client.Fastest, []client.Offer{offerOf(t, a, atOnce), offerOf(t, b, past)}, "at once"},
		"first":                       {client.First, []client.Offer{offerOf(t, a, refused), offerOf(t, b, dear), offerOf(t, c, cheap)}, "dear"},
		"equally good":                {client.Cheapest, []client.Offer{offerOf(t, b, free), offerOf(t, a, free)}, "free"},
		"only the newest of an agent": {client.Cheapest, []client.Offer{offerOf(t, a, cheap), offerOf(t, b, dear), offerOf(t, a, atOnce)}, "dear"},
		"the newest is unacceptable":  {client.Cheapest, []client.Offer{offerOf(t, a, cheap), offerOf(t, a, refused)}, ""},
	} {
		best, ok := test.rule.Best(test.offers, func(o client.Offer) bool { return o.Plan != "refused" })
		if best.Plan != test.want || ok != (test.want != "") {
			t.Errorf("%s: %q, %v; want %q", name, best.Plan, ok, test.want)
		}
		if name == "equally good" && best.Agent != b.DID() {
			t.Error("of equally good offers, the first one is not the best")
		}
	}
}

// TestAmount checks that a price without a number is not read as a free offer.
func TestAmount(t *testing.T) {
	key := newKey(t)
	for payload, want := range map[string]struct {
		amount float64
		ok     bool
	}{
		`{}`:             {0, true},
		`{"price":null}`: {0, true},
		`{"price":{"amount":0.5,"currency":"USD"}}`:  {0.5, true},
		`{"price":{"amount":0,"currency":"USD"}}`:    {0, true},
		`{"price":{"currency":"USD"}}`:               {0, false},
		`{"price":{"amount":null,"currency":"USD"}}`: {0, false},
		`{"price":{"Amount":1,"currency":"USD"}}`:    {0, false},
	} {
		if amount, ok := offerOf(t, key, payload).Amount(); amount != want.amount || ok != want.ok {
			t.Errorf("%s: %v, %v", payload, amount, ok)
		}
	}
}

// TestUnusualPrices checks that a call accepts neither a price without a number nor a negative one, and that the ACCEPT
// of an offer without a price promises 0.
func TestUnusualPrices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		for payload, acceptable := range map[string]bool{
			`"price":{"currency":"USD"}`: false, `"price":{"amount":-1,"currency":"USD"}`: false, `"plan":"free"`: true,
		} {
			call, id := p.request(client.RequestOptions{})
			p.post(p.agentClient, call, envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeOffer,
				JSON: []byte(`{"request_id":"` + id + `",` + payload + `}`)}})
			offer, err := firstOffer(t.Context(), call)
			if err != nil {
				t.Fatal(err)
			}
			if err := call.Accept(t.Context(), offer); (err == nil) != acceptable {
				t.Errorf("%s: %v", payload, err)
			}
		}
		accepts := slices.DeleteFunc(p.relay.all(), func(e *envelope.Envelope) bool { return e.Type != envelope.TypeAccept })
		var accept envelope.Accept
		if len(accepts) != 1 || accepts[0].DecodePayload(&accept) != nil || accept.Terms.PriceUSD == nil || *accept.Terms.PriceUSD != 0 {
			t.Errorf("accepted: %+v", accepts)
		}
	})
}

// TestIsOpen checks that only the newest open offer of an agent counts as open.
func TestIsOpen(t *testing.T) {
	a, b := newKey(t), newKey(t)
	first, second, other := offerOf(t, a, `{}`), offerOf(t, a, `{}`), offerOf(t, b, `{}`)
	record := client.Thread{Thread: thread.Thread{Offers: []thread.Offer{{Agent: a.DID(), ID: first.Envelope.ID}, {Agent: a.DID(), ID: second.Envelope.ID}}}}
	if record.IsOpen(first) || !record.IsOpen(second) || record.IsOpen(other) {
		t.Error("the first, the second or the other offer")
	}
}
