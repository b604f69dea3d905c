package storetest

import (
	"reflect"
	"testing"
	"time"

	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/replay"
	"github.com/agora-relay/agora/thread"
)

// testPolicy checks that a store returns the policy that it was opened with, and that it rejects an invalid policy.
func testPolicy(t *testing.T, open Opener) {
	given := relay.Policy{
		Window:          replay.Window{Skew: time.Minute, Memory: time.Hour, MaxTTL: 2 * time.Hour},
		ThreadRetention: 3 * time.Hour,
		Rules:           thread.Rules{PendingTimeout: time.Minute, ActiveTimeout: 2 * time.Minute, MaxOffers: 3},
		Inbox:           relay.Quota{Events: -1, Bytes: 7},
	}
	for name, policy := range map[string]relay.Policy{"all fields set": given, "default values": {}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, open, policy)
			if got, want := f.Policy(), policy.WithDefaults(); !reflect.DeepEqual(got, want) {
				t.Errorf("Policy() = %+v, want %+v", got, want)
			}
		})
	}
	t.Run("invalid", func(t *testing.T) {
		if _, err := open(t.Context(), t.TempDir(),
			relay.Policy{Window: replay.Window{Memory: 20 * time.Minute}}); err == nil {
			t.Error("the store was opened although Window.Memory is too short for a clock that is set back")
		}
	})
}
