package client_test

import (
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// TestOutlook checks what the directory says about requests: who announces the intent, for which price, and which names
// are the nearest if nobody does.
func TestOutlook(t *testing.T) {
	r, err := newRealRelay(relay.ToAll)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	alice := newClientVia(t, r.URL, newKey(t), http.DefaultTransport.RoundTrip)
	announce := func(pricing *envelope.Pricing, intents ...string) (who *client.Client) {
		key := newKey(t)
		who = newClientVia(t, r.URL, key, http.DefaultTransport.RoundTrip)
		m := envelope.Manifest{ID: "cap_x", Pricing: pricing}
		for _, id := range intents {
			m.Intents = append(m.Intents, envelope.Intent{ID: id})
		}
		if _, _, err := who.Post(t.Context(), envelope.Draft{Payload: m}); err != nil {
			t.Fatal(err)
		}
		return who
	}
	fixed := func(price float64) *envelope.Pricing {
		return &envelope.Pricing{Model: "fixed", Currency: "USD", FixedPrice: price}
	}
	look := func(intent string, maxCost float64) string {
		t.Helper()
		o, err := alice.Outlook(t.Context(), client.RequestOptions{Intent: intent, Constraints: &envelope.Constraints{MaxCostUSD: &maxCost}})
		if err != nil {
			t.Fatal(err)
		}
		price := "?"
		if o.Price != nil {
			price = fmt.Sprint(*o.Price)
		}
		return fmt.Sprintf("%d/%d for %s, dear %v, nearest %q", o.Online, o.Agents, price, o.TooDear(), o.Nearest)
	}
	check := func(intent string, maxCost float64, want string) {
		t.Helper()
		if got := look(intent, maxCost); got != want {
			t.Errorf("%s for at most %v: %s, want %s", intent, maxCost, got, want)
		}
	}
	if _, _, err := alice.Post(t.Context(), envelope.Draft{Payload: envelope.Manifest{ID: "cap_z", Intents: []envelope.Intent{{ID: "own"}}}}); err != nil {
		t.Fatal(err)
	}
	check("own", 1, `0/0 for ?, dear false, nearest []`) // nobody else offers it
	announce(fixed(0.05), "translation.en_zh")
	announce(fixed(0.03), "translation.en_zh", "text.upper")
	announce(&envelope.Pricing{Model: "free"}, "echo")
	announce(fixed(0.5), "summary")
	check("translation.en_zh", 0.01, `2/2 for 0.03, dear true, nearest []`)
	check("translation.en_zh", 0.03, `2/2 for 0.03, dear false, nearest []`)
	check("echo", 0, `1/1 for 0, dear false, nearest []`)
	check("translation.en_zz", 1, `0/0 for ?, dear false, nearest ["translation.en_zh" "text.upper" "echo" "summary"]`)
	check("upper", 1, `0/0 for ?, dear false, nearest ["text.upper" "echo" "summary" "translation.en_zh"]`)
	announce(nil, "summary") // the price of one of them is not known
	check("summary", 0.01, `2/2 for ?, dear false, nearest []`)

	key := newKey(t)
	bob := newClientVia(t, r.URL, key, http.DefaultTransport.RoundTrip)
	if _, _, err := bob.Post(t.Context(), envelope.Draft{Payload: envelope.Manifest{ID: "cap_y", Intents: []envelope.Intent{{ID: "echo"}}}}); err != nil {
		t.Fatal(err)
	}
	for intent, want := range map[string]client.Outlook{"echo": {Agents: 1, Online: 1}, "ehco": {Nearest: []string{"echo"}}} {
		got, err := alice.Outlook(t.Context(), client.RequestOptions{Intent: intent, Recipient: key.DID()})
		if err != nil || got.Agents != want.Agents || got.Online != want.Online || !slices.Equal(got.Nearest, want.Nearest) {
			t.Errorf("%s of one agent: %+v, %v", intent, got, err)
		}
	}
	if got, err := alice.Outlook(t.Context(), client.RequestOptions{Intent: "echo", Recipient: newKey(t).DID()}); err != nil || !got.Nobody() {
		t.Errorf("of an unknown agent: %+v, %v", got, err)
	}
}
