package relay_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// slowDisk is a store whose appends take until release is closed.
type slowDisk struct {
	relay.Store
	release chan struct{}
	mu      sync.Mutex
	writing int // appends that wait
}

func (s *slowDisk) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	s.mu.Lock()
	s.writing++
	s.mu.Unlock()
	<-s.release
	return relay.Receipt{ID: e.Envelope.ID}, nil
}

func (s *slowDisk) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }

func (s *slowDisk) Policy() relay.Policy { return relay.Policy{}.WithDefaults() }

// TestWritesPerAddress checks how many messages of one address are stored at a time. Others wait for their turn, and are
// refused when they have waited for long. The limit can change while the relay runs.
func TestWritesPerAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, seen := &slowDisk{release: make(chan struct{})}, &recorder{}
		r, err := relay.New(t.Context(), relay.Config{Store: disk, Key: key(t), Observer: seen})
		if err != nil {
			t.Fatal(err)
		}
		receipts, refusals := make(chan relay.Receipt, 100), make(chan error, 100)
		var posting sync.WaitGroup
		post := func(p relay.Peer, n int) {
			for range n {
				body := sign(t, key(t), envelope.Draft{Payload: request, Recipient: key(t).DID()}).Canonical()
				posting.Go(func() {
					receipt, err := r.Post(t.Context(), p, body)
					if err != nil {
						refusals <- err
						return
					}
					receipts <- receipt
				})
			}
			synctest.Wait()
		}
		writing := func(want int) {
			t.Helper()
			disk.mu.Lock()
			defer disk.mu.Unlock()
			if disk.writing != want {
				t.Errorf("%d messages are being stored, want %d", disk.writing, want)
			}
		}
		post(from("192.0.2.1"), 6)
		writing(4)
		post(from("192.0.2.2"), 1)
		post(from("2001:db8::1"), 4)
		post(from("2001:db8:0:ff::1"), 1)
		writing(9)
		post(local, 7)
		writing(16)
		r.Gate().SetLimits(relay.Limits{WritesPerAddress: 2})
		post(from("192.0.2.3"), 3)
		writing(18)
		r.Gate().SetLimits(relay.Limits{WritesPerAddress: relay.Unlimited})
		post(from("192.0.2.4"), 5)
		writing(23)
		time.Sleep(11 * time.Second)
		synctest.Wait()
		if len(refusals) != 4 {
			t.Fatalf("%d messages are refused, want 4", len(refusals))
		}
		for range 4 {
			err := <-refusals
			wantLimit(t, err, envelope.LimitWritesPerAddress)
			if e := err.(*envelope.Error); e.RetryAfter == 0 {
				t.Errorf("the refusal has no Retry-After: %v", err)
			}
		}
		r.Gate().SetLimits(relay.Limits{})
		post(from("192.0.2.1"), 1)
		time.Sleep(2 * time.Second)
		close(disk.release)
		posting.Wait()
		var queued time.Duration
		for len(receipts) > 0 {
			queued += (<-receipts).Queued
		}
		if queued != 2*time.Second || len(seen.queued) != 5 {
			t.Errorf("the stored messages waited for %v, want 2s; %d waits are reported, want 5", queued, len(seen.queued))
		}
	})
}
