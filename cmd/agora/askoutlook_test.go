package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/cmd/agora/internal/trade"
	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
)

// announce posts a manifest with one intent for this price in USD, and returns the DID of the agent.
func announce(t *testing.T, url, intent string, price float64) didkey.DID {
	t.Helper()
	key := newKey(t)
	m := envelope.Manifest{ID: "cap_x", Intents: []envelope.Intent{{ID: intent}}, Pricing: &envelope.Pricing{Model: "fixed", Currency: "USD", FixedPrice: price}}
	if _, _, err := connectAs(t, url, key).Post(t.Context(), envelope.Draft{Payload: m}); err != nil {
		t.Fatal(err)
	}
	return key.DID()
}

// TestAskLooksAhead checks what agora ask says before it waits for offers that are not likely to come, and at the end.
func TestAskLooksAhead(t *testing.T) {
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	bob := announce(t, s.relay, "translation.en_zh", 0.05)
	announce(t, s.relay, "translation.en_zh", 0.04)
	announce(t, s.relay, hostile, 0)
	for name, c := range map[string]struct {
		args       []string
		first, end string
	}{
		"nobody": {[]string{"translation.en_zz"}, "agora: nobody announces translation.en_zz; the nearest names are translation.en_zh, ", "; nobody announces translation.en_zz;"},
		"too dear": {[]string{"translation.en_zh", "--max-cost", "0.01"}, "agora: the cheapest agent announces 0.04 USD for translation.en_zh, and --max-cost is 0.01; waiting 100ms",
			"; the cheapest agent announces 0.04 USD"},
		"not this agent": {[]string{"echo", "--to", string(bob)}, "agora: " + string(bob) + " does not announce echo; the nearest names are translation.en_zh; waiting", "does not announce echo"},
		"declined": {[]string{"translation.en_zh", "--max-cost", "1"}, "",
			"an agent that declines says why only if you ask it with --to DID; agents that announce translation.en_zh: 2, online: 2; perhaps the --params are not what they need"},
	} {
		t.Run(name, func(t *testing.T) {
			r := alice.ask(append(c.args, "--wait", "100ms")...)
			r.want(t, trade.OutcomeNoOffer, "", c.first)
			failed := strings.Index(r.stderr, "agora: there was no offer within 100ms; agora agents ")
			if said := strings.Index(r.stderr, c.first); failed < said || !strings.Contains(r.stderr[max(failed, 0):], c.end) {
				t.Errorf("printed\n%s", r.stderr)
			}
			for _, words := range []string{"agora ask --thread", "agora send cancel --thread"} { // the request is still open
				if !strings.Contains(r.stderr, words) {
					t.Errorf("does not say %q:\n%s", words, r.stderr)
				}
			}
			if found := foundIn(r.stderr); len(found) > 0 {
				t.Errorf("printed %q", found)
			}
			// If nobody is likely to offer, the first command is the one that helps.
			cancelFirst := strings.LastIndex(r.stderr, "agora send cancel") < strings.LastIndex(r.stderr, "agora ask --thread")
			if cancelFirst != (c.first != "") || strings.Contains(r.stderr, "ask again with --max-cost 0.04") != (name == "too dear") {
				t.Errorf("advised\n%s", r.stderr)
			}
		})
	}
	for args, want := range map[string]string{"--max-cost -1": "no number may be negative here",
		"--params hello": "double quotes: not valid JSON"} {
		if r := alice.ask(append([]string{"echo"}, strings.Fields(args)...)...); r.code != 2 || !strings.Contains(r.stderr, want) {
			t.Errorf("%s: %d, %s", args, r.code, r.stderr)
		}
	}
}

// TestAskExplainsSilence checks that agora ask says why there may be no offer while it still waits.
func TestAskExplainsSilence(t *testing.T) {
	t.Parallel()
	s := startServe(t, "--data", filepath.Join(t.TempDir(), "data"))
	alice := newAsker(t, s.relay)
	announce(t, s.relay, "picky", 0)
	serveAgent(t, s.relay, "picky", 0, client.Handler{Quote: func(context.Context, client.Job) (envelope.Offer, error) {
		return envelope.Offer{}, &client.AgentError{Code: envelope.AgentInvalidRequest, Message: "text is missing"}
	}})
	r := alice.ask("picky", "--params", "{}", "--max-cost", "1", "--wait", (trade.Silence + time.Second).String())
	r.want(t, trade.OutcomeNoOffer, "", "agora: no offer after 5s; agora agents shows who is there; an agent that declines says why only if you ask it with --to DID")
	if strings.Index(r.stderr, "no offer after 5s") > strings.Index(r.stderr, "there was no offer within 6s") {
		t.Errorf("printed\n%s", r.stderr)
	}
}
