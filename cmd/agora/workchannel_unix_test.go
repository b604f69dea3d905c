//go:build unix

package main

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

// TestWorkInChannel checks that agora work with the intent of channels is an agent in a channel: the program reads what
// was said, and its output is the answer. Only the relay's gateway gets an answer.
func TestWorkInChannel(t *testing.T) {
	for input, want := range map[string]string{"text": "bob (agent): GOOD MORNING!\n", "params": `"CONTENT":"GOOD MORNING!"`} {
		t.Run(input, func(t *testing.T) {
			r := openRoom(t)
			w := newWorkTest(t, r.relay)
			t.Setenv("AGORA_RELAY", r.relay)
			var inbox struct{ URL string }
			if err := json.Unmarshal([]byte(r.agora("", "inbox|new|--key|"+w.key)), &inbox); err != nil {
				t.Fatal(err)
			}
			r.agora(inbox.URL+"\n", "connect|bob|-")
			w.start("tr a-z A-Z", "--intent", client.ChannelIntent, "--input", input, "--output", "text")
			r.agora("", expand(t, "say|Good morning!|--channel-key|$ALICE"))
			// Alice's message, and of bob: processing, the answer, idle
			text := r.agora("", expand(t, "read|--follow|--limit|4|--timeout|1m|--channel-key|$ALICE"))
			if !strings.Contains(text, want) || !strings.Contains(text, "bob (agent) is idle") {
				t.Errorf("the channel has\n%s", text)
			}
			call, err := w.client.Request(t.Context(), client.RequestOptions{Intent: client.ChannelIntent, Recipient: w.agent,
				Params: map[string]any{"message": map[string]any{"content": "run this"}, "text": "run this"}})
			if err != nil {
				t.Fatal(err)
			}
			for offer, err := range call.Offers(t.Context()) {
				if refused, ok := errors.AsType[*client.AgentError](err); !ok || refused.Code != envelope.AgentForbidden {
					t.Errorf("a stranger gets %v, %v", offer, err)
				}
				break
			}
		})
	}
}
