package relay_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/bench/stage"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// sink is a store that accepts everything and keeps nothing.
type sink struct{ stubStore }

func (sink) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }

func (sink) Append(context.Context, relay.Entry) (relay.Receipt, error) { return relay.Receipt{}, nil }

// newSink returns a relay over a sink. Its limits are counted, but are too high to refuse anything.
func newSink(b *testing.B, now func() time.Time) *relay.Relay {
	b.Helper()
	much := relay.Rate{PerSecond: 1e9, Burst: 1e9}
	r, err := relay.New(b.Context(), relay.Config{Store: sink{}, Key: newKey(b), Log: slog.New(slog.DiscardHandler),
		Origin: ownOrigin, Reads: relay.ToParties, Now: now,
		Limits: relay.Limits{PostsPerAddress: much, PostsPerAgent: much, BroadcastsPerAddress: much}})
	if err != nil {
		b.Fatal(err)
	}
	return r
}

// BenchmarkRemotePost measures a post from another machine without its storage. Limits are counted.
func BenchmarkRemotePost(b *testing.B) {
	list, signed := stage.Requests(b, 1000)
	r := newSink(b, func() time.Time { return signed })
	peer := from("2001:db8::1")
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := r.Gate().Admit(peer, admission.Posts); err != nil {
			b.Fatal(err)
		}
		if _, err := r.Post(b.Context(), peer, list[i%len(list)]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkVerifyRead measures verifying tokens and recording them as used.
func BenchmarkVerifyRead(b *testing.B) {
	reader, signed := newKey(b), time.Now()
	now := signed
	r := newSink(b, func() time.Time { return now })
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		// The time moves by a millisecond for each token, so that the memory forgets old tokens.
		now = now.Add(time.Millisecond)
		token, err := envelope.Read{Audience: ownOrigin, Method: "GET", Target: "/events", TS: now}.Sign(reader)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, err := r.VerifyRead(b.Context(), token, "GET", "/events"); err != nil {
			b.Fatal(err)
		}
	}
}
