package relay_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/agora-relay/agora/bench/stage"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
)

// sink is a store that takes everything and keeps nothing.
type sink struct{ stub }

func (sink) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }

func (sink) Append(context.Context, relay.Entry) (relay.Receipt, error) { return relay.Receipt{}, nil }

// newSink returns a relay over a sink whose limits hold nobody, but are kept.
func newSink(b *testing.B, now func() time.Time) *relay.Relay {
	b.Helper()
	much := relay.Rate{PerSecond: 1e9, Burst: 1e9}
	r, err := relay.New(b.Context(), relay.Config{Store: sink{}, Key: newKey(b), Log: slog.New(slog.DiscardHandler),
		Origin: here, Reads: relay.ToParties, Now: now,
		Limits: relay.Limits{PostsPerAddress: much, PostsPerAgent: much, BroadcastsPerAddress: much}})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkRemotePost is what a post from another machine costs aside from its storage: its limits are counted.
func BenchmarkRemotePost(b *testing.B) {
	list, signed := stage.Requests(b, 1000)
	r := newSink(b, func() time.Time { return signed })
	peer := from("2001:db8::1")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := r.Admit(peer, relay.Posts); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Post(b.Context(), peer, list[i%len(list)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerifyRead verifies tokens, and remembers each.
func BenchmarkVerifyRead(b *testing.B) {
	reader, signed := newKey(b), time.Now()
	now := signed
	r := newSink(b, func() time.Time { return now })
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		// A millisecond each, so that tokens are forgotten again.
		now = now.Add(time.Millisecond)
		token, err := envelope.Read{Audience: here, Method: "GET", Target: "/events", TS: now}.Sign(reader)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := r.VerifyRead(b.Context(), token, "GET", "/events"); err != nil {
			b.Fatal(err)
		}
	}
}
