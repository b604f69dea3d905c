//go:build cluster && linux

package cluster

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/store/postgres"
	"github.com/agora-relay/agora/store/sqlite"
)

// figureCallers is how many callers store at the same time, over all nodes.
const figureCallers = 256

// TestFigures compares three nodes with a quorum commit with one node on SQLite, on the same machine and in the same
// run: how many events a second the stores take, and how long an event takes to the other nodes. It runs only if
// AGORA_CLUSTER_FIGURES is set, and checks nothing.
func TestFigures(t *testing.T) {
	if os.Getenv("AGORA_CLUSTER_FIGURES") == "" {
		return
	}
	quiet := slog.New(slog.DiscardHandler)
	d := startDatabase(t)
	d.synced()
	single, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Log: quiet})
	must(t, err)
	defer single.Close()
	var nodes []relay.Store
	for range 3 {
		s, err := postgres.Open(t.Context(), d.servers[0].url(), postgres.Options{Log: quiet})
		must(t, err)
		defer s.Close()
		nodes = append(nodes, s)
	}
	var keys []didkey.Key
	for range 100 {
		keys = append(keys, newKey(t))
	}
	entries := make([]relay.Entry, 24_000) // signed before, so that only the stores are measured
	for i := range entries {
		m, err := envelope.Draft{TTL: time.Hour, Payload: envelope.Request{Intent: "translate",
			Description: strings.Repeat("x", 300)}}.Sign(keys[i%len(keys)], time.Now())
		must(t, err)
		entries[i] = relay.Entry{Envelope: m, Received: time.Now()}
	}
	half := len(entries) / 2
	for _, c := range []struct {
		name    string
		stores  []relay.Store
		entries []relay.Entry
	}{{"SQLite, one node", []relay.Store{single}, entries[:half]},
		{"PostgreSQL, three nodes, quorum commit", nodes, entries[:half]},
		{"SQLite, one node, again", []relay.Store{single}, entries[half:]},
		{"PostgreSQL, three nodes, again", nodes, entries[half:]}} {
		rate := storeAll(t, c.stores, c.entries)
		t.Logf("%s: %.0f events a second", c.name, rate)
	}
	t.Logf("from append at one node to another node: %s", deliveryTimes(t, nodes))
}

// storeAll stores entries with figureCallers callers, and returns how many it stores a second.
func storeAll(t *testing.T, stores []relay.Store, entries []relay.Entry) float64 {
	t.Helper()
	var next atomic.Int64
	var callers sync.WaitGroup
	began := time.Now()
	for c := range figureCallers {
		callers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(entries) {
					return
				}
				if _, err := stores[c%len(stores)].Append(context.Background(), entries[i]); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
	return float64(len(entries)) / time.Since(began).Seconds()
}

// deliveryTimes measures how long single events take from the call of Append at one node to Watch at another.
func deliveryTimes(t *testing.T, nodes []relay.Store) string {
	t.Helper()
	const events = 300
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	arrived := make(chan string, events)
	end, err := nodes[1].Read(ctx, relay.Query{})
	must(t, err)
	go func() {
		_ = nodes[1].Watch(ctx, end.Cursor, func(all []relay.Posted) {
			for _, e := range all {
				arrived <- e.ID
			}
		})
	}()
	var times []time.Duration
	by := newKey(t)
	for range events {
		m, err := envelope.Draft{Payload: envelope.Request{Intent: "x"}}.Sign(by, time.Now())
		must(t, err)
		began := time.Now()
		_, err = nodes[0].Append(ctx, relay.Entry{Envelope: m, Received: began})
		must(t, err)
		for id := range arrived {
			if id == m.ID {
				break
			}
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return "p50 " + times[events/2].String() + ", p99 " + times[events*99/100].String()
}
