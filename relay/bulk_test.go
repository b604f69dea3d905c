package relay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

// testLines are lines that a test has prepared. After them comes end.
type testLines struct {
	list  [][]byte
	pause time.Duration // before each line
	end   error         // nil: io.EOF

	next    atomic.Int64
	stopped chan struct{}
	stop    sync.Once
}

var errStopped = envelope.Errorf(envelope.CodeInvalidRequest, "the lines were stopped")

func newLines(list ...[]byte) *testLines { return &testLines{list: list, stopped: make(chan struct{})} }

// repeated returns n times the same line.
func repeated(line string, n int) *testLines {
	return newLines(slices.Repeat([][]byte{[]byte(line)}, n)...)
}

// linesOf returns the lines of envelopes.
func linesOf(all ...*envelope.Envelope) *testLines {
	l := newLines()
	for _, e := range all {
		l.list = append(l.list, e.Canonical())
	}
	return l
}

func (l *testLines) Next() ([]byte, error) {
	if l.pause > 0 {
		select {
		case <-time.After(l.pause):
		case <-l.stopped:
			return nil, errStopped
		}
	}
	n := int(l.next.Add(1))
	if n <= len(l.list) {
		return l.list[n-1], nil
	}
	if l.end == nil {
		return nil, io.EOF
	}
	return nil, l.end
}

func (l *testLines) Stop() { l.stop.Do(func() { close(l.stopped) }) }

// postAll posts lines that must be admitted, and returns the outcomes.
func postAll(t *testing.T, r *relay.Relay, from relay.Peer, l *testLines) (outcomes []relay.Outcome, stopped error) {
	t.Helper()
	begun, stopped := r.PostAll(t.Context(), from, l, func(o relay.Outcome) { outcomes = append(outcomes, o) })
	if !begun {
		t.Fatalf("the request is refused: %v", stopped)
	}
	return outcomes, stopped
}

// TestBulkEqualsPosts checks that lines have the outcomes of posts one after the other (RELAYS R-24), also where the
// relay hides what others may not see.
func TestBulkEqualsPosts(t *testing.T) {
	racing.Skip(t, "one thing after another")
	const origin = "https://relay.example"
	for _, reads := range []relay.Visibility{relay.ToAll, relay.ToParties} {
		c := relay.Config{Reads: reads, Origin: origin}
		single, bulk := start(t, c), start(t, c)
		ann, bob, eve := key(t), key(t), key(t)
		var all []*envelope.Envelope
		for i := range 80 {
			thread := fmt.Sprint("t", i%40)
			step := func(by, to didkey.Key, p envelope.Payload) *envelope.Envelope {
				return sign(t, by, envelope.Draft{Thread: thread, Recipient: to.DID(), Payload: p})
			}
			steps := []*envelope.Envelope{
				step(ann, bob, envelope.Request{RequestID: thread, Intent: "x"}),
				step(bob, ann, envelope.Offer{RequestID: thread}), step(eve, ann, envelope.Offer{RequestID: thread}),
				step(ann, bob, envelope.Accept{RequestID: thread}),
				step(bob, ann, envelope.Result{RequestID: thread, Status: "success"}),
			}
			all = append(all, steps[:1+i%5]...)
			all = append(all, all[len(all)/2])
		}
		lines := linesOf(all...)
		lines.list = slices.Insert(lines.list, 50, []byte("{"), []byte(`{"version":"2.0"}`))
		outcomes, stopped := postAll(t, bulk, local, lines)
		if stopped != nil || len(outcomes) != len(lines.list) {
			t.Fatalf("%d outcomes of %d lines: %v", len(outcomes), len(lines.list), stopped)
		}
		for i, line := range lines.list {
			receipt, err := single.Post(t.Context(), local, line)
			got := outcomes[i]
			for _, r := range []*relay.Receipt{&receipt, &got.Receipt} {
				r.Cursor.Epoch, r.Took, r.ExpiresAt = 0, 0, time.Time{}
			}
			if fmt.Sprintf("%+v %v", got.Receipt, got.Err) != fmt.Sprintf("%+v %v", receipt, err) {
				t.Fatalf("%s: line %d: %+v; as a post: %+v, %v", reads, i, got, receipt, err)
			}
		}
	}
}

// TestBulkStops checks where a bulk request stops, and what it says (RELAYS R-25).
func TestBulkStops(t *testing.T) {
	broken := newLines([]byte("{}"))
	broken.end = envelope.Errorf(envelope.CodeInvalidRequest, "the connection broke")
	const tooMuch, invalid = envelope.CodePayloadTooLarge, envelope.CodeInvalidRequest
	for name, test := range map[string]struct {
		lines *testLines
		code  envelope.Code
		want  int // outcomes
	}{
		"the end":             {repeated("{}", 500), "", 500},
		"no line":             {newLines(), "", 0},
		"10,000 lines":        {repeated("{}", 10_000), "", 10_000},
		"more than that":      {repeated("{}", 10_001), tooMuch, 10_000},
		"16 MiB":              {repeated(strings.Repeat("x", 128<<10-1), 128), "", 128},
		"more than 16 MiB":    {repeated(strings.Repeat("x", 128<<10-1), 129), tooMuch, 128},
		"an empty line":       {newLines([]byte("{}"), []byte("{}"), nil, []byte("{}")), invalid, 2},
		"an error of reading": {broken, invalid, 1},
	} {
		t.Run(name, func(t *testing.T) {
			outcomes, stopped := postAll(t, start(t, relay.Config{}), local, test.lines)
			if codeOf(stopped) != test.code || len(outcomes) != test.want {
				t.Errorf("stopped with %v after %d outcomes; want %s and %d", stopped, len(outcomes), test.code, test.want)
			}
			for i, o := range outcomes {
				if o.Err == nil {
					t.Fatalf("line %d was stored", i)
				}
			}
		})
	}
}

// bulkStore is a store that knows only AppendAll.
type bulkStore struct {
	stubStore
	appendAll func(entries []relay.Entry) []relay.Outcome
}

func (s *bulkStore) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }

func (s *bulkStore) Append(ctx context.Context, e relay.Entry) (relay.Receipt, error) {
	o := s.appendAll([]relay.Entry{e})[0]
	return o.Receipt, o.Err
}

func (s *bulkStore) AppendAll(_ context.Context, entries []relay.Entry) []relay.Outcome {
	return s.appendAll(entries)
}

// stored returns the outcome for entries that are stored.
func stored(entries []relay.Entry) (outcomes []relay.Outcome) {
	for _, e := range entries {
		outcomes = append(outcomes, relay.Outcome{Receipt: relay.Receipt{ID: e.Envelope.ID}})
	}
	return outcomes
}

func newOver(t *testing.T, appendAll func([]relay.Entry) []relay.Outcome, l relay.Limits) *relay.Relay {
	t.Helper()
	r, err := relay.New(t.Context(), relay.Config{Store: &bulkStore{appendAll: appendAll}, Key: key(t), Limits: l})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// requests returns n signed REQUESTs.
func requests(t *testing.T, n int) (all []*envelope.Envelope) {
	by, to := key(t), key(t)
	for range n {
		all = append(all, sign(t, by, envelope.Draft{Recipient: to.DID(), Payload: requestWithoutID}))
	}
	return all
}

// TestBulkTimes checks that a bulk request takes a minute at most, and ends at once when the relay shuts down or the
// store fails (RELAYS R-25).
func TestBulkTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOver(t, stored, relay.Limits{})
		slow := linesOf(requests(t, 20)...)
		slow.pause = 9 * time.Second
		began := time.Now()
		outcomes, stopped := postAll(t, r, local, slow)
		took := time.Since(began)
		if took != time.Minute || len(outcomes) != 6 || codeOf(stopped) != envelope.CodePayloadTooLarge {
			t.Errorf("ended after %v with %d outcomes: %v", took, len(outcomes), stopped)
		}

		down := envelope.NotStored("the disk is full", time.Second)
		left := 3
		r = newOver(t, func(entries []relay.Entry) (outcomes []relay.Outcome) {
			for _, o := range stored(entries) {
				if left--; left < 0 {
					o = relay.Outcome{Err: down}
				}
				outcomes = append(outcomes, o)
			}
			return outcomes
		}, relay.Limits{})
		slow = linesOf(requests(t, 20)...)
		slow.pause = time.Second
		began = time.Now()
		outcomes, stopped = postAll(t, r, local, slow)
		if took = time.Since(began); took > 5*time.Second || len(outcomes) != 3 || stopped != error(down) {
			t.Errorf("the full disk ended it after %v with %d outcomes: %v", took, len(outcomes), stopped)
		}

		r = newOver(t, stored, relay.Limits{})
		slow = linesOf(requests(t, 20)...)
		slow.pause = time.Hour
		slow.list = slow.list[:2]
		ended := make(chan error)
		go func() {
			_, stopped := postAll(t, r, local, slow)
			ended <- stopped
		}()
		synctest.Wait()
		r.Drain()
		if err := <-ended; err != error(relay.ErrShuttingDown) {
			t.Errorf("the shutdown ends it with %v", err)
		}
		if begun, err := r.PostAll(t.Context(), local, newLines(), nil); begun || err != error(relay.ErrShuttingDown) {
			t.Errorf("after the shutdown: %v, %v", begun, err)
		}
	})
}

// TestBulkMemory checks how much of a request is in memory while the store is slow (RELAYS R-26).
func TestBulkMemory(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for name, test := range map[string]struct {
		size, most int // of a line; lines in memory
	}{"short lines": {10, 1024}, "long lines": {100 << 10, 4 << 20 / (100 << 10)}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newOver(t, stored, relay.Limits{})
				proceed := make(chan struct{})
				lines := repeated(strings.Repeat("x", test.size), 4000)
				answered := 0
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = r.PostAll(t.Context(), local, lines, func(relay.Outcome) {
						if answered++; answered == 1 {
							<-proceed
						}
					})
				}()
				synctest.Wait()
				if n := int(lines.next.Load()); n > test.most || n < test.most/4 {
					t.Errorf("%d lines of %d bytes were read before the first one was answered", n, test.size)
				}
				close(proceed)
				<-ended
			})
		})
	}
}

// TestBulkCounts checks what a line counts for (RELAYS R-26).
func TestBulkCounts(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		const remote = "203.0.113.7"
		admit := func(r *relay.Relay) {
			t.Helper()
			if err := r.Gate().Admit(from(remote), admission.Posts); err != nil {
				t.Fatal(err)
			}
		}
		// With its first line, the request counts as one post.
		r := newOver(t, stored, relay.Limits{PostsPerAddress: relay.Rate{PerSecond: 10, Burst: 30}, PostsPerAgent: noLimit})
		admit(r)
		outcomes, stopped := postAll(t, r, from(remote), linesOf(requests(t, 50)...))
		if wait := wantLimit(t, stopped, envelope.LimitPostsPerAddress); len(outcomes) != 30 || wait != 100*time.Millisecond {
			t.Errorf("%d lines, then wait %v", len(outcomes), wait)
		}
		time.Sleep(time.Second)
		admit(r)
		if outcomes, _ = postAll(t, r, from(remote), linesOf(requests(t, 50)...)); len(outcomes) != 10 {
			t.Errorf("%d lines a second later", len(outcomes))
		}

		// A sender's limit concerns only its own lines, and a duplicate does not count.
		r = newOver(t, func(entries []relay.Entry) []relay.Outcome {
			outcomes := stored(entries)
			for i := range outcomes {
				outcomes[i].Receipt.Duplicate = entries[i].Envelope.Recipient == ""
			}
			return outcomes
		}, relay.Limits{PostsPerAddress: noLimit, BroadcastsPerAddress: noLimit,
			PostsPerAgent: relay.Rate{PerSecond: 1, Burst: 5}})
		many, other := requests(t, 8), requests(t, 1)
		again := sign(t, key(t), envelope.Draft{Payload: requestWithoutID})
		admit(r)
		all := slices.Concat(many, other, slices.Repeat([]*envelope.Envelope{again}, 20))
		outcomes, stopped = postAll(t, r, from(remote), linesOf(all...))
		if stopped != nil || len(outcomes) != 29 {
			t.Fatalf("%d outcomes: %v", len(outcomes), stopped)
		}
		for i, o := range outcomes {
			if limited := i >= 5 && i < 8; limited {
				wantLimit(t, o.Err, envelope.LimitPostsPerAgent)
			} else if o.Err != nil {
				t.Errorf("line %d: %v", i, o.Err)
			}
		}

		// Large lines count for more.
		r = newOver(t, stored, relay.Limits{})
		admit(r)
		outcomes, stopped = postAll(t, r, from(remote), repeated(strings.Repeat("x", 64<<10), 100))
		if wantLimit(t, stopped, envelope.LimitPostsPerAddress); len(outcomes) > 12 {
			t.Errorf("%d lines of 64 KiB", len(outcomes))
		}

		// The operator can spare an address the count. Its senders and its ban count nevertheless.
		spared := netip.MustParsePrefix("203.0.113.0/24")
		r = newOver(t, stored, relay.Limits{PostsPerAgent: noLimit, BulkFrom: []netip.Prefix{spared}})
		admit(r)
		outcomes, stopped = postAll(t, r, from(remote), linesOf(requests(t, 500)...))
		if stopped != nil || len(outcomes) != 500 {
			t.Errorf("%d lines of a spared address: %v", len(outcomes), stopped)
		}
		lines := linesOf(requests(t, 10)...)
		lines.pause = time.Second
		go func() {
			time.Sleep(5500 * time.Millisecond)
			r.Gate().SetBans(relay.Bans{Networks: []netip.Prefix{netip.MustParsePrefix(remote + "/32")}})
		}()
		outcomes, stopped = postAll(t, r, from(remote), lines)
		if codeOf(stopped) != envelope.CodeForbidden || len(outcomes) != 5 {
			t.Errorf("%d lines before the ban: %v", len(outcomes), stopped)
		}
	})
}

// TestBulkAndBans bans a sender while its lines wait for the store.
func TestBulkAndBans(t *testing.T) {
	all := requests(t, 20)
	var r *relay.Relay
	r = newOver(t, func(entries []relay.Entry) []relay.Outcome {
		r.Gate().SetBans(relay.Bans{Agents: []didkey.DID{all[0].Sender.ID}})
		return stored(entries)
	}, relay.Limits{})
	outcomes, stopped := postAll(t, r, from("203.0.113.7"), linesOf(all...))
	if stopped != nil || len(outcomes) != len(all) {
		t.Fatalf("%d outcomes: %v", len(outcomes), stopped)
	}
	kept := 0
	for ; kept < len(outcomes) && outcomes[kept].Err == nil; kept++ {
	}
	for i, o := range outcomes[kept:] {
		if codeOf(o.Err) != envelope.CodeForbidden {
			t.Errorf("line %d: %v", kept+i, o.Err)
		}
	}
	if kept == 0 || kept > 4 {
		t.Errorf("%d lines were stored", kept)
	}
}

// TestBulkPanics checks that a panic about a line ends only its request. After it, the slots are free again.
func TestBulkPanics(t *testing.T) {
	for name, test := range map[string]struct {
		screen relay.Screen
		answer func(relay.Outcome)
	}{
		"the Screen": {screenFunc(func(relay.Peer, *envelope.Envelope) error { panic("a bug") }), func(relay.Outcome) {}},
		"the answer": {nil, func(relay.Outcome) { panic("a bug") }},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, relay.Config{Screen: test.screen, Limits: relay.Limits{WritesPerAddress: 1, BulksPerAddress: 1}})
			for range 3 {
				begun, err := r.PostAll(t.Context(), from("192.0.2.1"), linesOf(requests(t, 3)...), test.answer)
				if !begun || err == nil || !strings.Contains(err.Error(), "a bug") || codeOf(err) != "" {
					t.Errorf("%v, %v", begun, err)
				}
			}
		})
	}
}

// TestBulksAreLimited opens as many bulk requests as an address may have, and as all addresses may have (RELAYS R-26).
func TestBulksAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newOver(t, stored, relay.Limits{})
		var open []*testLines
		var running sync.WaitGroup
		for network := range 4 {
			for range 4 {
				lines := linesOf(requests(t, 1)...)
				lines.pause = time.Hour
				open = append(open, lines)
				running.Go(func() { _, _ = r.PostAll(t.Context(), from(fmt.Sprint("192.0.2.", network)), lines, nil) })
			}
			synctest.Wait()
			begun, err := r.PostAll(t.Context(), from(fmt.Sprint("192.0.2.", network)), newLines(), nil)
			if wantLimit(t, err, envelope.LimitBulks); begun {
				t.Error("the fifth request of an address has begun")
			}
		}
		_, err := r.PostAll(t.Context(), from("198.51.100.1"), newLines(), nil)
		wantLimit(t, err, envelope.LimitBulks)
		for _, lines := range open {
			lines.Stop()
		}
		running.Wait()
		if begun, err := r.PostAll(t.Context(), from("198.51.100.1"), newLines(), nil); !begun || err != nil {
			t.Errorf("after the others have ended: %v, %v", begun, err)
		}
	})
}

// TestBulkTakesTurns sends expensive messages in bulk. A stranger's message waits only for a few of them (RELAYS R-26).
func TestBulkTakesTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		writer := make(chan struct{}, 1) // a mutex would stop the clock of the bubble
		r := newOver(t, func(entries []relay.Entry) []relay.Outcome {
			writer <- struct{}{}
			defer func() { <-writer }()
			outcomes := stored(entries)
			for i := range outcomes {
				time.Sleep(time.Second)
				outcomes[i].Receipt.Took = time.Second
			}
			return outcomes
		}, relay.Limits{PostsPerAgent: noLimit})
		if err := r.Gate().Admit(from("203.0.113.7"), admission.Posts); err != nil {
			t.Fatal(err)
		}
		lines := linesOf(requests(t, 90)...)
		var running sync.WaitGroup
		var stopped error
		count := 0
		running.Go(func() {
			_, stopped = r.PostAll(t.Context(), from("203.0.113.7"), lines, func(relay.Outcome) { count++ })
		})
		synctest.Wait()
		began := time.Now()
		if _, err := r.Post(t.Context(), from("198.51.100.1"), requests(t, 1)[0].Canonical()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > 6*time.Second {
			t.Errorf("a stranger's message waited for %v", waited)
		}
		running.Wait()
		if wantLimit(t, stopped, envelope.LimitPostsPerAddress); count > 8 {
			t.Errorf("%d expensive lines were stored before the address was in debt", count)
		}
	})
}

// TestBulkIsScreened checks that the Screen is asked about each line, about several at a time.
func TestBulkIsScreened(t *testing.T) {
	refused := envelope.Errorf(envelope.CodeForbidden, "not here")
	var asking, most atomic.Int32
	screen := screenFunc(func(_ relay.Peer, e *envelope.Envelope) error {
		most.Store(max(most.Load(), asking.Add(1)))
		defer asking.Add(-1)
		time.Sleep(5 * time.Millisecond)
		if e.Type == envelope.TypeManifest {
			return refused
		}
		return nil
	})
	r := start(t, relay.Config{Screen: screen})
	all := requests(t, 60)
	all[7] = sign(t, key(t), envelope.Draft{Payload: envelope.Manifest{ID: "main"}})
	outcomes, stopped := postAll(t, r, local, linesOf(all...))
	if stopped != nil || len(outcomes) != len(all) {
		t.Fatalf("%d outcomes: %v", len(outcomes), stopped)
	}
	for i, o := range outcomes {
		if (i == 7) != errors.Is(o.Err, refused) || i != 7 && o.Err != nil {
			t.Errorf("line %d: %v", i, o.Err)
		}
	}
	if most.Load() < 2 {
		t.Error("the Screen was asked about one line at a time")
	}
}
