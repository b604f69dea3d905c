//go:build !race

package relay_test

import (
	"log/slog"
	"testing"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// TestPublishWithoutMatchAllocatesNothing checks that a post allocates nothing for polls that it does not match.
func TestPublishWithoutMatchAllocatesNothing(t *testing.T) {
	_, _, publish := startWaitingPolls(t, 100)
	event := []relay.Posted{{Event: relay.Event{Seq: 1},
		Envelope: &envelope.Envelope{Type: envelope.TypeRequest, Recipient: newKey(t).DID(), Thread: "t"}}}
	if n := testing.AllocsPerRun(100, func() { publish(event) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAdmissionAllocatesNothing checks that Admit allocates nothing for a known peer, local or remote.
func TestAdmissionAllocatesNothing(t *testing.T) {
	r, err := relay.New(t.Context(), relay.Config{Store: newAnnouncingStore(), Key: newKey(t),
		Log:    slog.New(slog.DiscardHandler),
		Limits: relay.Limits{PostsPerAddress: relay.Rate{PerSecond: 1e6}, ReadsPerAddress: relay.Rate{PerSecond: 1e6}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range []relay.Peer{local, from("192.0.2.1"), from("2001:db8::1")} {
		for _, kind := range []admission.Kind{admission.Reads, admission.Posts} {
			if n := testing.AllocsPerRun(100, func() {
				if err := r.Gate().Admit(peer, kind); err != nil {
					t.Error(err)
				}
			}); n != 0 {
				t.Errorf("%v allocations for %+v, kind %d", n, peer, kind)
			}
		}
	}
}
