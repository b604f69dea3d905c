package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/bench"
	"github.com/agora-relay/agora/internal/bench/stage"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/sqlite"
	"github.com/agora-relay/agora/store/storetest/engine"
)

// stubStore is a store with the default policy. A test adds the other methods that it needs.
type stubStore struct{ relay.Store }

func (stubStore) Policy() relay.Policy { return relay.Policy{} }

// announcingStore is an empty store. The test announces events through it, so it only wakes polls.
type announcingStore struct {
	stubStore
	watching chan func([]relay.Posted)
	reads    chan struct{} // one for each read by a poll that is already registered with the hub
}

func newAnnouncingStore() *announcingStore {
	return &announcingStore{watching: make(chan func([]relay.Posted), 1), reads: make(chan struct{}, 1)}
}

func (p *announcingStore) Read(context.Context, relay.Query) (relay.Page, error) {
	p.reads <- struct{}{}
	return relay.Page{}, nil
}

func (p *announcingStore) Expire(context.Context, time.Time, relay.Notices) error {
	return nil
}

func (p *announcingStore) Watch(ctx context.Context, _ relay.Cursor, _ func() relay.Wanted, publish func([]relay.Posted)) error {
	p.watching <- publish
	<-ctx.Done()
	return ctx.Err()
}

// startWaitingPolls runs a relay with this many waiting polls. Each poll waits for its own inbox, which stays
// empty. publish announces events to them.
func startWaitingPolls(tb testing.TB, waiters int) (
	r *relay.Relay, store *announcingStore, publish func([]relay.Posted),
) {
	tb.Helper()
	store = newAnnouncingStore()
	r, err := relay.New(tb.Context(), relay.Config{Store: store, Key: newKey(tb), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	<-store.reads // the read by New
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = r.Run(ctx) }) // it ends with ctx
	for i := range waiters {
		running.Go(func() {
			_, err := r.Events(ctx, &relay.Poll{Peer: local,
				Filter: relay.Filter{Recipient: didkey.DID(fmt.Sprintf("did:key:z%d", i))}, Wait: time.Hour, Limit: 1})
			if !errors.Is(err, context.Canceled) {
				tb.Errorf("a poll of an empty inbox ended with %v", err)
			}
		})
	}
	tb.Cleanup(func() {
		cancel()
		running.Wait()
	})
	publish = <-store.watching
	for range waiters {
		<-store.reads
	}
	return r, store, publish
}

// newKey is the same as key, and works in benchmarks too.
func newKey(tb testing.TB) didkey.Key {
	tb.Helper()
	k, err := didkey.Generate()
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// BenchmarkWake publishes an event for one waiting poll while many other polls wait. It waits until the poll is
// answered and starts the next one.
func BenchmarkWake(b *testing.B) {
	for _, waiters := range []int{10, 1000, 5000} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			r, store, publish := startWaitingPolls(b, waiters)
			to := newKey(b).DID()
			event := []relay.Posted{{Event: relay.Event{Size: 730},
				Envelope: &envelope.Envelope{Type: envelope.TypeRequest, Recipient: to, Thread: "t"}}}
			poll := relay.Poll{Peer: local, Filter: relay.Filter{Recipient: to}, Wait: time.Hour, Limit: 1}
			b.ReportAllocs()
			cpu := bench.OwnCPU()
			for b.Loop() {
				answered := make(chan error, 1)
				go func() {
					d, err := r.Events(b.Context(), &poll)
					if err == nil && len(d.Events) != 1 {
						err = fmt.Errorf("%d events", len(d.Events))
					}
					answered <- err
				}()
				<-store.reads
				event[0].Seq++
				publish(event)
				if err := <-answered; err != nil {
					b.Fatal(err)
				}
			}
			if cpu > 0 {
				b.ReportMetric(float64(bench.OwnCPU()-cpu)/float64(b.N), "cpu-ns/op")
			}
		})
	}
}

// BenchmarkPost measures the whole relay without its transport: parse, verify, store, announce. Signing does not count.
func BenchmarkPost(b *testing.B) {
	for _, callers := range []int{32, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			store, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 22})
			if err != nil {
				b.Fatal(err)
			}
			list, signed := stage.Requests(b, b.N)
			r, err := relay.New(b.Context(), relay.Config{Store: store, Key: newKey(b), Log: slog.New(slog.DiscardHandler),
				Now: func() time.Time { return signed }})
			if err != nil {
				b.Fatal(err)
			}
			stop := engine.Run(b, r, store)
			cpu := bench.OwnCPU()
			b.ResetTimer()
			var next atomic.Int64
			var posting sync.WaitGroup
			for range callers {
				posting.Go(func() {
					for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
						if _, err := r.Post(b.Context(), local, list[i]); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			posting.Wait()
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			if cpu > 0 {
				b.ReportMetric(float64(bench.OwnCPU()-cpu)/float64(b.N), "cpu-ns/op")
			}
			stop()
		})
	}
}

// BenchmarkPoll reads the last event of one of many inboxes through the relay, as a local and as a remote client.
func BenchmarkPoll(b *testing.B) {
	const stored, inboxes = 10_000, 64
	store, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 22})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	}()
	keys := make([]didkey.Key, inboxes)
	for i := range keys {
		keys[i] = newKey(b)
	}
	var before, last relay.Cursor // the cursors before and after the last event of keys[0]
	var appending sync.WaitGroup
	var mu sync.Mutex
	for i := range inboxes {
		appending.Go(func() {
			for range stored / inboxes {
				e, err := envelope.Draft{Recipient: keys[i].DID(),
					Payload: envelope.Request{Intent: "echo"}}.Sign(keys[i], time.Now())
				if err != nil {
					b.Error(err)
					return
				}
				receipt, err := store.Append(b.Context(), relay.Entry{Envelope: e, Received: time.Now()})
				if err != nil {
					b.Error(err)
					return
				}
				if i == 0 {
					mu.Lock()
					before, last = last, receipt.Cursor
					mu.Unlock()
				}
			}
		})
	}
	appending.Wait()
	r, err := relay.New(b.Context(), relay.Config{Store: store, Key: newKey(b), Log: slog.New(slog.DiscardHandler),
		Limits: relay.Limits{ReadsPerAddress: relay.Rate{PerSecond: 1e9}}})
	if err != nil {
		b.Fatal(err)
	}
	for name, peer := range map[string]relay.Peer{"local": local, "remote": from("192.0.2.1")} {
		for at, cursor := range map[string]relay.Cursor{"end": before, "start": {}} {
			b.Run(name+"/"+at, func(b *testing.B) {
				b.ReportAllocs()
				cpu := bench.OwnCPU()
				for b.Loop() {
					d, err := r.Events(b.Context(), &relay.Poll{Peer: peer, Filter: relay.Filter{Recipient: keys[0].DID()},
						Cursor: cursor, Limit: 1})
					if err != nil || len(d.Events) != 1 {
						b.Fatal(d, err)
					}
				}
				b.ReportMetric(float64(bench.OwnCPU()-cpu)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}
