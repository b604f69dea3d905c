package client_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestHubMessage is B-8: the message of the hub in a REQUEST of the gateway. Another sender, intent or form is refused.
func TestHubMessage(t *testing.T) {
	f, key := newFakeGateways(), newKey(t)
	agent := f.connect(t, key)
	whole := `{"agent_id":"bob@x","id":7,"trace_id":"t","envelope":{"sender_id":"alice@x","original_text":"hi","turn_number":3}}`
	for name, test := range map[string]struct {
		sender envelope.Signer
		intent string
		params string
		want   string // in the error; empty: none
	}{
		"a message":       {f.key, client.HubIntent, whole, ""},
		"of a stranger":   {newKey(t), client.HubIntent, whole, "gateway"},
		"another intent":  {f.key, "chorus.other", whole, client.HubIntent},
		"without sender":  {f.key, client.HubIntent, `{"envelope":{"original_text":"hi"}}`, "sender_id"},
		"without a text":  {f.key, client.HubIntent, `{"envelope":{"sender_id":"alice@x"}}`, "original_text"},
		"of another form": {f.key, client.HubIntent, `[]`, "malformed"},
	} {
		posted, _, err := f.connect(t, test.sender).Post(t.Context(), envelope.Draft{Seal: true, Recipient: key.DID(),
			Payload: envelope.Request{Intent: test.intent, Params: json.RawMessage(test.params)}})
		if err != nil {
			t.Fatal(err)
		}
		page, err := agent.Events(t.Context(), client.Filter{Sender: test.sender.DID()}, "", 100)
		if err != nil {
			t.Fatal(err)
		}
		request := page.Events[slices.IndexFunc(page.Events, func(e *envelope.Envelope) bool { return e.ID == posted.ID })]
		m, err := agent.HubMessage(t.Context(), request)
		if test.want == "" {
			if err != nil || m.ID != 7 || m.Envelope.Text != "hi" || m.Envelope.SenderID != "alice@x" || m.Envelope.TurnNumber != 3 {
				t.Errorf("%s: %+v, %v", name, m, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
}

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
