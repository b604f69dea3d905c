package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/store/sqlite"
)

// exchangeTime is long enough for two nodes to exchange reports.
const exchangeTime = time.Second

// reportExchange passes reports between nodes in one process.
type reportExchange struct {
	mu      sync.Mutex
	err     error
	reports [][]byte          // encoded as for a network
	senders []*exchangeMember // who made each report
}

// exchangeMember is the Siblings of one node.
type exchangeMember struct {
	*reportExchange
	received int // how many of reports it has received
}

func (s *exchangeMember) Exchange(_ context.Context, mine relay.Report) (relay.Report, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return relay.Report{}, s.err
	}
	text, err := json.Marshal(mine)
	if err != nil {
		return relay.Report{}, err
	}
	s.reports, s.senders = append(s.reports, text), append(s.senders, s)
	var others relay.Report
	for ; s.received < len(s.reports); s.received++ {
		if s.senders[s.received] == s {
			continue
		}
		var r relay.Report
		if err := json.Unmarshal(s.reports[s.received], &r); err != nil {
			return relay.Report{}, err
		}
		others.Add(r)
	}
	return others, nil
}

// startNodes runs two relays over one store until the test ends. They share nonces and exchange reports.
func startNodes(t *testing.T, c relay.Config) (a, b *relay.Relay, between *reportExchange) {
	t.Helper()
	store, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "agora.db"), sqlite.Options{Reserve: 1 << 22})
	if err != nil {
		t.Fatal(err)
	}
	c.Store, c.Key, c.Origin = store, key(t), ownOrigin
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Nonces == nil {
		c.Nonces = relay.NewTokens(time.Now())
	}
	between = new(reportExchange)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	var nodes [2]*relay.Relay
	for i := range nodes {
		c.Siblings = &exchangeMember{reportExchange: between}
		if nodes[i], err = relay.New(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		go func() { ended <- nodes[i].Run(ctx) }()
	}
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended, store.Close()); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(exchangeTime)
	return nodes[0], nodes[1], between
}

// isOnline reports whether r shows an agent as online. The agent must have one MANIFEST.
func isOnline(t *testing.T, r *relay.Relay, who didkey.DID) bool {
	t.Helper()
	found, err := r.Agents(t.Context(), local, relay.AgentQuery{DID: who, OnlineSince: time.Now().Add(-relay.OnlineWithin),
		Limit: 9})
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := r.Agent(t.Context(), local, who)
	if err != nil || len(all) != 1 || r.Online(all[0]) != (len(found.Agents) == 1) {
		t.Fatalf("%v, %v, found %v", all, err, found.Agents)
	}
	return len(found.Agents) == 1
}

func listAgent(t *testing.T, r *relay.Relay) didkey.Key {
	t.Helper()
	agent := key(t)
	post(t, r, sign(t, agent, envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{}},
		TTL: 24 * time.Hour}))
	return agent
}

// TestNodesAcceptATokenOnce checks that a token that was used at one node is refused at the other.
func TestNodesAcceptATokenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := startNodes(t, relay.Config{})
		reader := key(t)
		token := tokenFor(t, reader, envelope.Read{})
		if did, err := a.VerifyRead(t.Context(), token, "GET", "/events"); err != nil || did != reader.DID() {
			t.Fatal(did, err)
		}
		for name, node := range map[string]*relay.Relay{"the same": a, "the other": b} {
			_, err := node.VerifyRead(t.Context(), token, "GET", "/events")
			if reason := wantCode(t, err, envelope.CodeUnauthorized).Details["reason"]; reason != envelope.ReasonUsed {
				t.Errorf("%s node refuses the token as %v", name, reason)
			}
		}
		if _, err := b.VerifyRead(t.Context(), tokenFor(t, reader, envelope.Read{}), "GET", "/events"); err != nil {
			t.Error(err)
		}
	})
}

// TestNodesShowWhoIsOnline checks that an agent that signs a read at one node is online at both.
func TestNodesShowWhoIsOnline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := startNodes(t, relay.Config{})
		reading, marked := listAgent(t, a), listAgent(t, b)
		time.Sleep(10 * time.Minute)
		if isOnline(t, a, reading.DID()) || isOnline(t, b, marked.DID()) {
			t.Fatal("they are online before they have signed a read")
		}
		if _, err := a.VerifyRead(t.Context(), tokenFor(t, reading, envelope.Read{}), "GET", "/events"); err != nil {
			t.Fatal(err)
		}
		a.MarkPresent(from("192.0.2.1"), tokenFor(t, marked, envelope.Read{}), "GET", "/events")
		time.Sleep(exchangeTime)
		for name, node := range map[string]*relay.Relay{"a": a, "b": b} {
			if !isOnline(t, node, reading.DID()) || !isOnline(t, node, marked.DID()) {
				t.Errorf("node %s does not show them online", name)
			}
		}
		time.Sleep(relay.OnlineWithin + time.Minute) // a node does not report again what it has learned from others
		for name, node := range map[string]*relay.Relay{"a": a, "b": b} {
			if isOnline(t, node, reading.DID()) || isOnline(t, node, marked.DID()) {
				t.Errorf("node %s still shows them online", name)
			}
		}
	})
}

// TestNodesShareRates checks that posts at one node count at the other, for each limit on posts.
func TestNodesShareRates(t *testing.T) {
	racing.Skip(t, "one thing after another")
	const burst = 10
	few := relay.Rate{PerSecond: 0.5, Burst: burst}
	to := key(t).DID()
	for limit, c := range map[string]struct {
		limits relay.Limits
		use    func(t *testing.T, r *relay.Relay, sender didkey.Key, addr string) error
	}{
		envelope.LimitPostsPerAddress: {relay.Limits{PostsPerAddress: few},
			func(_ *testing.T, r *relay.Relay, _ didkey.Key, addr string) error {
				return r.Gate().Admit(from(addr), admission.Posts)
			}},
		envelope.LimitPostsPerAgent: {relay.Limits{PostsPerAgent: few},
			func(t *testing.T, r *relay.Relay, sender didkey.Key, addr string) error {
				_, err := r.Post(t.Context(), from(addr), sign(t, sender,
					envelope.Draft{Payload: requestWithoutID, Recipient: to}).Canonical())
				return err
			}},
		envelope.LimitBroadcastsPerAddress: {relay.Limits{BroadcastsPerAddress: few},
			func(t *testing.T, r *relay.Relay, sender didkey.Key, addr string) error {
				_, err := r.Post(t.Context(), from(addr), sign(t, sender, envelope.Draft{Payload: requestWithoutID}).Canonical())
				return err
			}},
	} {
		t.Run(limit, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b, _ := startNodes(t, relay.Config{Limits: c.limits})
				sender, addr := key(t), "2001:db8::1"
				for i := range burst {
					if err := c.use(t, a, sender, addr); err != nil {
						t.Fatalf("request %d at one node: %v", i+1, err)
					}
				}
				time.Sleep(exchangeTime)
				refused := wantCode(t, c.use(t, b, sender, addr), envelope.CodeRateLimited)
				if refused.Details["limit"] != limit || refused.RetryAfter <= 0 || refused.RetryAfter > 2*time.Second {
					t.Errorf("refused by %v with Retry-After %v", refused.Details["limit"], refused.RetryAfter)
				}
				time.Sleep(refused.RetryAfter)
				if err := c.use(t, b, sender, addr); err != nil {
					t.Errorf("after Retry-After: %v", err)
				}
				if err := c.use(t, b, key(t), "198.51.100.7"); err != nil {
					t.Errorf("another sender: %v", err)
				}
				if err := b.Gate().Admit(from(addr), admission.Reads); err != nil {
					t.Errorf("a read: %v", err)
				}
				time.Sleep(3 * burst * time.Second) // all buckets are full again
				admitted := 0
				for range 60 * 10 { // for a minute, as fast as possible at both nodes
					for _, node := range []*relay.Relay{a, b} {
						if c.use(t, node, sender, addr) == nil {
							admitted++
						}
					}
					time.Sleep(time.Second / 10)
				}
				if admitted < 30 || admitted > 30+2*burst {
					t.Errorf("%d admitted in a minute, want those of one node, and at most one more burst", admitted)
				}
			})
		})
	}
}

// TestNodesRefundDuplicates checks that a duplicate does not count at any node.
func TestNodesRefundDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := startNodes(t, relay.Config{Limits: relay.Limits{PostsPerAgent: relay.Rate{PerSecond: 0.001, Burst: 4}}})
		sender := key(t)
		e := sign(t, sender, envelope.Draft{Payload: requestWithoutID})
		for i := range 20 {
			if _, err := a.Post(t.Context(), from("192.0.2.1"), e.Canonical()); err != nil {
				t.Fatal(i, err)
			}
			time.Sleep(exchangeTime / 2)
		}
		for i := range 3 {
			if _, err := b.Post(t.Context(), from("192.0.2.2"),
				sign(t, sender, envelope.Draft{Payload: requestWithoutID}).Canonical()); err != nil {
				t.Errorf("message %d: %v", i+2, err)
			}
		}
	})
}

// TestNodesWithoutExchange checks nodes that cannot exchange reports. Each node uses its own limits and presence. What
// happens in that time is not counted later.
func TestNodesWithoutExchange(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		const burst = 5
		var log bytes.Buffer
		a, b, between := startNodes(t, relay.Config{
			Limits: relay.Limits{PostsPerAgent: relay.Rate{PerSecond: 1, Burst: burst}},
			Log:    slog.New(slog.NewTextHandler(&log, nil))})
		agent, sender := listAgent(t, a), key(t)
		time.Sleep(10 * time.Minute)
		between.mu.Lock()
		between.err = errors.New("no route")
		between.mu.Unlock()

		for name, node := range map[string]*relay.Relay{"a": a, "b": b} {
			admitted := 0
			for range 3 * burst {
				_, err := node.Post(t.Context(), from("192.0.2.1"),
					sign(t, sender, envelope.Draft{Payload: requestWithoutID}).Canonical())
				if err == nil {
					admitted++
				} else {
					wantCode(t, err, envelope.CodeRateLimited)
				}
			}
			if admitted != burst {
				t.Errorf("node %s has admitted %d, want %d", name, admitted, burst)
			}
		}
		if _, err := a.VerifyRead(t.Context(), tokenFor(t, agent, envelope.Read{}), "GET", "/events"); err != nil {
			t.Error(err)
		}
		time.Sleep(30 * time.Second)
		if !isOnline(t, a, agent.DID()) || isOnline(t, b, agent.DID()) {
			t.Errorf("online: %v at the node of the read, %v at the other node", isOnline(t, a, agent.DID()),
				isOnline(t, b, agent.DID()))
		}
		between.mu.Lock()
		between.err = nil
		between.mu.Unlock()
		time.Sleep(exchangeTime)
		for i := range burst { // tokens that were taken in between are not taken again
			if _, err := b.Post(t.Context(), from("192.0.2.1"),
				sign(t, sender, envelope.Draft{Payload: requestWithoutID}).Canonical()); err != nil {
				t.Errorf("message %d after the exchange works again: %v", i+1, err)
			}
		}
		if n := strings.Count(log.String(), "no route"); n != 2 {
			t.Errorf("%d lines of %s", n, &log)
		}
	})
}

// failingNonces fails with the error that the test sets, or hangs.
type failingNonces struct {
	relay.Nonces
	err  error
	hang bool
}

func (n *failingNonces) Use(ctx context.Context, id [16]byte, ts, now time.Time) error {
	if n.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	if n.err != nil {
		return n.err
	}
	return n.Nonces.Use(ctx, id, ts, now)
}

// TestNoncesFail checks that a read is refused if its token cannot be recorded as used. The refused read has no effect:
// its signer is not online.
func TestNoncesFail(t *testing.T) {
	racing.Skip(t, "one thing after another")
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		nonces := &failingNonces{Nonces: relay.NewTokens(time.Now())}
		a, b, _ := startNodes(t, relay.Config{Nonces: nonces, Log: slog.New(slog.NewTextHandler(&log, nil))})
		agent := listAgent(t, a)
		time.Sleep(10 * time.Minute)
		refused := func(why string, err error) *envelope.Error {
			t.Helper()
			e := wantCode(t, err, envelope.CodeUnavailable)
			if strings.Contains(e.Message, "secret") || e.RetryAfter <= 0 {
				t.Errorf("%s: %v, retry after %v", why, e, e.RetryAfter)
			}
			if isOnline(t, a, agent.DID()) || isOnline(t, b, agent.DID()) {
				t.Errorf("%s: its signer is online", why)
			}
			return e
		}
		token := tokenFor(t, agent, envelope.Read{})
		nonces.err = fmt.Errorf("a secret address: %w", errors.New("connection refused"))
		for range 5 {
			_, err := a.VerifyRead(t.Context(), token, "GET", "/events")
			refused("Nonces fails", err)
		}
		if n := strings.Count(log.String(), "connection refused"); n != 1 {
			t.Errorf("%d lines of %s", n, &log)
		}
		nonces.err = &envelope.Error{Code: envelope.CodeUnavailable, Message: "full", RetryAfter: time.Minute}
		_, err := a.VerifyRead(t.Context(), token, "GET", "/events")
		if e := refused("Nonces is full", err); e.Message != "full" || e.RetryAfter != time.Minute {
			t.Errorf("%+v", e)
		}
		nonces.err = &envelope.Error{Code: envelope.CodeInternal, Message: "secret"}
		_, err = a.VerifyRead(t.Context(), token, "GET", "/events")
		refused("Nonces has an internal error", err)
		nonces.err = fmt.Errorf("restarted: %w", relay.ErrReadTime)
		_, err = a.VerifyRead(t.Context(), token, "GET", "/events")
		if reason := wantCode(t, err, envelope.CodeUnauthorized).Details["reason"]; reason != envelope.ReasonTime {
			t.Errorf("a read whose nonce may be forgotten is refused as %v", reason)
		}

		nonces.hang = true
		began := time.Now()
		_, err = a.VerifyRead(t.Context(), token, "GET", "/events")
		refused("Nonces hangs", err)
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("the relay waits for %v", took)
		}
		gone, leave := context.WithTimeout(t.Context(), time.Second)
		defer leave()
		began = time.Now()
		_, err = a.VerifyRead(gone, token, "GET", "/events")
		refused("the client has left", err)
		if took := time.Since(began); took != time.Second {
			t.Errorf("the relay waits for %v after the client has left", took)
		}

		nonces.hang, nonces.err = false, nil
		if _, err := a.VerifyRead(t.Context(), token, "GET", "/events"); err != nil {
			t.Errorf("after Nonces works again: %v", err)
		}
	})
}
