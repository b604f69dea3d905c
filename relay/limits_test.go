package relay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
)

func from(addr string) relay.Peer { return relay.Peer{Addr: netip.MustParseAddr(addr)} }

// requestWithoutID opens a new thread each time it is posted.
var requestWithoutID = envelope.Request{Intent: "echo"}

// noLimit switches off a limit that a test is not about.
var noLimit = relay.Rate{PerSecond: relay.Unlimited}

// wantLimit checks that err is the refusal of this limit, and returns after which time to try again.
func wantLimit(t *testing.T, err error, limit string) time.Duration {
	t.Helper()
	e := wantCode(t, err, envelope.CodeRateLimited)
	if e.Details["limit"] != limit || e.RetryAfter <= 0 {
		t.Fatalf("refused by %v with Retry-After %v, want %s", e.Details["limit"], e.RetryAfter, limit)
	}
	return e.RetryAfter
}

func TestRatesAreExact(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		alice := key(t)
		posted := 0
		for _, c := range []struct {
			limit string
			burst int
			gap   time.Duration // between two tokens
			ask   func() error
		}{
			{envelope.LimitPostsPerAddress, 100, time.Second / 50,
				func() error { return r.Gate().Admit(from("192.0.2.1"), admission.Posts) }},
			{envelope.LimitReadsPerAddress, 200, time.Second / 100,
				func() error { return r.Gate().Admit(from("192.0.2.1"), admission.Reads) }},
			{envelope.LimitPostsPerAgent, 40, time.Second / 20, func() error {
				posted++
				_, err := r.Post(t.Context(), from(fmt.Sprint("192.0.2.", posted)),
					sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical())
				return err
			}},
		} {
			for i := range c.burst {
				if err := c.ask(); err != nil {
					t.Fatalf("%s: request %d of the burst: %v", c.limit, i+1, err)
				}
			}
			for range 3 {
				wait := wantLimit(t, c.ask(), c.limit)
				if wait != c.gap {
					t.Errorf("%s: Retry-After is %v, want %v", c.limit, wait, c.gap)
				}
				time.Sleep(wait - time.Millisecond)
				if wait := wantLimit(t, c.ask(), c.limit); wait > 2*time.Millisecond {
					t.Errorf("%s: a millisecond too early, Retry-After is %v", c.limit, wait)
				}
				time.Sleep(time.Millisecond)
				if err := c.ask(); err != nil {
					t.Errorf("%s: after the wait: %v", c.limit, err)
				}
			}
			time.Sleep(10 * time.Minute)
			for range c.burst {
				if err := c.ask(); err != nil {
					t.Fatalf("%s: after ten minutes: %v", c.limit, err)
				}
			}
			wantLimit(t, c.ask(), c.limit)
		}
	})
}

func TestRefusedMessageIsNotStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Limits: relay.Limits{PostsPerAgent: relay.Rate{PerSecond: 1, Burst: 1}}})
		alice := key(t)
		post := func(e *envelope.Envelope) (relay.Receipt, error) {
			return r.Post(t.Context(), from("192.0.2.1"), e.Canonical())
		}
		if _, err := post(sign(t, alice, envelope.Draft{Payload: requestWithoutID})); err != nil {
			t.Fatal(err)
		}
		second := sign(t, alice, envelope.Draft{Payload: requestWithoutID})
		_, err := post(second)
		wait := wantLimit(t, err, envelope.LimitPostsPerAgent)
		if page := poll(t, r, relay.Poll{Limit: 10}); len(page.Events) != 1 {
			t.Errorf("%d events", len(page.Events))
		}
		time.Sleep(wait)
		if receipt, err := post(second); err != nil || receipt.Duplicate {
			t.Errorf("the refused message, posted again: %+v, %v", receipt, err)
		}
	})
}

// TestFloodDoesNotAffectOthers sends a thousand requests a second from one address, and a few from another one.
func TestFloodDoesNotAffectOthers(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Limits: relay.Limits{BroadcastsPerAddress: noLimit}})
		mallory, alice := key(t), key(t)
		flood, honest := from("192.0.2.66"), from("192.0.2.1")
		admitted, posted := 0, 0
		for i := range 10_000 {
			for _, k := range []admission.Kind{admission.Posts, admission.Reads} {
				if r.Gate().Admit(flood, k) == nil {
					admitted++
				}
			}
			if i%10 == 0 { // the same, for a sender that uses many addresses
				if _, err := r.Post(t.Context(), relay.Peer{},
					sign(t, mallory, envelope.Draft{Payload: requestWithoutID}).Canonical()); err == nil {
					posted++
				}
			}
			if i%100 == 0 {
				if err := errors.Join(r.Gate().Admit(honest, admission.Posts), r.Gate().Admit(honest, admission.Reads)); err != nil {
					t.Fatalf("the honest agent's request %d: %v", i/100, err)
				}
				if _, err := r.Post(t.Context(), honest, sign(t, alice,
					envelope.Draft{Payload: requestWithoutID}).Canonical()); err != nil {
					t.Fatalf("the honest agent's message %d: %v", i/100, err)
				}
			}
			time.Sleep(time.Millisecond)
		}
		if admitted < 100+200+1490 || admitted > 100+200+1510 {
			t.Errorf("%d requests of the flood were admitted, want the bursts and 150 a second", admitted)
		}
		if posted < 235 || posted > 245 {
			t.Errorf("%d messages of the flooding sender were accepted, want a burst of 40, and 20 a second", posted)
		}
	})
}

// TestForgeriesDoNotUseAllowance posts in Alice's name without her key.
func TestForgeriesDoNotUseAllowance(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Limits: relay.Limits{BroadcastsPerAddress: noLimit}})
		alice := key(t)
		forged := bytes.Replace(sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical(), []byte("echo"),
			[]byte("evil"), 1)
		for range 500 {
			_, err := r.Post(t.Context(), from("192.0.2.66"), forged)
			wantCode(t, err, envelope.CodeInvalidSignature)
		}
		for i := range 40 {
			if _, err := r.Post(t.Context(), from("192.0.2.1"),
				sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical()); err != nil {
				t.Fatalf("Alice's message %d: %v", i+1, err)
			}
		}
	})
}

func TestLocalAndUnlimited(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		none := relay.Rate{PerSecond: relay.Unlimited}
		for name, c := range map[string]struct {
			limits relay.Limits
			peer   relay.Peer
		}{
			"local": {peer: relay.Peer{Addr: netip.MustParseAddr("127.0.0.1"), Local: true}},
			"unlimited": {relay.Limits{PostsPerAddress: none, ReadsPerAddress: none, PostsPerAgent: none,
				BroadcastsPerAddress: none, PollsPerAddress: relay.Unlimited, Polls: relay.Unlimited}, from("192.0.2.1")},
		} {
			r := start(t, relay.Config{Limits: c.limits})
			alice := key(t)
			polls := 11_000 // more than the default limit of the relay
			if racing.Detector {
				polls = 1000 // more than the default limit of an address
			}
			for i := range 300 {
				err := errors.Join(r.Gate().Admit(c.peer, admission.Posts), r.Gate().Admit(c.peer, admission.Reads))
				if i < 100 {
					_, posted := r.Post(t.Context(), c.peer, sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical())
					err = errors.Join(err, posted)
				}
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			for range polls {
				go r.Events(t.Context(), &relay.Poll{Peer: c.peer, Filter: relay.Filter{Thread: "quiet"}, Wait: time.Minute,
					Limit: 1})
			}
			synctest.Wait()
			if n := r.Waiting(); n != polls {
				t.Errorf("%s: %d polls wait", name, n)
			}
			r.Drain()
		}
	})
	r := start(t, relay.Config{})
	if n := testing.AllocsPerRun(100, func() { _ = r.Gate().Admit(local, admission.Posts) }); n != 0 {
		t.Errorf("admitting a local request allocates %v times", n)
	}
}

// TestStoreLearnsWhetherPeerIsLocal checks Entry.Local, which the limits of the store depend on.
func TestStoreLearnsWhetherPeerIsLocal(t *testing.T) {
	seen := &lastEntryStore{}
	r, err := relay.New(t.Context(), relay.Config{Store: seen, Key: key(t)})
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range []relay.Peer{local, from("192.0.2.1"), {}} {
		if _, err := r.Post(t.Context(), peer, sign(t, key(t),
			envelope.Draft{Payload: requestWithoutID}).Canonical()); err != nil {
			t.Fatal(err)
		}
		if got := seen.last.Local; got != peer.Local {
			t.Errorf("the entry from %+v has Local %v", peer, got)
		}
	}
}

// lastEntryStore is a store that keeps only the last entry.
type lastEntryStore struct {
	stubStore
	last relay.Entry
}

func (s *lastEntryStore) Append(_ context.Context, e relay.Entry) (relay.Receipt, error) {
	s.last = e
	return relay.Receipt{}, nil
}

func (s *lastEntryStore) Read(context.Context, relay.Query) (relay.Page, error) {
	return relay.Page{}, nil
}

// TestPollSlots takes all poll slots of an address, and frees them in each way in which a poll can end.
func TestPollSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, since := range []time.Time{{}, time.Now()} {
			r := start(t, relay.Config{})
			agent := key(t)
			var ended sync.WaitGroup
			wait := func(ctx context.Context, addr string, n int) {
				for range n {
					ended.Go(func() {
						_, err := r.Events(ctx, &relay.Poll{Peer: from(addr), Filter: relay.Filter{Recipient: agent.DID()}, Since: since,
							Wait: time.Minute, Limit: 1})
						if err != nil && ctx.Err() == nil {
							t.Error(err)
						}
					})
				}
				synctest.Wait()
			}
			full := func(when string) {
				t.Helper()
				before := time.Now()
				_, err := r.Events(t.Context(), &relay.Poll{Peer: from("2001:db8::2"), Since: since, Wait: time.Minute, Limit: 1})
				wantLimit(t, err, envelope.LimitPollsPerAddress)
				if !time.Now().Equal(before) {
					t.Errorf("%s: the refusal took %v", when, time.Since(before))
				}
				if n := r.Waiting(); n != 32 {
					t.Fatalf("%s: %d polls wait", when, n)
				}
			}
			wait(t.Context(), "2001:db8::1", 32)
			full("at the start")
			for _, p := range []relay.Poll{{Peer: from("2001:db8::1")}, {Peer: from("2001:db8:0:1::1"), Wait: time.Second},
				{Peer: local, Wait: time.Second}} {
				p.Since, p.Limit = since, 1
				poll(t, r, p)
			}

			time.Sleep(time.Minute) // their Wait is over
			ended.Wait()
			ctx, disconnect := context.WithCancel(t.Context())
			wait(ctx, "2001:db8::1", 32)
			full("after the first have ended")
			disconnect()
			ended.Wait()
			wait(t.Context(), "2001:db8::1", 32)
			full("after their clients have left")
			post(t, r, sign(t, key(t), envelope.Draft{Payload: requestWithoutID, Recipient: agent.DID()}))
			ended.Wait() // all of them have been answered
			agent = key(t)
			wait(t.Context(), "2001:db8::1", 32)
			full("after they have been answered")
			r.Drain()
			ended.Wait()
			if n := r.Waiting(); n != 0 {
				t.Errorf("%d polls wait after Drain", n)
			}
		}
	})
}

func TestPollSlotsOfAllAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Limits: relay.Limits{PollsPerAddress: 2, Polls: 5}})
		for i := range 5 {
			go r.Events(t.Context(), &relay.Poll{Peer: from(fmt.Sprint("192.0.2.", i/2)), Wait: time.Duration(i+1) * time.Second,
				Limit: 1})
		}
		synctest.Wait()
		ask := func() error {
			_, err := r.Events(t.Context(), &relay.Poll{Peer: from("192.0.2.9"), Wait: time.Second, Limit: 1})
			return err
		}
		wantLimit(t, ask(), envelope.LimitPolls)
		time.Sleep(time.Second)
		synctest.Wait()
		if err := ask(); err != nil {
			t.Errorf("after one poll has ended: %v", err)
		}
		r.Drain()
	})
}

// TestFailingPollReleasesItsSlot has more failing polls than an address has slots.
func TestFailingPollReleasesItsSlot(t *testing.T) {
	store := &failingStore{}
	r, err := relay.New(t.Context(), relay.Config{Store: store, Key: key(t)})
	if err != nil {
		t.Fatal(err)
	}
	store.err = errors.New("broken")
	for i := range 100 {
		if _, err := r.Events(t.Context(), &relay.Poll{
			Peer: from("192.0.2.1"), Wait: time.Second, Limit: 1,
		}); !errors.Is(err, store.err) {
			t.Fatalf("poll %d: %v", i, err)
		}
	}
}

type failingStore struct {
	stubStore
	err error
}

func (s *failingStore) Read(context.Context, relay.Query) (relay.Page, error) {
	return relay.Page{}, s.err
}

// TestManyAtOnce sends requests from many goroutines while the clock stands still.
func TestManyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{})
		var admitted, waiting atomic.Int32
		var tasks sync.WaitGroup
		for range 16 {
			tasks.Go(func() {
				for range 50 {
					if r.Gate().Admit(from("192.0.2.1"), admission.Posts) == nil {
						admitted.Add(1)
					}
				}
			})
			for range 4 {
				tasks.Go(func() {
					if _, err := r.Events(t.Context(), &relay.Poll{Peer: from("192.0.2.1"), Wait: time.Minute, Limit: 1}); err == nil {
						waiting.Add(1)
					}
				})
			}
		}
		tasks.Wait()
		if admitted.Load() != 100 || waiting.Load() != 32 {
			t.Errorf("%d requests admitted and %d polls held, want 100 and 32", admitted.Load(), waiting.Load())
		}
	})
}

// TestCopiesDoNotUseAllowance posts copies of Alice's messages. They are answered with her receipts, and use nothing of
// her allowance.
func TestCopiesDoNotUseAllowance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := start(t, relay.Config{Limits: relay.Limits{BroadcastsPerAddress: noLimit}})
		alice := key(t)
		first := sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical()
		if _, err := r.Post(t.Context(), from("192.0.2.1"), first); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			if receipt, err := r.Post(t.Context(), from("192.0.2.66"), first); err != nil || !receipt.Duplicate {
				t.Fatalf("%+v %v", receipt, err)
			}
		}
		for n := range 39 {
			if _, err := r.Post(t.Context(), from("192.0.2.1"),
				sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical()); err != nil {
				t.Fatalf("message %d of Alice: %v", n+2, err)
			}
		}
		_, err := r.Post(t.Context(), from("192.0.2.1"),
			sign(t, alice, envelope.Draft{Payload: requestWithoutID}).Canonical())
		wantLimit(t, err, envelope.LimitPostsPerAgent)
	})
}

// readsLeft uses up p's allowance for reads, and returns how many there were, at most 200.
func readsLeft(r *relay.Relay, p relay.Peer) (n int) {
	for n < 200 && r.Gate().Admit(p, admission.Reads) == nil {
		n++
	}
	return n
}

// TestExpensiveRequestsCountForMore checks that large bodies, and reads that take the store long, count as more than
// one request.
func TestExpensiveRequestsCountForMore(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		store := &countingStore{took: 900 * time.Millisecond}
		r := start(t, relay.Config{Store: store})
		large := bytes.Repeat([]byte("x"), 128<<10) // it is invalid, and counts as 16 more posts
		for n := range 6 {
			if err := r.Gate().Admit(from("192.0.2.1"), admission.Posts); err != nil {
				t.Fatalf("large body %d: %v", n+1, err)
			}
			_, err := r.Post(t.Context(), from("192.0.2.1"), large)
			wantCode(t, err, envelope.CodeInvalidRequest)
		}
		// The 6 requests and their size take 6+96 of 100 tokens. A token is available when a little more than two have
		// been added.
		if wait := wantLimit(t, r.Gate().Admit(from("192.0.2.1"), admission.Posts),
			envelope.LimitPostsPerAddress); wait != 60*time.Millisecond {
			t.Errorf("Retry-After is %v, want 60ms", wait)
		}
		for name, read := range map[string]func(p relay.Peer) error{
			"192.0.2.2": func(p relay.Peer) error {
				_, err := r.Events(t.Context(), &relay.Poll{Peer: p, Limit: 1})
				return err
			},
			"192.0.2.5": func(p relay.Peer) error {
				_, _, err := r.Agent(t.Context(), p, key(t).DID())
				wantCode(t, err, envelope.CodeAgentNotFound)
				return nil
			},
			"192.0.2.3": func(p relay.Peer) error { _, err := r.Agents(t.Context(), p, relay.AgentQuery{Limit: 1}); return err },
		} {
			if err := read(from(name)); err != nil {
				t.Fatal(err)
			}
			// The read takes 180 of 200 tokens.
			if left := readsLeft(r, from(name)); left != 20 {
				t.Errorf("%s may send %d more requests, want 20", name, left)
			}
		}
		if err := r.Gate().Admit(from("192.0.2.4"), admission.Reads); err != nil {
			t.Errorf("another address: %v", err)
		}
	})
}
