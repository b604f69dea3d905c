package relay_test

import (
	"cmp"
	"flag"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/storetest"
)

var histories = flag.Int("histories", 0,
	"number of histories of racing messages to record and check; 50 for a thorough check; 0: 3, or 1 with -short")

// TestHistories checks the whole relay against PROTOCOL §4 while messages race for the same threads.
func TestHistories(t *testing.T) {
	n := cmp.Or(*histories, 3)
	if *histories == 0 && testing.Short() {
		n = 1
	}
	for seed := range n {
		r := start(t, relay.Config{})
		storetest.Histories(t, uint64(seed), func(by didkey.Key, d envelope.Draft) error {
			e, err := d.Sign(by, time.Now())
			if err == nil {
				_, err = r.Post(t.Context(), local, e.Canonical())
			}
			return err
		})
	}
}
