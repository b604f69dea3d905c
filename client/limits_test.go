package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agora-relay/agora/client"
	"github.com/agora-relay/agora/envelope"
)

const limited = `{"ok":false,"error":"RATE_LIMITED","message":"slowly","retryable":true,"details":{"limit":"x"}}`

// limitedFor is a 429 response whose Retry-After is retryAfter: a number of seconds or a date.
func limitedFor(retryAfter any) fault {
	return answering(429, limited, "Retry-After", fmt.Sprint(retryAfter))
}

// wantLimited checks that err is RATE_LIMITED and has this RetryAfter.
func wantLimited(t *testing.T, err error, retryAfter time.Duration) {
	t.Helper()
	refusal, ok := errors.AsType[*envelope.Error](err)
	if !ok || refusal.Code != envelope.CodeRateLimited || refusal.RetryAfter != retryAfter || refusal.Details["limit"] != "x" {
		t.Errorf("got %#v, want RATE_LIMITED with %v", err, retryAfter)
	}
}

// TestPostAndLimits checks how long Post waits for a relay that limits it, and when Post returns the error instead.
func TestPostAndLimits(t *testing.T) {
	inAnHour := func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
		return limitedFor(time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))(r, next)
	}
	for name, c := range map[string]struct {
		faults  []fault
		posts   int
		took    time.Duration // how long Post takes, plus up to 2 s; negative: Post returns INVALID_TRANSITION at once
		refused time.Duration // RetryAfter of the error; 0: the message is stored
		unknown bool          // the error has ErrUnknownOutcome
	}{
		"a second":                   {faults: []fault{limitedFor(1), pass}, posts: 2, took: time.Second},
		"a second, three times":      {faults: []fault{limitedFor(1), limitedFor(1), limitedFor(1), pass}, posts: 4, took: 3 * time.Second},
		"two minutes":                {faults: []fault{limitedFor(120), pass}, posts: 2, took: 2 * time.Minute},
		"121 seconds":                {faults: []fault{limitedFor(121), pass}, posts: 1, refused: 121 * time.Second},
		"an hour":                    {faults: []fault{limitedFor(3600), pass}, posts: 1, refused: time.Hour},
		"an hour, as a date":         {faults: []fault{inAnHour, pass}, posts: 1, refused: time.Hour},
		"too large a number":         {faults: []fault{limitedFor("99999999999"), pass}, posts: 1, refused: (1<<31 - 1) * time.Second},
		"nonsense":                   {faults: []fault{limitedFor("soon"), pass}, posts: 2},
		"in the past":                {faults: []fault{limitedFor(-5), pass}, posts: 2},
		"a second, then an hour":     {faults: []fault{limitedFor(1), limitedFor(3600), pass}, posts: 2, took: time.Second, refused: time.Hour},
		"broken connection, an hour": {faults: []fault{reset, limitedFor(3600), pass}, posts: 2, refused: time.Hour, unknown: true},
		"unavailable for an hour":    {faults: []fault{answering(503, unavailable, "Retry-After", "3600"), pass}, posts: 2, took: 2 * time.Minute},
		"another error code":         {faults: []fault{answering(409, wrongState, "Retry-After", "1"), pass}, posts: 1, took: -1},
		"timed out, an hour to wait": {faults: []fault{answering(408, limited, "Retry-After", "3600"), pass}, posts: 1, refused: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay := newFakeRelay()
				bodies := script(relay, c.faults...)
				began := time.Now()
				_, _, err := newClient(t, relay, newKey(t), client.Options{}).Post(t.Context(), request)
				switch {
				case c.took < 0:
					if !hasCode(err, envelope.CodeInvalidTransition) {
						t.Errorf("got %v", err)
					}
				case c.refused > 0:
					wantLimited(t, err, c.refused)
				case err != nil:
					t.Error(err)
				}
				if errors.Is(err, client.ErrUnknownOutcome) != c.unknown {
					t.Errorf("unknown outcome in %v, want %v", err, c.unknown)
				}
				if took := time.Since(began); took < c.took || took > max(c.took, 0)+2*time.Second {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if len(*bodies) != c.posts {
					t.Errorf("posted %d times, want %d", len(*bodies), c.posts)
				}
			})
		})
	}
}

// TestFollowAndLimits checks that a reader polls again when the relay's Retry-After is over, but after an hour at most.
func TestFollowAndLimits(t *testing.T) {
	for asked, want := range map[time.Duration]time.Duration{
		5 * time.Second: 5 * time.Second, 10 * time.Minute: 10 * time.Minute, time.Hour: time.Hour, 100 * time.Hour: time.Hour,
	} {
		t.Run(asked.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				relay, key := newFakeRelay(), newKey(t)
				id := relay.put(t, key, envelope.Draft{TTL: 1000 * time.Hour}).ID
				began, polls := time.Now(), 0
				relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					if polls++; polls == 1 {
						return limitedFor(int(asked.Seconds()))(r, next)
					}
					return next.RoundTrip(r)
				})
				got := collect(t, newClient(t, relay, key, client.Options{}), client.FollowOptions{FromOldest: true}, 1)
				if took := time.Since(began); len(got) != 1 || got[0] != id || took < want || took > want+time.Second || polls != 2 {
					t.Errorf("got %q after %v in %d polls", got, took, polls)
				}
			})
		})
	}
	t.Run("ctx ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			relay := newFakeRelay()
			relay.setHook(limitedFor(600))
			ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
			defer cancel()
			began := time.Now()
			err := newClient(t, relay, newKey(t), client.Options{}).Follow(ctx, client.FollowOptions{}, nil)
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != 7*time.Second {
				t.Errorf("ended after %v with %v", took, err)
			}
		})
	})
}

// TestReadsAndLimits calls each method that reads, while the relay answers 429.
func TestReadsAndLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		relay, key := newFakeRelay(), newKey(t)
		c := newClient(t, relay, key, client.Options{})
		call, err := c.Request(t.Context(), client.RequestOptions{Intent: "translate"})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := c.Post(t.Context(), envelope.Draft{Payload: envelope.Manifest{ID: "m", Intents: []envelope.Intent{{ID: "translate"}}}}); err != nil {
			t.Fatal(err)
		}
		for name, ask := range map[string]func(context.Context) error{
			"thread": func(ctx context.Context) error { _, err := c.Thread(ctx, call.Thread, key.DID()); return err },
			"resume": func(ctx context.Context) error { _, err := c.Resume(ctx, call.Thread); return err },
			"agents": func(ctx context.Context) error { _, err := c.Agents(ctx, client.AgentQuery{}); return err },
			"agent":  func(ctx context.Context) error { _, err := c.Agent(ctx, key.DID()); return err },
			"info":   func(ctx context.Context) error { _, err := c.Info(ctx); return err },
			"health": func(ctx context.Context) error { _, err := c.Health(ctx); return err },
		} {
			relay.hookDocument = name == "info"
			asked := 0
			ask := func(ctx context.Context, faults ...fault) (time.Duration, error) {
				asked = 0
				relay.setHook(func(r *http.Request, next http.RoundTripper) (*http.Response, error) {
					asked++
					return faults[min(asked, len(faults))-1](r, next)
				})
				began := time.Now()
				err := ask(ctx)
				return time.Since(began), err
			}
			if took, err := ask(t.Context(), limitedFor(3), limitedFor(7), pass); err != nil || took < 10*time.Second || took > 12*time.Second || asked != 3 {
				t.Errorf("%s: 3 and 7 seconds: %v after %v and %d requests", name, err, took, asked)
			}
			took, err := ask(t.Context(), limitedFor(31), pass)
			if wantLimited(t, err, 31*time.Second); took != 0 || asked != 1 {
				t.Errorf("%s: Retry-After beyond the timeout: took %v and %d requests", name, took, asked)
			}
			took, err = ask(t.Context(), limitedFor(4))
			if wantLimited(t, err, 4*time.Second); took < 20*time.Second || took > 30*time.Second || asked > 8 {
				t.Errorf("%s: always 429: took %v and %d requests", name, took, asked)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			took, err = ask(ctx, limitedFor(4))
			if wantLimited(t, err, 4*time.Second); took != 0 || asked != 1 {
				t.Errorf("%s: Retry-After beyond ctx's deadline: took %v and %d requests", name, took, asked)
			}
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(2*time.Second, cancel)
			took, err = ask(ctx, limitedFor(4))
			if wantLimited(t, err, 4*time.Second); !errors.Is(err, context.Canceled) || took != 2*time.Second {
				t.Errorf("%s: ctx cancelled: %v after %v", name, err, took)
			}
			if took, err := ask(t.Context(), answering(429, limited), pass); !hasCode(err, envelope.CodeRateLimited) || took != 0 {
				t.Errorf("%s: no Retry-After: %v after %v", name, err, took)
			}
		}
	})
}

// TestServeAndLimits: the relay refuses an offer twice and asks for an hour. The agent retries after two minutes each
// time, and delivers the offer.
func TestServeAndLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newParties(t)
		stop := p.serve(client.ServeOptions{}, client.Handler{})
		bodies := script(p.relay, pass, limitedFor(3600), limitedFor(3600), pass) // the REQUEST passes
		began := time.Now()
		call, _ := p.request(client.RequestOptions{})
		if _, err := firstOffer(t.Context(), call); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); len(*bodies) != 4 || took < 4*time.Minute || took > 4*time.Minute+30*time.Second {
			t.Errorf("the offer arrived after %v and %d posts; want a retry every two minutes", took, len(*bodies))
		}
		if err := stop(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
