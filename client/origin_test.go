package client_test

import (
	"encoding/json"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestOrigin is B-16: a REQUEST of the gateway tells through which protocol it came, and who asks there. One that
// somebody else sends in the same form does not.
func TestOrigin(t *testing.T) {
	f, key, stranger := newFakeGateways(), newKey(t), newKey(t)
	agent := f.connect(t, key)
	for _, test := range []struct {
		thread, params, constraints string
		want                        client.Origin
	}{
		{"hub_1", `{"envelope":{"sender_id":"alice@relay.example"}}`, "", client.Origin{Protocol: "hub", Sender: "alice@relay.example"}},
		{"job_1", `{"text":"x"}`, `{"orchestrator_id":"acme"}`, client.Origin{Protocol: "jobs", Sender: "acme"}},
		{"job_2", `[1]`, `{"orchestrator_id":"acme"}`, client.Origin{Protocol: "jobs", Sender: "acme"}},
		{"dlv_1", `{"message":{"sender":"alice"}}`, "", client.Origin{Protocol: "channel", Sender: "alice"}},
		{"trn_1", `{"caller":{"kind":"key","name":"k"},"message":{"parts":[]}}`, "", client.Origin{Protocol: "a2a", Sender: "k"}},
		{"trn_2", `{"caller":{"kind":"anonymous"}}`, "", client.Origin{Protocol: "a2a"}},
		{"thread_1", `{"envelope":{"sender_id":"alice@relay.example"}}`, "", client.Origin{Protocol: "agora", Sender: string(f.key.DID())}},
	} {
		payload := map[string]any{"request_id": test.thread, "intent": "x", "params": json.RawMessage(test.params)}
		if test.constraints != "" {
			payload["constraints"] = json.RawMessage(test.constraints)
		}
		text, err := json.Marshal(payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, sender := range []envelope.Signer{f.key, stranger} {
			draft := envelope.Draft{Payload: envelope.Raw{Type: envelope.TypeRequest, JSON: text}, Recipient: key.DID(),
				Thread: test.thread, Seal: true}
			posted, _, err := f.connect(t, sender).Post(t.Context(), draft)
			if err != nil {
				t.Fatal(err)
			}
			page, err := agent.Events(t.Context(), client.Filter{Sender: sender.DID()}, "", 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Events {
				if e.ID != posted.ID {
					continue
				}
				want := test.want
				if sender.DID() == stranger.DID() {
					want = client.Origin{Protocol: "agora", Sender: string(stranger.DID())}
				}
				if got, err := agent.Origin(t.Context(), e); err != nil || got != want {
					t.Errorf("%s of %s: %+v, %v, want %+v", test.thread, e.Sender.ID, got, err, want)
				}
			}
		}
	}
}
