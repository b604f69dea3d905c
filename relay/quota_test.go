package relay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/didkey"
	"github.com/agora-relay/agora/envelope"
	"github.com/agora-relay/agora/internal/racing"
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/relay/admission"
	"github.com/agora-relay/agora/thread"
)

// TestNoticesLiveAsLongAsTheirRequest checks who gets a notice of a timeout, and when it expires.
func TestNoticesLiveAsLongAsTheirRequest(t *testing.T) {
	racing.Skip(t, "one thing after another")
	for _, c := range []struct {
		name       string
		ttl        time.Duration
		names      bool // the REQUEST names its agent
		offers     bool
		want       int           // number of notices
		wantExpiry time.Duration // after the end of the thread
	}{
		{"the REQUEST has an hour left", time.Hour + thread.DefaultPendingTimeout, true, false, 2, time.Hour},
		{"the REQUEST has weeks left", 30 * 24 * time.Hour, false, false, 1, 24 * time.Hour},
		{"the REQUEST has expired, and its agent has not offered", 20 * time.Second, true, false, 1, time.Minute},
		{"the REQUEST has expired, and its agent has offered", 20 * time.Second, true, true, 2, time.Minute},
		{"a broadcast REQUEST has expired, and an agent has offered", 20 * time.Second, false, true, 2, time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := start(t, relay.Config{})
				alice, bob := key(t), key(t)
				d := envelope.Draft{Payload: request, Thread: "t", TTL: c.ttl}
				if c.names {
					d.Recipient = bob.DID()
				}
				post(t, r, sign(t, alice, d))
				if c.offers {
					post(t, r, sign(t, bob, envelope.Draft{Payload: envelope.Offer{RequestID: request.RequestID}, Thread: "t",
						Recipient: alice.DID()}))
				}
				end := time.Now().Add(thread.DefaultPendingTimeout)
				time.Sleep(thread.DefaultPendingTimeout + 2*time.Second)
				page := poll(t, r, relay.Poll{Filter: relay.Filter{Thread: "t", Type: envelope.TypeError}, Limit: 10})
				if len(page.Events) != c.want {
					t.Errorf("%d notices, want %d", len(page.Events), c.want)
				}
				for _, e := range page.Events {
					if late := e.Expires.Sub(end) - c.wantExpiry; late < -2*time.Second || late > 2*time.Second {
						t.Errorf("a notice expires %v after the end, want %v", e.Expires.Sub(end), c.wantExpiry)
					}
				}
			})
		})
	}
}

// TestQuotaDoesNotRevealHiddenMessages checks a private relay: the refusal by a full inbox does not depend on what
// other networks have posted there.
func TestQuotaDoesNotRevealHiddenMessages(t *testing.T) {
	racing.Skip(t, "one thing after another")
	const quota = 5
	// probe posts REQUESTs to bob until one is refused. It returns how many were accepted, and the refusal.
	probe := func(t *testing.T, r *relay.Relay, mallory, bob didkey.Key, from relay.Peer) string {
		for n := range 3 * quota {
			e := sign(t, mallory, envelope.Draft{Payload: request, Thread: fmt.Sprint("m", n), Recipient: bob.DID(),
				TTL: time.Hour})
			if _, err := r.Post(t.Context(), from, e.Canonical()); err != nil {
				refusal, ok := errors.AsType[*envelope.Error](err)
				if !ok {
					t.Fatal(err)
				}
				return fmt.Sprint(n, " ", refusal.Code, " ", refusal.Message, " ", refusal.Details, " ", refusal.RetryAfter)
			}
		}
		t.Fatal("the inbox accepts everything")
		return ""
	}
	for name, stranger := range map[string]string{"IPv4": "203.0.113.7", "IPv6": "2001:db8:7:7700::1"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var answers []string
				for _, hidden := range []int{0, 1, quota} {
					r := startWith(t, relay.Policy{Inbox: relay.Quota{Events: quota}}, privateConfig)
					alice, bob, mallory := key(t), key(t), key(t)
					for n := range hidden {
						e := sign(t, alice, envelope.Draft{Payload: request, Thread: fmt.Sprint("a", n), Recipient: bob.DID(),
							TTL: time.Minute})
						if _, err := r.Post(t.Context(), from("198.51.100.1"), e.Canonical()); err != nil {
							t.Fatal(err)
						}
					}
					answers = append(answers, probe(t, r, mallory, bob, from(stranger)))
				}
				if answers[0] != answers[1] || answers[0] != answers[2] {
					t.Errorf("the answers reveal how many messages wait:\n%q", answers)
				}
			})
		})
	}

	t.Run("one network has one allowance", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := startWith(t, relay.Policy{Inbox: relay.Quota{Events: quota}}, privateConfig)
			mallory, bob := key(t), key(t)
			taken := 0
			for n := range 4 * quota { // from a different /64 of one /56 each
				e := sign(t, mallory, envelope.Draft{Payload: request, Thread: fmt.Sprint("m", n), Recipient: bob.DID()})
				if _, err := r.Post(t.Context(), from(fmt.Sprintf("2001:db8:7:77%02x::1", n)), e.Canonical()); err == nil {
					taken++
				}
			}
			if taken != quota {
				t.Errorf("%d messages of one /56 are accepted, want %d", taken, quota)
			}
		})
	})
}

// TestWritesAreCharged checks that a client whose posts take the store's writer long may post less often.
func TestWritesAreCharged(t *testing.T) {
	for name, c := range map[string]struct {
		took time.Duration
		err  error
		want int // accepted posts, of a burst of 100
	}{
		"a quick write":         {time.Millisecond - 1, nil, 100},
		"a slow write":          {10 * time.Millisecond, nil, 17},
		"a slow write, refused": {10 * time.Millisecond, thread.ErrNotFound, 17},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := relay.New(t.Context(), relay.Config{Store: &slowWriter{took: c.took, err: c.err}, Key: key(t)})
				if err != nil {
					t.Fatal(err)
				}
				taken := 0
				for ; taken < 200; taken++ {
					if r.Gate().Admit(from("203.0.113.7"), admission.Posts) != nil {
						break
					}
					_, err := r.Post(t.Context(), from("203.0.113.7"),
						sign(t, key(t), envelope.Draft{Payload: request, Recipient: key(t).DID()}).Canonical())
					if err != nil && !errors.Is(err, c.err) {
						t.Fatal(err)
					}
				}
				if taken != c.want {
					t.Errorf("%d posts are accepted, want %d", taken, c.want)
				}
			})
		})
	}
}

// TestStandstillsCostLittle lets the machine stand still for a minute during one read and one write of a client. Both are
// charged, but the client does not have to wait for minutes because of it.
func TestStandstillsCostLittle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := relay.New(t.Context(), relay.Config{Store: &slowWriter{took: time.Minute}, Key: key(t)})
		if err != nil {
			t.Fatal(err)
		}
		p := from("203.0.113.7")
		body := sign(t, key(t), envelope.Draft{Payload: request, Recipient: key(t).DID()}).Canonical()
		for limit, c := range map[string]struct {
			kind admission.Kind
			work func() error
		}{
			envelope.LimitPostsPerAddress: {admission.Posts, func() error { _, err := r.Post(t.Context(), p, body); return err }},
			envelope.LimitReadsPerAddress: {admission.Reads, func() error { _, err := r.Agents(t.Context(), p, relay.AgentQuery{}); return err }},
		} {
			if err := errors.Join(r.Gate().Admit(p, c.kind), c.work()); err != nil {
				t.Fatalf("%s: %v", limit, err)
			}
			if wait := wantLimit(t, r.Gate().Admit(p, c.kind), limit); wait > 100*time.Millisecond {
				t.Errorf("%s: the client has to wait for %v", limit, wait)
			}
			time.Sleep(2 * time.Second)
			if err := r.Gate().Admit(p, c.kind); err != nil {
				t.Errorf("%s: refused after two seconds: %v", limit, err)
			}
		}
	})
}

// slowWriter is a store that reports a long time for each append, and for each page of the directory.
type slowWriter struct {
	stubStore
	took time.Duration
	err  error
}

func (s *slowWriter) Append(context.Context, relay.Entry) (relay.Receipt, error) {
	return relay.Receipt{Took: s.took}, s.err
}

func (s *slowWriter) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }

func (s *slowWriter) Agents(context.Context, relay.AgentQuery) (relay.AgentPage, error) {
	return relay.AgentPage{Took: s.took}, nil
}
