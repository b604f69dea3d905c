package relay_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// serialStore is a store whose writer takes a second for each message, one after the other.
type serialStore struct {
	stubStore
	writer  chan struct{} // holds one while the writer works; a mutex would stop the clock of the synctest bubble
	waiting atomic.Int32
	most    atomic.Int32
}

func (s *serialStore) Append(context.Context, relay.Entry) (relay.Receipt, error) {
	now := s.waiting.Add(1)
	defer s.waiting.Add(-1)
	s.most.Store(max(s.most.Load(), now))
	s.writer <- struct{}{}
	defer func() { <-s.writer }()
	time.Sleep(time.Second)
	return relay.Receipt{Took: time.Second}, nil
}

func (s *serialStore) Read(context.Context, relay.Query) (relay.Page, error) {
	return relay.Page{}, nil
}

// TestWritesTakeTurns posts many expensive messages from one address. Only a few of them wait for the store's writer.
// The others are refused after the first ones are charged. So a message of a stranger waits only for those few.
func TestWritesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &serialStore{writer: make(chan struct{}, 1)}
		r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key(t)})
		if err != nil {
			t.Fatal(err)
		}
		var posting sync.WaitGroup
		var refused atomic.Int32
		for range 64 {
			if err := r.Gate().Admit(from("203.0.113.7"), admission.Posts); err != nil {
				t.Fatal(err)
			}
			body := sign(t, key(t), envelope.Draft{Payload: request, Recipient: key(t).DID()}).Canonical()
			posting.Go(func() {
				if _, err := r.Post(t.Context(), from("203.0.113.7"), body); err != nil {
					wantLimit(t, err, envelope.LimitPostsPerAddress)
					refused.Add(1)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		body := sign(t, key(t), envelope.Draft{Payload: request, Recipient: key(t).DID()}).Canonical()
		if _, err := r.Post(t.Context(), from("198.51.100.1"), body); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > 5*time.Second {
			t.Errorf("a stranger's message waited for %v", waited)
		}
		posting.Wait()
		if most := store.most.Load(); most > 5 || refused.Load() != 60 {
			t.Errorf("%d waited at a time, %d were refused; want 5 and 60", most, refused.Load())
		}
	})
}
