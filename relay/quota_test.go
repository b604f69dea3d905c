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
	"github.com/agora-relay/agora/relay"
	"github.com/agora-relay/agora/thread"
)

// TestNoticesLiveAsLongAsTheirRequest holds who is told of a timeout, and for how long.
func TestNoticesLiveAsLongAsTheirRequest(t *testing.T) {
	for _, c := range []struct {
		name       string
		ttl        time.Duration
		names      bool // the REQUEST names its agent
		offers     bool
		want       int           // notices
		wantExpiry time.Duration // after the thread's end
	}{
		{"the REQUEST has an hour left", time.Hour + thread.DefaultPendingTimeout, true, false, 2, time.Hour},
		{"it has weeks left", 30 * 24 * time.Hour, false, false, 1, 24 * time.Hour},
		{"it has gone, and its agent has never offered", 20 * time.Second, true, false, 1, time.Minute},
		{"it has gone, and its agent has offered", 20 * time.Second, true, true, 2, time.Minute},
		{"it has gone, and somebody has offered", 20 * time.Second, false, true, 2, time.Minute},
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
					post(t, r, sign(t, bob, envelope.Draft{Payload: envelope.Offer{RequestID: request.RequestID}, Thread: "t", Recipient: alice.DID()}))
				}
				end := time.Now().Add(thread.DefaultPendingTimeout)
				time.Sleep(thread.DefaultPendingTimeout + 2*time.Second)
				page := poll(t, r, relay.Poll{Filter: relay.Filter{Thread: "t", Type: envelope.TypeError}, Limit: 10})
				if len(page.Events) != c.want {
					t.Errorf("%d notices, want %d", len(page.Events), c.want)
				}
				for _, e := range page.Events {
					if late := e.Expires.Sub(end) - c.wantExpiry; late < -2*time.Second || late > 2*time.Second {
						t.Errorf("a notice lives until %v after the end, want %v", e.Expires.Sub(end), c.wantExpiry)
					}
				}
			})
		})
	}
}

// TestQuotaTellsNothingOfHiddenMail: where mail is hidden, what a stranger is answered by an inbox does not depend on
// what others have put there.
func TestQuotaTellsNothingOfHiddenMail(t *testing.T) {
	const quota = 5
	// probe posts REQUESTs to bob until one is refused, and returns how many were taken and the refusal.
	probe := func(t *testing.T, r *relay.Relay, mallory, bob didkey.Key, from relay.Peer) string {
		for n := range 3 * quota {
			e := sign(t, mallory, envelope.Draft{Payload: request, Thread: fmt.Sprint("m", n), Recipient: bob.DID(), TTL: time.Hour})
			if _, err := r.Post(t.Context(), from, e.Canonical()); err != nil {
				refusal, ok := errors.AsType[*envelope.Error](err)
				if !ok {
					t.Fatal(err)
				}
				return fmt.Sprint(n, " ", refusal.Code, " ", refusal.Message, " ", refusal.Details, " ", refusal.RetryAfter)
			}
		}
		t.Fatal("the inbox takes everything")
		return ""
	}
	for name, stranger := range map[string]string{"IPv4": "203.0.113.7", "IPv6": "2001:db8:7:7700::1"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var answers []string
				for _, hidden := range []int{0, 1, quota} {
					r := startWith(t, relay.Policy{Inbox: relay.Quota{Events: quota}}, private)
					alice, bob, mallory := key(t), key(t), key(t)
					for n := range hidden {
						e := sign(t, alice, envelope.Draft{Payload: request, Thread: fmt.Sprint("a", n), Recipient: bob.DID(), TTL: time.Minute})
						if _, err := r.Post(t.Context(), from("198.51.100.1"), e.Canonical()); err != nil {
							t.Fatal(err)
						}
					}
					answers = append(answers, probe(t, r, mallory, bob, from(stranger)))
				}
				if answers[0] != answers[1] || answers[0] != answers[2] {
					t.Errorf("answers tell how much waits:\n%q", answers)
				}
			})
		})
	}

	t.Run("one network has one allowance", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := startWith(t, relay.Policy{Inbox: relay.Quota{Events: quota}}, private)
			mallory, bob := key(t), key(t)
			taken := 0
			for n := range 4 * quota { // from as many /64s of one /56
				e := sign(t, mallory, envelope.Draft{Payload: request, Thread: fmt.Sprint("m", n), Recipient: bob.DID()})
				if _, err := r.Post(t.Context(), from(fmt.Sprintf("2001:db8:7:77%02x::1", n)), e.Canonical()); err == nil {
					taken++
				}
			}
			if taken != quota {
				t.Errorf("%d messages of one /56 are taken, want %d", taken, quota)
			}
		})
	})
}

// TestWritesAreCharged: who makes the store's writer search for long posts less often.
func TestWritesAreCharged(t *testing.T) {
	for name, c := range map[string]struct {
		took time.Duration
		err  error
		want int // posts of a burst of 100 that are taken
	}{
		"a quick one":         {time.Millisecond - 1, nil, 100},
		"a slow one":          {10 * time.Millisecond, nil, 17},
		"a slow one, refused": {10 * time.Millisecond, thread.ErrNotFound, 17},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, err := relay.New(t.Context(), relay.Config{Store: &slowWriter{took: c.took, err: c.err}, Key: key(t)})
				if err != nil {
					t.Fatal(err)
				}
				taken := 0
				for ; taken < 200; taken++ {
					if r.Admit(from("203.0.113.7"), relay.Posts) != nil {
						break
					}
					_, err := r.Post(t.Context(), from("203.0.113.7"), sign(t, key(t), envelope.Draft{Payload: request, Recipient: key(t).DID()}).Canonical())
					if err != nil && !errors.Is(err, c.err) {
						t.Fatal(err)
					}
				}
				if taken != c.want {
					t.Errorf("%d posts are taken, want %d", taken, c.want)
				}
			})
		})
	}
}

// slowWriter takes a while to append.
type slowWriter struct {
	stub
	took time.Duration
	err  error
}

func (s *slowWriter) Append(context.Context, relay.Entry) (relay.Receipt, error) {
	return relay.Receipt{Took: s.took}, s.err
}

func (s *slowWriter) Read(context.Context, relay.Query) (relay.Page, error) { return relay.Page{}, nil }
